"""Runs of keys become sorted rows without duplicate edges, and are counted; self-loops stay.

A duplicate edge with weights gets the greatest one, their sum, or how often it comes. Weights are taken in
ascending order, so a sum depends on nothing but the weights. NumPy sorts one array, or returns places that
take as much memory again, which is fine for a few keys with weights. For more, this is quicksort with Hoare's
partition (C. A. R. Hoare, "Quicksort", The Computer Journal 5, 1962), which copes with equal entries; pivots
are medians of three entries at places that no order of the entries foresees.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import int64, uint8, uint32, uint64
from numpy.typing import NDArray

from oocpr.errors import InputError, UsageError
from oocpr.ingest.spill.files import SpillFile, require_disk
from oocpr.ingest.spill.id_bitmap import IdRanks, rank_of
from oocpr.ingest.spill.partition import WEIGHT_BYTES, KeyRun, add_count, partition_run
from oocpr.jit import BORROWING, entry, inner

_CHUNK = 512
"""Keys that go through each step of a pass before the next step: few enough to stay in the nearest cache."""


def sorted_pieces(run: KeyRun, space: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], int]]:
    """Yield the keys of `run` in ascending order, piece by piece, each with the number of keys it stands for.

    Pieces lie in `space`, two keys or more, and have repeats unless one is a single key; a run of more keys
    than `space` holds is partitioned first.
    """
    if run.count <= space.size:
        for keys, _ in run.records(space):
            keys.sort()
            yield keys, run.count
    elif run.high - run.low == 1:
        space[0] = run.low
        yield space[:1], run.count
    else:
        with SpillFile(run.file.folder) as file:
            for bucket in partition_run(run, file, space):
                yield from sorted_pieces(bucket, space)


@entry()
def unique_sorted(keys):
    """Move the different ones of ascending keys to the front; returns how many there are."""
    if keys.size == 0:
        return 0
    found = 1
    last = keys[0]
    for i in range(1, keys.size):
        key = keys[i]
        keys[found] = key
        found += key != last
        last = key
    return found


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
            # IdRanks keep the order, so equal ids have equal ones.
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
    """Neighbouring edges in their order, without duplicates.

    `columns`, uint32, and `weights`, float64 or None, are of edges; `rows`, uint32, are those that have any,
    ascending: the first may have had some before. Row k has the edges from ``starts[k]`` to below ``starts[k
    + 1]``, uint32, shape (rows + 1,). `given` edges of the source became these.
    """

    columns: NDArray[np.uint32]
    rows: NDArray[np.uint32]
    starts: NDArray[np.uint32]
    given: int
    weights: NDArray[np.float64] | None = None

    def place_after(self, key: int) -> int:
        """Find the first edge after the one of a key, by its number."""
        row, column = key >> 32, key & 0xFFFFFFFF
        k = int(np.searchsorted(self.rows, np.uint32(row)))
        if k == self.rows.size:
            return self.columns.size
        start, end = int(self.starts[k]), int(self.starts[k + 1])
        if int(self.rows[k]) != row:
            return start
        return start + int(np.searchsorted(self.columns[start:end], np.uint32(column), side="right"))

    def part(self, start: int, stop: int) -> Rows:
        """Give edges `start` to `stop` - 1, views."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        end = int(np.searchsorted(self.starts, stop, side="left"))
        bounds = self.starts[first : end + 1].clip(start, stop) - np.uint32(start)
        weights = None if self.weights is None else self.weights[start:stop]
        return self._replace(
            columns=self.columns[start:stop], rows=self.rows[first:end], starts=bounds, weights=weights
        )

    @property
    def first_key(self) -> int:
        """Key of the first edge."""
        return int(self.rows[0]) << 32 | int(self.columns[0])

    @property
    def last_key(self) -> int:
        """Key of the last edge."""
        return int(self.rows[-1]) << 32 | int(self.columns[-1])


NO_RANKS = IdRanks(np.empty(0, np.uint64), np.empty(0, np.uint32))


