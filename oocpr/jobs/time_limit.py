"""A time limit of steps that do not look at the clock: a signal that raises an error."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from oocpr.signals import loses_exceptions

_ALARM_INTERVAL = 0.01
"""Seconds after which the signal comes again, since what is raised may be lost."""


class _Late(BaseException):
    """What the signal raises anywhere: no code takes it for a failure of its own, as it does an OSError."""


def call_until(deadline: float, call: Callable[[], None], late: Exception) -> None:
    """Call in the main thread; raise `late` if that lasts until `time.monotonic` has come to `deadline`."""
    ended = _Late()

    def stop(_: int, frame: FrameType | None) -> None:
        # The signal comes again, until the call is left, since what is raised may be lost.
        if not loses_exceptions(frame) and not is_handled(ended):
            raise ended

    before = signal.signal(signal.SIGALRM, stop)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, deadline - time.monotonic()), _ALARM_INTERVAL)
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    except (Exception, _Late) as error:
        # A lock that is left between two of its steps raises an error of its own.
        if _has_come_of(ended, error):
            raise late from None
        raise


def is_handled(error: BaseException) -> bool:
    """Whether this thread is cleaning up after an error, or handles one that has come of it."""
    return _has_come_of(error, sys.exc_info()[1])


def _has_come_of(error: BaseException, later: BaseException | None) -> bool:
    """Whether a later error is that one, or was raised while that one was handled."""
    while later is not None and later is not error:
        later = later.__cause__ or later.__context__
    return later is not None
