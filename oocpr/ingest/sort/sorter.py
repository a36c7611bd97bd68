"""Buckets sorted by several threads and handed on in their order, and who sorts them and encodes tiles."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

import numpy as np

from oocpr.ingest.budget import LOCAL_NEEDS
from oocpr.ingest.sort.rows import sorted_pieces, weighted_pieces
from oocpr.store.codec.tile_encoder import TileEncoder
from oocpr.system import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from oocpr.ingest.sort.rows import EdgeCounter, Rows
    from oocpr.ingest.spill.id_bitmap import IdRanks
    from oocpr.ingest.spill.partition import KeyRun
    from oocpr.plan.memory import Needs

    Job = KeyRun | list[KeyRun]


class SortEncodeService(Protocol):
    """Sorts keys and encodes tiles for an import: this process, or others that it calls.

    The import calls both functions from several threads at a time. Whoever it is, the store has the same
    bytes: there is one ascending order of keys and one encoding of a tile. Those in other processes are of
    `engine`, which has these methods without importing this.
    """

    @property
    def workers(self) -> int:
        """Calls that are worth having under way at once; as many threads make them, if there is memory."""

    @property
    def needs(self) -> Needs:
        """What a call takes of this process's memory."""

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """Put one or more contiguous keys in ascending order, in place; repeats stay."""

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Encode a tile to the bytes of `oocpr.store.codec.tile_encoder.TileEncoder.encode`.

        Both are contiguous: `columns` may be empty, `lengths` has one segment or more, in which columns are
        strictly ascending. The next call from the same thread may overwrite the bytes.
        """


class LocalSortEncode:
    """The threads of this process: NumPy sorts, the compiled coder encodes."""

    needs = LOCAL_NEEDS

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


_MIN_KEYS = 3


class _Buffers:
    """Memory for one job, of a number of keys."""

    def __init__(self, size: int, *, weighted: bool) -> None:
        # Pages that are never written never become resident, and rows are fewer than keys as a rule.
        self.keys = np.empty(size, np.uint64)
        self.rows, self.starts = np.empty(size, np.uint32), np.empty(size + 1, np.uint32)
        self.weights = np.empty(size if weighted else 0)


class Sorter:
    """Has runs sorted, as many at a time as there is memory for.

    `service` sorts, called by `workers` threads of `pool`, None for the caller's own. All have `space` keys
    in memory at once, two for each thread or more. `ranks` has the row of each id that occurs, `NO_RANKS` if
    keys are of rows. `how` is one of `DUPLICATES`, None if edges have no weights.
    """

    def __init__(
        self,
        service: SortEncodeService,
        pool: Executor | None,
        workers: int,
        space: int,
        ranks: IdRanks,
        counter: EdgeCounter,
        how: str | None = None,
    ) -> None:
        self._service = service
        self._pool = pool
        slots = workers + 1 if pool is not None else 1
        self._size = max(_MIN_KEYS, space // slots)
        self._free = [_Buffers(self._size, weighted=how is not None) for _ in range(slots)]
        self._how = how
        self._ranks = ranks
        self._counter = counter

    def pieces(self, runs: Iterable[KeyRun]) -> Iterator[Rows]:
        """Yield all edges of ascending runs in ascending order and without duplicates.

        Each piece is overwritten when the next is asked for.
        """
        waiting: deque[tuple[Future[Rows] | None, Job, _Buffers]] = deque()
        jobs = self._jobs(runs)
        more = True
        while more or waiting:
            while more and self._free and (not waiting or waiting[-1][0] is not None):
                job = next(jobs, None)
                more = job is not None
                if job is None:
                    break
                buffers = self._free.pop()
                if isinstance(job, list) and self._pool is not None:
                    waiting.append((self._pool.submit(self._sorted, job, buffers), job, buffers))
                else:
                    waiting.append((None, job, buffers))
            if not waiting:
                return
            future, job, buffers = waiting.popleft()
            if future is not None:
                yield future.result()
            elif isinstance(job, list):
                yield self._sorted(job, buffers)
            elif self._how is not None:
                for keys, weights, count in weighted_pieces(job, buffers.keys, buffers.weights, self._how):
                    yield self._rows(keys, count, buffers)._replace(weights=weights)
            else:
                for keys, count in sorted_pieces(job, buffers.keys, self._service.sort):
                    yield self._rows(keys, count, buffers)
            self._free.append(buffers)

    def _jobs(self, runs: Iterable[KeyRun]) -> Iterator[Job]:
        """Combine neighbouring runs that fit in a buffer together; one that does not fit comes alone."""
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

    def _sorted(self, runs: list[KeyRun], buffers: _Buffers) -> Rows:
        """Sort runs that fit in memory together."""
        if self._how is not None:
            return self._sorted_weighted(runs, buffers, self._how)
        sorted_to = filled = 0
        for run in runs:
            for _ in run.blocks(buffers.keys[filled : filled + run.count]):
                filled += run.count
            # No more at once than the service wants: small sorts stay in the caches.
            if filled - sorted_to >= self._service.needs.usual_keys:
                self._service.sort(buffers.keys[sorted_to:filled])
                sorted_to = filled
        if sorted_to < filled:
            self._service.sort(buffers.keys[sorted_to:filled])
        return self._rows(buffers.keys[:filled], filled, buffers)

    def _sorted_weighted(self, runs: list[KeyRun], buffers: _Buffers, how: str) -> Rows:
        filled = given = 0
        for run in runs:
            here = slice(filled, filled + run.count)
            for keys, _, count in weighted_pieces(run, buffers.keys[here], buffers.weights[here], how):
                filled += keys.size
                given += count
        return self._rows(buffers.keys[:filled], given, buffers)._replace(weights=buffers.weights[:filled])

    def _rows(self, keys: NDArray[np.uint64], count: int, buffers: _Buffers) -> Rows:
        return self._counter.to_rows(keys, count, self._ranks, buffers.rows, buffers.starts)
