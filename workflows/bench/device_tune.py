"""Search the launch constants of the products on a CUDA device, and print what is faster than the defaults.

For R-MAT by out-degree and as permuted, the web-like graph, and graphs of files, for each format: along
one axis of constants after the other, the best so far is timed beside those that differ from it, until no
axis has a faster one. Constants that change a bit of the sums are refused. Of the products of other systems
these are the threads of a block, the work-group sizes of Jiang 2014.

What it finds belongs into `launch_config`, `BinThresholds` or a `Product.threads` of oocpr/engine/cuda.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy as cp
import device_graphs as graphs
import numpy as np
from device_products import Bench, Laid

from oocpr.engine.cuda.baselines import BASELINES, Binned, BinThresholds, Product
from oocpr.engine.cuda.spmv import (
    EVERYTHING,
    Gather,
    LaunchConfig,
    SpMV,
    launch_config,
)
from oocpr.engine.number_formats import READS

if TYPE_CHECKING:
    Axis = list[dict[str, Any]]
    Works = tuple[Callable[[], object], Callable[[], int]]

BLOCKS = ((2, 8), (2, 12), (2, 16), (2, 20), (4, 4), (4, 5), (4, 6), (4, 8), (8, 2), (8, 3), (8, 4))
"""Teams of a block of threads, and blocks of a multiprocessor, if all numbers are in global memory."""

HUB_BLOCKS = ((14, 1, 40), (14, 1, 80), (14, 1, 120), (10, 1, 80), (20, 1, 80), (28, 1, 80), (7, 2, 40))
"""The same, and KiB of numbers that a block keeps in shared memory."""

CUTS: list[Axis] = [
    [{"tiny": edges} for edges in (2, 4, 6, 8, 16)],
    [{"small": edges} for edges in (32, 64, 96, 192, 384)],
    [{"block": threads} for threads in (64, 128, 256, 512)],
]

THREADS = (32, 64, 128, 256, 512, 1024)
"""Threads of a block."""

MARGIN = 0.01
"""Share of the time that other constants must save."""


@dataclass(frozen=True)
class WorkGroup:
    """How a product of another system is launched."""

    threads: int  # of a block


def shape_axes(word: int, *, hubs: bool, decoded: bool) -> list[Axis]:
    """Return the constants of the balanced product to try, for so many bytes gathered of a node.

    Columns that are `decoded` are read by the lanes that take them.
    """
    near = [
        {"teams": teams, "resident": resident, "each": 1, "hubs": (kib << 10) // word // 32 * 32}
        for teams, resident, kib in HUB_BLOCKS
    ]
    return [
        [{"teams": teams, "resident": resident, "hubs": 0} for teams, resident in BLOCKS],
        [{"edge_order": order} for order in (False, True) if not order or (word <= 4 and not decoded)],
        [{"each": each} for each in (1, 4, 16)],
        near if hubs else [],
    ]


class Search(Laid):
    """One graph on the device."""

    def balanced(self, reads: str, *, decoded: bool = True) -> None:
        """Search for the balanced product."""
        stored, _ = self.stored(reads)
        device, gather = self.bench.device, Gather(reads, decoded=decoded)
        default = launch_config(gather, device.shared_bytes if self.hubs else 0)

        def make(config: LaunchConfig) -> Works:
            product = SpMV(device, gather, config)

            def bits() -> int:
                found = 0
                for group in self.groups:
                    product(group, stored, self.graph.nodes, EVERYTHING, self.sums, self.faults)
                    found += int(self.sums.pushes[: group.sizes.nonempty].view(np.uint64).sum())
                return found

            return partial(self.run, product, stored), bits

        axes = shape_axes(READS[reads].bytes, hubs=self.hubs, decoded=decoded)
        self.search(f"balanced{', packed' * (not decoded)}, {reads}", default, axes, make)

    def packed(self, reads: str) -> None:
        """The same with packed columns."""
        self.balanced(reads, decoded=False)

    def binned(self, reads: str) -> None:
        """Search for the product in bins by size."""
        product = partial(Binned, self.bench.device, Gather(reads))
        self.searched("binned", reads, BinThresholds(), CUTS, lambda cut: product(thresholds=cut))

    def baseline(self, name: str, reads: str) -> None:
        """Search for another product of `BASELINES`."""
        threads = BASELINES[name].make(self.bench.device, Gather(reads)).threads

        def made(group: WorkGroup) -> Product:
            product = BASELINES[name].make(self.bench.device, Gather(reads))
            product.threads = group.threads
            return product

        axis: Axis = [{"threads": threads} for threads in THREADS]
        self.searched(name, reads, WorkGroup(threads), [axis], made)

    def searched(
        self, name: str, reads: str, default: Any, axes: list[Axis], made: Callable[[Any], Product]
    ) -> None:
        """Search for a product that is laid out."""
        numbers = self.numbers(name, reads)
        sums = cp.full(self.graph.nodes, np.nan)

        def make(config: Any) -> Works:
            product = made(config)
            laid = product.lay_out(self.matrix)

            def bits() -> int:
                product(self.matrix, laid, numbers, sums)
                return int(sums.view(np.uint64).sum()) if BASELINES[name].fixed_bits else 0

            return partial(product, self.matrix, laid, numbers, sums), bits

        self.search(f"{name}, {reads}", default, axes, make)

    def search(self, what: str, default: Any, axes: list[Axis], make: Callable[[Any], Works]) -> None:
        """Go along the axes from the default until none has faster constants, and note the best."""
        usual, bits_of = make(default)
        bits, seconds = bits_of(), {default: self.bench.seconds(usual)}
        best, in_vain, turn = default, 0, 0
        while in_vain < len(axes):
            for change in axes[turn % len(axes)]:
                other = replace(best, **change)
                if other not in seconds:
                    seconds[other] = self.timed(make, other, bits)
            winner = min(seconds, key=seconds.__getitem__)
            faster = seconds[winner] < seconds[best] * (1 - MARGIN)
            best, in_vain, turn = (winner, 0, turn + 1) if faster else (best, in_vain + 1, turn + 1)
        # Both once more, in turns, in case the device's clock has moved.
        times = [self.bench.seconds(work) for work in (usual, make(best)[0], usual)]
        gteps = [self.graph.edges / time / 1e9 for time in (min(times[0], times[2]), times[1])]
        found = {
            "default": asdict(default),
            "best": asdict(best),
            "default GTEPS": round(gteps[0], 2),
            "best GTEPS": round(gteps[1], 2),
            "tried": [
                {**asdict(config), "GTEPS": round(self.graph.edges / time / 1e9, 2)}
                for config, time in seconds.items()
            ],
        }
        self.bench.note(self.graph.name, what, found)

    def timed(self, make: Callable[[Any], Works], config: Any, bits: int) -> float:
        """Return the time of constants; infinite if they cannot be compiled, or give other bits."""
        try:
            work, bits_of = make(config)
            same = bits_of() == bits
        except (RuntimeError, ValueError) as error:
            print(f"{config}: {error}"[:300])
            return np.inf
        return self.bench.seconds(work) if same else np.inf

    def all(self) -> None:
        """Search for every product and format on one graph."""
        name = self.graph.name
        self.note_sizes()
        for reads in ("bits16", "float32", "float64"):
            for work in (self.balanced, self.packed, self.binned):
                self.bench.guard(name, f"{work.__name__}, {reads}", partial(work, reads))
                cp.get_default_memory_pool().free_all_blocks()
        for kernel, baseline in BASELINES.items():
            reads = "float64" if baseline.divides else "float32"
            if kernel != "binned":
                self.bench.guard(name, kernel, partial(self.baseline, kernel, reads))
                cp.get_default_memory_pool().free_all_blocks()


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "device_tune.json")
    parser.add_argument("--small", action="store_true", help="graphs of scale 18 only, for a quick look")
    graphs.add_options(parser)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    bench = Bench(options.out, options.repeats)
    bench.note("device", "name", bench.device.name)
    scales, web = ([18], 18) if options.small else (options.scales, options.web)

    def measure(name: str, make: Callable[[], tuple[int, Any]]) -> None:
        graph = graphs.rows_of(name, *make())
        Search(bench, graph, options).all()

    for name, make in graphs.makers(scales, web, options.matrix).items():
        bench.guard(name, "graph", partial(measure, name, make))
        cp.get_default_memory_pool().free_all_blocks()
    # What went wrong has been noted, and the others measured nevertheless.
    sys.exit("failed" in str(bench.results))


if __name__ == "__main__":
    main()
