"""Bytes of encoded tiles: as they are stored, as joined ones come to be, or by guess."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.plan.memory import weighted_tile_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.plan.graph_stats import GraphStats

SLACK_FACTOR = 1.25
"""Encoded bytes of a tile over the mean, at most, what its rows take apart."""

JOINED_SPARE = 1.125
"""Encoded bytes of a joined tile over those of the stored ones, at most: links are packed in the same groups,
lengths and first columns of rows in others. On R-MAT it had 0.9995 to 1 of them."""


class Encoded(NamedTuple):
    """Bytes of each tile, at most and as a rule; int64, shape (tiles,)."""

    most: NDArray[np.int64]
    usual: NDArray[np.int64]

    def part(self, first: int, last: int) -> Encoded:
        """Those of the tiles ``first .. last - 1``."""
        return Encoded(self.most[first:last], self.usual[first:last])

    def room_for(self, tiles: NDArray[np.int64], room: int) -> int:
        """How many of some tiles fit into so many bytes, whichever they are.

        Examples
        --------
        >>> encoded = Encoded(np.array([5, 2, 3, 9]), np.array([5, 2, 3, 9]))
        >>> [encoded.room_for(np.array([0, 1, 2]), room) for room in (4, 5, 9, 10)]
        [0, 1, 2, 3]
        """
        largest = np.sort(self.most[tiles])[::-1]
        return int(np.searchsorted(largest.cumsum(), room, side="right"))


def stored(stats: GraphStats, sizes: NDArray[np.int64] | None) -> Encoded | None:
    """Bytes of tiles as they are stored; None if that is not known.

    `sizes` has the bytes of each tile with its weights.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> stored(GraphStats(300, 1000, 2, 500, 2000, 90_000, 100, 0.5), np.array([1100, 900]))
    Encoded(most=array([1100,  900]), usual=array([1100,  900]))
    """
    if sizes is None:
        return None
    if stats.weighted:
        # Weights begin on pages of their own, wherever columns end.
        sizes = np.minimum(sizes + weighted_tile_bytes(1, 0), stats.max_tile_bytes)
    return Encoded(sizes, sizes)


def joined(
    stats: GraphStats, tile_rows: NDArray[np.int64], sizes: NDArray[np.int64] | None, cuts: tuple[int, ...]
) -> Encoded | None:
    """Bytes of tiles that are made of stored ones; None if that is not known.

    `stats` and `tile_rows` are those of joined tiles, `sizes` has the bytes of each stored tile with its
    weights, `cuts` the first stored tile of each joined one, and the number of tiles.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> stats = GraphStats(300, 1000, 1, 1000, 2000, 90_000, 300, 0.5)
    >>> joined(stats, np.array([0, 300]), np.array([1100, 900]), (0, 2))
    Encoded(most=array([67786]), usual=array([2000]))
    """
    if sizes is None:
        return None
    sums = np.add.reduceat(sizes, np.asarray(cuts[:-1]))
    if stats.weighted:
        # A weight that needs more bytes than others gives all of its tile as many.
        most = guessed(stats, tile_rows).most
    else:
        most = np.minimum(stats.max_tile_bytes, (JOINED_SPARE * sums).astype(np.int64) + 2**16)
    return Encoded(most, np.minimum(most, sums))


def guessed(stats: GraphStats, tile_rows: NDArray[np.int64]) -> Encoded:
    """Bytes of tiles of which no more is known than what all take together.

    `tile_rows` has the first row of each tile, and the one past the last; one of several devices has some of
    the graph's.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> stats = GraphStats(300, 1000, 10, 100, 2000, 90_000, 100, 0.5)
    >>> guessed(stats, np.array([0, 16, 300]))
    Encoded(most=array([65787, 65803]), usual=array([200, 200]))
    """
    mean = stats.column_bytes * stats.tile_edges / max(1, stats.edges)
    most = int(SLACK_FACTOR * mean) + 2**16 + np.diff(tile_rows) // 16
    usual = (tile_edges(stats, tile_rows) * (stats.usual_bytes / max(1, stats.edges))).astype(np.int64)
    most = np.minimum(stats.max_tile_bytes, most)
    return Encoded(most, np.minimum(most, usual))


def tile_edges(stats: GraphStats, tile_rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Edges of each tile: all have as many but the last, or about as many if stored ones were joined.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> stats = GraphStats(300, 950, 10, 100, 2000, 90_000, 100, 0.5)
    >>> tile_edges(stats, np.array([200, 250, 300]))
    array([100,  50])
    """
    tiles = len(tile_rows) - 1
    behind = stats.edges - (stats.tiles - 1) * stats.tile_edges
    edges = np.full(tiles, min(stats.tile_edges, stats.edges))
    if not 0 < behind <= stats.tile_edges:
        edges[:] = -(-stats.edges // stats.tiles)
    elif tile_rows[-1] == stats.nodes:
        edges[-1] = behind
    return edges
