"""Buckets sorted and tiles packed by the workers of a Dask client, for an import.

What is sorted or packed goes straight to one worker and the result straight back; the scheduler sees the
names of both. A worker that dies takes with it what it was given, so it is given to another.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr import version
from oocpr.engine.cluster import LostWorkerError
from oocpr.errors import UsageError
from oocpr.plan.needs import Needs
from oocpr.store.packing import TileCoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PATIENCE = 5.0
"""Seconds after which a call that has not ended asks whether its worker still lives."""

ATTEMPTS = 5
"""Workers that may die over one call: who dies that often dies of the call."""

RETURN = 60.0
"""Seconds in which a worker has to come back when all are dead."""

_coders = threading.local()


def sort(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sort keys, on a worker."""
    return np.sort(keys)


def encode(columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Encode a tile, on a worker."""
    if not hasattr(_coders, "coder"):
        _coders.coder = TileCoder()
    coded: NDArray[np.uint8] = _coders.coder.encode(columns, lengths)
    return coded.copy()


def own_version() -> str:
    """Say which version of this package a process has."""
    return version.__version__


class ClusterHands:
    """Sorts and packs for an import, see `oocpr.ingest.hands.Hands`, on the workers of a client.

    Parameters
    ----------
    client
        A ``distributed.Client``; its workers have this package and can be reached from this process.

    Attributes
    ----------
    workers
        Calls that are worth having under way: one for each thread of a worker, and one on its way to each.
    needs
        The sorted keys or the encoded tile come back beside what was given.

    Raises
    ------
    UsageError
        When the client has no worker, or one that may encode otherwise.
    """

    needs = Needs(key_bytes=8, edge_bytes=6, row_bytes=5, usual_keys=1 << 20)

    def __init__(self, client: Any) -> None:
        self._client = client
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        threads = client.nthreads()
        if not threads:
            raise UsageError("the Dask client has no workers.", "Start workers, or leave the client out.")
        for worker, said in client.run(own_version, on_error="return").items():
            if said != own_version():
                raise UsageError(
                    f"worker {worker} has no oocpr {own_version()} but answers {said!r}.",
                    "Install the same version on all workers.",
                )
        self.workers: int = sum(threads.values()) + len(threads)

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """See Hands.

        Raises
        ------
        LostWorkerError
            When worker after worker dies, or none is left.
        """
        keys[:] = self._done(sort, keys)

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """See Hands.

        Raises
        ------
        LostWorkerError
            When worker after worker dies, or none is left.
        """
        coded: NDArray[np.uint8] = self._done(encode, columns, lengths)
        return coded

    def _done(self, function: Any, *arrays: NDArray[Any]) -> Any:
        """Have a worker call the function, and another one where that one dies."""
        from distributed import KilledWorker

        for _ in range(ATTEMPTS):
            with self._worker() as worker:
                try:
                    return self._called(worker, function, arrays)
                except (_Lost, CancelledError, KilledWorker, OSError):
                    # What it was given is still here. An OSError is of a connection: calls open no files.
                    continue
        raise LostWorkerError(
            f"{ATTEMPTS} workers were lost, one after another, with the same piece of the import.",
            "Start the import again with more memory a worker.",
        )

    def _called(self, worker: str, function: Any, arrays: tuple[NDArray[Any], ...]) -> Any:
        call = self._call(worker, function, arrays)
        called = asyncio.run_coroutine_threadsafe(call, self._client.loop.asyncio_loop)
        while not wait([called], PATIENCE).done:
            # Connections to a worker that has gone are tried for long.
            if worker not in self._client.nthreads():
                raise _Lost
        return called.result()

    async def _call(self, worker: str, function: Any, arrays: tuple[NDArray[Any], ...]) -> Any:
        client = self._client
        try:
            given = await client.scatter(
                list(arrays), workers=[worker], direct=True, hash=False, asynchronous=True
            )
        except KeyError:  # the scheduler's word for a worker that has just gone
            raise _Lost from None
        result = client.submit(
            function, *given, workers=[worker], allow_other_workers=True, pure=False, retries=0
        )
        return await client.gather(result, direct=True, asynchronous=True)

    @contextmanager
    def _worker(self) -> Iterator[str]:
        """Choose the worker with the fewest calls a thread."""
        threads = self._living()
        with self._lock:
            worker = min(sorted(threads), key=lambda name: self._calls[name] / threads[name])
            self._calls[worker] += 1
        try:
            yield worker
        finally:
            with self._lock:
                self._calls[worker] -= 1

    def _living(self) -> dict[str, int]:
        """Give the threads of each worker, of one at least."""
        end = time.monotonic() + RETURN
        try:
            while not (threads := self._client.nthreads()):
                if time.monotonic() > end:
                    raise LostWorkerError("all workers were lost.", "Start the import again.")
                time.sleep(0.1)
        except OSError as error:
            raise LostWorkerError(f"the scheduler was lost: {error}.", "Start the import again.") from error
        living: dict[str, int] = threads
        return living


class _Lost(Exception):  # noqa: N818 - never leaves this module
    """The worker of a call has died."""
