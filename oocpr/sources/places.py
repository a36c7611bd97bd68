"""Where bytes come from: a file of this machine, a URL, or standard input."""

from __future__ import annotations

import glob
import io
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from oocpr.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import WriteableBuffer

_SKIP_BYTES = 1 << 16


class Place(Protocol):
    """Something with bytes in it; as text it is what messages call it.

    Attributes
    ----------
    name
        Its last part, with all suffixes.
    again
        Whether it can be opened more than once.
    """

    name: str
    again: bool

    @property
    def size(self) -> int | None:
        """Bytes of it, or None where nobody knows."""
        ...

    def open(self) -> BinaryIO:
        """Open it; raises InputError, or UsageError where a library is missing."""
        ...

    def beside(self, name: str) -> Place | None:
        """Give what lies beside it under another name, or None where there is nothing."""
        ...


AnyPath = str | os.PathLike[str] | Place
"""What a source of one file is given: its path on this machine, or a place that can be opened."""


class LocalFile:
    """A file of this machine.

    Parameters
    ----------
    path
        Where it is.

    Examples
    --------
    >>> place = LocalFile(Path("graphs/web.txt.gz"))
    >>> str(place), place.name, place.beside("web.labels.txt")
    ('graphs/web.txt.gz', 'web.txt.gz', None)
    """

    again = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def __str__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int | None:
        """Bytes of the file, None where it is no file."""
        return self.path.stat().st_size if self.path.is_file() else None

    def open(self) -> BinaryIO:
        """Open the file; InputError where that cannot be."""
        try:
            return self.path.open("rb")
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be opened: {error.strerror}.", "Check the path and its permissions."
            ) from error

    def beside(self, name: str) -> LocalFile | None:
        """Give a file of the same folder."""
        path = self.path.parent / name
        return LocalFile(path) if path.is_file() else None


class RemoteFile:
    """A file behind a URL, through the file systems of fsspec.

    Parameters
    ----------
    url
        Such as ``s3://bucket/links.txt.gz`` or ``https://host/links.parquet``.

    Examples
    --------
    >>> import fsspec
    >>> with fsspec.open("memory://graphs/web.txt", "wb") as file:
    ...     _ = file.write(b"0 1")
    >>> place = RemoteFile("memory://graphs/web.txt")
    >>> place.size, place.name
    (3, 'web.txt')
    >>> with place.open() as file:
    ...     file.read()
    b'0 1'
    """

    again = True

    def __init__(self, url: str) -> None:
        self._url = url
        self.name = url.partition("?")[0].rpartition("/")[2]

    def __str__(self) -> str:
        return self._url

    @cached_property
    def found(self) -> tuple[Any, str]:
        """The file system, and the path there."""
        return _file_system(self._url)

    @cached_property
    def size(self) -> int | None:
        """Bytes of the file, as far as its server says."""
        system, path = self.found
        with _naming(self._url):
            size = system.info(path).get("size")
        return None if size is None else int(size)

    def open(self) -> BinaryIO:
        """Open the file; InputError where that cannot be."""
        system, path = self.found
        with _naming(self._url):
            # Read from front to end, in few requests.
            return cast("BinaryIO", system.open(path, "rb", block_size=8 << 20, cache_type="readahead"))

    def beside(self, name: str) -> None:
        """Nothing is looked for unasked, as every look is a request."""


class StandardInput:
    """What another program writes to this one."""

    name = "stdin"
    size = None
    again = False

    def __init__(self) -> None:
        self._stream = Front(sys.stdin.buffer)

    def __str__(self) -> str:
        return "standard input"

    def head(self, most: int) -> bytes:
        """Look at its first bytes, which are still there afterwards."""
        return self._stream.head(most)

    def open(self) -> BinaryIO:
        """Give the bytes that are left."""
        return cast("BinaryIO", self._stream)

    def beside(self, name: str) -> None:
        """Nothing lies beside it."""


