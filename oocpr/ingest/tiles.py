"""Fifth stage: sorted keys become tiles of equal edges.

Tile t holds edges [t * tile_edges, (t + 1) * tile_edges) of the graph, whatever rows these are in. It owns
the rows from that of its own first edge up to, not including, that of the next tile's first edge; the
first tile owns from row 0, the last one to the end. So which rows a tile owns is known when the next
tile's first edge is. With `tile_edges` 3 and the rows 0 0 1 1 1 1 1 3 of eight edges::

    tile  edges in rows  owns rows  lengths (owned rows, then the part of the next tile's first row)
       0          0 0 1          0  2 | 1
       1          1 1 1       none    | 3
       2            1 3    1 and on  1 0 1 ... | 0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    AddTile = Callable[[NDArray[np.uint64], int, int], NDArray[np.uint64] | None]


@numba.njit("int64(uint64[::1], int64, uint32[::1], uint32[::1])", cache=True, nogil=True)
def _cut(keys, first, columns, lengths):  # type: ignore[no-untyped-def]
    """Take `keys` apart; return how many columns are in rows that the tile owns."""
    end = first + lengths.size - 1
    local = 0
    for i in range(keys.size):
        column = np.int64(keys[i] & np.uint64(0xFFFFFFFF))
        columns[i] = np.uint32(column)
        lengths[np.int64(keys[i] >> np.uint64(32)) - first] += np.uint32(1)
        local += first <= column < end
    return local


def cut_tile(
    keys: NDArray[np.uint64], first_row: int, next_row: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], int]:
    """Take the keys of a tile apart.

    Parameters
    ----------
    keys
        Ascending, uint64, shape (edges of the tile,).
    first_row, next_row
        The tile owns the rows from `first_row` to `next_row` - 1.

    Returns
    -------
    columns
        uint32, shape (edges of the tile,).
    lengths
        Edges of each owned row in the tile, and of the row behind them; uint32, shape (owned rows + 1,).
    local
        Edges whose column is among the owned rows.

    Examples
    --------
    >>> rows = np.array([0, 0, 1], np.uint64)
    >>> cut_tile(rows << np.uint64(32) | np.array([0, 1, 2], np.uint64), 0, 1)
    (array([0, 1, 2], dtype=uint32), array([2, 1], dtype=uint32), 1)
    """
    columns = np.empty(keys.size, np.uint32)
    lengths = np.zeros(next_row - first_row + 1, np.uint32)
    return columns, lengths, _cut(keys, first_row, columns, lengths)


class TileCutter:
    """Cuts a stream of ascending keys into tiles.

    Parameters
    ----------
    tile_edges
        Edges of every tile but the last.
    nodes
        Rows of the graph.
    add_tile
        Called for every tile in order with what `cut_tile` takes. What it returns, an array like the keys, is
        written to next; None where the keys may be overwritten.
    first_row
        The row with which the first tile begins.

    Examples
    --------
    >>> cutter = TileCutter(3, 5, lambda *tile: print(*cut_tile(*tile)))
    >>> rows = np.array([0, 0, 1, 1, 1, 1, 1, 3], np.uint64)
    >>> cutter.add(rows << np.uint64(32) | np.arange(8, dtype=np.uint64) % 5)
    [0 1 2] [2 1] 1
    [3 4 0] [3] 0
    >>> cutter.finish()
    [1 2] [1 0 1 0 0] 2
    """

    def __init__(self, tile_edges: int, nodes: int, add_tile: AddTile, first_row: int = 0) -> None:
        self._nodes = nodes
        self._add_tile = add_tile
        self._first_row = first_row
        self._held = np.empty(tile_edges, np.uint64)
        self._fill = 0

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Take more keys: ascending, above all before, uint64, shape (k,)."""
        start = 0
        while start < keys.size:
            if self._fill == self._held.size:
                other = self._emit(self._held, int(keys[start]) >> 32)
                self._held, self._fill = self._held if other is None else other, 0
            taken = min(self._held.size - self._fill, keys.size - start)
            self._held[self._fill : self._fill + taken] = keys[start : start + taken]
            self._fill += taken
            start += taken

    def finish(self) -> None:
        """Close the last tile; a graph without edges has one empty tile."""
        self._emit(self._held[: self._fill], self._nodes)

    def _emit(self, keys: NDArray[np.uint64], next_row: int) -> NDArray[np.uint64] | None:
        first_row, self._first_row = self._first_row, next_row
        return self._add_tile(keys, first_row, next_row)
