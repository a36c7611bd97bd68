"""Memory that processes of one machine and user read from each other, by a path; it goes with its process."""

from __future__ import annotations

import mmap
import os
import stat
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from oocpr.system import in_threads


class SharedMemory:
    """An array, of zeros at first, which others read at `path` until it is closed.

    The path is empty, and leads nowhere, if the system has no such memory.
    """

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        self.path, self._descriptor = "", -1
        nbytes = size * np.dtype(dtype).itemsize
        memory: Any = bytearray(0)
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("oocpr")
            self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
            os.truncate(self._descriptor, nbytes)
        if nbytes:
            # Through a map several threads make pages at once, and of those that write to a file one.
            memory = mmap.mmap(self._descriptor, nbytes)
        self.array: NDArray[Any] = np.frombuffer(memory, dtype)

    def close(self) -> None:
        """Let nobody read it any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_shared(path: str, out: NDArray[Any]) -> None:
    """Read an array from another process's memory; OSError if it is not there, or not as long as `out`.

    Examples
    --------
    >>> memory, out = SharedMemory(3, int), np.zeros(3, int)
    >>> memory.array[:] = range(3)
    >>> read_shared(memory.path, out)
    >>> memory.close()
    >>> out.tolist()
    [0, 1, 2]
    """
    # Another process may use the number for something else by now, and a pipe would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != out.nbytes:
            raise OSError(f"{path} is other memory")

        def read(lo: int, hi: int) -> None:
            if os.preadv(descriptor, [out[lo:hi].data], lo * out.itemsize) != (hi - lo) * out.itemsize:
                raise OSError(f"{path} ends early")

        in_threads(read, out.size)
    finally:
        os.close(descriptor)


def sees(path: str, content: bytes) -> bool:
    """Whether this process reads these bytes at a path; then the other reads what this one shares, too."""
    found = np.empty(len(content), np.uint8)
    try:
        read_shared(path, found)
    except OSError:
        return False
    return found.tobytes() == content
