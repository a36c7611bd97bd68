"""Weights that are written as decimal numbers, as float64."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numba
import numpy as np

from oocpr.sources.weights import first_wrong

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.errors import InputError

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS = re.compile(rb"[+-]?(nan|inf(inity)?)", re.IGNORECASE)

_PLUS, _DOT, _ZERO = (np.uint8(ord(char)) for char in "+.0")


@numba.njit(cache=True, nogil=True)
def _gather(text, begins, ends, out, offsets):  # type: ignore[no-untyped-def]
    """Put the words end to end, without plus signs; `offsets` say where they begin."""
    at = np.int32(0)
    for k in range(begins.size):
        offsets[k] = at
        begin = begins[k]
        if text[begin] == _PLUS and begin + 1 < ends[k]:
            follows = text[begin + 1]
            begin += follows == _DOT or np.uint8(follows - _ZERO) < 10
        for i in range(begin, ends[k]):
            out[at] = text[i]
            at += 1
    offsets[begins.size] = at
    return at


def parsed(
    text: NDArray[np.uint8],
    begins: NDArray[np.uint32],
    ends: NDArray[np.uint32],
    refuse: Callable[[int, str], InputError],
) -> NDArray[np.float64]:
    """Read weights that are written as decimal numbers, each rounded to the nearest float64.

    Parameters
    ----------
    text
        uint8.
    begins, ends
        Weight k is ``text[begins[k]:ends[k]]``; uint32, shape (k,).
    refuse
        Makes the error for a weight, given its number and what is wrong with it.

    Examples
    --------
    >>> text = np.frombuffer(b"0.1 +2e3", np.uint8)
    >>> places = np.array([[0, 3], [4, 8]], np.uint32)
    >>> parsed(text, places[:, 0], places[:, 1], lambda k, why: ValueError(why))
    array([1.e-01, 2.e+03])
    """
    import pyarrow as pa

    count = begins.size
    out = np.empty(int((ends - begins).sum(dtype=np.int64)), np.uint8)
    offsets = np.empty(count + 1, np.int32)
    size = _gather(text, begins, ends, out, offsets)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[:size])]
    words = pa.Array.from_buffers(pa.binary(), count, buffers)
    try:
        found = words.cast(pa.string()).cast(pa.float64())
        weights = np.frombuffer(found.buffers()[1], np.float64, count).copy()
    except pa.ArrowInvalid:
        weights = _one_by_one(words.to_pylist(), refuse)
    wrong = first_wrong(weights)
    if wrong is not None:
        raise refuse(*wrong)
    weights += 0.0  # -0.0 + 0.0 is 0.0
    return weights


def _one_by_one(words: list[bytes], refuse: Callable[[int, str], InputError]) -> NDArray[np.float64]:
    """Read numbers of which one at least is unusual."""
    for k, word in enumerate(words):
        if not _NUMBER.fullmatch(word):
            raise refuse(k, "not finite" if _WORDS.fullmatch(word) else "no number")
        if not 0 <= float(word) < np.inf:
            raise refuse(k, "negative" if -np.inf < float(word) < 0 else "not finite")
    return np.array([float(word) for word in words])
