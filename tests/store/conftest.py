"""Small graphs and stores of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from oocpr.store.writer import GraphWriter

from .writing import add_tile


class Csr(NamedTuple):
    """In-edges of a graph: row v lists the nodes that link to v."""

    indptr: NDArray[np.int64]
    columns: NDArray[np.uint32]
    weights: NDArray[np.float64] | None = None

    @property
    def nodes(self) -> int:
        return self.indptr.size - 1

    def tile(self, t: int, tile_edges: int, rows: list[int]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Columns and lengths of a tile, edge by edge as its definition says."""
        lo, hi = t * tile_edges, min(self.columns.size, (t + 1) * tile_edges)
        row_of = np.repeat(np.arange(self.nodes), np.diff(self.indptr))[lo:hi]
        segments = range(rows[t], rows[t + 1] + 1)
        return self.columns[lo:hi], np.array([np.count_nonzero(row_of == v) for v in segments])

    def tile_rows(self, tile_edges: int) -> list[int]:
        tiles = max(1, -(-self.columns.size // tile_edges))
        row_of = np.repeat(np.arange(self.nodes), np.diff(self.indptr))
        return [0, *(int(row_of[t * tile_edges]) for t in range(1, tiles)), self.nodes]

    def write(self, path: Path, tile_edges: int, **more: Any) -> Path:
        rows = self.tile_rows(tile_edges)
        fields: dict[str, Any] = {
            "source": "a test",
            "order": "keep",
            "duplicates": 0,
            "self_loops": 0,
            "local_edges": 0,
            "out_degree": [np.bincount(self.columns, minlength=self.nodes).astype(np.uint32)],
        }
        if self.weights is not None:
            fields["out_weight"] = [np.bincount(self.columns, self.weights, self.nodes)]
        with GraphWriter(path, overwrite=more.pop("overwrite", False)) as writer:
            for t in range(len(rows) - 1):
                part = slice(t * tile_edges, (t + 1) * tile_edges)
                weights = None if self.weights is None else self.weights[part]
                add_tile(writer, *self.tile(t, tile_edges, rows), weights)
            writer.finish(tile_edges=tile_edges, **{**fields, **more})
        return path


def _graph_of(rows: list[list[int]]) -> Csr:
    """The graph whose row v has these columns."""
    indptr = np.cumsum([0, *map(len, rows)])
    return Csr(indptr, np.array([c for row in rows for c in row], np.uint32))


def _random_graph(nodes: int, edges: int, seed: int = 1, *, hub: int | None = None) -> Csr:
    """Random links, half of them to nodes nearby; row `hub` lists every node."""
    rng = np.random.default_rng(seed)
    dst = rng.integers(0, nodes, edges)
    near = (dst + rng.integers(-8, 9, edges)) % nodes
    src = np.where(rng.random(edges) < 0.5, near, rng.integers(0, nodes, edges))
    if hub is not None:
        src = np.concatenate([src, np.arange(nodes)])
        dst = np.concatenate([dst, np.full(nodes, hub)])
    key = np.unique(dst * nodes + src)
    indptr = np.searchsorted(key, np.arange(nodes + 1) * nodes)
    return Csr(indptr, (key % nodes).astype(np.uint32))


@pytest.fixture(scope="session")
def graph_of() -> Callable[[list[list[int]]], Csr]:
    return _graph_of


@pytest.fixture(scope="session")
def random_graph() -> Callable[..., Csr]:
    return _random_graph


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Path]:
    """Writes a graph as a store."""

    def make(graph: Csr, tile_edges: int = 64, name: str = "g.zarr", **more: Any) -> Path:
        return graph.write(tmp_path / name, tile_edges, **more)

    return make
