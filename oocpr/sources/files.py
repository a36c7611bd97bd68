"""Bytes of files of this machine, of URLs and of standard input, decompressed while they are read."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from oocpr.errors import EXTRAS, InputError, OocprError, SetupError, UsageError, install_remedy, masked
from oocpr.system import server_errors, server_options

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class LocalFile:
    """A file of this machine; as text, as of all kinds of `InputFile`, it is what messages call it."""

    reopenable = True  # it can be opened more than once

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    def __str__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int | None:
        """Bytes of the file, compressed if it is; None if nobody knows."""
        return self.path.stat().st_size if os.path.isfile(self.path) else None  # noqa: PTH113 - see `sibling`

    def open(self) -> BinaryIO:
        """Open the file; InputError if that cannot be."""
        try:
            return self.path.open("rb")
        except (OSError, ValueError) as error:
            raise self._cannot(error) from error

    def _cannot(self, error: OSError | ValueError) -> InputError:
        reason = getattr(error, "strerror", None) or error
        return InputError(f"{self.path} cannot be opened: {reason}.", "Check the path and its permissions.")

    def check(self, *, folder: bool) -> None:
        """Raise InputError unless it is a file, or a folder if that is fine too."""
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            found = "does not exist"
        except (OSError, ValueError) as error:
            raise self._cannot(error) from error
        else:
            if stat.S_ISREG(mode) or (folder and stat.S_ISDIR(mode)):
                return
            found = "is a folder" if stat.S_ISDIR(mode) else "is no file"
        raise InputError(f"{self.path} {found}.", "Give the path of a graph's file.")

    def sibling(self, name: str) -> LocalFile | None:
        """Give the file of another name that lies beside it, if there is one."""
        path = self.path.parent / name
        # Path.is_file has errors for names that are too long, and folders that may not be looked into.
        return LocalFile(path) if os.path.isfile(path) else None  # noqa: PTH113


class FileLines(LocalFile):
    """The lines of an uncompressed text of this machine that begin from byte `start` to below byte `stop`."""

    def __init__(self, path: Path, start: int, stop: int) -> None:
        super().__init__(path)
        self._start, self._stop = start, stop

    @property
    def begins(self) -> bool:
        """Whether it has the first line of the file."""
        return self._start == 0

    @property
    def size(self) -> int:
        """Bytes of the range, about those of its lines."""
        return self._stop - self._start

    @property
    def lines_before(self) -> int:
        """Lines of the file that come before these; the file is read for it."""
        count = 0
        with super().open() as file:
            left = _line_start(file, self._start)
            file.seek(0)
            while left > 0 and (data := file.read(min(left, _COUNTED_BYTES))):
                count += data.count(b"\n")
                left -= len(data)
        return count

    def open(self) -> BinaryIO:
        """Open the file at its first line; InputError if that cannot be."""
        file = super().open()
        end = _line_start(file, self._stop)
        file.seek(_line_start(file, self._start))
        return cast("BinaryIO", _Limited(file, end))


_COUNTED_BYTES = 1 << 16


def _line_start(file: BinaryIO, at: int) -> int:
    """Find where the first line begins at or behind a byte; the end of the file if none does."""
    if at == 0:
        return 0
    at -= 1
    file.seek(at)
    # Not by lines, which may be longer than memory is large.
    while data := file.read(_COUNTED_BYTES):
        if (found := data.find(b"\n")) >= 0:
            return at + found + 1
        at += len(data)
    return at


class _Limited(io.RawIOBase):
    """A file from where it stands to a byte."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file = file
        self._left = end - file.tell()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._left)]
        count = cast("io.BufferedIOBase", self._file).readinto(view)
        self._left -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class RemoteFile:
    """A file behind a URL, such as ``s3://bucket/edges.txt.gz``, through the file systems of fsspec."""

    reopenable = True

    def __init__(self, url: str) -> None:
        self._url = url
        self.name = masked(url).partition("?")[0].rpartition("/")[2]

    def __str__(self) -> str:
        return masked(self._url)  # without what is secret in it

    @cached_property
    def found(self) -> tuple[Any, str]:
        """The file system of fsspec, and the path there."""
        return _file_system(self._url)

    @cached_property
    def size(self) -> int | None:
        """Bytes of the file, if its server says them."""
        system, path = self.found
        with _errors_naming(self._url):
            size = system.info(path).get("size")
        return None if size is None else int(size)

    def open(self) -> BinaryIO:
        """Open the file; InputError, LostError or SetupError if that cannot be."""
        system, path = self.found
        with _errors_naming(self._url):
            # Read from front to end, in few requests.
            opened = system.open(path, "rb", block_size=8 << 20, cache_type="readahead")
        return cast("BinaryIO", _RemoteStream(self._url, opened))

    def sibling(self, name: str) -> RemoteFile | None:
        """Give the file of another name that lies beside it, if it is there and may be read."""
        url = self._url.partition("?")[0].rpartition("/")[0] + f"/{name}"
        system, path = _file_system(url)
        try:
            found = system.isfile(path)
        except Exception:  # noqa: BLE001 - of any library; whoever may not list a folder is refused what is not there
            found = False
        return RemoteFile(url) if found else None


