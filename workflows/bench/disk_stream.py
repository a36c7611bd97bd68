"""Measure ranking from disk within a budget of memory, beside the disk alone and other programs.

Every measurement is a process of its own and is repeated in turns with the others, as the disk and the rest
of the machine vary; the fastest is reported beside all. What is made once stays in the cache folder, which
has to be on the disk to be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import describe

MEMORY = "640MiB"
MAKE = """
import sys
from pathlib import Path
import numpy as np, oocpr, pyarrow as pa, pyarrow.parquet as pq
from edge_set import add_reference, prepare
from oocpr.sources.rmat import Rmat

scale, cache, size = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
add_reference(prepare(f"rmat{scale}", None, cache))
random = np.random.default_rng(0)
if not (cache / "disk").exists():
    (cache / "disk").write_bytes(random.bytes(size))
for order in ("keep", "degree"):
    if not (store := cache / f"rmat{scale}-{order}.zarr").exists():
        oocpr.import_graph(Rmat(scale), store, order=order, memory="4GiB")
if not (store := cache / f"rmat{scale - 1}-weighted.zarr").exists():
    table = cache / "weighted.parquet"
    schema = pa.schema([("src", pa.uint32()), ("dst", pa.uint32()), ("weight", pa.float64())])
    with pq.ParquetWriter(table, schema, compression="none") as out:
        for block in Rmat(scale - 1).blocks(1 << 20):
            out.write_table(pa.table([block.src, block.dst, random.random(len(block.src))], schema=schema))
    oocpr.import_graph(str(table), store, weight="weight", memory="4GiB")
    table.unlink()
"""

GRID = """
import sys
from pathlib import Path
import numpy as np

folder, out = map(Path, sys.argv[1:])
indptr = np.load(folder / "out_indptr.npy")
targets = np.load(folder / "out_indices.npy", mmap_mode="r")
with out.open("wb") as file:
    for lo in range(0, len(indptr) - 1, 1 << 20):
        hi = min(len(indptr) - 1, lo + (1 << 20))
        ends = np.empty((indptr[hi] - indptr[lo], 2), np.int32)
        ends[:, 0] = np.repeat(np.arange(lo, hi, dtype=np.int32), np.diff(indptr[lo : hi + 1]))
        ends[:, 1] = targets[indptr[lo] : indptr[hi]]
        ends.tofile(file)
"""


def run(*words: object) -> dict[str, Any]:
    """Result of one program of disk_programs.py, with the load before it; or the reason why there is none."""
    load = os.getloadavg()[0]
    command = [sys.executable, str(Path(__file__).with_name("disk_programs.py")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"reason": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return {**json.loads(done.stdout.splitlines()[-1]), "load_before": round(load, 2)}


def grid_graph(cache: Path, scale: int, megabytes: int) -> dict[str, Any]:
    """Five iterations of GridGraph (float32, dangling mass dropped), its pass over the degrees apart."""
    folder = os.environ.get("OOCPR_GRIDGRAPH")
    if folder is None:
        return {"reason": "OOCPR_GRIDGRAPH does not name a folder with its binaries"}
    grid = cache / f"rmat{scale}.grid"
    if not grid.exists():
        pairs = cache / "pairs"
        subprocess.run([sys.executable, "-c", GRID, str(cache / f"rmat{scale}"), str(pairs)], check=True)
        words = ["-i", str(pairs), "-o", str(grid), "-v", str(1 << scale), "-p", "8", "-t", "0"]
        subprocess.run([f"{folder}/preprocess", *words], check=True, capture_output=True)
        pairs.unlink()
    load = os.getloadavg()[0]
    with subprocess.Popen(
        [f"{folder}/pagerank", str(grid), "5", str(megabytes)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        out = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    degrees, whole = (float(found) for found in re.findall(r"(?:used|took) ([\d.]+) seconds", out))
    return {
        "pass_seconds": (whole - degrees) / 5,
        "read_bytes": used.ru_inblock * 512,
        "peak_mib": used.ru_maxrss >> 10,
        "load_before": round(load, 2),
    }


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the fastest pass beside all; or the reason why there is none."""
    done = [one for one in runs if "pass_seconds" in one]
    return {**min(done, key=lambda one: one["pass_seconds"]), "runs": runs} if done else runs[0]


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Everything in turns, by its name."""
    cache, scale = chosen.cache, chosen.scale
    reference = cache / f"rmat{scale}" / "reference.npy"
    graphs = {name: cache / f"rmat{scale}-{name}.zarr" for name in ("keep", "degree")}
    weighted = cache / f"rmat{scale - 1}-weighted.zarr"
    plans = {
        f"rank {name}, {io}": (store, MEMORY, io, "mixed")
        for name, store in graphs.items()
        for io in ("direct", "buffered")
    }
    plans["rank weighted, direct"] = (weighted, chosen.weighted_memory, "direct", "mixed")
    found: dict[str, list[dict[str, Any]]] = {}

    def note(name: str, one: dict[str, Any]) -> None:
        print(name, json.dumps({k: v for k, v in one.items() if not k.endswith("_all")}), flush=True)
        found.setdefault(name, []).append(one)

    stores = [*graphs.values(), weighted]
    rates = run("rates", chosen.rounds, cache / "disk", *stores)
    print("rates", json.dumps(rates), flush=True)
    for turn in range(chosen.times):
        for name, words in plans.items():
            out = cache / "ranks.parquet"
            one = run("rank", *words, out)
            if turn == 0 and "reason" not in one and "weighted" not in name:
                one |= {"true_error": run("error", out, reference)["true_error"]}
            note(name, one)
        if turn < chosen.peer_times:
            note("GridGraph", grid_graph(cache, scale, 640))
            note("Dask", run("dask", cache / f"rmat{scale}", 1000 if turn == 0 else 4, reference))
    medians: dict[str, Any] = rates.pop("rates", {})
    return medians | {"all rates": rates} | {name: best(runs) for name, runs in found.items()}


def main() -> None:
    """Measure, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=23)
    parser.add_argument("--weighted-memory", default="560MiB", help="for the weighted graph, half as large")
    parser.add_argument(
        "--bytes", type=int, default=1 << 30, help="of the file that the disk is measured with"
    )
    parser.add_argument("--rounds", type=int, default=12, help="in which the disk alone and tiles are read")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--peer-times", type=int, default=2)
    parser.add_argument("--cache", type=Path, required=True, help="folder on the disk to be measured")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    # In a process of its own: a child's peak of memory begins with what its parent holds.
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    words = [sys.executable, "-c", MAKE, str(chosen.scale), str(chosen.cache), str(chosen.bytes)]
    subprocess.run(words, env=environment, check=True)
    found = measure(chosen)
    settings = {"scale": chosen.scale, "memory": MEMORY, "weighted_memory": chosen.weighted_memory}
    text = json.dumps({"machine": describe(), "settings": settings, "measured": found}, indent=1)
    chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
