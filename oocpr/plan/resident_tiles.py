"""How many tiles stay on a device, where each takes what it takes.

Which they are follows from how many, see `spread_evenly`. So one more is another choice altogether and may
take less, if it leaves out a tile of many rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.plan.diagonal_blocks import diagonal_blocks
from oocpr.plan.residency import evenly
from oocpr.plan.tile_bytes import guessed, tile_edges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.tile_bytes import Encoded

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
