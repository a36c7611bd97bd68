"""Compiled kernels of the current CUDA device; imports CuPy, so it is imported on use only."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.nccl import NcclLink
from oocpr.engine.cuda.peer_copies import Peers
from oocpr.engine.cuda.source import inline
from oocpr.errors import DoesNotFitError
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from numpy.typing import DTypeLike, NDArray

    from oocpr.engine.cuda.device import Kernels, Mark
    from oocpr.engine.cuda.nccl import Link

OPTIONS = ("-std=c++17", "-lineinfo")
"""For NVRTC; the line numbers serve profilers and cost nothing in the kernel."""

_TAKEN: dict[int, int] = {}
"""Most bytes that CuPy had taken of each device, by its number, when it gave some up."""


class CudaDevice:
    """The CUDA device of a number; see Device.

    Parameters
    ----------
    index
        Number of the device as CUDA counts.
    """

    def __init__(self, index: int = 0) -> None:
        import cupy

        self._xp: ModuleType = cupy
        self.index = index
        self._device = cupy.cuda.Device(index)
        self._loaded: dict[tuple[Any, ...], _Functions] = {}
        self._own = threading.local()
        self._peers = Peers(cupy, index)

    def __enter__(self) -> CudaDevice:
        self._device.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        error = exception[1]
        free, total = self._xp.cuda.runtime.memGetInfo() if error else (0, 0)
        given = self._xp.get_default_memory_pool().get_limit() if error else 0
        self._device.__exit__(*exception)
        if error and isinstance(error, self._xp.cuda.memory.OutOfMemoryError):
            cause = f"{self.name} has {format_bytes(free)} of {format_bytes(total)} free"
            if 0 < given < total:
                cause = f"{self.name} may give {format_bytes(given)}"
            raise DoesNotFitError(
                f"{cause}; the run needs more.",
                "Use reads bits8, more device memory or a device with more of it, or device cpu.",
            ) from error

    @cached_property
    def _properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = self._xp.cuda.runtime.getDeviceProperties(self.index)
        return properties

    @property
    def xp(self) -> ModuleType:
        """See Device."""
        return self._xp

    @property
    def name(self) -> str:
        """See Device."""
        name: bytes = self._properties["name"]
        return name.decode()

    @property
    def warp(self) -> int:
        """See Device."""
        return int(self._properties["warpSize"])

    @property
    def multiprocessors(self) -> int:
        """See Device."""
        return int(self._properties["multiProcessorCount"])

    @property
    def shared_bytes(self) -> int:
        """See Device."""
        return int(self._properties["sharedMemPerBlockOptin"])

    def load(self, file: str, **parameters: int | str) -> Kernels:
        """See Device."""
        return self.compile(f'#include "{file}"', **parameters)

    def compile(self, text: str, **parameters: int | str) -> Kernels:
        """See Device."""
        key = (text, *sorted(parameters.items()))
        if key not in self._loaded:
            module = self._xp.RawModule(code=inline(text, parameters), options=OPTIONS)
            self._loaded[key] = _Functions(module)
        return self._loaded[key]

    def synchronize(self) -> None:
        """See Device."""
        self._device.synchronize()

    @property
    def free_bytes(self) -> int:
        """See Device."""
        with self._device:
            free: int = self._xp.cuda.runtime.memGetInfo()[0]
            held: int = self._xp.get_default_memory_pool().free_bytes()
        return free + held

    @property
    def taken_bytes(self) -> int:
        """See Device."""
        with self._device:
            taken: int = self._xp.get_default_memory_pool().total_bytes()
        return max(taken, _TAKEN.get(self.index, 0))

    def forget_taken(self) -> None:
        """See Device."""
        _TAKEN[self.index] = 0

    def limit(self, nbytes: int | None) -> int:
        """See Device."""
        with self._device:
            pool = self._xp.get_default_memory_pool()
            # Between two times that it gives something up, it only takes.
            _TAKEN[self.index] = max(pool.total_bytes(), _TAKEN.get(self.index, 0))
            pool.free_all_blocks()
            before: int = pool.get_limit()
            if nbytes is not None:
                pool.set_limit(size=nbytes)
        return before

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """See Device."""
        # Past CuPy's pool, which rounds up to powers of two.
        cuda = self._xp.cuda
        with self._device:
            memory = cuda.PinnedMemoryPointer(cuda.PinnedMemory(max(1, nbytes)), 0)
        return np.frombuffer(memory, np.uint8, nbytes)

    def mapped(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> tuple[Any, NDArray[Any]]:
        """See Device."""
        kind = np.dtype(dtype)
        here = self.pinned(int(np.prod(shape)) * kind.itemsize).view(kind).reshape(shape)
        # Pinned memory has one address for the host and for all devices.
        memory = self._xp.cuda.UnownedMemory(here.ctypes.data, here.nbytes, here, self.index)
        there = self._xp.ndarray(here.shape, kind, self._xp.cuda.MemoryPointer(memory, 0))
        return there, here

    def mark(self) -> Mark:
        """See Device."""
        marked: Mark = self._marked(self._xp.cuda.get_current_stream())
        return marked

    def send_beside(self, array: Any, values: NDArray[np.uint8]) -> Mark:
        """See Device."""
        runtime = self._xp.cuda.runtime
        runtime.memcpyAsync(
            array.data.ptr, values.ctypes.data, values.nbytes, runtime.memcpyHostToDevice, self._beside.ptr
        )
        marked: Mark = self._marked(self._beside)
        return marked

    def bring(self, array: Any, values: Any) -> None:
        """See Device."""
        if isinstance(values, self._xp.ndarray):
            self._peers.copy(array, values)
        else:
            array.set(values)

    def sees(self, values: Any) -> bool:
        """See Device."""
        return isinstance(values, self._xp.ndarray) and self._peers.sees(values)

    def join(self, key: Any, rank: int, size: int) -> Link:
        """See Device."""
        return NcclLink(self._xp, key, rank, size)

    @property
    def bus(self) -> str:
        """Address on the host's bus."""
        bus: str = self._xp.cuda.runtime.deviceGetPCIBusId(self.index)
        return bus

    def wait_for(self, mark: Mark) -> None:
        """See Device."""
        self._xp.cuda.get_current_stream().wait_event(mark)

    def hold_beside(self, mark: Mark) -> None:
        """See Device."""
        self._beside.wait_event(mark)

    def moment(self, *, beside: bool = False, again: Any = None) -> Any:
        """See Device."""
        with self._device:
            event = again or self._xp.cuda.Event()
            event.record(self._beside if beside else self._xp.cuda.get_current_stream())
        return event

    def passed(self, moment: Any) -> bool:
        """See Device."""
        return bool(moment.done)

    def between(self, earlier: Any, later: Any) -> float:
        """See Device."""
        return float(self._xp.cuda.get_elapsed_time(earlier, later)) / 1e3

    @cached_property
    def _beside(self) -> Any:
        # Other streams would wait for all kernels, and they for it.
        return self._xp.cuda.Stream(non_blocking=True)

    def _marked(self, stream: Any) -> Any:
        mark = self._xp.cuda.Event(disable_timing=True)
        mark.record(stream)
        return mark

    @contextmanager
    def apart(self) -> Iterator[None]:
        """See Device."""
        with self:
            if not hasattr(self._own, "stream"):
                self._own.stream = self._xp.cuda.Stream(non_blocking=True)
            with self._own.stream:
                yield


class _Functions:
    """Kernels of a compiled source, found once: CuPy takes as long to find one as to launch it."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._found: dict[str, Any] = {}

    def get_function(self, name: str) -> Any:
        """See Kernels."""
        if name not in self._found:
            self._found[name] = self._module.get_function(name)
        return self._found[name]
