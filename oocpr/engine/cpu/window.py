"""Which tiles of a stripe are swept together, and where what their rows send is kept.

Whenever a tile comes, it and those before it, SWEPT_TILES in all, are swept in turns, the oldest first, and
the oldest proposes. The sweeps of a tile are shared out over the times that it is there, the later ones
first. So a pass has as many products inside tiles as if each were swept at once when it comes, and rows of
tiles side by side have read each other all the while.

Rows that have not come send zero, as do those of which no tile there reads any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cpu.local_sweeps import TilePlace
from oocpr.plan.request import SWEPT_TILES

if TYPE_CHECKING:
    from oocpr.engine.cpu.scratch import Scratch
    from oocpr.engine.cpu.tile import OpenTile


class SweepWindow:
    """The last tiles of a stripe that have come, and those of them that have not proposed yet.

    `tile_rows`: first row of each of its tiles, and the row behind the last; int64. Each is swept ``sweeps -
    1`` times.
    """

    def __init__(self, tile_rows: NDArray[np.int64], sweeps: int) -> None:
        self._sweeps = sweeps - 1
        # Tiles without rows of their own have no proposals.
        self._bounds = np.unique(tile_rows)
        # Those that an open tile may be swept along, before or behind it.
        reach = min(3 * SWEPT_TILES - 2, len(self._bounds) - 1)
        self._ring_rows = int((self._bounds[reach:] - self._bounds[: len(self._bounds) - reach]).max())
        self._scratch: list[Scratch] = []
        self._sent: deque[tuple[int, int]] = deque()  # place in the ring, and rows
        self.tiles: list[OpenTile] = []
        self.sends = np.empty(0, np.float32)

    def turns(self, later: int = 0) -> tuple[tuple[int, ...], bool]:
        """How often each open tile is swept now, and whether the first then proposes.

        `later`: how often that was done since the last one came.

        >>> window = SweepWindow(np.arange(4), sweeps=6)
        >>> window.tiles = [None] * 3
        >>> window.turns()
        ((2, 2, 1), True)
        """
        ages = [later + number for number in reversed(range(len(self.tiles)))]
        return tuple((self._sweeps + age) // SWEPT_TILES for age in ages), ages[0] == SWEPT_TILES - 1

    def first_open(self, first: int) -> int:
        """First row of the tiles that have not proposed, if one comes whose first row this is."""
        return self.tiles[0].place.first if self.tiles else first

    def make_room(self, spare: Callable[[], list[Scratch]]) -> None:
        """Take room for SWEPT_TILES tiles, unless that was done; nothing is sent yet."""
        if not self._scratch:
            self._scratch = spare()
            # Padding reads the last.
            self.sends = self._scratch[0].take("sends", 2 * self._ring_rows + 1, np.float32)
            self.sends[:] = 0

    def come(self, first: int, owned: int) -> tuple[TilePlace, Scratch]:
        """Place of the tile that comes, which owns so many rows from `first` on, and room for it."""
        while len(self._sent) >= 2 * SWEPT_TILES - 1:
            self._forget(*self._sent.popleft())
        place = self._place(first, owned)
        self._sent.append((place.ring, owned))
        return place, self._scratch[self._number(first) % SWEPT_TILES]

    def leave(self) -> list[Scratch]:
        """Give the room back, once all tiles have proposed."""
        self._sent.clear()
        scratch, self._scratch = self._scratch, []
        return scratch

    def _number(self, first: int) -> int:
        return int(np.searchsorted(self._bounds, first))

    def _place(self, first: int, owned: int) -> TilePlace:
        """Where a tile is swept: the same in every pass."""
        bounds, number = self._bounds, self._number(first)
        begin, near = int(bounds[0]), int(bounds[max(0, number - SWEPT_TILES + 1)])
        past = int(bounds[min(len(bounds) - 1, number + SWEPT_TILES)])
        ring, near_ring = ((row - begin) % self._ring_rows for row in (first, near))
        return TilePlace(
            first, owned, first - begin, near, past - near, ring, near_ring, self._ring_rows,
            int(bounds[-1]) - begin,
        )  # fmt: skip

    def _forget(self, ring: int, rows: int) -> None:
        """Let the rows of a tile send nothing, the first of which is there in the ring."""
        self.sends[ring : min(ring + rows, self._ring_rows)] = 0
        self.sends[: max(0, ring + rows - self._ring_rows)] = 0
