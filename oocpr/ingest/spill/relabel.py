"""Edges whose keys have changed since they were written: they are dealt to buckets of the new keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.spill.files import require_disk
from oocpr.ingest.spill.partitioner import Edges, Partitioner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.spill.bounded_pool import BoundedExecutor
    from oocpr.ingest.spill.files import SpillFile
    from oocpr.ingest.spill.keys import KeyRun

    Relabel = Callable[[NDArray[np.uint64]], None]


def repartition(
    runs: Sequence[KeyRun],
    relabel: Relabel | None,
    rows: int,
    out: SpillFile,
    block_edges: int,
    crew: BoundedExecutor,
    told: Callable[[int], None],
) -> Partitioner:
    """Deal edges to buckets by their new keys.

    Parameters
    ----------
    runs
        The edges.
    relabel
        Turns their keys into new ones, in place; None where they are new already.
    rows
        New rows are below this number.
    out
        Receives the edges.
    block_edges
        Edges that are dealt at once.
    crew
        Deals.
    told
        Called with the edges read so far.

    Returns
    -------
    Partitioner
        Has dealt all of them.

    Raises
    ------
    DoesNotFitError
        Where the disk has no room.
    """
    count = sum(run.count for run in runs)
    written = sum(int(run.pieces.sizes.sum()) for run in runs)
    require_disk(out.folder, max(0, written - out.room))
    weighted = any(run.pieces.weighted for run in runs)
    buffer = np.empty(max(1, min(block_edges, count)), np.uint64)
    beside = np.empty(buffer.size) if weighted else None

    def renamed(keys: NDArray[np.uint64], weights: NDArray[np.float64] | None = None) -> Edges:
        if relabel is not None:
            relabel(keys)
        tails, heads = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
        return Edges.of(tails, heads, None if weights is None else weights.copy())

    dealer = Partitioner(out, block_edges, rows, weighted=weighted)
    samples = [renamed(next(run.blocks(buffer[: -(-buffer.size // len(runs))]))).dst for run in runs]
    dealer.plan(np.concatenate(samples or [np.empty(0, np.uint32)]))
    done = 0
    for run in runs:
        for keys, weights in run.records(buffer, beside):
            crew.do(dealer.add, renamed(keys, weights))
            done += keys.size
            told(done)
    crew.finish()
    return dealer
