"""Weighted graphs: their stores, written tile by tile, and their ranks by direct solution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from oocpr.store.graph import GraphStore, open_store
from oocpr.store.writer import GraphWriter

from ..store.writing import add_tile
from .digraphs import Digraph, digraphs, random_digraph


@dataclass(frozen=True)
class WeightedGraph:
    """Links ``src[k] -> dst[k]`` of `weight[k]`, each pair once, ordered by receiver and sender."""

    nodes: int
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    weight: NDArray[np.float64]

    @classmethod
    def of(cls, graph: Digraph, weight: NDArray[np.float64] | float = 1.0) -> WeightedGraph:
        """Give the links of a graph weights, in the order above."""
        key = np.unique(graph.dst * graph.nodes + graph.src)
        weights = np.broadcast_to(np.asarray(weight, np.float64), key.shape).copy()
        return cls(graph.nodes, key % graph.nodes, key // graph.nodes, weights)

    @property
    def out_weight(self) -> NDArray[np.float64]:
        return np.bincount(self.src, self.weight, self.nodes)

    def scaled(self, factors: NDArray[np.float64]) -> WeightedGraph:
        """Multiply the weights of the links of each node."""
        return replace(self, weight=self.weight * factors[self.src])

    def write(self, path: Path, tile_edges: int) -> GraphStore:
        edges = len(self.src)
        tiles = max(1, -(-edges // tile_edges))
        rows = [0, *(int(self.dst[t * tile_edges]) for t in range(1, tiles)), self.nodes]
        local = 0
        with GraphWriter(path) as writer:
            for t in range(tiles):
                part = slice(t * tile_edges, (t + 1) * tile_edges)
                first, last = rows[t], rows[t + 1]
                lengths = np.bincount(self.dst[part] - first, minlength=last - first + 1)
                local += int(np.sum((self.src[part] >= first) & (self.src[part] < last)))
                add_tile(writer, self.src[part].astype(np.uint32), lengths, self.weight[part])
            writer.finish(
                source="a test", order="keep", tile_edges=tile_edges, duplicates=0,
                self_loops=int(np.sum(self.src == self.dst)), local_edges=local,
                out_degree=[np.bincount(self.src, minlength=self.nodes).astype(np.uint32)],
                out_weight=[self.out_weight],
            )  # fmt: skip
        return open_store(path)

    def exact_ranks(
        self, damping: float, teleport: NDArray[np.float64] | None = None, dangling: str = "strongly"
    ) -> NDArray[np.float64]:
        """Ranks by Gaussian elimination; for up to some hundred nodes."""
        n = self.nodes
        v = np.full(n, 1 / n) if teleport is None else teleport
        w = v if dangling == "strongly" else np.full(n, 1 / n)
        sums = self.out_weight
        share = self.weight / np.where(sums > 0, sums, 1)[self.src]
        links = coo_array((share, (self.dst, self.src)), shape=(n, n)).toarray()
        ranks = np.linalg.solve(np.eye(n) - damping * (links + np.outer(w, sums == 0)), (1 - damping) * v)
        return ranks / ranks.sum()

    def product(self, p: NDArray[np.float64], damping: float) -> NDArray[np.float64]:
        """M p in long double, where the teleport vector is uniform."""
        n, sums = self.nodes, self.out_weight.astype(np.longdouble)
        share = p.astype(np.longdouble) / np.where(sums > 0, sums, 1)
        received = np.zeros(n, np.longdouble)
        np.add.at(received, self.dst, self.weight * share[self.src])
        return damping * received + (damping * p[sums == 0].sum() + (1 - damping) * p.sum()) / n

    @property
    def into(self) -> csr_array:
        return csr_array(coo_array((self.weight, (self.dst, self.src)), shape=(self.nodes, self.nodes)))


def weights_of(rng: np.random.Generator, count: int, kind: str) -> NDArray[np.float64]:
    """Weights as people have them: ``counts``, ``floats`` in 32 bits, any ``reals``, or ``wide`` ones."""
    if kind == "counts":
        return rng.zipf(1.7, count).clip(0, 10**6).astype(np.float64)
    if kind == "floats":
        return rng.random(count, np.float32).astype(np.float64)
    if kind == "reals":
        return np.where(rng.random(count) < 0.1, 0.0, rng.random(count))
    return np.ldexp(rng.random(count), rng.integers(-6, 7, count)) * 1e-200


def weigh(graph: Digraph, seed: int, kind: str) -> WeightedGraph:
    """Give the links of a graph weights at random; `kind` as above."""
    bare = WeightedGraph.of(graph)
    return replace(bare, weight=weights_of(np.random.default_rng(seed), len(bare.src), kind))


def random_weighted(nodes: int, links: int, seed: int, kind: str = "reals") -> WeightedGraph:
    return weigh(random_digraph(nodes, links, seed), seed, kind)


KINDS = ("counts", "floats", "reals", "wide")


@st.composite
def weighted_graphs(draw: st.DrawFn, most_nodes: int = 30, most_links: int = 60) -> WeightedGraph:
    """Graphs as `digraphs` draws them, with weights of which some are zero."""
    graph = draw(digraphs(most_nodes, most_links))
    bare = WeightedGraph.of(graph)
    size = len(bare.src)
    weight = st.just(0.0) | st.just(1.0) | st.floats(2.0**-8, 2.0**8)
    return replace(bare, weight=np.array(draw(st.lists(weight, min_size=size, max_size=size)), np.float64))
