"""Strongly connected components, in an order in which each comes after all that link to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from scipy.sparse.csgraph import connected_components

from oocpr.engine.scc.level_schedule import find_components

from .digraphs import Digraph, digraphs, random_digraph


def components(graph: Digraph) -> tuple[np.ndarray, np.ndarray]:
    """Component of each row, and level of each component."""
    into = graph.into
    component, levels = np.empty(graph.nodes, np.uint32), np.empty(graph.nodes, np.uint32)
    found = find_components(into.indptr.astype(np.uint32), into.indices.astype(np.uint32), component, levels)
    return component, levels[:found]


def check(graph: Digraph) -> None:
    component, levels = components(graph)
    count, labels = connected_components(graph.into, connection="strong")
    assert len(levels) == count
    assert len({*zip(component.tolist(), labels.tolist(), strict=True)}) == count
    before, after = component[graph.src], component[graph.dst]
    assert (before <= after).all()
    between = before != after
    expected = np.zeros(count, np.int64)
    for first, second in sorted(zip(before[between], after[between], strict=True), key=lambda link: link[1]):
        expected[second] = max(expected[second], expected[first] + 1)
    assert levels.tolist() == expected.tolist()


@given(digraphs(most_nodes=40, most_links=80))
def test_small_graphs(graph):
    check(graph)


@pytest.mark.parametrize("links", [1000, 3000, 12_000])
def test_random_graphs_of_few_and_many_cycles(links):
    check(random_digraph(3000, links, seed=links))


def test_a_long_path_and_a_long_cycle_need_no_deep_stack():
    nodes = 200_000
    path = np.arange(nodes - 1)
    _, levels = components(Digraph(nodes, path, path + 1))
    assert levels.tolist() == list(range(nodes))
    cycle = np.arange(nodes)
    component, levels = components(Digraph(nodes, cycle, (cycle + 1) % nodes))
    assert (component.max(), levels.tolist()) == (0, [0])