class EdgeCounter:
    """Counts out-degrees and `self_loops` while it splits sorted keys into rows; for any threads.

    `sums` are the weights that leave each node, float64, shape (nodes,); empty without weights.
    """

    def __init__(self, nodes: int, *, weighted: bool = False) -> None:
        self.self_loops = 0
        self._nodes = nodes
        self._high = np.zeros(nodes, np.uint32)
        self.sums = np.zeros(nodes if weighted else 0)
        self._lows: deque[NDArray[np.uint8]] = deque()
        self._lock = threading.Lock()

    def to_rows(
        self,
        keys: NDArray[np.uint64],
        count: int,
        ranks: IdRanks,
        rows: NDArray[np.uint32],
        starts: NDArray[np.uint32],
    ) -> Rows:
        """Split ascending keys into rows, in their place; they stand for `count` edges.

        `ranks` has the row of each id, `NO_RANKS` if keys are of rows. `rows` and `starts` are memory for the
        result, uint32, shapes (k,) and (k + 1,).
        """
        try:
            low = self._lows.pop()
        except IndexError:
            low = np.full(self._nodes, 0, np.uint8)  # memory from `zeros` has small pages, which take longer
        edges, found, loops = _into_rows(keys, ranks, low, self._high, keys.view(np.uint32), rows, starts)
        self._lows.append(low)
        with self._lock:
            self.self_loops += int(loops)
        return Rows(keys.view(np.uint32)[:edges], rows[:found], starts[: found + 1], count)

    def uncount(self, edges: Rows) -> None:
        """Uncount edges that were counted twice."""
        loops = _uncount(edges.columns, edges.rows, edges.starts, self._high)
        with self._lock:
            self.self_loops -= int(loops)

    def out_degree(self) -> NDArray[np.uint32]:
        """Edges that leave each node: uint32, shape (nodes,). Nothing may be counted from now on."""
        while self._lows:
            self._high += self._lows.pop()
        return self._high

    def totals(self, first: int, stop: int) -> tuple[NDArray[np.uint32], int]:
        """Give the out-degrees of nodes `first` to `stop` - 1, and the self-loops of all edges so far."""
        return self.out_degree()[first:stop], self.self_loops

    def add_weights(self, columns: NDArray[np.uint32], weights: NDArray[np.float64] | None) -> None:
        """Add up the weights of edges that come after all before, if they have any, by their columns."""
        if weights is not None:
            _add_out(columns, weights, self.sums)

    def out_weight(self) -> NDArray[np.float64] | None:
        """Weights that leave each node, None without weights; InputError if float64 does not hold a sum."""
        if not np.isfinite(self.sums).all():
            raise InputError(
                "The weights of the edges that leave a node add up to more than float64 holds.",
                "Give smaller weights.",
            )
        return self.sums if self.sums.size else None


DUPLICATES = ("merge", "sum", "count")
"""What becomes of a duplicate edge: it gets its greatest weight, the sum of them, or how often it comes."""

_ABOVE = int(np.array(np.inf).view(np.uint64))
"""What the bits of all weights are below."""


def duplicate_policy(duplicates: str | None, *, weighted: bool) -> str | None:
    """Say how edges get their weights, one of `DUPLICATES`; None if they have none.

    `duplicates` is what was asked for; None adds weights, as pandas, SciPy and NetworkX do. Raises UsageError
    if it is none of these, or does not go with the source.
    """
    if duplicates is None:
        duplicates = "sum" if weighted else "merge"
    if duplicates not in DUPLICATES:
        raise UsageError(
            f"duplicates is {duplicates!r}, which duplicate edges cannot become.",
            f"Choose one of {', '.join(DUPLICATES)}.",
        )
    if duplicates == "count" and weighted:
        raise UsageError(
            "Duplicate edges are to be counted, and weights are to be read.",
            'Leave the weight out, or give duplicates="sum" or duplicates="merge".',
        )
    if duplicates == "sum" and not weighted:
        raise UsageError(
            "Weights of duplicate edges are to be added, and no weights are read.",
            'Say where the weights are, or give duplicates="merge" or duplicates="count".',
        )
    return duplicates if weighted or duplicates == "count" else None


_COMBINED = {"merge": 0, "sum": 1, "count": 2}


@entry()
def _combine(keys, weights, how):
    """Keep each of ascending keys once, with its last, which is its greatest weight, their sum or number."""
    found = 0
    for i in range(keys.size):
        key = keys[i]
        weight = 1.0 if how == 2 else weights[i]
        if i and keys[found - 1] == key:
            weights[found - 1] = weight if how == 0 else weights[found - 1] + weight
        else:
            keys[found], weights[found] = key, weight
            found += 1
    return found


@entry()
def _add_repeated(total, values, times):
    """Add numbers one after the other, each so many times."""
    for i in range(values.size):
        for _ in range(times):
            total += values[i]
    return total


@entry()
def _add_out(columns, weights, sums):
    for i in range(columns.size):
        sums[columns[i]] += weights[i]


def weighted_pieces(
    run: KeyRun, keys: NDArray[np.uint64], weights: NDArray[np.float64], how: str
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float64], int]]:
    """Yield the keys of `run` in ascending order, each once, with its weight, piece by piece.

    With each piece comes the number of keys that it stands for. `keys` and `weights` are memory for three
    keys or more; a run that has more is partitioned first. It has weights unless these are counted. Raises
    InputError for a sum that float64 does not hold.
    """
    if how == "count":
        for sorted_keys, count in sorted_pieces(run, keys):
            found = _combine(sorted_keys, weights, _COMBINED[how])
            if sorted_keys.size < count:
                weights[0] = count
            yield sorted_keys[:found], weights[:found], count
    elif run.count <= keys.size:
        for some, values in run.records(keys, weights):
            sort_pairs(some, values.view(np.uint64))
            found = _combine(some, values, _COMBINED[how])
            yield some[:found], check_finite(values[:found]), run.count
    elif run.high - run.low == 1:
        weight = _weight_of_single(run, keys, weights, how)
        keys[0], weights[0] = run.low, weight
        yield keys[:1], check_finite(weights[:1]), run.count
    else:
        with SpillFile(run.file.folder) as file:
            for bucket in partition_run(run, file, keys, weights):
                yield from weighted_pieces(bucket, keys, weights, how)


