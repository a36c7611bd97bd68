"""How many passes over the rows a run takes in an order of the nodes, by a rehearsal of the first of them.

A pass takes runs of rows of about a tile's edges, one after the other, and goes over each several times; what
passes change is mixed, as a run mixes it, but only of two passes (see docs/method.md). A run to 1e-10 takes
1.2 to 2.4 times the passes that a rehearsal takes to six digits, and of one graph in four orders nearly the
same multiple: on twelve of thirteen graphs it differed by less than a third, and on one by two thirds.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True
# mypy: check-untyped-defs=False

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.jit import entry

if TYPE_CHECKING:
    from oocpr.ingest.orders.neighbours import Neighbours

DAMPING = 0.85
DIGITS, MOST_PASSES, SWEEPS, MIXED = 6, 16, 4, 2
"""Decimal digits that are gained, in so many passes at most; how often each goes over a run of rows; earlier
passes that are mixed."""


def rehearsed_passes(
    senders: Neighbours, out_degree: NDArray[np.uint32], nodes: NDArray[np.uint32], tile_edges: int
) -> float:
    """Passes that gain `DIGITS` decimal digits, and the part of the last one that is needed.

    Parameters
    ----------
    senders
        Where the edges of each row come from.
    out_degree
        Edges that leave each node, duplicates merged; uint32, shape (nodes,).
    nodes
        Node of each row; uint32, shape (nodes,).
    """
    # What nodes pass on along each of their edges: before a pass, and now.
    before, now = np.zeros(nodes.size), np.zeros(nodes.size)
    changes, outcomes = (np.zeros((MIXED, nodes.size), np.float32) for _ in range(2))
    before_last = digits = 0.0
    for number in range(MOST_PASSES):
        low = 0
        while low < nodes.size:
            high = int(_end_of_run(senders.starts, low, tile_edges))
            begin, end = int(senders.starts[low]), int(senders.starts[high])
            _go_over(senders.starts, senders.between(begin, end), begin, out_degree, nodes, low, high, now)
            low = high
        products = np.zeros((MIXED, MIXED + 1))
        change, total = _compare(before, now, out_degree, changes, products, number)
        digits = math.log10(total / change) if change else math.inf
        if digits >= DIGITS:
            return number + (DIGITS - before_last) / (digits - before_last)
        before_last = digits
        known = min(number, MIXED)
        # Of changes that are next to the same, the least combination.
        theta, *_ = np.linalg.lstsq(products[:known, :known], products[:known, MIXED], rcond=1e-12)
        _mix(before, now, changes, outcomes, theta, out_degree, number)
    return MOST_PASSES * DIGITS / max(digits, 1 / DIGITS)


@entry()
def _end_of_run(starts, low, tile_edges):
    high = low
    while high < starts.size - 1 and (np.int64(starts[high] - starts[low]) < tile_edges or high == low):
        high += 1
    return high


@entry()
def _go_over(starts, senders, begin, out_degree, nodes, low, high, now):
    """Go over a run of rows, in place; `senders` are theirs, which begin there."""
    for _ in range(SWEEPS):
        for row in range(low, high):
            node = np.uint64(nodes[row])
            if out_degree[node] == 0:
                continue
            received = 1.0
            for k in range(np.int64(starts[row]) - begin, np.int64(starts[row + 1]) - begin):
                received += now[senders[k]]
            now[node] = received * DAMPING / out_degree[node]


@entry()
def _compare(before, now, out_degree, changes, products, number):
    """Products of the change of a pass and its differences to those before; L1 norms of change and ranks."""
    change = 0.0
    total = 0.0
    known = min(number, MIXED)
    different = np.zeros(MIXED)
    for node in range(now.size):
        degree = np.float64(out_degree[node])
        changed = (now[node] - before[node]) * degree
        change += abs(changed)
        total += now[node] * degree
        for k in range(known):
            different[k] = changed - changes[k, node]
        for k in range(known):
            for q in range(known):
                products[k, q] += different[k] * different[q]
            products[k, MIXED] += different[k] * changed
    return change, total


@entry()
def _mix(before, now, changes, outcomes, theta, out_degree, number):
    """Begin the next pass: step over the passes that are known, and know this one in place of the oldest."""
    place = number % MIXED
    for node in range(now.size):
        outcome = now[node]
        mixed = outcome
        for k in range(theta.size):
            mixed -= theta[k] * (outcome - outcomes[k, node])
        changes[place, node] = (outcome - before[node]) * out_degree[node]
        outcomes[place, node] = outcome
        before[node] = mixed
        now[node] = mixed
