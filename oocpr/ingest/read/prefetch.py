"""Work that is done ahead, in a thread of its own, while its results are used."""

from __future__ import annotations

import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    T = TypeVar("T")

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
