"""Files that are written behind a URL, such as ``s3://bucket/ranks.parquet``, through fsspec."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from oocpr.errors import OocprError, SetupError, UsageError, masked
from oocpr.system import server_errors, server_options


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL.

    >>> is_url("s3://bucket/ranks.parquet"), is_url("ranks.parquet"), is_url(Path("ranks.csv"))
    (True, False, False)
    """
    return isinstance(path, str) and "://" in path


def check_remote(url: str) -> None:
    """Refuse, before any work is done, a URL that nothing could be written to after it.

    Raises UsageError, SetupError for credentials or packages that are missing, or LostError.
    """
    with _naming(url):
        system, place = _opened(url)
        # What may be listed may not be written; the whole is written later, or nothing.
        probe = f"{place}.partial-{os.getpid()}-{secrets.token_hex(4)}"
        system.pipe_file(probe, b"")
        system.rm_file(probe)


@contextmanager
def local_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield where to write the file `path`: there, or, of a URL, on this machine, from where it is sent.

    It is sent once the block ends without an error. Raises as `check_remote`.
    """
    if not is_url(path):
        yield Path(path)
        return
    url = os.fspath(path)
    with TemporaryDirectory(prefix="oocpr-written-") as folder:
        file = Path(folder, url.rpartition("/")[2])
        yield file
        with _naming(url):
            system, place = _opened(url)
            system.put_file(str(file), place)


def _opened(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    system, place = url_to_fs(url, **server_options(url))
    return system, str(place)


@contextmanager
def _naming(url: str) -> Iterator[None]:
    """Raise errors of this package for what a server, or the way to it, does wrong."""
    try:
        with server_errors(masked(url), "written"):
            yield
    except OocprError:
        raise
    except ImportError as error:
        raise SetupError(
            f"{masked(url)} cannot be written: {error}.", "Install oocpr[cloud], or name a file here."
        ) from error
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(
            f"{masked(url)} cannot be written: {why}.", "Name a place where you may write."
        ) from error
