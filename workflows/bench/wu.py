"""Count as Wu et al. 2010 do: seconds of a round of power iteration, and of what a product prepares before.

python workflows/bench/wu.py --quick
python workflows/bench/wu.py --out FILE.json
python workflows/bench/wu.py --device cuda --vectors --out FILE.json

The graphs have the rows and non-zeros of the paper's and the shapes of `oocpr generate wu`: they are not the
graphs themselves, and have nothing of the locality of a crawl. A round is a pass of power iteration in
float64, the median of those after the first. The speed-up is that of 500 rounds over the processors of the
same machine, with what a product prepares: the device's time for decoding the stored graph and laying it out.
A product has 2 nnz - rows operations, of which GFlop/s are those of a whole round. Published figures are of
another machine and of the graphs themselves. The default is timed until an L1 error of 1e-10 is certified.

`--vectors` times add, L1 norm and L1 distance of vectors in kernels of their own, one, one and two operations
for each number, and the two kernels that do this and more in a pass of oocpr, for which the same four count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from machine import provenance
from papers import POWER
from rich.console import Console
from rich.table import Table

import oocpr
from oocpr.cli import fail
from oocpr.errors import OocprError, UsageError
from oocpr.sources.wu import SHAPES, Wu

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.result.ranks import Report

ROUNDS = 500
TOL = 1e-10
QUICK = 8
ELEMENTS = 10_000_000
PROCESSORS, DEFAULT = "processors", "oocpr, default"
KERNELS = {
    "hybrid, rows in bins": "binned:6:96",
    "one thread per row": "csr-scalar",
    "16 threads per row": "csr-16",
    "a warp per row": "csr-vector",
}


class Published(NamedTuple):
    """Milliseconds of Wu et al. 2010, the device's with the hybrid, and its speed-up over 500 rounds."""

    processor: float
    preparing: float
    product: float
    round: float
    speedup: float


PUBLISHED = {
    "su": Published(16.67, 11.51, 2.74, 2.81, 5.9),
    "su+ucb": Published(25.54, 31.00, 4.74, 5.18, 4.9),
    "wikipedia-20051105": Published(234.31, 72.65, 18.08, 18.66, 12.5),
    "wikipedia-20060925": Published(541.85, 154.01, 35.98, 37.25, 14.4),
    "wikipedia-20061104": Published(558.11, 146.35, 38.13, 39.42, 14.1),
    "wikipedia-20070206": Published(701.54, 156.22, 43.91, 45.44, 15.3),
    "edu-2001": Published(289.92, 467.92, 28.99, 32.31, 8.7),
}
PUBLISHED_VECTORS = {"add": 9.9, "norm": 26.5, "distance": 29.3}
"""GFlop/s at ten million numbers."""


def runs_of(graph: oocpr.Graph, count: int, **how: Any) -> list[Report]:
    """Rank a graph so many times, and once before, which warms up and does not count."""
    reports = [oocpr.pagerank(graph, **how).run for _ in range(count + 1)]
    return [report for report in reports[1:] if report is not None]


def rounds(graph: oocpr.Graph, passes: int, count: int, **how: Any) -> dict[str, float]:
    """Time rounds of power iteration: milliseconds of one, GFlop/s, and milliseconds of what is prepared."""
    # So low a change is out of reach in so few passes, so that all of them are made.
    found = runs_of(graph, count, stop="residual", tol=1e-13, max_passes=passes, **POWER, **how)
    each = median(run.pass_seconds for run in found if run.pass_seconds is not None)
    return {
        "preparing, ms": 1e3 * median(run.preparing_seconds or 0.0 for run in found),
        "round, ms": 1e3 * each,
        "GFlop/s": (2 * graph.edges - graph.nodes) / each / 1e9,
    }


def speedup(processors: dict[str, float], device: dict[str, float]) -> float:
    """How many times as fast a device is over 500 rounds, with what it prepares.

    >>> figures = {"preparing, ms": 11.51, "round, ms": 2.81}
    >>> f"{speedup({'round, ms': 16.67}, figures):.1f}"
    '5.9'
    """
    return ROUNDS * processors["round, ms"] / (device["preparing, ms"] + ROUNDS * device["round, ms"])


