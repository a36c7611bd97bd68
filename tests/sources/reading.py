"""What a source holds, as plain Python values, whichever kinds of blocks it yields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.sources.block import EdgeBlock, NodeBlock, Strings

if TYPE_CHECKING:
    from oocpr.sources.block import Source


@dataclass
class Graph:
    """The edges in their order, and the nodes in the order in which they were met."""

    edges: list[tuple[Any, Any]] = field(default_factory=list)
    nodes: dict[Any, int] = field(default_factory=dict)

    def numbered(self) -> list[tuple[int, int]]:
        return [(self.nodes[u], self.nodes[v]) for u, v in self.edges]


def read(source: Source, max_edges: int = 3) -> Graph:
    graph = Graph()
    for block in source.blocks(max_edges):
        if isinstance(block, NodeBlock):
            given = block.nodes if isinstance(block.nodes, Strings) else block.nodes.tolist()
            for node in given:
                graph.nodes.setdefault(node, len(graph.nodes))
            continue
        if isinstance(block, EdgeBlock):
            assert block.src.dtype == block.dst.dtype
            assert block.src.dtype in (np.uint32, np.int64)
            src, dst = block.src.tolist(), block.dst.tolist()
        else:
            src, dst = list(block.src), list(block.dst)
        assert 0 < len(src) == len(dst) <= max_edges
        assert block.weight is None or len(block.weight) == len(src)
        for u, v in zip(src, dst, strict=True):
            graph.edges.append((u, v))
            for node in (u, v):
                graph.nodes.setdefault(node, len(graph.nodes))
    return graph
