"""Plans of runs on a device, from integers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oocpr.plan.on_device import plan_on_device
from oocpr.plan.plan import GraphFacts, Plan

# R-MAT of scale 26 in order of degree: half of the rows, all in the last tile, have no edges.
LARGE = GraphFacts(
    nodes=2**26,
    edges=1_050_000_000,
    tiles=501,
    tile_edges=2**21,
    column_bytes=2_000_000_000,
    most_tile_bytes=2**23 + 2**24,
    most_tile_rows=35_000_000,
    local_share=0.06,
)
GIB = 2**30


def planned(
    device_memory: int,
    *,
    rows_in_host: bool,
    facts: GraphFacts = LARGE,
    reads: str = "bits16",
) -> Plan:
    return plan_on_device(
        facts,
        stays=False,
        method="mixed",
        reads=reads,
        damping=0.85,
        tol=1e-10,
        mixing=5,
        memory=64 * GIB,
        base=0,
        device_memory=device_memory,
        personalized=False,
        rows_in_host=rows_in_host,
    )


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
    much, little = (planned(memory, rows_in_host=True, facts=crawl) for memory in (GIB, GIB // 2))
    assert much.sweeps == 3
    assert little.fits
    assert little.sweeps == 1
    assert much.device is not None
    least = much.device.need.reads + 2**26
    narrow = [planned(memory, rows_in_host=True) for memory in range(least, GIB, 2**20)]
    slots = [plan.device.slots for plan in narrow if plan.device is not None and plan.fits]
    assert slots == sorted(slots)
    assert {*slots} == {1, 2, 3, 4, 5}


@given(
    memory=st.integers(2**20, 2**33),
    rows_in_host=st.booleans(),
    reads=st.sampled_from(["bits8", "bits16", "float64"]),
    tiles=st.integers(1, 1000),
)
def test_a_plan_that_fits_has_room_for_what_it_keeps(
    memory: int, rows_in_host: bool, reads: str, tiles: int
) -> None:
    plan = planned(memory, rows_in_host=rows_in_host, facts=replace(LARGE, tiles=tiles), reads=reads)
    tiers = plan.device
    assert tiers is not None
    # What the process comes to hold as a rule is no more than what it may.
    assert plan.peak_memory <= plan.need.total + plan.cache_bytes
    assert plan.fits == (tiers.need.total + tiers.kept_bytes <= memory)
    assert 0 <= tiers.on_device + tiers.in_host <= tiles
    on_device, in_host = tiers.places(range(tiles))
    assert (len(on_device), len(in_host)) == (tiers.on_device, tiers.in_host)
    if tiers.need.total <= memory:
        assert plan.fits
