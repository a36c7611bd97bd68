"""The set of ids that occur, and the rank of each among them.

A bitmap with one bit an id, and the count of the set bits before every 128th: the rank of an id is one of
those counts and the bits of at most two neighbouring words (two-level rank, Jacobson, "Space-efficient
static trees and graphs", FOCS 1989). Beside the bitmap that is a quarter of a bit an id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.ingest.partition import Run

_WORD_BITS = 64
_GROUP_WORDS = 2
_ALL_WORDS = 2**32 // _WORD_BITS


@numba.njit("uint32(uint64)", cache=True, nogil=True)
def _ones(word):  # type: ignore[no-untyped-def]
    """Count the set bits by adding neighbours; compilers know the pattern and use the machine's own."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.uint32((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@numba.njit("void(uint64[::1], uint64[::1])", cache=True, nogil=True)
def _mark(keys, words):  # type: ignore[no-untyped-def]
    for key in keys:
        row = key >> np.uint64(32)
        column = key & np.uint64(0xFFFFFFFF)
        words[row >> np.uint64(6)] |= np.uint64(1) << (row & np.uint64(63))
        words[column >> np.uint64(6)] |= np.uint64(1) << (column & np.uint64(63))


@numba.njit("int64(uint64[::1], uint32[::1])", cache=True, nogil=True)
def _count_before(words, before):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for i in range(words.size):
        if i % _GROUP_WORDS == 0:
            before[i // _GROUP_WORDS] = total
        total += _ones(words[i])
    return total


@numba.njit("uint64(uint64[::1], uint32[::1], uint64)", cache=True, nogil=True)
def _rank(words, before, number):  # type: ignore[no-untyped-def]
    word = np.int64(number >> np.uint64(6))
    group = word // _GROUP_WORDS
    rank = np.uint64(before[group])
    for i in range(group * _GROUP_WORDS, word):
        rank += np.uint64(_ones(words[i]))
    below = (np.uint64(1) << (number & np.uint64(63))) - np.uint64(1)
    return rank + np.uint64(_ones(words[word] & below))


@numba.njit("void(uint64[::1], uint64[::1], uint32[::1])", cache=True, nogil=True)
def _relabel(keys, words, before):  # type: ignore[no-untyped-def]
    last = np.uint64(1) << np.uint64(32)  # no id
    row = last
    for i in range(keys.size):
        # Keys come sorted by row, as a rule.
        if keys[i] >> np.uint64(32) != last:
            last = keys[i] >> np.uint64(32)
            row = _rank(words, before, last)
        column = _rank(words, before, keys[i] & np.uint64(0xFFFFFFFF))
        keys[i] = row << np.uint64(32) | column


@numba.njit("void(uint64[::1], uint32[::1])", cache=True, nogil=True)
def _list(words, ids):  # type: ignore[no-untyped-def]
    found = 0
    for i in range(words.size):
        word = words[i]
        while word:
            lowest = word & (~word + np.uint64(1))
            ids[found] = np.uint32(np.uint64(i * _WORD_BITS) + np.uint64(_ones(lowest - np.uint64(1))))
            found += 1
            word ^= lowest


class IdSet:
    """Which of all 32-bit ids occur.

    Attributes
    ----------
    largest
        The largest id that occurs, -1 while there is none.

    Examples
    --------
    >>> import numpy as np
    >>> ids = IdSet()
    >>> keys = np.array([7 << 32 | 3, 3 << 32 | 100], np.uint64)
    >>> ids.add(keys, largest=100)
    >>> len(ids), ids.to_numpy()
    (3, array([  3,   7, 100], dtype=uint32))
    >>> ids.relabel(keys)
    >>> [(int(key) >> 32, int(key) & 0xFFFFFFFF) for key in keys]
    [(1, 0), (0, 2)]
    """

    def __init__(self) -> None:
        # Room for every id there can be: pages that no id touches never become resident.
        self._words = np.zeros(_ALL_WORDS, np.uint64)
        self._before: NDArray[np.uint32] | None = None
        self._count = 0
        self.largest = -1

    def growth(self, largest: int) -> int:
        """Bytes that the set may grow by when `largest` is added, its counts included."""
        return max(0, largest - self.largest) // 8 * 5 // 4

    def add(self, keys: NDArray[np.uint64], largest: int) -> None:
        """Add rows and columns of `keys`, uint64, shape (k,); none of them is above `largest`."""
        _mark(keys, self._words)
        self.largest = max(self.largest, largest)
        self._before = None

    def _counts(self) -> NDArray[np.uint32]:
        if self._before is None:
            words = self._used()
            self._before = np.empty(-(-words.size // _GROUP_WORDS), np.uint32)
            self._count = _count_before(words, self._before)
        return self._before

    def _used(self) -> NDArray[np.uint64]:
        return self._words[: self.largest // _WORD_BITS + 1]

    def __len__(self) -> int:
        self._counts()
        return self._count

    def relabel(self, keys: NDArray[np.uint64]) -> None:
        """Replace, in place, every id in `keys` by its rank; all of them are in the set."""
        _relabel(keys, self._used(), self._counts())

    def relabel_bounds(self, run: Run) -> Run:
        """Give a run whose keys have been relabelled in its file the bounds that they have now."""
        words, before = self._used(), self._counts()
        low, high = (
            int(_rank(words, before, np.uint64(row))) if row <= self.largest else len(self)
            for row in (run.low >> 32, (run.high >> 32) + 1)
        )
        return replace(run, low=low << 32, high=high << 32)

    def to_numpy(self) -> NDArray[np.uint32]:
        """List the ids in ascending order: uint32, shape (len,)."""
        ids = np.empty(len(self), np.uint32)
        _list(self._used(), ids)
        return ids
