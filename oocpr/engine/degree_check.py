"""Whether a store's out-degrees are those of its edges: what the first pass of a run has to add up to.

A run divides by out-degrees that it reads, and passes along edges that it reads elsewhere; if the two
contradict each other its error bound means nothing. Two laws show that, at next to no cost.

Every edge is counted for the node that it leaves: with a mark of 32 bits for each node, the sum of the marks
of the columns of all edges is the sum of out-degree times mark, modulo 2^64, so nothing is rounded. Marks
depend on a key drawn for each run, so nobody can make a store for them; no two nodes have the same mark, so a
contradiction of two nodes is always found, any other but for a chance of about one in 2^32. Processors add
marks up, eight at a time, while they have the columns decoded; CUDA devices do not.

What is pushed arrives: of a push y, in units of out-degree, the nodes lose the sum of y times out-degree (or
out-weight) and get the damping times the sum of y over the columns of all edges (times their weights); what
the damping keeps back follows the teleport vector. So the residual of the first pass sums to zero, but for N
units of rounding of the mass at most, N being a little more than the number of nodes and edges. What this law
alone cannot see are contradictions that cancel in the first push, or are as small as its rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import uint32, uint64

from oocpr.engine.method import Balance, Claims
from oocpr.errors import DamagedError
from oocpr.jit import entry, inner
from oocpr.store.integrity import check_dangling, check_degree_sum
from oocpr.system import in_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backend import PushSums, StripeSpec
    from oocpr.engine.tiles.source import RankedStore


MODULUS = 2**64
"""Sums are taken modulo this."""


@inner(inline="always")
def _mark(node, first, second):
    # Two multiplications with odd numbers and two shifts, each of which can be undone.
    mark = uint32(uint32(node) * first)
    mark = uint32(uint32(mark ^ (mark >> uint32(16))) * second)
    return uint32(mark ^ (mark >> uint32(15)))


@inner()
def add_marks(columns, first, end, key):
    """Sum of the marks of ``columns[first:end]``, modulo 2^64."""
    one = uint32(uint64(key) | uint64(1))
    other = uint32((uint64(key) >> uint64(31)) | uint64(1))
    total = uint64(0)
    for i in range(uint64(first), uint64(end)):
        total += uint64(_mark(columns[i], one, other))
    return total


@entry()
def column_marks(columns, key):
    """Sum of the marks of columns, uint32, modulo 2^64; the key is positive.

    >>> import numpy as np
    >>> columns = np.array([1, 0, 1], np.uint32)
    >>> column_marks(columns, 7) == degree_marks(np.array([1, 2], np.uint32), 0, 7)
    True
    """
    return add_marks(columns, 0, columns.size, key)


@entry()
def degree_marks(degree, first, key):
    """Sum of out-degree times mark, modulo 2^64, over the nodes from `first` on; uint32 degrees.

    >>> import numpy as np
    >>> degree = np.array([3, 1], np.uint32)
    >>> bool(degree_marks(degree, 0, 7) == degree_marks(degree[::-1].copy(), 0, 7))
    False
    """
    one = uint32(uint64(key) | uint64(1))
    other = uint32((uint64(key) >> uint64(31)) | uint64(1))
    total = uint64(0)
    for i in range(uint64(degree.size)):
        total += uint64(degree[i]) * uint64(_mark(uint64(first) + i, one, other))
    return total


_UNIT = 2.0**-53
_OTHER_ROUNDINGS = 64  # the push itself, the products, the teleport vector


def claims_of(store: RankedStore, spec: StripeSpec, degree: NDArray[Any], key: int) -> Claims:
    """Add up what a store says of a stripe's rows, whose ranks are divided by `degree`, 0 for none.

    `key` is 0 if no backend adds up the marks of columns.
    """

    def add_up(lo: int, hi: int) -> tuple[int, int, int]:
        own = part = degree[lo:hi]
        if store.weights is not None:
            part = store.out_degree(spec.row_begin + lo, spec.row_begin + hi)
        marks = int(degree_marks(part, spec.row_begin + lo, key)) if key else 0
        return int(part.sum(dtype="u8")), marks, int(own.size - np.count_nonzero(own))

    sums = [sum(part) for part in zip(*in_threads(add_up, spec.rows), strict=True)] or [0, 0, 0]
    return Claims(sums[0], sums[1] % MODULUS, sums[2], store.edges, store.dangling)


def check_balance(
    origin: str,
    balances: Sequence[Balance],
    pushed: Sequence[PushSums],
    carries: Sequence[float],
    nodes: int,
) -> None:
    """Raise DamagedError for a store whose out-degrees or out-weights are not those of its edges.

    `balances`, `pushed` and `carries` are what each stripe reports of the first pass, what it pushed, and
    what it owes the next one's first row.
    """
    claims = balances[0].claims
    degrees = sum(part.claims.degrees for part in balances)
    check_degree_sum(origin, degrees, claims.edges)
    check_dangling(origin, sum(part.claims.dangling for part in balances), claims.all_dangling)
    marks = [part.marks for part in balances if part.marks is not None]
    claimed = sum(part.claims.marks for part in balances)
    if len(marks) == len(balances) and (sum(marks) - claimed) % MODULUS:
        raise DamagedError(f"{origin}: the out-degrees are not those of the edges in the tiles.")
    parts = [part.mass for part in pushed], [*(part.residual for part in balances), *carries]
    # Numbers of which each is as large as can be have no sum, and sound stores have none of them.
    usual = all(abs(number) <= 1 / _UNIT for numbers in parts for number in numbers)
    mass, appeared = map(math.fsum, parts) if usual else (0.0, math.inf)
    if not abs(appeared) <= 2 * _UNIT * (nodes + claims.edges + _OTHER_ROUNDINGS) * mass:
        raise DamagedError(
            f"{origin}: of a mass of {mass:g} a pass along all edges makes {mass + appeared:.17g}: the "
            "out-degrees or out-weights are not those of the edges in the tiles."
        )
