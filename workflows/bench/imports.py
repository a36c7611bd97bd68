"""Measure imports: edges a second and peak memory, from text, .npy and Parquet files of R-MAT.

Each import runs in a process of its own and is repeated; the fastest is reported beside all times, with the
load of the machine before each. The files are made once and kept in the cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

FORMATS = ("txt", "npy", "parquet")

RUN = """
import json, resource, sys, time
from oocpr.ingest.build import build_store
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.units import parse_bytes

path, store, memory, order = sys.argv[1:]
build_store(Rmat(5), store, memory=2**30, overwrite=True)  # loads and compiles
before = resource.getrusage(resource.RUSAGE_SELF)
began = time.perf_counter()
facts = build_store(open_source(path), store, memory=parse_bytes(memory), order=order, overwrite=True)
seconds = time.perf_counter() - began
after = resource.getrusage(resource.RUSAGE_SELF)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "seconds": seconds,
    "edges": facts.edges + facts.duplicates,
    "user_seconds": after.ru_utime - before.ru_utime,
    "system_seconds": after.ru_stime - before.ru_stime,
    "peak_mib": int(status["VmHWM"].split()[0]) / 1024,
    "bytes_per_edge": facts.column_bytes / facts.edges,
}))
"""


def make(scale: int, folder: Path) -> None:
    """Write the edges of R-MAT in every format; what is there already stays."""
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


def measure(path: Path, folder: Path, memory: str, order: str, times: int) -> dict[str, Any]:
    """Import a file some times; the fastest, and what all took."""
    runs = []
    for _ in range(times):
        load = os.getloadavg()[0]
        words = [sys.executable, "-c", RUN, str(path), str(folder / "store.zarr"), memory, order]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        runs.append({**json.loads(done.stdout), "load_before": load})
        print(json.dumps(runs[-1]), flush=True)
    best = min(runs, key=lambda run: run["seconds"])
    return {**best, "edges_per_second": best["edges"] / best["seconds"], "runs": runs}


def main() -> None:
    """Measure what the command line asks for, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=23)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--order", default="keep")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--cache", type=Path, required=True, help="folder for the files and the stores")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    make(chosen.scale, chosen.cache)
    results = {
        kind: measure(
            chosen.cache / f"rmat{chosen.scale}.{kind}",
            chosen.cache,
            chosen.memory,
            chosen.order,
            chosen.times,
        )
        for kind in FORMATS
    }
    settings = {"scale": chosen.scale, "memory": chosen.memory, "order": chosen.order}
    chosen.out.write_text(
        json.dumps({"machine": describe(), "settings": settings, "imports": results}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
