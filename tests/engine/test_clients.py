"""Faults of a real cluster, each with the error that tells it from others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, Security

import oocpr
from oocpr.engine.executors import dask_client
from oocpr.engine.executors.dask_client import (
    _start_errors,
    _uninterrupted,
    cluster_errors,
    known_workers,
    open_client,
)
from oocpr.errors import EXTRAS, DoesNotFitError, LostError, SetupError, UsageError

from .digraphs import random_digraph
from .running import rank, rank_whole

GRAPH = random_digraph(2000, 12_000, seed=12)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_workers_are_known_whatever_the_client_asks_by_itself(client):
    (worker,) = client.nthreads()
    # A client asks every two seconds who the scheduler is, but not for its workers.
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}),
        Client(client.scheduler.address) as busy,
    ):
        assert all(list(known_workers(busy)) == [worker] for _ in range(1000))


def test_a_worker_without_the_package_is_a_wrong_setup(stored, client):
    # Local, so that it travels by value.
    def hide() -> None:
        import sys

        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "oocpr"}
        sys.modules["oocpr"] = None  # type: ignore[assignment]
        sys.hidden_oocpr = hidden  # type: ignore[attr-defined]

    def show() -> None:
        import sys

        del sys.modules["oocpr"]
        sys.modules.update(sys.hidden_oocpr)  # type: ignore[attr-defined]

    store = stored(GRAPH, 1400)
    client.run(hide)
    try:
        for ranked in (rank, rank_whole):
            with pytest.raises(SetupError, match="has no oocpr"):
                ranked(store, client=client)
        with pytest.raises(SetupError, match="has no oocpr"):
            oocpr.import_graph((np.array([0, 1]), np.array([1, 0])), "never.zarr", client=client)
    finally:
        client.run(show)


@pytest.mark.long
def test_a_worker_that_the_scheduler_does_not_know_any_more_is_lost(client):
    with pytest.raises(LostError, match=r"tcp://127\.0\.0\.1:9"), cluster_errors(client):
        client.scatter([1], workers=["tcp://127.0.0.1:9"], hash=False)
    with pytest.raises(KeyError, match="else"), cluster_errors(client):
        raise KeyError("something else")


@pytest.mark.long
def test_a_cluster_with_certificates_takes_a_client_with_those_of_its_configuration(stored, tmp_path):
    store, certificates = stored(GRAPH, 1400), Security.temporary()
    expected = rank_whole(store)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", security=certificates
        ) as cluster,
        dask.config.set({"distributed.comm.require-encryption": False}),
    ):
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        with pytest.raises(UsageError, match="No Dask scheduler answers"), open_client(address, None):
            pass
        for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
            (tmp_path / name).write_text(getattr(certificates, name))
        names = {
            "distributed.comm.tls.ca-file": "tls_ca_file",
            "distributed.comm.tls.client.cert": "tls_client_cert",
            "distributed.comm.tls.client.key": "tls_client_key",
        }
        files = {key: str(tmp_path / name) for key, name in names.items()}
        with dask.config.set(files), open_client(address, None) as client:
            assert client.security.tls_ca_file == files["distributed.comm.tls.ca-file"]
            found = rank_whole(store, client=client)
    np.testing.assert_allclose(found.ranks, expected.ranks, rtol=0, atol=1e-9)


def test_memory_limits_of_workers_count(client, tmp_path, monkeypatch):
    graph = oocpr.import_graph((GRAPH.src, GRAPH.dst), tmp_path / "g.zarr")
    assert len(dask_client.worker_limits(client)) == 1
    monkeypatch.setattr(dask_client, "worker_limits", lambda _: [100 << 20])
    with pytest.raises(DoesNotFitError, match="was given 75 MiB"):
        oocpr.pagerank(graph, client=client, method="mixed", memory="2GiB")


@pytest.mark.long
def test_workers_that_are_started_and_lost_leave_nothing(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    store = stored(GRAPH, 1400)
    with open_client(None, 1) as client:

        def kill(stage: str, done: int, *rest: Any) -> None:
            if done == 2:
                (pid,) = client.run(os.getpid).values()
                os.kill(pid, signal.SIGKILL)

        begun = time.monotonic()
        with pytest.raises(LostError, match="was lost"):
            rank(store, stripes=2, client=client, progress=kill)
        assert time.monotonic() - begun < 30
    assert list(tmp_path.iterdir()) == []
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.long
def test_a_run_without_any_workers_left_is_lost(stored, monkeypatch):
    monkeypatch.setattr("oocpr.engine.executors.dask.RETURN_TIMEOUT", 1.0)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        original = client.submit

        def submit(*args: Any, **options: Any) -> Any:
            cluster.scale(0)
            while client.nthreads():
                time.sleep(0.02)
            return original(*args, **options)

        monkeypatch.setattr(client, "submit", submit)
        with pytest.raises(LostError, match="all workers were lost"):
            rank_whole(stored(GRAPH, 1400), client=client)


@contextmanager
def met_as_it_starts(meet):
    """Have a thread do something to a worker that starts meanwhile."""
    ended = threading.Event()
    others = set(psutil.Process().children())

    def wait() -> None:
        while not ended.is_set():
            for child in set(psutil.Process().children()) - others:
                if "spawn_main" in " ".join(child.cmdline()):
                    meet(child)
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_worker_that_ends_while_it_starts_is_lost():
    lost = pytest.raises(LostError, match="ended while it was started")
    with met_as_it_starts(psutil.Process.kill), lost, open_client(None, 1):
        pass


def test_what_is_said_to_be_installed_is_in_the_extras():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra, packages in EXTRAS.items():
        wanted = " ".join(project["optional-dependencies"][extra])
        assert all(package in wanted for package in packages.split())


def test_what_dask_asserts_of_workers_that_never_came_is_no_defect():
    with pytest.raises(LostError, match=r"ended while it was started: Status\.starting"), _start_errors():
        raise AssertionError("Status.starting")


def test_an_interrupt_that_ends_starting_workers_as_well_is_one():
    def end_all() -> None:
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("Nanny failed to start worker process")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), _uninterrupted(), _start_errors():
            end_all()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.long
def test_a_worker_that_is_stopped_while_it_starts_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("oocpr.engine.executors.dask_client.START_TIMEOUT", 3)
    lost = pytest.raises(LostError, match="ended while it was started")
    with met_as_it_starts(psutil.Process.suspend), lost, open_client(None, 1):
        pytest.fail("no worker started")
