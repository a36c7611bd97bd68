"""When tiles come that are read in a first pass, by when some of them did."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapreplace
from typing import TYPE_CHECKING

import numpy as np

from oocpr.engine.passed import fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def arrivals(seconds: Sequence[float], threads: int, buffers: int) -> list[float]:
    """Say when tiles have come, one after the other.

    Parameters
    ----------
    seconds
        In which a thread brings each.
    threads
        Each takes the next tile.
    buffers
        Tiles that have not come, or not all before them, at most.

    Examples
    --------
    >>> arrivals([2, 2, 2, 2], threads=2, buffers=4)
    [2, 2, 4, 4]
    >>> arrivals([9, 1, 1, 1], threads=2, buffers=4)
    [9, 9, 9, 9]
    >>> arrivals([9, 1, 1, 1], threads=2, buffers=2)
    [9, 9, 10, 10]
    """
    free: list[float] = [0] * threads
    come: list[float] = []
    for number, took in enumerate(seconds):
        begun = max(free[0], come[number - buffers]) if number >= buffers else free[0]
        heapreplace(free, begun + took)
        come.append(max(begun + took, come[-1]) if come else took)
    return come


@dataclass(frozen=True)
class Reading:
    """Who brings tiles.

    Parameters
    ----------
    threads, buffers
        As for `arrivals`.
    """

    threads: int
    buffers: int


@dataclass(frozen=True)
class Coming:
    """In what time tiles come in a first pass.

    Parameters
    ----------
    edge, row
        Seconds of a thread that brings a tile, for each edge and for each row.
    more
        Seconds for each edge by which what takes the tiles is slower than the threads.
    begin
        Seconds that the first of them take longer: memory is taken then.
    """

    edge: float
    row: float
    more: float
    begin: float

    def seconds(self, edges: NDArray[np.float64], rows: NDArray[np.float64], reading: Reading) -> float:
        """Seconds until tiles of so many edges and rows are there, if there are any."""
        if not len(edges):
            return 0.0
        brought = self._arrivals(edges, rows, reading)[-1]
        return float(self.begin + brought + self.more * edges.sum())

    def _arrivals(
        self, edges: NDArray[np.float64], rows: NDArray[np.float64], reading: Reading
    ) -> list[float]:
        took = (self.edge * edges + self.row * rows).tolist()
        return arrivals(took, reading.threads, reading.buffers)


def coming_of(
    came: Sequence[float],
    took: Sequence[float],
    edges: NDArray[np.float64],
    rows: NDArray[np.float64],
    reading: Reading,
) -> Coming:
    """Tell from some tiles what an edge and a row take, and what a beginning does, once.

    Tiles of the first half begin it: several come side by side, and each takes memory.

    Parameters
    ----------
    came
        Seconds after which each was there, in their order.
    took
        Seconds in which a thread brought each, while others brought others.
    edges, rows
        Of each; float64, shape (tiles,).
    reading
        Who brought them.
    """
    if not came:
        return Coming(0.0, 0.0, 0.0, 0.0)
    half = len(came) // 2
    edge, row = fitted(edges[half:], rows[half:], np.array(took[half:]))
    alone = Coming(edge, row, 0.0, 0.0)._arrivals(edges, rows, reading)
    # Of both, the time from the last of the first half to the last of all.
    steady, brought = (times[-1] - (times[half - 1] if half else 0.0) for times in (came, alone))
    more = max(0.0, steady - brought) / float(edges[half:].sum())
    begin = came[half - 1] - alone[half - 1] - more * float(edges[:half].sum()) if half else 0.0
    return Coming(edge, row, more, max(0.0, begin))
