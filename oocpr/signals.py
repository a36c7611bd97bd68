"""Signals that end a process: who handles them, and where what they raise would be lost.

Apart from `oocpr.system`, which takes time to load: until a command handles them, Ctrl-C shows where it was.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which people and systems end a process."""

_GOING_ON = (
    *("logging", "weakref", "_weakrefset", "importlib._bootstrap", "importlib._bootstrap_external"),
    *("numba.core.codegen", "numba.core.caching"),
    "oocpr.store.atomic",
)
"""Modules that write what is raised in them, and go on, or whose callers do without what they import; the one
that hands code to LLVM, which calls back for code that nobody knows if that is broken off; and the one that
reads code from files, which Python warns of if one is left open. Last ours that makes and removes temporary
files, which nobody would know of."""

_WAITING = ("concurrent.futures._base", "wait")
"""The function in which zarr waits for what it has handed to its thread; a call that is broken off before
leaves coroutines that nobody awaits, which Python warns of."""


@contextlib.contextmanager
def handling(
    handler: Callable[[int, FrameType | None], object], numbers: Iterable[int] = ENDING
) -> Iterator[None]:
    """Have signals handled so meanwhile, if this is the main thread: no other may say how."""
    ours = numbers if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in ours}
    try:
        for number, current in before.items():
            # What nohup has set to be ignored stays ignored.
            if current is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        for number, current in before.items():
            signal.signal(number, current)


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
