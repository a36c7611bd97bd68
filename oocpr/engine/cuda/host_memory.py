"""Memory of the host that a device reads and writes by itself, and copies to and from other memory.

The driver makes pinned memory of one small page after the other, 1.6 GB/s of it, and frees 6 GB/s. It takes
huge pages that threads have touched at 40 GB/s: 20 GB/s in all (host of an H100, Linux 6.18, 8 threads). What
is there already it takes for a copy, in no more time than the copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.store.direct_io import PAGE, aligned
from oocpr.system import in_background, in_threads

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device, Event

MIN_REGISTERED = 2 << 20
"""Bytes of a huge page; what is smaller is made by the driver, and copied through memory of its own."""

MAX_POOLED = 1 << 16
"""Most bytes for which CuPy keeps pinned memory between runs."""

PIECE = 16 << 20
"""Bytes that are pinned at a time while a device works, in 0.4 ms."""

_FLAGS = 1 | 2
"""cudaHostRegisterPortable and cudaHostRegisterMapped: for all devices, by the host's addresses."""

_WORD = 8
"""Bytes of what threads share out among them when they touch memory: 8 MiB each at a time."""


def allocate_pinned(cuda: Any, nbytes: int) -> NDArray[np.uint8]:
    """Make pinned memory for the current device; `cuda` is the module of CuPy."""
    if nbytes <= MAX_POOLED:
        # The driver takes up to a millisecond for the first bytes of a run.
        return np.frombuffer(cuda.alloc_pinned_memory(max(1, nbytes)), np.uint8, nbytes)
    if nbytes >= MIN_REGISTERED:
        memory = _touched(nbytes)
        if register(cuda.runtime, memory) is not None:
            return memory
    # Past CuPy's pool, which rounds up to powers of two and keeps it.
    pointer = cuda.PinnedMemoryPointer(cuda.PinnedMemory(max(1, nbytes)), 0)
    return np.frombuffer(pointer, np.uint8, nbytes)


def register(runtime: Any, memory: NDArray[np.uint8]) -> Callable[[], Any] | None:
    """Pin a part of what `aligned` has made until the last view is gone, or what is returned is called.

    Returns None if the driver cannot pin it.
    """
    address = memory.ctypes.data
    if not _register(runtime, address, memory.nbytes):
        return None
    # Views have the same base, so it goes after the last of them, and before its pages.
    release = weakref.finalize(memory.base, runtime.hostUnregister, address)
    release.atexit = False
    return release


class Landing:
    """Memory for so many float64 that a device is going to bring, which is made while the device works.

    For the ranks of 268 M nodes that takes 0.1 s, and bringing them 0.05. Threads touch it at once. Launches
    wait for the driver while it pins, so it pins a piece at a time, behind a launch that is running.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._touched = in_background(partial(_touched, 8 * count), "oocpr-landing")
        self._releases: list[Callable[[], Any] | None] = []

    def pin_until(self, event: Event) -> None:
        """Pin what has been touched, piece by piece, until the current device has passed an event."""
        if self._touched.done():
            pieces = self._pieces()
            while len(self._releases) < len(pieces) and not event.done:
                self._releases.append(self._device.register(pieces[len(self._releases)]))

    def bring(self, array: Any) -> NDArray[np.float64]:
        """Bring an array, to which the landing is as long, behind what was launched; at most once."""
        with self._device:
            for number, piece in enumerate(self._pieces()):
                if number == len(self._releases):
                    # What was sent before arrives meanwhile.
                    self._releases.append(self._device.register(piece))
                there = array[number * PIECE // 8 :][: piece.size // 8]
                self._device.send(piece.view(np.float64), there)
            self._device.synchronize()
        memory = self._touched.result()
        # The driver takes as long as it took to bring them, and the ranks are there.
        in_background(partial(self._let_go, memory), "oocpr-landing")
        return memory.view(np.float64)

    def _pieces(self) -> list[NDArray[np.uint8]]:
        memory = self._touched.result()
        return [memory[lo : lo + PIECE] for lo in range(0, memory.size, PIECE)]

    def _let_go(self, memory: NDArray[np.uint8]) -> None:
        """Let the device reach memory no more, which is not freed meanwhile."""
        with self._device:
            for release in filter(None, self._releases):
                release()
        del memory


def _touched(nbytes: int) -> NDArray[np.uint8]:
    memory = aligned(nbytes)
    touch(memory)
    return memory


def touch(memory: NDArray[np.uint8]) -> None:
    """Write a zero to each page, by threads: the system makes a page when it is first written to."""

    def write(lo: int, hi: int) -> None:
        memory[lo * _WORD : hi * _WORD : PAGE] = 0

    in_threads(write, -(-memory.size // _WORD))


def copy(
    runtime: Any, stream: Any, here: NDArray[Any], there: int, *, bring: bool, reachable: bool = False
) -> None:
    """Copy contiguous numbers of the host to an address of the device or, with `bring`, from there.

    Returns once it is done. Unless the device can reach them already, whole pages are registered for it; a
    driver that cannot copies through memory of its own, at a tenth of the rate.
    """
    address, size = here.ctypes.data, here.nbytes
    begin = min(size, -address % PAGE)
    end = max(begin, size - (address + size) % PAGE)
    with nullcontext() if reachable else _registered(runtime, address + begin, end - begin):
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
