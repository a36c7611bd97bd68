"""Numbers out of lines of text: the loop that all formats with numeric ids share.

A line holds two whole numbers apart by tabs or spaces, maybe behind a letter, maybe followed by a value, or
by columns one of which is a weight.
``#`` and ``%`` open a comment that runs to the end of the line; lines without anything else are skipped.
Measured: 0.8 to 1.0 GB of text a second of CPU time, 60 to 78 million edges.
"""

from __future__ import annotations

import numpy as np

from oocpr.jit import entry, inner

(
    FINE,
    ONE_COLUMN,
    EXTRA_COLUMN,
    NOT_A_NUMBER,
    NEGATIVE,
    BELOW_FIRST,
    BEYOND_LAST,
    WRONG_LEAD,
    NO_VALUE,
) = range(9)

_ONE = np.uint64(1)
_TEN = np.uint64(10)
_LONGEST = np.uint64(19)  # digits that 64 bits surely hold
_HUGE = np.uint64(2**63)
_LARGEST = np.uint64(2**63 - 1)
_TOO_LARGE = np.uint64(2**64 - 1)
_SPACE, _TAB, _RETURN, _NEWLINE, _HASH, _PERCENT, _MINUS, _ZERO = (np.uint8(ord(c)) for c in " \t\r\n#%-0")
_PLUS, _DOT, _LOWER_E, _UPPER_E = (np.uint8(ord(c)) for c in "+.eE")


@inner()
def _blank(char):  # type: ignore[no-untyped-def]
    return char in (_SPACE, _TAB, _RETURN)


@inner()
def _line_end(text, pos):  # type: ignore[no-untyped-def]
    while text[pos] != _NEWLINE:
        pos += _ONE
    return pos


@inner()
def _number(text, pos):  # type: ignore[no-untyped-def]
    """Value of the digits at `pos`, something above 2^63 for all that are, and the position behind them."""
    start = pos
    value = np.uint64(0)
    digit = np.uint8(text[pos] - _ZERO)
    while digit < 10:
        value = value * _TEN + np.uint64(digit)
        pos += _ONE
        digit = np.uint8(text[pos] - _ZERO)
    if pos - start > _LONGEST:
        value = np.uint64(0)
        for place in range(start, pos):
            if value > _HUGE // _TEN:
                return _TOO_LARGE, pos
            value = value * _TEN + np.uint64(text[place] - _ZERO)
    return value, pos


@inner()
def _value(text, pos):  # type: ignore[no-untyped-def]
    """Whether a real number stands at `pos`, whether it is zero, and the position behind it."""
    start = pos
    zero = True
    exponent = False
    digits = False
    while not (_blank(text[pos]) or text[pos] == _NEWLINE):
        char = text[pos]
        if np.uint8(char - _ZERO) < 10:
            digits = True
            if char != _ZERO and not exponent:
                zero = False
        elif char in (_LOWER_E, _UPPER_E):
            if exponent or not digits:
                return False, zero, start
            exponent = True
            digits = False
        elif char not in (_PLUS, _MINUS, _DOT):
            return False, zero, start
        pos += _ONE
    return digits, zero, pos


@inner()
def _column_at(text, pos, more):  # type: ignore[no-untyped-def]
    """Where the column begins and ends that comes `more` columns behind the blanks at `pos`."""
    while True:
        while _blank(text[pos]):
            pos += _ONE
        begin = pos
        while not (_blank(text[pos]) or text[pos] in (_NEWLINE, _HASH, _PERCENT)):
            pos += _ONE
        if more == 0 or pos == begin:
            return begin, pos
        more -= 1


@inner()
def _no_number(char):  # type: ignore[no-untyped-def]
    if char == _MINUS:
        return NEGATIVE
    if char in (_NEWLINE, _HASH, _PERCENT):
        return ONE_COLUMN
    return NOT_A_NUMBER


