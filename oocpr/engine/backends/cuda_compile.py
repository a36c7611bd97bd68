"""Compiled kernels of the current CUDA device; imports CuPy, so it is imported on use only."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oocpr.engine.backends.cuda_sources import inline
from oocpr.errors import DoesNotFitError
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from numpy.typing import NDArray

OPTIONS = ("-std=c++17", "-lineinfo")
"""For NVRTC; the line numbers serve profilers and cost nothing in the kernel."""


class Kernels(Protocol):
    """A compiled source."""

    def get_function(self, name: str) -> Any:
        """Kernel of a name, called as ``kernel(grid, block, arguments, shared_mem=0)``.

        Grid and block are tuples. An argument is an array of `Device.xp`, a NumPy scalar of the very type
        that the kernel takes (a Python int passes 64 bits), or None for a null pointer.
        """


class Device(Protocol):
    """Where kernels run: a CUDA device, or in tests the host."""

    @property
    def xp(self) -> ModuleType:
        """Array module, CuPy or NumPy."""

    @property
    def name(self) -> str:
        """What the device calls itself."""

    @property
    def identity(self) -> Mapping[str, str]:
        """What tells it, and what drives it and compiles for it, from others."""

    @property
    def warp(self) -> int:
        """Lanes of a warp."""

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors."""

    @property
    def shared_bytes(self) -> int:
        """Most shared memory that a block can be given."""

    def load(self, file: str, **parameters: int | str) -> Kernels:
        """Compile a file of ``kernels/`` with parameters, once."""

    def compile(self, text: str, **parameters: int | str) -> Kernels:
        """Compile CUDA C++ that may include files of ``kernels/``, once."""

    def synchronize(self) -> None:
        """Wait until all that was launched has run."""

    def seconds(self, work: Callable[[], object]) -> float:
        """Time that the device takes for what is launched; waits for it."""

    def __enter__(self) -> object:
        """Make the device current for this thread."""

    def __exit__(self, *exception: object) -> None:
        """Make the one before current again."""


def fetch(array: Any) -> NDArray[Any]:
    """Bring an array of a device to the host, once all that was launched before has run."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


def send(array: Any, values: NDArray[Any]) -> None:
    """Put numbers of the host into an array of a device; nothing is waited for."""
    if hasattr(array, "set"):
        array.set(values)
    else:
        array[...] = values


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
        self._loaded: dict[tuple[Any, ...], Any] = {}

    def __enter__(self) -> CudaDevice:
        self._device.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        error = exception[1]
        free, total = self._xp.cuda.runtime.memGetInfo() if error else (0, 0)
        self._device.__exit__(*exception)
        if error and isinstance(error, self._xp.cuda.memory.OutOfMemoryError):
            raise DoesNotFitError(
                f"{self.name} has {format_bytes(free)} of {format_bytes(total)} free; the run needs more.",
                "Use reads bits8, a device with more memory, or device cpu.",
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
    def identity(self) -> Mapping[str, str]:
        """See Device."""
        cuda, properties = self._xp.cuda, self._properties
        return {
            "name": self.name,
            "capability": f"{properties['major']}.{properties['minor']}",
            "multiprocessors": str(self.multiprocessors),
            "driver": str(cuda.runtime.driverGetVersion()),
            "compiler": ".".join(map(str, cuda.nvrtc.getVersion())),
        }

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
            self._loaded[key] = self._xp.RawModule(code=inline(text, parameters), options=OPTIONS)
        kernels: Kernels = self._loaded[key]
        return kernels

    def synchronize(self) -> None:
        """See Device."""
        self._device.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """See Device."""
        event = self._xp.cuda.Event
        begin, end = event(), event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(self._xp.cuda.get_elapsed_time(begin, end)) / 1e3
