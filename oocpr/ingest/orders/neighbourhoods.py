"""Whether a search would put together what the order of the nodes has torn apart, by a sample of the graph.

Windows of rows show how good an order is, not how good another one could be. So the neighbourhoods of a few
nodes are taken, in both directions and not through hubs, with all edges inside, and ordered as a search of
them alone would. Of crawls whose nodes were shuffled they take 0.53 to 0.70 times the bytes that they take by
out-degree, and of graphs that no search helps (drawn, social, or crawls as they were crawled) 0.9 times or
more. What is taken follows from the graph and the numbers of its nodes alone.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True
# mypy: check-untyped-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.ingest.nodes.hashing import mix
from oocpr.ingest.orders.depth_first import nodes_left
from oocpr.ingest.orders.neighbours import find_neighbours
from oocpr.ingest.orders.permutation import degree_keys, invert, order_by_degree
from oocpr.ingest.rows import unique_sorted
from oocpr.jit import entry
from oocpr.store.codec.tiles import encode_tile

if TYPE_CHECKING:
    from oocpr.ingest.orders.permutation import EdgeScan
    from oocpr.ingest.spill.files import SpillDir

STARTS, NODES, EDGES = 8, 1 << 13, 1 << 19
"""Neighbourhoods, and the most nodes and edges of all of them."""

MOST_SCANS = 16

_STEP = np.uint64(0x9E3779B97F4A7C15)
"""What splitmix64 adds before it mixes; without it the hash of node 0 is 0."""

_REACHED = 2
"""Mark of a node that has just been reached."""

HUB = 64
"""Edges of a node through which no neighbourhood grows."""

HELPED = 0.8
"""Share of the bytes that are left, at most, where a search helps."""


def search_helps(
    scan: EdgeScan, in_degree: NDArray[np.uint32], out_degree: NDArray[np.uint32], spill_dir: SpillDir
) -> bool:
    """Whether neighbourhoods take far fewer bytes in the order of a search than by number or by out-degree.

    `in_degree` and `out_degree`, uint32, shape (nodes,), count duplicates.
    """
    marks = grow(scan, in_degree, out_degree)
    inside = np.flatnonzero(marks).astype(np.uint32)
    keys = np.empty(EDGES + 1, np.uint64)
    filled = 0
    for block in scan:
        filled = _take(block, marks, inside, keys, filled)
    if not 0 < filled <= EDGES:
        # Where so few nodes have so many edges, these take few bytes in any order.
        return False
    keys = keys[:filled]
    keys.sort()
    keys = keys[: unique_sorted(keys)].copy()
    sources, targets = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    outgoing, incoming = (
        np.bincount(ends, minlength=inside.size).astype(np.uint32) for ends in (sources, targets)
    )
    plain = [np.arange(inside.size, dtype=np.uint32)]
    by_degree = order_by_degree(degree_keys(outgoing.copy(), incoming))
    if by_degree is not None:
        plain.append(by_degree.nodes)
    searched = []
    for degree, along in ((outgoing, True), (incoming, False)):
        found = find_neighbours([keys], degree, outgoing=along, room=8 * EDGES, spill_dir=spill_dir)
        nodes = nodes_left(found)
        searched.append(nodes[::-1].copy() if along else nodes)
    least = [min(_stored_bytes(sources, targets, nodes) for nodes in orders) for orders in (searched, plain)]
    return least[0] <= HELPED * least[1]


def grow(scan: EdgeScan, in_degree: NDArray[np.uint32], out_degree: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Mark the nodes of some neighbourhoods, at most NODES, by ones; uint8, shape (nodes,)."""
    marks = np.zeros(in_degree.size, np.uint8)
    # The least hashes, in order, and their nodes.
    starts = np.full((2, STARTS), 0xFFFFFFFFFFFFFFFF, np.uint64)
    _find_starts(in_degree, out_degree, starts)
    marks[starts[1, starts[1] < marks.size].astype(np.int64)] = 1
    count = int(np.count_nonzero(marks))
    for _ in range(MOST_SCANS):
        for block in scan:
            _reach(block, in_degree, out_degree, marks)
        reached = _least_of(np.flatnonzero(marks == _REACHED), NODES - count)
        marks[marks == _REACHED] = 0
        marks[reached] = 1
        count += reached.size
        if not reached.size or count >= NODES:
            break
    return marks


def _least_of(nodes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """So many of the nodes, those with the least hashes: the same ones in whatever order edges come."""
    if nodes.size <= count:
        return nodes
    hashes = np.empty(nodes.size, np.uint64)
    _hash_all(nodes, hashes)
    return nodes[np.argsort(hashes, kind="stable")[:count]]


@entry()
def _hash_all(nodes, hashes):
    for k in range(nodes.size):
        hashes[k] = mix(np.uint64(nodes[k]) + _STEP)


@entry()
def _find_starts(in_degree, out_degree, starts):
    """Find the nodes with the least hashes among those with some edges that are no hubs."""
    for node in range(in_degree.size):
        edges = np.uint64(in_degree[node]) + np.uint64(out_degree[node])
        found = mix(np.uint64(node) + _STEP)
        last = starts.shape[1] - 1
        if not np.uint64(2) <= edges <= np.uint64(HUB) or found >= starts[0, last]:
            continue
        k = last
        while k > 0 and starts[0, k - 1] > found:
            starts[:, k] = starts[:, k - 1]
            k -= 1
        starts[0, k], starts[1, k] = found, node


@entry()
def _reach(keys, in_degree, out_degree, marks):
    low = np.uint64(0xFFFFFFFF)
    for key in keys:
        source, target = key & low, key >> np.uint64(32)
        if (marks[source] == 1) == (marks[target] == 1):
            continue
        near, far = (source, target) if marks[source] == 1 else (target, source)
        if np.uint64(in_degree[near]) + np.uint64(out_degree[near]) <= np.uint64(HUB):
            marks[far] = _REACHED


@entry()
def _take(block, marks, inside, keys, filled):
    """Append the edges between nodes that are inside, as keys of their places there."""
    low = np.uint64(0xFFFFFFFF)
    for key in block:
        source, target = key & low, key >> np.uint64(32)
        if not (marks[source] and marks[target]):
            continue
        if filled == keys.size:
            break
        row = np.uint64(np.searchsorted(inside, np.uint32(target)))
        keys[filled] = row << np.uint64(32) | np.uint64(np.searchsorted(inside, np.uint32(source)))
        filled += 1
    return filled


def _stored_bytes(sources: NDArray[np.uint32], targets: NDArray[np.uint32], nodes: NDArray[np.uint32]) -> int:
    """Bytes of a tile with these edges, the nodes in an order."""
    rows = invert(nodes)
    keys = rows[targets].astype(np.uint64) << np.uint64(32) | rows[sources].astype(np.uint64)
    keys.sort()
    lengths = np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=nodes.size + 1)
    return len(encode_tile(keys.astype(np.uint32), lengths))