@entry()
def scan_edges(  # type: ignore[no-untyped-def]
    text, pos, stop, line, lead, first, nodes, valued, signed, weight, src, dst, begins, ends, count
):
    """Read edges from whole lines until the text ends or the arrays are full.

    Unsigned positions keep the compiler from testing every index for a negative one.

    Parameters
    ----------
    text
        uint8; a newline stands at ``stop - 1`` unless ``pos == stop``.
    pos, stop
        uint64; where to read from and where the whole lines end.
    line
        Number of the line at `pos`.
    lead
        uint8; the letter that opens every line, 0 for none.
    first, nodes
        uint64; ids go from `first` to ``first + nodes - 1`` and come out counted from 0.
    valued
        Whether a third column holds a value; edges whose value is zero are left out.
    signed
        Whether ids are any of 64 bits with a sign; `first` and `nodes` do not matter then.
    weight
        Number of the column of weights, from 3 on, 0 for none. Other columns are skipped then.
    src, dst
        uint32, where `signed` int64; receive the edges from place `count` on.
    begins, ends
        uint32; receive where in `text` the weight of each edge begins and ends. Empty where there are none.

    Returns
    -------
    status, pos, line, count, zeros
        Where the next call goes on; ``status`` is not `FINE` when the line at `pos` cannot be read.
    """
    zeros = 0
    full = len(src)
    while pos < stop and count < full:
        begin = pos
        while _blank(text[pos]):
            pos += _ONE
        char = text[pos]
        if char in (_NEWLINE, _HASH, _PERCENT):
            pos = _line_end(text, pos) + _ONE
            line += 1
            continue
        if lead != 0:
            if char != lead:
                return WRONG_LEAD, begin, line, count, zeros
            pos += _ONE
            if not _blank(text[pos]):
                return WRONG_LEAD, begin, line, count, zeros
            while _blank(text[pos]):
                pos += _ONE

        negative = signed and text[pos] == _MINUS
        if negative:
            pos += _ONE
        start = pos
        one, pos = _number(text, pos)
        if pos == start:
            return _no_number(text[pos]), begin, line, count, zeros
        if signed:
            if one > _LARGEST + np.uint64(negative):
                return BEYOND_LAST, begin, line, count, zeros
            if negative:
                one = np.uint64(0) - one
        start = pos
        while _blank(text[pos]):
            pos += _ONE
        negative = signed and text[pos] == _MINUS and pos > start
        if negative:
            pos += _ONE
        if pos == start or np.uint8(text[pos] - _ZERO) >= 10:
            return _no_number(text[pos]), begin, line, count, zeros
        two, pos = _number(text, pos)
        char = text[pos]
        if not (_blank(char) or char == _NEWLINE):
            return NOT_A_NUMBER, begin, line, count, zeros
        if signed:
            if two > _LARGEST + np.uint64(negative):
                return BEYOND_LAST, begin, line, count, zeros
            if negative:
                two = np.uint64(0) - two
        else:
            if one < first or two < first:
                return BELOW_FIRST, begin, line, count, zeros
            one -= first
            two -= first
            if one >= nodes or two >= nodes:
                return BEYOND_LAST, begin, line, count, zeros

        zero = False
        if weight:
            begin_weight, pos = _column_at(text, pos, weight - 3)
            if pos == begin_weight:
                return NO_VALUE, begin, line, count, zeros
            begins[count] = begin_weight
            ends[count] = pos
            pos = _line_end(text, pos)
        while _blank(text[pos]):
            pos += _ONE
        if valued:
            fine, zero, pos = _value(text, pos)
            if not fine:
                return NO_VALUE, begin, line, count, zeros
            while _blank(text[pos]):
                pos += _ONE
        char = text[pos]
        if char != _NEWLINE:
            if char != _HASH and char != _PERCENT:
                return EXTRA_COLUMN, begin, line, count, zeros
            pos = _line_end(text, pos)
        pos += _ONE
        line += 1
        if zero:
            zeros += 1
        else:
            src[count] = one
            dst[count] = two
            count += 1
    return FINE, pos, line, count, zeros