class Front(io.RawIOBase):
    """A stream whose first bytes can be looked at, and that counts what was taken.

    Parameters
    ----------
    stream
        Any readable stream.

    Examples
    --------
    >>> front = Front(io.BytesIO(b"0 1"))
    >>> front.head(2), front.read(), front.tell()
    (b'0 ', b'0 1', 3)
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._held = b""
        self._taken = 0

    def readable(self) -> bool:
        """Say that it is for reading."""
        return True

    def head(self, most: int) -> bytes:
        """Look at the first bytes that are left."""
        while len(self._held) < most and (more := self._stream.read(most - len(self._held))):
            self._held += more
        return self._held[:most]

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer from its front."""
        view = memoryview(buffer).cast("B")
        if self._held:
            count = min(len(view), len(self._held))
            view[:count] = self._held[:count]
            self._held = self._held[count:]
        else:
            count = cast("io.BufferedIOBase", self._stream).readinto(view)
        self._taken += count
        return count

    def skip(self, count: int) -> None:
        """Pass over bytes without reading them, where the stream allows."""
        held, self._held = self._held[:count], self._held[count:]
        self._taken += len(held)
        rest = count - len(held)
        if rest and self._stream.seekable():
            self._stream.seek(rest, io.SEEK_CUR)
            self._taken += rest
            return
        while rest and (read := len(self.read(min(rest, _SKIP_BYTES)) or b"")):
            rest -= read

    def tell(self) -> int:
        """Bytes taken so far."""
        return self._taken

    def close(self) -> None:
        """Close the stream too, unless it is standard input."""
        if not self.closed and self._stream is not getattr(sys.stdin, "buffer", None):
            self._stream.close()
        super().close()


def stamp(place: Place) -> list[str | int] | None:
    """Tell by what a file is known and whether it was changed, as JSON; None where nobody can tell.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     [name, size, time] = stamp(LocalFile(Path(file.name)))
    >>> size, stamp(StandardInput())
    (0, None)
    """
    if isinstance(place, LocalFile):
        status = place.path.stat()
        return [str(place.path.resolve()), status.st_size, status.st_mtime_ns]
    if isinstance(place, RemoteFile):
        system, path = place.found
        with _naming(str(place)):
            return [str(place), place.size or 0, str(system.ukey(path))]
    return None


def place_of(spec: str | os.PathLike[str] | Place) -> Place:
    """Find out what a path, a URL or ``-`` means.

    Examples
    --------
    >>> place_of("-").name, place_of("s3://bucket/web.txt").name, place_of("web.txt").again
    ('stdin', 'web.txt', True)
    """
    if not isinstance(spec, str | os.PathLike):
        return spec
    text = os.fspath(spec)
    if text == "-":
        return StandardInput()
    return RemoteFile(text) if "://" in text else LocalFile(Path(text))


def places_of(specs: Sequence[str | os.PathLike[str] | Place]) -> list[Place]:
    """Find the files that paths and patterns mean.

    Parameters
    ----------
    specs
        Paths, URLs, ``-``, or patterns with ``*``, ``?`` or ``[...]``, whose files come in the order of their
        names. A file whose name has such characters is found by its name.

    Raises
    ------
    InputError
        A pattern that no file fits.
    UsageError
        Standard input beside others.

    Examples
    --------
    >>> [str(place) for place in places_of(["a.txt", "b.txt"])]
    ['a.txt', 'b.txt']
    """
    places: list[Place] = []
    for spec in specs:
        text = os.fspath(spec) if isinstance(spec, str | os.PathLike) else ""
        if not glob.has_magic(text) or (("://" not in text) and Path(text).exists()):
            places.append(place_of(spec))
            continue
        if "://" in text:
            scheme = text.partition("://")[0]
            if scheme in ("http", "https"):  # a question mark belongs to the address there
                places.append(place_of(text))
                continue
            system, path = _file_system(text)
            with _naming(text):
                found = sorted(system.unstrip_protocol(name) for name in system.glob(path))
        else:
            found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - patterns may be absolute
        if not found:
            raise InputError(f"No file fits {text}.", "Check the pattern.")
        places += map(place_of, found)
    if len(places) > 1 and not all(place.again for place in places):
        raise UsageError("Standard input is one source.", "Give it alone, or files only.")
    return places


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec

        with _naming(url):
            system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(
            f"{url} cannot be read: {error}.", "Install what URLs need: pip install 'oocpr[cloud]'."
        ) from error
    return system, path


class _naming:  # noqa: N801 - used like a function
    """Turn what a file system says into an error that names the file."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # Each file system raises errors of its own library; all of them mean that the file cannot be had.
        if isinstance(error, ImportError | InputError | UsageError) or not isinstance(error, Exception):
            return
        cause = str(error) or type(error).__name__
        raise InputError(
            f"{self._url} cannot be opened: {' '.join(cause.split())}.", "Check the address and your access."
        ) from error
