"""Which rows depend on each other, and in which order the rest can be solved once and for all.

Two rows that reach each other through edges belong to one strongly connected component. Between components
there are no cycles: solved in the order found here, each needs only what those before it have become. Most
rows of a citation, call or dependency graph are components of their own, and one visit solves them.

Tarjan, Depth-first search and linear graph algorithms, SIAM J. Comput. 1 (1972), without recursion.
"""

from __future__ import annotations

import numpy as np
from numba import uint32, uint64

from oocpr.jit import entry

_DONE = 1 << 31


@entry()
def find_components(offsets, columns, component, levels):
    """Number the strongly connected components so that edges lead from lower numbers to higher ones.

    Parameters
    ----------
    offsets, columns
        uint32: row i has incoming edges from the rows ``columns[offsets[i]:offsets[i + 1]]``.
    component
        uint32, shape (rows,): receives the component of each row.
    levels
        uint32, shape (rows,): receives, by component, 0 if no other component has edges to it, else one more
        than the highest level among those that do.

    Returns
    -------
    int
        Number of components.
    """
    rows = uint64(component.size)
    # When a row was reached, counted from 1; once its component is known, the component's level instead.
    reached = np.zeros(rows, np.uint32)
    earliest = np.empty(rows, np.uint32)
    above = np.empty(rows, np.uint32)
    place = np.empty(rows, np.uint32)
    path = np.empty(rows, np.uint32)
    waiting = np.empty(rows, np.uint32)
    done = uint32(_DONE)
    clock = uint32(0)
    found = uint32(0)
    held = uint64(0)
    for root in range(rows):
        if reached[root] != uint32(0):
            continue
        depth = uint64(0)
        row = uint32(root)
        entering = True
        while True:
            if entering:
                clock += uint32(1)
                reached[row] = clock
                earliest[row] = clock
                above[row] = uint32(0)
                place[row] = offsets[row]
                path[depth] = row
                waiting[held] = row
                held += uint64(1)
                entering = False
            low = earliest[row]
            level = above[row]
            at = uint64(place[row])
            end = uint64(offsets[uint64(row) + uint64(1)])
            source = row
            while at < end:
                source = columns[at]
                at += uint64(1)
                seen = reached[source]
                if seen >= done:
                    level = max(level, seen - done + uint32(1))
                elif seen == uint32(0):
                    entering = True
                    break
                else:
                    low = min(low, seen)
            earliest[row] = low
            above[row] = level
            if entering:
                place[row] = uint32(at)
                depth += uint64(1)
                row = source
                continue
            closed = low == reached[row]
            if closed:
                last = held
                while True:
                    held -= uint64(1)
                    level = max(level, above[waiting[held]])
                    if waiting[held] == row:
                        break
                for q in range(held, last):
                    component[waiting[q]] = found
                    reached[waiting[q]] = done + level
                levels[found] = level
                found += uint32(1)
            if depth == uint64(0):
                break
            depth -= uint64(1)
            below = row
            row = path[depth]
            if closed:
                above[row] = max(above[row], level + uint32(1))
            else:
                earliest[row] = min(earliest[row], earliest[below])
    return found
