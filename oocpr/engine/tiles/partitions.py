"""Tiles of a pass, taken once for each slice of what rows gather; see :mod:`oocpr.plan.partition`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr.engine.backend import Streams
from oocpr.engine.tiles.stream import PassTraffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oocpr.engine.backend import Backend


def each_partition(backend: Backend, reads: Any, *, bring: bool = True) -> Iterator[None]:
    """Have rows gather from one slice after the other; once, where they gather from all nodes.

    Parameters
    ----------
    backend, reads
        What computes, and what its rows gather.
    bring
        Whether the numbers of each slice are brought; else those of another stand for them, which takes tiles
        as long.
    """
    if not isinstance(backend, Streams):
        yield
        return
    for number in range(backend.slices):
        backend.select_partition(reads, number, bring=bring)
        yield


def traffic_of(runs: Sequence[PassTraffic]) -> PassTraffic:
    """What all runs over the tiles together took from the store.

    Examples
    --------
    >>> traffic_of([PassTraffic(1000, 0.5), PassTraffic(200, 0.25)])
    PassTraffic(bytes_read=1200, wait_seconds=0.75)
    """
    return PassTraffic(sum(run.bytes_read for run in runs), sum(run.wait_seconds for run in runs))
