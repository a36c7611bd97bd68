"""Hash tables without objects: numbers for the ids of a block, and places of ids in a list of all.

A table is an array of slots, a power of two and at least twice as many as there are entries; a slot holds
the number of an entry plus one, 0 where it is free, and an entry that finds its slot taken goes to the next
one. Entries are 64-bit words; names are represented by fingerprints, of which a second word is compared too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOT_FOUND = np.uint32(0xFFFFFFFF)

_ONE = np.uint64(1)


def slots_for(entries: int) -> int:
    """Slots of a table for so many entries.

    Examples
    --------
    >>> slots_for(1), slots_for(4), slots_for(5)
    (2, 8, 16)
    """
    return 2 << max(0, entries - 1).bit_length()


@numba.njit("uint64(uint64)", cache=True, nogil=True)
def _mix(word):  # type: ignore[no-untyped-def]
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@numba.njit(
    "int64(uint64[::1], uint64[::1], uint64, uint32[::1], uint32[::1], uint32[::1])", cache=True, nogil=True
)
def _number(words, checks, key, slots, numbers, firsts):  # type: ignore[no-untyped-def]
    found = 0
    checked = checks.size > 0
    mask = np.uint64(slots.size - 1)
    for i in range(words.size):
        word = words[i]
        at = _mix(word ^ key) & mask
        while True:
            entry = slots[at]
            if entry == 0:
                firsts[found] = i
                numbers[i] = found
                found += 1
                slots[at] = found
                break
            first = firsts[entry - 1]
            if words[first] == word and (not checked or checks[first] == checks[i]):
                numbers[i] = entry - 1
                break
            at = (at + _ONE) & mask
    return found


def factorize(
    words: NDArray[np.uint64], checks: NDArray[np.uint64] | None, key: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Number different words as they first occur.

    Parameters
    ----------
    words
        uint64, shape (k,), k < 2^31.
    checks
        Second words, which have to be equal as well; None where there are none.
    key
        Any 64-bit number; one that nobody knows keeps made-up words from meeting in one slot.

    Returns
    -------
    numbers
        Number of each word, uint32, shape (k,).
    firsts
        Where each number first occurs, ascending, uint32.

    Examples
    --------
    >>> numbers, firsts = factorize(np.array([9, 4, 9], np.uint64), None, 1)
    >>> numbers.tolist(), firsts.tolist()
    ([0, 1, 0], [0, 1])
    """
    numbers, firsts = np.empty(words.size, np.uint32), np.empty(words.size, np.uint32)
    slots = np.zeros(slots_for(words.size), np.uint32)
    checks = np.empty(0, np.uint64) if checks is None else checks
    return numbers, firsts[: _number(words, checks, np.uint64(key), slots, numbers, firsts)]


@numba.njit("void(uint64[::1], uint64, uint32[::1])", cache=True, nogil=True)
def _enter(known, key, slots):  # type: ignore[no-untyped-def]
    mask = np.uint64(slots.size - 1)
    for i in range(known.size):
        at = _mix(known[i] ^ key) & mask
        while slots[at] != 0:
            at = (at + _ONE) & mask
        slots[at] = i + 1


@numba.njit("void(uint64[::1], uint64[::1], uint64, uint32[::1], uint32[::1])", cache=True, nogil=True)
def _find(words, known, key, slots, places):  # type: ignore[no-untyped-def]
    mask = np.uint64(slots.size - 1)
    low = known[0]
    high = known[known.size - 1]
    for i in range(words.size):
        word = words[i]
        places[i] = NOT_FOUND
        if word < low or word > high:
            continue
        at = _mix(word ^ key) & mask
        while True:
            entry = slots[at]
            if entry == 0:
                break
            if known[entry - 1] == word:
                places[i] = entry - 1
                break
            at = (at + _ONE) & mask


class HashIndex:
    """Where words stand in an ascending list of different ones.

    Parameters
    ----------
    known
        Ascending, uint64, shape (k,), 0 < k < 2^31.
    key
        As for `factorize`.
    slots
        Memory for the table, uint32, `slots_for` of k or more; None takes its own.

    Examples
    --------
    >>> places = HashIndex(np.array([3, 7, 9], np.uint64), 1)
    >>> places.of(np.array([9, 8, 3], np.uint64)).tolist()
    [2, 4294967295, 0]
    """

    BYTES_PER_WORD = 8 + 16
    """Most bytes that a word of the list takes, the list itself included."""

    def __init__(self, known: NDArray[np.uint64], key: int, slots: NDArray[np.uint32] | None = None) -> None:
        self._known = known
        self._key = np.uint64(key)
        wanted = slots_for(known.size)
        self._slots = np.empty(wanted, np.uint32) if slots is None else slots[:wanted]
        self._slots[:] = 0
        _enter(known, self._key, self._slots)

    def of(self, words: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Place of each word, uint32, shape (k,); `NOT_FOUND` for a word that is not in the list."""
        places = np.empty(words.size, np.uint32)
        _find(words, self._known, self._key, self._slots, places)
        return places
