"""Sorted rows cut into tiles of equal edges, which are encoded and written by several threads.

Tile t holds edges [t * tile_edges, (t + 1) * tile_edges) of the graph, whatever rows these are in. It owns
the rows from that of its own first edge up to, not including, that of the next tile's first edge; the
first tile owns from row 0, the last one to the end. So which rows a tile owns is known when the next
tile's first edge is. With `tile_edges` 3 and the rows 0 0 1 1 1 1 1 3 of eight edges::

    tile  edges in rows  owns rows  lengths (owned rows, then the part of the next tile's first row)
       0          0 0 1          0  2 | 1
       1          1 1 1       none    | 3
       2            1 3    1 and on  1 0 1 ... | 0
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
from numba import uint32, uint64

from oocpr.ingest.budget import ENTERED_BYTES_PER_ROW, require
from oocpr.jit import entry
from oocpr.store.codec.mantissa_segments import encode_segments
from oocpr.system import resident
from oocpr.units import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.ingest.sort.rows import Rows

    _Written = tuple["Tile", int, NDArray[np.uint32], int]
    from concurrent.futures import Executor

    from oocpr.ingest.sort.sorter import SortEncodeService
    from oocpr.store.writer import GraphWriter


@entry()
def _add_up(rows, counts, first_row, lengths):
    for i in range(uint64(rows.size)):
        lengths[uint64(rows[i]) - first_row] += counts[i]


@entry()
def _within(columns, first, end):
    """How many columns are in [first, end)."""
    inside = uint64(0)
    for i in range(uint64(columns.size)):
        # A difference below 0 becomes a large one.
        inside += uint64(uint32(columns[i] - first) < uint32(end - first))
    return inside


class Tile:
    """At most `size` edges of a tile, which owns the rows from `first_row` to below `next_row`."""

    def __init__(self, size: int, *, weighted: bool = False) -> None:
        self.first_row = self.next_row = 0
        self._columns, self._rows, self._counts = (np.empty(size, np.uint32) for _ in range(3))
        self._weights = np.empty(size) if weighted else None
        self.clear()

    def clear(self) -> None:
        """Drop all edges."""
        self._edges = self._parts = 0

    @property
    def full(self) -> bool:
        """Whether no more edges fit."""
        return self._edges == self._columns.size

    def fill(self, edges: Rows, start: int) -> int:
        """Add edges from number `start` on, as many as fit; returns the number of the first that did not."""
        stop = min(edges.columns.size, start + self._columns.size - self._edges)
        self._columns[self._edges : self._edges + stop - start] = edges.columns[start:stop]
        if self._weights is not None and edges.weights is not None:
            self._weights[self._edges : self._edges + stop - start] = edges.weights[start:stop]
        self._edges += stop - start
        first = int(np.searchsorted(edges.starts, start, side="right")) - 1
        end = int(np.searchsorted(edges.starts, stop, side="left"))
        parts = slice(self._parts, self._parts + end - first)
        self._rows[parts] = edges.rows[first:end]
        bounds = edges.starts[first : end + 1].clip(start, stop)
        np.subtract(bounds[1:], bounds[:-1], out=self._counts[parts])
        self._parts += end - first
        return stop

    @property
    def columns(self) -> NDArray[np.uint32]:
        """Columns of the edges."""
        return self._columns[: self._edges]

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """Weights of the edges, None if they have none."""
        return None if self._weights is None else self._weights[: self._edges]

    def lengths(self) -> NDArray[np.uint32]:
        """Edges of each owned row in the tile, and of the row behind them: uint32, shape (rows + 1,)."""
        lengths = np.zeros(self.next_row - self.first_row + 1, np.uint32)
        _add_up(self._rows[: self._parts], self._counts[: self._parts], np.uint64(self.first_row), lengths)
        return lengths

    def local_edges(self) -> int:
        """Edges whose column is among the owned rows."""
        return int(_within(self.columns, np.uint32(self.first_row), np.uint32(self.next_row)))


class TileWriter:
    """Cuts a stream of sorted rows into tiles, has them encoded and gives them to `writer` in their order.

    The first tile has the given `number` and begins with `first_row`. Threads of `pool` call `service` and
    `writer`, for at most `limit` tiles at a time; None for the caller's own. There is memory for
    `planned_rows` rows of a tile; one of more rows needs to fit in what `memory` the process may hold.
    `local_edges` counts edges whose column is among the owned rows.
    """

    def __init__(
        self,
        service: SortEncodeService,
        writer: GraphWriter,
        pool: Executor | None,
        limit: int,
        nodes: int,
        tile_edges: int,
        planned_rows: int,
        memory: int,
        number: int = 0,
        first_row: int = 0,
        *,
        weighted: bool = False,
    ) -> None:
        self.local_edges = 0
        self._service = service
        self._writer = writer
        self._pool = pool
        self._limit = limit
        self._nodes = nodes
        self._planned_rows = planned_rows
        self._memory = memory
        self._number = number
        self._new_tile = lambda: Tile(tile_edges, weighted=weighted)
        # Fresh memory costs more than much of what is done with it here.
        self._free: list[Tile] = []
        self._waiting: deque[Future[_Written]] = deque()
        self._tile = self._new_tile()
        self._tile.first_row = first_row

    def add(self, edges: Rows) -> None:
        """Add edges, which come after all before."""
        start = 0
        while start < edges.columns.size:
            if self._tile.full:
                row = int(np.searchsorted(edges.starts, start, side="right")) - 1
                self._close_tile(int(edges.rows[row]))
            start = self._tile.fill(edges, start)

    def finish(self) -> None:
        """Write the last tile, and wait for all; a graph without edges has one empty tile."""
        self._close_tile(self._nodes)
        self._enter(0)

    def _close_tile(self, next_row: int) -> None:
        """Have a tile encoded and written, and begin the next with `next_row`."""
        tile, rows = self._tile, next_row - self._tile.first_row + 1
        tile.next_row = next_row
        if rows > self._planned_rows:
            self._enter(0)
            needed = resident() + (ENTERED_BYTES_PER_ROW + self._service.needs.row_bytes) * rows
            require(needed, self._memory, f"A tile of {format_count(rows)} rows")
        self._enter(max(0, self._limit - 1))
        if self._pool is None:
            written: Future[_Written] = Future()
            written.set_result(self._write(self._number, tile))
        else:
            written = self._pool.submit(self._write, self._number, tile)
        self._waiting.append(written)
        self._number += 1
        if self._pool is None:
            self._enter(0)
        self._tile = self._free.pop() if self._free else self._new_tile()
        self._tile.clear()
        self._tile.first_row = next_row

    def _write(self, number: int, tile: Tile) -> _Written:
        lengths, weights = tile.lengths(), tile.weights
        coded = self._service.encode(tile.columns, lengths)
        self._writer.put_tile(number, coded, None if weights is None else encode_segments(weights))
        return tile, coded.size, lengths, tile.local_edges()

    def _enter(self, pending: int) -> None:
        """Enter tiles in their order, until no more than `pending` are under way."""
        while len(self._waiting) > pending:
            tile, size, lengths, local_edges = self._waiting.popleft().result()
            self.local_edges += local_edges
            self._writer.enter_tile(size, tile.columns.size, lengths)
            self._free.append(tile)
