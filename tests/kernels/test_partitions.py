"""Rows that gather slice by slice of the nodes, against all nodes at once and direct solution."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.spmv import Gather, SegmentSums, SpMV
from oocpr.engine.cuda.vectors import PartitionedGatherVector
from oocpr.engine.number_formats import READS
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.tiles.source import weight_scale_of
from oocpr.engine.trace import COMPUTE, COPY, Trace
from oocpr.plan.partition import partition_counts, partition_nodes

from ..engine.digraphs import exact_ranks, random_digraph
from ..engine.running import Stored, check_forecast, check_same_bits, in_groups, plan_streamed
from ..engine.weighted import weigh
from .conftest import RUNS
from .matrices import exact_numbers
from .tiles import groups, joined, placed

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.method import Solution
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

    from .tiles import Tile

NODES = 900
GRAPH = random_digraph(NODES, 5000, seed=9)


def brought(
    device: Device,
    of: list[Tile],
    stored: np.ndarray,
    reads: str,
    slices: int,
    *,
    checked: bool,
    passes: int = 1,
) -> tuple[np.ndarray, list[int]]:
    """Sums of the segments that are not empty over all slices and passes, and faults after each slice."""
    there = placed(device, *of)
    nonempty, blocks = there.sizes.nonempty, there.sizes.blocks
    faults = device.xp.zeros(1, np.uint32)
    gathered = PartitionedGatherVector(device, NODES, reads, slices)
    assert gathered.array.size < stored.size
    assert gathered.take(device.xp.array(stored)[:NODES])
    product = SpMV(device, Gather(reads, local=True, checked=checked))
    total, found = np.zeros(nonempty), []
    for number in [*range(slices)] * passes:
        sums = SegmentSums.allocate(device, nonempty, blocks, paired=False)
        sums.pushes[:] = sums.heads[:] = np.nan
        with device:
            gathered.select_partition(number, bring=True)
            product(there, gathered.array, NODES, gathered.window, sums, faults)
        total += download(sums.pushes)[:nonempty]
        found.append(int(download(faults)[0]))
        faults[:] = 0
    return total, found


def sums_of(of: list[Tile], values: np.ndarray) -> np.ndarray:
    """The same by adding up all numbers, whose sums are exact."""
    columns, lengths = joined(of)
    ends = np.cumsum(lengths[lengths > 0], dtype=np.int64)
    return np.diff(np.concatenate([[0.0], values[columns].cumsum()])[np.concatenate([[0], ends])])


SLICES = st.sampled_from(list(partition_counts(NODES))[1:])


@pytest.mark.long
@settings(max_examples=25)
@given(of=groups(NODES), reads=st.sampled_from(list(READS)), slices=SLICES, checked=st.booleans())
def test_slices_together_bring_what_all_nodes_do(
    device: Device, of: list[Tile], reads: str, slices: int, checked: bool
) -> None:
    stored, values = exact_numbers(reads, (NODES,))
    # What is left behind a slice shows in the next pass at the latest.
    sums, faults = brought(device, of, stored, reads, slices, checked=checked, passes=2)
    assert np.array_equal(sums, 2 * sums_of(of, values))
    assert not any(faults)


@settings(max_examples=10)
@given(of=groups(3 * NODES), slices=SLICES)
def test_columns_that_are_no_node_are_found_with_each_slice(
    device: Device, of: list[Tile], slices: int
) -> None:
    stored, values = exact_numbers("bits16", (NODES,))
    sums, faults = brought(device, of, stored, "bits16", slices, checked=True)
    assert np.array_equal(sums, sums_of(of, np.append(values, np.zeros(2 * NODES))))
    wrong = bool((joined(of)[0] >= NODES).any())
    assert faults == [8 * wrong] * slices


def sliced_plan(store: GraphStore, chosen: Settings, slices: int, each: int = 1, **tiers: int) -> Plan:
    """A plan for as much memory as so many slices need; so many tiles stay, and so many slots are there."""

    planned = partial(plan_streamed, store, chosen, rows_in_host=True, partitioned=slices > 1, each=each)
    least = planned(device_memory=0).device
    assert least is not None
    more = partition_nodes(store.nodes, slices) - partition_nodes(store.nodes, least.partitions)
    plan = planned(device_memory=least.need.total + more * READS[chosen.reads].bytes)
    assert plan.fits
    assert plan.device is not None
    assert (plan.partitions, plan.sweeps, plan.device.on_device) == (slices, 1, 0)
    changed = replace(plan.device, **tiers)
    return replace(plan, devices=(changed,), cached_tiles=changed.on_device + changed.in_host)


def backend_of(device: Device, plan: Plan) -> CudaBackend:
    return CudaBackend(device, pairs=False, rows_in_host=True, slices=plan.partitions)


def run(
    device: Device, store: GraphStore, plan: Plan, chosen: Settings, each: int = 1, **vectors: Any
) -> Solution:
    tiles, _ = in_groups(store, each)
    return rank_graph(tiles, plan, chosen, backend=backend_of(device, plan), **vectors)


@pytest.mark.long
@RUNS
@pytest.mark.parametrize(
    ("method", "reads", "begun"),
    [
        ("mixed", "bits16", False),
        ("mixed", "bits8", True),
        ("residual", "float64", True),
        ("residual", "bits8", False),
        ("power", "float64", False),
    ],
)
def test_ranks_lie_within_their_bound_in_as_many_slices_as_there_are(
    device: Device, method: str, reads: str, begun: bool
) -> None:
    given = np.random.default_rng(1).random(NODES)
    vectors = {"teleport": given / given.sum(), "start": given[::-1] / given.sum()} if begun else {}
    exact = exact_ranks(GRAPH, 0.85, vectors.get("teleport"))
    chosen = Settings(method=method, reads=reads)
    with Stored(GRAPH, 600) as store:
        # The last slices have 388, 132 and 4 nodes.
        runs = [
            run(device, store, sliced_plan(store, chosen, slices, each), chosen, each, **vectors)
            for slices, each in ((1, 1), (2, 1), (3, 2), (8, 1))
            if slices < 8 or reads == "bits16"
        ]
    for found in runs:
        assert found.converged
        assert np.abs(found.ranks - exact).sum() <= found.error_bound + 1e-14
        apart = np.abs(found.ranks - runs[0].ranks).sum()
        assert apart <= found.error_bound + runs[0].error_bound
        if reads == "float64":
            assert found.passes == runs[0].passes
            assert apart <= 1e-13


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("kind", ["counts", pytest.param("wide", marks=pytest.mark.slow)])
def test_weighted_graphs_are_gathered_in_slices(device: Device, kind: str, tmp_path: Path) -> None:
    graph = weigh(GRAPH, 2, kind)
    store = graph.write(tmp_path / "g.zarr", 600)
    exact = graph.exact_ranks(0.85)
    chosen = Settings()
    for slices in (1, 3):
        plan = sliced_plan(store, chosen, slices)
        found = run(device, store, plan, chosen)
        assert found.converged
        assert np.abs(found.ranks - exact).sum() <= found.error_bound + 1e-14
    assert weight_scale_of(store, chosen.reads) is not None


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("reads", ["bits16", "float64"])
@pytest.mark.parametrize("each", [1, 2])
def test_where_groups_stay_and_how_many_slots_there_are_changes_no_bit(
    device: Device, reads: str, each: int
) -> None:
    chosen = Settings(method="residual", reads=reads)
    with Stored(GRAPH, 600) as store:
        encoded = store.attributes.column_bytes
        groups = -(-store.tiles // each)
        ways = [
            {"on_device": on_device, "in_host": in_host, "slots": slots}
            for on_device, in_host, slots in (
                (0, 0, 1),
                (0, 0, 3),
                (0, groups, 1),
                (0, groups, 5),
                (1, 2, 2),
                (groups, 0, 1),
            )
        ]
        runs = [run(device, store, sliced_plan(store, chosen, 3, each, **way), chosen, each) for way in ways]
    for found in runs:
        check_same_bits(found, runs[0])
    # What is read is told: all tiles once, and those that do not stay once for each slice and pass.
    for found, way in zip(runs, ways, strict=True):
        again = (groups - way["on_device"] - way["in_host"]) / groups
        first, *later = [x.bytes_read for x in found.history]
        assert first == pytest.approx((1 + 2 * again) * encoded, rel=0.1)
        assert later == pytest.approx([3 * again * encoded] * len(later), rel=0.1)


@RUNS
def test_a_timeline_has_each_tile_once_for_each_slice(device: Device) -> None:
    trace, chosen = Trace(), Settings()
    with Stored(GRAPH, 600) as store:
        plan = sliced_plan(store, chosen, 2, in_host=store.tiles, slots=2)
        found = rank_graph(in_groups(store)[0], plan, chosen, backend=backend_of(device, plan), trace=trace)
        runs = 2 * found.passes * store.tiles
    assert len([span for span in trace.spans if span.track == COMPUTE]) == 2 * runs
    assert runs <= len([span for span in trace.spans if span.track == COPY]) <= runs + 2


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("slices", [2, 3])
def test_a_probe_measures_all_slices(device: Device, slices: int) -> None:
    chosen = Settings()
    with Stored(GRAPH, 600) as store:
        for on_device, in_host in ((0, store.tiles), (0, 0), (3, 2), (store.tiles, 0)):
            plan = sliced_plan(store, chosen, slices, on_device=on_device, in_host=in_host)
            check_forecast(in_groups(store)[0], plan, chosen, backend_of(device, plan))
