"""A time limit of steps that do not look at the clock: a signal that raises an error."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ALARM_INTERVAL = 0.01
"""Seconds after which the signal comes again, since what is raised may be lost."""

_GOING_ON = (
    *("logging", "weakref", "_weakrefset", "importlib._bootstrap", "importlib._bootstrap_external"),
    *("numba.core.codegen", "numba.core.caching"),
)
"""Modules that write what is raised in them, and go on, or whose callers do without what they import; the one
that hands code to LLVM, which calls back for code that nobody knows if that is broken off; and the one that
reads code from files, which Python warns of if one is left open."""

_WAITING = ("concurrent.futures._base", "wait")
"""The function in which zarr waits for what it has handed to its thread; a call that is broken off before
leaves coroutines that nobody awaits, which Python warns of."""


@contextmanager
def ended_at(deadline: float, late: Exception) -> Iterator[None]:
    """Raise `late` in the block, which the main thread runs, when `time.monotonic` has come to `deadline`."""

    def stop(_: int, frame: FrameType | None) -> None:
        # The signal comes again, until the block is left, since what is raised may be lost.
        if not loses_exceptions(frame) and not is_handled(late):
            raise late

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, deadline - time.monotonic()), _ALARM_INTERVAL)
    try:
        yield
    except Exception as error:
        # A lock that is left between two of its steps raises an error of its own.
        if error is not late and _has_come_of(late, error):
            raise late from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def loses_exceptions(frame: FrameType | None) -> bool:
    """Whether an error is lost: the frame or a caller logs, destroys, imports, compiles or calls zarr."""
    waits = False
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in _GOING_ON or frame.f_code.co_name == "__del__":
            return True
        waits |= (module, frame.f_code.co_name) == _WAITING
        if module.startswith("zarr.") and not waits:
            return True
        if frame.f_code.co_argcount:
            first = frame.f_locals.get(frame.f_code.co_varnames[0])
            # What a weak reference calls gets it, and what it referred to is gone.
            if isinstance(first, weakref.ref) and first() is None:
                return True
        frame = frame.f_back
    return False


def is_handled(error: BaseException) -> bool:
    """Whether this thread is cleaning up after an error, or handles one that has come of it."""
    return _has_come_of(error, sys.exc_info()[1])


def _has_come_of(error: BaseException, later: BaseException | None) -> bool:
    """Whether a later error is that one, or was raised while that one was handled."""
    while later is not None and later is not error:
        later = later.__cause__ or later.__context__
    return later is not None
