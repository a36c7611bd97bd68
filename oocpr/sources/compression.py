"""Bytes of a file, decompressed while they are read.

What a file is compressed with follows from its last suffix, and from its first bytes if that says nothing.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from oocpr.errors import InputError
from oocpr.sources.locations import Front, input_file

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from _typeshed import WriteableBuffer

    from oocpr.sources.locations import InputFile

_MAGIC = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\x00", ".zst": b"\x28\xb5\x2f\xfd", ".bz2": b"BZh"}
_READ_BYTES = 1 << 16
COMPRESSED = tuple(_MAGIC)
"""Suffixes of compressed files that are read."""


def uncompressed_name(path: str | os.PathLike[str] | InputFile) -> str:
    """Name of a file without its folder and without the suffix of its compression.

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

    Python's own readers take what is no stream behind the first one for rubbish and leave it out, and with it
    all that follows a damaged block of an archive that was made by many threads.
    """

    def __init__(
        self, file: BinaryIO, make: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor]
    ) -> None:
        self._file = file
        self._make = make
        self._stream = make()
        self._begun = False

    def readable(self) -> bool:
        """Say that it is for reading."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill a buffer from its front."""
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
    """Bytes of a file, a URL or ``-`` opened for reading from front to end, decompressed on the way.

    `title` is what messages call it, `size` its bytes as they lie there, None if nobody knows. The ``with``
    statement closes it. Raises InputError if there is no such file or no permission, or, while reading, for
    an archive that is damaged or ends in the middle.
    """

    def __init__(self, path: str | os.PathLike[str] | InputFile) -> None:
        file = input_file(path)
        self.title = str(file)
        self._suffix = Path(file.name).suffix.lower()
        self._file = Front(file.open())
        try:
            self.size = file.size
            self._stream = self._decompressed()
        except BaseException:
            self._file.close()
            raise

    @property
    def position(self) -> int:
        """Bytes taken from where they lie, compressed."""
        return self._file.tell()

    def readinto(self, view: memoryview) -> int:
        """Fill a writable view from its front; returns how many bytes were there, 0 at the end."""
        try:
            return self._stream.readinto(view)  # type: ignore[attr-defined,no-any-return]
        except EOFError as error:
            raise self._ends_early() from error
        except (OSError, ValueError, zlib.error, lzma.LZMAError) as error:
            # Errors of the disk carry a number, those of decompressors don't; those of Arrow are ValueErrors.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            if str(error).startswith("Truncated"):
                raise self._ends_early() from error
            raise InputError(
                f"{self.title} is damaged near byte {self.position:,}: {error}.",
                "Fetch or pack the file again.",
            ) from error

    def _ends_early(self) -> InputError:
        return InputError(
            f"{self.title} ends in the middle: the archive stops at byte {self.position:,}.",
            "Fetch the file again.",
        )

    def _decompressed(self) -> BinaryIO:
        head = self._file.head(8)
        suffix = self._suffix
        if suffix not in _MAGIC:
            suffix = next((known for known, magic in _MAGIC.items() if head.startswith(magic)), "")
        elif head and not _MAGIC[suffix].startswith(head[: len(_MAGIC[suffix])]):
            raise InputError(
                f"{self.title} does not begin as a {suffix} archive does.",
                "Take the suffix off if the file is not packed, or fetch it again.",
            )
        buffered = io.BufferedReader(self._file, _READ_BYTES)
        if suffix == ".gz":
            return cast("BinaryIO", gzip.GzipFile(fileobj=buffered))
        if suffix == ".xz":
            return cast("BinaryIO", _Decompressed(buffered, lzma.LZMADecompressor))
        if suffix == ".bz2":
            return cast("BinaryIO", _Decompressed(buffered, bz2.BZ2Decompressor))
        if suffix == ".zst":
            import pyarrow as pa  # tells a cut archive from a whole one, which zstandard's reader does not

            return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(buffered, "r"), "zstd"))
        return buffered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._file.close()
