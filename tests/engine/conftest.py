"""Stores that several tests use, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from oocpr.sources import open_source

from .running import build

if TYPE_CHECKING:
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
