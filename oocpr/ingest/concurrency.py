"""Work in other threads: a bounded number of pieces at a time, or items of an iterator one ahead."""

from __future__ import annotations

import queue
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor, Future

    T = TypeVar("T")

_END = object()


class BoundedExecutor:
    """Runs calls in any order, at most `limit` of them queued or running; without a pool, at once."""

    def __init__(self, pool: Executor | None, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._pending: deque[Future[None]] = deque()

    def submit(self, function: Callable[..., None], *args: Any) -> None:
        """Have a function called; raises what an earlier call raised."""
        if self._pool is None:
            function(*args)
            return
        while len(self._pending) >= self._limit:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(function, *args))

    def finish(self) -> None:
        """Wait until all calls have ended; raises what one of them raised."""
        while self._pending:
            self._pending.popleft().result()


@contextmanager
def prefetch(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Take items from an iterator, in a thread of its own, one ahead of who uses them.

    What the iterator raises, whoever uses the items gets. Leaving the context closes the iterator, if that
    can be closed, and ends the thread.
    """
    ready: queue.Queue[object] = queue.Queue(1)
    wanted = threading.Semaphore(1)
    stopped = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                wanted.acquire()
                if stopped.is_set():
                    break
                item = next(items, _END)
                ready.put(item)
                if item is _END:
                    break
        except BaseException as error:  # noqa: BLE001 - raised again where the items are used
            failed.append(error)
            ready.put(_END)
        finally:
            if hasattr(items, "close"):
                items.close()

    def taken() -> Iterator[T]:
        while (item := ready.get()) is not _END:
            wanted.release()
            yield item  # type: ignore[misc]
        if failed:
            raise failed[0]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield taken()
    finally:
        stopped.set()
        wanted.release()
        thread.join()
