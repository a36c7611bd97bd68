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


class TileCutter:
    """Cuts a stream of ascending keys into tiles.

    Parameters
    ----------
    tile_edges
        Edges of every tile but the last.
    nodes
        Rows of the graph.
    add_tile
        Called for every tile in order with its columns (uint32, shape (edges of the tile,)) and lengths
        (uint32, shape (owned rows + 1,)).

    Attributes
    ----------
    local_edges
        Edges so far whose column is among the owned rows of their tile.

    Examples
    --------
    >>> cutter = TileCutter(3, 5, lambda columns, lengths: print(columns, lengths))
    >>> rows = np.array([0, 0, 1, 1, 1, 1, 1, 3], np.uint64)
    >>> cutter.add(rows << np.uint64(32) | np.arange(8, dtype=np.uint64) % 5)
    [0 1 2] [2 1]
    [3 4 0] [3]
    >>> cutter.finish()
    [1 2] [1 0 1 0 0]
    >>> cutter.local_edges
    3
    """

    def __init__(
        self, tile_edges: int, nodes: int, add_tile: Callable[[NDArray[np.uint32], NDArray[np.uint32]], None]
    ) -> None:
        self.local_edges = 0
        self._nodes = nodes
        self._add_tile = add_tile
        self._first_row = 0
        self._held = np.empty(tile_edges, np.uint64)
        self._fill = 0

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Take more keys: ascending, above all before, uint64, shape (k,)."""
        size = self._held.size
        start = 0
        while self._fill + keys.size - start > size:
            if self._fill:
                taken = size - self._fill
                self._held[self._fill :] = keys[start : start + taken]
                tile = self._held
            else:
                taken = size
                tile = keys[start : start + taken]
            start += taken
            self._fill = 0
            self._emit(tile, int(keys[start]) >> 32)
        rest = keys.size - start
        self._held[self._fill : self._fill + rest] = keys[start:]
        self._fill += rest

    def finish(self) -> None:
        """Close the last tile; a graph without edges has one empty tile."""
        self._emit(self._held[: self._fill], self._nodes)

    def _emit(self, keys: NDArray[np.uint64], next_row: int) -> None:
        columns = np.empty(keys.size, np.uint32)
        lengths = np.zeros(next_row - self._first_row + 1, np.uint32)
        self.local_edges += _cut(keys, self._first_row, columns, lengths)
        self._add_tile(columns, lengths)
        self._first_row = next_row
