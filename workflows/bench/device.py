"""Measure the kernels on a CUDA device beside what the device allows and what its own library does.

For each graph: the gather limit (numbers fetched and added, no rows) with plain and with packed columns, the
balanced product in several shapes and formats, decoding alone, and cuSPARSE, all in one run. Each product is
compared with cuSPARSE's float64 sums first. Needs CuPy, but neither Zarr nor an installation::

    ln -sfn ../kernels oocpr/kernels && PYTHONPATH=. python3 workflows/bench/device.py --quick

GTEPS is edges over seconds over 1e9; times are medians over repeated runs between two events of the device.
"""

from __future__ import annotations

import argparse
import json
import os
import traceback
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import cupy as cp
import device_graphs as graphs
import numpy as np

from oocpr.engine.cuda.device import CudaDevice
from oocpr.engine.cuda.spmv import EVERYTHING, FORMATS, WIDE_CONFIG, LaunchConfig, SegmentSums, SpMV
from oocpr.engine.cuda.tile import DeviceTile, check_columns
from oocpr.engine.number_formats import level_table

if TYPE_CHECKING:
    from collections.abc import Callable

Tiles = list[tuple[int, DeviceTile]]


class Bench:
    """One run: the device, how often things are repeated, and what has been found."""

    def __init__(self, out: Path, repeats: int) -> None:
        self.device = CudaDevice(0)
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

    def summary(self) -> None:
        """Print the best of each graph once more, and what share of the limit it is."""
        for graph, cells in self.results.items():
            for words in ("bits16", "bits16 pairs"):
                best = {
                    kind: max((v, k) for k, v in cells.items() if k.startswith(f"{kind}, {words}, "))
                    for kind in ("limit, plain columns", "limit, packed", "product")
                    if any(k.startswith(f"{kind}, {words}") for k in cells)
                }
                if "product" in best:
                    limit = max(value for kind, (value, _) in best.items() if kind != "product")
                    print(graph, words, best, f"share {best['product'][0] / limit:.3f}")

    def copy_rate(self) -> None:
        """Copy on the device, bytes read and written."""
        a = cp.zeros(1 << 29, np.float64)
        b = cp.empty_like(a)
        self.note("device", "copy GB/s", 2 * a.nbytes / self.seconds(lambda: cp.copyto(b, a)) / 1e9)

    def graph(
        self, graph: graphs.DeviceGraph, tile_edges: int, threads: int, shapes: list[LaunchConfig]
    ) -> None:
        """Everything that is measured on one graph."""
        name = graph.name
        self.note(name, "nodes", graph.nodes)
        self.note(name, "edges", graph.edges)
        begun = perf_counter()
        tiles = graphs.pack(self.device, graph, tile_edges, threads)
        self.note(name, "packing seconds", perf_counter() - begun)
        self.note(name, "B/edge on the device", sum(t.nbytes for _, t in tiles) / graph.edges)
        self.note(
            name, "B/edge packed columns", sum(a.nbytes for _, t in tiles for a in t.columns) / graph.edges
        )
        self.note(name, "rows with links a tile", [t.nonempty for _, t in tiles])
        room = [max(t.nonempty for _, t in tiles), max(t.blocks for _, t in tiles)]
        cell = Cell(self, graph, tiles, SegmentSums.allocate(self.device, *room, paired=True))
        self.guard(name, "decode alone", cell.decode)
        for words in ("bits16", "bits16 pairs", "float32", "float64"):
            self.guard(name, f"gather {words}", partial(cell.raw_gather, words))
        for words in ("bits16", "bits16 pairs", "bits8", "bits8 pairs", "float32", "float64"):
            self.guard(name, f"product {words}", partial(cell.products, words, shapes))
        self.guard(name, "cuSPARSE", cell.cusparse)


