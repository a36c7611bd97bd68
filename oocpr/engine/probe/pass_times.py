"""Which tiles of a run a probe measures, and how long all tiles take by what these took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.trace import COMPUTE, COPY
from oocpr.plan.memory import tile_edges

if TYPE_CHECKING:
    from oocpr.engine.trace import Span
    from oocpr.plan.device_memory import DeviceTiers
    from oocpr.plan.plan import Plan
    from oocpr.plan.request import GraphStats


SAMPLED = 8
"""Tiles that are measured, of a store that has more."""

DEVICE_SAMPLED = 4
"""The same for each CUDA device, which takes several stored tiles as one."""

SAMPLED_EDGES = 2**25
"""Edges that are measured of tiles of a kind, if so many tiles have fewer: if they are streamed a round waits
for its first, and if they stay caches hold few of them, but not all."""

DEVICE_EDGES, DEVICE_TILES = 2**27, 2**7
"""Edges that are measured of tiles of any kind for each CUDA device, if not more tiles have them: rounds of
little work take as long as they are launched."""


def spread(tiles: int, most: int) -> list[int]:
    """Choose at most so many tiles, evenly."""
    count = min(tiles, most)
    return [(2 * k + 1) * tiles // (2 * count) for k in range(count)]


@dataclass(frozen=True)
class TileSample:
    """Tiles of one backend that are measured, if it has any of their kind, and where they stay."""

    tiles: list[int]
    on_device: bool
    in_host: bool

    def reads(self, rounds: int) -> int:
        """How many tiles are read in so many rounds: those that stay only in the first."""
        return len(self.tiles) * (1 if self.on_device or self.in_host else rounds)


@dataclass(frozen=True)
class DeviceWork:
    """What one backend computes, and which of that is measured.

    All its tiles, how many of them are resident where they are computed, and what stays where on its device,
    None for a processor; with the first row of each tile of the graph, and the number of nodes.
    """

    stats: GraphStats
    tile_rows: NDArray[np.int64]
    tiles: range
    resident: int
    device: DeviceTiers | None = None

    @cached_property
    def tile_edges(self) -> NDArray[np.int64]:
        """Edges of each of its tiles."""
        return tile_edges(self.stats, self.tile_rows)[self.tiles.start : self.tiles.stop]

    @property
    def edges(self) -> int:
        """Edges of all its tiles."""
        return int(self.tile_edges.sum())

    @property
    def streamed_edges(self) -> float:
        """Edges of those that are not resident."""
        return self.edges * (1 - self.resident / len(self.tiles))

    def rows_of(self, tile: int) -> int:
        """Rows of a tile."""
        return int(self.tile_rows[tile + 1] - self.tile_rows[tile])

    @property
    def resident_tiles(self) -> frozenset[int]:
        """Those that stay on the device."""
        return frozenset() if self.device is None else self.device.places(self.tiles)[0]

    @property
    def streamed_tiles(self) -> list[int]:
        """Those that do not."""
        resident = self.resident_tiles
        return [tile for tile in self.tiles if tile not in resident]

    def loading_samples(self, *, decoded: bool) -> list[TileSample]:
        """One tile of each kind that there is on a device, which are taken differently; else one of any."""
        if self.device is None:
            return [self._sample(1, on_device=False, in_host=decoded)]
        kinds = self.resident_sample(), self.streamed_sample()
        return [replace(kind, tiles=kind.tiles[len(kind.tiles) // 2 :][:1]) for kind in kinds]

    def resident_sample(self) -> TileSample:
        """As many tiles as are measured of those that stay: no more do, and there is memory for these."""
        count = min(self._sampled(), self.resident)
        return self._sample(count, on_device=self.device is not None, in_host=True)

    def streamed_sample(self) -> TileSample:
        """The same of the others; to a device from pinned memory, or else at the rate of the store."""
        count, in_host = self._sampled(), 0 if self.device is None else self.device.in_host
        count = min(count, in_host or count) if self.resident < len(self.tiles) else 0
        sample = self._sample(count, on_device=False, in_host=in_host > 0)
        if self.device is not None and len(sample.tiles) > 1:
            # What rows take is told apart from what edges take, and holds for the tile that has most of them.
            widest = max(self.streamed_tiles, key=self.rows_of)
            near = min(range(len(sample.tiles)), key=lambda k: abs(sample.tiles[k] - widest))
            sample.tiles[near] = widest
        return sample

    def _sampled(self) -> int:
        """Tiles of a kind that are measured, if there are as many."""
        # Groups of a graph without edges have none.
        edges, device = max(1, self.stats.tile_edges), self.device
        if device is None:
            return max(SAMPLED, SAMPLED_EDGES // edges)
        return max(DEVICE_SAMPLED, min(DEVICE_TILES, DEVICE_EDGES // edges))

    def _sample(self, count: int, *, on_device: bool, in_host: bool) -> TileSample:
        tiles = [self.tiles[at] for at in spread(len(self.tiles), count)]
        return TileSample(tiles, on_device, in_host)


def device_works(plan: Plan, tile_rows: NDArray[np.int64]) -> list[DeviceWork]:
    """What each backend of a run computes: one all, or each device a stripe."""
    stats = plan.stats
    if not plan.devices:
        return [DeviceWork(stats, tile_rows, range(stats.tiles), plan.cached_tiles)]
    return [
        DeviceWork(stats, tile_rows, range(*stripe), tiers.on_device, tiers)
        for stripe, tiers in zip(plan.stripes, plan.devices, strict=True)
    ]


class SampleTimes(NamedTuple):
    """Seconds that were measured of a sample of tiles of one backend, some of them by tile.

    Only on devices are tiles brought by threads, which read them, and taken by the host, which in the first
    pass makes them what stays, and launches what computes with them.
    """

    first: float = 0.0  # per edge, in a first pass
    later: float = 0.0  # per edge, in later ones
    brought: Mapping[int, float] = MappingProxyType({})  # by one thread
    taken: Mapping[int, float] = MappingProxyType({})  # in the first pass
    launched: float = 0.0  # of a tile as a rule, in later passes
    closing: float = 0.0  # giving back memory of the host
    computed: Mapping[int, float] = MappingProxyType({})  # by a processor, in later passes

    def later_of_all(self, all_tiles: Extrapolation) -> float:
        """Seconds per edge in later passes over all tiles, if some of those measured have more rows."""
        if not self.computed or not all_tiles.edges.sum():
            return self.later
        measured = all_tiles.at(list(self.computed))
        some = sum(self.computed.values()) / all_tiles.edges[measured].sum()
        return float(self.later * all_tiles.of_all(self.computed).sum() / all_tiles.edges.sum() / some)


@dataclass(frozen=True)
class PassTimeModel:
    """Seconds of what one backend does in a pass."""

    resident: float  # sweeping resident tiles
    streamed: float  # sweeping streamed ones
    first: float  # all of a first pass
    sent: float = 0.0  # streamed tiles on the link of a device
    alternating: float = 0.0  # sweeping that waits for this link in turns with them
    launched: float = 0.0  # launching all of that
    closing: float = 0.0  # giving back memory of the host after the last pass

    @classmethod
    def of(
        cls,
        work: DeviceWork,
        resident: SampleTimes,
        streamed: SampleTimes,
        timings: TileTimings,
        between: float = 0.0,
    ) -> PassTimeModel:
        """Put together what an edge takes in a first pass and in later ones, and what streaming takes."""
        moved = work.streamed_edges
        stayed = work.edges - moved
        all_tiles = Extrapolation(work)
        if work.device is None:
            first = stayed * resident.first + moved * streamed.first
            later = stayed * resident.later_of_all(all_tiles), moved * streamed.later_of_all(all_tiles)
            return cls(*later, first)
        swept = stayed * resident.later
        times = streamed_time(
            work, timings, all_tiles, resident=resident.later, later=streamed.later, between=between
        )
        busy = times.busy + swept if work.device.rows_in_host else max(times.sent, times.swept + swept)
        launched = work.resident * resident.launched + (len(work.tiles) - work.resident) * streamed.launched
        # Of tiles of a kind, as many take as long to give back.
        closing = streamed.closing * work.device.in_host / max(1, len(streamed.brought))
        # What was measured are rounds with a run per partition, all but the first as in later passes.
        once = busy / work.device.partitions
        first = max(_first_pass(work.device, all_tiles, resident, streamed), once) + (busy - once)
        return cls(swept, times.swept, first, times.sent, times.alternating, launched, closing)


def _first_pass(
    device: DeviceTiers, all_tiles: Extrapolation, resident: SampleTimes, streamed: SampleTimes
) -> float:
    """Seconds in which threads bring all tiles of a device, and its own takes them."""
    # Whatever is done with them then, tiles are brought alike; and those that are measured of both kinds are
    # brought twice, the second time as it is when memory has been taken.
    brought = all_tiles.of_all({**resident.brought, **streamed.brought})
    taken = np.where(all_tiles.resident, all_tiles.of_all(resident.taken), all_tiles.of_all(streamed.taken))
    # All threads read the tiles of a group, and then go on with the next one.
    return completion_times((brought / device.readers).tolist(), taken.tolist(), 2)[-1]


UNDELAYED_SHARE = 0.25
"""Share of the copies that have the link for themselves, at least."""


class TileTimings(NamedTuple):
    """Seconds of the measured tiles that are streamed through a device, by tile."""

    sent: Mapping[int, float] = MappingProxyType({})  # on the link
    swept: Mapping[int, float] = MappingProxyType({})  # of kernels
    row: float = 0.0  # of kernels per row


def tile_timings(
    spans: Sequence[Span], tiles: Mapping[int, tuple[float, float]], partitions: int = 1
) -> TileTimings:
    """Read the timings off a timeline, which has two spans of kernels for each tile, partition and round.

    The spans are of rounds over the tiles, those of a track in their order; the first round is left out, in
    which what notes them takes memory. `tiles` has the edges and rows of each. A round takes each tile once
    per partition; the result is what it takes once, as a rule.
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
    each = 2 * partitions
    swept = [
        median(np.reshape(took[each:], (-1, each)).sum(axis=1)) / partitions for took in computed.values()
    ]
    # Copies that kernels delay, which reach rows over the link as well, do not show how fast it is alone.
    sent = [float(np.quantile(took[1:], UNDELAYED_SHARE)) for took in copied.values()]
    edges, rows = np.array(list(tiles.values()), np.float64).T
    row = fitted(edges, rows, np.array(swept))[1]
    return TileTimings(dict(zip(tiles, sent, strict=True)), dict(zip(tiles, swept, strict=True)), row)


