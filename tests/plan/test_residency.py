"""Which tiles stay on a device, and what they take of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.plan.memory import tile_edges
from oocpr.plan.request import GraphStats
from oocpr.plan.residency import (
    DEVICE_READERS,
    GROUPS,
    READERS,
    ResidentTiles,
    device_readers,
    evenly,
    fitting,
    resident_groups,
    spread_evenly,
)
from oocpr.plan.tile_groups import group_bounds, layout_of

FACTS = GraphStats(
    nodes=10**7,
    edges=100 * 2**20,
    tiles=100,
    tile_edges=2**20,
    column_bytes=200 * 2**20,
    max_tile_bytes=6 * 2**20,
    max_tile_rows=5 * 10**6,
    local_share=0.25,
)
ROWS = np.append(np.linspace(0, 5 * 10**6, 100).astype(np.int64), 10**7)


def largest_that_fits(most: list[int], finding: list[int], room: int) -> int:
    """Try all numbers of tiles, those that stay being the ones that `spread_evenly` chooses."""
    found = 0
    for kept in range(1, len(most) + 1):
        chosen = spread_evenly(0, len(most), kept)
        if sum(most[tile] for tile in chosen) + max(finding[tile] for tile in chosen) <= room:
            found = kept
    return found


def staying(most: list[int], finding: list[int]) -> ResidentTiles:
    return ResidentTiles(np.array(most), np.array(most), np.array(finding))


@given(st.integers(1, 300), st.data())
def test_tiles_are_spread_where_the_share_of_those_before_grows(tiles, data):
    kept = data.draw(st.integers(0, tiles))
    before = [tile * kept // tiles for tile in range(tiles + 1)]
    expected = [tile for tile, (one, other) in enumerate(pairwise(before)) if other > one]
    assert evenly(tiles, kept).tolist() == expected
    assert spread_evenly(7, 7 + tiles, kept) == {7 + tile for tile in expected}


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000)), min_size=1, max_size=80), st.data())
def test_as_many_tiles_stay_as_fit(tiles, data):
    most, finding = (list(of) for of in zip(*tiles, strict=True))
    room = data.draw(st.integers(-10, sum(most) + max(finding)))
    assert staying(most, finding).within(room) == largest_that_fits(most, finding, room)


@pytest.mark.parametrize("kind", ["even", "ascending", "random", "in turns"])
def test_as_many_of_many_tiles_stay_as_fit(kind):
    count = max(GROUPS) + 700
    rng = np.random.default_rng(3)
    most = {
        "even": np.full(count, 1000),
        "ascending": np.sort(1000 * rng.pareto(1, count)).astype(np.int64) + 1,
        "random": rng.integers(1, 1000, count),
        "in turns": np.where(np.arange(count) % 2, 1000, 1),
    }[kind]
    chosen = [np.flatnonzero(np.diff(np.arange(count + 1) * kept // count)) for kept in range(count + 1)]
    taken = np.array([most[of].sum() for of in chosen])
    nothing = np.zeros_like(most)
    for room in (int(share * most.sum()) for share in (0, 0.001, 0.3, 0.9, 0.999, 1)):
        assert ResidentTiles(most, most, nothing).within(room) == np.flatnonzero(taken <= room)[-1]


def resident(stats: GraphStats = FACTS, each: int = 1, *, diagonal: bool = False) -> ResidentTiles:
    """What groups of so many tiles take, each tile of as many bytes as its edges are of all."""
    sizes = stats.column_bytes * tile_edges(stats, ROWS) // stats.edges
    bounds, _ = group_bounds([(0, stats.tiles)], 1, each)
    return resident_groups(stats, layout_of(stats, ROWS, sizes, bounds), diagonal=diagonal)


def test_a_tile_takes_what_its_own_rows_take():
    found = resident()
    few, many = ROWS[1], ROWS[-1] - ROWS[-2]
    edges = 2**20
    for tile, rows in ((0, few), (-1, many)):
        # Encoded bytes; of each block of edges its entry, widths, a bit an edge and a word; a column a row
        # that may have edges, two words a group of 32 rows, and the entry of the tile.
        kept = 2 * 2**20 + 1024 * (32 + 32 + 128 + 4) + 4 * min(rows + 1, edges) + 8 * -(-(rows + 1) // 32)
        assert 224 <= found.limits[tile] - kept < 2**13
        # Edges that fall on rows at random leave some of them without.
        without = min(rows + 1, edges) - (rows + 1) * (1 - math.exp(-edges / (rows + 1)))
        assert found.limits[tile] - found.typical[tile] == pytest.approx(4 * max(0, without), abs=8)
    assert found.limits[-1] - found.typical[-1] > 2**18
    assert (found.finding == 0).all()
    assert (found.typical <= found.limits).all()


@pytest.mark.parametrize("diagonal", [False, True])
def test_groups_of_one_device_of_several_are_as_large_as_of_one(diagonal):
    sizes = np.full(FACTS.tiles, 2 * 2**20)
    layout = layout_of(FACTS, ROWS, sizes, np.array([0, 3, 10, 11, 60, 100]))
    found, part = (resident_groups(FACTS, of, diagonal=diagonal) for of in (layout, layout.part(1, 4)))
    for whole, some in zip(
        (found.limits, found.typical, found.finding), (part.limits, part.typical, part.finding), strict=True
    ):
        assert some.tolist() == whole[1:4].tolist()


@given(st.integers(1, 100), st.booleans())
def test_a_group_takes_what_its_tiles_take_but_for_small_pieces(each, diagonal):
    alone, groups = resident(diagonal=diagonal), resident(each=each, diagonal=diagonal)
    bounds, _ = group_bounds([(0, 100)], 1, each)
    firsts, tiles = bounds[:-1], np.diff(bounds)
    over = np.add.reduceat(alone.limits, firsts) - groups.limits
    # Of a tile by itself, each of eight pieces of memory may be rounded up.
    assert (over == 8 * 512 * (tiles - 1)).all()
    assert (groups.finding == np.add.reduceat(alone.finding, firsts)).all()
    assert (groups.typical <= groups.limits).all()


def test_a_last_tile_of_few_edges_takes_few_bytes():
    short = resident(replace(FACTS, edges=FACTS.edges - 2**20 + 1000))
    for of, other in ((resident().limits, short.limits), (resident().typical, short.typical)):
        assert of[-1] - other[-1] > 2 * 2**20
        assert abs(of[0] - other[0]) < 2**15


def test_diagonal_blocks_are_kept_and_found_by_the_rows_of_each_tile():
    bare, swept = (resident(diagonal=swept) for swept in (False, True))
    rows = np.diff(ROWS)
    assert (swept.limits - bare.limits == FACTS.local_share * 2**20 + 10 * rows).all()
    assert (swept.typical - bare.typical == swept.limits - bare.limits).all()
    # Columns, where segments begin, and rows.
    assert (swept.finding == 4 * 2**20 + 4 * np.minimum(2**20, rows + 1) + rows).all()
    room = int(swept.limits.sum() + swept.finding.max())
    assert swept.within(room) == 100
    assert swept.within(room - 1) < 100


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(-5, 3000))
def test_whichever_tiles_are_chosen_fit(sizes: list[int], room: int) -> None:
    fit = fitting(np.array(sizes, np.int64), room)
    largest = sorted(sizes, reverse=True)
    assert sum(largest[:fit]) <= max(0, room)
    assert fit == len(sizes) or sum(largest[: fit + 1]) > room


def test_more_threads_read_for_a_device_where_there_are_processors():
    counts = [device_readers(cores) for cores in range(1, 40)]
    assert counts == sorted(counts)
    assert counts[:3] == [READERS, READERS, 3]
    assert counts[-1] == DEVICE_READERS
