"""Plans of runs on devices, from integers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oocpr.engine.planning import plan_request
from oocpr.engine.settings import Settings
from oocpr.errors import DoesNotFitError
from oocpr.plan.device_memory import MIN_SLOTS, STAGED_NUMBERS
from oocpr.plan.device_plan import ROW_EDGES, plan_on_devices, resident_weights
from oocpr.plan.forecast import Rates
from oocpr.plan.memory import tile_edges, weighted_tile_bytes
from oocpr.plan.partition import stripe_tiles, weighted_stripes
from oocpr.plan.request import GraphStats
from oocpr.plan.tile_groups import (
    POOL_BYTES,
    TILE_ENTRY_BYTES,
    GroupLayout,
    group_bounds,
    grouped_stats,
    layout_of,
)

if TYPE_CHECKING:
    from oocpr.plan.plan import Plan

# R-MAT of scale 26 in order of degree: half of the rows, all in the last tile, have no edges.
LARGE = GraphStats(
    nodes=2**26,
    edges=1_050_000_000,
    tiles=501,
    tile_edges=2**21,
    column_bytes=2_000_000_000,
    max_tile_bytes=2**23 + 2**24,
    max_tile_rows=35_000_000,
    local_share=0.06,
)
GIB = 2**30


def rows_of(stats: GraphStats) -> NDArray[np.int64]:
    """First rows of tiles that have as many as each other, but the last one, which has most."""
    before = stats.nodes if stats.tiles == 1 else stats.nodes - stats.max_tile_rows
    return np.append(np.linspace(0, before, stats.tiles).astype(np.int64), stats.nodes)


def in_groups(
    stats: GraphStats,
    each: int = 1,
    *,
    tile_rows: NDArray[np.int64] | None = None,
    stripes: tuple[tuple[int, int], ...] | None = None,
) -> tuple[GroupLayout, tuple[tuple[int, int], ...]]:
    """Groups of so many tiles, each of as many bytes as its edges are of all, and the stripes in groups."""
    rows = rows_of(stats) if tile_rows is None else tile_rows
    sizes = stats.column_bytes * tile_edges(stats, rows) // max(1, stats.edges)
    bounds, parts = group_bounds(stripes or ((0, stats.tiles),), 1, each)
    return layout_of(stats, rows, sizes, bounds), parts


def planned(
    device_memory: int,
    *,
    rows_in_host: bool,
    stats: GraphStats = LARGE,
    reads: str = "bits16",
    each: int = 1,
) -> Plan:
    layout, _ = in_groups(stats, each)
    return plan_on_devices(
        grouped_stats(stats, layout),
        layout,
        plan_request(Settings(reads=reads), memory=64 * GIB, device_memory=(device_memory,)),
        all_resident=False,
        rows_in_host=rows_in_host,
    )


def test_rows_in_memory_of_the_host_leave_what_they_gather() -> None:
    plan, here = planned(3 * GIB // 8, rows_in_host=True), planned(64 * GIB, rows_in_host=False)
    assert plan.fits
    assert plan.device is not None
    assert here.device is not None
    need = plan.device.need
    assert (need.vectors, need.history, need.reads) == (0, 0, 2 * LARGE.nodes)
    assert not planned(2 * GIB, rows_in_host=False).fits
    # What the device no longer has, the host has.
    rows = LARGE.nodes * (20 + 4 * plan.mixing)
    assert plan.need.vectors + plan.need.history - here.need.vectors == rows
    assert "the rest in host memory" in str(plan)
    assert "the rest in host memory" not in str(here)


def test_sweeps_and_slots_are_given_up_before_the_run_is() -> None:
    crawl = replace(LARGE, local_share=0.8, column_bytes=700_000_000)
    much, little = (planned(memory, rows_in_host=True, stats=crawl) for memory in (GIB, 3 * GIB // 8))
    assert much.sweeps == 3
    assert little.fits
    assert little.sweeps == 1
    assert much.device is not None
    least = much.device.need.reads + 2**25
    narrow = [planned(memory, rows_in_host=True) for memory in range(least, GIB, 2**20)]
    slots = [plan.device.slots for plan in narrow if plan.device is not None and plan.fits]
    assert slots == sorted(slots)
    assert {*slots} == {1, 2, 3, 4, 5}
    # Where smaller groups are the way out, nobody waits for a slot.
    narrow = [planned(memory, rows_in_host=True, each=4) for memory in range(least, GIB, 2**20)]
    assert {plan.device.slots for plan in narrow if plan.device is not None and plan.fits} == {2, 3, 4, 5}


@given(
    memory=st.integers(2**20, 2**33),
    rows_in_host=st.booleans(),
    reads=st.sampled_from(["bits8", "bits16", "float64"]),
    tiles=st.integers(1, 1000),
    each=st.integers(1, 50),
)
def test_a_plan_that_fits_has_room_for_what_it_keeps(
    memory: int, rows_in_host: bool, reads: str, tiles: int, each: int
) -> None:
    stats = replace(LARGE, tiles=tiles)
    plan = planned(memory, rows_in_host=rows_in_host, stats=stats, reads=reads, each=each)
    groups = -(-tiles // each)
    tiers = plan.device
    assert tiers is not None
    # What the process comes to hold as a rule is no more than what it may.
    assert plan.peak_memory <= plan.need.total + plan.cache_bytes
    assert plan.fits == (tiers.need.total + tiers.resident_bytes <= memory)
    assert plan.stats.tiles == groups
    assert 0 <= tiers.on_device + tiers.in_host <= groups
    on_device, in_host = tiers.places(range(groups))
    assert (len(on_device), len(in_host)) == (tiers.on_device, tiers.in_host)
    if tiers.need.total <= memory:
        assert plan.fits


def test_one_tile_of_many_rows_does_not_count_for_all() -> None:
    plan = planned(6 * GIB, rows_in_host=False)
    tiers = plan.device
    assert tiers is not None
    # The half of all rows that the last tile has would have taken 140 MB of each.
    assert tiers.on_device > (6 * GIB - tiers.need.total) // 140_000_000
    assert tiers.typical < tiers.max_bytes <= tiers.memory
    fewer = planned(tiers.max_bytes - 1, rows_in_host=False).device
    assert fewer is not None
    assert fewer.on_device < tiers.on_device
    assert planned(tiers.max_bytes, rows_in_host=False).device == replace(tiers, memory=tiers.max_bytes)


# The same links with weights of 32 bits each, in tiles of as many links.
WEIGHTS = LARGE.edges * 4
WEIGHTED = replace(
    LARGE,
    column_bytes=LARGE.column_bytes + WEIGHTS,
    max_tile_bytes=weighted_tile_bytes(LARGE.max_tile_bytes, 2**23 + 16),
    weighted=True,
    weight_bytes=WEIGHTS,
)


def test_weights_take_their_bytes_on_the_device_the_link_and_the_host() -> None:
    bare, made = (planned(64 * GIB, rows_in_host=False, stats=stats) for stats in (LARGE, WEIGHTED))
    assert bare.device is not None
    assert made.device is not None
    # Of a row what leaves it, 8 bytes instead of 4; of a tile that passes all that it has.
    assert made.device.need.vectors - bare.device.need.vectors == 4 * LARGE.nodes
    assert made.need.vectors - bare.need.vectors == 4 * LARGE.nodes
    most = int(in_groups(WEIGHTED)[0].room.max())
    assert made.device.need.ring == made.device.slots * (most + TILE_ENTRY_BYTES + 2 * POOL_BYTES)
    tiles, weighted = (int(in_groups(stats)[0].room.sum()) for stats in (LARGE, WEIGHTED))
    assert weighted - tiles >= WEIGHTS
    assert made.device.resident_bytes >= weighted
    assert made.bytes_read - bare.bytes_read == WEIGHTS
    # Tiles of 6 bytes a link leave time for more sweeps than those of 2.
    crawls = (replace(stats, local_share=0.8) for stats in (LARGE, WEIGHTED))
    one, other = (planned(3 * GIB, rows_in_host=False, stats=stats).sweeps for stats in crawls)
    assert one < other


def test_rows_of_weighted_graphs_in_memory_of_the_host_take_it_there() -> None:
    here, there = (planned(64 * GIB, rows_in_host=rows, stats=WEIGHTED) for rows in (False, True))
    assert there.device is not None
    assert (there.device.need.vectors, there.device.need.history) == (0, 0)
    assert there.proposals
    rows = LARGE.nodes * (24 + 4 + 4 * there.mixing)
    assert there.need.vectors + there.need.history - here.need.vectors == rows
    assert there.peak_memory <= there.need.total + there.cache_bytes


TILES = 16
FACTS = GraphStats(
    nodes=10**6,
    edges=TILES * 2**20,
    tiles=TILES,
    tile_edges=2**20,
    column_bytes=TILES * 2 * 10**6,
    max_tile_bytes=2_100_000,
    max_tile_rows=70_000,
    local_share=0.25,
)
ROWS = np.linspace(0, FACTS.nodes, TILES + 1).astype(np.int64)
PLENTY = 2**50
BASE = 10**8


def plan(
    given: list[int],
    memory: int = PLENTY,
    stripes: tuple[tuple[int, int], ...] | None = None,
    *,
    each: int = 1,
    all_resident: bool = False,
    rows_in_host: bool = False,
) -> Plan:
    parts = stripes or stripe_tiles(TILES, len(given))
    layout, groups = in_groups(FACTS, each, tile_rows=ROWS, stripes=parts)
    return plan_on_devices(
        grouped_stats(FACTS, layout),
        layout,
        plan_request(Settings(mixing=3), memory=memory, base=BASE, device_memory=tuple(given)),
        groups,
        all_resident=all_resident,
        rows_in_host=rows_in_host,
    )


def plan_alone(given: int) -> Plan:
    layout, _ = in_groups(FACTS, tile_rows=ROWS)
    request = plan_request(Settings(mixing=3), memory=PLENTY, base=BASE, device_memory=(given,))
    return plan_on_devices(grouped_stats(FACTS, layout), layout, request, all_resident=False)


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=60),
    st.lists(st.sampled_from([0.125, 0.5, 1.0]), min_size=1, max_size=9),
)
def test_stripes_of_tiles_of_all_sizes_are_as_near_to_their_shares_as_can_be(sizes, shares):
    stripes = len(shares)
    assume(stripes <= len(sizes))
    cuts = weighted_stripes(np.array(sizes), shares)
    assert (len(cuts), cuts[0][0], cuts[-1][1]) == (stripes, 0, len(sizes))
    assert all(first < last for first, last in cuts)
    assert all(one[1] == other[0] for one, other in pairwise(cuts))
    # Borders miss where they should be by half a tile, or there is a tile for each and no more.
    for k, (first, _) in enumerate(cuts[1:], 1):
        missed = abs(sum(sizes[:first]) - sum(sizes) * sum(shares[:k]) / sum(shares))
        pushed = any(last - first == 1 for first, last in cuts)
        assert missed <= max(sizes) / 2 or pushed


@given(st.lists(st.integers(0, 2**27), min_size=2, max_size=5), st.integers(0, 2**29), st.integers(1, TILES))
def test_a_plan_that_fits_stays_within_the_memory_of_each(given, memory, each):
    made = plan(given, memory, each=each)
    each = [tiers.max_bytes for tiers in made.devices]
    assert made.fits == (
        made.need.total <= memory and all(of <= most for of, most in zip(each, given, strict=True))
    )
    if made.fits:
        assert made.need.total + made.cache_bytes <= memory
    tiles = [last - first for first, last in made.stripes]
    for tiers, count in zip(made.devices, tiles, strict=True):
        assert tiers.on_device + tiers.in_host <= count
    assert made.cached_tiles == sum(tiers.on_device + tiers.in_host for tiers in made.devices)


def test_what_all_have_to_read_is_on_each_device_and_rows_are_dealt_out():
    first, second = plan([PLENTY, PLENTY]).devices
    alone = plan_alone(PLENTY).devices[0]
    assert first.need.vectors + second.need.vectors == alone.need.vectors
    assert first.need.history + second.need.history == alone.need.history
    # Pushes and proposals of all, own ones as others get them, and some that are on their way; 2 bytes each.
    assert first.need.reads == 2 * (2 * FACTS.nodes + 2 * ROWS[8] + 2 * min(FACTS.nodes, STAGED_NUMBERS))
    assert first.on_device + second.on_device == TILES


def test_memory_of_the_host_goes_to_tiles_that_no_device_has_room_for():
    need = plan([PLENTY, PLENTY]).devices[0].need.total
    given = [PLENTY, need]
    bare = plan(given, 0)
    assert [tiers.on_device for tiers in bare.devices] == [8, 0]
    encoded = plan(given).devices[1].pinned_bytes // 8
    made = plan(given, bare.need.total + 5 * encoded)
    assert [tiers.in_host for tiers in made.devices] == [0, 5]
    even = plan([need, need], plan([need, need], 0).need.total + 6 * encoded)
    assert [tiers.in_host for tiers in even.devices] == [3, 3]
    assert even.resident(0) | even.resident(1)


def test_a_device_that_is_too_small_is_refused_with_what_it_would_take():
    # Where nothing stays no diagonal blocks are found.
    need = plan([PLENTY, plan([PLENTY, PLENTY]).devices[1].need.total]).devices[1].need.total
    assert plan([PLENTY, need]).fits
    # Three slots could be given up, and what it takes to sweep groups with their neighbours.
    short = plan([PLENTY, need])
    while short.fits:
        need -= FACTS.max_tile_bytes // 4
        short = plan([PLENTY, need])
        if short.fits:
            assert short.devices[1].max_bytes <= need
    assert not short.devices[1].overlap
    assert short.devices[1].slots == MIN_SLOTS
    need = short.devices[1].need.total
    assert plan([PLENTY, need]).fits
    assert not plan([PLENTY, need - 1]).fits
    with pytest.raises(DoesNotFitError, match="of the device"):
        short.validate()


def test_what_each_keeps_is_printed_and_written():
    need = plan([PLENTY, PLENTY]).devices[0].need.total
    made = plan([PLENTY, need])
    text = str(made)
    for number in (0, 1):
        for label in ("vectors", "scratch", "tiles", "most, given", "should hold"):
            assert f"\ndevice {label}, {number}" in text
        assert f"\nover the link, {number}" in text
    assert re.search(r"^over the link, 0 +nothing after the first pass$", text, re.MULTILINE)
    assert re.search(r"^over the link, 1 +8 tiles a pass$", text, re.MULTILINE)
    tiers = json.loads(json.dumps(made.to_json()))["tiers"]
    assert [of["device_tiles"] for of in tiers["devices"]] == [made.devices[0].resident_bytes, 0]
    assert tiers["device_tiles"] == made.devices[0].resident_bytes
    told = made.to_json()
    assert told["device_needed"] == max(of.max_bytes for of in made.devices) <= PLENTY
    assert told["predicted_peak_device_memory"] == max(of.typical for of in made.devices)


def test_one_device_is_planned_as_it_is_without_others():
    several = plan([10**8])
    alone = plan_alone(10**8)
    assert several.devices == alone.devices
    assert several.stripes == alone.stripes


@given(st.lists(st.integers(1, 10**5), min_size=4, max_size=60), st.integers(2, 4))
def test_stripes_that_stay_have_as_much_to_do_as_each_other(rows, stripes):
    tile_rows = np.cumsum([0, *rows])
    weights = resident_weights(tile_rows, 2**20)
    # Of two tiles of as many edges, the one of more rows takes longer.
    assert (np.argsort(weights, kind="stable") == np.argsort(rows, kind="stable")).all()
    assert weights.sum() == len(rows) * 2**20 + ROW_EDGES * tile_rows[-1]
    cuts = weighted_stripes(weights, [1] * stripes)
    loads = [weights[first:last].sum() for first, last in cuts]
    assert max(loads) - weights.sum() / stripes <= weights.max()


def test_stripes_that_share_a_device_stream_what_has_no_room_and_are_refused_below_that():
    def shared(given: int) -> Plan:
        return plan([given], stripes=stripe_tiles(TILES, 4))

    ample = shared(PLENTY)
    assert [(of.device, of.sharing) for of in ample.devices] == [(0, 4)] * 4
    assert sum(of.on_device for of in ample.devices) == TILES
    assert ample.to_json()["device_needed"] == sum(of.max_bytes for of in ample.devices)
    assert shared(max(4 * of.max_bytes for of in ample.devices)).fits
    # Alone they gather from one array, of which each counts its part.
    alone = plan_alone(PLENTY).devices[0]
    assert sum(of.need.reads for of in ample.devices) < 3 * alone.need.reads
    tight = shared(0)
    with pytest.raises(DoesNotFitError, match="leave stripes out") as refused:
        tight.validate()
    told = re.search(r"Give (\d+)MiB", str(refused.value))
    assert told is not None
    enough = shared(int(told[1]) * 2**20)
    enough.validate()
    assert 0 <= sum(of.on_device for of in enough.devices) < TILES
    assert not shared((int(told[1]) - 1) * 2**20).fits


def test_stripes_of_single_tiles_go_on_with_one_slot_as_one_stripe_does():
    # Of a stripe its own tiles count, not those of the graph.
    one, two = (
        {made.devices[0].slots for made in found if made.fits}
        for found in (
            [plan([memory] * count, rows_in_host=True) for memory in range(2**22, 2**27, 2**19)]
            for count in (1, 2)
        )
    )
    assert one == two == {1, 2, 3, 4, 5}
    pairs = [plan([memory] * 2, each=2, rows_in_host=True) for memory in range(2**22, 2**27, 2**19)]
    assert {made.devices[0].slots for made in pairs if made.fits} == {2, 3, 4}


@given(st.integers(0, 2**28), st.integers(BASE, BASE + 2**27), st.integers(1, 8), st.integers(1, 4))
def test_stripes_of_one_device_as_one_have_what_they_have_together(given, memory, stripes, each):
    made = plan([given], memory, stripes=stripe_tiles(TILES, stripes), each=each)
    whole = made.with_a_stripe_each()
    assert whole.stripes == ((0, made.stats.tiles),)
    assert whole.device is not None
    for name in ("memory", "on_device", "in_host"):
        assert getattr(whole.device, name) == sum(getattr(of, name) for of in made.devices)
    assert not whole.shares_devices
    assert (whole.cached_tiles, whole.streamed_bytes) == (made.cached_tiles, made.streamed_bytes)
    assert whole.stats == made.stats
    on_device, in_host = whole.device.places(range(made.stats.tiles))
    assert len(on_device) + len(in_host) == made.cached_tiles
    # A pass takes as long.
    rates = Rates(store_bytes=1e9, resident=5e9, streamed=4e9, first=2e8, rows=1e8, uploaded=1e9)
    assert whole.timing(rates) == made.timing(rates)


def test_each_device_has_one_stripe_of_those_that_share_it():
    made = plan([2**28, 2**27], BASE + 2**27, stripes=stripe_tiles(TILES, 6))
    each = made.with_a_stripe_each()
    assert each.stripes == ((0, made.stripes[2][1]), (made.stripes[3][0], made.stats.tiles))
    assert [tiers.device for tiers in each.devices] == [0, 1]
    assert [tiers.memory for tiers in each.devices] == [2**28 // 3 * 3, 2**27 // 3 * 3]
    assert (each.cached_tiles, each.streamed_bytes) == (made.cached_tiles, made.streamed_bytes)
    assert not each.shares_devices


def test_a_promise_of_memory_is_that_of_all_stripes_of_a_device():
    layout, groups = in_groups(FACTS, tile_rows=ROWS, stripes=stripe_tiles(TILES, 4))
    request = plan_request(Settings(), memory=PLENTY, device_memory=(2**30,), promised=True)
    made = plan_on_devices(grouped_stats(FACTS, layout), layout, request, groups, all_resident=True)
    whole = made.with_a_stripe_each().device
    assert whole is not None
    assert whole.limit == made.devices[0].limit == 2**30
