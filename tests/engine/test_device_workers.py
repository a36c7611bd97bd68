"""Stripes on workers that have a device each; here they compute on processors, by the same plan."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.executors import dask as engine_cluster
from oocpr.engine.executors.dask import (
    RESOURCE,
    DeviceAssignment,
    VisibleDevice,
    assign_gpus,
    assign_workers,
)
from oocpr.engine.executors.dask_client import known_workers
from oocpr.engine.planning import asked_settings, plan_request
from oocpr.engine.run import rank_graph
from oocpr.errors import LostError, UsageError

from .digraphs import exact_ranks, random_digraph
from .running import check_same_bits, in_groups, plan_for_groups

if TYPE_CHECKING:
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.store.graph import GraphStore

GRAPH = random_digraph(2000, 12_000, seed=12)
SETTINGS = asked_settings("mixed", None)


@given(st.dictionaries(st.text(max_size=3), st.lists(st.sampled_from("abcde"), unique=True), max_size=6))
def test_no_device_has_two_workers_and_no_worker_two_devices(visible):
    seen = {
        worker: [VisibleDevice(f"cuda:{k}", device) for k, device in enumerate(devices)]
        for worker, devices in visible.items()
    }
    seats = assign_gpus(seen, dict.fromkeys(visible, 1))
    workers = [seat.worker for seat in seats]
    assert workers == sorted(set(workers))
    names = [visible[seat.worker][int(seat.device[5:])] for seat in seats]
    assert len(set(names)) == len(names)
    # Whoever has no seat sees devices of others only.
    for worker in set(visible) - set(workers):
        assert set(visible[worker]) <= set(names)


def test_who_sees_one_device_gets_it_before_who_may_choose():
    both = [VisibleDevice("cuda:0", "a"), VisibleDevice("cuda:1", "b")]
    seats = assign_gpus({"1": both, "2": both[:1]}, {"2": 1})
    assert seats == [
        DeviceAssignment("1", "cuda:1"),
        DeviceAssignment("2", "cuda:0", resources={RESOURCE: 1}),
    ]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, resources={RESOURCE: 1}, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def planned(store: GraphStore) -> tuple[Plan, RankedStore]:
    # Processors stand for devices, and take tiles one by one.
    tiles, stripes = in_groups(store, 1, 2)
    request = plan_request(SETTINGS, memory=2**33, device_memory=(2**33, 2**33))
    return plan_for_groups(store, tiles, request, stripes, all_resident=True), tiles


@pytest.mark.long
def test_workers_have_the_bits_of_one_process_with_as_many_devices(stored, client, monkeypatch):
    store = stored(GRAPH, 1400)
    plan, tiles = planned(store)
    workers = sorted(known_workers(client))
    seats = [DeviceAssignment(worker, "cpu", {RESOURCE: 1}) for worker in workers]
    monkeypatch.setattr(engine_cluster, "assign_workers", lambda _: seats)
    run = rank_graph(tiles, plan, SETTINGS, path=store.path, client=client, backend="cuda:all", threads=1)
    alone = rank_graph(tiles, plan, SETTINGS, backend=("cpu", "cpu"), threads=1)
    check_same_bits(run, alone)
    assert np.abs(run.ranks - exact_ranks(GRAPH, 0.85)).sum() <= run.error_bound
    monkeypatch.setattr(engine_cluster, "assign_workers", lambda _: seats[:1])
    with pytest.raises(LostError, match="planned for 2 workers with devices and 1 are left"):
        rank_graph(tiles, plan, SETTINGS, path=store.path, client=client, backend="cuda")


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_workers_without_devices_are_refused(client):
    with pytest.raises(UsageError, match="no worker of the Dask client has a CUDA device"):
        assign_workers(client)


def test_workers_are_asked_for_their_devices_once(client, monkeypatch):
    # Local, so that it travels by value: workers know this package and not its tests.
    def asked(dask_worker: Any) -> list[VisibleDevice]:
        dask_worker.asked = getattr(dask_worker, "asked", 0) + 1
        return [VisibleDevice("cuda:0", dask_worker.address, nccl=dask_worker.asked == 1)]

    monkeypatch.setattr(engine_cluster, "visible_devices", asked)
    workers = sorted(known_workers(client))
    seats = [DeviceAssignment(worker, "cuda:0", {RESOURCE: 1}, nccl=True) for worker in workers]
    try:
        assert assign_workers(client) == assign_workers(client) == seats
    finally:
        del engine_cluster._SEEN[client]


def test_devices_that_cannot_be_used_are_asked_for_again(monkeypatch):
    def busy() -> str:
        raise UsageError("device cuda cannot be used: it is busy.", "Wait.")

    engine_cluster._visible_devices.cache_clear()
    monkeypatch.setattr(engine_cluster, "all_devices", busy)
    assert engine_cluster.visible_devices() == []
    monkeypatch.setattr(engine_cluster, "all_devices", lambda: "cuda:0")
    monkeypatch.setattr(engine_cluster, "open_device", lambda _: SimpleNamespace(bus="0:1"))
    try:
        assert [device.name for device in engine_cluster.visible_devices()] == ["cuda:0"]
    finally:
        engine_cluster._visible_devices.cache_clear()
