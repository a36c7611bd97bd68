"""All edges gone over again and again, as orders of the nodes need it."""

# Numba carries no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oocpr.jit import entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.spill.id_bitmap import IdBitmap
    from oocpr.ingest.spill.keys import KeyRun

_BLOCK_EDGES = 1 << 17


class Scan:
    """Goes over the keys of all edges, in no order, nodes numbered from 0 on.

    Parameters
    ----------
    runs
        The edges, as keys of ids.
    ids
        The ids that occur, or None where they are 0 .. n - 1.
    told
        Called with the edges gone over so far, those of earlier times included.

    Attributes
    ----------
    count
        Edges of one time.
    """

    def __init__(self, runs: Sequence[KeyRun], ids: IdBitmap | None, told: Callable[[int], None]) -> None:
        self.count = sum(run.count for run in runs)
        self._runs = runs
        self._ids = ids
        self._told = told
        self._done = 0

    def __iter__(self) -> Iterator[NDArray[np.uint64]]:
        buffer = np.empty(min(_BLOCK_EDGES, max(self.count, 1)), np.uint64)
        for run in self._runs:
            for keys in run.blocks(buffer):
                if self._ids is not None:
                    self._ids.relabel(keys)
                yield keys
                self._done += keys.size
                self._told(self._done)


def count_links(
    scan: Scan, nodes: int, *, tails: bool = False, heads: bool = False
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Count the links of each node, as often as the source repeats them, up to 2^32 - 1.

    Parameters
    ----------
    scan
        All edges.
    nodes
        Nodes of the graph.
    tails, heads
        Whether to count the links that leave a node, and those that reach it.

    Returns
    -------
    out_degree, in_degree
        uint32, shape (nodes,); empty where they were not wanted.
    """
    leaving, reaching = (np.zeros(nodes if wanted else 0, np.uint32) for wanted in (tails, heads))
    for keys in scan:
        if tails:
            _count(keys, np.uint64(0), leaving)
        if heads:
            _count(keys, np.uint64(32), reaching)
    return leaving, reaching


@entry()
def _count(keys, shift, counts):
    most = np.uint32(0xFFFFFFFF)
    for key in keys:
        node = key >> shift & np.uint64(0xFFFFFFFF)
        if counts[node] < most:
            counts[node] += np.uint32(1)
