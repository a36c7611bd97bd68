"""Measure imports of R-MAT from text, .npy and Parquet files, beside what other programs do to get a graph.

Each import is a process of its own and is repeated, in turns with the others; the fastest is reported beside
all of them, with processor seconds, the peak of memory as the system counts it, and the load before. Files
are made once and kept in the cache folder, and are read before each import, so that none waits for the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import describe

FORMATS = ("txt", "npy", "parquet")

OOCPR = """
import json, sys, time
from oocpr.ingest.build import build_store
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.units import parse_bytes

path, store, memory, order = sys.argv[1:]
build_store(Rmat(5), store, memory=2**40, order=order, overwrite=True)  # loads what is compiled
began = time.perf_counter()
facts = build_store(open_source(path), store, memory=parse_bytes(memory), order=order, overwrite=True)
seconds = time.perf_counter() - began
bytes_per_edge = facts.column_bytes / facts.edges
print(json.dumps({"seconds": seconds, "edges": facts.edges, "bytes_per_edge": bytes_per_edge}))
"""

NETWORKIT = """
import json, sys, time
import networkit, numpy as np

path, kind, threads = sys.argv[1:]
networkit.setNumberOfThreads(int(threads))
began = time.perf_counter()
if kind == "txt":
    graph = networkit.graphio.EdgeListReader(" ", 0, directed=True).read(path)
else:
    if kind == "npy":
        src, dst = np.load(path)
    else:
        from pyarrow import parquet
        table = parquet.read_table(path)
        src, dst = (table[name].to_numpy() for name in ("src", "dst"))
    nodes = 1 + int(max(src.max(), dst.max()))
    graph = networkit.GraphFromCoo((src.astype(np.int64), dst.astype(np.int64)), n=nodes, directed=True)
print(json.dumps({"seconds": time.perf_counter() - began, "edges": graph.numberOfEdges()}))
"""


@dataclass(frozen=True)
class Program:
    """A program that imports one file.

    Parameters
    ----------
    command
        Its words; it prints JSON with `seconds`, those of the import alone, or nothing.
    release
        Which release it is.
    """

    command: list[str]
    release: str = ""


def make(scale: int, folder: Path) -> None:
    """Write the edges of R-MAT in every format; what is there already stays."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    from oocpr.sources.rmat import Rmat

    paths = {kind: folder / f"rmat{scale}.{kind}" for kind in FORMATS}
    if all(path.is_file() for path in paths.values()):
        return
    source = Rmat(scale)
    ends = np.lib.format.open_memmap(paths["npy"].with_suffix(".part"), "w+", np.uint32, (2, source.edges))
    schema = pa.schema([("src", pa.uint32()), ("dst", pa.uint32())])
    plain = pa.csv.WriteOptions(include_header=False, delimiter=" ")
    done = 0
    with (
        pq.ParquetWriter(paths["parquet"], schema) as tables,
        pa.csv.CSVWriter(paths["txt"], schema, write_options=plain) as text,
    ):
        for block in source.blocks(1 << 20):
            table = pa.table([block.src, block.dst], schema=schema)
            tables.write_table(table)
            text.write_table(table)
            ends[:, done : done + len(block.src)] = block.src, block.dst
            done += len(block.src)
    ends.flush()
    paths["npy"].with_suffix(".part").rename(paths["npy"])


def programs(path: Path, folder: Path, memory: str, order: str) -> dict[str, Program | str]:
    """Programs that can import a file, or why they cannot be had."""
    threads = str(len(os.sched_getaffinity(0)))
    words = [sys.executable, "-c", OOCPR, str(path), str(folder / "store.zarr"), memory, order]
    found: dict[str, Program | str] = {"oocpr": Program(words), "networkit": "no interpreter is given"}
    if path.suffix == ".txt":
        found["gap-converter"] = _gap(path, folder)
    if python := os.environ.get("OOCPR_PEERS_PYTHON"):
        asked = "import networkit; print(networkit.__version__)"
        told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        words = [python, "-c", NETWORKIT, str(path), path.suffix[1:], threads]
        found["networkit"] = told.stderr.strip() if told.returncode else Program(words, told.stdout.strip())
    return found


