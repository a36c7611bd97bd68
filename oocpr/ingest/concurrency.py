"""Work that threads do for a caller who does not wait for each piece of it."""

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


class BoundedExecutor:
    """Does pieces of work in any order, a bounded number of them at a time.

    Parameters
    ----------
    pool
        Works; None for the caller's own thread.
    most
        Pieces of work that may be waiting or in work.

    Examples
    --------
    >>> done = []
    >>> crew = BoundedExecutor(None, 1)
    >>> crew.do(done.append, 5)
    >>> crew.finish()
    >>> done
    [5]
    """

    def __init__(self, pool: Executor | None, most: int) -> None:
        self._pool = pool
        self._most = most
        self._waiting: deque[Future[None]] = deque()

    def do(self, work: Callable[..., None], *args: Any) -> None:
        """Have work done; raises what an earlier piece of it raised."""
        if self._pool is None:
            work(*args)
            return
        while len(self._waiting) >= self._most:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(work, *args))

    def finish(self) -> None:
        """Wait until all is done; raises what a piece of it raised."""
        while self._waiting:
            self._waiting.popleft().result()


_END = object()


@contextmanager
def prefetch(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Take items from an iterator one ahead of who uses them.

    The thread holds one item while another is used. What the iterator raises, whoever uses the items gets.
    Leaving the context closes the iterator, if that can be closed, and ends the thread.

    Parameters
    ----------
    items
        Used in the thread only.

    Examples
    --------
    >>> with prefetch(iter([1, 2])) as items:
    ...     list(items)
    [1, 2]
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
