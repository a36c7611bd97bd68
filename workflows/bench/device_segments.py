"""Time products of numbers in segments (CPMS) by the bits that are read, beside plain float64.

Each row is one kernel of the paper's algorithm: a thread a row, rows one after the other (CSR) or side by
side (ELL), matrix values and vector cut alike::

    python3 workflows/bench/device.py segments web24.zarr --out segments.json
"""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path
from typing import Any

from device_products import Bench
from machine import provenance

from oocpr.engine.cpms.device import DeviceSweeps
from oocpr.engine.planning import RunRequest, asked_settings, plan_run
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.errors import DoesNotFitError
from oocpr.store.graph import open_store

KERNELS = {"CSR": False, "ELL": True}


def measure(bench: Bench, path: Path, graph: str, segments: int, kernel: str) -> None:
    """Note the time of a product with each number of segments."""
    how = RunRequest(device="cuda", kernel="ell" if KERNELS[kernel] else None)
    store, settings = open_store(str(path)), asked_settings("cpms2", None)
    try:
        run = plan_run(store, settings, how, 0)
        run.plan.validate()
        grouped, (tiers,) = run.store, run.plan.devices
        assert isinstance(grouped, GroupedStore), "a plan for devices has groups"
        opened = closing(DeviceSweeps(grouped, bench.device, segments, tiers, slices=KERNELS[kernel]))
    except DoesNotFitError as error:
        bench.note(graph, f"{kernel}, {segments} segments", error.cause)
        return
    with opened as sweeps:
        for read in range(1, segments + 1):

            def work(read: int = read) -> None:
                sweeps.sweep(read, min(read + 1, segments), 0.85, 0.0)

            bits = 64 // segments * read
            what = (
                f"{kernel}, {bits} bits of {segments} segments, ms"
                if segments > 1
                else f"{kernel}, float64, ms"
            )
            bench.note(graph, what, 1e3 * bench.seconds(work))


def main(arguments: list[str] | None = None) -> None:
    """Measure stored graphs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stores", type=Path, nargs="+", metavar="STORE", help="graphs, imported")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_segments.json")
    options = parser.parse_args(arguments)
    bench = Bench(options.out, options.repeats)
    for name, value in provenance("device.py segments").items():
        bench.note("provenance", name, value)
    bench.copy_rate()
    for path in options.stores:
        store, graph = open_store(str(path)), path.stem
        for what in ("nodes", "edges"):
            bench.note(graph, what, getattr(store, what))
        for kernel in KERNELS:
            for segments in (1, 2, 4):
                measure(bench, path, graph, segments, kernel)
        found: dict[str, Any] = bench.results[graph]
        for what, value in list(found.items()):
            plain = found.get(f"{what[:3]}, float64, ms")
            if what.endswith("ms") and plain and isinstance(value, float):
                bench.note(graph, what.replace("ms", "times as fast as float64"), plain / value)


if __name__ == "__main__":
    main()
