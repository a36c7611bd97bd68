"""Orders of a depth-first search: a node comes after those that lead to it, wherever there is no cycle.

Nodes come in the reverse of the order in which a search along the edges leaves them, or in the order in which
one against the edges does. So chains of edges lie side by side in a tile, in the direction in which a pass
goes over the rows, and a pass takes ranks along whole chains: call, citation and package graphs take about
half of the passes that other orders do. Which direction is better depends on the graph, see
`oocpr.ingest.orders.convergence`.

A search asks for the neighbours of any node at any time. It begins at the nodes in their order and takes
neighbours by number: the order follows from the graph alone.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True
# mypy: check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from oocpr.ingest.nodes.hashing import NOT_FOUND
from oocpr.ingest.orders.neighbours import PAGE, Neighbours
from oocpr.jit import entry

_DONE, _GOING_ON = -1, -2
_AT_ONCE = 1 << 20
"""Nodes that a search leaves before somebody is told."""


def nodes_left(neighbours: Neighbours, advance: Callable[[int], None] = lambda _: None) -> NDArray[np.uint32]:
    """List all nodes as a depth-first search leaves them; uint32, shape (nodes,).

    `advance` is told how many nodes were left since the last time.
    """
    starts = neighbours.starts
    left = np.empty(starts.size - 1, np.uint32)
    following = starts[:-1].copy()
    # Where the search came from; a node that it began at came from itself.
    parents = np.full(left.size, NOT_FOUND)
    # The node that it began at last, how many it has left, and the node that it is at or -1.
    state = np.array([0, 0, -1])
    while True:
        before = int(state[1])
        missing = _search(
            starts, neighbours.slots, neighbours.used, neighbours.pages, following, parents, left, state
        )
        advance(int(state[1]) - before)
        if missing == _DONE:
            return left
        if missing != _GOING_ON:
            neighbours.bring(int(missing))


@entry()
def _search(starts, slots, used, pages, following, parents, left, state):
    """Search on; returns the page without which it cannot, or _DONE or _GOING_ON."""
    root, place, node = state
    stop = place + _AT_ONCE
    missing = np.int64(_GOING_ON)
    while place < stop:
        if node < 0:
            while root < left.size and parents[root] != NOT_FOUND:
                root += 1
            if root == left.size:
                missing = np.int64(_DONE)
                break
            node = root
            parents[node] = node
        here = np.uint64(node)
        at = np.uint64(following[here])
        if at < np.uint64(starts[here + np.uint64(1)]):
            page = at // np.uint64(PAGE)
            slot = slots[page]
            if slot < 0:
                missing = np.int64(page)
                break
            used[slot] = 1
            following[here] = at + np.uint64(1)
            reached = np.uint64(pages[np.uint64(slot), at % np.uint64(PAGE)])
            if parents[reached] == NOT_FOUND:
                parents[reached] = node
                node = np.int64(reached)
            continue
        left[place] = node
        place += 1
        node = np.int64(parents[here]) if parents[here] != here else np.int64(-1)
    state[0], state[1], state[2] = root, place, node
    return missing
