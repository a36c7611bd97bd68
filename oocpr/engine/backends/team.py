"""Threads that work on one tile together and meet at barriers inside compiled code.

A tile takes a millisecond or less and has several phases; handing each phase to a pool would cost more than
some of them. So each thread enters compiled code once a tile and waits there for the others.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import int64, types, uint32
from numba.extending import intrinsic

from oocpr.jit import inner

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE = 100_000
_NAP = 20

_sleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@intrinsic
def _add(typingctx: Any, counter: Any, amount: Any) -> Any:  # noqa: ARG001
    """Add to ``counter[0]`` in one indivisible step; returns what it was."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, b, args[0])
        return b.atomic_rmw("add", array.data, args[1], "seq_cst")

    return types.int64(counter, types.int64), codegen


@intrinsic
def _now(typingctx: Any, counter: Any) -> Any:  # noqa: ARG001
    """Read ``counter[0]`` as the last writer left it."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, b, args[0])
        return b.load_atomic(array.data, "seq_cst", 8, typ=ir.IntType(64))

    return types.int64(counter), codegen


@inner()
def meet(counter, team, met):
    """Wait until all `team` threads have come for the time number `met`, counted from 1.

    Spins for some tenths of a millisecond, then naps: the other may be waiting for this very processor.
    """
    if team == 1:
        return
    _add(counter, int64(1))
    tries = 0
    while _now(counter) < team * met:
        tries += 1
        if tries > _PATIENCE:
            _sleep(uint32(_NAP))


@inner()
def claim(counter):
    """Take the next number, from 0 on, that no other thread has taken."""
    return _add(counter, int64(1))


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Team:
    """A fixed number of threads, the caller's own among them.

    Parameters
    ----------
    size
        Threads.

    Examples
    --------
    >>> team, seen = Team(2), []
    >>> team.run(lambda me, size, counter: seen.append((me, size)))
    >>> sorted(seen)
    [(0, 2), (1, 2)]
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size - 1, thread_name_prefix="oocpr-team") if size > 1 else None
        self._lock = Lock()

    def run(self, work: Callable[..., Any], *args: Any) -> None:
        """Call ``work(me, size, counter, *args)`` in every thread; returns when all have returned."""
        counter = np.zeros(2, np.int64)  # of `meet`, and of what `claim` deals out
        if self._pool is None:
            work(0, 1, counter, *args)
            return
        # Two runs whose members were queued in turns would each hold threads that wait for the other's.
        with self._lock:
            others = [self._pool.submit(work, me, self.size, counter, *args) for me in range(1, self.size)]
        work(0, self.size, counter, *args)
        for other in others:
            other.result()
