"""Workers of a Dask client with a device each, against one process with as many devices."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pytest
from distributed import Client, LocalCluster

from oocpr.engine import stripe
from oocpr.engine.cuda import communication, vectors
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.executors import dask, dask_groups, dask_worker
from oocpr.engine.executors.dask import RESOURCE, DeviceAssignment
from oocpr.engine.executors.dask_client import known_workers
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError

from ..engine.digraphs import random_digraph
from ..engine.running import Stored, check_same_bits, stripes_held
from ..engine.weighted import weigh
from .pooled import PooledDevice
from .several import plan_for
from .shim.host import HostDevice, HostLink
from .shim.pool import Pool

if TYPE_CHECKING:
    from oocpr.engine.method import Solution
    from oocpr.store.graph import GraphStore

GRAPH = random_digraph(300, 2500, seed=8)
SETTINGS = Settings()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Workers that are threads of this process, so that they have the shim."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            processes=False,
            resources={RESOURCE: 1},
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def seats(client: Client, shim_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[DeviceAssignment]:
    """A shim device for each worker."""
    devices = {f"cuda:{k}": HostDevice(shim_folder) for k in range(2)}

    def make_backend(name: Any, *_: Any, **__: Any) -> Any:
        return CudaBackend(devices[name], pairs=True) if isinstance(name, str) else name

    monkeypatch.setattr(stripe, "make_backend", make_backend)
    workers = sorted(known_workers(client))
    seats = [DeviceAssignment(worker, f"cuda:{k}", {RESOURCE: 1}) for k, worker in enumerate(workers)]
    monkeypatch.setattr(dask, "assign_workers", lambda _: seats)
    # Other tests have other devices.
    monkeypatch.setattr(dask_groups, "_KEPT", {})
    return seats


def run(store: GraphStore, client: Any = None) -> Solution:
    plan, tiles = plan_for(store, SETTINGS, 2, 1, pinned=True)
    device = "cuda:0,cuda:1" if client is None else "cuda"
    return rank_graph(tiles, plan, SETTINGS, path=store.path, client=client, backend=device)


def key_of_a_meeting(monkeypatch: pytest.MonkeyPatch, seats: list[DeviceAssignment]) -> None:
    key = uuid4().hex
    seats[:] = [replace(seat, nccl=True) for seat in seats]
    monkeypatch.setattr(dask, "new_unique_id", lambda: key)


@pytest.mark.long
@pytest.mark.parametrize("staged", [2**22, 7])
@pytest.mark.parametrize("way", ["host", "linked", "switched off", "changes what passes"])
def test_workers_have_the_bits_of_one_process(
    seats: list[DeviceAssignment], client: Client, monkeypatch: pytest.MonkeyPatch, way: str, staged: int
) -> None:
    passed: list[int] = []
    broadcast = HostLink.broadcast

    def counted(link: HostLink, source: Any, target: Any, root: int) -> None:
        passed.append(root)
        broadcast(link, source, target, root)
        if way == "changes what passes":
            target[-1] ^= 1

    monkeypatch.setattr(HostLink, "broadcast", counted)
    for module in (vectors, communication):
        monkeypatch.setattr(module, "STAGED_NUMBERS", staged)
    # One round tries the ways, in pieces.
    monkeypatch.setattr(communication, "GROUP_TEST_NUMBERS", 32)
    tried = 2 * 2 * -(-32 // staged)
    if way != "host":
        key_of_a_meeting(monkeypatch, seats)
    if way == "switched off":
        monkeypatch.setenv(dask.SWITCH, "off")
    with Stored(GRAPH, 300) as store:
        alone = run(store)
        there = run(store, client)
    check_same_bits(there, alone)
    if way == "linked":
        assert len(passed) >= tried + there.passes * 2 * 2
    else:
        assert len(passed) == (tried if way == "changes what passes" else 0)
    assert not stripes_held()


def find_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the sixth sweep from now on find a damaged tile, and its run look for that often."""
    sweep, calls = dask_worker.StripeWorker._sweep, count(1)

    def damaged(*args: Any) -> Any:
        if next(calls) == 6:
            raise DamagedError("a tile is damaged.", "Import again.")
        return sweep(*args)

    monkeypatch.setattr(dask, "CHECK_INTERVAL", 0.5)
    monkeypatch.setattr(dask_worker.StripeWorker, "_sweep", damaged)


