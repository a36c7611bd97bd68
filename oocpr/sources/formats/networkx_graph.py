"""Graphs of NetworkX, and whatever has nodes, edges and a direction as these have."""

from __future__ import annotations

import itertools
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.sources.base import BaseSource
from oocpr.sources.block import NameBlock, NodeBlock, Strings, id_block
from oocpr.sources.weights import WEIGHT_REMEDY, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Block

_LARGEST = 2**63
_LACKING = object()
_LOOKED_AT = 1000  # edges whose attributes are named if none has the one asked for


class NetworkGraph(BaseSource):
    """A graph of NetworkX; of one without direction each edge counts both ways, as in NetworkX's own ranks.

    Nodes are whole numbers, or all of them text; nodes without edges are nodes still. `weight` is the name of
    an attribute of edges, 1 for those without it, as in NetworkX.
    """

    def __init__(self, graph: Any, **options: Unpack[SourceOptions]) -> None:
        super().__init__("graph", "the graph", **options)
        self._graph = graph
        self._weight = options.get("weight")
        if options.get("labels") is not None:
            raise InputError("The nodes of a graph in memory are their own names.", "Leave the labels out.")
        if self.weighted:
            self._check_weight()

    def _check_weight(self) -> None:
        """Refuse a weight that no edge has: all of them would count 1 without a word."""
        found = (weight for *_, weight in self._graph.edges(data=self._weight, default=_LACKING))
        first = next(found, None)
        if first is not _LACKING or any(weight is not _LACKING for weight in found):
            return
        some = itertools.islice(self._graph.edges(data=True), _LOOKED_AT)
        known = dict.fromkeys(str(name) for *_, attributes in some for name in attributes)
        raise UsageError(
            f"weight is {self._weight!r}, which no edge of the graph has; their attributes are "
            f"{', '.join(map(repr, known)) or 'none'}.",
            "Give the name of one that is the weight, or leave the weight out.",
        )

    def _read(self, max_edges: int) -> Iterator[Block]:
        named = all(isinstance(node, str) for node in self._graph.nodes)
        nodes = iter(self._graph.nodes)
        while some := list(itertools.islice(nodes, 2 * max_edges)):
            if not named:
                _numbers(some)
            yield NodeBlock(_strings(some) if named else np.array(some, np.int64))
        weights = {"data": self._weight, "default": _LACKING} if self.weighted else {"data": True}
        remaining = iter(self._graph.edges(**weights))
        first = given = lacking = 0
        each = max_edges if self._graph.is_directed() else max(1, max_edges // 2)
        while edges := list(itertools.islice(remaining, each)):
            given += len(edges)
            if self.weighted:
                lacking += sum(weight is _LACKING for *_, weight in edges)
            else:
                self._take_note(attributes for *_, attributes in edges)
            if not self._graph.is_directed():
                edges += [(v, u, weight) for u, v, weight in edges if u != v]
            sources, destinations = [edge[0] for edge in edges], [edge[1] for edge in edges]
            weight = self._weights(edges, first) if self.weighted else None
            if named:
                yield NameBlock(_strings(sources), _strings(destinations), weight)
            else:
                src, dst = (np.array(ends, np.int64) for ends in (sources, destinations))
                yield id_block(src, dst, None, self.title, first, weight)
            first += len(edges)
        if lacking:
            self.notices.append(
                f"{lacking:,} of {given:,} edges have no {self._weight!r}: "
                "they have the weight 1, as in NetworkX."
            )

    def _take_note(self, attributes: Iterable[Mapping[Any, Any]]) -> None:
        """Note which attributes of edges are numbers that are not all 1."""
        for one in attributes:
            for name, value in one.items():
                if isinstance(value, bool) or not isinstance(value, Real) or value == 1:
                    continue
                if str(name) not in self.unused_columns:
                    self.unused_columns.append(str(name))

    def _weights(self, edges: list[Any], first: int) -> NDArray[np.float64]:
        """Take the third of each edge as weights; `first` is the number of the first edge."""
        found = np.empty(len(edges))
        for k, (source, target, weight) in enumerate(edges):
            if weight is _LACKING:
                found[k] = 1.0
                continue
            try:
                found[k] = weight if isinstance(weight, Real) else np.nan
            except OverflowError:
                found[k] = np.inf
            if not 0 <= found[k] < np.inf:
                raise InputError(
                    f"{self.title}: the edge from {source!r} to {target!r} has the weight {weight!r}.",
                    WEIGHT_REMEDY,
                )
        return weights_of(found, self.title, "edge", first)


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
