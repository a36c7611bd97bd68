"""Mixing of sweeps: the shares solve the least-squares problem, and few dimensions are solved exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.cpu.rows import BLOCK_ROWS
from oocpr.engine.scc.solve import DEPTH, TERMS, least_squares, mix, record_stride
from oocpr.jit import entry


@entry(cache=False)
def record_and_mix(rows, turn, states, changes, sums, shares):
    record_stride(
        np.uint64(0), np.uint64(rows), turn, changes, np.empty((DEPTH, BLOCK_ROWS), np.float32), sums
    )
    least_squares(min(turn, DEPTH), sums, np.empty((DEPTH, DEPTH)), shares)
    mix(np.uint64(0), np.uint64(rows), turn, shares, states)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(1, DEPTH))
def test_the_shares_are_those_of_least_squares(seed, rows, older):
    random = np.random.default_rng(seed)
    states, changes = np.zeros((DEPTH + 2, rows), np.float32), np.zeros((DEPTH + 1, rows), np.float32)
    sums, shares = np.empty(TERMS), np.empty(DEPTH)
    outcomes, moved = [], []
    for turn in range(older + 1):
        y, f = random.random((2, rows)).astype(np.float32)
        states[turn % (DEPTH + 1)], changes[turn % (DEPTH + 1)] = y, f
        record_and_mix(rows, turn, states, changes, sums, shares)
        outcomes.append(y)
        moved.append(f)
    assert np.isclose(sums[0], np.abs(moved[-1]).sum(dtype=np.float64), rtol=1e-12)
    differences = np.array([moved[-1] - earlier for earlier in moved[-2::-1]]).T.astype(np.float64)
    # What least squares leave is no larger than with the shares found, but for the ridge.
    best, *_ = np.linalg.lstsq(differences, moved[-1].astype(np.float64), rcond=None)
    left = [np.linalg.norm(moved[-1] - differences @ found) for found in (best, shares[:older])]
    assert left[1] <= left[0] * (1 + 1e-4) + 1e-3 * np.linalg.norm(moved[-1])
    mixed = outcomes[-1] - sum(
        share * (outcomes[-1] - earlier) for share, earlier in zip(shares, outcomes[-2::-1], strict=False)
    )
    size = 1 + np.abs(shares[:older]).sum()
    assert np.abs(states[-1] - mixed).max() <= 1e-5 * size


def test_as_many_dimensions_as_are_mixed_are_solved_exactly():
    matrix = np.array([[0.5, 0.3], [-0.2, 0.7]], np.float32)
    target = np.linalg.solve(np.eye(2) - matrix, [1.0, 2.0])
    rows = len(matrix)
    states, changes = np.zeros((DEPTH + 2, rows), np.float32), np.zeros((DEPTH + 1, rows), np.float32)
    sums, shares = np.empty(TERMS), np.empty(DEPTH)
    x = states[-1]
    for turn in range(rows + 1):
        assert np.abs(x - target).max() > 0.1
        y = matrix @ x + np.array([1, 2], np.float32)
        states[turn % (DEPTH + 1)], changes[turn % (DEPTH + 1)] = y, y - x
        record_and_mix(rows, turn, states, changes, sums, shares)
    assert np.abs(x - target).max() < 1e-4
