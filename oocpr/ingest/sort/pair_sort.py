"""Keys with their weights sorted in place: by key, and by weight where keys are equal.

NumPy sorts one array, or returns places that take as much memory again, which is fine for a few. For more,
this is quicksort with Hoare's partition (C. A. R. Hoare, "Quicksort", The Computer Journal 5, 1962), which
copes with equal entries; pivots are medians of three entries at places that no order of the entries foresees.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import int64, uint64

from oocpr.jit import BORROWING, entry, inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
