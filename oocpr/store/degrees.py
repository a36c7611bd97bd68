"""How many nodes have how many edges: the sizes of the rows of a graph's matrix, and of its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.system import spans

if TYPE_CHECKING:
    from oocpr.store.graph import GraphStore

_ROWS = 1 << 20
_CLASSES = 33
"""No edges, and from 2^k to below twice that: all that 32 bits hold."""


class DegreeClass(NamedTuple):
    """Nodes with `lowest` to `highest` edges into them, or out of them, and these edges."""

    lowest: int
    highest: int
    in_nodes: int
    in_edges: int
    out_nodes: int
    out_edges: int


class RowSizes(NamedTuple):
    """Rows without edges, and the edges of the row that has most."""

    empty: int
    largest: int


def row_sizes(store: GraphStore) -> RowSizes:
    """Look at the sizes of all rows; DamagedError if what the store has of them is not what was written."""
    empty = largest = 0
    for low, high in spans(store.nodes, _ROWS):
        sizes = np.diff(store.indptr(low, high + 1))
        empty += int(np.count_nonzero(sizes == 0))
        largest = max(largest, int(sizes.max()))
    return RowSizes(empty, largest)


def degree_distribution(store: GraphStore) -> list[DegreeClass]:
    """Count nodes and edges by degrees: none, one, two to three, four to seven, and so on.

    Self-loops count at both ends, and duplicate edges as one. Classes behind the last with a node are left
    out. DamagedError if what the store has of rows is not what was written.
    """
    counts = np.zeros((_CLASSES, 4), np.int64)
    for low, high in spans(store.nodes, _ROWS):
        _count(np.diff(store.indptr(low, high + 1)), counts[:, :2])
        _count(store.out_degree(low, high).astype(np.int64), counts[:, 2:])
    last = int(np.flatnonzero(counts.any(axis=1)).max(initial=0))
    found = counts[: last + 1].tolist()
    return [DegreeClass((1 << k) // 2, max(0, (1 << k) - 1), *each) for k, each in enumerate(found)]


def _count(degrees: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Add nodes and edges to their classes; the exponent of a number is the class of a degree."""
    classes = np.frexp(degrees.astype(np.float64))[1]
    counts[:, 0] += np.bincount(classes, minlength=_CLASSES)
    # Fewer than 2^53 edges: exact.
    counts[:, 1] += np.bincount(classes, degrees, _CLASSES).astype(np.int64)
