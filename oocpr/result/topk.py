"""The largest values of a vector that comes in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def largest(chunks: Iterable[NDArray[np.float64]], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the `k` largest values and where they are, holding one chunk at a time.

    Parameters
    ----------
    chunks
        The vector, cut into float64 arrays of any length, in order.
    k
        How many; a shorter vector gives all it has.

    Returns
    -------
    rows : int64, shape (k,)
        Positions in the whole vector, largest value first; equal values in the order of the vector.
    values : float64, shape (k,)
        The values there.

    Examples
    --------
    >>> rows, values = largest([np.array([0.1, 0.3]), np.array([0.3, 0.2])], 3)
    >>> rows.tolist(), values.tolist()
    ([1, 2, 3], [0.3, 0.3, 0.2])
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


def rank_order(values: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Rows from the largest value to the least; equal values in the order of the vector.

    Takes 20 bytes a row, and keeps 4.

    Examples
    --------
    >>> rank_order(np.array([0.1, 0.3, 0.2, 0.3])).tolist()
    [1, 3, 2, 0]
    """
    return np.argsort(-values, kind="stable").astype(np.uint32)


def _largest_of_one(chunk: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    if k >= len(chunk):
        return np.arange(len(chunk))
    if k == 0:
        return np.empty(0, np.intp)
    edge = np.partition(chunk, len(chunk) - k)[len(chunk) - k]
    above = np.flatnonzero(chunk > edge)
    # argpartition takes any of those equal to the k-th; the first in the vector's order are wanted.
    level = np.flatnonzero(chunk == edge)[: k - len(above)]
    return np.concatenate([above, level])
