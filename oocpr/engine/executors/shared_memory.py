"""Memory of a process that others of its machine and user write to; it goes with the last that has it."""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from contextlib import suppress
from threading import Thread
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MARK_BYTES = 16


class SharedAddress(NamedTuple):
    """Where an array of so many float64 is, followed by a `mark` that no other memory has there."""

    path: str
    size: int
    mark: bytes


class SharedMemory:
    """An array of float64, shape (size,), zeros at first, that others find at `address` until it is closed.

    The address leads nowhere if the system has no such memory. The array stays.
    """

    def __init__(self, size: int) -> None:
        path, self._descriptor = "", -1
        self._filling: Thread | None = None
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("oocpr")
            path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
            os.truncate(self._descriptor, 8 * size + _MARK_BYTES)
        memory = mmap.mmap(self._descriptor, 8 * size + _MARK_BYTES)
        self.address = SharedAddress(path, size, secrets.token_bytes(_MARK_BYTES))
        memory[8 * size :] = self.address.mark
        self.array: NDArray[np.float64] = np.frombuffer(memory, count=size)

    def fill(self) -> None:
        """Have the system make all pages meanwhile: whoever first writes to one would wait for it.

        It makes 5 GB/s. Eight threads that touch pages get 3 GB/s of new ones, and 11 of what is there (host
        of an H100, Linux 6.18, which has no huge pages for this).
        """
        if self._descriptor >= 0 and self._filling is None:
            self._filling = Thread(target=self._fill, name="oocpr-shared-memory")
            self._filling.start()

    def _fill(self) -> None:
        # Without them it is the first to write that makes them, or ends for want of memory.
        with suppress(OSError):
            os.posix_fallocate(self._descriptor, 0, 8 * self.address.size)

    def close(self) -> None:
        """Let nobody find it any more."""
        if self._filling is not None:
            self._filling.join()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def find_shared(address: SharedAddress) -> NDArray[np.float64] | None:
    """Find the array at an address, to write to it; None if this process does not see that memory.

    Examples
    --------
    >>> memory = SharedMemory(3)
    >>> find_shared(memory.address)[:] = range(3)
    >>> memory.close()
    >>> memory.array.tolist(), find_shared(memory.address)
    ([0.0, 1.0, 2.0], None)
    """
    # On another machine another process may have the number, and the path may be that of a pipe.
    try:
        descriptor = os.open(address.path, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found, begin = os.fstat(descriptor), 8 * address.size
        if not stat.S_ISREG(found.st_mode) or found.st_size != begin + _MARK_BYTES:
            return None
        if os.pread(descriptor, _MARK_BYTES, begin) != address.mark:
            return None
        return np.frombuffer(mmap.mmap(descriptor, found.st_size), count=address.size)
    except OSError:
        return None
    finally:
        os.close(descriptor)
