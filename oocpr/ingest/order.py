"""The row of the store that each id becomes."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import uint32, uint64

from oocpr.jit import entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from oocpr.ingest.ids import IdSet
    from oocpr.ingest.run import Run

DEGREE_BYTES_PER_NODE = 16
"""Most bytes a node that ordering by degree holds at once, allocators included."""

_BLOCK_EDGES = 1 << 18


@dataclass(frozen=True)
class Order:
    """How ids become rows.

    Parameters
    ----------
    relabel
        Turns keys of ids into keys of rows, in place; None where that keeps their order or changes nothing.
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
    return Order(None, None if ids is None else ids.to_numpy())


@entry()
def _count_columns(keys, counts):
    most = uint32(0xFFFFFFFF)
    for i in range(uint64(keys.size)):
        column = keys[i] & uint64(0xFFFFFFFF)
        if counts[column] < most:
            counts[column] += uint32(1)


@entry()
def _descending(counts, keys):
    for node in range(uint64(counts.size)):
        keys[node] = uint64(~counts[node] & uint32(0xFFFFFFFF)) << uint64(32) | node


@entry()
def _split(keys, rows, nodes):
    for row in range(uint64(keys.size)):
        node = keys[row] & uint64(0xFFFFFFFF)
        rows[node] = row
        nodes[row] = node


@entry()
def _permute(keys, rows):
    for i in range(uint64(keys.size)):
        row = uint64(rows[keys[i] >> uint64(32)])
        keys[i] = row << uint64(32) | uint64(rows[keys[i] & uint64(0xFFFFFFFF)])


def degree_order(runs: Iterable[Run], nodes: int, ids: IdSet | None, told: Callable[[int], None]) -> Order:
    """Order the rows by out-degree, descending, and rows of equal out-degree by id.

    The out-degree that decides counts a link as often as the source repeats it.

    Parameters
    ----------
    runs
        All edges, as keys of ids.
    nodes
        Nodes of the graph.
    ids
        The ids that occur, or None where they are 0 .. nodes - 1.
    told
        Called with the edges counted so far.
    """
    counts = np.zeros(nodes, np.uint32)
    buffer = np.empty(_BLOCK_EDGES, np.uint64)
    done = 0
    for run in runs:
        for keys in run.blocks(buffer):
            if ids is not None:
                ids.relabel(keys)
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
        return keep_order(ids)

    def relabel(keys: NDArray[np.uint64]) -> None:
        if ids is not None:
            ids.relabel(keys)
        _permute(keys, rows)

    return Order(relabel, node_ids if ids is None else ids.to_numpy()[node_ids])
