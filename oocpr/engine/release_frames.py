"""Errors that keep nothing of a run.

An error has the functions that it has left, and they what they worked with, gigabytes of a device or of the
host. A notebook keeps its last error, so a run that has failed would hold its memory while the next one wants
it.
"""

from __future__ import annotations

import sys
from traceback import clear_frames
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class NothingKept:
    """A context: an error that leaves it has nothing of the functions that were called inside.

    Examples
    --------
    >>> def work() -> None:
    ...     large = bytearray(10**6)
    ...     raise ValueError("too large")
    >>> try:
    ...     with NothingKept():
    ...         work()
    ... except ValueError as error:
    ...     print(error.__traceback__.tb_next.tb_frame.f_locals)
    {}
    """

    def __enter__(self) -> Self:
        # What the caller was dealing with already is the caller's.
        self._before = sys.exception()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while error is not None and error is not self._before:
            clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
