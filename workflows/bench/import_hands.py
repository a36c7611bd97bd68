"""Measure imports whose edges are sorted and whose tiles are encoded by this process, or by Dask workers.

Every import is a process of its own, in turns with the others; the fastest is reported beside all of them.
`processor_seconds` are those of the importing process, which Dask's scheduler is part of here, and not those
of its workers; the other figures of processors and memory are of all processes and of the largest one. All
stores have to have the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from imports import Program, make, run, summary
from machine import describe

IMPORT = """
import hashlib, json, sys, time
from pathlib import Path
from oocpr.api.graphs import import_hands
from oocpr.engine.executors.dask_client import joined
from oocpr.ingest.build import build_store
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.units import parse_bytes

path, store, memory, workers = sys.argv[1:]
with joined(None, int(workers) or None) as client:
    hands = import_hands(client)
    build_store(Rmat(12), store, memory=2**40, overwrite=True, hands=hands)  # loads what is compiled
    began, worked = time.perf_counter(), time.process_time()
    facts = build_store(open_source(path), store, memory=parse_bytes(memory), overwrite=True, hands=hands)
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    digest = hashlib.sha256()
    for file in sorted(file for file in Path(store).rglob("*") if file.is_file()):
        digest.update(str(file.relative_to(store)).encode() + file.read_bytes())
told = {"seconds": seconds, "processor_seconds": worked, "edges": facts.edges, "sha256": digest.hexdigest()}
print(json.dumps(told))
"""


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Import in each way in turns; by its name."""
    path = chosen.cache / f"rmat{chosen.scale}.npy"
    ways = {"own": 0, **{f"{workers} Dask workers": workers for workers in chosen.workers}}
    found: dict[str, dict[str, Any]] = {}
    for _ in range(chosen.times):
        for name, workers in ways.items():
            words = [path, chosen.cache / "store.zarr", chosen.memory, workers]
            one = run(Program([sys.executable, "-c", IMPORT, *map(str, words)]), path)
            print(name, json.dumps(one), flush=True)
            if "reason" in one:
                raise RuntimeError(f"{name}: {one['reason']}")
            runs = [*found.get(name, {}).get("runs", []), one]
            found[name] = summary(runs, 16 << chosen.scale, by="seconds")
    stores = {held["sha256"] for way in found.values() for held in way["runs"]}
    if len(stores) != 1:
        raise RuntimeError("the stores are not the same")
    return found


def main() -> None:
    """Measure what the command line asks for, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=22)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--workers", type=int, nargs="*", default=[2], help="numbers of Dask workers")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--cache", type=Path, required=True, help="folder for the file and the stores")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    make(chosen.scale, chosen.cache)
    settings = {"scale": chosen.scale, "edges": 16 << chosen.scale, "memory": chosen.memory}
    found = {"machine": describe(), "settings": settings, "imports": measure(chosen)}
    chosen.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
