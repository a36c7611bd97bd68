"""Sweeps of a component mixed: after every few of them, the combination of outcomes that changes least.

What STRIDE sweeps make of a state x is y, and f = (y - x) / w their change in what rows pass on in all. With
the differences to the strides before, f - f_j and y - y_j, the next state is y less that combination of the
latter whose combination of the former comes nearest to f. A component settles in a half to three quarters of
the sweeps; mixing after each sweep saves no more of them, and costs as much as a sweep.

Anderson, Iterative procedures for nonlinear integral equations, J. ACM 12 (1965); Pratapa, Suryanarayana and
Pask, Anderson acceleration of the Jacobi iterative method, J. Comput. Phys. 306 (2016).
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from oocpr.engine.cpu.rows import BLOCK, dot, norm
from oocpr.jit import BORROWING, inner

STRIDE = 4
"""Sweeps from one mixing to the next."""

DEPTH = 2
"""Earlier outcomes that are mixed."""

TERMS = 1 + DEPTH + DEPTH * (DEPTH + 1) // 2
"""Sums that a stride leaves of each part: its change, products of differences with it, and among them."""

_RIDGE = 1e-6
"""Relative; differences of float32 numbers are no more exact."""


@inner(**BORROWING)
def record_stride(low, high, stride, changes, differences, sums):
    """Add up what mixing needs of the rows low .. high - 1.

    Parameters
    ----------
    stride
        Number of the stride, from 0 on.
    changes
        float32, shape (DEPTH + 1, rows): f of the last strides, that of stride t in place t modulo DEPTH + 1.
    differences
        float32, shape (DEPTH, BLOCK): scratch.
    sums
        float64, shape (TERMS,): receives the sums.
    """
    older = min(stride, DEPTH)
    here = stride % (DEPTH + 1)
    for k in range(TERMS):
        sums[k] = 0.0
    for begin in range(low, high, uint64(BLOCK)):
        end = min(begin + uint64(BLOCK), high)
        count = end - begin
        f = changes[here, begin:end]
        sums[0] += norm(f, count)
        for j in range(older):
            g, mine = changes[(stride - 1 - j) % (DEPTH + 1), begin:end], differences[j]
            for i in range(count):
                mine[i] = f[i] - g[i]
            sums[1 + j] += dot(mine, f, count)
            for k in range(j + 1):
                sums[1 + DEPTH + j * (j + 1) // 2 + k] += dot(mine, differences[k], count)


@inner(**BORROWING)
def least_squares(older, totals, lower, coefficients):
    """Find the coefficients of the `older` differences: a least-squares problem, by Cholesky's way.

    `totals`, shape (TERMS,), are the sums of all parts, `lower`, shape (DEPTH, DEPTH), is scratch, and
    `coefficients`, shape (DEPTH,), receives them; zeros if the differences say nothing.
    """
    for j in range(older):
        coefficients[j] = 0.0
    for j in range(older):
        for k in range(j + 1):
            value = totals[1 + DEPTH + j * (j + 1) // 2 + k]
            if j == k:
                value *= 1.0 + _RIDGE
            for q in range(k):
                value -= lower[j, q] * lower[k, q]
            if j > k:
                lower[j, k] = value / lower[k, k]
            elif value > 0.0:
                lower[j, j] = np.sqrt(value)
            else:
                return
    for j in range(older):
        value = totals[1 + j]
        for q in range(j):
            value -= lower[j, q] * coefficients[q]
        coefficients[j] = value / lower[j, j]
    for j in range(older - 1, -1, -1):
        value = coefficients[j]
        for q in range(j + 1, older):
            value -= lower[q, j] * coefficients[q]
        coefficients[j] = value / lower[j, j]


@inner(**BORROWING)
def mix(low, high, stride, coefficients, states):
    """Make the next x of the rows low .. high - 1.

    `states`, shape (DEPTH + 2, rows), has y of the last strides in the places of their changes, then x.
    """
    x, y = states[DEPTH + 1, low:high], states[stride % (DEPTH + 1), low:high]
    for i in range(x.size):
        x[i] = y[i]
    for j in range(min(stride, DEPTH)):
        coefficient, earlier = (
            np.float32(coefficients[j]),
            states[(stride - 1 - j) % (DEPTH + 1), low:high],
        )
        for i in range(x.size):
            x[i] -= coefficient * (y[i] - earlier[i])
