"""Runs whose graph is replaced, or is another one on a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import oocpr
from oocpr.engine import run as engine_run
from oocpr.engine.executors.dask_client import check_versions
from oocpr.errors import ReplacedError, SetupError
from oocpr.sources import open_source

from . import running
from .digraphs import random_digraph
from .running import build, rank, rank_whole

GRAPH, OTHER = random_digraph(2000, 12_000, seed=12), random_digraph(2000, 12_000, seed=13)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def folders(tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders of which each worker has one as its own, so that one path leads each to another store."""
    for name, graph in (("same", GRAPH), ("other", OTHER)):
        (tmp_path / name).mkdir()
        build(open_source(graph.entries), tmp_path / name / "g.zarr", 1400)
    (tmp_path / "none").mkdir()

    def seen_by_workers(*args: Any, path: str, **more: Any) -> Any:
        return engine_run.rank_graph(*args, path="/proc/self/cwd/g.zarr", **more)

    monkeypatch.setattr(running, "rank_graph", seen_by_workers)
    yield tmp_path
    client.run(os.chdir, "/")


@pytest.mark.long
@pytest.mark.parametrize("stale", [1, 2])
@pytest.mark.parametrize(
    ("folder", "error", "message"),
    [("other", ReplacedError, "has the graph {}"), ("none", SetupError, "cannot open the graph")],
)
def test_workers_with_another_graph_or_none_are_refused(
    folders: Path, client: Client, stale: int, folder: str, error: type[OSError], message: str
) -> None:
    store = oocpr.open_graph(folders / "same" / "g.zarr").store
    workers = sorted(client.nthreads())
    client.run(os.chdir, folders / "same")
    assert np.array_equal(rank(store, stripes=2, client=client).ranks, rank(store, stripes=2).ranks)
    client.run(os.chdir, folders / folder, workers=workers[-stale:])
    other = oocpr.open_graph(folders / "other" / "g.zarr").store.identity
    who = "|".join(workers[-stale:])
    with pytest.raises(error, match=f"worker ({who}) {message.format(other)}") as raised:
        rank(store, stripes=2, client=client)
    if folder == "other":
        assert f"the run is of the graph {store.identity}" in str(raised.value)
    if stale == 2:
        with pytest.raises(error, match=f"worker ({who}) {message.format(other)}"):
            rank_whole(store, client=client)


@pytest.mark.long
def test_workers_of_another_version_are_refused(client: Client, folders: Path) -> None:
    # Local, so that it travels by value.
    def become(version: str) -> None:
        import oocpr.version

        oocpr.version.__version__ = version

    store = oocpr.open_graph(folders / "same" / "g.zarr").store
    worker = max(client.nthreads())
    client.run(become, "0.0.1", workers=[worker])
    try:
        with pytest.raises(SetupError, match=rf"worker {worker} has no oocpr .* but answers '0\.0\.1'"):
            rank(store, client=client)
    finally:
        client.run(become, oocpr.__version__)
    check_versions(client)


@pytest.mark.parametrize("removed", [True, False])
def test_a_run_whose_store_is_replaced_has_the_ranks_of_what_it_opened_or_none(
    tmp_path: Path, removed: bool
) -> None:
    path = tmp_path / "g.zarr"
    store = build(open_source(GRAPH.entries), path, 1400)
    expected = rank(store, kept="none").ranks

    def replace(stage: str, done: int, *rest: Any) -> None:
        if done == 2:
            if not removed:
                path.rename(tmp_path / "old.zarr")
            oocpr.import_graph(OTHER.entries, path, overwrite=True)

    if not removed:
        assert np.array_equal(rank(store, kept="none", progress=replace).ranks, expected)
        return
    with pytest.raises(ReplacedError, match="was replaced while it was in use"):
        rank(store, kept="none", progress=replace)
