"""Sweeps inside blocks of neighbouring rows against plain NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from oocpr.engine.backend import StripeSpec, SweepStep
from oocpr.engine.cuda.backend import (
    DIAGONAL_ROWS,
    SLICE_LANES,
    SLICES,
    CudaBackend,
    find_diagonal_blocks,
    sweep_diagonal_blocks,
)
from oocpr.engine.cuda.device import THREADS, download, upload
from oocpr.engine.cuda.vectors import TileRows
from oocpr.engine.number_formats import narrow, widen

from .tiles import placed

if TYPE_CHECKING:
    from oocpr.engine.cuda.backend import DiagonalBlocks
    from oocpr.engine.cuda.device import Device

FIRST, BEHIND = 40, 300
"""Nodes before the tile's rows and behind them."""


def near_tile(owned: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows that mostly link to their neighbours, some to themselves; some are empty, some long."""
    rng = np.random.default_rng(seed)
    nodes = FIRST + owned + BEHIND
    rows = []
    for row in range(owned):
        near = FIRST + row + rng.integers(-60, 60, rng.poisson(6) * (rng.random() < 0.8))
        near = near if row % 100 else np.arange(FIRST, FIRST + owned)
        far = rng.integers(0, nodes, rng.poisson(2))
        rows.append(np.unique(np.concatenate([near, far])[: nodes // 2].clip(0, nodes - 1)))
    rows.append(np.array([3, FIRST, FIRST + 5]))
    return np.concatenate(rows).astype(np.uint32), np.array([row.size for row in rows], np.uint32)


def inside(tile: tuple[np.ndarray, np.ndarray], owned: int) -> np.ndarray:
    """Whether row i links to row j and both are in the same island."""
    columns, lengths = tile
    row = np.repeat(np.arange(lengths.size), lengths)
    column = columns.astype(np.int64) - FIRST
    kept = (row < owned) & (column >= 0) & (column < owned)
    kept &= row // DIAGONAL_ROWS == column // DIAGONAL_ROWS
    links = np.zeros((owned, owned), bool)
    links[row[kept], column[kept]] = True
    return links


def listed(blocks: DiagonalBlocks, owned: int) -> np.ndarray:
    """The same as the blocks have it."""
    before, order, selves, words = (
        download(array) for array in (blocks.before, blocks.order, blocks.selves, blocks.edges)
    )
    links = np.zeros((owned, owned), bool)
    for island in range(blocks.count):
        numbers = order[THREADS * island : THREADS * (island + 1)]
        assert np.array_equal(np.sort(numbers), np.arange(THREADS))
        for place, number in enumerate(numbers):
            slice_ = SLICES * island + place // SLICE_LANES
            row = DIAGONAL_ROWS * island + int(number)
            own = bool(selves[slice_] >> (place % SLICE_LANES) & 1)
            four = words.reshape(-1, SLICE_LANES)[before[slice_] : before[slice_ + 1]]
            linked = np.ascontiguousarray(four[:, place % SLICE_LANES]).view(np.uint8)
            linked = linked[linked < DIAGONAL_ROWS]
            if number == DIAGONAL_ROWS or row >= owned:
                assert not own
                assert not linked.size
                continue
            assert np.unique(linked).size == linked.size
            links[row, DIAGONAL_ROWS * island + linked.astype(np.int64)] = True
            assert not links[row, row]
            links[row, row] = own
    return links


@pytest.mark.parametrize("owned", [1, 31, 255, 256, 700])
def test_all_links_inside_are_listed_once(device: Device, owned: int) -> None:
    tile = near_tile(owned)
    blocks = find_diagonal_blocks(device, placed(device, *tile), owned, FIRST, FIRST + owned + BEHIND)
    assert blocks.count == -(-owned // DIAGONAL_ROWS)
    assert np.array_equal(listed(blocks, owned), inside(tile, owned))


def test_tiles_without_rows_or_links_have_no_links_inside(device: Device) -> None:
    tail = placed(device, np.array([1, 2], np.uint32), np.array([2], np.uint32))
    assert find_diagonal_blocks(device, tail, 0, FIRST, FIRST).count == 0
    empty = placed(device, np.array([], np.uint32), np.zeros(301, np.uint32))
    blocks = find_diagonal_blocks(device, empty, 300, 0, 300)
    assert blocks.count == 2
    assert not listed(blocks, 300).any()


@pytest.mark.long
@pytest.mark.parametrize(("reads", "paired"), [("float32", True), ("bits16", True), ("bits16", False)])
@pytest.mark.parametrize("turns", [1, 4])
def test_sweeps(device: Device, reads: str, paired: bool, turns: int) -> None:
    owned, offset, slots = 600, 17, 2
    rng = np.random.default_rng(turns)
    tile, nodes = near_tile(owned, 1), FIRST + owned + BEHIND
    backend = CudaBackend(device, pairs=paired)
    spec = StripeSpec(0, 1, FIRST - offset, FIRST + owned, nodes, slots, True, reads)
    degree = rng.integers(0, 9, spec.rows).astype(np.uint32)
    state, numbers = backend.allocate(spec, degree, None), backend.allocate_reads(nodes, reads, True)
    held, stored = rng.random(spec.rows).astype(np.float32), narrow(rng.random(spec.rows), reads, 1.0)
    upload(state.push, held)
    upload(state.stored[: spec.rows], stored)
    start = rng.random(owned).astype(np.float32)
    step = SweepStep(0.85, 0.15, 0.0, 1 + turns, 1, (1,), 1.0)
    rows = TileRows(0, FIRST, owned, offset, 0)
    blocks = find_diagonal_blocks(device, placed(device, *tile), owned, FIRST, nodes)
    sweep_diagonal_blocks(device, blocks, device.xp.asarray(start), state, rows, step, numbers, turns)
    device.synchronize()

    links = inside(tile, owned)
    own, others = np.diag(links), links & ~np.eye(owned, dtype=bool)
    share = 0.85 / np.maximum(1, degree[offset:])
    gain = np.where(own, 1 / (1 - share), 1)
    value = gain * start
    for _ in range(turns):
        value = gain * (start + others @ (share * value))
    push = download(state.push)
    assert np.array_equal(push[:offset], held[:offset])
    np.testing.assert_allclose(push[offset:], value, rtol=2e-5)
    pushed = widen(stored, reads)[offset:] * np.maximum(1, degree[offset:])
    steps = widen(download(state.steps), "bits16")
    expected = pushed + value - held[offset:]
    assert not steps[0].any()
    assert not steps[1, :offset].any()
    # Half a unit of eight bits of fraction, and float32 in the value.
    assert np.all(np.abs(steps[1, offset:] - expected) <= np.abs(expected) / 256 + 2e-5 * (1 + value))
    gathered = download(numbers.array)
    if not paired:
        assert not gathered.any()
        return
    inner = slice(FIRST, FIRST + owned)
    assert not gathered[:, 0].any()
    assert not np.delete(gathered[:, 1], np.arange(FIRST, FIRST + owned)).any()
    close = 2e-5 if reads == "float32" else 1 / 250
    np.testing.assert_allclose(
        widen(gathered[inner, 1], reads), value / np.maximum(1, degree[offset:]), rtol=close
    )
