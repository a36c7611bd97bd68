"""Stores that several tests use, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from oocpr.ingest import budget
from oocpr.sources import base, open_source

from .running import build

if TYPE_CHECKING:
    from distributed import Client

    from oocpr.store.graph import GraphStore

    from .digraphs import Digraph


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Digraph, int], GraphStore]:
    """Store of a graph in tiles of so many edges; not to be written to."""
    made: dict[tuple[int, bytes, bytes, int], GraphStore] = {}

    def store(graph: Digraph, tile_edges: int) -> GraphStore:
        key = (graph.nodes, graph.src.tobytes(), graph.dst.tobytes(), tile_edges)
        if key not in made:
            path = tmp_path_factory.mktemp("stored") / "graph.zarr"
            made[key] = build(open_source(graph.entries), path, tile_edges)
        return made[key]

    return store


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two workers that send each other little at a time, for imports."""
    from distributed import Client, LocalCluster

    # Local, so that it travels by value: workers know this package and not its tests.
    def send_little() -> None:
        from oocpr.ingest import worker

        worker._SENT, worker._ROWS = 1000, 2000

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.run(send_little)
        yield client


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small graphs divided into many parts and ranges."""
    monkeypatch.setattr(base, "MIN_PART_BYTES", 64)
    monkeypatch.setattr(budget, "MIN_BUCKET_EDGES", 16)
