"""What stays where: tiles kept in memory, and the ring through which the others pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.plan.tile_bytes import guessed, tile_edges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.tile_bytes import Encoded

RING_SLOTS = 4
"""Buffers of a stripe's ring: one computed, one ready, two being read."""


def ring_slots(reading: int) -> int:
    """Buffers of a ring from so many threads that read.

    Examples
    --------
    >>> ring_slots(2), ring_slots(8)
    (4, 10)
    """
    return max(RING_SLOTS, reading + 2)


READERS = 2
"""Threads that read a stripe's tiles through the page cache, which takes a processor to copy them."""

IO = ("auto", "direct", "buffered")
"""How tiles are read: past the system's page cache, through it, or as `wants_direct` says."""


def kept_tiles(tiles: int, tile_bytes: int, budget: int) -> int:
    """How many tiles of at most `tile_bytes` fit into `budget` bytes.

    Examples
    --------
    >>> kept_tiles(10, 100, 350), kept_tiles(10, 100, 5000)
    (3, 10)
    """
    return max(0, min(tiles, budget // max(1, tile_bytes)))


def evenly(tiles: int, kept: int) -> NDArray[np.int64]:
    """Choose `kept` of so many tiles, evenly, so that reading and computing overlap; ascending.

    Examples
    --------
    >>> evenly(10, 4)
    array([2, 4, 7, 9])
    """
    return -(-np.arange(1, kept + 1) * tiles // max(1, kept)) - 1


def spread_evenly(first: int, last: int, kept: int) -> frozenset[int]:
    """Choose `kept` of the tiles ``first .. last - 1`` as `evenly` does.

    Examples
    --------
    >>> sorted(spread_evenly(10, 20, 4))
    [12, 14, 17, 19]
    """
    return frozenset((first + evenly(last - first, kept)).tolist())


def wants_direct(io: str, streamed: int, room: int) -> bool:
    """Whether tiles should be read past the system's page cache.

    What is read in every pass and in the same order finds nothing of itself in a cache that is smaller: then
    the cache costs a copy, and what it held before.

    Parameters
    ----------
    io
        One of IO.
    streamed
        Bytes that are read in every pass.
    room
        Bytes that the cache may come to hold.

    Examples
    --------
    >>> wants_direct("auto", 3 * 2**30, 2**30), wants_direct("auto", 2**30, 3 * 2**30)
    (True, False)
    """
    return io == "direct" or (io == "auto" and streamed > room)


def reading_threads(cores: int, *, past_cache: bool) -> int:
    """How many threads read a stripe's tiles.

    Parameters
    ----------
    cores
        Of the machine.
    past_cache
        Whether tiles are read in every pass, and directly: then a thread waits for the disk, not for a
        processor, and the disk wants several reads at once.

    Examples
    --------
    >>> reading_threads(1, past_cache=False), reading_threads(8, past_cache=False)
    (1, 2)
    >>> reading_threads(1, past_cache=True)
    4
    """
    return RING_SLOTS if past_cache else min(READERS, cores)


ROUNDED = 10 * 512
"""Bytes that the pieces of a tile are rounded up by, at most: CuPy's pool has multiples of 512."""

GROUPS = (256, 4096)
"""Groups of tiles of which the least is known, for a first look and for another one: of 10**5 tiles, of which
half stay, the number was found in one second where neighbours are alike, and in four where they are not."""

TOGETHER = 256
"""Numbers of staying tiles that are looked at together."""


@dataclass(frozen=True)
class ResidentTiles:
    """Bytes of a device that each tile takes as long as it stays; int64, shape (tiles,).

    Parameters
    ----------
    most, usual
        At most, and as a rule.
    finding
        More than that while the islands of the tile are found, of one tile after the other.
    """

    most: NDArray[np.int64]
    usual: NDArray[np.int64]
    finding: NDArray[np.int64]

    def found_in(self, chosen: NDArray[np.int64]) -> int:
        """Bytes that finding islands takes of the device, of the tile of those chosen that takes most."""
        return int(self.finding[chosen].max(initial=0))

    def usual_in(self, chosen: NDArray[np.int64]) -> int:
        """Bytes that the tiles chosen, which come one after the other, take at their peak as a rule."""
        # DiagonalBlocks of a tile are found before the next one comes.
        return int((self.usual[chosen].cumsum() + self.finding[chosen]).max(initial=0))

    def within(self, room: int) -> int:
        """How many tiles stay: the most for which all that they take fits into so many bytes."""
        for kept in self._candidates(room):
            chosen = evenly(len(self.most), kept)
            left = room - int(self.most[chosen].sum())
            if left >= 0 and left >= self.found_in(chosen):
                return kept
        return 0

    def _candidates(self, room: int) -> Iterator[int]:
        """Numbers of tiles that may fit, the largest first.

        Others do not, even if each tile took no more than the least of its group.
        """
        tiles = len(self.most)
        # No choice takes less than the smallest of all.
        most = int(np.searchsorted(np.sort(self.most).cumsum(), room, side="right"))
        cuts = [np.linspace(0, tiles, min(tiles, groups) + 1).astype(np.int64) for groups in GROUPS]
        for last in range(most, 0, -TOGETHER):
            kept = np.arange(last, max(0, last - TOGETHER), -1)
            for bounds in cuts:
                counts = np.diff(kept[:, None] * bounds // tiles, axis=1)
                kept = kept[counts @ np.minimum.reduceat(self.most, bounds[:-1]) <= room]
            yield from kept.tolist()


def resident_tiles(
    stats: GraphStats, tile_rows: NDArray[np.int64], encoded: Encoded | None = None, *, islands: bool
) -> ResidentTiles:
    """Bytes of a device that each tile takes as long as it stays: encoded, and where its segments lie.

    Parameters
    ----------
    stats
        The graph.
    tile_rows
        First row of each tile, and the one past the last; int64, shape (tiles + 1,).
    encoded
        Bytes of each; None where only the stats tell.
    islands
        Whether tiles are swept in islands of neighbouring rows.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> stats = GraphStats(2000, 2800, 2, 1600, 56_000, 90_000, 1900, 0.5)
    >>> staying = resident_tiles(stats, np.array([0, 100, 2000]), islands=False)
    >>> staying.most, staying.usual
    (array([ 95824, 100668]), array([35264, 32108]))
    """
    rows = np.diff(tile_rows)
    edges = tile_edges(stats, tile_rows)
    encoded = encoded or guessed(stats, tile_rows)
    kept, finding = diagonal_blocks(edges, rows, stats.local_share)
    lie = _where_segments_lie(edges, rows) + (kept if islands else 0)
    most, usual = encoded.most + ROUNDED, encoded.usual + ROUNDED // 2
    return ResidentTiles(most + lie, usual + lie, finding if islands else np.zeros_like(rows))


def _where_segments_lie(edges: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A bit an edge, a word for 1024 of them; a column a row with edges, and two words for 32 rows."""
    blocks, groups = -(-edges // 1024), -(-(rows + 1) // 32)
    columns: NDArray[np.int64] = 4 * np.minimum(rows + 1, edges)
    return 128 * blocks + 4 * (blocks + 1) + columns + 8 * groups


class DiagonalBlocks(NamedTuple):
    """Bytes of the islands of tiles; int64, shape (tiles,).

    Attributes
    ----------
    kept
        As long as the tile stays.
    finding
        While they are found, of one tile after the other: its columns, and where its segments begin.
    """

    kept: NDArray[np.int64]
    finding: NDArray[np.int64]


def diagonal_blocks(edges: NDArray[np.int64], rows: NDArray[np.int64], local_share: float) -> DiagonalBlocks:
    """Bytes of the islands of tiles.

    A link inside an island takes a byte, and each of 32 rows as many as the one of them that has most. On
    cnr-2000 that is 12 bytes a row, which has 4.5 links inside; what is known is how many are inside tiles,
    and these are more.

    Parameters
    ----------
    edges, rows
        Of the tiles; int64, shape (tiles,).
    local_share
        Share of edges that stay inside the rows of their tile.

    Examples
    --------
    >>> diagonal_blocks(np.array([1000, 1000]), np.array([100, 200]), 0.5)
    DiagonalBlocks(kept=array([1500, 2500]), finding=array([4500, 5000]))
    """
    return DiagonalBlocks((local_share * edges).astype(np.int64) + 10 * rows, 4 * edges + 5 * rows)
