"""Runs of keys become sorted rows without duplicate edges, and are counted; self-loops are kept."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import uint8, uint32, uint64

from oocpr.ingest.spill.files import SpillFile
from oocpr.ingest.spill.id_bitmap import Ranks, rank_of
from oocpr.ingest.spill.intrinsics import add_count
from oocpr.ingest.spill.partition import partition_run
from oocpr.jit import entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.spill.keys import KeyRun

    Sort = Callable[[NDArray[np.uint64]], None]

_CHUNK = 512
"""Keys that go through each step of a pass before the next step: few enough to stay in the nearest cache."""


def sorted_pieces(
    run: KeyRun, space: NDArray[np.uint64], sort: Sort = np.ndarray.sort
) -> Iterator[tuple[NDArray[np.uint64], int]]:
    """Yield the keys of `run` in ascending order, piece by piece, each with the number of keys it stands for.

    Pieces lie in `space`, two keys or more, and have repeats unless one is a single key; a run of more keys
    than `space` holds is partitioned first. `sort` sorts in place.
    """
    if run.count <= space.size:
        for keys in run.blocks(space):
            sort(keys)
            yield keys, run.count
    elif run.high - run.low == 1:
        space[0] = run.low
        yield space[:1], run.count
    else:
        with SpillFile(run.file.folder) as file:
            for bucket in partition_run(run, file, space):
                yield from sorted_pieces(bucket, space, sort)


@entry()
def unique_sorted(keys):
    """Keep each of ascending keys once, in place; returns how many are left.

    Examples
    --------
    >>> keys = np.array([1, 1, 5], np.uint64)
    >>> int(unique_sorted(keys)), keys[:2].tolist()
    (2, [1, 5])
    """
    if keys.size == 0:
        return 0
    kept = 1
    last = keys[0]
    for i in range(1, keys.size):
        key = keys[i]
        keys[kept] = key
        kept += key != last
        last = key
    return kept


@entry()
def _into_rows(keys, ranks, low, high, columns, rows, starts):
    """Split ascending keys, each once; returns how many columns, rows and self-loops there are.

    `columns` may be the memory of `keys`. A column is counted in `low`, and in `high` when that is full.
    """
    relabelled = ranks.before.size > 0
    edges = uint64(0)
    row = uint64(0)
    loops = uint64(0)
    last = ~uint64(0)
    last_row = ~uint64(0)
    if keys.size:
        last = ~keys[0]
        last_row = last >> uint64(32)
    for begin in range(uint64(0), uint64(keys.size), uint64(_CHUNK)):
        first = edges
        for i in range(begin, min(begin + uint64(_CHUNK), uint64(keys.size))):
            key = keys[i]
            keys[edges] = key
            if key >> uint64(32) != last_row:
                last_row = key >> uint64(32)
                rows[row] = rank_of(ranks, last_row) if relabelled else last_row
                starts[row] = edges
                row += uint64(1)
            # Ranks keep the order, so equal ids have equal ones.
            loops += uint64(key != last and key & uint64(0xFFFFFFFF) == last_row)
            edges += uint64(key != last)
            last = key
        if relabelled:
            for i in range(first, edges):
                columns[i] = rank_of(ranks, keys[i] & uint64(0xFFFFFFFF))
        else:
            for i in range(first, edges):
                columns[i] = keys[i] & uint64(0xFFFFFFFF)
        for i in range(first, edges):
            column = uint64(columns[i])
            count = uint8(low[column] + uint8(1))
            low[column] = count
            if count == uint8(0):
                add_count(high, column, uint32(256))
    starts[row] = edges
    return edges, row, loops


@entry()
def _uncount(columns, rows, starts, high):
    """Take edges from the counts of their columns, modulo 2^32; returns how many are self-loops."""
    loops = uint64(0)
    for row in range(uint64(rows.size)):
        for i in range(uint64(starts[row]), uint64(starts[row + uint64(1)])):
            add_count(high, uint64(columns[i]), uint32(0xFFFFFFFF))
            loops += uint64(columns[i] == rows[row])
    return loops


class Rows(NamedTuple):
    """Neighbouring edges in their order, without repeats.

    `columns`, uint32, and `weights`, float64 or None, are of edges; `rows`, uint32, are those that have any,
    ascending: the first may have had some before. Row k has the edges from ``starts[k]`` to below
    ``starts[k + 1]``, uint32, shape (rows + 1,). `given` edges of the source became these.
    """

    columns: NDArray[np.uint32]
    rows: NDArray[np.uint32]
    starts: NDArray[np.uint32]
    given: int
    weights: NDArray[np.float64] | None = None


NO_RANKS = Ranks(np.empty(0, np.uint64), np.empty(0, np.uint32))


class EdgeCounter:
    """Counts out-degrees and repeats while it splits sorted keys into rows; for any number of threads.

    `duplicates` is the number of edges dropped because they repeat another, `self_loops` of those kept that
    run from a node to itself.
    """

    def __init__(self, nodes: int) -> None:
        self.duplicates = 0
        self.self_loops = 0
        self._nodes = nodes
        self._high = np.zeros(nodes, np.uint32)
        self._lows: deque[NDArray[np.uint8]] = deque()
        self._lock = threading.Lock()

    def to_rows(
        self,
        keys: NDArray[np.uint64],
        count: int,
        ranks: Ranks,
        rows: NDArray[np.uint32],
        starts: NDArray[np.uint32],
    ) -> Rows:
        """Split ascending keys into rows, in their place; they stand for `count` edges.

        `ranks` has the row of each id, `NO_RANKS` if keys are of rows. `rows` and `starts` are memory for the
        result, uint32, shapes (k,) and (k + 1,).
        """
        low = self._low()
        edges, found, loops = _into_rows(keys, ranks, low, self._high, keys.view(np.uint32), rows, starts)
        self._lows.append(low)
        with self._lock:
            self.duplicates += count - edges
            self.self_loops += int(loops)
        return Rows(keys.view(np.uint32)[:edges], rows[:found], starts[: found + 1], count)

    def uncount(self, edges: Rows) -> None:
        """Uncount edges that were counted twice."""
        loops = _uncount(edges.columns, edges.rows, edges.starts, self._high)
        with self._lock:
            self.self_loops -= int(loops)

    def out_degree(self) -> NDArray[np.uint32]:
        """Edges kept that leave each node: uint32, shape (nodes,). Nothing may be counted from now on."""
        while self._lows:
            self._high += self._lows.pop()
        return self._high

    def _low(self) -> NDArray[np.uint8]:
        with suppress(IndexError):
            return self._lows.pop()
        low = np.empty(self._nodes, np.uint8)
        low[:] = 0  # memory from `zeros` has small pages, which take longer to find
        return low
