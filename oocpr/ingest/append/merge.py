"""Stored edges and new ones, each in the order of their rows, become one sequence without duplicates."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import uint32, uint64

from oocpr.ingest.resume.tiles import place_after, slice_rows
from oocpr.ingest.sort.rows import Rows
from oocpr.ingest.sort.weights import check_finite
from oocpr.jit import entry, inner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.sort.rows import EdgeCounter


@entry()
def _into_keys(columns, rows, starts, keys):
    for row in range(uint64(rows.size)):
        high = uint64(rows[row]) << uint64(32)
        for i in range(uint64(starts[row]), uint64(starts[row + uint64(1)])):
            keys[i] = high | uint64(columns[i])


@entry()
def _into_rows(keys, columns, rows, starts):
    """Take ascending keys apart; returns the number of rows."""
    found = uint64(0)
    last = ~uint64(0)
    for i in range(uint64(keys.size)):
        row = keys[i] >> uint64(32)
        columns[i] = uint32(keys[i] & uint64(0xFFFFFFFF))
        if row != last:
            rows[found] = uint32(row)
            starts[found] = uint32(i)
            found += uint64(1)
            last = row
    starts[found] = uint32(keys.size)
    return found


@inner()
def _copy(source, first, end, out, at):
    for i in range(uint64(end - first)):
        out[at + i] = source[first + i]
    return at + end - first


@inner()
def _copy_rows(i, end, old, edges, found, columns, rows, starts):
    """Copy whole rows i to end - 1; returns the numbers of edges and of rows so far."""
    first = uint64(old.starts[i])
    for k in range(i, end):
        rows[found] = old.rows[k]
        starts[found] = uint32(edges + uint64(old.starts[k]) - first)
        found += uint64(1)
    return _copy(old.columns, first, uint64(old.starts[end]), columns, edges), found


@entry()
def _merge(old, new, columns, rows, starts, both):
    """Merge rows; returns how many edges and rows there are, and edges on both sides, whose keys are kept."""
    edges, found, twice = uint64(0), uint64(0), uint64(0)
    i = uint64(0)
    size = uint64(old.rows.size)
    for j in range(uint64(new.rows.size)):
        row = new.rows[j]
        end = i
        while end < size and old.rows[end] < row:
            end += uint64(1)
        edges, found = _copy_rows(i, end, old, edges, found, columns, rows, starts)
        i = end
        rows[found] = row
        starts[found] = uint32(edges)
        found += uint64(1)
        y, y_end = uint64(new.starts[j]), uint64(new.starts[j + uint64(1)])
        if i < size and old.rows[i] == row:
            x, x_end = uint64(old.starts[i]), uint64(old.starts[i + uint64(1)])
            i += uint64(1)
            while x < x_end and y < y_end:
                a, b = old.columns[x], new.columns[y]
                columns[edges] = min(a, b)
                edges += uint64(1)
                both[twice] = uint64(row) << uint64(32) | uint64(b)
                twice += uint64(a == b)
                x += uint64(a <= b)
                y += uint64(b <= a)
            edges = _copy(old.columns, x, x_end, columns, edges)
        edges = _copy(new.columns, y, y_end, columns, edges)
    edges, found = _copy_rows(i, size, old, edges, found, columns, rows, starts)
    starts[found] = uint32(edges)
    return edges, found, twice


@entry()
def _merge_weights(old, new, old_weights, new_weights, greatest, weights):
    """Merge weights by their ascending keys; of a key on both sides, keep the greatest or the sum."""
    i, j, k = uint64(0), uint64(0), uint64(0)
    while i < uint64(old.size) or j < uint64(new.size):
        if j == uint64(new.size) or (i < uint64(old.size) and old[i] < new[j]):
            weights[k] = old_weights[i]
            i += uint64(1)
        elif i == uint64(old.size) or new[j] < old[i]:
            weights[k] = new_weights[j]
            j += uint64(1)
        else:
            both = old_weights[i] + new_weights[j]
            weights[k] = max(old_weights[i], new_weights[j]) if greatest else both
            i += uint64(1)
            j += uint64(1)
        k += uint64(1)


def keys_of_rows(edges: Rows) -> NDArray[np.uint64]:
    """Give the keys of edges: uint64, shape (edges,)."""
    keys = np.empty(edges.columns.size, np.uint64)
    _into_keys(edges.columns, edges.rows, edges.starts, keys)
    return keys


def rows_of_keys(keys: NDArray[np.uint64]) -> Rows:
    """Take ascending unique keys apart.

    Examples
    --------
    >>> rows_of_keys(np.array([1, 2, 5 << 32 | 2], np.uint64)).starts
    array([0, 2, 3], dtype=uint32)
    """
    columns, rows = np.empty(keys.size, np.uint32), np.empty(keys.size, np.uint32)
    starts = np.empty(keys.size + 1, np.uint32)
    found = int(_into_rows(keys, columns, rows, starts))
    return Rows(columns, rows[:found], starts[: found + 1], keys.size)


def merged(old: Rows, new: Rows, how: str | None = None) -> tuple[Rows, NDArray[np.uint64]]:
    """Merge edges, unique on each side; returns all, and the ascending keys of those on both sides, uint64.

    `how` says what the weight of an edge on both sides becomes, see `duplicate_policy`; None without weights.

    Examples
    --------
    >>> edges, both = merged(*(rows_of_keys(np.array(keys, np.uint64)) for keys in ([1, 4], [2, 4, 1 << 32])))
    >>> edges.columns.tolist(), edges.rows.tolist(), edges.starts.tolist(), both.tolist()
    ([1, 2, 4, 0], [0, 1], [0, 3, 4], [4])
    """
    columns = np.empty(old.columns.size + new.columns.size, np.uint32)
    rows = np.empty(old.rows.size + new.rows.size, np.uint32)
    starts = np.empty(rows.size + 1, np.uint32)
    both = np.empty(min(old.columns.size, new.columns.size) + 1, np.uint64)
    bare = (edges._replace(weights=None) for edges in (old, new))
    edges, found, twice = _merge(*bare, columns, rows, starts, both)
    weights = None
    if how is not None:
        assert old.weights is not None
        assert new.weights is not None
        weights = np.empty(int(edges))
        keys = keys_of_rows(old), keys_of_rows(new)
        _merge_weights(*keys, old.weights, new.weights, how == "merge", weights)
        check_finite(weights)
    return Rows(columns[:edges], rows[:found], starts[: found + 1], int(edges), weights), both[:twice]


def last_key(edges: Rows) -> int:
    """Key of the last of some edges."""
    return int(edges.rows[-1]) << 32 | int(edges.columns[-1])


class NewEdges:
    """New edges in their order, of which some turn out to be stored already.

    The counter has counted all of them; those that are stored already are taken back. `how` is that of
    `merged`.

    Examples
    --------
    >>> from oocpr.ingest.sort.rows import EdgeCounter
    >>> one, other = (rows_of_keys(np.array(keys, np.uint64)) for keys in ([1, 7], [1, 5]))
    >>> edges = NewEdges(iter([one]), EdgeCounter(8))
    >>> edges.drop_stored(other)
    >>> edges.next
    7
    """

    def __init__(self, pieces: Iterable[Rows], counter: EdgeCounter, how: str | None = None) -> None:
        self._how = how
        self._pieces = iter(pieces)
        self._counter = counter
        self._held: Rows | None = None

    @property
    def next(self) -> int | None:
        """Key of the next edge; None at the end."""
        while self._held is None or not self._held.columns.size:
            self._held = next(self._pieces, None)
            if self._held is None:
                return None
        return int(self._held.rows[0]) << 32 | int(self._held.columns[0])

    def drop_stored(self, old: Rows) -> None:
        """Drop edges that are among `old`, up to the first that is not."""
        if not old.columns.size:
            return
        known = keys_of_rows(old)
        while (nearest := self.next) is not None and nearest <= int(known[-1]):
            here = self._upto(int(known[-1]))
            keys = keys_of_rows(here)
            found = known[np.searchsorted(known, keys)] == keys
            count = keys.size if found.all() else int(found.argmin())
            self._counter.uncount(slice_rows(here, 0, count))
            if count < keys.size:
                self._put_back(slice_rows(here, count, keys.size))
                break

    def merged(self, old: Iterable[Rows]) -> Iterator[Rows]:
        """Yield all that are left and `old` ones in one order, each once."""
        for edges in old:
            if not edges.columns.size:
                continue
            last = last_key(edges)
            while (nearest := self.next) is not None and nearest <= last:
                edges, both = merged(edges, self._upto(last), self._how)
                if both.size:
                    self._counter.uncount(rows_of_keys(both))
            yield edges
        while self.next is not None and self._held is not None:
            yield self._held
            self._held = None

    def _upto(self, key: int) -> Rows:
        """Take those of the edges at hand that are not after `key`."""
        assert self._held is not None
        held, place = self._held, place_after(self._held, key)
        self._held = slice_rows(held, place, held.columns.size)
        return slice_rows(held, 0, place)

    def _put_back(self, edges: Rows) -> None:
        """Take edges to hand that come before those at hand, which came from the same piece."""
        assert self._held is not None
        self._held = merged(edges, self._held)[0]
