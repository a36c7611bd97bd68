"""Nodes in the order in which a breadth-first search meets them, edges taken in both directions.

Neighbours in the graph become neighbours in the order, so that a graph whose nodes were shuffled gets back
some of its locality. Each level of the search is a pass over all edges: what a node is reached from is the
first in order of its neighbours in the level before, whatever the order of the edges. So memory is needed for
the nodes only. The search starts at the node of the largest in-degree; where it ends and nodes with edges are
left, it starts again at twice as many as the time before. It gives up when a pass finds next to nothing and
few nodes are left, or after `MAX_PASSES` passes; these nodes keep their order.
"""

# Numba carries no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.nodes.hashing import NOT_FOUND
from oocpr.ingest.order.permutation import Permutation
from oocpr.jit import entry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.ingest.order.sample import EdgeScan

MAX_PASSES = 64
_FEW, _NOTHING = 16, 512
"""Parts of all nodes with edges: so few are left, so few are next to nothing."""

_CLASSES = 1 << 16
"""In-degrees from this number on count as equals when a search starts."""


def order_by_bfs(scan: EdgeScan, in_degree: NDArray[np.uint32], linked: int) -> Permutation | None:
    """Order nodes by a breadth-first search; None if nothing changes.

    `in_degree` counts duplicates, uint32, shape (nodes,); `linked` nodes have edges at all.
    """
    rows = np.full(in_degree.size, NOT_FOUND)
    parents = np.full(in_degree.size, NOT_FOUND)
    first, placed, starts = 0, 0, 1
    for _ in range(MAX_PASSES):
        if first == placed:
            placed = _start(in_degree, rows, placed, starts, np.zeros(_CLASSES, np.int64))
            starts *= 2
            if first == placed:
                break
        for keys in scan:
            _reach(keys, rows, parents, first, placed)
        first, placed = placed, _place(rows, parents, first, placed)
        if _FEW * (linked - placed) < linked and _NOTHING * (placed - first) < linked:
            break
    del parents
    if _place_rest(rows, placed):
        return None
    return Permutation.of_rows(rows)


@entry()
def _start(in_degree, rows, placed, wanted, counts):
    """Place the `wanted` nodes without rows of the largest in-degrees; returns how many have rows then."""
    for node in range(rows.size):
        if rows[node] == NOT_FOUND:
            counts[min(in_degree[node], counts.size - 1)] += 1
    above = 0
    least = counts.size - 1
    while least > 1 and above + counts[least] < wanted:
        above += counts[least]
        least -= 1
    equals = wanted - above
    for node in range(rows.size):
        if rows[node] == NOT_FOUND and in_degree[node] >= least:
            if min(in_degree[node], counts.size - 1) == least:
                if equals == 0:
                    continue
                equals -= 1
            rows[node] = placed
            placed += 1
    return placed


@entry()
def _reach(keys, rows, parents, first, end):
    """Note for nodes without rows the first of their neighbours that are in rows `first` to `end` - 1."""
    low, count = np.uint32(first), np.uint32(end - first)
    for key in keys:
        row, column = key >> np.uint64(32), key & np.uint64(0xFFFFFFFF)
        of_row, of_column = rows[row], rows[column]
        if of_row == NOT_FOUND:
            if np.uint32(of_column - low) < count:
                parents[row] = min(parents[row], of_column)
        elif of_column == NOT_FOUND and np.uint32(of_row - low) < count:
            parents[column] = min(parents[column], of_row)


@entry()
def _place(rows, parents, first, placed):
    """Give rows to nodes that were reached, by parent and number; returns how many have rows then."""
    places = np.zeros(placed - first + 1, np.uint32)
    for node in range(rows.size):
        if parents[node] != NOT_FOUND:
            places[parents[node] - first + 1] += np.uint32(1)
    places[0] = placed
    for k in range(1, places.size):
        places[k] += places[k - 1]
    for node in range(rows.size):
        if parents[node] != NOT_FOUND:
            k = parents[node] - first
            rows[node] = places[k]
            places[k] += np.uint32(1)
            parents[node] = NOT_FOUND
    return np.int64(places[places.size - 2])


@entry()
def _place_rest(rows, placed):
    """Give the rows that are left in the order of the nodes; returns whether all nodes are in order then."""
    same = True
    for node in range(rows.size):
        if rows[node] == NOT_FOUND:
            rows[node] = placed
            placed += 1
        same = same and rows[node] == node
    return same
