"""Buckets sorted by several threads and handed on in their order, and who sorts them and encodes tiles."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from oocpr.ingest.budget import WRITER_BYTES_PER_ROW, require
from oocpr.ingest.rows import EdgeCounter, Rows, sorted_pieces, weighted_pieces
from oocpr.jit import entry
from oocpr.store.codec.mantissa_segments import encode_segments
from oocpr.store.codec.tiles import TileEncoder
from oocpr.system import resident
from oocpr.units import format_count

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from oocpr.ingest.spill.id_bitmap import IdRanks
    from oocpr.ingest.spill.partition import KeyRun

    _Written = tuple["Tile", int, NDArray[np.uint32], int]


_own = threading.local()


def encode(columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Encode a tile as `TileEncoder.encode`; the next call from the same thread overwrites the bytes."""
    # Fresh memory costs more than much of what is done with it here.
    if not hasattr(_own, "coder"):
        _own.coder = TileEncoder()
    coder: TileEncoder = _own.coder
    return coder.encode(columns, lengths)


class TileTarget(Protocol):
    """Takes tiles: a `GraphWriter`, or who writes tiles of a store that another process makes."""

    def put_tile(self, tile: int, coded: NDArray[np.uint8], data: NDArray[np.uint8] | None = None) -> None:
        """See GraphWriter."""

    def enter_tile(self, size: int, edges: int, lengths: NDArray[np.uint32]) -> None:
        """See GraphWriter."""


class _Buffers:
    """Memory for one job, of a number of keys."""

    def __init__(self, size: int, *, weighted: bool) -> None:
        # Pages that are never written never become resident, and rows are fewer than keys as a rule.
        self.keys = np.empty(size, np.uint64)
        self.rows, self.starts = np.empty(size, np.uint32), np.empty(size + 1, np.uint32)
        self.weights = np.empty(size if weighted else 0)