def _gap(path: Path, folder: Path) -> Program | str:
    """GAP's own converter; it knows files of edges by their name."""
    from gap import folder as binaries
    from gap import revision

    try:
        binary = binaries() / "converter"
    except ImportError as error:
        return str(error)
    if not binary.exists():
        return f"no {binary.name} in the folder of GAP's binaries"
    named = path.with_suffix(".el")
    named.unlink(missing_ok=True)
    named.symlink_to(path.name)
    return Program([str(binary), "-f", str(named), "-b", str(folder / "graph.sg")], revision())


def run(program: Program, path: Path) -> dict[str, Any]:
    """Run a program on a file that the system holds in memory.

    Returns
    -------
    dict
        ``process_seconds`` from start to end, ``seconds`` of the import alone where the program tells them,
        ``user_seconds``, ``system_seconds`` and ``peak_mib`` of the process, and ``load_before``; or
        ``reason``, where it failed.
    """
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    load = os.getloadavg()[0]
    # Compiled modules of Python are kept, as they are by default.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with subprocess.Popen(
        program.command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        out, complaint = child.stdout.read(), child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        return {"reason": (complaint.strip().splitlines() or [f"exit {child.returncode}"])[-1]}
    told = json.loads(out.splitlines()[-1]) if out.lstrip().startswith("{") else {}
    return {
        "process_seconds": seconds,
        **told,
        "user_seconds": used.ru_utime,
        "system_seconds": used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
        "load_before": load,
    }


def summary(runs: list[dict[str, Any]], edges: int, by: str = "process_seconds") -> dict[str, Any]:
    """The fastest run, and what all took."""
    best = min(runs, key=lambda one: one[by])
    rates = {"process_edges_per_second": edges / best["process_seconds"]}
    if "seconds" in best:
        rates["edges_per_second"] = edges / best["seconds"]
    return {**best, **rates, "runs": runs}


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Import each file by each program in turns; by format and program."""
    edges = 16 << chosen.scale
    found: dict[str, dict[str, Any]] = {kind: {} for kind in FORMATS}
    for turn in range(chosen.times):
        for kind in FORMATS:
            path = chosen.cache / f"rmat{chosen.scale}.{kind}"
            for name, program in programs(path, chosen.cache, chosen.memory, chosen.order).items():
                held = found[kind].setdefault(name, {"runs": []})
                if "reason" in held or (name != "oocpr" and turn >= chosen.peer_times):
                    continue
                one = {"reason": program} if isinstance(program, str) else run(program, path)
                print(kind, name, json.dumps(one), flush=True)
                if "reason" in one:
                    found[kind][name] = one
                    continue
                found[kind][name] = summary([*held["runs"], one], edges)
                if isinstance(program, Program) and program.release:
                    found[kind][name]["release"] = program.release
    for kinds in found.values():
        for name, held in kinds.items():
            if name != "oocpr" and "process_seconds" in held and "process_seconds" in kinds["oocpr"]:
                held["times_as_long"] = held["process_seconds"] / kinds["oocpr"]["process_seconds"]
                held["times_the_memory"] = held["peak_mib"] / kinds["oocpr"]["peak_mib"]
    return found


def main() -> None:
    """Measure what the command line asks for, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=23)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--order", default="keep")
    parser.add_argument("--times", type=int, default=5, help="imports by oocpr")
    parser.add_argument("--peer-times", type=int, default=2, help="imports by each other program")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the files and the stores")
    parser.add_argument("--make", action="store_true", help="make the files and end")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.make:
        chosen.cache.mkdir(parents=True, exist_ok=True)
        make(chosen.scale, chosen.cache)
        return
    if chosen.out is None:
        parser.error("--out is needed")
    # In a process of its own: a child's peak of memory begins with what its parent holds.
    subprocess.run([sys.executable, *sys.argv, "--make"], check=True)
    found = measure(chosen)
    settings = {
        "scale": chosen.scale,
        "edges": 16 << chosen.scale,
        "memory": chosen.memory,
        "order": chosen.order,
        "files": "in the page cache",
    }
    text = json.dumps({"machine": describe(), "settings": settings, "imports": found}, indent=2)
    chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
