"""The binned product: one order of adding for each row, whichever bin takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.cuda.baselines import Binned, BinThresholds, Matrix
from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.spmv import GATHER_PADDING, Gather
from oocpr.engine.number_formats import READS, narrow, widen

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

NODES = 5000


def stored_numbers(reads: str) -> np.ndarray:
    """Pairs of many magnitudes and both signs, zeros of both signs among them, so that every order shows."""
    rng = np.random.default_rng(7)
    rows = NODES + GATHER_PADDING
    values = rng.normal(size=(rows, 2)) * 2.0 ** rng.uniform(-30, 0, (rows, 2))
    values[rng.random(rows) < 0.1] *= 0
    values[NODES:] = 0
    return narrow(values, reads, 4.0)


def in_order(numbers: np.ndarray) -> np.floating:
    """The sum of a row as kernels/papers/binned.cu says that it is added."""
    parts = np.zeros(32, numbers.dtype)
    for k, number in enumerate(numbers):
        parts[k % 32] += number
    while len(parts) > 1:
        half = len(parts) // 2
        parts = parts[:half] + parts[half:]
    total: np.floating = parts[0]
    return total


@st.composite
def row_sizes(draw: st.DrawFn) -> list[int]:
    """Rows around the sizes at which the order turns, and some long ones."""
    edges = st.sampled_from([0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 97, 128, 1300])
    return draw(st.lists(st.one_of(edges, st.integers(0, 200)), max_size=40))


def bin_thresholds() -> st.SearchStrategy[BinThresholds]:
    """Bounds that send rows of every size to one thread, to 16 lanes and to 32."""
    bound = st.sampled_from([0, 1, 4, 6, 8, 9, 16, 33, 100, 2000])
    block = st.sampled_from([32, 64, 256, 1024])
    return st.builds(lambda a, b, block: BinThresholds(min(a, b), max(a, b), block), bound, bound, block)


@pytest.mark.parametrize("reads", READS)
def test_bounds_of_bins_change_no_bit(device: Device, reads: str) -> None:
    stored = stored_numbers(reads)
    values = widen(stored, reads)
    xp = device.xp
    there = xp.asarray(stored)

    @given(sizes=row_sizes(), thresholds=bin_thresholds(), seed=st.integers(0, 99))
    def check(sizes: list[int], thresholds: BinThresholds, seed: int) -> None:
        rng = np.random.default_rng(seed)
        lists = [np.sort(rng.choice(NODES, size, replace=False)) for size in sizes]
        columns = np.concatenate([*lists, np.empty(0)]).astype(np.uint32)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32)
        matrix = Matrix(xp.asarray(offsets), xp.asarray(columns), NODES)
        pushes, proposals = xp.full(len(sizes), np.nan), xp.full(len(sizes), np.nan, np.float32)
        Binned(device, matrix, Gather(reads, paired=True), thresholds=thresholds)(there, pushes, proposals)
        device.synchronize()
        expected = [in_order(values[row, 0]) for row in lists]
        assert download(pushes).tobytes() == np.array(expected, np.float64).tobytes()
        expected = [in_order(values[row, 1].astype(np.float32)) for row in lists]
        assert download(proposals).tobytes() == np.array(expected, np.float32).tobytes()

    check()
