"""What errors hold of a process."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from traceback import clear_frames
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def release_frames() -> Iterator[None]:
    """Let an error that leaves the block hold nothing of the functions that were called inside.

    An error has the functions that it has left, and they what they worked with, gigabytes of a device or of
    the host. A notebook keeps its last error, so a run that has failed would hold its memory while the next
    one wants it.
    """
    # What the caller was dealing with already is the caller's.
    before = sys.exception()
    try:
        yield
    except BaseException as error:
        left: BaseException | None = error
        while left is not None and left is not before:
            clear_frames(left.__traceback__)
            left = left.__cause__ or left.__context__
        raise
