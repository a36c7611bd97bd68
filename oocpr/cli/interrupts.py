"""Signals that end a command as Ctrl-C does, wherever in it they come."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oocpr.signals import ENDING, handling, loses_exceptions

if TYPE_CHECKING:
    from types import FrameType

_INTERVAL = 0.01
"""Seconds after which a signal comes again that could not end the command."""


class _Interrupts:
    """Raises KeyboardInterrupt for signals, and again for those whose KeyboardInterrupt was lost."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.waiting = False  # a signal is to come again
        self._timer: threading.Timer | None = None
        self._show = sys.unraisablehook

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or have the signal come again; a second one raises it anywhere."""
        self.asked.append(number)
        if not self.waiting and loses_exceptions(frame):
            self._send_later(number)
        else:
            signal.default_int_handler(number, frame)

    def unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Take what Python would show and forget, as of callbacks of ctypes, which C code calls."""
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._show(lost)
        elif not self.waiting:
            # None of ours has come where a run with checkpoints has a handler of its own.
            numbers = (*reversed(self.asked), *ENDING)
            self._send_later(next(one for one in numbers if signal.getsignal(one) != signal.SIG_IGN))

    def _send_later(self, number: int) -> None:
        # Not by a signal of the clock, which time limits of jobs have.
        self.waiting = True
        self._timer = threading.Timer(_INTERVAL, self._send, (number,))
        self._timer.daemon = True
        self._timer.start()

    def _send(self, number: int) -> None:
        self.waiting = False
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    def close(self) -> None:
        """Have nothing come any more."""
        if self._timer is not None:
            self._timer.cancel()
            # A second signal may have broken off its start.
            if self._timer.is_alive():
                self._timer.join()


@contextlib.contextmanager
def stopping_like_ctrl_c() -> Iterator[list[int]]:
    """Let a closed terminal and a batch system's end of time clean up as Ctrl-C does; gives what has come."""
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    interrupts = _Interrupts()
    usual = (signal.SIG_DFL, signal.default_int_handler)
    show = sys.unraisablehook
    with handling(interrupts.handle, [each for each in ENDING if signal.getsignal(each) in usual]):
        try:
            sys.unraisablehook = interrupts.unraisable
            yield interrupts.asked
        finally:
            interrupts.close()
            sys.unraisablehook = show
    if interrupts.waiting:
        raise KeyboardInterrupt
