"""Runs for one teleport vector after another, whose tiles stay: each has the bits of a run by itself."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.seed_block import SeedBlock
from oocpr.engine.run import rank_each
from oocpr.engine.scc.personal import SeedVectors
from oocpr.engine.settings import Settings
from oocpr.engine.top_k import largest
from oocpr.plan.device_memory import SEED_LANES, seed_block_bytes

from ..engine.digraphs import Digraph, random_digraph
from ..engine.running import Stored, check_each
from .several import plan_for
from .test_partitions import backend_of, sliced_plan
from .test_staging import grouped, streaming_plan

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.tiles.groups import GroupedStore
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

GRAPH = random_digraph(300, 2500, seed=8)

UNREACHED = random_digraph(300, 240, seed=8)
"""No edge reaches every second node."""


def staying(store: GraphStore, chosen: Settings) -> tuple[Plan, GroupedStore]:
    return streaming_plan(store, chosen, store.tiles, 0), grouped(store)


def sent(store: GraphStore, chosen: Settings) -> tuple[Plan, GroupedStore]:
    return streaming_plan(store, chosen, 0, -(-store.tiles // 2), each=2), grouped(store, 2)


def read(store: GraphStore, chosen: Settings) -> tuple[Plan, GroupedStore]:
    return streaming_plan(store, chosen, 2, 1), grouped(store)


def rows_in_host(store: GraphStore, chosen: Settings) -> tuple[Plan, GroupedStore]:
    return streaming_plan(store, chosen, 2, 1, rows_in_host=True), grouped(store)


def in_partitions(store: GraphStore, chosen: Settings) -> tuple[Plan, GroupedStore]:
    return sliced_plan(store, chosen, 3), grouped(store)


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("reads", ["bits16", "bits8"])
@pytest.mark.parametrize("way", [staying, sent, read, rows_in_host, in_partitions])
def test_a_device_ranks_each_as_if_it_were_alone(
    device: Device, way: Any, reads: str, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if landed:
        monkeypatch.setattr(import_module("oocpr.engine.cuda.vectors"), "LANDED_ROWS", 1)
    chosen = Settings(reads=reads, tol=1e-9)
    with Stored(GRAPH, 300) as store:
        plan, tiles = way(store, chosen)

        def backend() -> CudaBackend:
            if way is in_partitions:
                return backend_of(device, plan)
            in_host = way is rows_in_host
            return CudaBackend(device, pairs=not in_host, rows_in_host=in_host)

        check_each(tiles, plan, chosen, backend, GRAPH)


@pytest.mark.parametrize("lanes", SEED_LANES)
@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("how", [{"method": "residual"}, {"sweeps": 1}, {"sweeps": 1, "dangling": "weakly"}])
@pytest.mark.parametrize("graph", [GRAPH, UNREACHED])
def test_lanes_side_by_side_have_the_bits_of_runs_by_themselves(
    device: Device,
    graph: Any,
    how: dict[str, Any],
    decoded: bool,
    lanes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    seeds = range(40, 45 + lanes)

    class Noted(SeedBlock):
        def __init__(self, *given: Any) -> None:
            before = device.allocated_bytes
            super().__init__(*given)
            assert len(self.lanes) == lanes
            made.append(device.allocated_bytes - before)

    monkeypatch.setattr(import_module("oocpr.engine.cuda.seed_block"), "SeedBlock", Noted)
    chosen = Settings(tol=1e-7, reads="bits16", **how)
    with Stored(graph, 300) as store:
        plan, tiles = staying(store, chosen)
        tiers = replace(plan.devices[0], pairs=False, memory=2**30)
        plan = replace(plan, proposals=False, sweeps=1, devices=(tiers,))

        def backend() -> CudaBackend:
            return CudaBackend(device, pairs=False, layouts_stay=decoded)

        mixing = plan.mixing if chosen.mixed else 0
        needed = {count: seed_block_bytes(plan.stats, tiles.layout, mixing, count) for count in SEED_LANES}

        def within(more: int) -> Plan:
            return replace(plan, devices=(replace(tiers, memory=tiers.max_bytes + more),))

        # One by itself, and more than there are lanes: a lane that is done takes the next one.
        room = needed[max(SEED_LANES)] - (lanes < max(SEED_LANES))
        found = check_each(tiles, within(room), chosen, backend, graph, seeds)
        assert found != sorted(found)
        assert len(made) == 1
        assert made[0] <= needed[lanes]
        if lanes > min(SEED_LANES):
            return
        # Few seeds need few lanes; and with a byte less than these take, runs follow each other.
        check_each(tiles, plan, chosen, backend, graph)
        assert len(made) == 2
        check_each(tiles, within(needed[lanes] - 1), chosen, backend, graph)
        assert len(made) == 2


@pytest.mark.parametrize("top", [0, 4, 5])
def test_the_largest_ranks_of_lanes_are_found_on_the_device(device: Device, top: int) -> None:
    some, ring = random_digraph(9000, 27_000, seed=9), np.arange(9000, 18_000)
    # A ring, of which all ranks are equal; and behind it a node that reaches itself alone.
    src, dst = np.append(some.src, ring), np.append(some.dst, np.roll(ring, 1))
    graph = Digraph(18_001, src, dst)
    rows = np.concatenate([[9, 17, 18_000, 400], ring])
    seeds = SeedVectors(np.array([0, 1, 2, 3, 4, len(rows)]), rows, np.array([1.0] * 4 + [1 / 9000] * 9000))
    chosen, found = Settings(sweeps=1, tol=1e-7), {}
    with Stored(graph, 20_000) as store:
        plan, tiles = staying(store, chosen)
        tiers = replace(plan.devices[0], pairs=False, memory=2**30)
        plan = replace(plan, proposals=False, sweeps=1, devices=(tiers,))
        told: list[float] = []

        def shown(number: int) -> Any:
            return lambda _, done, total, *__: told.append(number + min(1, done / total))

        for wanted in (None, top):
            told.clear()
            made = rank_each(
                tiles, plan, chosen, seeds, shown, path="", decoded={}, top=wanted, threads=1,
                kernel=None, backend=CudaBackend(device, pairs=False, layouts_stay=True),
            )  # fmt: skip
            found[wanted] = {each.number: each for each in made}
            # Behind the first, which is by itself, it never goes back.
            beside = [part for part in told if part >= 1]
            assert beside == sorted(beside)
            assert 1 < beside[-1] < len(seeds)
    for number, one in found[top].items():
        expected = largest([found[None][number].solution.ranks], top)
        # Eighteen blocks of rows are four for each of four.
        listed = top == 4 and number < 4
        assert (one.largest is not None) == listed
        if listed:
            assert one.solution.ranks.size == 0
            assert np.array_equal(one.largest[0], expected[0])
            np.testing.assert_allclose(one.largest[1], expected[1], rtol=1e-15)
        else:
            assert np.array_equal(one.solution.ranks, found[None][number].solution.ranks)


@pytest.mark.parametrize("on_each", [2, 0])
def test_several_devices_rank_each_as_if_it_were_alone(devices: list[Device], on_each: int) -> None:
    chosen = Settings(tol=1e-9)
    with Stored(GRAPH, 300) as store:
        plan, tiles = plan_for(store, chosen, 2, on_each, pinned=True)
        check_each(
            tiles, plan, chosen, lambda: tuple(CudaBackend(each, pairs=True) for each in devices[:2]), GRAPH
        )