def account(graph: oocpr.Graph, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is measured on one graph."""
    passes, count = options.passes, options.runs
    found: dict[str, Any] = {PROCESSORS: rounds(graph, passes, count, device="cpu")}
    kernels = KERNELS if options.device != "cpu" else {}
    for title, kernel in kernels.items():
        found[title] = rounds(graph, passes, count, device=options.device, kernel=kernel)
        found[title]["speed-up"] = speedup(found[PROCESSORS], found[title])
    for device in dict.fromkeys(["cpu", options.device]):
        reports = runs_of(graph, count, tol=TOL, device=device)
        found[f"{DEFAULT}, {device}"] = {
            "certified, ms": 1e3 * median(run.seconds for run in reports),
            "passes": reports[0].passes,
            "bound": max(run.error_bound for run in reports),
        }
    return found


@dataclass(frozen=True)
class Vectors:
    """Vectors of a device, of so many numbers, and how often what is done with them is timed."""

    device: Device
    elements: int = ELEMENTS
    repeats: int = 50

    def seconds(self, work: Callable[[], object]) -> float:
        """Median time that the device takes for what is launched."""
        device, times = self.device, []
        for turn in range(self.repeats + 3):
            begin = device.timestamp()
            work()
            end = device.timestamp()
            device.synchronize()
            # The first ones compile and warm up.
            times += [device.elapsed(begin, end)] if turn >= 3 else []
        return median(times)

    def rates(self, operations: int, nbytes: int, work: Callable[[], object]) -> dict[str, float]:
        """Time what does so many operations and moves so many bytes for each number."""
        seconds = self.seconds(work)
        done = self.elements / seconds / 1e9
        return {"ms": 1e3 * seconds, "GFlop/s": operations * done, "GB/s": nbytes * done}

    def apart(self, dtype: type[np.floating[Any]]) -> dict[str, dict[str, float]]:
        """Add, L1 norm and L1 distance, each in kernels of its own: ``kernels/papers/vectors.cu``."""
        from oocpr.engine.cuda.device import THREADS

        device, count = self.device, np.uint64(self.elements)
        size = np.dtype(dtype).itemsize
        load = device.load("papers/vectors.cu", NUMBER={4: "float", 8: "double"}[size]).get_function
        a, b, out = (device.xp.ones(self.elements, dtype) for _ in range(3))
        blocks = 16 * device.multiprocessors
        partials, sum_ = device.xp.zeros(blocks, dtype), device.xp.zeros(1, dtype)

        def summed(name: str, *vectors: Any) -> None:
            load(name)((blocks,), (THREADS,), (*vectors, count, partials))
            load("add_partials")((1,), (THREADS,), (partials, np.uint64(blocks), sum_))

        def add() -> None:
            load("add_vectors")((blocks,), (THREADS,), (a, b, count, out))

        return {
            "add": self.rates(1, 3 * size, add),
            "norm": self.rates(1, size, lambda: summed("norm_partials", a)),
            "distance": self.rates(2, 2 * size, lambda: summed("distance_partials", a, b)),
        }

    def fused(self) -> dict[str, dict[str, float]]:
        """The row kernels of a pass of power iteration in float64: ``kernels/vectors.cu``."""
        from oocpr.engine.backend import RESTART, PushStep, StripeSpec, SweepStep
        from oocpr.engine.cuda.device import to_device
        from oocpr.engine.cuda.group import TILE
        from oocpr.engine.cuda.spmv import SegmentSums
        from oocpr.engine.cuda.vectors import DeviceGatherVector, GroupRows, RowState
        from oocpr.plan.tile_groups import THREAD_BLOCK_ROWS

        device, rows = self.device, self.elements
        spec = StripeSpec(0, 1, 0, rows, rows, slots=0, proposals=False, reads="float64")
        degree = np.full(rows, 8, np.uint32)
        state = RowState(device, spec, degree, None, None, pairs=False, in_host=False, partitioned=False)
        numbers = DeviceGatherVector(device, rows, "float64", paired=False)
        sums = SegmentSums.allocate(device, rows + 1, 1, paired=False)
        sums.pushes.fill(1 / rows)
        tile = np.zeros(1, TILE)
        tile["segments"] = rows + 1
        group = cast("DeviceGroup", _Rows((to_device(device, tile.view(np.uint8)), np.uint32(1))))
        owned = GroupRows(0, 1, 0, rows, 0, 0, -(-(rows + 1) // THREAD_BLOCK_ROWS))
        push = PushStep(RESTART, (), 0.0, -1, 1.0)
        state.begin_sweep(SweepStep(0.85, 0.15, 0.0, sweeps=1, slot=-1, live=(), scale=1.0))

        def update() -> None:
            state.update(sums, group, owned, numbers, (None, None), every=True)

        found = {
            # Out-degree, ranks and residual are read, ranks, residual and the push written, by rows.
            "push, fused": self.rates(2, 44, lambda: state.make_push(push)),
            # Out-degree, push, residual and what was delivered are read, the residual is written.
            "update, fused": self.rates(4, 36, update),
        }
        state.close()
        return found

    def all(self) -> dict[str, Any]:
        """Everything that is measured."""
        apart = {
            f"{name}, {dtype.__name__}": rates
            for dtype in (np.float32, np.float64)
            for name, rates in self.apart(dtype).items()
        }
        return {"elements": self.elements, "kernels": apart | self.fused()}


class _Rows(NamedTuple):
    """What row kernels ask of a group."""

    table: tuple[Any, np.uint32]


def render(found: dict[str, Any]) -> Iterator[Table]:
    """Make a table of each graph, and one of the vectors if they were timed."""
    for graph in found["graphs"].values():
        table = Table(
            title=f"{graph['title']}: {graph['nodes']:,} rows, {graph['edges']:,} non-zeros",
            title_justify="left",
        )
        table.add_column("", no_wrap=True)
        for column in ("preparing", "a round", "GFlop/s", "500 rounds", "to 1e-10", "Wu 2010, other machine"):
            table.add_column(column, justify="right")
        for title, cell in graph["systems"].items():
            table.add_row(title, *_cells(title, cell), _published(title, graph["published"]))
        yield table
    if "vectors" in found:
        count = found["vectors"]["elements"]
        table = Table(title=f"Vectors of {count:,} numbers on {found['device']}", title_justify="left")
        table.add_column("", no_wrap=True)
        for column in ("ms", "GFlop/s", "GB/s", "Wu 2010, other machine"):
            table.add_column(column, justify="right")
        for title, rates in found["vectors"]["kernels"].items():
            published = PUBLISHED_VECTORS.get(title.removesuffix(", float32"))
            table.add_row(
                title, f"{rates['ms']:.3g}", f"{rates['GFlop/s']:.3g}", f"{rates['GB/s']:.4g}",
                f"{published} GFlop/s" if published else "",
            )  # fmt: skip
        yield table


def _cells(title: str, cell: dict[str, float]) -> tuple[str, ...]:
    if "certified, ms" in cell:
        return "", "", "", "", f"{cell['certified, ms']:.3g} ms, {cell['passes']} passes"
    each, rate = f"{cell['round, ms']:.3g} ms", f"{cell['GFlop/s']:.3g}"
    if title == PROCESSORS:
        return "", each, rate, "1x", ""
    return f"{cell['preparing, ms']:.3g} ms", each, rate, f"{cell['speed-up']:.1f}x", ""


def _published(title: str, figures: dict[str, float] | None) -> str:
    """Say what was published of a row; nothing for graphs of another size."""
    published = None if figures is None else Published(**figures)
    if published is not None and title == PROCESSORS:
        return f"{published.processor} ms"
    if published is not None and title == next(iter(KERNELS)):
        return f"{published.preparing} + {published.round} ms, {published.speedup}x"
    return ""


def parse() -> argparse.Namespace:
    """Read the command line; raises UsageError for what asks for a device and names none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--like", nargs="+", choices=[*SHAPES], metavar="NAME", help=f"of {', '.join(SHAPES)}"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--runs", type=int, help="runs of each that count; 3, or 1 with --quick")
    parser.add_argument(
        "--passes", type=int, help="passes of a run of power iteration; 30, or 5 with --quick"
    )
    parser.add_argument("--vectors", action="store_true", help="time vector kernels, too, on a device")
    parser.add_argument("--quick", action="store_true", help=f"su alone, with 1/{QUICK} of its rows")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    if options.vectors and options.device == "cpu":
        raise UsageError("Vectors are timed on a device.", "Add --device cuda, or leave --vectors out.")
    options.runs = options.runs or (1 if options.quick else 3)
    options.passes = options.passes or (5 if options.quick else 30)
    few = ["su"] if options.quick else ["su", "su+ucb"]
    options.like = options.like or (few if options.quick or options.device == "cpu" else [*SHAPES])
    return options


def main() -> None:
    """Measure all graphs that were asked for, and the vectors."""
    options = parse()
    found: dict[str, Any] = {"provenance": provenance("wu.py"), "device": options.device, "graphs": {}}
    device = None
    if options.device != "cpu":
        from oocpr.engine.cuda.device import open_device

        device = open_device(options.device)
        found["device"] = device.name
        found["provenance"] = provenance("wu.py", device.name)

    def note() -> None:
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    if device is not None and options.vectors:
        found["vectors"] = Vectors(device).all()
        note()
    for name in options.like:
        source = Wu(name, QUICK if options.quick else 1)
        with tempfile.TemporaryDirectory() as folder:
            graph = oocpr.import_graph(source, Path(folder) / "graph.zarr")
            found["graphs"][name] = {
                "title": source.name,
                "nodes": graph.nodes,
                "edges": graph.edges,
                "published": None if options.quick else PUBLISHED[name]._asdict(),
                "systems": account(graph, options),
            }
        note()
    console = Console(width=None if sys.stdout.isatty() else 140)
    for table in render(found):
        console.print(table)


if __name__ == "__main__":
    try:
        main()
    except OocprError as error:
        sys.exit(fail(error.cause, error.remedy, error.exit_code))
