"""Plans of runs on several devices."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oocpr.engine.planning import plan_request
from oocpr.engine.settings import Settings
from oocpr.errors import DoesNotFitError
from oocpr.plan.device_memory import STAGED_NUMBERS
from oocpr.plan.device_plan import ROW_EDGES, plan_on_devices, resident_weights
from oocpr.plan.partition import GraphStats, stripe_tiles, weighted_stripes
from oocpr.plan.tile_merge import even_merge_bounds

if TYPE_CHECKING:
    from oocpr.plan.plan import Plan

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
