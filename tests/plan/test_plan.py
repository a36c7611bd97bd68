"""How a plan uses the memory it is given, and when it refuses."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oocpr.engine.settings import power_passes
from oocpr.errors import DoesNotFitError, UsageError
from oocpr.plan.device_memory import DeviceNeed, DeviceTiers
from oocpr.plan.device_plan import plan_on_devices
from oocpr.plan.forecast import (
    DEVICE_MIXING,
    MIN_PASSES_FITTED,
    Forecast,
    Passes,
    Rates,
    passes_from,
    predicted_passes,
    streamed_sweeps,
    sweeps_for,
    sweeps_on_device,
)
from oocpr.plan.memory import SHARED, decoded_bytes
from oocpr.plan.partition import default_stripes, stripe_tiles
from oocpr.plan.processor_plan import choose_method, make_plan
from oocpr.plan.request import GraphStats, PlanRequest
from oocpr.plan.residency import RING_SLOTS
from oocpr.plan.tile_groups import grouped_stats, layout_of
from oocpr.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from oocpr.plan.plan import Plan

FACTS = GraphStats(
    nodes=10**6,
    edges=16 * 10**6,
    tiles=16,
    tile_edges=10**6,
    column_bytes=32 * 10**6,
    max_tile_bytes=2_100_000,
    max_tile_rows=70_000,
    local_share=0.25,
)
BASE = 10**8
RATES = Rates(store_bytes=1e12, resident=1e8, streamed=5e7, first=2e7, rows=1e7, ends=1e6, loading=0.25)


def plan(memory: int, stats: GraphStats = FACTS, **how: Any) -> Plan:
    return make_plan(stats, asked(memory=memory, **how))


def asked(**how: Any) -> PlanRequest:
    return PlanRequest(**{"method": "mixed", "reads": "bits16", "base": BASE} | how)


ENOUGH = plan(2**40)
LEAST = plan(0).need.total


@st.composite
def graphs(draw: st.DrawFn, most_tiles: int = 10**8) -> GraphStats:
    nodes, edges = draw(st.integers(1, 10**9)), draw(st.integers(0, min(10**11, most_tiles * 2**22)))
    tile_edges = draw(st.integers(max(1024, -(-edges // most_tiles)), 2**22))
    tiles = max(1, -(-edges // tile_edges))
    column_bytes = draw(st.integers(edges // 4, 4 * edges + 10**6))
    most = draw(st.integers(-(-column_bytes // tiles), column_bytes))
    rows = draw(st.integers(-(-nodes // tiles), nodes))
    return GraphStats(nodes, edges, tiles, tile_edges, column_bytes, most, rows, draw(st.floats(0, 1)))


@given(graphs(), st.integers(0, 10**13), st.sampled_from(["mixed", "residual", "power"]), st.booleans())
def test_a_plan_that_fits_stays_within_its_memory(stats, memory, method, personalized):
    made = plan(memory, stats, method=method, personalized=personalized)
    assert made.fits == (made.need.total <= memory)
    if made.fits:
        assert made.need.total + made.cache_bytes <= memory
    else:
        assert made.cached_tiles == 0
        assert made.mixing == 0
    assert 0 <= made.cached_tiles <= stats.tiles
    if made.decoded:
        assert made.cached_tiles == stats.tiles


@given(graphs(), st.integers(0, 10**13), st.integers(0, 10**13))
def test_more_memory_never_gives_less(stats, one, other):
    less, more = (plan(memory, stats) for memory in sorted((one, other)))
    assert less.fits <= more.fits
    assert less.mixing <= more.mixing
    # What more history takes may be what tiles had before.
    if less.mixing == more.mixing:
        assert less.cached_tiles <= more.cached_tiles
        assert less.decoded <= more.decoded


def test_history_shrinks_before_a_run_is_refused():
    each = 8 * FACTS.nodes
    assert ENOUGH.mixing == 5
    assert ENOUGH.need.total == LEAST + 5 * each
    for remembered in range(6):
        at = plan(LEAST + remembered * each)
        assert (at.mixing, at.fits) == (remembered, True)
        assert plan(LEAST + remembered * each - 1).mixing == max(0, remembered - 1)
    assert not plan(LEAST - 1).fits


def test_history_comes_before_cached_tiles():
    full = ENOUGH.need.total
    for kept in range(17):
        at = plan(full + kept * FACTS.max_tile_bytes)
        assert (at.mixing, at.cached_tiles, at.decoded) == (5, kept, False)
        assert at.cache_bytes == kept * FACTS.max_tile_bytes
        assert at.streamed_bytes == FACTS.column_bytes * (16 - kept) // 16


def test_tiles_are_kept_decoded_when_all_are_and_there_is_room():
    room = ENOUGH.need.total
    decoded = decoded_bytes(FACTS, True)
    assert not plan(room + decoded - 1).decoded
    at = plan(room + decoded)
    assert at.decoded
    assert (at.cached_tiles, at.cache_bytes) == (16, decoded)
    assert at.need.total + at.cache_bytes == at.memory
    assert at.streamed_bytes == 0


def test_too_little_memory_is_refused_with_both_numbers_and_a_way_out():
    short = plan(LEAST - 1)
    with pytest.raises(DoesNotFitError) as caught:
        short.validate()
    assert format_bytes(LEAST) in caught.value.cause
    assert format_bytes(LEAST - 1) in caught.value.cause
    assert "bits8" in caught.value.remedy
    assert plan(LEAST - 1, reads="bits8").fits
    with pytest.raises(DoesNotFitError) as caught:
        plan(10**6, reads="bits8").validate()
    assert "bits8" not in caught.value.remedy
    plan(LEAST).validate()


@given(graphs())
def test_the_memory_that_a_refusal_names_is_enough(stats):
    short = plan(2**20, stats)
    with pytest.raises(DoesNotFitError) as caught:
        short.validate()
    named = parse_bytes(caught.value.remedy.split()[1])
    plan(named, stats).validate()
    assert named - short.need.total < 2**20


@given(graphs(most_tiles=10**4), st.integers(1, 64), st.integers(0, 10**13))
def test_stripes_share_out_all_tiles_and_the_cached_ones(stats, stripes, memory):
    stripes = min(stripes, stats.tiles)
    made = plan(memory, stats, stripes=stripes)
    assert made.stripes[0][0] == 0
    assert made.stripes[-1][1] == stats.tiles
    assert all(a[1] == b[0] for a, b in zip(made.stripes[:-1], made.stripes[1:], strict=True))
    sizes = [last - first for first, last in made.stripes]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    kept = [made.resident(stripe) for stripe in range(stripes)]
    assert all(
        set(range(first, last)) >= tiles for (first, last), tiles in zip(made.stripes, kept, strict=True)
    )
    assert sum(map(len, kept)) == made.cached_tiles
    # Evenly: no stripe has much more of its tiles in memory than another.
    for tiles, size in zip(kept, sizes, strict=True):
        assert abs(len(tiles) - made.cached_tiles * size / stats.tiles) < 1


@given(st.integers(1, 200), st.integers(0, 200))
def test_cached_tiles_lie_evenly_in_a_stripe(tiles, kept):
    assume(kept <= tiles)
    stats = replace(FACTS, tiles=tiles)
    made = replace(plan(2**40, stats, stripes=1), cached_tiles=kept)
    chosen = sorted(made.resident(0))
    gaps = [b - a for a, b in itertools.pairwise(chosen)]
    assert len(chosen) == kept
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_stripes_have_sections_if_rows_read_what_others_propose():
    def sections(tiles: int, stripes: int, **how: Any) -> int:
        return plan(2**40, replace(FACTS, tiles=tiles), stripes=stripes, **{"sweeps": 4, **how}).sections

    # Two tiles in most.
    assert [sections(tiles, 2) for tiles in (2, 3, 7, 8, 9, 200)] == [1, 2, 3, 3, 3, 32]
    few = plan(2**40, replace(FACTS, tiles=200, local_share=0.9), stripes=2, sweeps=4)
    assert few.sections == 4
    assert sections(9, 1) == 1
    assert sections(9, 2, sweeps=1) == 1
    assert sections(9, 2, method="residual") == 1
    exchanged = [plan(2**40, replace(FACTS, tiles=8), stripes=of, sweeps=4) for of in (1, 2, 4)]
    assert [made.exchanges for made in exchanged] == [0, 3, 2]
    assert replace(exchanged[1], exchange=False).exchanges == 0


@pytest.mark.parametrize("stripes", [0, -1, 17])
def test_stripes_that_cannot_be_are_refused(stripes):
    with pytest.raises(UsageError, match="16 tiles"):
        plan(2**40, stripes=stripes)


@given(st.integers(0, 10**13), st.integers(1, 10**6))
def test_the_default_stripes_depend_on_the_graph_alone_and_hold_tiles(edges, tiles):
    stripes = default_stripes(edges, tiles)
    assert 1 <= stripes <= 64
    assert all(last > first for first, last in stripe_tiles(tiles, stripes))


def test_sweeps_are_chosen_by_the_share_inside_tiles_unless_asked_for():
    assert [sweeps_for(share, 10) for share in (0.9, 0.2, 0.12, 0.06, 0.001)] == [6, 6, 3, 1, 1]
    # As many of a random graph's edges are inside tiles as there are tiles, and all inside the only one.
    assert [sweeps_for(1 / tiles, tiles) for tiles in (1, 2, 8, 16)] == [6, 3, 3, 1]
    assert [sweeps_on_device(share) for share in (0.9, 0.2)] == [2, 1]
    assert sweeps_on_device(0.2, small=True) == 6
    graphs = (2.0, 0.2), (2.0, 0.06), (4.0, 0.9), (0.6, 0.9), (2.0, 0.01), (0.5, 0.01)
    assert [streamed_sweeps(*of) for of in graphs] == [4, 2, 6, 4, 2, 1]
    assert [streamed_sweeps(*of, overlap=False) for of in graphs] == [4, 2, 6, 3, 1, 1]
    assert plan(2**40).sweeps == sweeps_for(0.25, FACTS.tiles) == 6
    assert plan(2**40, replace(FACTS, local_share=0.07)).sweeps == 1
    assert plan(2**40, sweeps=2).sweeps == 2
    # Four of the other fifteen tiles are beside one.
    assert plan(2**40, sweeps=2).gathers == 1 + 0.25 + 0.75 * 4 / 15
    assert plan(2**40, method="residual").sweeps == 1
    assert plan(2**40, method="residual").gathers == 1
    assert plan(2**40, method="residual").mixing == 0


def test_the_json_has_the_keys_that_programs_read():
    made = plan(ENOUGH.need.total)
    made = replace(made, forecast=made.timing(RATES))
    told = json.loads(json.dumps(made.to_json()))
    assert {"tiers", "memory", "needed", "fits", "passes", "predicted_seconds"} <= told.keys()
    tiers = told["tiers"]
    assert all(isinstance(size, int) and size >= 0 for size in tiers.values())
    in_memory = sum(size for tier, size in tiers.items() if tier not in ("store", "tile_cache"))
    assert in_memory + SHARED == told["needed"] == made.need.total
    assert tiers["ring"] == RING_SLOTS * FACTS.max_tile_bytes
    assert tiers["store"] == FACTS.column_bytes
    assert told["fits"] is True
    assert told["passes"] == made.passes > 0
    assert told["predicted_seconds"] == made.seconds
    assert told["predicted_pass_bytes"] == tiers["store"]
    assert told["predicted_bytes_read"] == FACTS.column_bytes * made.passes
    least, most = told["passes_range"]
    assert least <= told["passes"] <= most
    assert json.loads(json.dumps(plan(0).to_json()))["fits"] is False
    assert plan(0).to_json()["predicted_seconds"] is None


def test_kept_tiles_passing_ones_and_rows_take_their_own_time():
    # 16 M edges in 16 tiles.
    tiles, rows = 16e6 / 1e8, 1e6 / 1e7
    passing = 16e6 / 5e7
    half = ENOUGH.need.total + 8 * FACTS.max_tile_bytes
    for memory, swept in ((2**40, tiles), (ENOUGH.need.total, passing), (half, (tiles + passing) / 2)):
        timing = plan(memory).timing(RATES)
        assert timing.each == pytest.approx(swept + rows)
        assert timing.first == pytest.approx(16e6 / 2e7 + rows)
        assert timing.ends == pytest.approx(1e6 / 1e6)
        assert timing.loading == 0.25
    made = plan(half)
    told = made.timing(RATES)
    made = replace(made, forecast=told)
    assert made.seconds == pytest.approx(0.25 + 1 + told.first + (made.passes - 1) * told.each)
    assert made.predictions()["seconds"] == pytest.approx(made.seconds - 0.25)


def test_a_slow_store_decides_how_long_passes_take_that_read_it():
    # 32 MB, half of them in every pass.
    slow = replace(RATES, store_bytes=1e6)
    half = plan(ENOUGH.need.total + 8 * FACTS.max_tile_bytes).timing(slow)
    assert half.each == pytest.approx(16 + 0.1)
    assert half.first == pytest.approx(32 + 0.1)
    assert plan(2**40).timing(slow).each == pytest.approx(0.16 + 0.1)


def test_what_takes_longest_decides_how_long_a_pass_takes():
    stats = replace(FACTS, nodes=10**7, edges=10**9, tiles=4, column_bytes=2 * 10**9)
    here = replace(plan(2**40, stats), method="mixed", cached_tiles=4)
    rates = Rates(store_bytes=1e9, resident=1e9, streamed=5e8, first=2e8, rows=1e8)
    assert here.timing(rates) == Forecast(first=5.1, each=1.1)
    assert replace(here, cached_tiles=2).timing(rates).each == 1.6

    def on_device(rates: Rates, tiles: int, **how: bool) -> float:
        tiers = DeviceTiers(0, DeviceNeed(0, 0, 0, 0, 0), tiles, 4 - tiles, 0, 0, 3, True, **how)
        return replace(here, devices=(tiers,)).timing(rates).each

    device = Rates(store_bytes=1e9, resident=5e9, streamed=4e9, first=2e8, rows=1e8, uploaded=1e9)
    assert [on_device(device, tiles) for tiles in (0, 3)] == [1.0, 0.3125]
    assert on_device(replace(device, alternating=1e10), 0, rows_in_host=True) == pytest.approx(1.2)
    assert on_device(replace(device, launched=5e8), 3) == 2.1


def test_passes_are_those_of_graphs_that_were_measured():
    mixed = partial(predicted_passes, 0.85, 1e-10, "mixed")
    assert mixed() == Passes(fewest=4, typical=16, most=40)
    assert [mixed(mixing=depth).typical for depth in range(6)] == [29, 20, 17, 16, 16, 16]
    together = [mixed(mixing=depth, together=True).typical for depth in range(6)]
    assert together == [16, 13, 12, 11, 11, 11]
    assert (mixed(0.02).typical, mixed(0.02, pairs=True).typical) == (14, 12)
    assert predicted_passes(0.85, 1e-10, "power") == Passes(fewest=19, typical=119, most=158)


@given(graphs(), st.integers(0, 10**13), st.sampled_from(["mixed", "residual"]), st.booleans())
def test_a_run_should_hold_no_more_than_it_may(stats, memory, method, personalized):
    made = plan(memory, stats, method=method, personalized=personalized)
    assert made.need.base < made.peak_memory <= made.need.total + made.cache_bytes


@given(
    st.floats(0.5, 0.99),
    st.floats(1e-10, 1e-2),
    st.sampled_from(["mixed", "residual", "power"]),
    st.floats(0, 1),
)
def test_passes_lie_in_their_range_and_the_damping_alone_is_the_worst(damping, tol, method, local_share):
    told = predicted_passes(damping, tol, method, local_share)
    assert 1 <= told.fewest <= told.typical <= told.most
    if method != "mixed":
        assert told.most == power_passes(damping, tol)


@given(st.floats(0.05, 0.9), st.integers(1, 40), st.integers(1, 60))
def test_an_error_that_falls_evenly_tells_how_many_passes_are_left(factor, done, usual):
    bounds = [factor**k for k in range(1, done + 1)]
    tol = factor**60.5
    assert passes_from(bounds, tol, usual) == (61 if done >= MIN_PASSES_FITTED else max(usual, done + 1))


def test_a_person_reads_what_a_program_reads():
    made = plan(LEAST - 1)
    lines = {line[:16].strip(): line[16:] for line in str(made).splitlines()}
    assert lines["graph"] == "1 M nodes, 16 M edges"
    assert lines["vectors"] == format_bytes(made.need.vectors)
    assert lines["needed / given"] == f"{format_bytes(LEAST)} / {format_bytes(LEAST - 1)}"
    assert lines["tile cache"] == "0 tiles, 0 B"
    assert lines["time"] == "not predicted"
    assert lines["fits"] == "no"
    roomy = str(ENOUGH)
    assert "16 tiles, decoded" in roomy
    assert roomy.endswith("yes")


def test_a_graph_without_edges_can_be_planned():
    empty = GraphStats(5, 0, 1, 1024, 236, 236, 5, 0.0)
    made = plan(2**30, empty)
    made.validate()
    assert made.stripes == ((0, 1),)
    assert made.resident(0) == {0}
    assert str(made)


@given(graphs(), st.integers(0, 8))
def test_rows_propose_if_tiles_are_swept_inside(stats, mixing):
    made = plan(2**60, stats, mixing=mixing)
    assert made.proposals == (made.sweeps > 1)
    assert made.mixing == mixing


@pytest.mark.parametrize("mixing", range(6))
@pytest.mark.parametrize("local_share", [0.25, 0.75])
def test_a_device_remembers_fewer_passes(mixing, local_share):
    stats = replace(FACTS, local_share=local_share)
    rows = np.linspace(0, stats.nodes, stats.tiles + 1).astype(np.int64)
    request = asked(mixing=mixing, memory=2**60, device_memory=(2**60,))
    layout = layout_of(stats, rows, None, np.arange(stats.tiles + 1))
    made = plan_on_devices(grouped_stats(stats, layout), layout, request, all_resident=True)
    assert made.mixing == min(mixing, DEVICE_MIXING)
    assert made.proposals == (made.sweeps > 1)


@given(graphs(), st.integers(0, 10**13), st.booleans(), st.integers(1, 9))
def test_a_reproducible_plan_is_the_same_for_any_memory_that_holds_it(stats, memory, personalized, workers):
    ample = plan(2**60, stats, personalized=personalized)
    made = plan(memory, stats, personalized=personalized, reproducible=True, workers=workers)
    assert (made.stripes, made.mixing, made.sweeps, made.proposals, made.method, made.reads) == (
        ample.stripes, ample.mixing, ample.sweeps, ample.proposals, ample.method, ample.reads,
    )  # fmt: skip
    assert made.need.total == ample.need.total
    assert made.fits == (memory >= ample.need.total)
    assert made.better is None


@given(graphs(), st.integers(0, 10**13))
def test_a_plan_names_the_memory_from_which_on_nothing_gets_better(stats, memory):
    made = plan(memory, stats)
    ample = plan(2**60, stats)
    if made.better is None:
        assert made.mixing == ample.mixing
        return
    assert made.mixing < made.better.mixing == ample.mixing
    assert made.passes >= made.better.passes == ample.passes
    assert plan(made.better.memory, stats).better is None
    assert plan(made.better.memory - 1, stats).better is not None


def test_the_table_says_what_depends_on_memory():
    short = ENOUGH.need.total - 1
    from_on = f"{-(-ENOUGH.need.total // 2**20)}MiB"
    assert f"from {from_on} on mixing 5, about {ENOUGH.passes} passes" in str(plan(short))
    assert f"same passes and bits from {from_on} on" in str(ENOUGH)
    fixed = plan(short, reproducible=True)
    assert "the graph and the settings fix the plan" in str(fixed)
    assert plan(short).to_json()["better"]["memory"] == ENOUGH.need.total
    assert (ENOUGH.to_json()["better"], fixed.to_json()["reproducible"]) == (None, True)
    with pytest.raises(DoesNotFitError, match=f"{format_bytes(ENOUGH.need.total)}.*{from_on} or more"):
        fixed.validate()


def test_method_auto_depends_on_memory_unless_reproducible():
    small = replace(FACTS, edges=4 * 10**6, tiles=4)
    assert choose_method(small, asked(memory=2**40)) == ("components", None)
    method, better = choose_method(small, asked(memory=2**20))
    assert (method, better.method) == ("mixed", "components")
    assert choose_method(small, asked(memory=better.memory))[0] == "components"
    assert choose_method(small, asked(memory=better.memory - 1))[0] == "mixed"
    assert choose_method(small, asked(memory=2**20, reproducible=True)) == ("components", None)
    for other in (FACTS, replace(small, weighted=True)):
        assert choose_method(other, asked(memory=2**40, reproducible=True)) == ("mixed", None)
