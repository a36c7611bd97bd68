"""Which tiles of a run a probe measures: some of those that stay, and of those that pass, of each backend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.plan.device_memory import DeviceTiers
    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.plan import Plan

SAMPLED = 8
"""Tiles that are measured, of a store that has more."""

DEVICE_SAMPLED = 4
"""The same for each CUDA device, whose tiles are made of several stored ones."""

SAMPLED_EDGES = 2**25
"""Edges that are measured of tiles of a kind, if so many tiles have fewer: if they are streamed a round waits
for its first, and if they stay caches hold few of them, but not all."""

DEVICE_EDGES, DEVICE_TILES = 2**27, 2**7
"""Edges that are measured of tiles of any kind for each CUDA device, if not more tiles have them: rounds of
little work take as long as they are launched, and the first has what joining takes once in a run, too."""


def spread(tiles: int, most: int) -> list[int]:
    """Choose at most so many tiles, evenly.

    Examples
    --------
    >>> spread(3, 8), spread(100, 4)
    ([0, 1, 2], [12, 37, 62, 87])
    """
    count = min(tiles, most)
    return [(2 * k + 1) * tiles // (2 * count) for k in range(count)]


def edges_of(stats: GraphStats, tile: int) -> float:
    """Edges of a tile: all have as many but the last, or about as many if stored ones were merged.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> stats = GraphStats(100, 2500, 3, 1000, 5000, 2000, 40, 0.5)
    >>> [edges_of(stats, tile) for tile in range(3)]
    [1000, 1000, 500]
    """
    if (stats.tiles - 1) * stats.tile_edges < stats.edges <= stats.tiles * stats.tile_edges:
        return min(stats.tile_edges, stats.edges - tile * stats.tile_edges)
    return stats.edges / stats.tiles


@dataclass(frozen=True)
class TileSample:
    """Tiles of one backend that are measured, if it has any of their kind, and where they stay."""

    tiles: list[int]
    on_device: bool
    kept: bool

    def reads(self, rounds: int) -> int:
        """How many tiles are read in so many rounds: those that stay only in the first."""
        return len(self.tiles) * (1 if self.on_device or self.kept else rounds)


@dataclass(frozen=True)
class DeviceWork:
    """What one backend computes, and which of that is measured.

    All its tiles, how many of them stay where they are computed, and what stays where on its device, None for
    a processor; with the first row of each tile of the graph, and the number of nodes.
    """

    stats: GraphStats
    tile_rows: NDArray[np.int64]
    tiles: range
    staying: int
    device: DeviceTiers | None = None

    @property
    def edges(self) -> float:
        """Edges of all its tiles."""
        return sum(edges_of(self.stats, tile) for tile in self.tiles)

    @property
    def passing_edges(self) -> float:
        """Edges of those that do not stay."""
        return self.edges * (1 - self.staying / len(self.tiles))

    @property
    def passing_rows(self) -> int:
        """Rows of those that do not stay on the device."""
        return sum(self.rows_of(tile) for tile in self.passing_tiles)

    def rows_of(self, tile: int) -> int:
        """Rows of a tile."""
        return int(self.tile_rows[tile + 1] - self.tile_rows[tile])

    @property
    def passing_tiles(self) -> list[int]:
        """Those that do not stay on the device."""
        on_device = frozenset[int]() if self.device is None else self.device.places(self.tiles)[0]
        return [tile for tile in self.tiles if tile not in on_device]

    @property
    def staying_tiles(self) -> list[int]:
        """Those that do."""
        passing = frozenset(self.passing_tiles)
        return [tile for tile in self.tiles if tile not in passing]

    def one(self, *, decoded: bool) -> list[TileSample]:
        """One tile of each kind that there is on a device, which are taken differently; else one of any."""
        if self.device is None:
            return [self._picked(1, on_device=False, kept=decoded)]
        kinds = self.of_staying(), self.of_passing()
        return [replace(picked, tiles=picked.tiles[len(picked.tiles) // 2 :][:1]) for picked in kinds]

    def of_staying(self) -> TileSample:
        """As many tiles as are measured of those that stay: no more do, and there is memory for these."""
        return self._picked(min(self._sampled(), self.staying), on_device=self.device is not None, kept=True)

    def of_passing(self) -> TileSample:
        """The same of those that pass; to a device from pinned memory, or else at the rate of the store."""
        most, in_host = self._sampled(), 0 if self.device is None else self.device.in_host
        some = self.staying < len(self.tiles)
        picked = self._picked(min(most, in_host or most) if some else 0, on_device=False, kept=in_host > 0)
        if self.device is not None and len(picked.tiles) > 1:
            # What rows take is told apart from what edges take, and holds for the tile that has most of them.
            widest = max(self.passing_tiles, key=self.rows_of)
            near = min(range(len(picked.tiles)), key=lambda k: abs(picked.tiles[k] - widest))
            picked.tiles[near] = widest
        return picked

    def _sampled(self) -> int:
        """Tiles of a kind that are measured, if there are as many."""
        edges, device = self.stats.tile_edges, self.device
        if device is None:
            return max(SAMPLED, SAMPLED_EDGES // edges)
        # Twice as many as are made at a time: how fast they come shows from the second half on.
        return max(DEVICE_SAMPLED, 2 * device.joined_at_once, min(DEVICE_TILES, DEVICE_EDGES // edges))

    def _picked(self, most: int, *, on_device: bool, kept: bool) -> TileSample:
        tiles = [self.tiles[at] for at in spread(len(self.tiles), most)]
        return TileSample(tiles, on_device, kept)


def device_works(plan: Plan, tile_rows: NDArray[np.int64]) -> list[DeviceWork]:
    """What each backend of a run computes: one all, or each device a stripe."""
    stats = plan.stats
    if not plan.devices:
        return [DeviceWork(stats, tile_rows, range(stats.tiles), plan.cached_tiles)]
    return [
        DeviceWork(stats, tile_rows, range(*stripe), tiers.on_device, tiers)
        for stripe, tiers in zip(plan.stripes, plan.devices, strict=True)
    ]
