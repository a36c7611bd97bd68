"""Time the products on a CUDA device: the default, those of earlier systems, the gather limit and cuSPARSE.

For R-MAT by out-degree and as permuted, the web-like graph, and graphs of files, in one run: each kernel that
`--kernel` names adds up the same random numbers, and is compared with cuSPARSE's float64 sums before it is
timed. GTEPS is edges over seconds over 1e9; times are medians of repeated runs between two events.
"""

from __future__ import annotations

import argparse
import json
import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import cupy as cp
import device_graphs as graphs
import numpy as np

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.baselines import BASELINES, Matrix
from oocpr.engine.cuda.device import Device
from oocpr.engine.cuda.group import HUBS
from oocpr.engine.cuda.spmv import (
    EVERYTHING,
    GATHER_PADDING,
    READ_STRUCTS,
    Gather,
    SegmentSums,
    SpMV,
    enough_hubs,
    launch_config,
)
from oocpr.engine.number_formats import level_table
from oocpr.store.codec.layout import BLOCK

if TYPE_CHECKING:
    from oocpr.engine.cuda.group import DeviceGroup

READS = ("bits8", "bits16", "float32", "float64")
CLOSE = 1e-12
"""Relative; sums by atomic additions come in any order."""


class Bench:
    """One run: the device, how often things are repeated, and what has been found."""

    def __init__(self, out: Path, repeats: int) -> None:
        self.device = Device(0)
        self.out = out
        self.repeats = repeats
        self.results: dict[str, Any] = {}
        self.begun = perf_counter()

    def note(self, graph: str, what: str, value: Any) -> None:
        """Print a result and keep it on disk, so that nothing is lost when time runs out."""
        self.results.setdefault(graph, {})[what] = value
        text = f"{value:10.4g}" if isinstance(value, float) else str(value)
        print(f"{perf_counter() - self.begun:6.1f} s  {graph:18s} {what:44s} {text}", flush=True)
        self.out.write_text(json.dumps(self.results, indent=1) + "\n")

    def guard(self, graph: str, what: str, work: Callable[[], object]) -> None:
        """Do one part; its failure is noted and does not end the others."""
        try:
            work()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self.note(graph, what, f"failed: {error}"[:500])

    def seconds(self, work: Callable[[], object]) -> float:
        """Median time of the device."""
        for _ in range(2):
            work()
        times = []
        for _ in range(self.repeats):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) / 1e3)
        return float(np.median(times))

    def copy_rate(self) -> None:
        """Copy on the device, bytes read and written."""
        a = cp.zeros(1 << 29, np.float64)
        b = cp.empty_like(a)
        self.note("device", "copy GB/s", 2 * a.nbytes / self.seconds(lambda: cp.copyto(b, a)) / 1e9)


