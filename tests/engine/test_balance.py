"""Degrees against edges, in the sums of the first pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from oocpr import open_graph, pagerank
from oocpr.engine.degree_check import MODULUS, column_marks, degree_marks
from oocpr.engine.method import as_distribution, checked_total
from oocpr.errors import DamagedError
from oocpr.sources import open_source

from .running import build


def mark(node: int, key: int) -> int:
    """The mark of a node in Python's integers."""
    first, second = (key | 1) % 2**32, (key >> 31 | 1) % 2**32
    number = node * first % 2**32
    number = (number ^ number >> 16) * second % 2**32
    return number ^ number >> 15


@pytest.mark.parametrize("key", [1, 12345, 2**63 - 1, 0x1234_5678_9ABC_DEF0])
def test_marks_are_those_of_whole_numbers_and_no_two_are_alike(key):
    rng = np.random.default_rng(key)
    columns = rng.integers(0, 2**32, 5000, dtype=np.uint32)
    assert int(column_marks(columns, key)) == sum(mark(int(c), key) for c in columns) % MODULUS
    degree = rng.integers(0, 2**32, 1000, dtype=np.uint32)
    claimed = sum(int(d) * mark(v, key) for v, d in enumerate(degree, 700)) % MODULUS
    assert int(degree_marks(degree, 700, key)) == claimed
    assert len({mark(v, key) for v in range(20_000)}) == 20_000


def replaced(path: Path, name: str, values: np.ndarray) -> None:
    """Write entries anew, as nobody who knows the format would forbid."""
    zarr.open_array(str(path / name), mode="r+")[:] = values


def pairs() -> np.ndarray:
    edges = np.random.default_rng(3).integers(0, 200, (900, 2))
    return np.unique(edges, axis=0).T


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("method", ["mixed", "residual", "power"])
def test_swapped_degrees_are_refused(tmp_path, device, method):
    src, dst = pairs()
    path = tmp_path / "g.zarr"
    build(open_source((src, dst)), path, 128)
    assert pagerank(str(path), method=method, device=device).converged
    degree = open_graph(path).store.out_degree(0, 200)
    other = int(np.flatnonzero(degree != degree[0])[0])
    degree[[0, other]] = degree[[other, 0]]
    replaced(path, "out_degree", degree)
    with pytest.raises(DamagedError, match="out-degrees are not those of the edges"):
        pagerank(str(path), method=method, device=device)


def test_what_is_certified_is_a_distribution_but_for_its_bound():
    sound = as_distribution(np.array([0.5, 0.5, -1e-17]), 1e-10)
    assert sound.tolist() == [0.5, 0.5, 0.0]
    for wrong in ([0.5, 0.6, -0.1], [0.5, np.nan, 0.5], [0.0, 0.0], [np.inf, 1.0]):
        with pytest.raises(DamagedError, match="contradicts itself"):
            as_distribution(np.array(wrong), 1e-10)


@pytest.mark.parametrize("sign", [1, -1])
def test_ranks_sum_to_what_was_pushed(sign: int) -> None:
    for far in (0.0, 1e-12, 1e-10):
        ranks, pushed = sign * np.array([0.3, 0.5]), sign * (0.8 + far)
        above, below = max(0.0, 0.8 * sign), min(0.0, 0.8 * sign)
        if far < 1e-11:
            assert as_distribution(ranks.copy(), 1e-3, pushed) == pytest.approx([0.375, 0.625])
            assert checked_total(above, below, 1e-3, pushed) == 0.8 * sign
            continue
        with pytest.raises(DamagedError, match="contradicts itself"):
            as_distribution(ranks, 1e-3, pushed)
        with pytest.raises(DamagedError, match="contradicts itself"):
            checked_total(above, below, 1e-3, pushed)
    # Of those on the other side of zero there may be as many as the bound.
    assert checked_total(sign * 0.8, -sign * 1e-4, 1e-3, sign * (0.8 - 1e-4)) == sign * (0.8 - 1e-4)
    with pytest.raises(DamagedError, match="contradicts itself"):
        checked_total(sign * 0.8, -sign * 1e-2, 1e-3, sign * (0.8 - 1e-2))


@pytest.mark.parametrize("rank", [0.1, 1 / 3, 7e-9])
def test_rounding_of_long_sums_is_no_contradiction(rank: float) -> None:
    # Added up one after the other, these sums are wrong by more than 1e-12.
    alike = np.full(2**20 + 9, rank)
    assert as_distribution(alike, 0.0).sum() == pytest.approx(1, abs=1e-15)
