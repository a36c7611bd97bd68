"""Graphs of NetworkX, and whatever has nodes, edges and a direction as these have."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.base import BaseSource
from oocpr.sources.block import NameBlock, NodeBlock, Strings
from oocpr.sources.columns import id_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.sources.base import AnyPath
    from oocpr.sources.block import Block

_LARGEST = 2**63


class NetworkGraph(BaseSource):
    """A graph of NetworkX; of one without direction each edge counts both ways, as in NetworkX's own ranks.

    Nodes are whole numbers, or all of them text. Nodes without edges are nodes still.

    Parameters
    ----------
    graph
        Has ``is_directed()``, ``nodes`` and ``edges``. Parallel edges count once. Weights are not read.
    labels
        None; the nodes are their own names.

    Raises
    ------
    InputError
        While blocks are read: nodes that are neither, or a labels file.

    Examples
    --------
    >>> import networkx as nx
    >>> source = NetworkGraph(nx.DiGraph([("a", "b")]))
    >>> [type(block).__name__ for block in source.blocks(10)]
    ['NodeBlock', 'NameBlock']
    """

    def __init__(self, graph: Any, labels: AnyPath | None = None) -> None:
        super().__init__("graph", "the graph", labels)
        self._graph = graph
        if labels is not None:
            raise InputError("The nodes of a graph in memory are their own names.", "Leave the labels out.")

    def _read(self, max_edges: int) -> Iterator[Block]:
        named = all(isinstance(node, str) for node in self._graph.nodes)
        nodes = iter(self._graph.nodes)
        while some := list(itertools.islice(nodes, 2 * max_edges)):
            if not named:
                _numbers(some)
            yield NodeBlock(_strings(some) if named else np.array(some, np.int64))
        edges = iter(self._graph.edges())
        first = 0
        each = max_edges if self._graph.is_directed() else max(1, max_edges // 2)
        while links := list(itertools.islice(edges, each)):
            if not self._graph.is_directed():
                links += [(v, u) for u, v in links if u != v]
            heads, tails = [v for _, v in links], [u for u, _ in links]
            if named:
                yield NameBlock(_strings(tails), _strings(heads))
            else:
                src, dst = (np.array(ends, np.int64) for ends in (tails, heads))
                yield id_block(src, dst, None, self.title, first)
            first += len(links)
        if any(True for _, _, weight in self._graph.edges(data="weight", default=1) if weight != 1):
            self.notices.append(
                "The weights of the graph were not read: it is ranked as an unweighted graph."
            )


def _numbers(nodes: list[Any]) -> None:
    """Refuse nodes that are not whole numbers of 64 bits."""
    for node in nodes:
        if isinstance(node, bool) or not isinstance(node, int | np.integer):
            raise InputError(
                f"The graph has a node {node!r} beside others, which are numbers or not all text.",
                "Name all nodes by whole numbers, or all of them by text.",
            )
        if not -_LARGEST <= int(node) < _LARGEST:
            raise InputError(f"The graph has the node {node}.", "Give numbers from -2^63 to 2^63 - 1.")


def _strings(nodes: list[str]) -> Strings:
    coded = [node.encode() for node in nodes]
    ends = np.cumsum([len(name) for name in coded], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return Strings(np.frombuffer(b"".join(coded), np.uint8), starts, ends)
