"""What kernels run on, a CUDA device or in tests the host, and how arrays come from there and go there."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from oocpr.engine.cuda.communication import NcclTransport, PeerCopies
from oocpr.engine.cuda.source import inline
from oocpr.errors import DoesNotFitError
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import DTypeLike, NDArray

    from oocpr.engine.cuda.communication import Transport


class Kernels(Protocol):
    """A compiled source."""

    def get_function(self, name: str) -> Any:
        """Kernel of a name, called as ``kernel(grid, block, arguments, shared_mem=0)``.

        Grid and block are tuples. An argument is an array of `Device.xp`, a NumPy scalar of the very type
        that the kernel takes (a Python int passes 64 bits), or None for a null pointer.
        """


class Event(Protocol):
    """A place in the order of work that was given to a device."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class Device(Protocol):
    """Where kernels run: a CUDA device, or in tests the host."""

    @property
    def xp(self) -> ModuleType:
        """Array module, CuPy or NumPy."""

    @property
    def name(self) -> str:
        """What the device calls itself."""

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

    @property
    def free_bytes(self) -> int:
        """Memory that nobody uses, or that only CuPy holds back."""

    @property
    def taken_bytes(self) -> int:
        """Most memory that CuPy had taken at any time since `forget_taken` was called."""

    def forget_taken(self) -> None:
        """Count from now on."""

    def limit(self, nbytes: int | None) -> int:
        """Let CuPy give up what it holds back and never take more than so many bytes, 0 for all there are.

        None leaves that as it was; returns how it was.
        """

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory of the host that the device reads by itself."""

    def mapped(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> tuple[Any, NDArray[Any]]:
        """Memory of the host that kernels read and write by the link, as they see it and as the host does."""

    def record_event(self) -> Event:
        """Remember which kernels have been launched."""

    def upload_async(self, array: Any, values: NDArray[np.uint8]) -> Event:
        """Send pinned bytes to an array of the device while kernels run.

        What is sent first arrives first. The event that is returned is passed once the bytes are there; until
        then they must not change.
        """

    def copy_from(self, array: Any, values: Any) -> None:
        """Copy numbers of another device, or of the host, to an array of this one, behind what was launched.

        What computes them has run, and they do not change before what is launched here next has.
        """

    def can_read(self, values: Any) -> bool:
        """Whether kernels of the device, which is current, can read numbers where they are."""

    def connect(self, unique_id: Any, rank: int, size: int) -> Transport:
        """Connect the device, which is current, with those of other processes; returns once all have come."""

    def wait_for(self, event: Event) -> None:
        """Let kernels that are launched from now on begin after an event."""

    def copy_stream_wait(self, event: Event) -> None:
        """Let what is sent from now on while kernels run begin after an event."""

    def timestamp(self, *, copy_stream: bool = False, again: Any = None) -> Any:
        """Note when the device gets here among its kernels or, with `copy_stream`, among its copies.

        A moment of before that nobody asks for any more may serve `again`.
        """

    def has_passed(self, moment: Any) -> bool:
        """Whether the device has got to a moment."""

    def elapsed(self, earlier: Any, later: Any) -> float:
        """Seconds from one moment to another, both of which the device has passed."""

    def __enter__(self) -> object:
        """Make the device current for this thread."""

    def __exit__(self, *exception: object) -> None:
        """Make the one before current again."""


def download(array: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Bring an array of a device to the host, into `out` or new memory, once what was launched has run."""
    if hasattr(array, "get"):
        here: NDArray[Any] = array.get(out=out)
        return here
    if out is None:
        return np.asarray(array)
    out[...] = array
    return out


def to_device(device: Device, values: NDArray[Any]) -> Any:
    """Bring numbers of the host to an array of a device.

    CuPy's own way is by pinned memory, as much as there are numbers up to the next power of two, which it
    keeps.
    """
    there = device.xp.empty(values.shape, values.dtype)
    if values.size:
        upload(there, values)
    return there


def upload(array: Any, values: NDArray[Any]) -> None:
    """Put numbers of the host into an array of a device; nothing is waited for."""
    if hasattr(array, "set"):
        array.set(values)
    else:
        array[...] = values


THREADS = 256
"""Threads of a block, as most kernels take them."""


def grid(threads: int) -> tuple[int]:
    """Blocks of THREADS for so many threads."""
    return (-(-threads // THREADS),)


OPTIONS = ("-std=c++17", "-lineinfo")
"""For NVRTC; the line numbers serve profilers and cost nothing in the kernel."""

_TAKEN: dict[int, int] = {}
"""Most bytes that CuPy had taken of each device, by its number, when it gave some up."""


class CudaDevice:
    """The CUDA device of a number, as CUDA counts; see Device."""

    def __init__(self, index: int = 0) -> None:
        import cupy

        self._xp: ModuleType = cupy
        self.index = index
        self._device = cupy.cuda.Device(index)
        self._loaded: dict[tuple[Any, ...], _Functions] = {}
        self._peers = PeerCopies(cupy, index)

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

    def record_event(self) -> Event:
        """See Device."""
        return self._recorded(self._xp.cuda.get_current_stream())

    def upload_async(self, array: Any, values: NDArray[np.uint8]) -> Event:
        """See Device."""
        runtime = self._xp.cuda.runtime
        runtime.memcpyAsync(
            array.data.ptr,
            values.ctypes.data,
            values.nbytes,
            runtime.memcpyHostToDevice,
            self._copy_stream.ptr,
        )
        return self._recorded(self._copy_stream)

    def copy_from(self, array: Any, values: Any) -> None:
        """See Device."""
        if isinstance(values, self._xp.ndarray):
            self._peers.copy(array, values)
        else:
            array.set(values)

    def can_read(self, values: Any) -> bool:
        """See Device."""
        return isinstance(values, self._xp.ndarray) and self._peers.can_read(values)

    def connect(self, unique_id: Any, rank: int, size: int) -> Transport:
        """See Device."""
        return NcclTransport(self._xp, unique_id, rank, size)

    @property
    def bus(self) -> str:
        """Address on the host's bus."""
        bus: str = self._xp.cuda.runtime.deviceGetPCIBusId(self.index)
        return bus

    def wait_for(self, event: Event) -> None:
        """See Device."""
        self._xp.cuda.get_current_stream().wait_event(event)

    def copy_stream_wait(self, event: Event) -> None:
        """See Device."""
        self._copy_stream.wait_event(event)

    def timestamp(self, *, copy_stream: bool = False, again: Any = None) -> Any:
        """See Device."""
        with self._device:
            event = again or self._xp.cuda.Event()
            event.record(self._copy_stream if copy_stream else self._xp.cuda.get_current_stream())
        return event

    def has_passed(self, moment: Any) -> bool:
        """See Device."""
        return bool(moment.done)

    def elapsed(self, earlier: Any, later: Any) -> float:
        """See Device."""
        return float(self._xp.cuda.get_elapsed_time(earlier, later)) / 1e3

    @cached_property
    def _copy_stream(self) -> Any:
        # Other streams would wait for all kernels, and they for it.
        return self._xp.cuda.Stream(non_blocking=True)

    def _recorded(self, stream: Any) -> Event:
        event = self._xp.cuda.Event(disable_timing=True)
        event.record(stream)
        return cast("Event", event)


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
