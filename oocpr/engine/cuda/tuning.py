"""Tuning on a device: compiles the shapes that `Descent` names and lets them race on tiles of the graph."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.papers.products import Binned
from oocpr.engine.cuda.spmv import EVERYTHING, Product, SegmentSums
from oocpr.engine.cuda.tuning_candidates import SPACES, Descent, faster
from oocpr.progress import silent
from oocpr.system import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.papers.products import Cut, Matrix
    from oocpr.engine.cuda.spmv import Shape
    from oocpr.engine.cuda.tile import DeviceTile
    from oocpr.engine.cuda.tuning_candidates import Case, Tunable
    from oocpr.progress import Progress

    Calls = list[Callable[[], object]]

_LOG = logging.getLogger(__name__)

TURNS = 7
"""Times that each shape of a race runs; the shortest counts."""

FINAL_TURNS = 25
"""The same between the best and the default."""

LEAST_SECONDS = 1e-3
"""Work that takes less is measured several times in a row."""

COMPILERS = 8
"""Most shapes compiled side by side."""


class Tiles:
    """Tiles that a product is measured with.

    Parameters
    ----------
    device
        Where they are.
    case
        What the shape is for.
    counts
        Sums that each tile leaves.
    blocks
        Most blocks of edges of a tile.
    edges
        Of all tiles.
    """

    kernel: str
    side_by_side = 1
    """Shapes made at a time."""

    def __init__(self, device: Device, case: Case, counts: Sequence[int], blocks: int, edges: int) -> None:
        self.device = device
        self.case = case
        self.edges = edges
        self._counts = counts
        self._sums = SegmentSums.allocate(device, max(counts), blocks, paired=case.gather.paired)

    def make(self, shape: Any) -> Calls:
        """Compile a shape; returns what launches it on each tile."""
        raise NotImplementedError

    def bits(self, calls: Calls) -> tuple[int, ...]:
        """Launch on each tile, and return what other bits of its sums would make another number."""
        found = []
        for call, count in zip(calls, self._counts, strict=True):
            call()
            found.append(_checksum(self._sums.pushes[:count].view(np.uint64)))
            if self.case.gather.paired:
                found.append(_checksum(self._sums.proposals[:count].view(np.uint32)))
        return tuple(found)


class BalancedTiles(Tiles):
    """Packed tiles, for the balanced product.

    Parameters
    ----------
    device, case
        See Tiles.
    tiles
        Packed, on the device, their columns found to be nodes.
    reads, nodes
        As the product takes them.
    """

    kernel = "balanced"
    side_by_side = COMPILERS

    def __init__(
        self, device: Device, case: Case, tiles: Sequence[DeviceTile], reads: Any, nodes: int
    ) -> None:
        super().__init__(
            device,
            case,
            [tile.nonempty for tile in tiles],
            max(tile.blocks for tile in tiles),
            sum(tile.edges for tile in tiles),
        )
        self._tiles = tiles
        self._numbers = (reads, nodes)
        self._faults = device.xp.zeros(1, np.uint32)

    def make(self, shape: Shape) -> Calls:
        """See Tiles."""
        gather = self.case.gather
        product = Product(
            self.device, gather.reads, paired=gather.paired, striped=gather.striped, shape=shape
        )
        rest = (*self._numbers, EVERYTHING, self._sums, self._faults)
        return [partial(product, tile, *rest) for tile in self._tiles]


class BinnedTiles(Tiles):
    """Decoded tiles, for the product in bins.

    Parameters
    ----------
    device, case
        See Tiles.
    matrices
        The tiles, their segments being the rows.
    reads
        As the product takes them.
    """

    kernel = "binned"

    def __init__(self, device: Device, case: Case, matrices: Sequence[Matrix], reads: Any) -> None:
        edges = sum(matrix.edges for matrix in matrices)
        super().__init__(device, case, [matrix.rows for matrix in matrices], 1, edges)
        self._laid = [Binned(device, matrix, case.gather) for matrix in matrices]
        self._reads = reads

    def make(self, shape: Cut) -> Calls:
        """See Tiles."""
        proposals = self._sums.proposals if self.case.gather.paired else None
        return [
            partial(laid.divided(shape), self._reads, self._sums.pushes, proposals) for laid in self._laid
        ]


@dataclass(frozen=True)
class Trial:
    """How a shape did in its last race.

    Parameters
    ----------
    shape
        What was tried.
    gteps
        Edges of the tiles over the time, in 1e9 a second; None where it could not run, or gave other bits.
    """

    shape: Tunable
    gteps: float | None


@dataclass(frozen=True)
class Tuning:
    """What tuning found.

    Parameters
    ----------
    kernel
        The product.
    usual, best
        The default shape, and the one to keep.
    usual_gteps, gteps
        Of the two, from a race of their own.
    trials
        Everything that was tried, in order.
    seconds
        That it took, compilation included.
    complete
        Whether the search came to its end in the time it had.
    """

    kernel: str
    usual: Tunable
    best: Tunable
    usual_gteps: float
    gteps: float
    trials: tuple[Trial, ...]
    seconds: float
    complete: bool

    def figures(self) -> dict[str, float]:
        """Return what is kept beside the shape."""
        return {"gteps": round(self.gteps, 3), "default_gteps": round(self.usual_gteps, 3)}

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a JSON object."""
        return {
            "kernel": self.kernel,
            "default": asdict(self.usual),
            "kept": asdict(self.best),
            "default_gteps": self.usual_gteps,
            "gteps": self.gteps,
            "tried": [{**asdict(trial.shape), "gteps": trial.gteps} for trial in self.trials],
            "seconds": self.seconds,
            "complete": self.complete,
        }


