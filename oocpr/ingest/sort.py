"""Buckets sorted by several threads, and handed on in their order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.merge import drop_repeats, sorted_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from oocpr.ingest.partition import Run

    Piece = tuple[NDArray[np.uint64], int]
    Relabel = Callable[[NDArray[np.uint64]], None]


class Sorter:
    """Sorts runs in threads, as many at a time as there is memory for.

    Parameters
    ----------
    pool
        Sorts; None for the caller's own thread.
    workers
        Threads of the pool.
    space
        Keys that are in memory at once, `least` or more.
    relabel
        Turns sorted keys without repeats, in place, into those of the graph, and keeps their order; or None.
    """

    def __init__(self, pool: Executor | None, workers: int, space: int, relabel: Relabel | None) -> None:
        self._pool = pool
        slots = workers + 1 if pool is not None else 1
        self._free = [np.empty(max(2, space // slots), np.uint64) for _ in range(slots)]
        self._size = self._free[0].size
        self._relabel = relabel

    def pieces(self, runs: Iterable[Run]) -> Iterator[Piece]:
        """Yield all keys in ascending order and without repeats, and how many of the source each piece is.

        Parameters
        ----------
        runs
            Of ascending keys.

        Yields
        ------
        keys : ndarray
            Ascending uint64, shape (k,); overwritten when the next piece is asked for.
        count : int
            Keys of the runs that these stand for.
        """
        waiting: deque[tuple[Future[Piece] | None, Run | list[Run], NDArray[np.uint64]]] = deque()
        jobs = self._jobs(runs)
        more = True
        while more or waiting:
            while more and self._free and (not waiting or waiting[-1][0] is not None):
                job = next(jobs, None)
                more = job is not None
                if job is None:
                    break
                buffer = self._free.pop()
                if isinstance(job, list) and self._pool is not None:
                    waiting.append((self._pool.submit(self._sorted, job, buffer), job, buffer))
                else:
                    waiting.append((None, job, buffer))
            if not waiting:
                return
            future, job, buffer = waiting.popleft()
            if future is not None:
                yield future.result()
            elif isinstance(job, list):
                yield self._sorted(job, buffer)
            else:
                for keys, count in sorted_pieces(job, buffer):
                    yield self._finished(keys), count
            self._free.append(buffer)

    def _jobs(self, runs: Iterable[Run]) -> Iterator[Run | list[Run]]:
        """Join neighbouring runs as long as they fit in a buffer; one that does not fit comes alone."""
        held: list[Run] = []
        count = 0
        for run in runs:
            if held and count + run.count > self._size:
                yield held
                held, count = [], 0
            if run.count > self._size:
                yield run
                continue
            held.append(run)
            count += run.count
        if held:
            yield held

    def _sorted(self, runs: list[Run], buffer: NDArray[np.uint64]) -> Piece:
        """Sort runs that fit in a buffer together."""
        filled = 0
        for run in runs:
            # Each for itself: small sorts stay in the caches.
            for keys in run.blocks(buffer[filled : filled + run.count]):
                keys.sort()
            filled += run.count
        return self._finished(buffer[:filled]), filled

    def _finished(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        keys = keys[: drop_repeats(keys)]
        if self._relabel is not None:
            self._relabel(keys)
        return keys
