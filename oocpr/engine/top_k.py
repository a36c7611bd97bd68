"""The largest numbers of a vector, and where they are."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def largest(chunks: Iterable[NDArray[np.float64]], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Positions and values of the `k` largest of a vector that comes in float64 chunks, largest first.

    Equal values stay in the order of the vector; one chunk is held at a time.
    """
    rows = np.empty(0, np.int64)
    values = np.empty(0, np.float64)
    start = 0
    for chunk in chunks:
        found = _largest_of_one(chunk, k)
        rows = np.concatenate([rows, found + start])
        values = np.concatenate([values, chunk[found]])
        order = np.lexsort((rows, -values))[:k]
        rows, values = rows[order], values[order]
        start += len(chunk)
    return rows, values


def _largest_of_one(chunk: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    if k >= len(chunk):
        return np.arange(len(chunk))
    if k == 0:
        return np.empty(0, np.intp)
    # About as many pieces as numbers in k of them.
    piece = math.isqrt(len(chunk) // k)
    if piece >= 4:
        # There are k numbers that are no less than this one, so none below it is among the largest. NumPy's
        # partition takes 20 times as long if most numbers are equal, as zeros are, and gets few of them.
        pieces = len(chunk) // piece
        least = np.partition(chunk[: pieces * piece].reshape(pieces, piece).max(1), pieces - k)[pieces - k]
        above = np.flatnonzero(chunk > least)
        if len(above) >= k:
            return above[_largest_of_one(chunk[above], k)]
        return np.concatenate([above, np.flatnonzero(chunk == least)[: k - len(above)]])
    edge = np.partition(chunk, len(chunk) - k)[len(chunk) - k]
    above = np.flatnonzero(chunk > edge)
    # argpartition takes any of those equal to the k-th; the first in the vector's order are wanted.
    level = np.flatnonzero(chunk == edge)[: k - len(above)]
    return np.concatenate([above, level])
