"""Runs on the workers of a real cluster of processes."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, wait
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from oocpr.api import pagerank
from oocpr.api.graphs import Graph
from oocpr.engine import checkpoint
from oocpr.engine.executors import dask as engine_cluster
from oocpr.engine.executors.dask_client import known_workers
from oocpr.engine.executors.shared_memory import SharedMemory
from oocpr.engine.run import MAX_LOSSES
from oocpr.errors import DamagedError, LostError, UsageError

from ..store.damage import flip_bits
from .digraphs import random_digraph
from .running import Stored, check_same_bits, rank, rank_whole
from .weighted import weigh

GRAPH = random_digraph(2000, 12_000, seed=12)
STRIPES = 4


def scaled(client: Client, workers: int) -> Client:
    """The client, once its cluster has so many workers, and none that a test has killed a moment before."""
    client.cluster.scale(workers)
    begun = time.monotonic()
    while True:
        if len(known_workers(client)) == workers:
            answers = client.run(os.getpid, on_error="return").values()
            if [type(answer) for answer in answers] == [int] * workers:
                return client
        assert time.monotonic() - begun < 60, "the cluster does not come to its size"
        time.sleep(0.02)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, id="two threads"),
        # Starting three processes takes most of the time of these tests.
        pytest.param(1, id="one thread", marks=pytest.mark.slow),
    ],
)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=request.param, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_bits_of_this_process(stored, client, workers):
    store = stored(GRAPH, 1400)
    alone = rank(store, stripes=STRIPES)
    run = rank(store, stripes=STRIPES, client=scaled(client, workers))
    assert np.array_equal(run.ranks, alone.ranks)
    assert run.error_bound == alone.error_bound
    assert [x.residual for x in run.history] == [x.residual for x in alone.history]
    assert [x.bytes_read for x in run.history] == [x.bytes_read for x in alone.history]
    assert run.peak_memory > 2**20


@pytest.mark.long
def test_reproducible_ranks_have_the_bits_of_this_process_if_nobody_says_how_many_stripes(stored, client):
    graph = Graph(stored(GRAPH, 1400))
    scaled(client, 2)
    how = {"method": "mixed", "reproducible": True}
    alone, run = (pagerank(graph, **how, client=which) for which in (None, client))
    assert run.passes == alone.passes
    assert run.top(GRAPH.nodes) == alone.top(GRAPH.nodes)


@pytest.mark.long
def test_workers_rank_weighted_graphs_with_the_bits_of_this_process(client, tmp_path):
    store = weigh(GRAPH, 1, "reals").write(tmp_path / "g.zarr", 1400)
    alone = rank(store, stripes=STRIPES)
    run = rank(store, stripes=STRIPES, client=scaled(client, 2), backend="auto")
    assert np.array_equal(run.ranks, alone.ranks)
    with pytest.raises(UsageError, match="weighted"):
        rank_whole(store, client=client)


def test_a_worker_that_has_the_graph_whole_gives_the_bits_of_this_process(stored, client):
    store = stored(GRAPH, 1400)
    run, alone = rank_whole(store, client=scaled(client, 2)), rank_whole(store, threads=1)
    assert np.array_equal(run.ranks, alone.ranks)
    assert run.error_bound == alone.error_bound
    start = alone.ranks
    run, alone = (rank_whole(store, client=which, start=start) for which in (client, None))
    assert np.array_equal(run.ranks, alone.ranks)


@pytest.mark.long
def test_results_that_come_as_the_time_to_look_at_workers_is_over_are_brought(client, monkeypatch):
    scaled(client, 1)
    for number in range(60):
        future = client.submit(abs, -number, pure=False)
        wait(future)
        for seconds in count(number * 5e-6, 1e-5):
            monkeypatch.setattr(engine_cluster, "CHECK_INTERVAL", seconds)
            if (results := client.sync(engine_cluster.results_of, [future])) is not None:
                break
        assert results == [number]


@pytest.mark.long
def test_every_way_of_running_gives_the_bits_of_this_process(stored, client):
    store = stored(GRAPH, 1400)
    scaled(client, 2)
    teleport = np.arange(1.0, GRAPH.nodes + 1)
    teleport /= teleport.sum()
    for how in (
        {"method": "residual", "reads": "bits8", "kept": "none"},
        {"method": "mixed", "reads": "float32", "teleport": teleport, "dangling": "weakly", "threads": 2},
        {"method": "mixed", "reads": "bits16", "start": rank(store).ranks},
    ):
        alone = rank(store, stripes=STRIPES, **how)
        run = rank(store, stripes=STRIPES, client=client, **how)
        assert np.array_equal(run.ranks, alone.ranks), how


@pytest.mark.long
def test_ranks_are_sent_to_a_client_whose_memory_workers_do_not_see(stored, client, monkeypatch):
    store = stored(GRAPH, 1400)
    scaled(client, 2)
    made: list[SharedMemory] = []
    sent: list[bool] = []
    gather = client.gather

    def gathered(*what: Any, **how: Any) -> Any:
        found = gather(*what, **how)
        sent.extend(part is not None for _, part, _ in found)
        return found

    def memory_at(path: str | None, size: int) -> SharedMemory:
        made.append(SharedMemory(size))
        if path is not None:
            made[-1].address = made[-1].address._replace(path=path)
        return made[-1]

    monkeypatch.setattr(client, "gather", gathered)
    alone = rank(store, stripes=STRIPES)
    other = SharedMemory(GRAPH.nodes)
    for path, sends in {None: False, "": True, "/dev/null": True, other.address.path: True}.items():
        sent.clear()
        monkeypatch.setattr(engine_cluster, "SharedMemory", partial(memory_at, path))
        assert np.array_equal(rank(store, stripes=STRIPES, client=client).ranks, alone.ranks)
        assert sent == [sends, sends]
    assert not other.array.any()
    # The numbers of descriptors are used again.
    other.close()
    paths = [Path(memory.address.path) for memory in made]
    assert not any("oocpr" in str(path.readlink()) for path in paths if path.is_symlink())


@pytest.mark.long
def test_a_run_is_a_graph_of_epochs(stored, client, monkeypatch):
    # An epoch of each pass.
    monkeypatch.setattr(engine_cluster, "EPOCH_SECONDS", 0)
    store = stored(GRAPH, 1400)
    scaled(client, 2)
    seen: dict[tuple[str, int], set[tuple[str, int]]] = {}

    class Recorder(SchedulerPlugin):
        def transition(self, key: Any, _: str, finish: str, *__: Any, **___: Any) -> None:
            if isinstance(key, tuple) and finish == "processing":
                name, epoch = key
                found = client.cluster.scheduler.tasks[key].dependencies
                seen[without_run(name), epoch] = {
                    (without_run(of.key[0]), of.key[1]) for of in found if isinstance(of.key, tuple)
                }

    def without_run(name: str) -> str:
        return name.rpartition("-")[0]

    client.cluster.scheduler.add_plugin(Recorder(), name="recorder")
    try:
        run = rank(store, stripes=2, client=client)
    finally:
        client.cluster.scheduler.remove_plugin("recorder")
    sweeps = {"sweep-0", "sweep-1"}
    assert run.passes >= 3
    for epoch in range(run.passes):
        assert seen["reduce", epoch] >= {(sweep, epoch) for sweep in sweeps}
        for sweep in sweeps:
            assert seen[sweep, epoch] == ({("reduce", epoch - 1)} if epoch else set())
    events = [event for _, event in client.get_events("oocpr")]
    assert [event["number"] for event in events[-run.passes :]] == list(range(1, run.passes + 1))
    assert events[-1]["bound"] == run.error_bound


def test_the_table_of_workers_has_the_last_pass_as_long_as_a_run_lasts(stored, client, monkeypatch):
    monkeypatch.setattr(engine_cluster, "EPOCH_SECONDS", 0)
    store = stored(GRAPH, 1400)
    scaled(client, 2)
    shown: list[dict[str, float]] = []

    # Local, so that it travels by value: workers know this package and not its tests.
    async def beat(dask_worker: Any) -> None:
        await dask_worker.heartbeat()

    def metrics() -> list[dict[str, float]]:
        client.run(beat)
        workers = client.cluster.scheduler.workers.values()
        return [
            {key: value for key, value in of.metrics.items() if key.startswith("oocpr")} for of in workers
        ]

    def look(stage: str, done: int, *rest: Any) -> None:
        shown.extend(metrics())

    run = rank(store, stripes=2, client=client, progress=look)
    told = [(found["oocpr pass"], found["oocpr bound"]) for found in shown if found]
    assert len(told) >= 2
    assert set(told) <= {(record.number, record.bound) for record in run.history}
    assert all(found["oocpr GTEPS"] > 0 for found in shown if found)
    assert not any(metrics())


@pytest.mark.long
def test_workers_that_come_get_stripes_of_a_run(stored, client, monkeypatch, caplog):
    monkeypatch.setattr(engine_cluster, "CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(engine_cluster, "EPOCH_SECONDS", 0)
    store = stored(GRAPH, 1400)
    alone = rank(store, stripes=STRIPES)
    scaled(client, 1)
    begun: list[int] = []

    def come(stage: str, done: int, *rest: Any) -> None:
        begun.append(done)
        if done == 4:
            scaled(client, 3)

    # Tasks that sweep all stripes, before they are divided.
    sweeps: list[str] = []

    class Recorder(SchedulerPlugin):
        def transition(self, key: Any, _: str, finish: str, *__: Any, **___: Any) -> None:
            if isinstance(key, tuple) and finish == "processing" and key[0].startswith("sweep"):
                sweeps.append(key[0].rpartition("-")[0])

    client.cluster.scheduler.add_plugin(Recorder(), name="recorder")
    try:
        run = rank(store, stripes=STRIPES, client=client, progress=come)
    finally:
        client.cluster.scheduler.remove_plugin("recorder")
    # Who waited in turns for what Dask was still doing leaves nothing that asyncio speaks of.
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]
    # No pass is done twice.
    assert begun == list(range(1, run.passes + 1))
    assert sweeps[0] == "sweep-0-3"
    assert set(sweeps[-3:]) == {"sweep-0-1", "sweep-2", "sweep-3"}
    check_same_bits(run, alone)


def test_two_workers_and_one_stripe(stored, client):
    store = stored(GRAPH, 1400)
    run = rank(store, stripes=1, client=scaled(client, 2))
    assert np.array_equal(run.ranks, rank(store, stripes=1).ranks)


def test_a_run_leaves_nothing_on_the_workers(stored, client):
    # Local, so that it travels by value: workers know this package and not its tests.
    def groups_held() -> int:
        import gc

        from oocpr.engine.stripe import StripeGroup

        gc.collect()
        return sum(issubclass(type(found), StripeGroup) for found in gc.get_objects())

    rank(stored(GRAPH, 1400), stripes=STRIPES, client=scaled(client, 2))
    begun = time.monotonic()
    while any(client.has_what().values()) or any(client.run(groups_held).values()):
        assert time.monotonic() - begun < 10, "workers still hold data of the run"
        time.sleep(0.02)


def test_a_damaged_tile_is_reported_by_the_worker_that_reads_it(client):
    with Stored(GRAPH, 1400) as store:
        flip_bits(next(Path(store.path).rglob("indices/c/5")))
        with pytest.raises(DamagedError, match="c/5"):
            rank(store, stripes=STRIPES, client=scaled(client, 2))


def test_a_client_without_workers_is_refused(stored):
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        pytest.raises(UsageError, match="no workers"),
    ):
        rank(stored(GRAPH, 1400), client=client)


# Last, since the cluster needs a while to replace the workers.
@pytest.mark.long
@pytest.mark.parametrize("kept", [True, False])
def test_workers_that_are_killed_cost_a_run_nothing_but_time(stored, client, monkeypatch, kept):
    monkeypatch.setattr(engine_cluster, "CHECK_INTERVAL", 0.5)
    monkeypatch.setattr(engine_cluster, "EPOCH_SECONDS", 0)
    monkeypatch.setattr(checkpoint, "INTERVAL", 0 if kept else 60)
    store = stored(GRAPH, 1400)
    alone = rank(store, stripes=STRIPES)
    scaled(client, 2)
    # One of them, and then all.
    left, seen = {8: slice(1), 10: slice(None)}, list[int]()

    def kill(stage: str, done: int, *rest: Any) -> None:
        seen.append(done)
        if done in left:
            for process in sorted(client.run(os.getpid).values())[left.pop(done)]:
                os.kill(process, signal.SIGKILL)

    # Local, so that it travels by value: workers know this package and not its tests.
    def kept_folders(dask_worker: Any) -> list[str]:
        return [found.name for found in Path(dask_worker.local_directory).glob("oocpr-run-*")]

    run = rank(store, stripes=STRIPES, client=client, progress=kill)
    assert not left
    check_same_bits(run, alone)
    # Passes are done again from where the run was kept; one may be over before its worker is.
    again = [number for before, number in pairwise(seen) if number <= before]
    assert (again[0] > 1) == kept
    assert again[-1] == 1
    assert not any(client.run(kept_folders).values())


@pytest.mark.long
def test_a_run_that_loses_worker_after_worker_ends(stored, client, monkeypatch):
    monkeypatch.setattr(engine_cluster, "CHECK_INTERVAL", 0.5)
    store = stored(GRAPH, 1400)
    scaled(client, 2)
    killed: list[int] = []

    def kill(stage: str, done: int, *rest: Any) -> None:
        if done == 1:
            # Dask gives up a worker that is killed while its nanny is still starting it.
            while any(nanny.status != Status.running for nanny in client.cluster.workers.values()):
                time.sleep(0.02)
            killed.append(done)
            processes = client.run(os.getpid)
            for process in processes.values():
                os.kill(process, signal.SIGKILL)
            # One that the scheduler does not miss yet would be lost again, after the others.
            while set(processes) & set(client.nthreads()):
                time.sleep(0.02)

    with pytest.raises(LostError, match="lost") as raised:
        rank(store, stripes=STRIPES, client=client, progress=kill)
    assert raised.value.remedy
    assert len(killed) == 1 + MAX_LOSSES, raised.value.cause
