"""The row of the store that each node becomes."""

# Numba carries no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.jit import entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.ingest.spill.id_bitmap import IdBitmap

_COUNTED = 1 << 16
"""Out-degrees below this are counted, larger ones, which few nodes can have, are sorted."""


@dataclass(frozen=True)
class Permutation:
    """Another order of the nodes 0 .. n - 1: the row of each node, and the node of each row.

    Examples
    --------
    >>> keys = np.array([2 << 32 | 0], np.uint64)
    >>> Permutation.of_rows(np.array([1, 2, 0], np.uint32)).relabel(keys)
    >>> int(keys[0]) >> 32, int(keys[0]) & 0xFFFFFFFF
    (0, 1)
    """

    rows: NDArray[np.uint32]
    nodes: NDArray[np.uint32]

    @classmethod
    def of_rows(cls, rows: NDArray[np.uint32]) -> Permutation:
        """Make one from the rows alone."""
        nodes = np.empty_like(rows)
        _invert(rows, nodes)
        return cls(rows, nodes)

    @classmethod
    def of_nodes(cls, nodes: NDArray[np.uint32]) -> Permutation:
        """Make one from the nodes alone."""
        rows = np.empty_like(nodes)
        _invert(nodes, rows)
        return cls(rows, nodes)

    def relabel(self, keys: NDArray[np.uint64]) -> None:
        """Turn keys of nodes into keys of rows, in place."""
        _permute(keys, self.rows)


@dataclass(frozen=True)
class Order:
    """How keys become rows.

    Attributes
    ----------
    name
        What the store says about it.
    relabel
        Turns keys of ids into keys of rows, in place; None if that keeps their order or changes nothing.
    node_ids
        Id of each row, uint32, shape (nodes,); None if ids are rows.
    reason
        Why it was chosen, one line; None if it was asked for.
    """

    name: str
    relabel: Callable[[NDArray[np.uint64]], None] | None
    node_ids: NDArray[np.uint32] | None
    reason: str | None = None


def keep_order(ids: IdBitmap | None) -> Order:
    """Order the rows as the ids are; None for the ids 0 .. n - 1."""
    return make_order("keep", None, ids)


def make_order(
    name: str, permutation: Permutation | None, ids: IdBitmap | None, reason: str | None = None
) -> Order:
    """Order the rows by a permutation of the nodes, None for one that changes nothing.

    The permutation's nodes are overwritten if there are ids, which are None if they are 0 .. n - 1.

    Examples
    --------
    >>> make_order("degree", Permutation.of_rows(np.array([1, 0], np.uint32)), None).node_ids
    array([1, 0], dtype=uint32)
    """
    if permutation is None:
        return Order(name, None, None if ids is None else ids.to_numpy(), reason)
    if ids is None:
        return Order(name, permutation.relabel, permutation.nodes, reason)

    def relabel(keys: NDArray[np.uint64]) -> None:
        ids.relabel(keys)
        permutation.relabel(keys)

    _look_up(ids.to_numpy(), permutation.nodes)
    return Order(name, relabel, permutation.nodes, reason)


def order_by_degree(out_degree: NDArray[np.uint32]) -> Permutation | None:
    """Order nodes by out-degree, descending, equal ones by number; None if nothing changes.

    `out_degree`, uint32, shape (nodes,), is overwritten; it may count duplicate edges.

    Examples
    --------
    >>> order_by_degree(np.array([1, 5, 1, 9], np.uint32)).nodes
    array([3, 1, 0, 2], dtype=uint32)
    """
    if bool((out_degree[1:] <= out_degree[:-1]).all()):
        return None
    large = np.flatnonzero(out_degree >= _COUNTED)
    large = large[np.argsort(-out_degree[large].astype(np.int64), kind="stable")]
    _rank(out_degree, np.zeros(_COUNTED, np.int64), large.size)
    out_degree[large] = np.arange(large.size)
    return Permutation.of_rows(out_degree)


@entry()
def _rank(degrees, places, before):
    """Replace out-degrees below the limit by rows, of which the first is `before`."""
    for degree in degrees:
        if degree < places.size:
            places[degree] += 1
    place = before
    for degree in range(places.size - 1, -1, -1):
        count = places[degree]
        places[degree] = place
        place += count
    for node in range(degrees.size):
        degree = degrees[node]
        if degree < places.size:
            degrees[node] = places[degree]
            places[degree] += 1


@entry()
def _invert(rows, nodes):
    for node in range(rows.size):
        nodes[rows[node]] = node


@entry()
def _look_up(known, nodes):
    """Replace nodes by their ids."""
    for row in range(nodes.size):
        nodes[row] = known[nodes[row]]


@entry()
def _permute(keys, rows):
    for i in range(keys.size):
        row = np.uint64(rows[keys[i] >> np.uint64(32)])
        column = np.uint64(rows[keys[i] & np.uint64(0xFFFFFFFF)])
        keys[i] = row << np.uint64(32) | column
