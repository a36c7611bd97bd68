"""Fingerprints of names: two words of 64 bits that stand for a name of any length.

Its length and then its bytes, seven to a digit, make a name a polynomial; the two words are its values at two
random points modulo the prime 2^61 - 1 (Carter and Wegman, "Universal classes of hash functions", JCSS 18,
1979). Two different names of L bytes agree in both with a probability below (L / 7 + 2)^2 / 2^120, whoever
chose them, as the points are drawn anew for every import: for 2^32 names of 100 bytes each, the chance that
any two are taken for one is below 10^-14.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic

from oocpr.ingest.nodes.string_file import INT64S, TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from oocpr.sources.block import Strings

_PRIME = 2**61 - 1
_P = np.uint64(_PRIME)
_DIGIT = np.uint64(2**56 - 1)
_BYTES = 7

# The decorated function is called with one argument less than it is declared with.
intrinsic: Any = _intrinsic


@intrinsic
def _high(typingctx, a, b):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Upper 64 bits of a product."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@numba.njit("uint64(uint64, uint64, uint64)", cache=True, nogil=True)
def _step(value, point, digit):  # type: ignore[no-untyped-def]
    """Return value * point + digit modulo the prime, for values below 2^62 and digits below 2^57."""
    low = value * point
    high = (_high(value, point) << np.uint64(3)) | (low >> np.uint64(61))
    total = (low & _P) + high
    return (total & _P) + (total >> np.uint64(61)) + digit


@numba.njit("uint64(uint64)", cache=True, nogil=True)
def _settled(value):  # type: ignore[no-untyped-def]
    value = (value & _P) + (value >> np.uint64(61))
    return value - _P if value >= _P else value


@numba.njit(
    (TEXT, INT64S, INT64S, numba.uint64, numba.uint64, numba.uint64[:], numba.uint64[:]),
    cache=True,
    nogil=True,
)
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
        a = _settled(_step(a, one, np.uint64(0)))
        b = _settled(_step(b, two, np.uint64(0)))
        # The three bits that a prime of 61 bits leaves free carry bits of the other word.
        words[i] = a | (b << np.uint64(61))
        checks[i] = b


class Fingerprints:
    """Maps names to fingerprints, each import by two points of its own.

    Parameters
    ----------
    points
        Those of an earlier part of the import; None to draw them.

    Attributes
    ----------
    points
        The two points.

    Examples
    --------
    >>> from oocpr.sources.block import Strings
    >>> text = np.frombuffer(b"a.orgb.orga.org", np.uint8)
    >>> names = Strings(text, np.array([0, 5, 10]), np.array([5, 10, 15]))
    >>> words, checks = np.empty(3, np.uint64), np.empty(3, np.uint64)
    >>> Fingerprints().of(names, words, checks)
    >>> bool(words[0] == words[2]), bool(words[0] == words[1])
    (True, False)
    """

    def __init__(self, points: Sequence[int] | None = None) -> None:
        self.points = (
            [2**32 + secrets.randbelow(_PRIME - 2**32) for _ in range(2)] if points is None else points
        )
        self._one, self._two = map(np.uint64, self.points)

    def of(self, names: Strings, words: NDArray[np.uint64], checks: NDArray[np.uint64]) -> None:
        """Write both words of each name, uint64, shape (k,), with any stride."""
        _fingerprints(names.text, names.starts, names.ends, self._one, self._two, words, checks)
