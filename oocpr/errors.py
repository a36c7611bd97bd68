"""Everything oocpr raises on purpose.

Each error says the cause and the way out, subclasses the built-in that a caller already catches, and
knows the exit code of the command line::

    OocprError                      1
    ├── UsageError      ValueError  2   a parameter, or a combination of them, that cannot be
    ├── InputError      ValueError  2   a source that cannot be read: file and line are named
    ├── NotAStoreError  ValueError  2   missing, foreign, unfinished or newer than this version
    ├── DoesNotFitError MemoryError 4   more memory or disk needed than was given
    └── DamagedError    OSError     5   a store whose bytes are not what was written

Not converging is no error: the result carries ``converged`` and the command line exits with 3.
An interruption (Ctrl-C) exits with 130.
"""

from __future__ import annotations


class OocprError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    cause
        One line: what is wrong, with the value or the place.
    remedy
        One line: what to do about it.
    """

    exit_code = 1

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}"


class UsageError(OocprError, ValueError):
    """A parameter, or a combination of parameters, that cannot be."""

    exit_code = 2


class InputError(OocprError, ValueError):
    """A source that cannot be read; the cause names the file and the line or byte."""

    exit_code = 2


class NotAStoreError(OocprError, ValueError):
    """A path that holds no finished graph store of a format this version reads."""

    exit_code = 2


class DoesNotFitError(OocprError, MemoryError):
    """More memory or disk is needed than was given; the cause has both numbers."""

    exit_code = 4


class DamagedError(OocprError, OSError):
    """A store whose bytes are not the bytes that were written."""

    exit_code = 5
