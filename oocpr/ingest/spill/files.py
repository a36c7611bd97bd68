"""Nameless files for what does not fit in memory, and the errors of a full disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import DoesNotFitError, OocprError, UsageError
from oocpr.system import is_disk_full
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from io import FileIO


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

    It has `size` bytes so far. The first `in_memory` of them, at most `memory` and only if it is written from
    front to end, are those of the array `memory` and not on the disk.
    """

    def __init__(self, folder: Path, memory: int = 0) -> None:
        self.folder = folder
        self.in_memory = 0
        # The system refuses to promise more than it has.
        self._memory_limit = min(memory, (os.sysconf("SC_PHYS_PAGES") - 1) * mmap.PAGESIZE)
        # Pages that are never written never become resident.
        self._map = mmap.mmap(-1, self._memory_limit + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # not every system has large pages
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.memory = np.frombuffer(self._map, np.uint8)
        self.size = 0
        self._lock = threading.Lock()
        with making_files(folder):
            self._file: FileIO = self._open()

    def _open(self) -> FileIO:
        return tempfile.TemporaryFile(dir=self.folder, buffering=0)

    def reserve(self, size: int) -> tuple[int, NDArray[np.uint8] | None]:
        """Reserve bytes at the end, from any thread; gives their place, and a view if they are in memory."""
        with self._lock:
            at = self.size
            self.size += size
            if at == self.in_memory and self.size <= self._memory_limit:
                self.in_memory = self.size
                return at, self.memory[at : self.size]
            # What is in memory stays there: from here on all goes to the file.
            self._memory_limit = self.in_memory
            return at, None

    def write(self, at: int, array: NDArray[Any]) -> None:
        """Write the contiguous `array` from byte `at` on; DoesNotFitError if the disk is full."""
        data = array.view(np.uint8)
        with self._lock:
            if at == self.in_memory and at + data.size <= self._memory_limit:
                self.in_memory += data.size
            elif at + data.size > self.in_memory:
                self._memory_limit = self.in_memory
            self.size = max(self.size, at + data.size)
        inside = max(0, min(data.size, self.in_memory - at))
        self.memory[at : at + inside] = data[:inside]
        if inside < data.size:
            self._write_file(at + inside, data[inside:].data)

    @property
    def room(self) -> int:
        """Bytes that may still go to memory."""
        return max(0, self._memory_limit - self.in_memory)

    def _write_file(self, at: int, data: memoryview) -> None:
        with disk_errors(self.folder, data.nbytes):
            while data:
                written = os.pwrite(self._file.fileno(), data, at)
                at += written
                data = data[written:]

    def read(self, at: int, out: NDArray[Any]) -> None:
        """Fill the contiguous `out` from byte `at` on."""
        view = out.view(np.uint8)
        inside = max(0, min(view.size, self.in_memory - at))
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

    def shed(self, min_bytes: int | None = None) -> None:
        """Move `min_bytes` or more from memory to the disk, by default all, and add none from now on.

        Nobody else may be using the file meanwhile.
        """
        freed = self.in_memory if min_bytes is None else min(self.in_memory, max(0, min_bytes))
        rest = (self.in_memory - freed) // mmap.PAGESIZE * mmap.PAGESIZE
        if rest < self.in_memory:
            self._write_file(rest, self.memory[rest : self.in_memory].data)
            self._map.madvise(mmap.MADV_DONTNEED, rest)
        self._memory_limit = self.in_memory = rest

    def close(self) -> None:
        """Give disk space and memory back."""
        self._memory_limit = self.in_memory = 0
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
        """Make a file, the first `memory` bytes of it in memory; durable files have a `name`."""
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