@dataclass
class Sorter:
    """Sorts runs, as many at a time as there is memory for.

    `workers` threads of `pool` sort, None for the caller's own. All have `space` keys in memory at once, two
    for each thread or more. `ranks` has the row of each id that occurs, `NO_RANKS` if
    keys are of rows. `how` is one of `DUPLICATES`, None if edges have no weights.
    """

    pool: Executor | None
    workers: int
    space: int
    ranks: IdRanks
    counter: EdgeCounter
    how: str | None = None

    def __post_init__(self) -> None:
        slots = self.workers + 1 if self.pool is not None else 1
        self._size = max(3, self.space // slots)  # what partitioning a run needs
        self._free = [_Buffers(self._size, weighted=self.how is not None) for _ in range(slots)]

    def pieces(self, runs: Iterable[KeyRun]) -> Iterator[Rows]:
        """Yield all edges of ascending runs in ascending order and without duplicates.

        Each piece is overwritten when the next is asked for.
        """
        waiting: deque[tuple[Future[Rows], _Buffers]] = deque()
        for job in self._jobs(runs):
            fits = sum(run.count for run in job) <= self._size
            alone = self.pool is None or not fits
            while waiting and (alone or not self._free):
                yield from self._ended(waiting)
            if self.pool is not None and fits:
                buffers = self._free.pop()
                waiting.append((self.pool.submit(self._sorted, job, buffers), buffers))
            elif fits:
                yield self._sorted(job, self._free[0])
            else:
                yield from self._sorted_in_pieces(job[0], self._free[0])
        while waiting:
            yield from self._ended(waiting)

    def _ended(self, waiting: deque[tuple[Future[Rows], _Buffers]]) -> Iterator[Rows]:
        """Yield what the first thread has sorted; its buffers are free again once that was used."""
        buffers = waiting[0][1]
        # As in `prefetch`.
        yield waiting.popleft()[0].result()
        self._free.append(buffers)

    def _jobs(self, runs: Iterable[KeyRun]) -> Iterator[list[KeyRun]]:
        """Combine neighbouring runs that fit in a buffer together; one that does not fit comes alone."""
        job: list[KeyRun] = []
        count = 0
        for run in runs:
            if job and count + run.count > self._size:
                yield job
                job, count = [], 0
            job.append(run)
            count += run.count
        if job:
            yield job

    def _sorted(self, runs: list[KeyRun], buffers: _Buffers) -> Rows:
        """Sort runs that fit in memory together."""
        filled = 0
        for run in runs:
            keys = buffers.keys[filled : filled + run.count]
            if self.how is not None:
                weights = buffers.weights[filled : filled + run.count]
                filled += sum(some.size for some, _, _ in weighted_pieces(run, keys, weights, self.how))
                continue
            filled += sum(some.size for some, _ in run.records(keys))
            # Each on its own: small sorts stay in the caches.
            keys.sort()
        edges = self._rows(buffers.keys[:filled], sum(run.count for run in runs), buffers)
        return edges if self.how is None else edges._replace(weights=buffers.weights[:filled])

    def _sorted_in_pieces(self, run: KeyRun, buffers: _Buffers) -> Iterator[Rows]:
        """Sort a run that does not fit."""
        if self.how is None:
            for keys, count in sorted_pieces(run, buffers.keys):
                yield self._rows(keys, count, buffers)
            return
        for keys, weights, count in weighted_pieces(run, buffers.keys, buffers.weights, self.how):
            yield self._rows(keys, count, buffers)._replace(weights=weights)

    def _rows(self, keys: NDArray[np.uint64], count: int, buffers: _Buffers) -> Rows:
        return self.counter.to_rows(keys, count, self.ranks, buffers.rows, buffers.starts)


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
        self.next_row = 0
        self._columns, self._rows, self._counts = (np.empty(size, np.uint32) for _ in range(3))
        self._weights = np.empty(size) if weighted else None
        self.begin(0)

    def begin(self, first_row: int) -> None:
        """Drop all edges, and begin with another row."""
        self.first_row = first_row
        self._edges = self._parts = 0

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


@dataclass
class TileWriter:
    """Cuts a stream of sorted rows into tiles, encodes them and gives them to `writer` in their order.

    The first tile has the given `number` and begins with `first_row`. Threads of `pool` encode and call
    `writer`, for at most `limit` tiles at a time; None for the caller's own. There is memory for
    `planned_rows` rows of a tile; one of more rows needs to fit in what `memory` the process may hold.
    `local_edges` counts edges whose column is among the owned rows.
    """

    writer: TileTarget
    pool: Executor | None
    limit: int
    nodes: int
    tile_edges: int
    planned_rows: int
    memory: int
    number: int = 0
    first_row: int = 0
    weighted: bool = field(default=False, kw_only=True)
    local_edges: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        # Fresh memory costs more than much of what is done with it here.
        self._free: list[Tile] = []
        self._waiting: deque[Future[_Written]] = deque()
        self._tile = Tile(self.tile_edges, weighted=self.weighted)
        self._tile.begin(self.first_row)

    def add(self, edges: Rows) -> None:
        """Add edges, which come after all before."""
        start = self._tile.fill(edges, 0)
        while start < edges.columns.size:
            row = int(np.searchsorted(edges.starts, start, side="right")) - 1
            self._close_tile(int(edges.rows[row]))
            start = self._tile.fill(edges, start)

    def finish(self) -> None:
        """Write the last tile, and wait for all; a graph without edges has one empty tile."""
        self._close_tile(self.nodes)
        self._enter(0)

    def _close_tile(self, next_row: int) -> None:
        """Have a tile encoded and written, and begin the next with `next_row`."""
        tile, rows = self._tile, next_row - self._tile.first_row + 1
        tile.next_row = next_row
        if rows > self.planned_rows:
            self._enter(0)
            needed = resident() + WRITER_BYTES_PER_ROW * rows
            require(needed, self.memory, f"A tile of {format_count(rows)} rows")
        self._enter(max(0, self.limit - 1))
        if self.pool is None:
            written: Future[_Written] = Future()
            written.set_result(self._write(self.number, tile))
        else:
            written = self.pool.submit(self._write, self.number, tile)
        self._waiting.append(written)
        self.number += 1
        if self.pool is None:
            self._enter(0)
        self._tile = self._free.pop() if self._free else Tile(self.tile_edges, weighted=self.weighted)
        self._tile.begin(next_row)

    def _write(self, number: int, tile: Tile) -> _Written:
        lengths, weights = tile.lengths(), tile.weights
        coded = encode(tile.columns, lengths)
        self.writer.put_tile(number, coded, None if weights is None else encode_segments(weights))
        return tile, coded.size, lengths, tile.local_edges()

    def _enter(self, pending: int) -> None:
        """Enter tiles in their order, until no more than `pending` are under way."""
        while len(self._waiting) > pending:
            tile, size, lengths, local_edges = self._waiting.popleft().result()
            self.local_edges += local_edges
            self.writer.enter_tile(size, tile.columns.size, lengths)
            self._free.append(tile)
