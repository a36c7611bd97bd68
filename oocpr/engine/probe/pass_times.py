"""How long all tiles of a backend take, from what was measured of some of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapreplace
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.engine.probe.sampling import edges_of
from oocpr.engine.trace import COMPUTE, COPY
from oocpr.plan.residency import ring_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.probe.sampling import DeviceWork
    from oocpr.engine.trace import Span


class Kind(NamedTuple):
    """What was measured of tiles of one kind, of one backend; nothing if it has none.

    Seconds per edge in a first pass, and in later ones; in which a thread read each tile, and joined it if it
    is made of several; in which the host took each in the first pass, made it what stays and launched what
    computes with it, and the same in later ones, of a tile as a rule; in which memory of the host was given
    back; and in which a processor swept each tile in later passes. Only of devices are tiles read and taken.
    """

    first: float = 0.0
    later: float = 0.0
    brought: dict[int, float] = {}  # noqa: RUF012
    taken: dict[int, float] = {}  # noqa: RUF012
    launched: float = 0.0
    closing: float = 0.0
    computed: dict[int, float] = {}  # noqa: RUF012

    def later_of_all(self, all_tiles: Extrapolation) -> float:
        """Seconds per edge in later passes over all tiles, if some of those measured have more rows."""
        if not self.computed or not all_tiles.edges.sum():
            return self.later
        measured = all_tiles.at(list(self.computed))
        some = sum(self.computed.values()) / all_tiles.edges[measured].sum()
        return float(self.later * all_tiles.of_all(self.computed).sum() / all_tiles.edges.sum() / some)


@dataclass(frozen=True)
class PassTimeModel:
    """Seconds of what one backend does in a pass.

    Of sweeping the tiles that stay, and the streamed others; of all tiles in a first pass; in which the
    streamed ones are sent over the link of a device, and the part that waits for this link in turns with
    them; in which the host launches all of that; and in which memory of the host is given back after the last
    pass.
    """

    kept: float
    passing: float
    first: float
    sent: float = 0.0
    turned: float = 0.0
    launched: float = 0.0
    closing: float = 0.0

    @classmethod
    def of(
        cls,
        work: DeviceWork,
        kept: Kind,
        passing: Kind,
        timings: TileTimings,
        readers: int,
        between: float = 0.0,
    ) -> PassTimeModel:
        """Put together what an edge takes in a first pass and in later ones, and what streaming takes."""
        moved = work.passing_edges
        stayed = work.edges - moved
        all_tiles = Extrapolation(work)
        if work.device is None:
            first = stayed * kept.first + moved * passing.first
            return cls(stayed * kept.later_of_all(all_tiles), moved * passing.later_of_all(all_tiles), first)
        swept = stayed * kept.later
        streamed = streamed_time(
            work, timings, all_tiles, kept=kept.later, later=passing.later, between=between
        )
        busy = (
            streamed.busy + swept if work.device.rows_in_host else max(streamed.sent, streamed.swept + swept)
        )
        launched = work.staying * kept.launched + (len(work.tiles) - work.staying) * passing.launched
        # Of tiles of a kind, as many take as long to give back.
        closing = passing.closing * work.device.in_host / max(1, len(passing.brought))
        # What was measured are rounds with a run for each slice, all but the first as in later passes.
        once = busy / work.device.partitions
        first = max(_first_pass(work, all_tiles, kept, passing, readers), once) + (busy - once)
        return cls(swept, streamed.swept, first, streamed.sent, streamed.turned, launched, closing)


def _first_pass(work: DeviceWork, all_tiles: Extrapolation, kept: Kind, passing: Kind, readers: int) -> float:
    """Seconds in which threads bring all tiles of a device, and its own takes them."""
    assert work.device is not None, "processors are timed as they are"
    at_once = work.device.joined_at_once
    # Whatever is done with them then, tiles are brought alike; and those that are measured of both kinds are
    # brought twice, the second time as it is when memory has been taken.
    brought = all_tiles.of_all(kept.brought | passing.brought)
    taken = np.where(all_tiles.stays, all_tiles.of_all(kept.taken), all_tiles.of_all(passing.taken))
    reading = Reading(max(readers, at_once), ring_slots(at_once))
    return completion_times(brought.tolist(), taken.tolist(), reading)[-1]


def rate_of(edges: float, seconds: float) -> float:
    """So many a second; infinite if that takes no time."""
    return edges / seconds if seconds else math.inf


ALONE = 0.25
"""Share of the copies that have the link for themselves, at least."""


class TileTimings(NamedTuple):
    """What tiles take that are streamed through a device; nothing if none are.

    Seconds in which each measured tile comes over the link, of its kernels, and of kernels per row.
    """

    sent: Mapping[int, float] = MappingProxyType({})
    swept: Mapping[int, float] = MappingProxyType({})
    row: float = 0.0


def tile_timings(
    spans: Sequence[Span], tiles: Mapping[int, tuple[float, float]], slices: int = 1
) -> TileTimings:
    """Read the timings off a timeline, which has two spans of kernels for each tile, slice and round.

    The spans are of rounds over the tiles, those of a track in their order; the first round is left out, in
    which what notes them takes memory. `tiles` has the edges and rows of each. A round takes each tile once
    per slice; the result is what it takes once, as a rule.
    """
    if not tiles:
        return TileTimings()
    computed: dict[str, list[float]] = {f"tile {tile}": [] for tile in tiles}
    copied: dict[str, list[float]] = {f"tile {tile}": [] for tile in tiles}
    for span in spans:
        kind, took = span.track.split(",")[0], span.end - span.begin
        if kind == COPY:
            copied[span.name].append(took)
        elif kind == COMPUTE:
            computed[span.name].append(took)
    # The runs of a round differ: rows are dealt with in the last.
    each = 2 * slices
    swept = [median(np.reshape(took[each:], (-1, each)).sum(axis=1)) / slices for took in computed.values()]
    # Copies that kernels delay, which reach rows over the link as well, do not show how fast it is alone.
    sent = [float(np.quantile(took[1:], ALONE)) for took in copied.values()]
    edges, rows = np.array(list(tiles.values()), np.float64).T
    row = fitted(edges, rows, np.array(swept))[1]
    return TileTimings(dict(zip(tiles, sent, strict=True)), dict(zip(tiles, swept, strict=True)), row)


def fitted(
    edges: NDArray[np.float64], rows: NDArray[np.float64], seconds: NDArray[np.float64]
) -> tuple[float, float]:
    """Seconds per edge and a row, neither below zero, by least squares; all of edges if they cannot say.

    Examples
    --------
    >>> edge, row = fitted(np.array([100.0, 100.0, 50.0]), np.array([10.0, 500.0, 20.0]),
    ...                    np.array([1.1, 6.0, 0.7]))
    >>> f"{edge:.3f} {row:.3f}"
    '0.010 0.010'
    """
    # Numbers of edges and of rows may be orders of magnitude apart.
    scale = edges.max(), max(1.0, rows.max())
    columns = np.stack([edges / scale[0], rows / scale[1]], axis=1)
    (edge, row), _, rank, _ = np.linalg.lstsq(columns, seconds)
    # The least squares of two numbers, one of which must not be negative and is, have it at zero.
    if rank < 2 or row < 0:
        edge, row = _alone(columns[:, 0], seconds), 0.0
    elif edge < 0:
        edge, row = 0.0, _alone(columns[:, 1], seconds)
    return float(edge / scale[0]), float(row / scale[1])


def _alone(column: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    return float(column @ seconds / (column @ column))


class Reading(NamedTuple):
    """How many threads bring tiles, each the next one, and how many tiles may be on their way or untaken."""

    threads: int
    buffers: int


def completion_times(brought: Sequence[float], taken: Sequence[float], reading: Reading) -> list[float]:
    """Say when tiles have been taken, one after the other.

    From the seconds in which a thread brings each, and in which it is taken, once it is there and those
    before it are taken.

    Examples
    --------
    >>> completion_times([2, 2, 2, 2], [0, 0, 0, 0], Reading(threads=2, buffers=4))
    [2, 2, 4, 4]
    >>> completion_times([9, 1, 1, 1], [0, 0, 0, 0], Reading(threads=2, buffers=2))
    [9, 9, 10, 10]
    >>> completion_times([2, 2, 2, 2], [5, 5, 5, 5], Reading(threads=2, buffers=4))
    [7, 12, 17, 22]
    """
    free: list[float] = [0] * reading.threads
    done: list[float] = []
    for number, (bring, take) in enumerate(zip(brought, taken, strict=True)):
        begun = max(free[0], done[number - reading.buffers]) if number >= reading.buffers else free[0]
        heapreplace(free, begun + bring)
        done.append((max(begun + bring, done[-1]) if done else begun + bring) + take)
    return done


def extrapolate(
    some: Mapping[int, float], edges: NDArray[np.float64], rows: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predict the seconds that all tiles take from those of `some`, by number; float64, shape (tiles,).

    What a row takes is estimated from tiles with many and with few. The rest is what edges take, which
    changes along the tiles as their columns do: between two that were measured it lies between these.

    Examples
    --------
    >>> extrapolate({0: 1.0, 2: 3.0}, np.full(4, 10.0), np.full(4, 7.0)).tolist()
    [1.0, 2.0, 3.0, 3.0]
    """
    if not some:
        return np.zeros(len(edges))
    tiles = np.array(sorted(some))
    seconds = np.array([some[tile] for tile in tiles.tolist()])
    row = fitted(edges[tiles], rows[tiles], seconds)[1]
    # No tile takes less than its rows alone: one that seems to was brought faster than others.
    an_edge = np.maximum(0.0, seconds - row * rows[tiles]) / edges[tiles]
    all_tiles: NDArray[np.float64] = np.interp(np.arange(len(edges)), tiles, an_edge) * edges + row * rows
    return all_tiles


