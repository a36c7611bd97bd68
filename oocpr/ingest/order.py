"""Second stage: the row of the store that each id becomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.ingest.ids import IdSet
    from oocpr.ingest.partition import Run

DEGREE_BYTES_PER_NODE = 16
"""Most bytes a node that ordering by degree holds at once, allocators included."""

_BLOCK_EDGES = 1 << 18


@dataclass(frozen=True)
class Order:
    """How ids become rows.

    Parameters
    ----------
    relabel
        Turns keys of ids into keys of rows, in place; None where ids are rows.
    node_ids
        Id of each row, uint32, shape (nodes,); None where ids are rows.
    """

    relabel: Callable[[NDArray[np.uint64]], None] | None
    node_ids: NDArray[np.uint32] | None


def keep_order(ids: IdSet | None) -> Order:
    """Order the rows as the ids are.

    Parameters
    ----------
    ids
        The ids that occur, or None where they are 0 .. n - 1.

    Examples
    --------
    >>> keep_order(None).node_ids is None
    True
    """
    if ids is None:
        return Order(None, None)
    return Order(ids.relabel, ids.to_numpy())


@numba.njit("void(uint64[::1], uint32[::1])", cache=True, nogil=True)
def _count_columns(keys, counts):  # type: ignore[no-untyped-def]
    most = np.uint32(0xFFFFFFFF)
    for key in keys:
        column = key & np.uint64(0xFFFFFFFF)
        if counts[column] < most:
            counts[column] += np.uint32(1)


@numba.njit("void(uint32[::1], uint64[::1])", cache=True, nogil=True)
def _descending(counts, keys):  # type: ignore[no-untyped-def]
    for node in range(counts.size):
        keys[node] = np.uint64(~counts[node]) << np.uint64(32) | np.uint64(node)


@numba.njit("void(uint64[::1], uint32[::1], uint32[::1])", cache=True, nogil=True)
def _split(keys, rows, nodes):  # type: ignore[no-untyped-def]
    for row in range(keys.size):
        node = np.uint32(keys[row] & np.uint64(0xFFFFFFFF))
        rows[node] = row
        nodes[row] = node


@numba.njit("void(uint64[::1], uint32[::1])", cache=True, nogil=True)
def _permute(keys, rows):  # type: ignore[no-untyped-def]
    for i in range(keys.size):
        row = np.uint64(rows[keys[i] >> np.uint64(32)])
        column = np.uint64(rows[keys[i] & np.uint64(0xFFFFFFFF)])
        keys[i] = row << np.uint64(32) | column


def degree_order(run: Run, nodes: int, ids: IdSet | None, told: Callable[[int], None]) -> Order:
    """Order the rows by out-degree, descending, and rows of equal out-degree by id.

    The out-degree that decides counts a link as often as the source repeats it.

    Parameters
    ----------
    run
        All edges, as keys of ids. Where `ids` are given, their ranks take their place in its file.
    nodes
        Nodes of the graph.
    ids
        The ids that occur, or None where they are 0 .. nodes - 1.
    told
        Called with the edges counted so far.
    """
    run = replace(run, relabel=None if ids is None else ids.relabel)
    counts = np.zeros(nodes, np.uint32)
    done = 0
    for keys in run.settle(np.empty(min(_BLOCK_EDGES, max(run.count, 1)), np.uint64)):
        _count_columns(keys, counts)
        done += keys.size
        told(done)

    descending = np.empty(nodes, np.uint64)
    _descending(counts, descending)
    del counts
    descending.sort()
    rows, node_ids = np.empty(nodes, np.uint32), np.empty(nodes, np.uint32)
    _split(descending, rows, node_ids)
    del descending
    if bool((node_ids[1:] > node_ids[:-1]).all()):
        return Order(None, keep_order(ids).node_ids)
    return Order(lambda keys: _permute(keys, rows), node_ids if ids is None else ids.to_numpy()[node_ids])
