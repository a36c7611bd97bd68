"""The set of ids that occur, and the rank of each among them.

A bitmap with one bit an id, and the count of the set bits before every 64th: the rank of an id is one of
those counts and the bits below it in one word (after Jacobson, "Space-efficient static trees and graphs",
FOCS 1989). Beside the bitmap that is half a bit an id.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from oocpr.ingest.spill.partition import set_bits
from oocpr.jit import entry, inner
from oocpr.store.codec.bitpacking import count_ones, lowest_one

_ALL_WORDS = 2**32 // 64


class IdRanks(NamedTuple):
    """A bitmap, and the number of set bits before each of its words."""

    words: NDArray[np.uint64]
    before: NDArray[np.uint32]


@inner()
def rank_of(ranks, number):
    """Rank of an id, a uint64, among the ids of a set."""
    word = number >> uint64(6)
    below = (uint64(1) << (number & uint64(63))) - uint64(1)
    return uint64(ranks.before[word]) + count_ones(ranks.words[word] & below)


@inner()
def _set(number, words):
    word = uint64(number >> uint32(6))
    bit = uint64(1) << uint64(number & uint32(63))
    # Before long most are set, and looking is cheaper than setting what other threads may be setting, too.
    if not words[word] & bit:
        set_bits(words, word, bit)


@entry()
def _set_all(src, dst, words):
    for i in range(uint64(src.size)):
        _set(src[i], words)
        _set(dst[i], words)


@entry()
def _count_before(words, before):
    total = uint64(0)
    for i in range(uint64(words.size)):
        before[i] = total
        total += count_ones(words[i])
    return total


@entry()
def _relabel(keys, ranks):
    last = uint64(1) << uint64(32)  # no id
    row = last
    for i in range(uint64(keys.size)):
        # Keys come sorted by row, as a rule.
        if keys[i] >> uint64(32) != last:
            last = keys[i] >> uint64(32)
            row = rank_of(ranks, last)
        keys[i] = row << uint64(32) | rank_of(ranks, keys[i] & uint64(0xFFFFFFFF))


@entry()
def _list(words, ids):
    found = uint64(0)
    for i in range(uint64(words.size)):
        word = words[i]
        while word:
            ids[found] = uint32(uint64(64) * i + lowest_one(word))
            found += uint64(1)
            word &= word - uint64(1)


class IdBitmap:
    """Which of all 32-bit ids occur; `largest` is the largest of them, -1 while there is none.

    `words` is the bitmap, uint64; sets that others add to as well may have one together.
    """

    def __init__(self, words: NDArray[np.uint64] | None = None) -> None:
        # Room for every id there can be: pages that no id touches never become resident.
        self.words = np.zeros(_ALL_WORDS, np.uint64) if words is None else words
        self._ranks: IdRanks | None = None
        self._count = 0
        self.largest = -1

    def growth(self, largest: int) -> int:
        """Bytes that the set and its counts may grow by when `largest` is added."""
        return max(0, largest - self.largest) // 8 * 3 // 2

    def reach(self, largest: int) -> None:
        """Say that ids up to `largest`, which is one of them, will be added."""
        self.largest = max(self.largest, largest)
        self._ranks = None

    def add(self, src: NDArray[np.uint32], dst: NDArray[np.uint32]) -> None:
        """Add ids within reach, uint32; several threads may do so at once."""
        _set_all(src, dst, self.words)

    @property
    def ranks(self) -> IdRanks:
        """The rank of each id; valid until more ids come."""
        if self._ranks is None:
            words = self.words[: self.largest // 64 + 1]
            self._ranks = IdRanks(words, np.empty(words.size, np.uint32))
            self._count = int(_count_before(*self._ranks))
        return self._ranks

    def __len__(self) -> int:
        _ = self.ranks
        return self._count

    def part(self, first: int, stop: int) -> NDArray[np.uint64]:
        """Give words `first` to `stop` - 1 of the bitmap."""
        return self.words[first:stop]

    def relabel(self, keys: NDArray[np.uint64]) -> None:
        """Replace, in place, every id in `keys` by its rank; all of them are in the set."""
        _relabel(keys, self.ranks)

    def to_numpy(self) -> NDArray[np.uint32]:
        """List the ids in ascending order."""
        ids = np.empty(len(self), np.uint32)
        _list(self.ranks.words, ids)
        return ids