class _RemoteStream(io.RawIOBase):
    """An open file behind a URL, whose failures name it."""

    def __init__(self, url: str, stream: Any) -> None:
        self._url = url
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._stream.seekable())

    def read(self, size: int = -1, /) -> bytes:
        with _errors_naming(self._url):
            return cast("bytes", self._stream.read(size))

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        with _errors_naming(self._url):
            return int(self._stream.readinto(buffer))

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class StandardInput:
    """What another program writes to this one."""

    name = "stdin"
    size = None
    reopenable = False

    def __init__(self) -> None:
        if sys.stdin is None:
            raise InputError("standard input is closed.", "Send a graph to it, or name a file.")
        self._stream = PeekableStream(sys.stdin.buffer)

    def __str__(self) -> str:
        return "standard input"

    def head(self, size: int) -> bytes:
        """Look at its first bytes, which stay to be read."""
        return self._stream.head(size)

    def open(self) -> BinaryIO:
        """Give the bytes that are left."""
        return cast("BinaryIO", self._stream)

    def sibling(self, name: str) -> None:
        """Nothing lies beside it."""


InputFile = LocalFile | RemoteFile | StandardInput
AnyPath = str | os.PathLike[str] | InputFile


class PeekableStream(io.RawIOBase):
    """A readable stream whose first bytes can be looked at, and that counts what was read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._held = b""
        self._count = 0

    def readable(self) -> bool:
        """Say that it is for reading."""
        return True

    def head(self, size: int) -> bytes:
        """Look at the first bytes that are left."""
        while len(self._held) < size and (more := self._stream.read(size - len(self._held))):
            self._held += more
        return self._held[:size]

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer from its front."""
        view = memoryview(buffer).cast("B")
        if self._held:
            count = min(len(view), len(self._held))
            view[:count] = self._held[:count]
            self._held = self._held[count:]
        else:
            count = cast("io.BufferedIOBase", self._stream).readinto(view)
        self._count += count
        return count

    def tell(self) -> int:
        """Bytes read so far."""
        return self._count

    def close(self) -> None:
        """Close the stream too, unless it is standard input."""
        if not self.closed and self._stream is not getattr(sys.stdin, "buffer", None):
            self._stream.close()
        super().close()


def stamp(file: InputFile) -> list[str | int] | None:
    """Say which file it is and how old, as JSON; None if nobody can say."""
    if isinstance(file, LocalFile):
        status = file.path.stat()
        return [str(file.path.resolve()), status.st_size, status.st_mtime_ns]
    if isinstance(file, RemoteFile):
        system, path = file.found
        with _errors_naming(str(file)):
            return [str(file), file.size or 0, str(system.ukey(path))]
    return None


def input_file(spec: AnyPath) -> InputFile:
    """Take a path, a URL or ``-``."""
    if not isinstance(spec, str | os.PathLike):
        return spec
    text = os.fspath(spec)
    if text == "-":
        return StandardInput()
    return RemoteFile(text) if "://" in text else LocalFile(Path(text))


