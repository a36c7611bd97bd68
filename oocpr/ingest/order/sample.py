"""A sample of the rows that an order makes: windows of neighbouring rows, with all their edges.

Windows lie evenly in the edges, not in the rows, as most edges may be in few rows. They follow from the graph
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
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.order.permutation import Permutation
    from oocpr.ingest.spill.id_bitmap import IdBitmap
    from oocpr.ingest.spill.keys import KeyRun

_BLOCK_EDGES = 1 << 17
WINDOWS = 16
WINDOW_EDGES = 1 << 16
"""Most edges of a window; a row that has more by itself is passed over."""

WINDOW_ROWS = 1 << 15
"""Most rows of a window."""

_NO_NODES = np.empty(0, np.uint32)


class EdgeScan:
    """Iterates over the keys of all edges, in no order, nodes numbered from 0 on.

    `on_progress` is called with the edges gone over so far, those of earlier scans included; `count` are
    those of one scan.
    """

    def __init__(
        self, runs: Sequence[KeyRun], ids: IdBitmap | None, on_progress: Callable[[int], None]
    ) -> None:
        self.count = sum(run.count for run in runs)
        self._runs = runs
        self._ids = ids
        self._on_progress = on_progress
        self._done = 0

    def __iter__(self) -> Iterator[NDArray[np.uint64]]:
        buffer = np.empty(min(_BLOCK_EDGES, max(self.count, 1)), np.uint64)
        for run in self._runs:
            for keys in run.blocks(buffer):
                if self._ids is not None:
                    self._ids.relabel(keys)
                yield keys
                self._done += keys.size
                self._on_progress(self._done)


def count_degrees(
    scan: EdgeScan, nodes: int, *, sources: bool = False, destinations: bool = False
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Count the edges of each node, duplicates included, up to 2^32 - 1.

    Returns out-degrees and in-degrees, uint32, shape (nodes,); empty if they were not wanted.
    """
    out_degree, in_degree = (
        np.zeros(nodes if wanted else 0, np.uint32) for wanted in (sources, destinations)
    )
    for keys in scan:
        if sources:
            _count(keys, np.uint64(0), out_degree)
        if destinations:
            _count(keys, np.uint64(32), in_degree)
    return out_degree, in_degree


@entry()
def _count(keys, shift, counts):
    largest = np.uint32(0xFFFFFFFF)
    for key in keys:
        node = key >> shift & np.uint64(0xFFFFFFFF)
        if counts[node] < largest:
            counts[node] += np.uint32(1)


@dataclass(frozen=True)
class Sample:
    """What a store would hold in some of its rows.

    Attributes
    ----------
    keys
        Edges of the rows of all windows, row << 32 | column, ascending and unique, uint64.
    windows
        First row of each window and the row after its last, int64, shape (windows, 2).
    """

    keys: NDArray[np.uint64]
    windows: NDArray[np.int64]


def choose_windows(in_degree: NDArray[np.uint32], permutation: Permutation | None) -> NDArray[np.int64]:
    """Choose windows: all rows of a graph of few edges, else `WINDOWS` windows.

    `in_degree` counts duplicates. Returns first row, row after the last, and edges of each: int64, shape
    (windows, 3).

    Examples
    --------
    >>> choose_windows(np.array([3, 70_000, 5, 0], np.uint32), None)
    array([[0, 1, 3],
           [2, 4, 5]])
    """
    edges = int(in_degree.sum(dtype=np.int64))
    whole = edges <= WINDOWS * WINDOW_EDGES
    step = 0 if whole else edges // WINDOWS
    first = 0 if whole else max(0, (step - WINDOW_EDGES) // 2)
    most = -(-2 * edges // WINDOW_EDGES) + in_degree.size // WINDOW_ROWS + 2 if whole else WINDOWS
    windows = np.empty((most, 3), np.int64)
    nodes = _NO_NODES if permutation is None else permutation.nodes
    return windows[: _choose(in_degree, nodes, first, step, WINDOW_EDGES, WINDOW_ROWS, windows)]


@entry()
def _choose(in_degree, nodes, first, step, max_edges, max_rows, windows):
    found = 0
    before = 0
    begin = -1
    edges = 0
    for row in range(in_degree.size):
        size = np.int64(in_degree[nodes[row] if nodes.size else row])
        if begin >= 0 and (edges + size > max_edges or row - begin == max_rows):
            windows[found, 0], windows[found, 1], windows[found, 2] = begin, row, edges
            found += 1
            begin = -1
        if found == windows.shape[0]:
            return found
        if begin < 0 and size <= max_edges and before >= first + found * step:
            begin = row
            edges = 0
        if begin >= 0:
            edges += size
        before += size
    if begin >= 0:
        windows[found, 0], windows[found, 1], windows[found, 2] = begin, in_degree.size, edges
        found += 1
    return found


def take_sample(scan: EdgeScan, in_degree: NDArray[np.uint32], permutation: Permutation | None) -> Sample:
    """Take a sample of the rows of an order; None for that of the nodes."""
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
    """Append the keys whose destinations are wanted; returns how many there are then."""
    for key in block:
        row = key >> np.uint64(32)
        if wanted[row >> np.uint64(3)] >> (row & np.uint64(7)) & 1:
            keys[filled] = key
            filled += 1
    return filled
