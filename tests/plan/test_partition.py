"""Plans that have what rows gather in slices of the nodes, and stripes by speed, from integers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oocpr.engine.planning import plan_request
from oocpr.engine.settings import Settings
from oocpr.errors import DoesNotFitError
from oocpr.plan.device_plan import plan_on_devices
from oocpr.plan.forecast import Rates
from oocpr.plan.partition import (
    LINE_NODES,
    MAX_PARTITIONS,
    partition_bounds,
    partition_counts,
    partition_nodes,
    speed_shares,
    stripe_owner,
)
from oocpr.plan.tile_groups import group_bounds, grouped_stats, layout_of
from oocpr.units import parse_bytes

from .test_device_plan import GIB, LARGE, WEIGHTED, rows_of

if TYPE_CHECKING:
    from oocpr.plan.plan import Plan
    from oocpr.plan.request import GraphStats


def planned(
    device_memory: int,
    *,
    stats: GraphStats = LARGE,
    partitioned: bool = True,
    memory: int = 64 * GIB,
    each: int = 1,
    **chosen: str,
) -> Plan:
    bounds, _ = group_bounds([(0, stats.tiles)], 1, each)
    # Of each tile no more is known than what any has at most.
    layout = layout_of(stats, rows_of(stats), None, bounds)
    return plan_on_devices(
        grouped_stats(stats, layout),
        layout,
        plan_request(Settings(**chosen), memory=memory, device_memory=(device_memory,)),
        all_resident=False,
        rows_in_host=True,
        partitioned=partitioned,
    )


@given(st.integers(0, 2**34), st.integers(1, MAX_PARTITIONS))
def test_slices_are_all_nodes_once(nodes: int, slices: int) -> None:
    bounds = [partition_bounds(nodes, slices, number) for number in range(slices)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == nodes
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert max(past - first for first, past in bounds) == partition_nodes(nodes, slices)
    assert all(first % LINE_NODES == 0 or first == nodes for first, _ in bounds)


@given(st.integers(1, 2**34))
def test_none_of_the_slices_that_are_tried_is_empty(nodes: int) -> None:
    counts = list(partition_counts(nodes))
    assert counts == sorted(set(counts))
    for slices in counts:
        assert partition_bounds(nodes, slices, slices - 1)[0] < nodes
    # Those that are not tried have slices no smaller than fewer have.
    for slices in set(range(1, MAX_PARTITIONS + 1)) - set(counts):
        assert partition_nodes(nodes, slices) == partition_nodes(nodes, max(c for c in counts if c < slices))


def least(stats: GraphStats = LARGE) -> int:
    """Bytes of a device without which rows do not gather from all nodes."""
    short = planned(1, stats=stats, partitioned=False).device
    assert short is not None
    return short.need.total


def test_as_few_slices_are_taken_as_there_is_room_for() -> None:
    # Two bytes a node are gathered; of these there may be half, a third, a quarter.
    numbers, plenty = 2 * LARGE.nodes, least()
    for missing, slices in ((0, 1), (1, 2), (numbers // 2, 2), (numbers // 2 + 1, 3), (numbers * 3 // 4, 4)):
        plan = planned(plenty - missing)
        assert plan.fits
        assert plan.partitions == slices
        assert plan.device is not None
        assert plan.device.need.reads == 2 * partition_nodes(LARGE.nodes, slices)
    # What half of the numbers leave of the 64 MiB is for two slots more, of 24 MiB each, and for tiles.
    halved = planned(plenty - 1).device
    assert halved is not None
    assert (halved.slots, LARGE.max_tile_bytes) == (3, 24 * 2**20)


def test_what_fits_without_slices_is_planned_without_them() -> None:
    for memory in (least(), GIB // 2, GIB, 8 * GIB):
        assert planned(memory) == planned(memory, partitioned=False)


@given(
    memory=st.integers(2**20, 2**29),
    host=st.integers(2**28, 2**34),
    reads=st.sampled_from(["bits8", "bits16", "float64"]),
    method=st.sampled_from(["mixed", "residual"]),
    weighted=st.booleans(),
    nodes=st.integers(2**20, 2**31),
    each=st.integers(1, 8),
)
def test_a_plan_with_slices_fits_or_is_refused(
    memory: int, host: int, reads: str, method: str, weighted: bool, nodes: int, each: int
) -> None:
    stats = replace(WEIGHTED if weighted else LARGE, nodes=nodes, max_tile_rows=nodes // 8)
    how = {"reads": reads, "method": method}
    plan = planned(memory, stats=stats, memory=host, each=each, **how)
    tiers = plan.device
    assert tiers is not None
    assert plan.fits == (tiers.max_bytes <= memory and plan.need.total <= host)
    # What is found as a rule is no more than what may be.
    assert plan.peak_memory <= plan.need.total + plan.cache_bytes
    assert tiers.typical <= tiers.max_bytes
    if tiers.partitions > 1:
        assert not tiers.pairs
        assert (plan.sweeps, plan.proposals) == (1, False)
        # One slice less would have been too few, whatever was given up for that.
        fewer = max(count for count in partition_counts(nodes) if count < tiers.partitions)
        freed = (partition_nodes(nodes, fewer) - partition_nodes(nodes, tiers.partitions)) * tiers.need.reads
        slots = (tiers.slots - (2 if each > 1 else 1)) * (tiers.need.ring // tiers.slots)
        assert tiers.need.total + freed // partition_nodes(nodes, tiers.partitions) - slots > memory
    if not plan.fits:
        with pytest.raises(DoesNotFitError):
            plan.validate()


@given(st.sampled_from(["bits8", "bits16"]), st.integers(2**22, 2**31))
def test_a_refusal_tells_what_is_enough(reads: str, nodes: int) -> None:
    stats = replace(LARGE, nodes=nodes, max_tile_rows=nodes // 8)
    refused = planned(2**20, stats=stats, reads=reads, memory=2**40)
    assume(not refused.fits)
    with pytest.raises(DoesNotFitError, match="of the device") as raised:
        refused.validate()
    told = raised.value.remedy.split()[1]
    assert planned(parse_bytes(told), stats=stats, reads=reads, memory=2**40).fits
    assert not planned(parse_bytes(told) - 2**20, stats=stats, reads=reads, memory=2**40).fits


@pytest.mark.parametrize("reads", ["bits8", "bits16"])
def test_the_host_has_what_is_pushed_and_what_slices_bring(reads: str) -> None:
    one, some = (planned(least() - missing, reads=reads) for missing in (0, 2**27))
    assert (one.partitions == 1) == (reads == "bits16" or one.fits)
    one = planned(8 * GIB, reads=reads, partitioned=False, stats=replace(LARGE, local_share=0.0))
    assert some.partitions > 1
    pushed = LARGE.nodes * (1 if reads == "bits8" else 2)
    brought = 8 * (LARGE.nodes + LARGE.tiles)
    assert (some.need.reads, some.need.scratch) == (pushed, brought)
    assert (one.need.reads, one.need.scratch) == (0, 0)
    assert some.need.total - one.need.total == pushed + brought
    tiers, usual = some.device, one.device
    assert tiers is not None
    assert usual is not None
    assert tiers.in_host == usual.in_host + usual.on_device == LARGE.tiles


def test_tiles_pass_once_for_each_slice() -> None:
    plan = planned(least() - 2**26 - 1, memory=5 * GIB)
    assert plan.partitions == 3
    passing = LARGE.column_bytes * (LARGE.tiles - plan.cached_tiles) // LARGE.tiles
    assert 0 < plan.cached_tiles < LARGE.tiles
    assert plan.uncached_bytes == passing
    assert plan.streamed_bytes == 3 * passing
    assert plan.bytes_read == LARGE.column_bytes + (3 * plan.passes - 1) * passing
    # Reading is what takes time here; what is swept is measured with all slices.
    rates = Rates(store_bytes=1e8, resident=1e12, streamed=1e12, first=1e12, rows=1e12)
    timing = plan.timing(rates)
    assert timing.each == pytest.approx(3 * passing / 1e8, rel=1e-2)
    assert timing.first == pytest.approx((LARGE.column_bytes + 2 * passing) / 1e8, rel=1e-2)
    shown, told = str(plan), plan.to_json()
    assert "in 3 parts" in shown
    assert plan.device is not None
    assert f"{LARGE.tiles - plan.device.on_device} tiles a pass, 3 times" in shown
    assert told["slices"] == 3
    assert told["predicted_pass_bytes"] == 3 * passing
    whole = planned(GIB)
    assert "parts" not in str(whole)
    assert whole.to_json()["slices"] == 1


@given(st.lists(st.floats(1.0, 1e9), min_size=1, max_size=5), st.integers(1, 20))
def test_a_worker_has_as_many_tiles_as_it_is_fast(speeds, stripes):
    shares = speed_shares(speeds, stripes)
    workers = len(speeds)
    of = [0.0] * workers
    for stripe, share in enumerate(shares):
        of[stripe_owner(stripe, stripes, workers)] += share
    busy = [worker for worker in range(workers) if of[worker]]
    assert len(busy) == min(workers, stripes)
    alike = min(speeds) > 0.8 * max(speeds)
    for worker in busy:
        expected = 1.0 if alike else max(0.125, speeds[worker] / max(speeds))
        assert of[worker] == pytest.approx(expected, abs=1 / 16)