def input_files(specs: Sequence[AnyPath]) -> list[InputFile]:
    """Find the files that paths, URLs, ``-`` and patterns mean; those of a pattern ordered by name.

    A file whose name has the characters of a pattern is found by its name. Raises InputError for a pattern
    that no file fits, and UsageError for standard input beside others.
    """
    files: list[InputFile] = []
    for spec in specs:
        text = os.fspath(spec) if isinstance(spec, str | os.PathLike) else ""
        if not glob.has_magic(text) or (("://" not in text) and os.path.exists(text)):  # noqa: PTH110
            files.append(input_file(spec))
            continue
        if "://" in text:
            scheme = text.partition("://")[0]
            if scheme in ("http", "https"):  # a question mark belongs to the address there
                files.append(input_file(text))
                continue
            system, path = _file_system(text)
            with _errors_naming(text):
                found = sorted(system.unstrip_protocol(name) for name in system.glob(path))
        else:
            found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - patterns may be absolute
        if not found:
            raise InputError(f"No file fits {text}.", "Check the pattern.")
        files += map(input_file, found)
    if len(files) > 1 and not all(file.reopenable for file in files):
        raise UsageError("Standard input is one source.", "Give it alone, or files only.")
    return files


def check_apart(outputs: Sequence[str | os.PathLike[str]], inputs: Iterable[object]) -> None:
    """Refuse outputs that would replace what is read, lie inside it, or replace each other.

    So is standard input for two inputs. Inputs that are no paths are passed over; symbolic links to one file
    are that file. Raises UsageError.
    """
    read = [os.fspath(spec) for spec in inputs if isinstance(spec, str | os.PathLike)]
    if read.count("-") > 1:
        raise UsageError("standard input is given for two inputs.", "Name a file for all but one of them.")
    files = [
        found
        for text in read
        if "://" not in text
        for found in ([text] if Path(text).exists() else glob.glob(text, recursive=True))  # noqa: PTH207
    ]
    made: dict[str, str] = {}
    for output in (os.fspath(output) for output in outputs):
        if output == "-":
            continue
        whole = os.path.realpath(output)
        if whole in made and _is_file(whole):
            raise UsageError(f"{made[whole]} and {output} are one file.", "Name a file for each output.")
        made[whole] = output
        for file in files:
            inside = Path(file).is_dir() and Path(whole).is_relative_to(os.path.realpath(file))
            if inside or (Path(output).exists() and Path(output).samefile(file) and _is_file(whole)):
                raise UsageError(
                    f"{output} would be written {'inside' if inside else 'over'} {file}, which is read.",
                    "Name another place for it.",
                )


def _is_file(path: str) -> bool:
    """Whether what is written to a path replaces what is there, unlike with a device or a pipe."""
    return not Path(path).exists() or Path(path).is_file() or Path(path).is_dir()


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec

        with _errors_naming(url):
            system, path = fsspec.core.url_to_fs(url, **server_options(url, raw=True))
    except ImportError as error:
        known = any(package in str(error) for package in EXTRAS["cloud"].split())
        remedy = install_remedy("cloud") if known else "Install the library that is named."
        raise SetupError(f"{url} cannot be read: {error}.", remedy) from error
    return system, path


@contextmanager
def _errors_naming(url: str) -> Iterator[None]:
    """Turn errors of a file system, which are of its own library, into ours, which name the file."""
    try:
        with server_errors(url):
            yield
    except (ImportError, OocprError):
        raise
    except Exception as error:
        cause = str(error) or type(error).__name__
        raise InputError(
            f"{url} cannot be opened: {' '.join(cause.split())}.", "Check the address and your access."
        ) from error


_SKIPPABLE = tuple(bytes((first, 0x2A, 0x4D, 0x18)) for first in range(0x50, 0x60))
_MAGIC = {
    ".gz": (b"\x1f\x8b",),
    ".xz": (b"\xfd7zXZ\x00",),
    ".zst": (b"\x28\xb5\x2f\xfd", *_SKIPPABLE),  # pzstd writes the lengths of frames into some to be skipped
    ".bz2": (b"BZh",),
}
_READ_BYTES = 1 << 16
COMPRESSED = tuple(_MAGIC)  # suffixes of compressed files


def is_compressed(file: LocalFile) -> bool:
    """Tell whether a file is an archive, by its suffix or its first bytes."""
    with file.open() as opened:
        head = opened.read(8)
    return Path(file.name).suffix.lower() in _MAGIC or any(map(head.startswith, _MAGIC.values()))


def uncompressed_name(path: AnyPath) -> str:
    """Name of a file without its folder and the suffix of its compression.

    Examples
    --------
    >>> uncompressed_name("graphs/web.txt.gz")
    'web.txt'
    """
    name = input_file(path).name
    suffix = Path(name).suffix.lower()
    return name[: -len(suffix)] if suffix in _MAGIC else name


