"""Sweeps inside blocks of neighbouring rows against plain NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from oocpr.engine.backend import StripeSpec, SweepStep
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.device import THREADS, download, upload
from oocpr.engine.cuda.diagonal_blocks import (
    SLICE_LANES,
    SLICES,
    find_diagonal_blocks,
    sweep_diagonal_blocks,
)
from oocpr.engine.cuda.vectors import GroupRows
from oocpr.engine.number_formats import narrow, widen
from oocpr.plan.tile_groups import DIAGONAL_ROWS

from .tiles import cut_rows, placed

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.diagonal_blocks import DiagonalBlocks

    from .tiles import Tile

FIRST, BEHIND = 40, 300
"""Nodes before the tile's rows and behind them."""


def near_tiles(owned: int, tile_edges: int = 2**20, seed: int = 0) -> list[Tile]:
    """Rows that mostly link to their neighbours, some to themselves; some are empty, some long.

    In tiles of so many edges, of which the last goes on with a row of another group.
    """
    rng = np.random.default_rng(seed)
    nodes = FIRST + owned + BEHIND
    rows = []
    for row in range(owned):
        near = FIRST + row + rng.integers(-60, 60, rng.poisson(6) * (rng.random() < 0.8))
        near = near if row % 100 else np.arange(FIRST, FIRST + owned)
        far = rng.integers(0, nodes, rng.poisson(2))
        rows.append(np.unique(np.concatenate([near, far])[: nodes // 2].clip(0, nodes - 1)))
    lengths = np.array([row.size for row in rows], np.uint32)
    *others, (columns, sizes) = cut_rows(np.concatenate(rows).astype(np.uint32), lengths, tile_edges)
    sizes[-1] = 3
    return [*others, (np.append(columns, [3, FIRST, FIRST + 5]).astype(np.uint32), sizes)]


def blocks_of(of: list[Tile]) -> list[range]:
    """Rows of the group in each diagonal block: no more than fit, all of one tile."""
    found, row = [], 0
    for _, lengths in of:
        past = row + lengths.size - 1
        found += [range(first, min(past, first + DIAGONAL_ROWS)) for first in range(row, past, DIAGONAL_ROWS)]
        row = past
    return found


def inside(of: list[Tile], owned: int) -> np.ndarray:
    """Whether row i links to row j, both in the same diagonal block, and the link is in their tile."""
    diagonal = np.repeat(np.arange(len(blocks_of(of))), [len(rows) for rows in blocks_of(of)])
    links = np.zeros((owned, owned), bool)
    first = 0
    for columns, lengths in of:
        own = lengths.size - 1
        row = first + np.repeat(np.arange(lengths.size), lengths)
        column = columns.astype(np.int64) - FIRST
        kept = (row < first + own) & (column >= 0) & (column < owned)
        row, column = row[kept], column[kept]
        same = diagonal[row] == diagonal[column]
        links[row[same], column[same]] = True
        first += own
    return links


def listed(blocks: DiagonalBlocks, of: list[Tile], owned: int) -> np.ndarray:
    """The same as the blocks have it."""
    before, order, selves, words = (
        download(array) for array in (blocks.before, blocks.order, blocks.selves, blocks.edges)
    )
    links = np.zeros((owned, owned), bool)
    rows_of = blocks_of(of)
    assert blocks.count == len(rows_of)
    for diagonal, rows in enumerate(rows_of):
        numbers = order[THREADS * diagonal : THREADS * (diagonal + 1)]
        assert np.array_equal(np.sort(numbers), np.arange(THREADS))
        for place, number in enumerate(numbers.tolist()):
            slice_ = SLICES * diagonal + place // SLICE_LANES
            own = bool(selves[slice_] >> (place % SLICE_LANES) & 1)
            four = words.reshape(-1, SLICE_LANES)[before[slice_] : before[slice_ + 1]]
            linked = np.ascontiguousarray(four[:, place % SLICE_LANES]).view(np.uint8)
            linked = linked[linked < DIAGONAL_ROWS]
            if number >= len(rows):
                assert not own
                assert not linked.size
                continue
            assert np.unique(linked).size == linked.size
            row = rows[number]
            links[row, rows.start + linked.astype(np.int64)] = True
            assert not links[row, row]
            links[row, row] = own
    return links


@pytest.mark.parametrize("tile_edges", [2**20, 1000, 300])
@pytest.mark.parametrize("owned", [1, 31, 255, 256, 700])
def test_all_links_inside_are_listed_once(device: Device, owned: int, tile_edges: int) -> None:
    of = near_tiles(owned, tile_edges)
    blocks = find_diagonal_blocks(device, placed(device, *of), FIRST, FIRST + owned + BEHIND)
    if tile_edges == 2**20:
        assert blocks.count == -(-owned // DIAGONAL_ROWS)
    assert np.array_equal(listed(blocks, of, owned), inside(of, owned))


def test_tiles_without_rows_or_links_have_no_links_inside(device: Device) -> None:
    tail = np.array([1, 2], np.uint32), np.array([2], np.uint32)
    assert find_diagonal_blocks(device, placed(device, tail), FIRST, FIRST).count == 0
    empty = np.array([], np.uint32), np.zeros(301, np.uint32)
    for of in ([empty], [tail, empty, tail], [empty, tail, tail, empty]):
        owned = sum(lengths.size - 1 for _, lengths in of)
        blocks = find_diagonal_blocks(device, placed(device, *of), 0, owned)
        assert blocks.count == 2 * owned // 300
        assert not listed(blocks, of, owned).any()


@pytest.mark.long
@pytest.mark.parametrize(("reads", "paired"), [("float32", True), ("bits16", True), ("bits16", False)])
@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize("tile_edges", [2**20, 1000])
def test_sweeps(device: Device, reads: str, paired: bool, turns: int, tile_edges: int) -> None:
    owned, offset, slots = 600, 17, 2
    rng = np.random.default_rng(turns)
    of, nodes = near_tiles(owned, tile_edges, 1), FIRST + owned + BEHIND
    backend = CudaBackend(device, pairs=paired)
    spec = StripeSpec(0, 1, FIRST - offset, FIRST + owned, nodes, slots, True, reads)
    degree = rng.integers(0, 9, spec.rows).astype(np.uint32)
    state, numbers = backend.allocate(spec, degree, None), backend.allocate_reads(nodes, reads, True)
    held, stored = rng.random(spec.rows).astype(np.float32), narrow(rng.random(spec.rows), reads, 1.0)
    upload(state.push, held)
    upload(state.stored[: spec.rows], stored)
    start = rng.random(owned).astype(np.float32)
    step = SweepStep(0.85, 0.15, 0.0, 1 + turns, 1, (1,), 1.0)
    there = placed(device, *of)
    rows = GroupRows(0, len(of), FIRST, owned, offset, 0, there.sizes.places)
    blocks = find_diagonal_blocks(device, there, FIRST, nodes)
    state.begin_sweep(step)
    sweep_diagonal_blocks(device, there, blocks, device.xp.asarray(start), state, rows, numbers, turns)
    device.synchronize()

    links = inside(of, owned)
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
