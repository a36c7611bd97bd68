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
from oocpr.plan.device_memory import STAGED_NUMBERS
from oocpr.plan.device_plan import ROW_EDGES, plan_on_devices, resident_weights
from oocpr.plan.memory import weighted_tile_bytes
from oocpr.plan.partition import GraphStats, stripe_tiles, weighted_stripes
from oocpr.plan.tile_merge import (
    HOST_MERGED_EDGES,
    MERGED_EDGES,
    NO_MERGE,
    STREAMED_EDGES,
    MergeMemory,
    even_merge_bounds,
    merge_bounds,
    merge_memory,
    merged_stats,
    pass_bytes,
    tile_sizes,
    unweighted,
)
from oocpr.store.direct_io import PAGE

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


def planned(
    device_memory: int,
    *,
    rows_in_host: bool,
    stats: GraphStats = LARGE,
    reads: str = "bits16",
    merging: MergeMemory = NO_MERGE,
    tile_rows: NDArray[np.int64] | None = None,
) -> Plan:
    return plan_on_devices(
        stats,
        rows_of(stats) if tile_rows is None else tile_rows,
        plan_request(Settings(reads=reads), memory=64 * GIB, device_memory=(device_memory,)),
        all_resident=False,
        rows_in_host=rows_in_host,
        merging=merging,
    )


@given(st.integers(1, 40), st.integers(18, 30), st.integers(0, 2**17))
def test_tiles_that_are_as_large_as_joined_ones_are_planned_with_once(
    tiles: int, bits: int, more: int
) -> None:
    stats = replace(LARGE, tiles=tiles, tile_edges=2**bits + more)
    sizes = list(tile_sizes(stats, STREAMED_EDGES, cores=16))

    def joins(edges: int) -> bool:
        return len(merge_bounds(tiles, stats.tile_edges, edges)) - 1 < tiles

    assert len(set(sizes)) == len(sizes)
    # All of them together have enough for 16 processors.
    for stays, asked_for in ((True, (*MERGED_EDGES, *HOST_MERGED_EDGES)), (False, STREAMED_EDGES)):
        found = {size.edges for size in sizes if size.all_resident == stays} - {None}
        assert found == set(filter(joins, asked_for))
    # As they are stored, all stay only where they would if they were joined.
    stored = [
        (size.all_resident, size.rows_in_host, size.partitioned) for size in sizes if size.edges is None
    ]
    staying = [] if all(map(joins, MERGED_EDGES)) else [(True, False, False)]
    assert stored == [*staying, (False, False, False), (False, True, False), (False, True, True)]
    # What rows gather is in slices on one device only.
    assert not any(size.partitioned for size in tile_sizes(stats, STREAMED_EDGES, cores=32, devices=2))


@given(st.integers(1, 64))
def test_no_more_processors_join_tiles_than_there_are(cores: int) -> None:
    sizes = [size for size in tile_sizes(LARGE, STREAMED_EDGES, cores=cores) if size.edges is not None]
    assert max(size.at_once for size in sizes) == max(n for n in (2, 4, 8, 16) if n <= max(2, cores))
    # Each size of tiles may be made by two threads of the host, which any machine has, or is for many only.
    for size in sizes:
        few = size._replace(at_once=2)
        assert few in sizes or (size.all_resident and size.at_once >= 8)
    assert cores < 8 or sizes[0].at_once == (16 if cores >= 16 else 8)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(2**20, 2**35))
