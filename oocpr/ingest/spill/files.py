"""Nameless files for what does not fit in memory, and the errors of a full disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from oocpr.errors import DoesNotFitError, OocprError, UsageError
from oocpr.system import is_disk_full
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path

    from numpy.typing import NDArray

_REMEDY = "Free some, or name a folder on a larger disk for the temporary files or for the store."


@contextmanager
def disk_errors(folder: Path, writing: int) -> Iterator[None]:
    """Turn the system's error for a full disk, quota or file limit into DoesNotFitError, in bytes."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DoesNotFitError(
            f"{folder} takes no {format_bytes(writing)} more ({format_bytes(free_bytes(folder))} free): "
            f"{error.strerror}.",
            _REMEDY,
        ) from error


@contextmanager
def making_files(folder: Path) -> Iterator[None]:
    """Name the folder in which no file can be made: UsageError, or DoesNotFitError if the disk is full."""
    try:
        with disk_errors(folder, 0):
            yield
    except OSError as error:
        if isinstance(error, OocprError):
            raise
        raise UsageError(
            f"{folder} takes no temporary files: {error.strerror}.", "Name another folder for them."
        ) from error


def free_bytes(folder: Path) -> int:
    """Bytes of disk that are free for files in a folder."""
    return shutil.disk_usage(folder).free


def require_disk(folder: Path, needed: int, sureness: str = "") -> None:
    """Raise DoesNotFitError unless `folder` has room for `needed` more bytes."""
    free = free_bytes(folder)
    if needed > free:
        raise DoesNotFitError(
            f"{folder} needs {sureness}{format_bytes(needed)} for temporary files, "
            f"{format_bytes(free)} are free.",
            _REMEDY,
        )


class SpillFile:
    """A file without a name: the system frees it when it is closed, however the process ends.

    Up to `memory` bytes at its front stay in memory if it is written from front to end: `kept` of them so
    far, the first bytes of the array `memory`.
    """

    def __init__(self, folder: Path, memory: int = 0) -> None:
        self.folder = folder
        self.kept = 0
        # The system refuses to promise more than it has.
        self._max_kept = min(memory, (os.sysconf("SC_PHYS_PAGES") - 1) * mmap.PAGESIZE)
        # Pages that are never written never become resident.
        self._map = mmap.mmap(-1, self._max_kept + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # not every system has large pages
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.memory = np.frombuffer(self._map, np.uint8)
        self._end = 0
        self._lock = threading.Lock()
        with making_files(folder):
            self._file: FileIO = self._open()

    def _open(self) -> FileIO:
        return tempfile.TemporaryFile(dir=self.folder, buffering=0)

    def reserve(self, size: int) -> tuple[int, NDArray[np.uint8] | None]:
        """Reserve bytes at the end, from any thread.

        Returns the place of the first, and a view to fill if they are in memory; else they are to be written.
        """
        with self._lock:
            at = self._end
            self._end += size
            if at == self.kept and self._end <= self._max_kept:
                self.kept = self._end
                return at, self.memory[at : self._end]
            # What lies in memory stays what it is: from here on all goes to the file.
            self._max_kept = self.kept
            return at, None

    def write(self, at: int, array: NDArray[Any]) -> None:
        """Write the contiguous `array` from byte `at` on; DoesNotFitError if the disk is full."""
        data = array.view(np.uint8)
        with self._lock:
            if at == self.kept and at + data.size <= self._max_kept:
                self.kept += data.size
            elif at + data.size > self.kept:
                self._max_kept = self.kept
            self._end = max(self._end, at + data.size)
        inside = max(0, min(data.size, self.kept - at))
        self.memory[at : at + inside] = data[:inside]
        if inside < data.size:
            self._write_file(at + inside, data[inside:].data)

    @property
    def size(self) -> int:
        """Bytes written or reserved so far."""
        return self._end

    @property
    def room(self) -> int:
        """Bytes that may still be kept in memory."""
        return max(0, self._max_kept - self.kept)

    def _write_file(self, at: int, data: memoryview) -> None:
        with disk_errors(self.folder, data.nbytes):
            while data:
                written = os.pwrite(self._file.fileno(), data, at)
                at += written
                data = data[written:]

    def read(self, at: int, out: NDArray[Any]) -> None:
        """Fill the contiguous `out` from byte `at` on."""
        view = out.view(np.uint8)
        inside = max(0, min(view.size, self.kept - at))
        view[:inside] = self.memory[at : at + inside]
        at += inside
        data = view[inside:].data
        while data:
            got = os.preadv(self._file.fileno(), [data], at)
            if got == 0:
                raise EOFError(f"a temporary file in {self.folder} ends at byte {at}")
            at += got
            data = data[got:]

    def read_array(self, dtype: type[np.generic], first: int, count: int) -> NDArray[Any]:
        """Read `count` entries of a file of entries of one type, from entry `first` on."""
        out = np.empty(count, dtype)
        self.read(first * out.itemsize, out)
        return out

    def shed(self, least: int | None = None) -> None:
        """Move `least` bytes or more from memory to the disk, by default all, and keep no more from now on.

        Nobody else may be using the file meanwhile.
        """
        freed = self.kept if least is None else min(self.kept, max(0, least))
        kept = (self.kept - freed) // mmap.PAGESIZE * mmap.PAGESIZE
        if kept < self.kept:
            self._write_file(kept, self.memory[kept : self.kept].data)
            self._map.madvise(mmap.MADV_DONTNEED, kept)
        self._max_kept = self.kept = kept

    def close(self) -> None:
        """Give disk space and memory back."""
        self._max_kept = self.kept = 0
        self.memory = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # somebody looks at it still; it goes when they do
            self._map.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SpillDir:
    """The temporary files of an import, in an existing folder: whatever ends it, none is left open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[SpillFile] = []

    def file(self, memory: int = 0, name: str | None = None) -> SpillFile:  # noqa: ARG002 - for durable files
        """Make a file, the first `memory` bytes of it in memory; who is done with it early may close it.

        `name` is what it is called if files are kept for another process; None if that needs none of it.
        """
        self._files.append(SpillFile(self.folder, memory))
        return self._files[-1]

    def drop(self, file: SpillFile) -> None:
        """Close a file that nobody needs any more."""
        self._files.remove(file)
        file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()
