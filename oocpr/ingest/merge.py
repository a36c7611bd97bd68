"""Fourth stage: runs of keys in no order become sorted keys without repeats.

A link that a source repeats counts once. A link from a node to itself is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

from oocpr.ingest.partition import Run, partition
from oocpr.ingest.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


def sorted_pieces(run: Run, space: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], int]]:
    """Yield the keys of `run` in ascending order, piece by piece.

    Parameters
    ----------
    run
        The keys; more of them than `space` holds are partitioned first.
    space
        Memory for the keys that are sorted at once, two keys or more.

    Yields
    ------
    keys : ndarray
        Ascending uint64, shape (k,), in `space`; repeats are there except where a piece is one key only.
    count : int
        Keys of the run that these stand for.
    """
    if run.count <= space.size:
        for keys in run.blocks(space):
            keys.sort()
            yield keys, run.count
    elif run.high - run.low == 1:
        space[0] = run.low
        yield space[:1], run.count
    else:
        with Scratch(run.scratch.folder) as scratch:
            for bucket in partition(run, scratch, space, lambda _: None):
                yield from sorted_pieces(bucket, space)


@numba.njit("int64(uint64[::1])", cache=True, nogil=True)
def drop_repeats(keys):  # type: ignore[no-untyped-def]
    """Keep each of ascending keys once, in place; returns how many are left.

    Examples
    --------
    >>> keys = np.array([1, 1, 5], np.uint64)
    >>> int(drop_repeats(keys)), keys[:2].tolist()
    (2, [1, 5])
    """
    if keys.size == 0:
        return 0
    kept = 1
    last = keys[0]
    for i in range(1, keys.size):
        key = keys[i]
        keys[kept] = key
        kept += key != last
        last = key
    return kept


@numba.njit("int64(uint64[::1], uint32[::1])", cache=True, nogil=True)
def _count(keys, out_degree):  # type: ignore[no-untyped-def]
    loops = 0
    for key in keys:
        column = key & np.uint64(0xFFFFFFFF)
        out_degree[column] += np.uint32(1)
        loops += column == key >> np.uint64(32)
    return loops


class Tally:
    """Counts of sorted keys that the store has to know.

    Parameters
    ----------
    nodes
        Nodes of the graph.

    Attributes
    ----------
    edges
        Edges kept.
    duplicates
        Edges dropped because they repeat another.
    self_loops
        Edges kept that run from a node to itself.
    out_degree
        Edges kept that leave each node: uint32, shape (nodes,).

    Examples
    --------
    >>> tally = Tally(2)
    >>> tally.add(np.array([1, 1 << 32 | 1], np.uint64), 3)
    >>> tally.edges, tally.duplicates, tally.self_loops, tally.out_degree
    (2, 1, 1, array([0, 2], dtype=uint32))
    """

    def __init__(self, nodes: int) -> None:
        self.edges = 0
        self.duplicates = 0
        self.self_loops = 0
        self.out_degree = np.zeros(nodes, np.uint32)

    def add(self, keys: NDArray[np.uint64], count: int) -> None:
        """Count keys of rows, all different, uint64, shape (k,), which stand for `count` edges."""
        self.self_loops += _count(keys, self.out_degree)
        self.edges += keys.size
        self.duplicates += count - keys.size
