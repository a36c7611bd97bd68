"""Orders of a depth-first search: a node comes after those that lead to it, wherever there is no cycle.

Nodes come in the reverse of the order in which a search along the edges leaves them, or in the order in which
one against the edges does. So chains of edges lie side by side in a tile, in the direction in which a pass
goes over the rows, and a pass takes ranks along whole chains: call, citation and package graphs take about
half of the passes that other orders do. Which direction is better depends on the graph, see
`oocpr.ingest.orders.convergence`.

A search asks for the neighbours of any node at any time, so all edges are in memory, in four bytes each. It
begins at the nodes in their order and takes neighbours by number: the order follows from the graph alone.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True
# mypy: check-untyped-defs=False

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.ingest.nodes.hashing import NOT_FOUND
from oocpr.jit import entry


class Neighbours(NamedTuple):
    """Other ends of the edges of each node: of v ``nodes[starts[v]:starts[v + 1]]``, ascending, each once."""

    starts: NDArray[np.unsignedinteger[Any]]
    nodes: NDArray[np.uint32]

    def degree(self) -> NDArray[np.uint32]:
        """Edges of each node, duplicates merged."""
        return np.diff(self.starts).astype(np.uint32)


def find_neighbours(
    scan: Iterable[NDArray[np.uint64]], degree: NDArray[np.uint32], *, outgoing: bool
) -> Neighbours:
    """List the nodes that edges of each node run to if `outgoing`, else those that they come from.

    `degree` counts the edges of each node on that side, and duplicates with them.
    """
    edges = int(degree.sum(dtype=np.int64))
    starts: NDArray[Any] = np.empty(degree.size + 1, np.uint32 if edges < 1 << 32 else np.uint64)
    degree.cumsum(out=starts[:-1])
    starts[-1] = edges
    nodes = np.empty(edges, np.uint32)
    own, other = (np.uint64(0), np.uint64(32)) if outgoing else (np.uint64(32), np.uint64(0))
    for keys in scan:
        _fill(keys, own, other, starts, nodes)
    return Neighbours(starts, nodes[: _sort(starts, nodes)])


@entry()
def _fill(keys, own, other, starts, nodes):
    """Put neighbours from the end of each node's places on; starts are the ends before."""
    low = np.uint64(0xFFFFFFFF)
    for key in keys:
        node = key >> own & low
        starts[node] -= starts.dtype.type(1)
        nodes[starts[node]] = key >> other & low


@entry()
def _sort(starts, nodes):
    """Sort the neighbours of each node, and keep each of them once; returns how many are left."""
    kept = 0
    begin = starts[0]
    for node in range(starts.size - 1):
        end = starts[node + 1]
        nodes[begin:end].sort()
        starts[node] = kept
        for k in range(begin, end):
            if k == begin or nodes[k] != nodes[k - 1]:
                nodes[kept] = nodes[k]
                kept += 1
        begin = end
    starts[starts.size - 1] = kept
    return kept


def nodes_left(neighbours: Neighbours) -> NDArray[np.uint32]:
    """List all nodes as a depth-first search leaves them; uint32, shape (nodes,)."""
    left: NDArray[np.uint32] = _search(*neighbours)
    return left


@entry()
def _search(starts, neighbours):
    nodes = starts.size - 1
    left = np.empty(nodes, np.uint32)
    following = starts[:nodes].copy()
    # Where the search came from; a node that it began at came from itself.
    parents = np.full(nodes, NOT_FOUND)
    place = 0
    for root in range(nodes):
        if parents[root] != NOT_FOUND:
            continue
        node = np.uint32(root)
        parents[node] = node
        while True:
            at = following[node]
            if at < starts[node + np.uint64(1)]:
                following[node] = at + starts.dtype.type(1)
                reached = neighbours[at]
                if parents[reached] == NOT_FOUND:
                    parents[reached] = node
                    node = reached
                continue
            left[place] = node
            place += 1
            if parents[node] == node:
                break
            node = parents[node]
    return left
