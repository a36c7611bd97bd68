"""Tune the balanced and the binned product on a CUDA device, and time what is found beside the defaults.

For R-MAT by out-degree and as permuted, the web-like graph, and graphs of files: each product and format is
tuned as `oocpr tune` does it, all shapes compiled anew; then the default and the shape that was kept multiply
with the whole graph, and their sums are compared bit by bit. Needs CuPy, but neither Zarr nor an
installation::

    ln -sfn ../kernels oocpr/kernels && PYTHONPATH=. python3 workflows/bench/device_tune.py
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import cupy as cp
import device_graphs as graphs
import numpy as np
from device import Bench, Cell

from oocpr.engine.cuda.cupy_device import CudaDevice
from oocpr.engine.cuda.papers.products import PADDING, Binned, Gather, Matrix
from oocpr.engine.cuda.spmv import EVERYTHING, Product, SegmentSums, enough_hubs
from oocpr.engine.cuda.tile import HUBS
from oocpr.engine.cuda.tuning import BalancedTiles, BinnedTiles, Tuning, tune
from oocpr.engine.cuda.tuning_cache import Kept
from oocpr.engine.cuda.tuning_candidates import Case, graph_class, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

READS = ("bits16", "float32", "float64")


@contextmanager
def _nothing_compiled() -> Iterator[CudaDevice]:
    """The device, as if nothing had ever been compiled for it, and with an empty folder of shapes."""
    before = dict(os.environ)
    with TemporaryDirectory() as folder:
        os.environ |= {"CUPY_CACHE_DIR": folder, "OOCPR_CACHE_DIR": folder}
        try:
            with CudaDevice(0) as device:
                yield device
        finally:
            os.environ.clear()
            os.environ.update(before)


class Tuned(Cell):
    """One graph on the device."""

    def __init__(self, bench: Bench, graph: graphs.DeviceGraph, tiles: Any, seconds: float) -> None:
        room = [max(t.nonempty for _, t in tiles), max(t.blocks for _, t in tiles)]
        super().__init__(bench, graph, tiles, SegmentSums.allocate(bench.device, *room, paired=False))
        self.limit = seconds
        self.hubs = enough_hubs(int((graph.columns < HUBS).sum()), graph.edges)

    def case(self, reads: str) -> Case:
        """What shapes are for."""
        return Case(Gather(reads), self.hubs, self.bench.device.shared_bytes)

    def balanced(self, reads: str) -> None:
        """The balanced product."""
        stored, _ = self.stored(reads)
        case = self.case(reads)
        with _nothing_compiled() as device:
            tiles = [self.tiles[k][1] for k in sample(len(self.tiles))]
            found = tune(BalancedTiles(device, case, tiles, stored, self.graph.nodes), seconds=self.limit)
            products = [
                Product(device, reads, shape=shape)  # type: ignore[arg-type]
                for shape in (found.usual, found.best)
            ]
            same = True
            for _, tile in self.tiles:
                sums = []
                for product in products:
                    self.sums.pushes[:] = np.nan
                    product(tile, stored, self.graph.nodes, EVERYTHING, self.sums, self.faults)
                    sums.append(self.sums.pushes[: tile.nonempty].view(np.uint64).copy())
                same &= bool((sums[0] == sums[1]).all())
            self.report(device, case, found, [partial(self.run, p, stored) for p in products], same)

    def binned(self, reads: str) -> None:
        """The product in bins by size."""
        stored, _ = self.stored(reads)
        case = self.case(reads)
        numbers = cp.zeros(self.graph.nodes + PADDING, stored.dtype)
        numbers[: self.graph.nodes] = stored[: self.graph.nodes]
        with _nothing_compiled() as device:
            matrix = Matrix(self.graph.offsets.astype(np.uint32), self.graph.columns, self.graph.nodes)
            found = tune(BinnedTiles(device, case, [matrix], numbers), seconds=self.limit)
            laid = Binned(device, matrix, case.gather)
            products = [laid.divided(cut) for cut in (found.usual, found.best)]  # type: ignore[arg-type]
            sums = [cp.full(self.graph.nodes, np.nan) for _ in products]
            for product, room in zip(products, sums, strict=True):
                product(numbers, room)
            same = bool((sums[0].view(np.uint64) == sums[1].view(np.uint64)).all())
            works = [partial(product, numbers, sums[0]) for product in products]
            self.report(device, case, found, works, same)

    def report(
        self,
        device: CudaDevice,
        case: Case,
        found: Tuning,
        works: Sequence[Callable[[], object]],
        same: bool,
    ) -> None:
        """Note both speeds on the whole graph, what tuning took, and whether its file is read back."""
        name = graph_class(self.graph.nodes, self.graph.edges, self.local_share(), case)
        kept = Kept.of(device)
        written = kept.keep(found.kernel, name, found.best, found.figures())
        # The default once more behind the other, in case the device's clock has moved.
        usual, best, again = (self.bench.seconds(work) for work in (*works, works[0]))
        gteps = [self.graph.edges / seconds / 1e9 for seconds in (min(usual, again), best)]
        self.bench.note(
            self.graph.name,
            f"{found.kernel}, {case.gather.reads}",
            {
                "default GTEPS": round(gteps[0], 2),
                "tuned GTEPS": round(gteps[1], 2),
                "kept": asdict(found.best),
                "seconds of tuning": round(found.seconds, 2),
                "search came to its end": found.complete,
                "same bits": same,
                "read back": written and kept.find(found.kernel, name, case) == found.best,
                "class": name,
                "tried": [
                    {**asdict(trial.shape), "GTEPS": None if trial.gteps is None else round(trial.gteps, 2)}
                    for trial in found.trials
                ],
            },
        )
        if not same:
            raise AssertionError("the tuned shape gives other bits")

    def local_share(self) -> float:
        """Share of edges inside the rows of their tile."""
        firsts = [first for first, _ in self.tiles] + [self.graph.nodes]
        inside = at = 0
        for k, (first, tile) in enumerate(self.tiles):
            columns = self.graph.columns[at : at + tile.edges]
            inside += int(((columns >= first) & (columns < firsts[k + 1])).sum())
            at += tile.edges
        return inside / self.graph.edges

    def all(self) -> None:
        """Everything that is measured on one graph."""
        name = self.graph.name
        for what in ("nodes", "edges"):
            self.bench.note(name, what, getattr(self.graph, what))
        for reads in READS:
            for work in (self.balanced, self.binned):
                self.bench.guard(name, f"{work.__name__}, {reads}", partial(work, reads))
                cp.get_default_memory_pool().free_all_blocks()


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_tune.json")
    parser.add_argument("--small", action="store_true", help="graphs of scale 18 only, for a quick look")
    graphs.add_options(parser)
    parser.add_argument("--seconds", type=float, default=8.0, help="most that shapes are tried")
    parser.add_argument("--tile-edges", type=int, default=1 << 26)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    bench = Bench(options.out, options.repeats)
    bench.note("device", "identity", dict(bench.device.identity))
    scales, web = ([18], 18) if options.small else (options.scales, options.web)

    def measure(name: str, make: Callable[[], tuple[int, Any]]) -> None:
        graph = graphs.rows_of(name, *make())
        tiles = graphs.pack(bench.device, graph, options.tile_edges, options.threads)
        Tuned(bench, graph, tiles, options.seconds).all()

    for name, make in graphs.makers(scales, web, options.matrix).items():
        bench.guard(name, "graph", partial(measure, name, make))
        cp.get_default_memory_pool().free_all_blocks()
    # What went wrong has been noted, and the others measured nevertheless.
    sys.exit("failed" in str(bench.results))


if __name__ == "__main__":
    main()
