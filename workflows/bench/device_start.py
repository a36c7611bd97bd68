"""Rank stored graphs on a CUDA device in new processes, and say where the time until the ranks goes.

Each run is a process of its own; before it, all files of the store are read, so that they come from the page
cache, and one run before the others compiles what is kept on the machine. Beside them are rates of the
machine alone: of the link to the device, and of reading the files of the tiles from the page cache and from
the disk::

    python3 workflows/bench/device.py start r26.zarr --runs 5 --budgets all 2GiB --out device-start.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from device_budgets import EVERYTHING
from machine import describe, provenance

from oocpr.store.direct_io import aligned, open_file, read_file, takes_direct_reads

if TYPE_CHECKING:
    from numpy.typing import NDArray

RANK = """
import json, sys
from time import perf_counter

begun = perf_counter()
path, how = sys.argv[1], json.loads(sys.argv[2])
import oocpr
from oocpr.engine import planning
from oocpr.engine.cuda.device import free_memory
from oocpr.engine.cuda.names import named_devices
from oocpr.engine.executors.local import LocalExecutor

# Whoever asks first waits for CuPy and the driver.
for name in named_devices(how["device"]):
    free_memory(name)
moments = {}

def noted(name, work):
    def timed(*arguments, **options):
        moments.setdefault(name, perf_counter())
        result = work(*arguments, **options)
        moments.setdefault(f"{name}, end", perf_counter())
        return result
    return timed

planning.plan_loaded = noted("plan", planning.plan_loaded)
LocalExecutor.run_pass = noted("pass", LocalExecutor.run_pass)
called = perf_counter()
ranks = oocpr.pagerank(path, **how)
ended = perf_counter()

passes = [record.seconds for record in ranks.history]
planned, first = moments["plan, end"], moments["pass"]
with open("/proc/self/status") as status:
    peak = next(line for line in status if line.startswith("VmHWM"))
print(json.dumps({
    "seconds": ended - begun,
    "seconds of pagerank": ended - called,
    "seconds by parts": {
        "importing and opening": moments["plan"] - begun,
        "planning": planned - moments["plan"],
        "opening the stream and rows": first - planned,
        "first pass": passes[0],
        "later passes": sum(passes[1:]),
        "finishing": ended - first - sum(passes),
    },
    "seconds of compiling": ranks.run.compile_seconds,
    "passes": len(passes),
    "bound": ranks.error_bound,
    "edges": ranks.run.edges,
    "bytes read": ranks.run.bytes_read,
    "peak of the process, MiB": int(peak.split()[1]) / 2**10,
    "peak of the device's pool, MiB": ranks.run.peak_device_memory / 2**20,
}))
"""

LATER = """
import json, sys
from time import perf_counter

import oocpr

path, how = sys.argv[1], json.loads(sys.argv[2])
took = []
for _ in range(1 + how.pop("later")):
    called = perf_counter()
    oocpr.pagerank(path, **how)
    took.append(perf_counter() - called)
print(json.dumps(took[1:]))
"""

REPEATS = 5
LINK_BYTES = 1 << 30
RATE_BYTES = 2 << 30
"""Bytes of tiles that are read for a rate, or a little more."""

READING = (1, 8)
"""Threads that read files of tiles."""


def told_by(program: str, path: Path, how: dict[str, Any]) -> Any:
    """What a program prints that ranks a graph in a process of its own."""
    words = [sys.executable, "-c", program, str(path), json.dumps(how)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def ranked(path: Path, how: dict[str, Any]) -> dict[str, Any]:
    """Rank in a process of its own; returns what the run says of itself, and the seconds of the process."""
    begun = perf_counter()
    told = told_by(RANK, path, how)
    return {"seconds of the process": perf_counter() - begun, **told}


def tile_files(store: Path) -> list[Path]:
    """Files of a store's tiles, and of their weights if there are any."""
    edges = store / "in_edges"
    chunks = [path for name in ("indices", "data") for path in sorted((edges / name).rglob("*"))]
    return [path for path in chunks if path.is_file() and path.name != "zarr.json"]


def read_rate(files: list[Path], threads: int, *, direct: bool = False, times: int = REPEATS) -> float:
    """Bytes a second, read into buffers that have been used before, one a thread; the best of so many."""
    sizes = [path.stat().st_size for path in files]
    buffers = [aligned(max(sizes)) for _ in range(threads)]
    for buffer in buffers:
        buffer[:] = 1

    def read(share: int) -> None:
        for path, size in zip(files[share::threads], sizes[share::threads], strict=True):
            read_whole(path, buffers[share][:size], direct=direct)

    def once() -> float:
        begun = perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read, range(threads)))
        return sum(sizes) / (perf_counter() - begun)

    return max(once() for _ in range(times))


def read_whole(path: Path, out: NDArray[np.uint8], *, direct: bool) -> None:
    """Read a file of so many bytes."""
    descriptor = open_file(str(path), direct=direct)
    try:
        done, _ = read_file(descriptor, out, 0, direct=direct)
    finally:
        os.close(descriptor)
    if done != out.size:
        raise RuntimeError(f"{path.name} ends after {done} of {out.size} bytes")


