"""Compare ways to cut up and to run the device's method, in a few minutes; the winners become the defaults.

For R-MAT by out-degree and the web-like graph: the balanced product in several shapes beside its gather
limits, then whole runs with several numbers of tiles, proposals and remembered passes. Needs CuPy, but
neither Zarr nor an installation::

    ln -sfn ../kernels oocpr/kernels && PYTHONPATH=. python3 workflows/bench/device_compare.py
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy as cp
import device_graphs as graphs
import numpy as np
from device_rank import Bench, OnDevice, Peer, Ranked

from oocpr.engine.backend import StripeSpec
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.spmv import EVERYTHING, FORMATS, LaunchConfig, SegmentSums, SpMV
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Stripe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BY_LANES = [LaunchConfig(edge_order=False, resident=r) for r in (5, 8)]
SHAPES = [*BY_LANES, *(LaunchConfig(resident=r) for r in (4, 5, 6, 8)), LaunchConfig(each=1)]

RUNS: dict[str, list[dict[str, Any]]] = {
    "rmat": [
        {"tiles": 1, "proposals": False, "mixing": 2},
        {"tiles": 1, "proposals": False, "mixing": 3},
        {"tiles": 1, "proposals": False, "mixing": 5},
        {"tiles": 4, "mixing": 2},
        {"tiles": 4, "mixing": 5},
        {"tiles": 16, "mixing": 2},
        {"tiles": 16, "mixing": 5},
    ],
    "web": [
        {"tiles": 1, "proposals": False, "mixing": 3},
        {"tiles": 1, "proposals": False, "mixing": 5},
        {"tiles": 4, "sweeps": 2, "mixing": 3},
        {"tiles": 16, "sweeps": 2, "mixing": 3},
        {"tiles": 16, "sweeps": 3, "mixing": 2},
        {"tiles": 16, "sweeps": 3, "mixing": 3},
        {"tiles": 1, "sweeps": 2, "mixing": 3, "pairs": False},
        {"tiles": 1, "sweeps": 3, "mixing": 2, "pairs": False},
        {"tiles": 1, "sweeps": 3, "mixing": 3, "pairs": False},
        {"tiles": 16, "sweeps": 2, "mixing": 3, "islands": False},
    ],
}
"""Whole runs: tiles, whether rows propose, switches of the backend, and settings; else one sweep a tile."""


class Variant(OnDevice):
    """A graph whose rows may mix without proposing."""

    proposals = True

    def stripes(self, settings: Settings) -> Iterator[tuple[Stripe, Any]]:
        """See OnDevice."""
        if self.proposals:
            yield from super().stripes(settings)
            return
        tiles = len(self.stream.tiles)
        spec = StripeSpec(0, tiles, 0, self.nodes, self.nodes, settings.mixing, False, settings.reads)
        rows = self.backend.allocate(spec, self.degree, None)
        reads = self.backend.allocate_reads(self.nodes, settings.reads, False)
        stream: Any = self.stream
        while True:
            for array in (rows.ranks, rows.residual, rows.push, rows.changes, rows.steps):
                array.fill(0)
            yield Stripe(spec, self.tile_rows, self.backend, rows, stream), reads


class Compare(Bench):
    """What has been found so far."""

    def compare(self, graph: graphs.DeviceGraph, repeats: int) -> None:
        """Products, then runs."""
        name = graph.name
        backends: dict[tuple[bool, bool], CudaBackend] = {}
        kind = "rmat" if name.startswith("rmat") else "web"
        held: dict[int, Variant] = {}
        for tiles in sorted({run["tiles"] for run in RUNS[kind]}):
            held[tiles] = Variant(self.backend, graph, tiles, self.threads)
            self.note(name, f"share inside, {tiles} tiles", held[tiles].local_share)
        for words in ("bits16", "bits16 pairs"):
            self.guard(name, f"limit {words}", partial(self.limit, graph, words, repeats))
            self.guard(name, words, partial(self.products, graph, held[1], words, repeats))
        peer = Peer(graph, held[1].degree, 0.85)
        sweep = peer.seconds()
        self.note(name, "cuSPARSE ms a sweep", 1e3 * sweep)
        exact: Any = None
        for run in RUNS[kind]:
            there = held[run["tiles"]]
            there.proposals = run.get("proposals", True)
            switches = (run.get("pairs", True), run.get("islands", True))
            if switches not in backends:
                pairs, islands = switches
                backends[switches] = CudaBackend(
                    self.backend._device, pairs=pairs, diagonal_blocks_from=0 if islands else inf
                )
            there.backend = backends[switches]
            chosen = {k: v for k, v in run.items() if k in ("mixing", "sweeps")}
            settings = Settings(**{"sweeps": 1, **chosen})
            if exact is None:
                first: Ranked = there.rank(settings, *next(there.stripes(settings)))
                exact = peer.settled(first.ranks)
                needed = peer.sweeps_to(exact, [1e-10])["1e-10"]
                self.note(name, "cuSPARSE ms to true 1e-10", 1e3 * needed * sweep)
            self.guard(name, f"run {run}", partial(self.whole, name, run, there, settings, exact))

    def whole(self, name: str, run: dict[str, Any], there: Variant, settings: Settings, exact: Any) -> None:
        """Note one way to run."""
        cell = self.run(there, settings, exact)
        parts = {part: round(ms, 3) for part, ms in cell["ms a pass by parts"].items()}
        found = [tile.diagonal_blocks for tile in there.stream.tiles if tile.diagonal_blocks is not None]
        if found:
            self.note(name, "B/edge of islands", sum(islands.nbytes for islands in found) / there.edges)
        self.note(
            name,
            f"run {run}",
            {
                "ms": round(1e3 * cell["seconds"], 2),
                "passes": cell["passes"],
                "ms a pass": round(cell["ms a pass"], 3),
                "parts": parts,
                "vectors": round(cell["share of vectors"], 3),
                "gaps": round(cell["share of gaps"], 3),
                "GTEPS": round(cell["product GTEPS"], 1),
                "true error": cell["true error"],
                "same bits": cell["same bits"],
            },
        )

    def numbers(self, graph: graphs.DeviceGraph, words: str) -> Any:
        """Random positive numbers of 30 octaves, zeros behind them."""
        one = cp.random.RandomState(7).randint(97 << 7, 127 << 7, graph.nodes + 32).astype(np.uint16)
        one[graph.nodes :] = 0
        return cp.ascontiguousarray(cp.stack([one, one], axis=1)) if words.endswith("pairs") else one

    def rate(self, graph: graphs.DeviceGraph, work: Callable[[], object], repeats: int) -> float:
        """GTEPS, median."""
        work()
        times = []
        for _ in range(repeats):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) / 1e3)
        return graph.edges / float(np.median(times)) / 1e9

    def limit(self, graph: graphs.DeviceGraph, words: str, repeats: int) -> None:
        """Gathering alone, columns not packed."""
        device = self.backend._device
        kernels = device.load(
            "papers/gather_limit.cu", READS=FORMATS["bits16"], PAIRED=int(words.endswith("pairs"))
        )
        blocks = graph.edges // 1024
        arguments = (graph.columns, np.uint64(blocks), self.numbers(graph, words), cp.empty(blocks))
        kernel = kernels.get_function("gather_columns")
        rate = self.rate(graph, lambda: kernel((-(-blocks // 8),), (256,), arguments), repeats)
        self.note(graph.name, f"limit {words}, GTEPS", rate)

    def products(self, graph: graphs.DeviceGraph, there: Variant, words: str, repeats: int) -> None:
        """The product of the whole graph in one tile, in each shape, and its own limit."""
        device = self.backend._device
        stored, tile = self.numbers(graph, words), there.stream.tiles[0].there
        paired = words.endswith("pairs")
        sums = SegmentSums.allocate(device, tile.nonempty, tile.blocks, paired=paired)
        faults = cp.zeros(1, np.uint32)
        expected: Any = None

        def make(shape: LaunchConfig, probe: bool) -> SpMV:
            with device:
                return SpMV(device, "bits16", paired=paired, shape=shape, probe=probe)

        jobs = [(shape, False) for shape in SHAPES]
        jobs += [(shape, True) for shape in (BY_LANES[1], LaunchConfig())]
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda job: make(*job), jobs))
        for (shape, probe), product in zip(jobs, made, strict=True):
            what = f"{'edges' if shape.edge_order else 'lanes'} x{shape.resident} each {shape.each}"
            work = partial(product, tile, stored, graph.nodes, EVERYTHING, sums, faults)
            work()
            if not probe:
                found = sums.pushes[: tile.nonempty].copy()
                expected = found if expected is None else expected
                if not bool((found == expected).all()):
                    self.note(graph.name, f"{words}, {what}", "failed: other bits")
                    continue
            kind = "packed limit" if probe else "product"
            self.note(graph.name, f"{kind} {words}, {what}, GTEPS", self.rate(graph, work, repeats))


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_compare.json")
    parser.add_argument("--scale", type=int, default=24, help="of both graphs")
    parser.add_argument("--repeats", type=int, default=7, help="of a product")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    bench = Compare(options.out, options.runs, options.threads, 1)
    pool = cp.get_default_memory_pool()

    def rmat() -> None:
        nodes, edges = graphs.rmat_edges(options.scale)
        edges = graphs.by_out_degree(nodes, edges)
        bench.compare(graphs.rows_of(f"rmat{options.scale} by degree", nodes, edges), options.repeats)

    def web() -> None:
        nodes, edges = graphs.web_edges(options.scale, (302 << options.scale) * 1_000_000 >> 24)
        bench.compare(graphs.rows_of(f"web{options.scale} natural", nodes, edges), options.repeats)

    for name, work in (("rmat", rmat), ("web", web)):
        bench.guard(name, "graph", work)
        pool.free_all_blocks()


if __name__ == "__main__":
    main()