class Cell:
    """One graph on the device."""

    def __init__(self, bench: Bench, graph: graphs.DeviceGraph, tiles: Tiles, sums: SegmentSums) -> None:
        self.bench, self.graph, self.tiles, self.sums = bench, graph, tiles, sums
        self.faults = cp.zeros(1, np.uint32)
        self._expected: dict[str, Any] = {}

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
        out = cp.empty(max(t.edges for _, t in self.tiles), np.uint32)
        at = 0
        for _, tile in self.tiles:
            check_columns(self.bench.device, tile, self.graph.nodes, self.faults, out)
            if not bool((out[: tile.edges] == self.graph.columns[at : at + tile.edges]).all()):
                raise AssertionError("decoded columns differ")
            at += tile.edges

        def work(columns: Any) -> None:
            for _, tile in self.tiles:
                check_columns(self.bench.device, tile, self.graph.nodes, self.faults, columns)

        self.rate("decode and write, Gedge/s", lambda: work(out))
        self.rate("decode and check, Gedge/s", lambda: work(None))

    def raw_gather(self, words: str) -> None:
        """The limit with plain columns."""
        reads, _, pairs = words.partition(" ")
        stored, _ = self.stored(words)
        kernels = self.bench.device.load(
            "papers/gather_limit.cu", READS=FORMATS[reads], PAIRED=int(bool(pairs))
        )
        kernel = kernels.get_function("gather_columns")
        blocks = self.graph.edges // 1024
        out = cp.empty(blocks, np.float64)
        arguments = (self.graph.columns, np.uint64(blocks), stored, out)
        self.rate(
            f"limit, plain columns, {words}, 8 x 8", lambda: kernel((-(-blocks // 8),), (256,), arguments)
        )

    def products(self, words: str, shapes: list[LaunchConfig]) -> None:
        """The limit with packed columns, and the product, in each shape."""
        reads, _, pairs = words.partition(" ")
        stored, values = self.stored(words)
        expected = self.expected(reads, values)
        if reads != "bits16":
            shapes = [shape for shape in shapes if shape in (LaunchConfig(), WIDE_CONFIG)]
        for shape in shapes:
            if shape.edge_order and stored.dtype.itemsize * (2 if pairs else 1) > 4:
                continue
            order = "edge" if shape.edge_order else "lane"
            what = f"{words}, {order} order, {shape.teams} x {shape.resident}, each {shape.each}"
            for probe in (True, False):
                product = SpMV(self.bench.device, reads, paired=bool(pairs), shape=shape, probe=probe)
                if not probe:
                    error = self.error(product, stored, expected)
                    if not error < 1e-14:
                        raise AssertionError(f"{what} differs from cuSPARSE by {error}")
                kind = "limit, packed" if probe else "product"
                self.rate(f"{kind}, {what}", partial(self.run, product, stored))

    def run(self, product: SpMV, stored: Any) -> None:
        """One product with the whole graph."""
        for _, tile in self.tiles:
            product(tile, stored, self.graph.nodes, EVERYTHING, self.sums, self.faults)

    def error(self, product: SpMV, stored: Any, expected: Any) -> float:
        """Largest relative distance from cuSPARSE's sums."""
        found = cp.zeros(self.graph.nodes, np.float64)
        for first, tile in self.tiles:
            self.sums.pushes[:] = np.nan
            product(tile, stored, self.graph.nodes, EVERYTHING, self.sums, self.faults)
            rows = first + cp.flatnonzero(cp.unpackbits(tile.filled.view(np.uint8), bitorder="little"))
            found[rows] += self.sums.pushes[: tile.nonempty]
        return float((cp.abs(found - expected) / cp.maximum(expected, 1e-300)).max())

    def cusparse(self) -> None:
        """NVIDIA's product of a sparse matrix and a vector, values of the matrix stored."""
        import cupyx.cusparse

        _, values = self.stored("float64")
        for dtype in (np.float64, np.float32):
            matrix, x, y = self._matrix(dtype), values.astype(dtype), cp.zeros(self.graph.nodes, dtype)
            self.rate(f"cuSPARSE {np.dtype(dtype)}", partial(cupyx.cusparse.spmv, matrix, x, y))


def shapes_to_try(quick: bool) -> list[LaunchConfig]:
    """Ways to cut the product up; the plain ones are tried with all formats, the others with 16 bits."""
    shapes = [LaunchConfig(edge_order=order, resident=r) for order in (False, True) for r in (4, 5, 6, 8)]
    if quick:
        shapes = [shape for shape in shapes if shape in (LaunchConfig(), WIDE_CONFIG)]
    shapes += [LaunchConfig(each=each) for each in (1, 16, 64)]
    return [*shapes, LaunchConfig(teams=8, resident=3), LaunchConfig(teams=2, resident=12)]


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device.json")
    parser.add_argument("--quick", action="store_true", help="R-MAT 24 and the web-like graph, fewer shapes")
    parser.add_argument("--scales", type=int, nargs="*", help="of R-MAT [24 26, quick: 24]")
    parser.add_argument("--web", type=int, default=24, metavar="SCALE", help="of the web-like graph; 0: none")
    parser.add_argument("--tile-edges", type=int, default=1 << 28)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=0)
    options = parser.parse_args()
    bench = Bench(options.out, options.repeats or (7 if options.quick else 15))
    bench.note("device", "name", bench.device.name)
    bench.guard("device", "copy GB/s", bench.copy_rate)
    shapes = shapes_to_try(options.quick)
    pool = cp.get_default_memory_pool()

    def measure(name: str, nodes: int, edges: Any) -> None:
        graph = graphs.rows_of(name, nodes, edges)
        bench.graph(graph, options.tile_edges, options.threads, shapes)
        pool.free_all_blocks()

    def rmat(scale: int) -> None:
        nodes, edges = graphs.rmat_edges(scale)
        edges = graphs.by_out_degree(nodes, edges)
        measure(f"rmat{scale} by degree", nodes, edges)
        del edges
        pool.free_all_blocks()
        measure(f"rmat{scale} permuted", *graphs.rmat_edges(scale))

    def web() -> None:
        count = 302_000_000 >> (24 - options.web)
        measure(f"web{options.web} natural", *graphs.web_edges(options.web, count))

    for scale in options.scales if options.scales is not None else ([24] if options.quick else [24, 26]):
        bench.guard(f"rmat{scale}", "graph", partial(rmat, scale))
    if options.web:
        bench.guard("web", "graph", web)
    bench.summary()


if __name__ == "__main__":
    main()
