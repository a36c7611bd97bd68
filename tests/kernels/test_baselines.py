"""The products of other systems against SciPy; numbers are such that every order of adding gives the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.cuda.baselines import (
    BASELINES,
    Binned,
    BinThresholds,
    Chunked,
    Matrix,
    RowLanes,
    Sell,
    allocated,
)
from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.spmv import EVERYTHING, GATHER_PADDING, Gather
from oocpr.engine.number_formats import READS, narrow, widen

from .matrices import NAMES, exact_numbers, matrix_on, rows_of

if TYPE_CHECKING:
    from oocpr.engine.cuda.baselines import Product
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.spmv import Window

NARROW = [name for name, baseline in BASELINES.items() if not baseline.divides]


def sums(
    device: Device, product: Product, matrix: Matrix, stored: np.ndarray, window: Window = EVERYTHING
) -> tuple[np.ndarray, np.ndarray]:
    """What a product leaves in its two vectors, filled with nonsense before, as its layout is; done twice."""
    xp, rows = device.xp, matrix.rows
    reads = xp.asarray(stored)
    pushes, proposals = xp.full(rows, np.nan), xp.full(rows, np.nan, np.float32)
    laid = allocated(device, product.arrays(rows, matrix.edges, matrix.nodes))
    for nonsense in (0x55, 0xAA):
        for array in laid.values():
            array.view(np.uint8)[:] = nonsense
        product.lay_out(matrix, laid)
        product(matrix, laid, reads, pushes, proposals if stored.ndim == 2 else None, window)
    device.synchronize()
    return download(pushes), download(proposals)


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("rows", NAMES)
def test_sums_of_rows(device: Device, name: str, rows: str) -> None:
    matrix = rows_of(rows)
    stored, values = exact_numbers("bits16", (matrix.shape[1],))
    product = BASELINES[name].make(device, Gather("bits16"))
    pushes, _ = sums(device, product, matrix_on(device, matrix), stored)
    assert np.array_equal(pushes, matrix @ values)


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("reads", READS)
def test_every_format_in_pairs(device: Device, name: str, reads: str) -> None:
    matrix = rows_of("sizes")
    stored, values = exact_numbers(reads, (matrix.shape[1], 2))
    first, past = window = 100, 350
    product = BASELINES[name].make(device, Gather(reads, paired=True, striped=True))
    pushes, proposals = sums(device, product, matrix_on(device, matrix), stored, window)
    values[:first, 1] = values[past:, 1] = 0
    assert np.array_equal(np.stack([pushes, proposals], axis=1), matrix @ values)


@pytest.mark.parametrize("name", NARROW)
def test_columns_that_are_no_nodes_gather_zeros(device: Device, name: str) -> None:
    # As of a partition: those outside have its number of nodes, before and behind those inside.
    matrix, first, past = rows_of("sizes"), 100, 251
    there = matrix_on(device, matrix)
    inside = (matrix.indices >= first) & (matrix.indices < past)
    columns = np.where(inside, matrix.indices - first, past - first).astype(np.uint32)
    stored, values = exact_numbers("bits16", (past - first,))
    options = {"size": 64} if name == "chunked" else {}
    product = BASELINES[name].make(device, Gather("bits16"), **options)
    part = Matrix(there.offsets, device.xp.asarray(columns), past - first)
    assert np.array_equal(sums(device, product, part, stored)[0], matrix[:, first:past] @ values)


@pytest.mark.parametrize("rows", NAMES)
def test_edges_that_divide(device: Device, rows: str) -> None:
    matrix = rows_of(rows)
    there = matrix_on(device, matrix)
    stored, values = exact_numbers("float64", (matrix.shape[1],))
    degrees = download(there.degrees)
    stored[: len(values)] *= degrees
    product = BASELINES["edges"].make(device, Gather("float64"))
    assert np.array_equal(sums(device, product, there, stored)[0], matrix @ values)


def test_edges_that_divide_take_nothing_else(device: Device) -> None:
    with pytest.raises(ValueError, match="single float64"):
        BASELINES["edges"].make(device, Gather("bits16"))


@pytest.mark.parametrize("reads", READS)
def test_what_a_node_gives_to_each_link_is_divided_once(device: Device, reads: str) -> None:
    xp = device.xp
    rng = np.random.default_rng(0)
    pushed, degrees = rng.random(300), rng.integers(0, 9, 300).astype(np.uint32)
    scale = 2.0
    form = {"float64": "Float64", "float32": "Float32", "bits16": "Bits16", "bits8": "Bits8"}[reads]
    stored = xp.zeros(300, READS[reads].dtype)
    kernel = device.load("papers/edges.cu", READS=form).get_function("exchange")
    kernel((2,), (256,), (xp.asarray(pushed), xp.asarray(degrees), np.uint32(300), np.float64(scale), stored))
    expected = np.where(degrees > 0, pushed / np.maximum(degrees, 1), 0)
    assert np.array_equal(download(stored), narrow(expected, reads, scale))


@pytest.mark.parametrize("rows", NAMES)
@pytest.mark.parametrize(
    "make",
    [
        *(partial(RowLanes, lanes=lanes) for lanes in (2, 4, 8)),
        *(
            partial(Binned, thresholds=thresholds)
            for thresholds in (BinThresholds(0, 0), BinThresholds(1, 16, 32), BinThresholds(5000, 5000))
        ),
        *(partial(Sell, window=window) for window in (32, 64, 96, 1 << 20)),
        *(partial(Chunked, size=size, lanes=1) for size in (1, 64, 1000)),
    ],
)
def test_tuned_otherwise(device: Device, rows: str, make: Callable[..., Product]) -> None:
    matrix = rows_of(rows)
    stored, values = exact_numbers("bits16", (matrix.shape[1],))
    product = make(device, Gather("bits16"))
    assert np.array_equal(sums(device, product, matrix_on(device, matrix), stored)[0], matrix @ values)


@pytest.mark.parametrize("threads", [64, 512, 1024])
@pytest.mark.parametrize("name", NARROW)
def test_threads_of_a_block_change_no_sum(device: Device, name: str, threads: int) -> None:
    matrix = rows_of("hubs")
    stored, values = exact_numbers("bits16", (matrix.shape[1],))
    product = BASELINES[name].make(device, Gather("bits16"))
    product.threads = threads
    assert np.array_equal(sums(device, product, matrix_on(device, matrix), stored)[0], matrix @ values)


@pytest.mark.parametrize("name", [name for name in NARROW if BASELINES[name].fixed_bits])
def test_bits_are_the_same_in_both_orders_and_every_run(device: Device, name: str) -> None:
    # The threads of the host run in both orders; the expected bits are those of the first device.
    matrix = rows_of("hubs")
    rng = np.random.default_rng(1)
    stored = np.zeros(matrix.shape[1] + 4)
    stored[:-4] = rng.standard_normal(matrix.shape[1]) * np.exp2(rng.integers(-30, 30, matrix.shape[1]))
    product = BASELINES[name].make(device, Gather("float64"))
    first, _ = sums(device, product, matrix_on(device, matrix), stored)
    size = matrix @ np.abs(stored[:-4])
    assert np.all(np.abs(first - matrix @ stored[:-4]) <= 1e-13 * size)
    key = (name, device.warp, device.name.startswith("host"))
    assert np.array_equal(first, SEEN.setdefault(key, first))


SEEN: dict[tuple[str, int, bool], np.ndarray] = {}


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


@pytest.mark.long
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
        product = Binned(device, Gather(reads, paired=True), thresholds=thresholds)
        product(matrix, product.lay_out(matrix), there, pushes, proposals)
        device.synchronize()
        expected = [in_order(values[row, 0]) for row in lists]
        assert download(pushes).tobytes() == np.array(expected, np.float64).tobytes()
        expected = [in_order(values[row, 1].astype(np.float32)) for row in lists]
        assert download(proposals).tobytes() == np.array(expected, np.float32).tobytes()

    check()
