"""A sample of the rows that an order makes: windows of neighbouring rows, with all their links.

Windows lie evenly in the links, not in the rows, as most links may be in few rows. They follow from the graph
and the order alone, so every import of a graph looks at the same ones.
"""

# Numba carries no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.sort.rows import unique_sorted
from oocpr.jit import entry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.ingest.order.edge_scan import Scan
    from oocpr.ingest.order.permutation import Permutation

WINDOWS = 16
WINDOW_EDGES = 1 << 16
"""Most links of a window; a row that has more by itself is passed over."""

WINDOW_ROWS = 1 << 15
"""Most rows of a window."""

_NO_NODES = np.empty(0, np.uint32)


@dataclass(frozen=True)
class Sample:
    """What a store would hold in some of its rows.

    Parameters
    ----------
    keys
        Links of the rows of all windows, row << 32 | column, ascending and without repeats, uint64.
    windows
        First row of each window and the row behind its last, int64, shape (windows, 2).
    """

    keys: NDArray[np.uint64]
    windows: NDArray[np.int64]


def choose_windows(in_degree: NDArray[np.uint32], permutation: Permutation | None) -> NDArray[np.int64]:
    """Choose windows: all rows of a graph of few links, else `WINDOWS` windows.

    Parameters
    ----------
    in_degree
        Links that reach each node, repeats included; uint32, shape (nodes,).
    permutation
        Order of the rows, None for that of the nodes.

    Returns
    -------
    ndarray
        First row, row behind the last, and links; int64, shape (windows, 3).

    Examples
    --------
    >>> choose_windows(np.array([3, 70_000, 5, 0], np.uint32), None)
    array([[0, 1, 3],
           [2, 4, 5]])
    """
    links = int(in_degree.sum(dtype=np.int64))
    whole = links <= WINDOWS * WINDOW_EDGES
    step = 0 if whole else links // WINDOWS
    first = 0 if whole else max(0, (step - WINDOW_EDGES) // 2)
    most = -(-2 * links // WINDOW_EDGES) + in_degree.size // WINDOW_ROWS + 2 if whole else WINDOWS
    windows = np.empty((most, 3), np.int64)
    nodes = _NO_NODES if permutation is None else permutation.nodes
    return windows[: _choose(in_degree, nodes, first, step, WINDOW_EDGES, WINDOW_ROWS, windows)]


@entry()
def _choose(in_degree, nodes, first, step, most_links, most_rows, windows):
    found = 0
    before = 0
    begin = -1
    links = 0
    for row in range(in_degree.size):
        size = np.int64(in_degree[nodes[row] if nodes.size else row])
        if begin >= 0 and (links + size > most_links or row - begin == most_rows):
            windows[found, 0], windows[found, 1], windows[found, 2] = begin, row, links
            found += 1
            begin = -1
        if found == windows.shape[0]:
            return found
        if begin < 0 and size <= most_links and before >= first + found * step:
            begin = row
            links = 0
        if begin >= 0:
            links += size
        before += size
    if begin >= 0:
        windows[found, 0], windows[found, 1], windows[found, 2] = begin, in_degree.size, links
        found += 1
    return found


def take_sample(scan: Scan, in_degree: NDArray[np.uint32], permutation: Permutation | None) -> Sample:
    """Take a sample of the rows of an order.

    Parameters
    ----------
    scan
        All edges.
    in_degree, permutation
        As for `choose_windows`.
    """
    windows = choose_windows(in_degree, permutation)
    wanted = np.zeros(-(-in_degree.size // 8), np.uint8)
    nodes = _NO_NODES if permutation is None else permutation.nodes
    _mark(windows, nodes, wanted)
    keys = np.empty(int(windows[:, 2].sum()), np.uint64)
    filled = 0
    for block in scan:
        filled = _take(block, wanted, keys, filled)
    if permutation is not None:
        permutation.relabel(keys)
    keys.sort()
    return Sample(keys[: unique_sorted(keys)], windows[:, :2])


@entry()
def _mark(windows, nodes, wanted):
    for k in range(windows.shape[0]):
        for row in range(windows[k, 0], windows[k, 1]):
            node = nodes[row] if nodes.size else np.uint32(row)
            wanted[node >> np.uint32(3)] |= np.uint8(1 << (node & np.uint32(7)))


@entry()
def _take(block, wanted, keys, filled):
    """Append the keys whose heads are wanted; returns how many there are then."""
    for key in block:
        head = key >> np.uint64(32)
        if wanted[head >> np.uint64(3)] >> (head & np.uint64(7)) & 1:
            keys[filled] = key
            filled += 1
    return filled
