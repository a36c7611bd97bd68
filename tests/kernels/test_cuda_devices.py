"""Runs on several devices, against one device that takes the same stripes one after another."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.engine.trace import COMPUTE, COPY, Trace
from oocpr.errors import DamagedError
from oocpr.plan.partition import stripe_tiles

from ..engine.digraphs import exact_ranks, random_digraph
from ..engine.running import Stored, check_same_bits, rank, stripes_held
from .several import plan_for

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.method import Solution
    from oocpr.engine.tiles.groups import GroupedStore
    from oocpr.plan.plan import Plan

GRAPH = random_digraph(300, 2500, seed=8)


def run(store: GroupedStore, plan: Plan, chosen: Settings, devices: list[Device], **how: Any) -> Solution:
    backends = tuple(CudaBackend(device, pairs=True) for device in devices[: len(plan.stripes)])
    return rank_graph(store, plan, chosen, backend=backends, **how)


WAYS = ((2, False, 1), (0, True, 1), (1, True, 1), (1, False, 2), (0, True, 3))
"""Groups that stay on each device, whether the others stay in pinned memory, and tiles of a group."""


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"method": "residual"},
        {"reads": "bits8"},
        pytest.param({"method": "power", "reads": "float64"}, marks=pytest.mark.slow),
    ],
    ids=["mixed", "residual", "bits8", "power"],
)
def test_several_devices_have_the_bits_of_one(devices: list[Device], how: dict[str, Any]) -> None:
    # Every pass exchanges and reduces alike, and each takes the host long.
    chosen = Settings(**how, tol=1e-6)
    exact = exact_ranks(GRAPH, 0.85)
    with Stored(GRAPH, 300) as store:
        for count in range(2, len(devices) + 1):
            runs: dict[int, Solution] = {}
            for on_each, pinned, each in WAYS:
                stripes = stripe_tiles(store.tiles, count)
                plan, tiles = plan_for(
                    store, chosen, count, on_each, pinned=pinned, each=each, stripes=stripes
                )
                one = rank_graph(tiles, plan, chosen, backend=CudaBackend(devices[0], pairs=True))
                # Rows read what groups before theirs propose, if anything is proposed.
                first = runs.setdefault(each if chosen.mixed else 1, one)
                for other in (one, run(tiles, plan, chosen, devices)):
                    assert other.converged
                    assert np.abs(other.ranks - exact).sum() <= other.error_bound + 1e-14
                    check_same_bits(other, first)


@pytest.mark.long
def test_several_devices_agree_with_the_processor(devices: list[Device]) -> None:
    chosen = Settings()
    with Stored(GRAPH, 300) as store:
        plan, tiles = plan_for(store, chosen, 2, 1, pinned=True)
        ours = run(tiles, plan, chosen, devices)
        theirs = rank(store, stripes=2)
    assert np.abs(ours.ranks - theirs.ranks).sum() <= ours.error_bound + theirs.error_bound


@pytest.mark.long
def test_a_stripe_may_have_no_row(devices: list[Device]) -> None:
    # All but two of the links go to node 0, whose row is cut into many tiles: the first owns it.
    nodes = 400
    links = [(node, 0) for node in range(1, nodes)] + [(0, 1), (1, nodes - 1)]
    graph = type(GRAPH).of(nodes, links)
    chosen = Settings()
    with Stored(graph, 50) as store:
        plan, tiles = plan_for(store, chosen, 2, 0, pinned=True)
        first = plan.stripes[0][1]
        assert store.tile_rows[first] <= 1
        several = run(tiles, plan, chosen, devices)
        one = rank_graph(tiles, plan, chosen, backend=CudaBackend(devices[0], pairs=True))
    assert np.array_equal(several.ranks, one.ranks)
    assert np.abs(several.ranks - exact_ranks(graph, 0.85)).sum() <= several.error_bound + 1e-14


def test_a_run_leaves_no_thread_and_nothing_to_exchange(devices: list[Device]) -> None:
    chosen, interval = Settings(), sys.getswitchinterval()
    with Stored(GRAPH, 300) as store:
        plan, tiles = plan_for(store, chosen, 2, 1, pinned=True)
        run(tiles, plan, chosen, devices)
    assert sys.getswitchinterval() == interval
    assert not stripes_held()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("oocpr-device")]


@pytest.mark.parametrize("tile", [0, -2])
def test_a_damaged_tile_of_one_stripe_ends_the_run(
    devices: list[Device], tiles_alone: None, tile: int
) -> None:
    with Stored(GRAPH, 300) as store:
        chosen = Settings()
        plan, tiles = plan_for(store, chosen, 2, 0, pinned=False)
        read_into, one = store.encoded.read_into, range(store.tiles)[tile]

        def damaged(tile: int, out: np.ndarray, *, direct: bool = False) -> int:
            size = read_into(tile, out, direct=direct)
            if tile == one:
                out[8] ^= 1
            return size

        store.encoded.read_into = damaged  # type: ignore[method-assign]
        with pytest.raises(DamagedError):
            run(tiles, plan, chosen, devices)
    assert not stripes_held()


def test_a_timeline_has_tracks_for_each_device(devices: list[Device]) -> None:
    trace = Trace()
    with Stored(GRAPH, 300) as store:
        chosen = Settings()
        plan, tiles = plan_for(store, chosen, 2, 1, pinned=False)
        done = run(tiles, plan, chosen, devices, trace=trace)
        passing = [last - first - 1 for first, last in stripe_tiles(store.tiles, 2)]
    tracks = {span.track for span in trace.spans}
    assert {f"{kind}, device {k}" for kind in (COMPUTE, COPY) for k in (0, 1)} <= tracks
    for device, count in enumerate(passing):
        copies = [span for span in trace.spans if span.track == f"{COPY}, device {device}"]
        assert len(copies) == done.passes * count
    assert set(trace.busy()) == {"compute", "copy to the device", "host", "read"}
