"""Hash tables without objects, and fingerprints of names to put into them.

A table is an array of slots, a power of two and at least twice as many as there are entries; a slot holds the
number of an entry plus one, 0 if it is free, and an entry whose slot is not free goes to the next one.
Entries are 64-bit words; names are represented by fingerprints, of which a second word is compared too.

The length of a name and then its bytes, seven to a digit, make it a polynomial; the two words are its values
at two random points modulo the prime 2^61 - 1 (Carter and Wegman, "Universal classes of hash functions", JCSS
18, 1979). Two different names of L bytes agree in both with a probability below (L / 7 + 2)^2 / 2^120,
whoever chose them, as the points are drawn anew for every import: for 2^32 names of 100 bytes each, the
chance that any two are confused is below 10^-14.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from oocpr.ingest.nodes.strings import INT64S, TEXT
from oocpr.jit import entry, inner
from oocpr.store.codec.bitpacking import intrinsic

if TYPE_CHECKING:
    from oocpr.sources.block import Strings

NOT_FOUND = np.uint32(0xFFFFFFFF)

_ONE = np.uint64(1)


def slots_for(entries: int) -> int:
    """Slots of a table for so many entries."""
    return 2 << max(0, entries - 1).bit_length()


@inner()
def mix(word):  # type: ignore[no-untyped-def]
    """A word that looks drawn at random: the finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@entry("int64(uint64[::1], uint64[::1], uint64, uint32[::1], uint32[::1], uint32[::1])")
def _number(words, checks, key, slots, numbers, firsts):  # type: ignore[no-untyped-def]
    found = 0
    checked = checks.size > 0
    mask = np.uint64(slots.size - 1)
    for i in range(words.size):
        word = words[i]
        at = mix(word ^ key) & mask
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
    """Number different words as they first occur; shape (k,), k < 2^31.

    Second words in `checks` have to be equal as well; None if there are none. A secret `key` keeps made-up
    words from meeting in one slot. Gives the number of each word, uint32, and where each number first occurs,
    ascending.
    """
    numbers, firsts = np.empty(words.size, np.uint32), np.empty(words.size, np.uint32)
    slots = np.zeros(slots_for(words.size), np.uint32)
    checks = np.empty(0, np.uint64) if checks is None else checks
    return numbers, firsts[: _number(words, checks, np.uint64(key), slots, numbers, firsts)]


@entry("void(uint64[::1], uint64, uint32[::1])")
def _enter(known, key, slots):  # type: ignore[no-untyped-def]
    mask = np.uint64(slots.size - 1)
    for i in range(known.size):
        at = mix(known[i] ^ key) & mask
        while slots[at] != 0:
            at = (at + _ONE) & mask
        slots[at] = i + 1


@entry("void(uint64[::1], uint64[::1], uint64, uint32[::1], uint32[::1])")
def _find(words, known, key, slots, places):  # type: ignore[no-untyped-def]
    mask = np.uint64(slots.size - 1)
    low = known[0]
    high = known[known.size - 1]
    for i in range(words.size):
        word = words[i]
        places[i] = NOT_FOUND
        if word < low or word > high:
            continue
        at = mix(word ^ key) & mask
        while True:
            entry = slots[at]
            if entry == 0:
                break
            if known[entry - 1] == word:
                places[i] = entry - 1
                break
            at = (at + _ONE) & mask


class HashIndex:
    """Where words stand in an ascending list of different ones, more than 0 and fewer than 2^31.

    `key` is as for `factorize`; `slots` is memory for the table, `slots_for` the list or more.
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


_PRIME = 2**61 - 1
_P = np.uint64(_PRIME)
_DIGIT = np.uint64(2**56 - 1)
_BYTES = 7


@intrinsic
def _high(typingctx, a, b):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Upper 64 bits of a product."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@inner()
def _step(value, point, digit):  # type: ignore[no-untyped-def]
    """Return value * point + digit modulo the prime, for values below 2^62 and digits below 2^57."""
    low = value * point
    high = (_high(value, point) << np.uint64(3)) | (low >> np.uint64(61))
    total = (low & _P) + high
    return (total & _P) + (total >> np.uint64(61)) + digit


@inner()
def _reduced(value):  # type: ignore[no-untyped-def]
    value = (value & _P) + (value >> np.uint64(61))
    return value - _P if value >= _P else value


@entry((TEXT, INT64S, INT64S, types.uint64, types.uint64, types.uint64[:], types.uint64[:]))
def _fingerprints(text, starts, ends, one, two, words, checks):  # type: ignore[no-untyped-def]
    last = text.size - 8
    for i in range(starts.size):
        at = np.uint64(starts[i])
        end = np.uint64(ends[i])
        a = np.uint64(end - at)
        b = a
        while at < end:
            digit = np.uint64(0)
            if np.int64(at) <= last:
                for k in range(8):
                    digit |= np.uint64(text[at + np.uint64(k)]) << np.uint64(8 * k)
                left = end - at
                if left < np.uint64(7):
                    digit &= (np.uint64(1) << (np.uint64(8) * left)) - np.uint64(1)
                else:
                    digit &= _DIGIT
            else:
                for k in range(min(np.uint64(7), end - at)):
                    digit |= np.uint64(text[at + k]) << (np.uint64(8) * k)
            a = _step(a, one, digit)
            b = _step(b, two, digit)
            at += np.uint64(_BYTES)
        a = _reduced(_step(a, one, np.uint64(0)))
        b = _reduced(_step(b, two, np.uint64(0)))
        # The three bits that a prime of 61 bits leaves free carry bits of the other word.
        words[i] = a | (b << np.uint64(61))
        checks[i] = b


def draw_points() -> tuple[int, int]:
    """Draw two random points, for fingerprints that are compared."""
    one, two = (2**32 + secrets.randbelow(_PRIME - 2**32) for _ in range(2))
    return one, two


class Fingerprints:
    """Maps names to fingerprints, by two random `points`, its own by default."""

    def __init__(self, points: tuple[int, int] | None = None) -> None:
        self._one, self._two = map(np.uint64, points or draw_points())

    def of(self, names: Strings, words: NDArray[np.uint64], checks: NDArray[np.uint64]) -> None:
        """Write both words of each name, uint64, with any stride."""
        _fingerprints(names.text, names.starts, names.ends, self._one, self._two, words, checks)
