"""Small directed graphs, drawn at random or built to be awkward, and their ranks by direct solution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, diags_array


@dataclass(frozen=True)
class Digraph:
    """Links ``src[k] -> dst[k]`` among `nodes` nodes; repeated ones count once."""

    nodes: int
    src: NDArray[np.int64]
    dst: NDArray[np.int64]

    @classmethod
    def of(cls, nodes: int, links: list[tuple[int, int]]) -> Digraph:
        pairs = np.array(links, np.int64).reshape(-1, 2)
        return cls(nodes, pairs[:, 0], pairs[:, 1])

    @property
    def entries(self) -> coo_array:
        """Entry (i, j) for each link i -> j, repeats and all."""
        return coo_array((np.ones(len(self.src)), (self.src, self.dst)), shape=(self.nodes, self.nodes))

    @property
    def into(self) -> csr_array:
        """Row i holds a one for each node that links to i."""
        matrix = csr_array(self.entries.T)
        matrix.data[:] = 1
        return matrix

    @property
    def out_degree(self) -> NDArray[np.float64]:
        return self.into.sum(axis=0)


def product(
    graph: Digraph,
    p: NDArray[np.float64],
    damping: float,
    teleport: NDArray[np.float64] | None = None,
    dangling: str = "strongly",
) -> NDArray[np.float64]:
    """M p, written as the definition has it."""
    v = np.full(graph.nodes, 1 / graph.nodes) if teleport is None else teleport
    w = v if dangling == "strongly" else np.full(graph.nodes, 1 / graph.nodes)
    degree = graph.out_degree
    shares = np.where(degree > 0, p / np.maximum(degree, 1), 0)
    return damping * (graph.into @ shares + p[degree == 0].sum() * w) + (1 - damping) * p.sum() * v


def exact_ranks(
    graph: Digraph,
    damping: float,
    teleport: NDArray[np.float64] | None = None,
    dangling: str = "strongly",
) -> NDArray[np.float64]:
    """Ranks by Gaussian elimination; for up to some hundred nodes."""
    n = graph.nodes
    v = np.full(n, 1 / n) if teleport is None else teleport
    w = v if dangling == "strongly" else np.full(n, 1 / n)
    degree = graph.out_degree
    links = (graph.into @ diags_array(1 / np.maximum(degree, 1))).toarray()
    ranks = np.linalg.solve(np.eye(n) - damping * (links + np.outer(w, degree == 0)), (1 - damping) * v)
    return ranks / ranks.sum()


@st.composite
def digraphs(draw: st.DrawFn, most_nodes: int = 30, most_links: int = 60) -> Digraph:
    """Graphs with repeated links, self-loops, dangling and isolated nodes, and sometimes a hub."""
    nodes = draw(st.integers(1, most_nodes))
    used = draw(st.integers(1, nodes))
    node = st.integers(0, used - 1)
    links = draw(st.lists(st.tuples(node, node), max_size=most_links))
    hub = draw(st.none() | node)
    if hub is not None:
        links += [(follower, hub) for follower in range(0, used, draw(st.integers(1, 3)))]
    return Digraph.of(nodes, links)


def teleports(nodes: int) -> st.SearchStrategy[NDArray[np.float64] | None]:
    """Uniform (None), or a distribution that leaves some nodes out."""
    weights = st.lists(st.integers(0, 5), min_size=nodes, max_size=nodes).filter(any)
    return st.none() | weights.map(lambda chosen: np.array(chosen) / sum(chosen))


def random_digraph(nodes: int, links: int, seed: int, hubs: int = 3) -> Digraph:
    """A graph with hubs, a ring that slows convergence down, dangling nodes and nodes without in-links."""
    rng = np.random.default_rng(seed)
    ring = np.arange(nodes // 3)
    src = [ring, rng.integers(0, nodes * 9 // 10, links)]
    dst = [(ring + 1) % len(ring), rng.integers(nodes // 10, nodes, links)]
    for hub in rng.integers(0, nodes, hubs):
        src.append(rng.permutation(nodes)[: nodes // 4])
        dst.append(np.full(nodes // 4, hub))
    return Digraph(nodes, np.concatenate(src), np.concatenate(dst))


def fewer(divisor: int) -> settings:
    """Run one in `divisor` of the profile's examples, for properties whose every example is a whole run."""
    return settings(max_examples=max(1, settings.default.max_examples // divisor))
