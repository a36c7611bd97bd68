"""Which tiles stay on a device, and what they take of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.plan.partition import GraphStats
from oocpr.plan.residency import GROUPS, ResidentTiles, evenly, resident_tiles, spread_evenly

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


def test_a_tile_takes_what_its_own_rows_take():
    found = resident_tiles(FACTS, ROWS, diagonal=False)
    few, many = ROWS[1], ROWS[-1] - ROWS[-2]
    # Where segments lie: a bit an edge and a word a block, a column a row and two words a group of 32.
    for tile, rows in ((0, few), (-1, many)):
        lie = 2**20 // 8 + 4 * 1025 + 4 * min(rows + 1, 2**20) + 8 * -(-(rows + 1) // 32)
        assert 0 <= found.typical[tile] - lie - 2 * 2**20 < 2**13
        assert 1.25 * 2 * 2**20 <= found.limits[tile] - lie <= FACTS.max_tile_bytes + 2**13
    assert (found.finding == 0).all()
    assert (found.typical <= found.limits).all()
    # Of the tiles of one device of several, none is smaller for being the first or the last.
    part = resident_tiles(FACTS, ROWS[10:20], diagonal=False)
    assert part.limits.tolist() == found.limits[10:19].tolist()
    assert part.typical.tolist() == found.typical[10:19].tolist()


def test_a_last_tile_of_few_edges_takes_few_bytes_as_a_rule():
    whole = resident_tiles(FACTS, ROWS, diagonal=False)
    short = resident_tiles(replace(FACTS, edges=FACTS.edges - 2**20 + 1000), ROWS, diagonal=False)
    assert whole.typical[-1] - short.typical[-1] > 2 * 2**20
    assert abs(whole.typical[0] - short.typical[0]) < 2**15


def test_islands_are_kept_and_found_by_the_rows_of_each_tile():
    bare, swept = (resident_tiles(FACTS, ROWS, diagonal=islands) for islands in (False, True))
    rows = np.diff(ROWS)
    assert (swept.limits - bare.limits == FACTS.local_share * 2**20 + 10 * rows).all()
    assert (swept.typical - bare.typical == swept.limits - bare.limits).all()
    assert (swept.finding == 4 * 2**20 + 5 * rows).all()
    room = int(swept.limits.sum() + swept.finding.max())
    assert swept.within(room) == 100
    assert swept.within(room - 1) < 100