def test_processors_make_what_stays_where_each_makes_two(cores: int, devices: int, edges: int) -> None:
    stats = replace(LARGE, edges=edges, tiles=-(-edges // 2**20), tile_edges=2**20)
    first = next(tile_sizes(stats, STREAMED_EDGES, cores=cores, devices=devices))
    if stats.tiles == 1:
        assert first.edges is None
    elif cores < 8 or edges <= 15 * 2**25 * devices:
        assert first.edges == MERGED_EDGES[0]
    else:
        assert first.edges is not None
        assert first.at_once <= cores
        assert edges > (2 * first.at_once - 1) * first.edges * devices


def test_the_size_is_taken_that_has_least_on_its_way() -> None:
    # Small tiles leave room for more that stay; very small ones keep the host busy.
    few, more, many = (
        pass_bytes(2**31, tiles, resident=tiles * staying // 128)
        for tiles, staying in ((32, 0), (128, 48), (1024, 64))
    )
    assert more < few < many
    # Devices share the links' work and not the host's.
    assert pass_bytes(2**31, 32, resident=0, devices=2) == few / 2
    assert pass_bytes(2**31, 1024, resident=64, devices=2) == many


def test_rows_in_memory_of_the_host_leave_what_they_gather() -> None:
    plan, here = planned(GIB // 2, rows_in_host=True), planned(64 * GIB, rows_in_host=False)
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
    much, little = (planned(memory, rows_in_host=True, stats=crawl) for memory in (GIB, GIB // 2))
    assert much.sweeps == 3
    assert little.fits
    assert little.sweeps == 1
    assert much.device is not None
    least = much.device.need.reads + 2**26
    narrow = [planned(memory, rows_in_host=True) for memory in range(least, GIB, 2**20)]
    slots = [plan.device.slots for plan in narrow if plan.device is not None and plan.fits]
    assert slots == sorted(slots)
    assert {*slots} == {1, 2, 3, 4, 5}
    # Where smaller tiles are the way out, nobody waits for a slot.
    joining = MergeMemory(at_once=2)
    narrow = [planned(memory, rows_in_host=True, merging=joining) for memory in range(least, GIB, 2**20)]
    assert {plan.device.slots for plan in narrow if plan.device is not None and plan.fits} == {2, 3, 4, 5}


@given(
    memory=st.integers(2**20, 2**33),
    rows_in_host=st.booleans(),
    reads=st.sampled_from(["bits8", "bits16", "float64"]),
    tiles=st.integers(1, 1000),
)
def test_a_plan_that_fits_has_room_for_what_it_keeps(
    memory: int, rows_in_host: bool, reads: str, tiles: int
) -> None:
    plan = planned(memory, rows_in_host=rows_in_host, stats=replace(LARGE, tiles=tiles), reads=reads)
    tiers = plan.device
    assert tiers is not None
    # What the process comes to hold as a rule is no more than what it may.
    assert plan.peak_memory <= plan.need.total + plan.cache_bytes
    assert plan.fits == (tiers.need.total + tiers.resident_bytes <= memory)
    assert 0 <= tiers.on_device + tiers.in_host <= tiles
    on_device, in_host = tiers.places(range(tiles))
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
    max_weight_bytes=2**23 + 16,
)


def test_weights_take_their_bytes_on_the_device_the_link_and_the_host() -> None:
    bare, made = (planned(64 * GIB, rows_in_host=False, stats=stats) for stats in (LARGE, WEIGHTED))
    assert bare.device is not None
    assert made.device is not None
    # Of a row what leaves it, 8 bytes instead of 4; of a tile that passes all that it has.
    assert made.device.need.vectors - bare.device.need.vectors == 4 * LARGE.nodes
    assert made.need.vectors - bare.need.vectors == 4 * LARGE.nodes
    assert made.device.need.ring == made.device.slots * WEIGHTED.max_tile_bytes
    assert made.device.resident_bytes - bare.device.resident_bytes >= WEIGHTS
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


def joined_four(stats: GraphStats) -> GraphStats:
    tile_rows = np.linspace(0, stats.nodes, stats.tiles + 1).astype(np.int64)
    return merged_stats(stats, tile_rows, (*range(0, stats.tiles, 4), stats.tiles))


def test_joined_weights_are_joined_in_memory_of_the_host() -> None:
    joined = joined_four(WEIGHTED)
    assert joined.tile_edges == 2**23
    # Four stored tiles need no other parts of weights than one.
    assert joined.weight_bytes == pytest.approx(WEIGHTS, rel=1e-5)
    columns = joined_four(LARGE)
    whole_pages = -(-columns.max_tile_bytes // PAGE) * PAGE
    assert unweighted(joined) == replace(columns, max_tile_bytes=whole_pages)
    # Rooms of columns are kept meanwhile.
    decoded, read = 8 * 2**23, 2**23 + 16
    rows = np.full(joined.tiles, 1000)
    bare, made = (merge_memory(*of, rows, 2, 3) for of in ((LARGE, columns), (WEIGHTED, joined)))
    assert made.host - bare.host == made.typical_host - bare.typical_host == 6 * (decoded + read)


@given(st.lists(st.integers(0, 2**25), min_size=2, max_size=30), st.integers(1, 8), st.integers(1, 4))
def test_rooms_together_have_the_rows_of_the_largest_tiles(
    rows: list[int], at_once: int, devices: int
) -> None:
    joined = replace(joined_four(LARGE), tiles=len(rows), max_tile_rows=max(rows))

    def taken(rows: list[int], at_once: int, devices: int = 1) -> MergeMemory:
        return merge_memory(LARGE, joined, np.array(rows, np.int64), at_once, devices)

    together, order = taken(rows, at_once, devices), sorted(rows, reverse=True)
    assert together == taken(rows, at_once * devices)._replace(at_once=at_once)
    # One after the other; a byte of each may be rounded away.
    alone = [taken([of], 1) for of in order[: at_once * devices]]
    assert abs(together.host - sum(one.host for one in alone)) <= len(alone)
    assert together.typical_host == sum(one.typical_host for one in alone)
    assert all(one.typical_host < one.host for one in alone)


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
    all_resident: bool = False,
) -> Plan:
    return plan_on_devices(
        FACTS,
        ROWS,
        plan_request(Settings(mixing=3), memory=memory, base=BASE, device_memory=tuple(given)),
        stripes or stripe_tiles(TILES, len(given)),
        all_resident=all_resident,
    )


def plan_alone(given: int) -> Plan:
    request = plan_request(Settings(mixing=3), memory=PLENTY, base=BASE, device_memory=(given,))
    return plan_on_devices(FACTS, ROWS, request, all_resident=False)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60), st.integers(1, 9))
def test_stripes_of_tiles_of_all_sizes_are_as_large_as_can_be(sizes, stripes):
    assume(stripes <= len(sizes))
    cuts = weighted_stripes(np.array(sizes), stripes)
    assert (len(cuts), cuts[0][0], cuts[-1][1]) == (stripes, 0, len(sizes))
    assert all(first < last for first, last in cuts)
    assert all(one[1] == other[0] for one, other in pairwise(cuts))
    # Borders miss where they should be by half a tile, or there is a tile for each and no more.
    for k, (first, _) in enumerate(cuts[1:], 1):
        missed = abs(sum(sizes[:first]) - sum(sizes) * k / stripes)
        pushed = any(last - first == 1 for first, last in cuts)
        assert missed <= max(sizes) / 2 or pushed


@given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 40))
def test_joined_tiles_are_even_and_stay_within_their_stripe(tiles, stripes, each):
    assume(stripes <= tiles)
    cuts, bounds = even_merge_bounds(stripe_tiles(tiles, stripes), 2**20, each * 2**20)
    assert (cuts[0], cuts[-1]) == (0, tiles)
    sizes = np.diff(cuts)
    assert 1 <= sizes.min() <= sizes.max() <= each
    assert [(cuts[first], cuts[last]) for first, last in bounds] == list(stripe_tiles(tiles, stripes))
    for first, last in bounds:
        assert np.ptp(sizes[first:last]) <= 1
        # No fewer joined tiles would do.
        assert (last - first - 1) * each < cuts[last] - cuts[first]


@given(st.lists(st.integers(0, 2**27), min_size=2, max_size=5), st.integers(0, 2**29))
def test_a_plan_that_fits_stays_within_the_memory_of_each(given, memory):
    made = plan(given, memory)
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
    # Pushes and proposals of all, own pushes as made, and those of others on their way; 2 bytes each.
    assert first.need.reads == 2 * (2 * FACTS.nodes + ROWS[8] + 2 * min(FACTS.nodes, STAGED_NUMBERS))
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
    need = plan([PLENTY, PLENTY]).devices[1].need.total
    assert plan([PLENTY, need]).fits
    # Two slots could be given up.
    short = plan([PLENTY, need - 2 * FACTS.max_tile_bytes - 1])
    assert not short.fits
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
    cuts = weighted_stripes(weights, stripes)
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
