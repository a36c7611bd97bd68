"""New edges merged with stored ones, which are in the same order."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from oocpr.ingest.rows import EdgeCounter, Rows, check_finite
from oocpr.ingest.spill.partition import NO_WEIGHTS
from oocpr.jit import entry, inner


@inner()
def _copy(source, first, end, out, at):
    for i in range(uint64(end - first)):
        out[at + i] = source[first + i]
    return at + end - first


@inner()
def _copy_rows(i, end, old, old_weights, edges, found, columns, weights, rows, starts):
    """Copy whole rows i to end - 1; returns the numbers of edges and of rows so far."""
    first, stop = uint64(old.starts[i]), uint64(old.starts[end])
    for k in range(i, end):
        rows[found] = old.rows[k]
        starts[found] = uint32(edges + uint64(old.starts[k]) - first)
        found += uint64(1)
    if weights.size:
        _copy(old_weights, first, stop, weights, edges)
    return _copy(old.columns, first, stop, columns, edges), found


@entry()
def _merge(old, new, old_weights, new_weights, greatest, columns, weights, rows, starts, both):
    """Merge rows; returns the numbers of edges, of rows, and of edges on both sides, whose keys go to `both`.

    Of weights, empty if there are none, an edge on both sides gets the greatest or the sum.
    """
    weighted = weights.size > 0
    edges, found, twice = uint64(0), uint64(0), uint64(0)
    i = uint64(0)
    size = uint64(old.rows.size)
    for j in range(uint64(new.rows.size)):
        row = new.rows[j]
        end = i
        while end < size and old.rows[end] < row:
            end += uint64(1)
        edges, found = _copy_rows(i, end, old, old_weights, edges, found, columns, weights, rows, starts)
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
                if weighted:
                    one, other = old_weights[x], new_weights[y]
                    together = max(one, other) if greatest else one + other
                    weights[edges] = together if a == b else one if a < b else other
                edges += uint64(1)
                both[twice] = uint64(row) << uint64(32) | uint64(b)
                twice += uint64(a == b)
                x += uint64(a <= b)
                y += uint64(b <= a)
            if weighted:
                _copy(old_weights, x, x_end, weights, edges)
            edges = _copy(old.columns, x, x_end, columns, edges)
        if weighted:
            _copy(new_weights, y, y_end, weights, edges)
        edges = _copy(new.columns, y, y_end, columns, edges)
    edges, found = _copy_rows(i, size, old, old_weights, edges, found, columns, weights, rows, starts)
    starts[found] = uint32(edges)
    return edges, found, twice


def keys_of_rows(edges: Rows) -> NDArray[np.uint64]:
    """Give the keys of edges, uint64."""
    keys = np.repeat(edges.rows.astype(np.uint64) << np.uint64(32), np.diff(edges.starts))
    keys |= edges.columns
    return keys


def rows_of_keys(keys: NDArray[np.uint64]) -> Rows:
    """Take ascending unique keys apart."""
    rows = (keys >> np.uint64(32)).astype(np.uint32)
    firsts = np.flatnonzero(np.diff(rows, prepend=~rows[:1]))
    starts = np.append(firsts, rows.size).astype(np.uint32)
    return Rows(keys.astype(np.uint32), rows[firsts], starts, keys.size)


def merge(old: Rows, new: Rows, how: str | None) -> tuple[Rows, NDArray[np.uint64]]:
    """Merge edges, unique on each side; returns all, and the ascending keys of those on both sides, uint64.

    `how` says what the weight of an edge on both sides becomes, see `duplicate_policy`; None without weights.
    """
    columns = np.empty(old.columns.size + new.columns.size, np.uint32)
    rows = np.empty(old.rows.size + new.rows.size, np.uint32)
    starts = np.empty(rows.size + 1, np.uint32)
    both = np.empty(min(old.columns.size, new.columns.size) + 1, np.uint64)
    bare = (side._replace(weights=None) for side in (old, new))
    given = (NO_WEIGHTS if how is None or side.weights is None else side.weights for side in (old, new))
    weights = np.empty(columns.size if how is not None else 0)
    edges, found, twice = _merge(*bare, *given, how == "merge", columns, weights, rows, starts, both)
    sums = None if how is None else check_finite(weights[:edges])
    return Rows(columns[:edges], rows[:found], starts[: found + 1], int(edges), sums), both[:twice]


class NewEdges:
    """New edges in their order; the counter, which has counted them, uncounts those that are stored already.

    `how` is that of `merge`.
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
        return self._held.first_key

    def drop_stored(self, old: Rows) -> None:
        """Drop edges that are among `old`, up to the first that is not."""
        if not old.columns.size:
            return
        known, last = keys_of_rows(old), old.last_key
        while (nearest := self.next) is not None and nearest <= last and self._held is not None:
            held = self._held
            keys = keys_of_rows(held.part(0, held.place_after(last)))
            found = known[np.searchsorted(known, keys)] == keys
            count = keys.size if found.all() else int(found.argmin())
            self._counter.uncount(held.part(0, count))
            self._held = held.part(count, held.columns.size)
            if count < keys.size:
                break

    def merged(self, old: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the `old` edges and all that are left in one order, each once."""
        for edges in old:
            if not edges.columns.size:
                continue
            last = edges.last_key
            while (nearest := self.next) is not None and nearest <= last and self._held is not None:
                held, place = self._held, self._held.place_after(last)
                edges, both = merge(edges, held.part(0, place), self._how)
                self._held = held.part(place, held.columns.size)
                if both.size:
                    self._counter.uncount(rows_of_keys(both))
            yield edges
        while self.next is not None and self._held is not None:
            yield self._held
            self._held = None