class Extrapolation:
    """What some tiles of a device took, extrapolated to all of them."""

    def __init__(self, work: DeviceWork) -> None:
        self._first = work.tiles.start
        self.edges = np.array([edges_of(work.stats, tile) for tile in work.tiles], np.float64)
        self._rows = np.array([work.rows_of(tile) for tile in work.tiles], np.float64)
        self.stays = np.zeros(len(work.tiles), bool)
        self.stays[self.at(work.staying_tiles)] = True

    def at(self, tiles: Sequence[int]) -> NDArray[np.int64]:
        """Where tiles are among those of the device."""
        return np.asarray(tiles, np.int64) - self._first

    def of_all(self, some: Mapping[int, float]) -> NDArray[np.float64]:
        """Seconds of each tile; float64, shape (tiles,)."""
        return extrapolate(
            {tile - self._first: seconds for tile, seconds in some.items()}, self.edges, self._rows
        )


class StreamedTime(NamedTuple):
    """Seconds of a device in a pass over tiles that do not stay.

    Of kernels, and of waits for tiles that are longer on their way than those before them; in which the tiles
    come over the link; and of kernels that wait for the link in turns with them.
    """

    swept: float = 0.0
    sent: float = 0.0
    turned: float = 0.0

    @property
    def busy(self) -> float:
        """Of the link, or of kernels, whichever are longer at it."""
        return max(self.sent + self.turned, self.swept)

    def times(self, share: float) -> StreamedTime:
        """The same, so many times."""
        return StreamedTime(*(share * seconds for seconds in self))


