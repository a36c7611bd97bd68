"""What a run hands back: the vector, how good it is, and how it got there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import DamagedError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class PassRecord:
    """One traversal of the stored graph.

    Parameters
    ----------
    number
        1 for the first pass.
    residual
        L1 norm of the residual over the sum of the ranks, after the pass.
    bound
        Certified L1 error of the ranks, had the run stopped here.
    gathers
        Edges gathered, tile-local sweeps included, in units of the graph's edges.
    seconds
        Wall time of the pass.
    bytes_read
        Encoded bytes that came from the store, not from a cache.
    wait_seconds
        Time in which the computation waited for bytes.
    """

    number: int
    residual: float
    bound: float
    gathers: float
    seconds: float
    bytes_read: int
    wait_seconds: float


@dataclass(frozen=True)
class Solution:
    """The outcome of a run.

    Parameters
    ----------
    ranks
        float64, shape (nodes,), store order, sums to 1.
    error_bound
        Certified bound on the L1 distance from the exact ranks.
    converged
        Whether the run stopped because it was good enough.
    history
        One record a pass.
    peak_memory
        Largest resident set of this process so far, in bytes.
    peak_device_memory
        Most bytes taken of a device with a memory of its own; 0 without one.
    """

    ranks: NDArray[np.float64]
    error_bound: float
    converged: bool
    history: tuple[PassRecord, ...]
    method: str
    reads: str
    damping: float
    tol: float
    seconds: float
    peak_memory: int
    peak_device_memory: int = 0

    @property
    def passes(self) -> int:
        """Traversals of the stored graph."""
        return len(self.history)

    @property
    def gathers(self) -> float:
        """Gathered edges in units of the graph's edges."""
        return sum(record.gathers for record in self.history)

    @property
    def bytes_read(self) -> int:
        """Encoded bytes that came from the store."""
        return sum(record.bytes_read for record in self.history)


def as_distribution(ranks: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
    """Scale ranks, in place, to a sum of one, and clip what rounding has made negative.

    The exact ranks are at least zero, so clipping brings no rank farther from its exact one. A bound that is
    one leaves no rank, and no sum of negative ranks, farther below zero than itself: for ranks that cannot
    have the L1 error `bound`, of a store that must contradict itself, DamagedError is raised.

    Examples
    --------
    >>> as_distribution(np.array([3.0, 1.0, -1e-17]), 1e-10).tolist()
    [0.75, 0.25, 0.0]
    """
    total = float(ranks.sum())
    if math.isfinite(total) and total != 0:
        ranks /= total
        least = float(ranks.min())
        if least < 0:
            np.maximum(ranks, 0.0, out=ranks)
        if -bound <= least and abs(float(ranks.sum()) - 1) <= bound + _ROUNDING:
            return ranks
    raise DamagedError(
        f"What came out sums to {total:g} and is not what ranks with an L1 error of {bound:.2g} can be: the "
        "store contradicts itself."
    )


_ROUNDING = 1e-12
"""More than pairwise sums of as many numbers as a graph has nodes are wrong by, of what sums to one."""
