"""Personalized ranks against NetworkX, with both rules for the dangling mass."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

from oocpr.engine.settings import Settings

from .digraphs import Digraph, exact_ranks, random_digraph
from .running import check_each, plan_of, rank

GRAPH = random_digraph(250, 900, seed=11)
SEEDS = {
    "one node": [17],
    "a dangling node": [249],
    "a node without in-links": [0],
    "some nodes": [3, 40, 41, 200],
}


def by_networkx(graph: Digraph, damping: float, teleport: np.ndarray | None, dangling: str) -> np.ndarray:
    links = networkx.DiGraph()
    links.add_nodes_from(range(graph.nodes))
    links.add_edges_from(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    v = None if teleport is None else dict(enumerate(teleport.tolist()))
    w = dict.fromkeys(range(graph.nodes), 1.0) if dangling == "weakly" else None
    ranks = networkx.pagerank(links, damping, personalization=v, dangling=w, tol=1e-15, max_iter=5000)
    return np.array([ranks[node] for node in range(graph.nodes)])


@pytest.mark.parametrize("damping", [0.5, 0.85])
@pytest.mark.parametrize("dangling", ["strongly", "weakly"])
@pytest.mark.parametrize("chosen", [None, *SEEDS])
def test_ranks_are_those_of_networkx(stored, chosen, dangling, damping):
    teleport = None
    if chosen is not None:
        teleport = np.zeros(GRAPH.nodes)
        teleport[SEEDS[chosen]] = 1 / len(SEEDS[chosen])
    wanted = by_networkx(GRAPH, damping, teleport, dangling)
    assert np.abs(exact_ranks(GRAPH, damping, teleport, dangling) - wanted).sum() <= 1e-12
    store = stored(GRAPH, 100)
    for method, reads in (("mixed", "bits16"), ("residual", "bits8")):
        run = rank(
            store,
            teleport=teleport,
            dangling=dangling,
            damping=damping,
            tol=1e-11,
            method=method,
            reads=reads,
            stripes=2,
        )
        assert run.converged
        assert np.abs(run.ranks - wanted).sum() <= run.error_bound + 1e-12


def test_the_two_rules_differ_where_dangling_nodes_are_reached(stored):
    teleport = np.zeros(GRAPH.nodes)
    teleport[17] = 1
    store = stored(GRAPH, 100)
    strongly, weakly = (
        rank(store, teleport=teleport, dangling=rule).ranks for rule in ("strongly", "weakly")
    )
    assert np.abs(strongly - weakly).sum() > 0.01


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kept", ["decoded", "packed", "some", "none"])
@pytest.mark.parametrize(("method", "stripes"), [("mixed", 1), ("mixed", 3), ("residual", 2)])
def test_one_after_another_is_ranked_as_if_it_were_alone(stored, backend, kept, method, stripes):
    store, settings = stored(GRAPH, 100), Settings(method=method, tol=1e-9)
    plan = plan_of(store, settings, stripes=stripes, kept=kept, personalized=True)
    check_each(store, plan, settings, lambda: backend, GRAPH)