def fitted(
    edges: NDArray[np.float64], rows: NDArray[np.float64], seconds: NDArray[np.float64]
) -> tuple[float, float]:
    """Seconds per edge and a row, neither below zero, by least squares; all of edges if they cannot say.

    Where there are no edges all is of rows.
    """
    # Numbers of edges and of rows may be orders of magnitude apart.
    scale = max(1.0, edges.max()), max(1.0, rows.max())
    columns = np.stack([edges / scale[0], rows / scale[1]], axis=1)
    (edge, row), _, rank, _ = np.linalg.lstsq(columns, seconds)
    # The least squares of two numbers, one of which must not be negative and is, have it at zero.
    if edges.any() and (rank < 2 or row < 0):
        edge, row = _fit_one(columns[:, 0], seconds), 0.0
    elif rank < 2 or edge < 0:
        edge, row = 0.0, _fit_one(columns[:, 1], seconds)
    return float(edge / scale[0]), float(row / scale[1])


def _fit_one(column: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    return float(column @ seconds / (column @ column))


def completion_times(brought: Sequence[float], taken: Sequence[float], buffers: int) -> list[float]:
    """Say when tiles have been taken, one after the other.

    `brought` has the seconds in which each is brought, one after the other, `taken` those in which it is
    taken, once it is there and those before it are taken; so many `buffers` may be on their way or untaken.
    """
    there = 0.0
    done: list[float] = []
    for number, (bring, take) in enumerate(zip(brought, taken, strict=True)):
        there = max(there, done[number - buffers] if number >= buffers else 0.0) + bring
        done.append(max(there, done[-1] if done else 0.0) + take)
    return done


def extrapolate(
    some: Mapping[int, float], edges: NDArray[np.float64], rows: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predict the seconds that all tiles take from those of `some`, by number; float64, shape (tiles,).

    What a row takes is estimated from tiles with many and with few. The rest is what edges take, which
    changes along the tiles as their columns do: between two that were measured it lies between these.
    """
    if not some:
        return np.zeros(len(edges))
    tiles = np.array(sorted(some))
    seconds = np.array([some[tile] for tile in tiles.tolist()])
    row = fitted(edges[tiles], rows[tiles], seconds)[1]
    # No tile takes less than its rows alone: one that seems to was brought faster than others.
    edge = np.maximum(0.0, seconds - row * rows[tiles]) / np.maximum(1.0, edges[tiles])
    all_tiles: NDArray[np.float64] = np.interp(np.arange(len(edges)), tiles, edge) * edges + row * rows
    return all_tiles


class Extrapolation:
    """What some tiles of a device took, extrapolated to all of them."""

    def __init__(self, work: DeviceWork) -> None:
        self._first = work.tiles.start
        self.edges = work.tile_edges.astype(np.float64)
        self._rows = np.array([work.rows_of(tile) for tile in work.tiles], np.float64)
        self.resident = np.zeros(len(work.tiles), bool)
        self.resident[self.at(sorted(work.resident_tiles))] = True

    def at(self, tiles: Sequence[int]) -> NDArray[np.int64]:
        """Where tiles are among those of the device."""
        return np.asarray(tiles, np.int64) - self._first

    def of_all(self, some: Mapping[int, float]) -> NDArray[np.float64]:
        """Seconds of each tile; float64, shape (tiles,)."""
        return extrapolate(
            {tile - self._first: seconds for tile, seconds in some.items()}, self.edges, self._rows
        )


class StreamedTime(NamedTuple):
    """Seconds of a device in a pass over streamed tiles."""

    swept: float = 0.0  # of kernels, and of waits for tiles that are longer on their way than those before
    sent: float = 0.0  # on the link
    alternating: float = 0.0  # of kernels that wait for the link in turns with tiles

    @property
    def busy(self) -> float:
        """Of the link, or of kernels, whichever are longer at it."""
        return max(self.sent + self.alternating, self.swept)


def streamed_time(
    work: DeviceWork,
    timings: TileTimings,
    all_tiles: Extrapolation,
    *,
    resident: float,
    later: float,
    between: float,
) -> StreamedTime:
    """Seconds of all streamed tiles of a device.

    `resident` are the seconds per edge of a resident tile, `later` those of measured rounds over streamed
    tiles, and `between` the seconds between two passes.
    """
    assert work.device is not None, "a processor has no link"
    tiles = work.streamed_tiles
    if not tiles:
        return StreamedTime()
    sent, swept = all_tiles.of_all(timings.sent), all_tiles.of_all(timings.swept)

    def in_turns(tiles: Sequence[int], slots: int) -> StreamedTime:
        """Seconds of some tiles whose kernels reach rows over the link as well."""
        at = all_tiles.at(tiles)
        kernels = float(swept[at].sum())
        # In one slot nothing arrives while kernels run.
        rows = timings.row * sum(map(work.rows_of, tiles))
        return StreamedTime(kernels, float(sent[at].sum()), rows if slots > 1 else kernels)

    if work.device.rows_in_host:
        some = work.streamed_sample().tiles
        # Copies and kernels have waits for each other in them. Rounds show what both take.
        share = later * float(all_tiles.edges[all_tiles.at(some)].sum())
        share /= in_turns(some, work.device.slots).busy
        return StreamedTime(*(share * seconds for seconds in in_turns(tiles, work.device.slots)))
    stayed = np.where(all_tiles.resident, resident * all_tiles.edges, 0.0)
    # Tiles go on coming between two passes, as far as there are slots.
    busy = np.append(np.where(all_tiles.resident, stayed, swept), between)
    whole = _in_order(sent, busy, all_tiles.resident, work.device.slots)
    return StreamedTime(whole - between - float(stayed.sum()), float(sent[~all_tiles.resident].sum()))


def _in_order(
    sent: NDArray[np.float64], swept: NDArray[np.float64], resident: NDArray[np.bool_], slots: int
) -> float:
    """Seconds of kernels in a pass after others: they wait if a tile comes later than its slot is free.

    `sent` are the seconds in which each tile comes, `swept` those of its kernels and, last, of what follows
    them; resident tiles do not come.
    """
    comes = np.flatnonzero(~resident)
    # A resident tile takes its time before the next one that comes, in the next pass after the last.
    group = np.searchsorted(comes, np.arange(len(swept)))
    taken = np.bincount(group % len(comes), weights=swept, minlength=len(comes))
    come, take = (np.tile(of, 2).tolist() for of in (sent[comes], taken))
    done = completion_times(come, take, slots)
    return done[-1] - done[len(comes) - 1]