class Cell:
    """One graph on the device, in groups of tiles."""

    def __init__(self, bench: Bench, graph: graphs.DeviceGraph, options: argparse.Namespace) -> None:
        self.bench, self.graph = bench, graph
        coded = graphs.CodedGraph(graph, options.tile_edges, options.threads)
        layout = coded.layout(options.group_edges)
        # The groups are there as long as their stream is.
        self._stream, self.groups = coded.put_on_device(CudaBackend(bench.device), layout)
        self.bytes_held = graphs.room_bytes(layout, self.groups)
        self.first_rows = layout.group_rows[:-1].tolist()
        self.tiles = coded.stats.tiles
        room = [max(group.sizes.nonempty for group in self.groups), max(g.sizes.blocks for g in self.groups)]
        self.sums = SegmentSums.allocate(bench.device, *room, paired=False)
        for group in self.groups:
            group.fours = cp.empty(BLOCK * group.sizes.blocks, np.uint32)
            group.check_columns(bench.device, graph.nodes, cp.zeros(1, np.uint32))
        self.hubs = enough_hubs(int((graph.columns < HUBS).sum()), graph.edges)
        self.faults = cp.zeros(1, np.uint32)
        self._expected: dict[str, Any] = {}

    def note_sizes(self) -> None:
        """Note how large the graph is."""
        name = self.graph.name
        for what in ("nodes", "edges"):
            self.bench.note(name, what, getattr(self.graph, what))
        self.bench.note(name, "tiles", self.tiles)
        self.bench.note(name, "groups", len(self.groups))

    def rate(self, what: str, work: Callable[[], object]) -> None:
        """Note GTEPS."""
        self.bench.note(self.graph.name, what, self.graph.edges / self.bench.seconds(work) / 1e9)

    def stored(self, words: str) -> tuple[Any, Any]:
        """What is gathered, random positive numbers, as stored and as float64; proposals equal the pushes."""
        reads, _, pairs = words.partition(" ")
        random = cp.random.RandomState(7)
        if reads == "bits8":
            one = random.randint(1, 128, self.graph.nodes + 1).astype(np.uint8)
            one[-1] = 0
            values = cp.asarray(level_table())[one]
        else:
            # Magnitudes of 30 octaves, each number exact in 16 bits.
            one = random.randint(97 << 7, 127 << 7, self.graph.nodes + 1).astype(np.uint16)
            one[-1] = 0
            values = (one.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
            if reads != "bits16":
                one = values.astype(reads)
        return (cp.ascontiguousarray(cp.stack([one, one], axis=1)) if pairs else one), values[:-1]

    def expected(self, reads: str, values: Any) -> Any:
        """Sums of each row by cuSPARSE in float64."""
        kind = "bits8" if reads == "bits8" else "others"
        if kind not in self._expected:
            self._expected[kind] = self._matrix(np.float64) @ values
        return self._expected[kind]

    def _matrix(self, dtype: Any) -> Any:
        from cupyx.scipy.sparse import csr_matrix

        ones = cp.ones(self.graph.edges, dtype)
        parts = (ones, self.graph.columns.view(np.int32), self.graph.offsets.astype(np.int32))
        return csr_matrix(parts, shape=(self.graph.nodes, self.graph.nodes))

    def decode(self) -> None:
        """Decode all columns, alone, into memory."""
        device, nodes = self.bench.device, self.graph.nodes
        out = cp.empty(max(group.sizes.edges for group in self.groups), np.uint32)
        at = 0
        for group in self.groups:
            edges = group.sizes.edges
            group.decode_columns(device, nodes, self.faults, out)
            if not bool((out[:edges] == self.graph.columns[at : at + edges]).all()):
                raise AssertionError("decoded columns differ")
            at += edges

        def work(columns: Any) -> None:
            for group in self.groups:
                group.decode_columns(device, nodes, self.faults, columns)

        self.rate("decode and write, Gedge/s", lambda: work(out))
        self.rate("decode and check, Gedge/s", lambda: work(None))

    def raw_gather(self, words: str) -> None:
        """The limit with plain columns."""
        reads, _, pairs = words.partition(" ")
        stored, _ = self.stored(words)
        kernels = self.bench.device.load(
            "papers/gather_limit.cu", READS=READ_STRUCTS[reads], PAIRED=int(bool(pairs))
        )
        kernel = kernels.get_function("gather_columns")
        blocks = self.graph.edges // 1024
        out = cp.empty(blocks, np.float64)
        arguments = (self.graph.columns, np.uint64(blocks), stored, out)
        self.rate(
            f"limit, plain columns, {words}, 8 x 8", lambda: kernel((-(-blocks // 8),), (256,), arguments)
        )

    def run(self, product: SpMV, stored: Any) -> None:
        """One product with the whole graph."""
        for group in self.groups:
            product(group, stored, self.graph.nodes, EVERYTHING, self.sums, self.faults)

    def error(self, product: SpMV, stored: Any, expected: Any) -> float:
        """Largest relative distance from cuSPARSE's sums."""
        found = cp.zeros(self.graph.nodes, np.float64)
        for first, group in zip(self.first_rows, self.groups, strict=True):
            self.sums.pushes[:] = np.nan
            product(group, stored, self.graph.nodes, EVERYTHING, self.sums, self.faults)
            # A row that a tile ends in goes on in the next one.
            pushes = self.sums.pushes[: group.sizes.nonempty]
            found += cp.bincount(first + filled_rows(group), weights=pushes, minlength=self.graph.nodes)
        return float((cp.abs(found - expected) / cp.maximum(expected, 1e-300)).max())

    def cusparse(self) -> None:
        """NVIDIA's product of a sparse matrix and a vector, values of the matrix stored."""
        import cupyx.cusparse

        _, values = self.stored("float64")
        for dtype in (np.float64, np.float32):
            matrix, x, y = self._matrix(dtype), values.astype(dtype), cp.zeros(self.graph.nodes, dtype)
            self.rate(f"cuSPARSE {np.dtype(dtype)}", partial(cupyx.cusparse.spmv, matrix, x, y))


def filled_rows(group: DeviceGroup) -> Any:
    """Rows of the segments that are not empty, counted from the group's first; int64, shape (nonempty,)."""
    entries = group.tiles.entries
    # Segments have a bit each, in whole words of a tile; its first one is of its first row.
    begins = 32 * entries["word"].astype(np.int64)
    bits = cp.unpackbits(group.arrays.filled.view(np.uint8), bitorder="little")
    places = cp.flatnonzero(bits)
    tiles = cp.searchsorted(cp.asarray(begins), places, side="right") - 1
    return places + cp.asarray(entries["row"].astype(np.int64) - begins)[tiles]


class Laid(Cell):
    """One graph on the device, also as a matrix that products of other systems lay out."""

    def __init__(self, bench: Bench, graph: graphs.DeviceGraph, options: argparse.Namespace) -> None:
        super().__init__(bench, graph, options)
        degrees = cp.bincount(graph.columns, minlength=graph.nodes).astype(np.uint32)
        offsets = graph.offsets.astype(np.uint32)
        self.matrix = Matrix(offsets, graph.columns, graph.nodes, cp.maximum(degrees, np.uint32(1)))

    def numbers(self, name: str, reads: str) -> Any:
        """What a product gathers, the numbers of `stored` and zeros behind them."""
        stored, _ = self.stored(reads)
        numbers = cp.zeros(self.graph.nodes + GATHER_PADDING, stored.dtype)
        numbers[: self.graph.nodes] = stored[: self.graph.nodes]
        if BASELINES[name].divides:
            numbers[: self.graph.nodes] *= self.matrix.degrees
        return numbers


class Products(Laid):
    """All systems on one graph."""

    def balanced(self, reads: str, *, decoded: bool) -> None:
        """The default product, of columns that are packed, or were decoded before."""
        stored, values = self.stored(reads)
        gather, device = Gather(reads, decoded=decoded), self.bench.device
        product = SpMV(device, gather, launch_config(gather, device.shared_bytes * self.hubs))
        error = self.error(product, stored, self.expected(reads, values))
        if not error < CLOSE:
            raise AssertionError(f"balanced differs from cuSPARSE by {error}")
        self.rate(f"balanced{', packed' * (not decoded)}, {reads}", partial(self.run, product, stored))

    def baseline(self, name: str, reads: str) -> None:
        """One product of another system."""
        _, values = self.stored(reads)
        numbers = self.numbers(name, reads)
        product = BASELINES[name].make(self.bench.device, Gather(reads))
        laid = product.lay_out(self.matrix)
        pushes = cp.full(self.graph.nodes, np.nan)
        product(self.matrix, laid, numbers, pushes)
        expected = self.expected(reads, values)
        error = float((cp.abs(pushes - expected) / cp.maximum(expected, 1e-300)).max())
        if not error < CLOSE:
            raise AssertionError(f"{name} differs from cuSPARSE by {error}")
        self.rate(f"{name}, {reads}", partial(product, self.matrix, laid, numbers, pushes))
        self.rate(f"{name}, laid out, Gedge/s", partial(product.lay_out, self.matrix, laid))
        held = [self.matrix.offsets, self.matrix.columns, *laid.values()]
        self.bench.note(self.graph.name, f"{name}, B/edge", sum(a.nbytes for a in held) / self.graph.edges)

    def all(self) -> None:
        """Everything that is measured on one graph."""
        name, guard = self.graph.name, self.bench.guard
        self.note_sizes()
        self.bench.note(name, "balanced, packed, B/edge", self.bytes_held / self.graph.edges)
        decoded = sum(group.fours.nbytes for group in self.groups)
        self.bench.note(name, "balanced, B/edge", (self.bytes_held + decoded) / self.graph.edges)
        guard(name, "decode alone", self.decode)
        guard(name, "cuSPARSE", self.cusparse)
        for reads in READS:
            guard(name, f"gather {reads}", partial(self.raw_gather, reads))
            for decoded in (False, True):
                guard(name, f"balanced, {reads}", partial(self.balanced, reads, decoded=decoded))
            for kernel, baseline in BASELINES.items():
                if reads == "float64" or not baseline.divides:
                    guard(name, f"{kernel}, {reads}", partial(self.baseline, kernel, reads))
                    cp.get_default_memory_pool().free_all_blocks()


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_products.json")
    graphs.add_options(parser)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    bench = Bench(options.out, options.repeats)
    bench.note("device", "name", bench.device.name)
    bench.guard("device", "copy GB/s", bench.copy_rate)

    def measure(name: str, make: Callable[[], tuple[int, Any]]) -> None:
        graph = graphs.rows_of(name, *make())
        Products(bench, graph, options).all()

    for name, make in graphs.makers(options.scales, options.web, options.matrix).items():
        bench.guard(name, "graph", partial(measure, name, make))
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