@pytest.mark.long
def test_devices_connect_once_for_runs_that_end_in_order(
    seats: list[DeviceAssignment], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, connect = list[HostLink](), HostDevice.connect
    monkeypatch.setattr(HostDevice, "connect", lambda *about: made.append(connect(*about)) or made[-1])
    with Stored(GRAPH, 300) as store:
        alone = run(store)
        key_of_a_meeting(monkeypatch, seats)
        first, again = run(store, client), run(store, client)
        assert len(made) == 2
        key_of_a_meeting(monkeypatch, seats)
        with monkeypatch.context() as patch:
            find_damage(patch)
            with pytest.raises(DamagedError):
                run(store, client)
        assert len(made) == 2
        after = run(store, client)
        assert len(made) == 4
        # Devices of other workers, and of other numbers, are not in the group.
        key_of_a_meeting(monkeypatch, seats)
        seats[:] = [
            replace(seat, device=other.device) for seat, other in zip(seats, seats[::-1], strict=True)
        ]
        turned = run(store, client)
    assert len(made) == 6
    for there in (first, again, after, turned):
        assert np.array_equal(there.ranks, alone.ranks)
    dask_groups.drop_all()
    assert all(link._barrier.broken for link in made)


def test_devices_are_free_once_a_run_has_ended(
    seats: list[DeviceAssignment], client: Client, monkeypatch: pytest.MonkeyPatch, shim_folder: Path
) -> None:
    pools = {seat.device: Pool() for seat in seats}

    def make_backend(name: str, *_: Any, **__: Any) -> Any:
        return CudaBackend(PooledDevice(shim_folder, pools[name]), pairs=True)

    monkeypatch.setattr(stripe, "make_backend", make_backend)
    key_of_a_meeting(monkeypatch, seats)
    with Stored(GRAPH, 300) as store:
        plan, tiles = plan_for(store, SETTINGS, 2, 1, pinned=True)
        # Nobody may have to look for cycles first: the next run may begin at once.
        gc.disable()
        try:
            for _ in range(2):
                rank_graph(tiles, plan, SETTINGS, path=store.path, client=client, backend="cuda")
                assert [pool.used for pool in pools.values()] == [0, 0]
        finally:
            gc.enable()
    assert all(pool.most > 0 for pool in pools.values())


@pytest.mark.long
def test_workers_take_weighted_graphs(
    seats: list[DeviceAssignment], client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key_of_a_meeting(monkeypatch, seats)
    graph = weigh(GRAPH, 8, "reals")
    store = graph.write(tmp_path / "g.zarr", 300)
    alone, there = run(store), run(store, client)
    assert np.array_equal(there.ranks, alone.ranks)
    assert there.converged
    assert np.abs(there.ranks - graph.exact_ranks(0.85)).sum() <= there.error_bound + 1e-14


def test_an_error_of_one_worker_ends_the_run(
    seats: list[DeviceAssignment], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_of_a_meeting(monkeypatch, seats)
    find_damage(monkeypatch)
    begun = time.monotonic()
    with Stored(GRAPH, 300) as store, pytest.raises(DamagedError, match="a tile is damaged"):
        run(store, client)
    # The other worker waits for this one, for a minute if nobody ends it.
    assert time.monotonic() - begun < 30
    # Workers let go of a run that was cancelled when their scheduler says so.
    while stripes_held():
        assert time.monotonic() - begun < 40, "workers still hold stripes of the run"
        time.sleep(0.1)


@pytest.mark.parametrize("fails", ["the rows", "the meeting"])
def test_an_error_of_one_worker_that_begins_ends_the_run(
    seats: list[DeviceAssignment], client: Client, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    key_of_a_meeting(monkeypatch, seats)
    monkeypatch.setattr(dask, "CHECK_INTERVAL", 0.5)
    calls, aborted, abort = count(1), list[HostLink](), HostLink.abort
    connected, connect = list[HostLink](), HostDevice.connect
    monkeypatch.setattr(HostLink, "abort", lambda link: aborted.append(link) or abort(link))

    def connecting(*args: Any) -> HostLink:
        # Who comes when the run is over already is waited for in vain.
        connected.append(connect(*args))
        return connected[-1]

    monkeypatch.setattr(HostDevice, "connect", connecting)

    def once(work: Any) -> Any:
        def failing(*args: Any) -> Any:
            if next(calls) == 1:
                raise DamagedError("a tile is damaged.", "Import again.")
            return work(*args)

        return failing

    owner, name = (
        (dask_worker.StripeGroup, "allocate")
        if fails == "the rows"
        else (communication.Communicator, "_works")
    )
    monkeypatch.setattr(owner, name, once(getattr(owner, name)))
    if fails == "the meeting":
        # Those that wait for numbers of the other get none.
        monkeypatch.setattr(HostLink, "broadcast", lambda *_: None)
    begun = time.monotonic()
    with Stored(GRAPH, 300) as store, pytest.raises(DamagedError, match="a tile is damaged"):
        run(store, client)
    assert time.monotonic() - begun < 30
    while set(connected) - set(aborted) or stripes_held():
        assert time.monotonic() - begun < 40, "a worker waits for others still"
        time.sleep(0.1)
