"""Buckets sorted and tiles encoded by the workers of a Dask client, for an import.

Arrays go straight to one worker and the result straight back; the scheduler sees the names of both. What a
worker that dies was given is given to another.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.executors.dask_client import CHECK_INTERVAL, RETURN_TIMEOUT, check_versions, check_workers
from oocpr.errors import LostError, UsageError
from oocpr.plan.memory import Needs
from oocpr.store.codec.tiles import TileEncoder

ATTEMPTS = 5
"""Workers that may die over one call: who dies that often dies of the call."""

_AGAIN = "Start the import again with more memory a worker."

_coders = threading.local()


def sort(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sort keys, on a worker."""
    return np.sort(keys)


def encode(columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Encode a tile, on a worker."""
    if not hasattr(_coders, "coder"):
        _coders.coder = TileEncoder()
    coded: NDArray[np.uint8] = _coders.coder.encode(columns, lengths)
    return coded.copy()


class DaskSortEncodeService:
    """A `SortEncodeService` on the workers of a ``distributed.Client``.

    `workers` counts the calls that are worth having under way: one for each thread of a worker, and one on
    its way to each. Raises UsageError if there is no worker, and SetupError for one of another version, which
    may encode otherwise. Calls raise LostError if worker after worker dies, or none is left.
    """

    needs = Needs(key_bytes=8, edge_bytes=6, row_bytes=5, typical_keys=1 << 20)

    def __init__(self, client: Any) -> None:
        self._client = client
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._alone_since: float | None = None
        threads = check_workers(client, (), _AGAIN)
        if not threads:
            raise UsageError("the Dask client has no workers.", "Start workers, or leave the client out.")
        check_versions(client, _AGAIN)
        self.workers: int = sum(threads.values()) + len(threads)

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """See SortEncodeService."""
        keys[:] = self._done(sort, keys)

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """See SortEncodeService."""
        coded: NDArray[np.uint8] = self._done(encode, columns, lengths)
        return coded

    def _done(self, function: Any, *arrays: NDArray[Any]) -> Any:
        """Have a worker call the function, and another one if that one dies."""
        from distributed import KilledWorker

        tried = set()
        for _ in range(ATTEMPTS):
            with self._worker() as worker:
                tried.add(worker)
                try:
                    return self._wait_for(worker, self._call(worker, function, arrays))
                except (_Lost, CancelledError, KilledWorker, OSError):
                    # What it was given is still here. An OSError is of a connection: calls open no files.
                    continue
        # If they were all ended for their memory, that is said.
        check_workers(self._client, tried, _AGAIN)
        raise LostError(
            f"{ATTEMPTS} workers were lost, one after another, with the same piece of the import.", _AGAIN
        )

    def _wait_for(self, worker: str, call: Any) -> Any:
        called = asyncio.run_coroutine_threadsafe(call, self._client.loop.asyncio_loop)
        while not wait([called], CHECK_INTERVAL).done:
            # Connections to a worker that has gone are tried for long.
            if worker not in check_workers(self._client, (), _AGAIN):
                called.cancel()
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
        """Threads of each worker, of one at least."""
        while not (threads := check_workers(self._client, (), _AGAIN)):
            # All calls wait for the same workers.
            self._alone_since = self._alone_since or time.monotonic()
            if time.monotonic() - self._alone_since > RETURN_TIMEOUT:
                raise LostError("all workers were lost.", _AGAIN)
            time.sleep(0.1)
        self._alone_since = None
        return threads


class _Lost(Exception):  # noqa: N818 - never leaves this module
    """The worker of a call has died."""