def streamed_time(
    work: DeviceWork,
    timings: TileTimings,
    all_tiles: Extrapolation,
    *,
    kept: float,
    later: float,
    between: float,
) -> StreamedTime:
    """Seconds of all tiles of a device that do not stay.

    `kept` are the seconds per edge of a tile that stays, `later` those of measured rounds over streamed
    tiles, and `between` the seconds between two streamed.
    """
    assert work.device is not None, "a processor has no link"
    tiles = work.passing_tiles
    if not tiles:
        return StreamedTime()
    sent, swept = all_tiles.of_all(timings.sent), all_tiles.of_all(timings.swept)
    if work.device.rows_in_host:
        some = work.of_passing().tiles
        measured = _in_turns(work, timings, all_tiles, some, sent, swept)
        # Copies and kernels have waits for each other in them. Rounds tell what both take.
        share = later * float(all_tiles.edges[all_tiles.at(some)].sum()) / measured.busy
        return _in_turns(work, timings, all_tiles, tiles, sent, swept).times(share)
    stayed = np.where(all_tiles.stays, kept * all_tiles.edges, 0.0)
    # Tiles go on coming between two passes, as far as there are slots.
    busy = np.append(np.where(all_tiles.stays, stayed, swept), between)
    whole = _in_order(sent, busy, all_tiles.stays, work.device.slots)
    return StreamedTime(whole - between - float(stayed.sum()), float(sent[~all_tiles.stays].sum()))


def _in_turns(
    work: DeviceWork,
    timings: TileTimings,
    all_tiles: Extrapolation,
    tiles: Sequence[int],
    sent: NDArray[np.float64],
    swept: NDArray[np.float64],
) -> StreamedTime:
    """Seconds of some tiles whose kernels reach rows over the link as well."""
    assert work.device is not None, "a processor has no link"
    at = all_tiles.at(tiles)
    kernels = float(swept[at].sum())
    # In one slot nothing arrives while kernels run.
    rows = timings.row * sum(map(work.rows_of, tiles))
    return StreamedTime(kernels, float(sent[at].sum()), rows if work.device.slots > 1 else kernels)


def _in_order(
    sent: NDArray[np.float64], swept: NDArray[np.float64], stays: NDArray[np.bool_], slots: int
) -> float:
    """Seconds of kernels in a pass after others: they wait if a tile comes later than its slot is free.

    `sent` are the seconds in which each tile comes, `swept` those of its kernels and, last, of what follows
    them; tiles that stay do not come.

    Examples
    --------
    >>> some = np.array([False, True, False])
    >>> _in_order(np.array([2.0, 0.0, 2.0]), np.array([1.0, 1.0, 1.0, 0.0]), some, 2)
    4.0
    >>> _in_order(np.array([2.0, 0.0, 2.0]), np.array([3.0, 2.0, 1.0, 0.5]), some, 2)
    6.5
    """
    comes = np.flatnonzero(~stays)
    # A tile that stays takes its time before the next one that comes, in the next pass after the last.
    group = np.searchsorted(comes, np.arange(len(swept)))
    taken = np.bincount(group % len(comes), weights=swept, minlength=len(comes))
    come, take = (np.tile(of, 2).tolist() for of in (sent[comes], taken))
    done = completion_times(come, take, Reading(1, slots))
    return done[-1] - done[len(comes) - 1]