def tune(tiles: Tiles, *, seconds: float, progress: Progress = silent) -> Tuning:
    """Find the fastest shape that gives the bits of the default one.

    Parameters
    ----------
    tiles
        What to measure with.
    seconds
        After which no further race begins.
    progress
        Told after every race.
    """
    begun = perf_counter()
    space = SPACES[tiles.kernel]
    usual = space.start(tiles.case)
    ready = {usual: tiles.make(usual)}
    bits = tiles.bits(ready[usual])
    times: dict[Tunable, float] = {usual: np.inf}
    descent = Descent(space, tiles.case)
    while shapes := descent.next():
        ready |= _made(tiles, shapes[1:], bits)
        times |= dict.fromkeys(shapes[1:], np.inf)
        raced = race(tiles.device, {shape: ready[shape] for shape in shapes if shape in ready}, TURNS)
        times |= raced
        descent.take(raced)
        speed = tiles.edges / raced[descent.best] / 1e9
        progress("tuning", len(times), None, "shapes", f"{speed:.3g} GTEPS")
        if perf_counter() - begun > seconds:
            break
    final = race(tiles.device, {shape: ready[shape] for shape in {usual, descent.best}}, FINAL_TURNS)
    best = faster(usual, final)
    return Tuning(
        kernel=tiles.kernel,
        usual=usual,
        best=best,
        usual_gteps=tiles.edges / final[usual] / 1e9,
        gteps=tiles.edges / final[best] / 1e9,
        trials=tuple(Trial(shape, _gteps(tiles.edges, time)) for shape, time in times.items()),
        seconds=perf_counter() - begun,
        complete=not descent.next(),
    )


def race(device: Device, ready: Mapping[Tunable, Calls], turns: int) -> dict[Tunable, float]:
    """Shortest time of each shape, in seconds; they take turns, so that a device's clock is the same for all.

    Parameters
    ----------
    device
        Where they run.
    ready
        What launches each shape.
    turns
        How often each is measured.
    """

    def launch(calls: Calls, count: int) -> None:
        for _ in range(count):
            for call in calls:
                call()

    once = min(device.seconds(partial(launch, calls, 1)) for calls in ready.values())
    count = max(1, ceil(LEAST_SECONDS / max(once, 1e-6)))
    best = dict.fromkeys(ready, np.inf)
    for _ in range(turns):
        for shape, calls in ready.items():
            best[shape] = min(best[shape], device.seconds(partial(launch, calls, count)) / count)
    return best


def _made(tiles: Tiles, shapes: Sequence[Tunable], bits: tuple[int, ...]) -> dict[Tunable, Calls]:
    """Shapes that compile and give the bits of the default."""

    def make(shape: Tunable) -> Calls | None:
        try:
            with tiles.device:
                return tiles.make(shape)
        except Exception as error:  # noqa: BLE001
            # Of all that a compiler may say, only this matters: the other shapes remain.
            _LOG.info("%s cannot be compiled: %s", shape, error)
            return None

    threads = min(tiles.side_by_side, usable_cores())
    with ThreadPoolExecutor(threads, thread_name_prefix="oocpr-tune") as pool:
        compiled = [shape for shape, calls in zip(shapes, pool.map(make, shapes), strict=True) if calls]
    # Shapes that share a kernel ask it for shared memory, so of what is compiled each is made by itself.
    ready = {shape: tiles.make(shape) for shape in compiled}
    for shape in list(ready):
        if tiles.bits(ready[shape]) != bits:
            _LOG.warning("%s gives other bits than the default shape and is not used", shape)
            del ready[shape]
    return ready


def _gteps(edges: int, seconds: float) -> float | None:
    return edges / seconds / 1e9 if seconds < np.inf else None


def _checksum(words: Any) -> int:
    return int(words.sum(dtype=np.uint64)) if words.size else 0
