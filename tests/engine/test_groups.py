"""Plans and runs of graphs that devices take in groups of tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oocpr.api.graphs import Graph
from oocpr.engine.planning import asked_settings
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.errors import DoesNotFitError, UsageError
from oocpr.plan.device_memory import DEVICE_SLOTS, OVERLAP_SLOTS
from oocpr.plan.forecast import DEVICE_MIXING

from .digraphs import random_digraph
from .running import planned_run
from .weighted import weigh

GRAPH = random_digraph(3000, 20_000, seed=4)


@pytest.fixture
def opened(stored):
    return Graph(stored(GRAPH, 1000))


HOW = {"memory": "8GiB"}
DEVICE = {"device": "cuda", "device_memory": "8GiB"}
SETTINGS = asked_settings("mixed", None, damping=0.85, tol=1e-10, stop="certified")


def test_a_device_gets_all_tiles_in_one_group(opened):
    _, plan, store = planned_run(opened.store, SETTINGS, **DEVICE, **HOW)
    assert (plan.stats.tiles, plan.stripes, len(store.tile_rows) - 1) == (1, ((0, 1),), 1)
    assert store.layout.tiles(0) == range(opened.store.tiles)


def test_what_is_read_of_a_graph_in_groups_are_its_tiles(opened):
    store = planned_run(opened.store, SETTINGS, **DEVICE, **HOW).store
    assert isinstance(store, GroupedStore)
    whole = opened.store
    assert store.encoded is whole.encoded
    assert (store.nodes, store.edges, store.dangling) == (whole.nodes, whole.edges, whole.dangling)
    assert (store.identity, store.path, store.weights) == (whole.identity, whole.path, None)
    assert np.array_equal(store.out_degree(5, 90), whole.out_degree(5, 90))


def test_memory_of_the_host_does_not_change_the_groups(opened):
    _, large, _ = planned_run(opened.store, SETTINGS, **DEVICE, **HOW)
    tight = HOW | {"memory": large.need.total}
    _, plan, store = planned_run(opened.store, SETTINGS, **DEVICE, **tight)
    assert plan.fits
    assert plan.stripes == large.stripes
    assert len(store.tile_rows) == 2


@pytest.fixture
def slow_host(monkeypatch):
    """A host that takes long for its rows, as it does for those of a large graph."""
    monkeypatch.setattr("oocpr.engine.planning.HOST_ROW_BYTES", 2**24)


def test_a_device_too_small_for_all_tiles_gets_groups_of_fewer(opened, slow_host):
    # Nothing is remembered of which there could be less.
    settings = replace(SETTINGS, method="residual")

    def less(**given):
        tiers = planned_run(opened.store, settings, **DEVICE | given, **HOW)[1].device
        return tiers.layouts_stay, tiers.need.total + tiers.resident_bytes - 1

    # What is decoded goes first.
    decoded, given = less()
    packed, given = less(device_memory=given)
    assert (decoded, packed) == (True, False)
    _, plan, store = planned_run(opened.store, settings, **DEVICE | {"device_memory": given}, **HOW)
    assert plan.stats.tiles == opened.store.tiles
    assert plan.device.need.total + plan.device.resident_bytes <= given
    assert len(plan.stripes) == 1
    assert store.layout.bounds.tolist() == list(range(opened.store.tiles + 1))
    assert 1 <= plan.device.slots <= DEVICE_SLOTS + OVERLAP_SLOTS


def test_history_gets_shorter_where_groups_would_be_many(opened, slow_host):
    tiers = planned_run(opened.store, SETTINGS, **DEVICE, **HOW)[1].device
    given = tiers.need.total + tiers.resident_bytes
    plans = []
    while not plans or plans[-1].mixing > 0:
        given -= 1000
        plans.append(planned_run(opened.store, SETTINGS, **DEVICE | {"device_memory": given}, **HOW)[1])
    # Kernels of 24 groups take longer to launch than a pass more would take.
    assert {plan.stats.tiles for plan in plans} == {1}
    assert [plan.mixing for plan in plans] == sorted((plan.mixing for plan in plans), reverse=True)
    assert not any(plan.rows_in_host for plan in plans)


def test_few_rows_leave_the_device_before_kernels_are_launched_for_many_groups(opened):
    tiers = planned_run(opened.store, SETTINGS, **DEVICE, **HOW)[1].device
    given = tiers.need.total + tiers.resident_bytes
    rows_in_host = False
    while not rows_in_host:
        given -= 1000
        _, plan, _ = planned_run(opened.store, SETTINGS, **DEVICE | {"device_memory": given}, **HOW)
        assert (plan.fits, plan.stats.tiles) == (True, 1)
        rows_in_host = plan.rows_in_host
    # The host remembers as much as pays.
    assert plan.mixing == DEVICE_MIXING


SEVERAL = {"device": "cuda:0,cuda:1,cuda:2", "device_memory": "8GiB"}


def test_several_devices_get_a_stripe_of_one_group_each(opened):
    _, plan, store = planned_run(opened.store, SETTINGS, **SEVERAL, **HOW)
    assert plan.stripes == ((0, 1), (1, 2), (2, 3))
    assert len(plan.devices) == len(store.tile_rows) - 1 == plan.stats.tiles == 3
    tiles = opened.store.tiles
    first_rows = [int(opened.store.tile_rows[tiles * k // 3]) for k in range(3)]
    assert store.tile_rows[:3].tolist() == first_rows
    assert [len(store.layout.tiles(group)) for group in range(3)] == np.diff(
        [tiles * k // 3 for k in range(4)]
    ).tolist()


def test_several_devices_with_little_memory_take_tile_by_tile(opened):
    most = planned_run(opened.store, SETTINGS, **SEVERAL, **HOW)[1].devices
    given = min(tiers.need.total for tiers in most)
    _, plan, store = planned_run(opened.store, SETTINGS, **SEVERAL | {"device_memory": given}, **HOW)
    assert plan.stripes[-1][1] == opened.store.tiles == len(store.layout.bounds) - 1
    assert len(plan.stripes) == 3


def test_no_more_devices_than_tiles_are_planned_with(stored):
    small = Graph(stored(GRAPH, 10**6))
    assert small.store.tiles == 1
    assert len(planned_run(small.store, SETTINGS, **SEVERAL, **HOW)[1].devices) == 1


def test_several_devices_do_not_go_with_other_stripes_or_a_cluster(opened):
    with pytest.raises(UsageError, match=r"2 stripes were asked for on 3 devices\. Leave the stripes out"):
        planned_run(opened.store, SETTINGS, **SEVERAL, **HOW | {"stripes": 2})
    with pytest.raises(UsageError, match=r"of one process and a Dask client was given\. Use device cuda"):
        planned_run(opened.store, SETTINGS, alone=False, **SEVERAL, **HOW)


def test_stripes_that_share_a_device_share_its_memory(opened):
    def planned(device_memory, **how):
        how = {"device": "cuda", "stripes": 4} | how
        return planned_run(opened.store, SETTINGS, device_memory=device_memory, **HOW | how)

    small = planned("1KiB").plan
    assert not small.fits
    with pytest.raises(DoesNotFitError, match=r"was given 1 KiB\. Give \d+MiB or more of it, leave str"):
        small.validate()
    _, ample, store = planned("8GiB")
    each = [len(store.layout.tiles(group)) for group in range(4)]
    assert each == np.diff([opened.store.tiles * k // 4 for k in range(5)]).tolist()
    assert [(tiers.device, tiers.sharing) for tiers in ample.devices] == [(0, 4)] * 4
    assert sum(tiers.on_device for tiers in ample.devices) == ample.stats.tiles == 4
    of_workers = planned(None, device="cuda", alone=False, free=[2**30, 2**31]).plan
    assert [(tiers.device, tiers.memory) for tiers in of_workers.devices] == [
        (0, 2**29), (0, 2**29), (1, 2**30), (1, 2**30),
    ]  # fmt: skip


@pytest.mark.parametrize("alone", [True, False])
def test_processors_get_the_stored_tiles(opened, alone):
    _, plan, store = planned_run(opened.store, SETTINGS, device="cpu", alone=alone, **HOW)
    assert plan.stats.tiles == opened.store.tiles > 10
    assert store is opened.store


def test_groups_of_a_weighted_graph_have_room_for_their_weights(tmp_path):
    graph = weigh(GRAPH, 6, "counts")
    opened = Graph(graph.write(tmp_path / "graph.zarr", 1000))
    for how, stripes in ((DEVICE, 1), (SEVERAL, 3)):
        _, plan, store = planned_run(opened.store, SETTINGS, **how, **HOW)
        assert (len(plan.stripes), plan.stats.tiles) == (stripes, stripes)
        assert store.layout.room.sum() >= opened.store.tile_sizes().sum()
        assert np.array_equal(store.out_weight(3, 99), opened.store.out_weight(3, 99))
