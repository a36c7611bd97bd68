"""Matrices whose rows are what kernels stumble over, and numbers whose sums are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse

from oocpr.engine.cuda.baselines import Matrix
from oocpr.engine.cuda.spmv import GATHER_PADDING
from oocpr.engine.number_formats import READS, narrow, widen

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device


def rows_of(name: str) -> scipy.sparse.csr_array:
    """A matrix of zeros and ones."""
    rng = np.random.default_rng(3)
    if name == "empty":
        return scipy.sparse.csr_array((5, 9))
    if name == "one":
        return scipy.sparse.csr_array(np.ones((1, 1)))
    if name == "sizes":
        # Rows of 0 to 130 edges, so around every threshold, and no multiple of anything in number.
        sizes = rng.permutation(131)
        nodes = 389
    elif name == "hubs":
        sizes = np.where(rng.random(700) < 0.6, 0, rng.geometric(0.3, 700))
        sizes[[0, 350, 699]] = 2900, 1, 3001
        nodes = 3001
    else:
        sizes = rng.poisson(4, 1000)
        nodes = 1000
    columns = np.concatenate([np.sort(rng.choice(nodes, size, replace=False)) for size in sizes])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return scipy.sparse.csr_array((np.ones(len(columns)), columns, offsets), (len(sizes), nodes))


NAMES = ("empty", "one", "sizes", "hubs", "even")


def matrix_on(device: Device, rows: scipy.sparse.csr_array) -> Matrix:
    """The same on a device."""
    xp = device.xp
    degrees = np.maximum(1, np.asarray(rows.sum(axis=0)).ravel()).astype(np.uint32)
    return Matrix(
        xp.asarray(rows.indptr.astype(np.uint32)),
        xp.asarray(rows.indices.astype(np.uint32)),
        rows.shape[1],
        xp.asarray(degrees),
    )


def exact_numbers(reads: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Stored numbers, zeros behind them, and what they stand for: all sums of those are exact."""
    rng = np.random.default_rng(8)
    if reads == "bits8":
        values = rng.choice([-1, 1], shape) * np.exp2(rng.integers(-8, 1, shape))
    else:
        values = rng.integers(-128, 129, shape).astype(np.float64)
    stored = np.zeros((shape[0] + GATHER_PADDING, *shape[1:]), READS[reads].dtype)
    stored[: shape[0]] = narrow(values, reads)
    assert np.array_equal(widen(stored[: shape[0]], reads), values)
    return stored, values
