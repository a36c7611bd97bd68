"""Threads that work on one tile together and meet at barriers inside compiled code.

A tile takes a millisecond or less and has several phases. Handing each phase to a pool would cost more than
some of them, and handing each tile to a pool would still cost a fifth of it: every thread would wait for
Python's lock and take the arguments apart. So a work is handed over in compiled code (see `mailbox`), and its
threads meet there.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

from numba import int64, uint32

from oocpr.engine.cpu.mailbox import FOLLOWING, PATIENCE, PRESENT, add, follow, make_board, nap, now
from oocpr.jit import inner
from oocpr.system import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

# A part that ends within some tenths of a millisecond is not worth a nap, which lasts nearly as long; but who
# may be waiting for this very processor is.
_PATIENT, _HASTY = 500_000, 5_000
_NAP = 20


@inner()
def meet(counter, team, met):
    """Wait until all `team` threads have come for the time number `met`, counted from 1.

    Looks for them as often as the board says, then naps: the other may be waiting for this very processor.
    """
    if team == 1:
        return
    add(counter, int64(1))
    tries = 0
    while now(counter) < team * met:
        tries += 1
        if tries > counter[PATIENCE]:
            nap(uint32(_NAP))


@inner()
def claim(counter):
    """Take the next number, from 0 on, that no other thread has taken."""
    return add(counter, int64(1))


MOST_THREADS = 16
"""A pass over R-MAT of 131 M links, by out-degree, took 176, 100, 59 and 43 ms with 2, 4, 8 and 16 threads on
16 cores; with more nobody has measured it. Sweeps inside a tile have work for REGIONS of them."""


def usual_threads() -> int:
    """Threads of a team where the caller does not say: as many as there are cores, MOST_THREADS at most."""
    return min(usable_cores(), MOST_THREADS)


class Team:
    """A fixed number of threads, the caller's own among them.

    Parameters
    ----------
    size
        Threads.

    Examples
    --------
    >>> import numpy as np
    >>> from oocpr.engine.cpu.mailbox import by_all
    >>> from oocpr.jit import entry
    >>> @inner(cache=False)
    ... def _part(me, team, counter, seen):
    ...     seen[me] = team
    >>> @entry(cache=False)
    ... def work(board, *args):
    ...     return by_all(board, _part, args)
    >>> seen = np.zeros(2, np.int64)
    >>> Team(2).run(work, seen)
    >>> bool(seen[0] == (seen > 0).sum())
    True
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._board = make_board(size - 1, _PATIENT if size <= usable_cores() else _HASTY)
        self._pool = ThreadPoolExecutor(size - 1, thread_name_prefix="oocpr-team") if size > 1 else None
        self._others: list[Future[None] | None] = [None] * (size - 1)
        self._lock = Lock()

    def run(self, work: Callable[..., int], *args: Any) -> None:
        """Call ``work(board, *args)``, which has its part done by all threads that come in time.

        Parameters
        ----------
        work
            Compiled; calls `oocpr.engine.cpu.mailbox.by_all`, whose result it returns.
        """
        # A board has room for one work.
        with self._lock:
            if self._pool is not None and self._board[PRESENT] < self.size - 1:
                self._fetch(self._pool)
            if work(self._board, *args):
                raise RuntimeError("a thread could not do its part.")

    def _fetch(self, pool: ThreadPoolExecutor) -> None:
        """Send the threads to the board that are in Python."""
        # Here, since what cannot be compiled in another thread would be told too late.
        follow.compile(FOLLOWING)
        for number, other in enumerate(self._others):
            if other is None or other.done():
                if other is not None:
                    other.result()
                self._others[number] = pool.submit(follow, self._board, number)
