"""Memory of the host that a device reads and writes by itself, and copies to and from other memory.

The driver makes pinned memory of one small page after the other, 1.6 GB/s of it, and frees 6 GB/s. It takes
huge pages that threads have touched at 40 GB/s: 20 GB/s in all (host of an H100, Linux 6.18, 8 threads). What
is there already it takes for a copy, in no more time than the copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oocpr.store.direct_io import PAGE, aligned
from oocpr.system import in_threads

MIN_REGISTERED = 2 << 20
"""Bytes of a huge page; what is smaller is made by the driver."""

_FLAGS = 1 | 2
"""cudaHostRegisterPortable and cudaHostRegisterMapped: for all devices, by the host's addresses."""

_WORD = 8
"""Bytes of what threads share out among them when they touch memory: 8 MiB each at a time."""


def allocate_pinned(cuda: Any, nbytes: int) -> NDArray[np.uint8]:
    """Make pinned memory for the current device; `cuda` is the module of CuPy."""
    if nbytes >= MIN_REGISTERED:
        memory = aligned(nbytes)
        touch(memory)
        address, runtime = memory.ctypes.data, cuda.runtime
        if _register(runtime, address, nbytes):
            # Views have the same base, so it goes after the last of them, and before its pages.
            weakref.finalize(memory.base, runtime.hostUnregister, address).atexit = False
            return memory
    # Past CuPy's pool, which rounds up to powers of two.
    pointer = cuda.PinnedMemoryPointer(cuda.PinnedMemory(max(1, nbytes)), 0)
    return np.frombuffer(pointer, np.uint8, nbytes)


def touch(memory: NDArray[np.uint8]) -> None:
    """Write a zero to each page, by threads: the system makes a page when it is first written to."""

    def write(lo: int, hi: int) -> None:
        memory[lo * _WORD : hi * _WORD : PAGE] = 0

    in_threads(write, -(-memory.size // _WORD))


def copy(runtime: Any, stream: Any, here: NDArray[Any], there: int, *, bring: bool) -> None:
    """Copy contiguous numbers of the host to an address of the device or, with `bring`, from there.

    Returns once it is done. Whole pages are registered for it; a driver that cannot copies through memory of
    its own, at a tenth of the rate.
    """
    address, size = here.ctypes.data, here.nbytes
    begin = min(size, -address % PAGE)
    end = max(begin, size - (address + size) % PAGE)
    with _registered(runtime, address + begin, end - begin):
        for lo, hi in (0, begin), (begin, end), (end, size):
            if lo < hi:
                ends = (address + lo, there + lo) if bring else (there + lo, address + lo)
                runtime.memcpyAsync(*ends, hi - lo, runtime.memcpyDefault, stream.ptr)
        stream.synchronize()


@contextmanager
def _registered(runtime: Any, address: int, nbytes: int) -> Iterator[None]:
    """Have the device reach memory by itself meanwhile, if it can."""
    registered = nbytes > 0 and _register(runtime, address, nbytes)
    try:
        yield
    finally:
        if registered:
            runtime.hostUnregister(address)


def _register(runtime: Any, address: int, nbytes: int) -> bool:
    """Pin memory; tells whether the driver could."""
    try:
        runtime.hostRegister(address, nbytes, _FLAGS)
    except runtime.CUDARuntimeError:
        return False
    return True