def read_all(store: Path) -> None:
    """Read all files of a store, so that they are in the page cache."""
    piece = bytearray(1 << 24)
    for path in store.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(piece):
                    pass


def link() -> tuple[str, float]:
    """Name of the first device, and bytes a second that get there from pinned memory; the best of several."""
    from oocpr.engine.cuda.device import Device

    device = Device(0)
    with device:
        pinned, there = device.pinned(LINK_BYTES), device.xp.empty(LINK_BYTES, np.uint8)
        pinned[:] = 1

        def once() -> float:
            device.synchronize()
            begun = perf_counter()
            device.upload_async(there, pinned).synchronize()
            return LINK_BYTES / (perf_counter() - begun)

        return device.name, max(once() for _ in range(REPEATS))


def apart(work: Callable[[], Any]) -> Any:
    """Do something in a process of its own, which leaves nothing on a device."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work).result()


def rates(store: Path) -> dict[str, float | None]:
    """Rates at which files of the tiles are read; None for a disk that cannot be asked alone."""
    files = first_files(tile_files(store))
    read_all(store)
    found: dict[str, float | None] = {
        f"page cache, threads {threads}, GB/s": read_rate(files, threads) / 1e9 for threads in READING
    }
    disk = read_rate(files, READING[-1], direct=True) / 1e9 if takes_direct_reads(str(files[0])) else None
    return found | {f"disk, threads {READING[-1]}, GB/s": disk}


def first_files(files: list[Path]) -> list[Path]:
    """Those for a rate."""
    sizes = accumulate(path.stat().st_size for path in files)
    return [path for path, before in zip(files, [0, *sizes], strict=False) if before < RATE_BYTES]


def spread(runs: list[Any]) -> Any:
    """Median, least and most of each number of several runs."""
    first = runs[0]
    if isinstance(first, dict):
        return {name: spread([run[name] for run in runs]) for name in first}
    return {"median": float(np.median(runs)), "min": min(runs), "max": max(runs)}


def measure(store: Path, options: argparse.Namespace, note: Callable[[str, Any], None]) -> None:
    """Everything that is measured of one store; budgets take turns."""
    files = tile_files(store)
    note("tiles", {"files": len(files), "bytes": sum(path.stat().st_size for path in files)})
    note("rates", apart(partial(rates, store)))
    runs: dict[str, list[dict[str, Any]]] = {}
    few = first_files(files)
    read_disk = partial(apart, partial(read_rate, few, READING[-1], direct=True, times=1))
    usual = {
        "device": options.device, "method": options.method, "memory": options.memory, "io": options.io
    }  # fmt: skip
    for turn in range(options.runs + 1):
        for budget in options.budgets:
            how = dict(usual)
            if budget != EVERYTHING:
                how["device_memory"] = budget
            read_all(store)
            try:
                # In turns with the runs, for a disk's rate may change from one second to the next.
                disk = read_disk() if options.io == "direct" else None
                run = ranked(store, how)
                if disk is not None:
                    rate = run["bytes read"] / run["seconds by parts"]["first pass"]
                    run |= {"disk before it, GB/s": disk / 1e9, "first pass, share of the disk": rate / disk}
            except RuntimeError as error:
                note(budget, {"failed": str(error)})
                continue
            if turn == 0:
                note(f"{budget}, before", run)
                continue
            of_budget = runs.setdefault(budget, [])
            of_budget.append(run)
            note(budget, {"runs": len(of_budget), **spread(of_budget)})
    if options.later:
        later = told_by(LATER, store, {**usual, "later": options.later})
        note("later calls of pagerank in one process, seconds", later)


def main(arguments: list[str] | None = None) -> None:
    """Rank each store within each budget, print a line each, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stores", type=Path, nargs="+", metavar="STORE", help="graphs, imported")
    parser.add_argument("--runs", type=int, default=5, help="of each, after one that is not counted")
    parser.add_argument("--later", type=int, default=5, help="calls in one process after its first; 0: none")
    parser.add_argument("--budgets", nargs="+", default=[EVERYTHING, "2GiB"], help="of the device's memory")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", help="of the process")
    parser.add_argument("--method", default="mixed")
    parser.add_argument("--io", default="auto", help="how tiles are read; direct: from the disk")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_start.json")
    options = parser.parse_args(arguments)
    name, rate = apart(link) if options.device.startswith("cuda") else (options.device, None)
    found: dict[str, Any] = {
        "provenance": provenance(Path(sys.argv[0]).name, name),
        "machine": describe(),
        "device": name,
        "link, GB/s": None if rate is None else rate / 1e9,
        "stores": {},
    }

    def note(store: str, what: str, value: Any) -> None:
        found["stores"].setdefault(store, {})[what] = value
        print(store, what, json.dumps(value), flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")

    for store in options.stores:
        measure(store, options, partial(note, store.stem))


if __name__ == "__main__":
    main()
