"""Instantaneous codes of whole numbers in a stream of bits, the highest bit of each byte first.

Of the codes that WebGraph uses: unary (n zeros and a one), gamma and delta (Elias, "Universal codeword sets
and representations of the integers", IEEE Trans. Inf. Theory 21, 1975), zeta (Boldi and Vigna, "Codes for
the World Wide Web", Internet Math. 2, 2005) and nibbles of three bits.
"""

from __future__ import annotations

import numpy as np

from oocpr.jit import inner

UNARY, GAMMA, DELTA, ZETA, NIBBLE = range(5)

CUT = -1
"""What is read where the bits end in the middle of a code, or a number has more than 62 bits."""

_LONGEST = 62


@inner()
def _bits(data, at, stop, count):  # type: ignore[no-untyped-def]
    """Read `count` bits as a number, `CUT` where they are not there."""
    if at[0] + count > stop or count > _LONGEST:
        return CUT
    value = 0
    pos = at[0]
    left = count
    while left > 0:
        inside = pos & 7
        taken = min(8 - inside, left)
        byte = np.int64(data[pos >> 3])
        value = value << taken | (byte >> (8 - inside - taken)) & ((1 << taken) - 1)
        pos += taken
        left -= taken
    at[0] = pos
    return value


@inner()
def _unary(data, at, stop):  # type: ignore[no-untyped-def]
    pos = at[0]
    while pos < stop:
        inside = pos & 7
        rest = (np.int64(data[pos >> 3]) << inside) & 255
        if rest == 0:
            pos += 8 - inside
            continue
        while rest & 128 == 0:
            rest <<= 1
            pos += 1
        if pos >= stop:
            return CUT
        value = pos - at[0]
        at[0] = pos + 1
        return value
    return CUT


@inner()
def _gamma(data, at, stop):  # type: ignore[no-untyped-def]
    width = _unary(data, at, stop)
    if width == CUT or width > _LONGEST:
        return CUT
    low = _bits(data, at, stop, width)
    return CUT if low == CUT else (1 << width | low) - 1


@inner()
def read_code(code, k, data, at, stop):  # type: ignore[no-untyped-def]
    """Read a number.

    Parameters
    ----------
    code
        `UNARY`, `GAMMA`, `DELTA`, `ZETA` or `NIBBLE`.
    k
        Parameter of zeta.
    data
        uint8.
    at
        int64, shape (1,): the bit to begin at; left behind the number, unless it is cut.
    stop
        Number of bits.

    Returns
    -------
    int64
        The number, or `CUT`; `at` is anywhere then.
    """
    if code == GAMMA:
        return _gamma(data, at, stop)
    if code == UNARY:
        return _unary(data, at, stop)
    if code == DELTA:
        width = _gamma(data, at, stop)
        if width == CUT or width > _LONGEST:
            return CUT
        low = _bits(data, at, stop, width)
        return CUT if low == CUT else (1 << width | low) - 1
    if code == ZETA:
        step = _unary(data, at, stop)
        if step == CUT or (step + 1) * k > _LONGEST:
            return CUT
        first = 1 << step * k
        low = _bits(data, at, stop, step * k + k - 1)
        if low == CUT:
            return CUT
        if low < first:
            return low + first - 1
        more = _bits(data, at, stop, 1)
        return CUT if more == CUT else (low << 1 | more) - 1
    value = 0
    while True:
        last = _bits(data, at, stop, 1)
        three = _bits(data, at, stop, 3)
        if three == CUT or value >> (_LONGEST - 3):
            return CUT
        value = value << 3 | three
        if last == 1:
            return value
