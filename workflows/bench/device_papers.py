"""Time the products of earlier systems on a CUDA device beside the default, the gather limit and cuSPARSE.

For R-MAT by out-degree and as permuted, the web-like graph, and graphs of files, in one run: each kernel
that `--kernel` names adds up the same random numbers, and is compared with cuSPARSE's float64 sums before it
is timed. Needs CuPy, but neither Zarr nor an installation::

    ln -sfn ../kernels oocpr/kernels && PYTHONPATH=. python3 workflows/bench/device_papers.py
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy as cp
import device_graphs as graphs
import numpy as np
from device import Bench, Cell

from oocpr.engine.cuda.papers.products import BASELINES, Matrix
from oocpr.engine.cuda.spmv import PADDING, Gather, SegmentSums, SpMV, enough_hubs, launch_config
from oocpr.engine.cuda.tile import HUBS
from oocpr.plan.merge_size import JOINED_EDGES

if TYPE_CHECKING:
    from collections.abc import Callable

READS = ("bits8", "bits16", "float32", "float64")
CLOSE = 1e-12
"""Relative; sums by atomic additions come in any order."""


class Papers(Cell):
    """One graph on the device, with the layouts of all systems."""

    def __init__(self, bench: Bench, graph: graphs.DeviceGraph, tiles: Any) -> None:
        room = [max(t.nonempty for _, t in tiles), max(t.blocks for _, t in tiles)]
        super().__init__(bench, graph, tiles, SegmentSums.allocate(bench.device, *room, paired=False))
        degrees = cp.bincount(graph.columns, minlength=graph.nodes).astype(np.uint32)
        offsets = graph.offsets.astype(np.uint32)
        self.hubs = enough_hubs(int((graph.columns < HUBS).sum()), graph.edges)
        self.matrix = Matrix(offsets, graph.columns, graph.nodes, cp.maximum(degrees, np.uint32(1)))

    def balanced(self, reads: str) -> None:
        """The default product."""
        stored, values = self.stored(reads)
        shape = launch_config(reads, paired=False, shared_bytes=self.bench.device.shared_bytes * self.hubs)
        product = SpMV(self.bench.device, reads, shape=shape)
        error = self.error(product, stored, self.expected(reads, values))
        if not error < CLOSE:
            raise AssertionError(f"balanced differs from cuSPARSE by {error}")
        self.rate(f"balanced, {reads}", partial(self.run, product, stored))

    def baseline(self, name: str, reads: str) -> None:
        """One product of another system."""
        stored, values = self.stored(reads)
        numbers = cp.zeros(self.graph.nodes + PADDING, stored.dtype)
        numbers[: self.graph.nodes] = stored[: self.graph.nodes]
        if BASELINES[name].divides:
            numbers[: self.graph.nodes] *= self.matrix.degrees
        product = BASELINES[name].make(self.bench.device, self.matrix, Gather(reads))
        pushes = cp.full(self.graph.nodes, np.nan)
        product(numbers, pushes)
        expected = self.expected(reads, values)
        error = float((cp.abs(pushes - expected) / cp.maximum(expected, 1e-300)).max())
        if not error < CLOSE:
            raise AssertionError(f"{name} differs from cuSPARSE by {error}")
        self.rate(f"{name}, {reads}", partial(product, numbers, pushes))
        self.bench.note(self.graph.name, f"{name}, B/edge", product.nbytes / self.graph.edges)

    def all(self) -> None:
        """Everything that is measured on one graph."""
        name, guard = self.graph.name, self.bench.guard
        for what in ("nodes", "edges"):
            self.bench.note(name, what, getattr(self.graph, what))
        bytes_held = sum(tile.nbytes for _, tile in self.tiles)
        self.bench.note(name, "balanced, B/edge", bytes_held / self.graph.edges)
        guard(name, "cuSPARSE", self.cusparse)
        for reads in READS:
            guard(name, f"gather {reads}", partial(self.raw_gather, reads))
            guard(name, f"balanced, {reads}", partial(self.balanced, reads))
            for kernel, baseline in BASELINES.items():
                if reads == "float64" or not baseline.divides:
                    guard(name, f"{kernel}, {reads}", partial(self.baseline, kernel, reads))
                    cp.get_default_memory_pool().free_all_blocks()


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_papers.json")
    graphs.add_options(parser)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    bench = Bench(options.out, options.repeats)
    bench.note("device", "name", bench.device.name)
    bench.guard("device", "copy GB/s", bench.copy_rate)

    def measure(name: str, make: Callable[[], tuple[int, Any]]) -> None:
        graph = graphs.rows_of(name, *make())
        Papers(bench, graph, graphs.pack(bench.device, graph, JOINED_EDGES[0], options.threads)).all()

    for name, make in graphs.makers(options.scales, options.web, options.matrix).items():
        bench.guard(name, "graph", partial(measure, name, make))
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
