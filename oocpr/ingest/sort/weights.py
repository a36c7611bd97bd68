"""What the weight of a link is: of one that a source repeats, the greatest, the sum, or how often it comes.

Weights are taken in ascending order, so a sum depends on nothing but the weights.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import int64, uint64

from oocpr.errors import InputError, UsageError
from oocpr.ingest.sort.rows import sorted_pieces
from oocpr.ingest.spill.files import SpillFile, require_disk
from oocpr.ingest.spill.keys import WEIGHT_BYTES, KeyRun
from oocpr.ingest.spill.partition import partition_run
from oocpr.jit import BORROWING, entry, inner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.sort.rows import Rows

    Weighed = tuple[NDArray[np.uint64], NDArray[np.float64], int]
    from numpy.typing import NDArray

DUPLICATES = ("merge", "sum", "count")
"""What becomes of an edge that a source repeats: it counts once, with its greatest weight; weights are added;
the weight is how often it comes."""

_ABOVE = int(np.array(np.inf).view(np.uint64))
"""What the bits of all weights are below."""


def duplicate_policy(duplicates: str | None, *, weighted: bool) -> str | None:
    """Say how links get their weights, one of `DUPLICATES`; None where they have none.

    Parameters
    ----------
    duplicates
        What was asked for; None for the usual: weights are added, as in pandas, SciPy and NetworkX.
    weighted
        Whether the source has weights.

    Raises
    ------
    UsageError
        What was asked for is none of these, or does not go with the source.

    Examples
    --------
    >>> duplicate_policy(None, weighted=True), duplicate_policy("count", weighted=False)
    ('sum', 'count')
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


@entry()
def _keep_greatest(keys, weights):
    """Keep the last of each of ascending keys, which has the greatest weight; returns how many are left."""
    kept = 0
    for i in range(keys.size):
        key, weight = keys[i], weights[i]
        if i and keys[kept - 1] == key:
            weights[kept - 1] = weight
        else:
            keys[kept], weights[kept] = key, weight
            kept += 1
    return kept


@entry()
def _add_up(keys, weights):
    """Keep each of ascending keys once, with the sum of its weights; returns how many are left."""
    kept = 0
    for i in range(keys.size):
        key, weight = keys[i], weights[i]
        if i and keys[kept - 1] == key:
            weights[kept - 1] += weight
        else:
            keys[kept], weights[kept] = key, weight
            kept += 1
    return kept


@entry()
def _count_up(keys, weights):
    """Keep each of ascending keys once, and write how often it comes; returns how many are left."""
    kept = 0
    for i in range(keys.size):
        key = keys[i]
        if i and keys[kept - 1] == key:
            weights[kept - 1] += 1.0
        else:
            keys[kept], weights[kept] = key, 1.0
            kept += 1
    return kept


@entry()
def _added(total, values, times):
    """Add numbers one after the other, each so many times."""
    for i in range(values.size):
        for _ in range(times):
            total += values[i]
    return total


@entry()
def _add_out(columns, weights, sums):
    for i in range(columns.size):
        sums[columns[i]] += weights[i]


_COMBINED = {"merge": _keep_greatest, "sum": _add_up, "count": _count_up}


def weighted_pieces(
    run: KeyRun, keys: NDArray[np.uint64], beside: NDArray[np.float64], how: str
) -> Iterator[Weighed]:
    """Yield the keys of `run` in ascending order, each once, with their weights, piece by piece.

    Parameters
    ----------
    run
        The keys, with weights unless these are counted; more than there is memory for are partitioned first.
    keys, beside
        Memory for the keys and weights that are sorted at once; of the same size, three or more.
    how
        One of `DUPLICATES`.

    Yields
    ------
    keys : ndarray
        Ascending uint64, shape (k,).
    weights : ndarray
        float64, shape (k,).
    count : int
        Keys of the run that these stand for.

    Raises
    ------
    InputError
        A sum that float64 does not hold.
    """
    if how == "count":
        for sorted_keys, count in sorted_pieces(run, keys):
            kept = _count_up(sorted_keys, beside)
            if sorted_keys.size < count:
                beside[0] = count
            yield sorted_keys[:kept], beside[:kept], count
    elif run.count <= keys.size:
        for some, weights in run.records(keys, beside):
            assert weights is not None
            sort_pairs(some, weights.view(np.uint64))
            kept = _COMBINED[how](some, weights)
            yield some[:kept], check_finite(weights[:kept]), run.count
    elif run.high - run.low == 1:
        weight = _of_one(run, keys, beside, how)
        keys[0], beside[0] = run.low, weight
        yield keys[:1], check_finite(beside[:1]), run.count
    else:
        with SpillFile(run.scratch.folder) as scratch:
            for bucket in partition_run(run, scratch, keys, beside):
                yield from weighted_pieces(bucket, keys, beside, how)


