"""Buckets sorted by several threads, and handed on in their order."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

import numpy as np

from oocpr.ingest.budget import OWN_NEEDS
from oocpr.ingest.sort.rows import sorted_pieces
from oocpr.ingest.sort.weights import weighted_pieces
from oocpr.store.codec.tile_encoder import TileEncoder
from oocpr.system import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from oocpr.ingest.sort.rows import EdgeCounter, Rows
    from oocpr.ingest.spill.id_bitmap import Ranks
    from oocpr.ingest.spill.keys import KeyRun

    Job = KeyRun | list[KeyRun]

    from oocpr.plan.memory import Needs


_LEAST = 3
"""Keys that a piece of work has memory for, at least."""


class _SortBuffers:
    """Memory for one piece of work, of a number of keys."""

    def __init__(self, size: int, *, weighted: bool) -> None:
        # Pages that are never written never become resident, and rows are fewer than keys as a rule.
        self.keys = np.empty(size, np.uint64)
        self.rows, self.starts = np.empty(size, np.uint32), np.empty(size + 1, np.uint32)
        self.weights = np.empty(size if weighted else 0)


class Sorter:
    """Has runs sorted, as many at a time as there is memory for.

    Parameters
    ----------
    hands
        Sort.
    pool
        Calls them; None for the caller's own thread.
    workers
        Threads of the pool.
    space
        Keys that are in memory at once, two for each thread or more.
    ranks
        The row of each id that occurs; `NO_RANKS` where keys are of rows.
    tally
        Counts.
    how
        How links get their weights, one of `oocpr.ingest.sort.weights.DUPLICATES`; None where they have
        none.
    """

    def __init__(
        self,
        hands: SortEncodeService,
        pool: Executor | None,
        workers: int,
        space: int,
        ranks: Ranks,
        tally: EdgeCounter,
        how: str | None = None,
    ) -> None:
        self._hands = hands
        self._pool = pool
        slots = workers + 1 if pool is not None else 1
        self._size = max(_LEAST, space // slots)
        self._free = [_SortBuffers(self._size, weighted=how is not None) for _ in range(slots)]
        self._how = how
        self._ranks = ranks
        self._tally = tally

    def pieces(self, runs: Iterable[KeyRun]) -> Iterator[Rows]:
        """Yield all edges in ascending order and without repeats.

        Parameters
        ----------
        runs
            Of ascending keys.

        Yields
        ------
        Rows
            Overwritten when the next piece is asked for.
        """
        waiting: deque[tuple[Future[Rows] | None, Job, _SortBuffers]] = deque()
        jobs = self._jobs(runs)
        more = True
        while more or waiting:
            while more and self._free and (not waiting or waiting[-1][0] is not None):
                job = next(jobs, None)
                more = job is not None
                if job is None:
                    break
                bench = self._free.pop()
                if isinstance(job, list) and self._pool is not None:
                    waiting.append((self._pool.submit(self._sorted, job, bench), job, bench))
                else:
                    waiting.append((None, job, bench))
            if not waiting:
                return
            future, job, bench = waiting.popleft()
            if future is not None:
                yield future.result()
            elif isinstance(job, list):
                yield self._sorted(job, bench)
            elif self._how is not None:
                for keys, weights, count in weighted_pieces(job, bench.keys, bench.weights, self._how):
                    yield self._rows(keys, count, bench)._replace(weights=weights)
            else:
                for keys, count in sorted_pieces(job, bench.keys, self._hands.sort):
                    yield self._rows(keys, count, bench)
            self._free.append(bench)

    def _jobs(self, runs: Iterable[KeyRun]) -> Iterator[Job]:
        """Join neighbouring runs as long as they fit in a buffer; one that does not fit comes alone."""
        held: list[KeyRun] = []
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

    def _sorted(self, runs: list[KeyRun], bench: _SortBuffers) -> Rows:
        """Sort runs that fit in memory together."""
        if self._how is not None:
            return self._weighed(runs, bench, self._how)
        sorted_to = filled = 0
        for run in runs:
            for _ in run.blocks(bench.keys[filled : filled + run.count]):
                filled += run.count
            # No more at once than who sorts wants: small sorts stay in the caches.
            if filled - sorted_to >= self._hands.needs.usual_keys:
                self._hands.sort(bench.keys[sorted_to:filled])
                sorted_to = filled
        if sorted_to < filled:
            self._hands.sort(bench.keys[sorted_to:filled])
        return self._rows(bench.keys[:filled], filled, bench)

    def _weighed(self, runs: list[KeyRun], bench: _SortBuffers, how: str) -> Rows:
        """Sort runs that fit in memory together, and weigh their links."""
        filled = given = 0
        for run in runs:
            here = slice(filled, filled + run.count)
            for keys, _, count in weighted_pieces(run, bench.keys[here], bench.weights[here], how):
                filled += keys.size
                given += count
        return self._rows(bench.keys[:filled], given, bench)._replace(weights=bench.weights[:filled])

    def _rows(self, keys: NDArray[np.uint64], count: int, bench: _SortBuffers) -> Rows:
        return self._tally.to_rows(keys, count, self._ranks, bench.rows, bench.starts)


class SortEncodeService(Protocol):
    """Sorts and packs for an import, which calls both functions from several threads at a time.

    A call returns when its work is done. What it raises ends the import.
    """

    @property
    def workers(self) -> int:
        """Calls that are worth having under way at once; as many threads make them, if there is memory."""

    @property
    def needs(self) -> Needs:
        """What a call takes of this process's memory."""

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """Put keys in ascending order, in place; repeats stay.

        Parameters
        ----------
        keys
            uint64, contiguous, shape (k,); k is 1 or more.
        """

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Encode a tile to the bytes that `oocpr.store.codec.tile_encoder.TileEncoder.encode` makes of it.

        Parameters
        ----------
        columns
            uint32, contiguous, shape (m,): strictly ascending inside a segment; m may be 0.
        lengths
            Columns of each segment, uint32, contiguous, shape (s,); s is 1 or more.

        Returns
        -------
        uint8, contiguous, shape (bytes,); the next call from the same thread may overwrite it.
        """


class LocalSortEncode:
    """The threads of this process: NumPy sorts, the compiled coder packs.

    Parameters
    ----------
    workers
        Threads; None takes one for each processor that this process may use.

    Examples
    --------
    >>> import numpy as np
    >>> keys = np.array([3, 1, 2, 1], np.uint64)
    >>> LocalSortEncode().sort(keys)
    >>> keys.tolist()
    [1, 1, 2, 3]
    """

    needs = OWN_NEEDS

    def __init__(self, workers: int | None = None) -> None:
        self.workers = usable_cores() if workers is None else workers
        self._own = threading.local()

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """See SortEncodeService."""
        keys.sort()

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """See SortEncodeService."""
        # Fresh memory costs more than much of what is done with it here.
        if not hasattr(self._own, "coder"):
            self._own.coder = TileEncoder()
        coder: TileEncoder = self._own.coder
        return coder.encode(columns, lengths)