class _Decompressed(io.RawIOBase):
    """Streams of bz2 or xz, made by `make`, one after the other, as one.

    Python's own readers leave out what is no stream behind the first one, and with it all that follows a
    damaged block of an archive that was made by many threads.
    """

    def __init__(
        self, file: BinaryIO, make: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor]
    ) -> None:
        self._file = file
        self._make = make
        self._stream = make()
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while True:
            data = b""
            if self._stream.eof:
                # Streams of xz may be followed by zeros.
                data = self._stream.unused_data.lstrip(b"\0")
                while not data and (more := self._file.read(_READ_BYTES)):
                    data = more.lstrip(b"\0")
                if not data:
                    return 0
                self._stream = self._make()
            elif self._stream.needs_input:
                data = self._file.read(_READ_BYTES)
                if not data:
                    if not self._begun:
                        return 0
                    raise EOFError
            self._begun = True
            out = self._stream.decompress(data, len(view))
            if out:
                view[: len(out)] = out
                return len(out)


class ByteStream:
    """Bytes of a file, a URL or ``-``, read from front to end and decompressed on the way.

    The last suffix says how it is compressed, or else the first bytes do. `title` is what messages call it,
    `size` its compressed bytes. Raises InputError if there is no such file or no permission, or, while
    reading, for an archive that is damaged or ends in the middle.
    """

    def __init__(self, path: AnyPath) -> None:
        file = input_file(path)
        self.title = str(file)
        self._input = file
        self._suffix = Path(file.name).suffix.lower()
        self._file = PeekableStream(file.open())
        try:
            self.size = file.size
            self._stream = self._decompressed()
        except BaseException:
            self._file.close()
            raise

    @property
    def position(self) -> int:
        """Compressed bytes read so far."""
        return self._file.tell()

    @property
    def begins(self) -> bool:
        """Whether the first line is that of the file."""
        return not isinstance(self._input, FileLines) or self._input.begins

    @property
    def lines_before(self) -> int:
        """Lines of the file before the first one here."""
        return 0 if self.begins else cast("FileLines", self._input).lines_before

    def readinto(self, view: memoryview) -> int:
        """Fill a writable view from its front; returns how many bytes were there, 0 at the end."""
        try:
            with self._naming_failures():
                return int(self._stream.readinto(view))
        except EOFError as error:
            raise self._ends_early() from error
        except OocprError:
            raise
        # Those of Arrow are ValueErrors.
        except (OSError, ValueError, zlib.error, lzma.LZMAError) as error:
            if str(error).startswith("Truncated"):
                raise self._ends_early() from error
            raise InputError(
                f"{self.title} is damaged near byte {self.position:,}: {error}.",
                "Fetch or compress the file again.",
            ) from error

    @contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Name the file if its disk fails: such errors carry a number, those of decompressors don't."""
        try:
            yield
        except OSError as error:
            if isinstance(error, OocprError) or error.errno is None:
                raise
            raise InputError(
                f"{self.title} cannot be read near byte {self.position:,}: {error.strerror}.",
                "Check its disk, or fetch the file again.",
            ) from error

    def _ends_early(self) -> InputError:
        return InputError(
            f"{self.title} ends in the middle: the archive stops at byte {self.position:,}.",
            "Fetch the file again.",
        )

    def _decompressed(self) -> Any:
        with self._naming_failures():
            head = self._file.head(8)
        suffix = self._suffix
        if suffix not in _MAGIC:
            suffix = next((known for known, magic in _MAGIC.items() if head.startswith(magic)), "")
        elif head and not any(magic.startswith(head[: len(magic)]) for magic in _MAGIC[suffix]):
            unsuffixed = "Save it under a name" if isinstance(self._input, RemoteFile) else "Give it a name"
            raise InputError(
                f"{self.title} does not begin as a {suffix} archive does.",
                f"{unsuffixed} without the suffix if the file is not compressed, or fetch it again.",
            )
        buffered = io.BufferedReader(self._file, _READ_BYTES)
        if suffix == ".gz":
            return gzip.GzipFile(fileobj=buffered)
        if suffix == ".xz":
            return _Decompressed(buffered, lzma.LZMADecompressor)
        if suffix == ".bz2":
            return _Decompressed(buffered, bz2.BZ2Decompressor)
        if suffix == ".zst":
            import pyarrow as pa  # tells a cut archive from a whole one, which zstandard's reader does not

            return pa.CompressedInputStream(pa.PythonFile(buffered, "r"), "zstd")
        return buffered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._file.close()
