"""Work that threads do for a caller who does not wait for each piece of it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future


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
