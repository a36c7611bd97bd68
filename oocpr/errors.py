"""Everything oocpr raises on purpose: the cause, the remedy, and the exit code of the command line.

Each error is also of the built-in class that a caller already catches. Not converging is no error: the result
carries ``converged`` and the command line exits with 3. An interruption (Ctrl-C) exits with 130.
"""

from __future__ import annotations

import re
from typing import Any

_SECRETS = (
    # User and password before the host; a secret of S3 may have slashes.
    re.compile(r"(?<=://)(?:[^/\s:@]*:[^\s@]*|[^/\s@]+)@"),
    re.compile(
        r"(?<=[?&;])([^\s=&;]*(?:token|sig|secret|key|pass|pwd|credential|auth)[^\s=&;]*=)[^\s&;#'\"]+", re.I
    ),
)


def masked(text: str) -> str:
    """Text for people, without the passwords, keys and signatures of the URLs in it.

    >>> masked("https://me:secret@host/web.txt?v=2&X-Amz-Signature=0a1b cannot be opened")
    'https://***@host/web.txt?v=2&X-Amz-Signature=*** cannot be opened'
    """
    user, query = _SECRETS
    return query.sub(r"\1***", user.sub("***@", text))


class OocprError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    cause, remedy
        One line each: what is wrong, with the value or the place, and what to do about it.
    """

    exit_code = 1

    ranks: Any = None
    """The `oocpr.Ranks` of a run that was done before the error; None for none."""

    def __init__(self, cause: str, remedy: str) -> None:
        self.cause = masked(cause)
        self.remedy = masked(remedy)
        super().__init__(self.cause, self.remedy)

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

    def __init__(
        self, cause: str, remedy: str = "Import the graph again, or restore the store from a copy."
    ) -> None:
        super().__init__(cause, remedy)


class ReplacedError(OocprError, OSError):
    """A path that holds another graph than the one that was opened, or that other workers have there."""

    exit_code = 6

    def __init__(self, cause: str, remedy: str = "Open the graph again, or run the command again.") -> None:
        super().__init__(cause, remedy)


class LostError(OocprError, OSError):
    """A worker, a scheduler or an object store that does not answer any more; a retry may succeed."""

    exit_code = 7


class SetupError(OocprError, RuntimeError):
    """A worker or a machine that lacks the store, the credentials or a package, so that a retry fails too."""

    exit_code = 8


class RunningError(OocprError, RuntimeError):
    """A job that another process runs, or may run."""

    exit_code = 9


class LimitError(OocprError, ValueError):
    """Ranks that differ from the last ones by more than their job allows; these stay published."""

    exit_code = 10


class NotConvergedError(OocprError, ArithmeticError):
    """A job whose ranks have not reached its tolerance, and are not published for it."""

    exit_code = 3


class StoppedError(OocprError, TimeoutError):
    """A run whose time was up; a checkpoint has what it had come to."""

    exit_code = 130


EXTRAS = {"cloud": "fsspec aiohttp s3fs", "cuda13": "cupy-cuda13x", "notebook": "matplotlib"}
"""Packages that parts of this one need, by the name of the extra that has them."""


def install_remedy(extra: str) -> str:
    """Say how to install what a part of this package needs; `extra` is a key of `EXTRAS`."""
    return f"Install it: pip install {EXTRAS[extra]}, or in a clone of oocpr pip install '.[{extra}]'."