def _of_one(run: KeyRun, keys: NDArray[np.uint64], beside: NDArray[np.float64], how: str) -> float:
    """Weigh the only link of a run, which comes more often than there is memory for."""
    if how == "merge":
        return max(float(weights.max()) for _, weights in run.records(keys, beside) if weights is not None)
    require_disk(run.scratch.folder, run.count * WEIGHT_BYTES)
    total, done = 0.0, 0
    with SpillFile(run.scratch.folder) as scratch:
        for _, weights in run.records(keys, beside):
            assert weights is not None
            scratch.write(done * WEIGHT_BYTES, weights)
            done += weights.size
        # Their bits, as keys, are in the order of the weights.
        for bits, count in sorted_pieces(KeyRun.of_words(scratch, 0, done, 0, _ABOVE), keys):
            times = count if bits.size < count else 1
            total = _added(total, bits.view(np.float64), times)
    return total


def check_finite(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give weights back; InputError where one of them has grown beyond what float64 holds.

    Examples
    --------
    >>> check_finite(np.ones(1))
    array([1.])
    """
    if not np.isfinite(weights).all():
        raise InputError(
            "The weights of a repeated link add up to more than float64 holds.",
            "Give smaller weights, or choose merge for duplicates.",
        )
    return weights


class OutWeights:
    """Adds up the weights that leave each node, in the order of the links.

    Parameters
    ----------
    nodes
        Nodes of the graph.

    Examples
    --------
    >>> from oocpr.ingest.sort.rows import Rows
    >>> sums = OutWeights(2)
    >>> sums.add(np.array([1, 1], np.uint32), np.array([0.5, 0.25]))
    >>> sums.to_numpy()
    array([0.  , 0.75])
    """

    def __init__(self, nodes: int) -> None:
        self._sums = np.zeros(nodes)

    def add(self, columns: NDArray[np.uint32], weights: NDArray[np.float64]) -> None:
        """Add links that come after all before: their tails and weights, shape (k,) each."""
        _add_out(columns, weights, self._sums)

    def take(self, edges: Rows) -> Rows:
        """Add links, and give them back."""
        if edges.weights is not None:
            self.add(edges.columns, edges.weights)
        return edges

    def to_numpy(self) -> NDArray[np.float64]:
        """Give the sums: float64, shape (nodes,).

        Raises
        ------
        InputError
            A sum that float64 does not hold.
        """
        if not np.isfinite(self._sums).all():
            raise InputError(
                "The weights of the links that leave a node add up to more than float64 holds.",
                "Give smaller weights.",
            )
        return self._sums


_FEW = 24
"""Entries that are sorted by insertion."""

_PLACED = 1 << 16
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
    """Sort the words of equal keys, which are side by side."""
    first = int64(0)
    for last in range(keys.size):
        if last + 1 == keys.size or keys[last + 1] != keys[first]:
            if last > first:
                _sort(keys, words, first, int64(last))
            first = int64(last + 1)


def sort_pairs(keys: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    """Sort by key and, where keys are equal, by word; both uint64, shape (k,).

    The bits of floats that are not negative are words of the same order.

    Examples
    --------
    >>> keys, words = np.array([5, 1, 5], np.uint64), np.array([9, 8, 7], np.uint64)
    >>> sort_pairs(keys, words)
    >>> keys.tolist(), words.tolist()
    ([1, 5, 5], [8, 7, 9])
    """
    if keys.size > _PLACED:
        _sort_all(keys, words)
        return
    places = np.argsort(keys)
    keys[:] = keys[places]
    words[:] = words[places]
    _sort_equal(keys, words)