def _weight_of_single(run: KeyRun, keys: NDArray[np.uint64], buffer: NDArray[np.float64], how: str) -> float:
    """Combine the weights of the only edge of a run, which comes more often than there is memory for."""
    if how == "merge":
        return max(float(weights.max()) for _, weights in run.records(keys, buffer))
    require_disk(run.file.folder, run.count * WEIGHT_BYTES)
    total, done = 0.0, 0
    with SpillFile(run.file.folder) as file:
        for _, weights in run.records(keys, buffer):
            file.write(done * WEIGHT_BYTES, weights)
            done += weights.size
        # Their bits, as keys, are in the order of the weights.
        for bits, count in sorted_pieces(KeyRun.of_words(file, 0, done, 0, _ABOVE), keys):
            times = count if bits.size < count else 1
            total = _add_repeated(total, bits.view(np.float64), times)
    return total


def check_finite(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give weights back; InputError if one of them has grown beyond what float64 holds."""
    if not np.isfinite(weights).all():
        raise InputError(
            "The weights of a duplicate edge add up to more than float64 holds.",
            "Give smaller weights, or choose merge for duplicates.",
        )
    return weights


_FEW = 24
"""Entries that are sorted by insertion."""

_ARGSORTED = 1 << 16
"""Entries that are sorted by their places: these and the entries, moved, take 1 MiB."""

_DEPTH = 64
"""Parts that wait, each at most half of what the one before it was cut from."""


@inner(**BORROWING)
def _before(keys, words, i, key, word):
    return keys[i] < key or (keys[i] == key and words[i] < word)


@inner(**BORROWING)
def _behind(keys, words, i, key, word):
    return keys[i] > key or (keys[i] == key and words[i] > word)


@inner(**BORROWING)
def _swap(keys, words, i, j):
    keys[i], keys[j] = keys[j], keys[i]
    words[i], words[j] = words[j], words[i]


@inner(**BORROWING)
def _insert(keys, words, first, last):
    for i in range(first + 1, last + 1):
        key, word = keys[i], words[i]
        j = i - 1
        while j >= first and _behind(keys, words, j, key, word):
            keys[j + 1], words[j + 1] = keys[j], words[j]
            j -= 1
        keys[j + 1], words[j + 1] = key, word


@inner(**BORROWING)
def _choose_pivot(keys, words, first, last, draw):
    """Bring the median of three entries to the front."""
    size = uint64(last - first + 1)
    a = first + int64((draw & uint64(0xFFFFF)) % size)
    b = first + int64((draw >> uint64(20) & uint64(0xFFFFF)) % size)
    c = first + int64((draw >> uint64(40) & uint64(0xFFFFF)) % size)
    if _before(keys, words, b, keys[a], words[a]):
        a, b = b, a
    if _before(keys, words, c, keys[b], words[b]):
        b = a if _before(keys, words, c, keys[a], words[a]) else c
    _swap(keys, words, first, b)


@inner(**BORROWING)
def _divide(keys, words, first, last):
    """Part entries by the first of them; returns the last place of the front part, which is below `last`."""
    key, word = keys[first], words[first]
    i, j = first - 1, last + 1
    while True:
        i += 1
        while _before(keys, words, i, key, word):
            i += 1
        j -= 1
        while _behind(keys, words, j, key, word):
            j -= 1
        if i >= j:
            return j
        _swap(keys, words, i, j)


@inner()
def _sort(keys, words, first, last):
    """Sort the entries `first` to `last`."""
    firsts, lasts = np.empty(_DEPTH, np.int64), np.empty(_DEPTH, np.int64)
    waiting = 0
    draw = uint64(0x9E3779B97F4A7C15)
    while True:
        while last - first >= _FEW:
            draw = draw * uint64(6364136223846793005) + uint64(1442695040888963407)
            _choose_pivot(keys, words, first, last, draw)
            middle = _divide(keys, words, first, last)
            # The larger part waits, so that few ever do.
            if middle - first < last - middle - 1:
                firsts[waiting], lasts[waiting] = middle + 1, last
                last = middle
            else:
                firsts[waiting], lasts[waiting] = first, middle
                first = middle + 1
            waiting += 1
        _insert(keys, words, first, last)
        if waiting == 0:
            return
        waiting -= 1
        first, last = firsts[waiting], lasts[waiting]


@entry()
def _sort_all(keys, words):
    _sort(keys, words, int64(0), int64(keys.size - 1))


@entry()
def _sort_equal(keys, words):
    """Sort the words of equal keys, which are neighbours."""
    first = int64(0)
    for last in range(keys.size):
        if last + 1 == keys.size or keys[last + 1] != keys[first]:
            if last > first:
                _sort(keys, words, first, int64(last))
            first = int64(last + 1)


def sort_pairs(keys: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    """Sort by key and, if keys are equal, by word; both uint64, shape (k,).

    The bits of floats that are not negative are words of the same order.
    """
    if keys.size > _ARGSORTED:
        _sort_all(keys, words)
        return
    places = np.argsort(keys)
    keys[:] = keys[places]
    words[:] = words[places]
    _sort_equal(keys, words)
