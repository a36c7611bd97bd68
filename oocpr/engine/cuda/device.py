"""CUDA devices: which one a run asks for, how its kernels are compiled, how arrays get there and back."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from oocpr.engine.cuda.communication import NcclTransport, PeerCopies
from oocpr.engine.cuda.host_memory import MIN_REGISTERED, allocate_pinned, copy, register, touch
from oocpr.engine.cuda.kernel_cache import cached_binary
from oocpr.engine.cuda.names import device_index
from oocpr.errors import DoesNotFitError, SetupError, UsageError, install_remedy
from oocpr.system import PIECE_ITEMS
from oocpr.units import format_bytes

MIN_CAPABILITY = (7, 5)
"""Oldest compute capability that the kernels are compiled for."""

THREADS = 256
"""Threads of a block, as most kernels take them."""

OPTIONS = ("-std=c++17", "-lineinfo")
"""For NVRTC; the line numbers serve profilers and cost nothing in the kernel."""

OPTIONS_OF_CUPY = ("-ftz=true",)
"""What CuPy adds where it compiles a module."""

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")
_PARAMETER = re.compile(r"[A-Z][A-Z0-9_]*")
_VALUE = re.compile(r"[A-Za-z_]\w*(::\w+)*")

_TAKEN: dict[int, int] = {}
"""Most bytes that CuPy had taken of each device, by its number, when it gave some up."""

_OPENED: dict[int, Device] = {}
"""Devices of this process, by number, with the kernels that they have loaded."""


class Kernels:
    """Kernels of a compiled source, each found once: CuPy takes as long to find one as to launch it."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._found: dict[str, Any] = {}

    def get_function(self, name: str) -> Any:
        """Kernel of a name, called as ``kernel(grid, block, arguments, shared_mem=0)``.

        Grid and block are tuples. An argument is an array of `Device.xp`, a NumPy scalar of the very type
        that the kernel takes (a Python int passes 64 bits), or None for a null pointer.
        """
        if name not in self._found:
            self._found[name] = self._module.get_function(name)
        return self._found[name]


class Event(Protocol):
    """A place in the order of work that was given to a device."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""

    @property
    def done(self) -> bool:
        """Whether the device has passed it."""


class Device:
    """The CUDA device of a number, as CUDA counts; within its ``with`` block it is current for the thread.

    `xp` is the array module, `warp` the lanes of a warp, `shared_bytes` the most that a block can be given.
    Tests have a device with these attributes and methods that runs kernels on the host, with NumPy.
    """

    def __init__(self, index: int = 0) -> None:
        import cupy

        self.xp: ModuleType = cupy
        self.index = index
        self._device = cupy.cuda.Device(index)
        self._loaded: dict[tuple[Any, ...], Kernels] = {}
        self._peers = PeerCopies(cupy, index)
        properties: dict[str, Any] = cupy.cuda.runtime.getDeviceProperties(index)
        self.name: str = properties["name"].decode()
        self.warp = int(properties["warpSize"])
        self.multiprocessors = int(properties["multiProcessorCount"])
        self.shared_bytes = int(properties["sharedMemPerBlockOptin"])

    def __enter__(self) -> Device:
        self._device.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        error = exception[1]
        free, total = self.xp.cuda.runtime.memGetInfo() if error else (0, 0)
        given = self.xp.get_default_memory_pool().get_limit() if error else 0
        self._device.__exit__(*exception)
        if error and isinstance(error, self.xp.cuda.memory.OutOfMemoryError):
            cause = f"{self.name} has {format_bytes(free)} of {format_bytes(total)} free"
            if 0 < given < total:
                cause = f"{self.name} may give {format_bytes(given)}"
            raise DoesNotFitError(
                f"{cause}; the run needs more.",
                "Use reads bits8, more device memory or a device with more of it, or device cpu.",
            ) from error

    @property
    def bus(self) -> str:
        """Address on the host's bus."""
        bus: str = self.xp.cuda.runtime.deviceGetPCIBusId(self.index)
        return bus

    def load(self, file: str, **parameters: int | str) -> Kernels:
        """Compile a file of ``kernels/`` with parameters, once."""
        return self.compile(f'#include "{file}"', **parameters)

    def compile(self, text: str, **parameters: int | str) -> Kernels:
        """Compile CUDA C++ that may include files of ``kernels/``, once."""
        key = (text, *sorted(parameters.items()))
        if key not in self._loaded:
            self._loaded[key] = Kernels(self._module(inline(text, parameters)))
        return self._loaded[key]

    def _module(self, source: str) -> Any:
        cuda, options = self.xp.cuda, OPTIONS + OPTIONS_OF_CUPY
        versions = self.xp.__version__, cuda.runtime.runtimeGetVersion(), cuda.runtime.driverGetVersion()
        path = cached_binary(
            f"{options} {self._device.compute_capability} {versions}\n{source}",
            lambda: bytes(cuda.compiler.compile_using_nvrtc(source, options)[0]),
        )
        if path is None:
            return self.xp.RawModule(code=source, options=OPTIONS)
        return self.xp.RawModule(path=str(path))

    def synchronize(self) -> None:
        """Wait until all that was launched has run."""
        self._device.synchronize()

    @property
    def free_bytes(self) -> int:
        """Memory that nobody uses, or that only CuPy holds back."""
        with self._device:
            free: int = self.xp.cuda.runtime.memGetInfo()[0]
            held: int = self.xp.get_default_memory_pool().free_bytes()
        return free + held

    @property
    def allocated_bytes(self) -> int:
        """Most memory that CuPy had taken at any time since `reset_allocated` was called."""
        with self._device:
            taken: int = self.xp.get_default_memory_pool().total_bytes()
        return max(taken, _TAKEN.get(self.index, 0))

    def reset_allocated(self) -> None:
        """Count from now on."""
        _TAKEN[self.index] = 0

    def limit(self, nbytes: int | None) -> int:
        """Let CuPy give up what it holds back and never take more than so many bytes, 0 for all there are.

        None leaves the limit as it was; returns how it was.
        """
        with self._device:
            pool = self.xp.get_default_memory_pool()
            # Between two times that it gives something up, it only takes.
            _TAKEN[self.index] = max(pool.total_bytes(), _TAKEN.get(self.index, 0))
            pool.free_all_blocks()
            before: int = pool.get_limit()
            if nbytes is not None:
                pool.set_limit(size=nbytes)
        return before

    def reserve(self, nbytes: int) -> None:
        """Take memory of the driver at once, of which CuPy then makes arrays."""
        with self._device:
            self.xp.get_default_memory_pool().malloc(nbytes)

    def past_pool(self) -> contextlib.AbstractContextManager[None]:
        """Let this thread take memory straight from the driver, past the limit of the pool."""
        past: contextlib.AbstractContextManager[None] = self.xp.cuda.using_allocator(None)
        return past

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory of the host that the device reads by itself."""
        with self._device:
            return allocate_pinned(self.xp.cuda, nbytes)

    def register(self, memory: NDArray[np.uint8]) -> Callable[[], Any] | None:
        """Pin memory that is let go before it is freed; see `host_memory.register`."""
        return register(self.xp.cuda.runtime, memory)

    def mapped(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> tuple[Any, NDArray[Any]]:
        """Memory of the host that kernels read and write by the link, as they see it and as the host does."""
        kind = np.dtype(dtype)
        here = self.pinned(int(np.prod(shape)) * kind.itemsize).view(kind).reshape(shape)
        # Pinned memory has one address for the host and for all devices.
        memory = self.xp.cuda.UnownedMemory(here.ctypes.data, here.nbytes, here, self.index)
        there = self.xp.ndarray(here.shape, kind, self.xp.cuda.MemoryPointer(memory, 0))
        return there, here

    def record_event(self, *, copy_stream: bool = False) -> Event:
        """Remember which kernels have been launched or, with `copy_stream`, what was sent while they run."""
        return self._recorded(self._copy_stream if copy_stream else self.xp.cuda.get_current_stream())

    def receiving(self, nbytes: int) -> Any:
        """Memory for what is sent while kernels run.

        What is sent from now on waits for what has been launched, which may still write to the same memory.
        """
        memory = self.xp.empty(nbytes, np.uint8)
        self.copy_stream_wait(self.record_event())
        return memory

    def upload_async(self, array: Any, values: NDArray[np.uint8]) -> Event:
        """Send pinned bytes to memory that is `receiving`, in the order in which they are sent.

        The event is passed once the bytes are there; until then they must not change.
        """
        runtime, stream = self.xp.cuda.runtime, self._copy_stream
        runtime.memcpyAsync(
            array.data.ptr, values.ctypes.data, values.nbytes, runtime.memcpyHostToDevice, stream.ptr
        )
        return self._recorded(stream)

    def send(self, there: Any, here: Any) -> None:
        """Copy between an array of the device and pinned memory, to the first, behind what was launched.

        Memory of the host that is read must not change, and what is written is not there, before the device
        has been waited for.
        """
        runtime = self.xp.cuda.runtime
        runtime.memcpyAsync(
            address_of(there), address_of(here), here.nbytes, runtime.memcpyDefault,
            self.xp.cuda.get_current_stream().ptr,
        )  # fmt: skip

    def record(self, work: Callable[[], object]) -> Callable[[], None]:
        """Record what `work` launches; returns what launches all of it at once, as often as it is called.

        It is the same memory each time, and nothing is waited for.
        """
        stream = self.xp.cuda.Stream(non_blocking=True)
        with self, stream:
            stream.begin_capture()
            try:
                work()
            finally:
                graph = stream.end_capture()
        launch: Callable[[], None] = graph.launch
        return launch

    def copy_from(self, array: Any, values: Any) -> None:
        """Copy numbers of another device, or of the host, to an array of this one, behind what was launched.

        What computes them has run, and they do not change before what is launched here next has.
        """
        if isinstance(values, self.xp.ndarray):
            self._peers.copy(array, values)
        else:
            array.set(values)

    def bring(self, array: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Bring a long array to `out`, contiguous, or new memory, once what was launched has run."""
        if out is None:
            out = np.empty(array.shape, array.dtype)
        touch(out.reshape(-1).view(np.uint8))
        self._copy(array, out, bring=True)
        return out

    def put(self, array: Any, values: NDArray[Any]) -> None:
        """Put a long array of the host into one of the device, once what was launched has run."""
        self._copy(array, np.ascontiguousarray(values), bring=False)

    def _copy(self, array: Any, here: NDArray[Any], *, bring: bool) -> None:
        with self._device:
            stream = self._whole_stream
            stream.wait_event(self.record_event())
            runtime = self.xp.cuda.runtime
            # To register what is small takes longer than it saves: 190 us for 240 KB, and 78 without.
            reachable = here.nbytes < MIN_REGISTERED
            copy(runtime, stream, here, address_of(array), bring=bring, reachable=reachable)

    def can_read(self, values: Any) -> bool:
        """Whether kernels of the device, which is current, can read numbers where they are."""
        return isinstance(values, self.xp.ndarray) and self._peers.can_read(values)

    def connect(self, unique_id: Any, rank: int, size: int) -> NcclTransport:
        """Connect the device, which is current, with those of other processes; returns once all have come."""
        return NcclTransport(self.xp, unique_id, rank, size)

    def wait_for(self, event: Event) -> None:
        """Let kernels that are launched from now on begin after an event."""
        self.xp.cuda.get_current_stream().wait_event(event)

    def copy_stream_wait(self, event: Event) -> None:
        """Let what is sent from now on while kernels run begin after an event."""
        self._copy_stream.wait_event(event)

    def timestamp(self, *, copy_stream: bool = False, again: Any = None) -> Any:
        """Note when the device gets here among its kernels or, with `copy_stream`, among its copies.

        A moment of before that nobody asks for any more may serve `again`.
        """
        with self._device:
            event = again or self.xp.cuda.Event()
            event.record(self._copy_stream if copy_stream else self.xp.cuda.get_current_stream())
        return event

    def has_passed(self, moment: Any) -> bool:
        """Whether the device has got to a moment."""
        return bool(moment.done)

    def elapsed(self, earlier: Any, later: Any) -> float:
        """Seconds from one moment to another, both of which the device has passed."""
        return float(self.xp.cuda.get_elapsed_time(earlier, later)) / 1e3

    @cached_property
    def _copy_stream(self) -> Any:
        # Other streams would wait for all kernels, and they for it.
        return self.xp.cuda.Stream(non_blocking=True)

    @cached_property
    def _whole_stream(self) -> Any:
        # Of what is waited for: behind what is sent ahead it would be late.
        return self.xp.cuda.Stream(non_blocking=True)

    def _recorded(self, stream: Any) -> Event:
        event = self.xp.cuda.Event(disable_timing=True)
        event.record(stream)
        return cast("Event", event)


def address_of(array: Any) -> int:
    """Where an array of a device begins."""
    data = array.data
    return int(data.ptr if hasattr(data, "ptr") else array.ctypes.data)


def download(array: Any) -> NDArray[Any]:
    """Bring an array of a device to the host, once what was launched has run."""
    if hasattr(array, "get"):
        here: NDArray[Any] = array.get()
        return here
    return np.asarray(array)


def to_device(device: Device, values: NDArray[Any]) -> Any:
    """Bring numbers of the host to a new array of a device.

    CuPy's own way is by pinned memory, as much as there are numbers up to the next power of two, which it
    keeps.
    """
    there = device.xp.empty(values.shape, values.dtype)
    if values.size > PIECE_ITEMS:
        device.put(there, values)
    elif values.size:
        upload(there, values)
    return there


def upload(array: Any, values: NDArray[Any]) -> None:
    """Put numbers of the host into an array of a device; nothing is waited for."""
    if hasattr(array, "set"):
        array.set(values)
    else:
        array[...] = values


def grid(threads: int) -> tuple[int]:
    """Blocks of THREADS for so many threads."""
    return (-(-threads // THREADS),)


def inline(text: str, parameters: Mapping[str, int | str] | None = None) -> str:
    """Make one string, at which caches of compiled kernels look, of a text and what it includes.

    `parameters`: macros in front, by name, in capitals: a whole number, or the name of a type.
    Files of ``kernels/`` stand where they are included, each once; a compiler's messages name them.
    Raises FileNotFoundError if there is no file of an included name.
    Raises ValueError if a parameter is neither.

    >>> text = inline('#include "narrow.cuh"', {"WARP_SIZE": 64})
    >>> text.splitlines()[0], text.count("struct Bits16"), text.count("int WARP =")
    ('#define WARP_SIZE 64', 1, 1)
    """
    lines = []
    for name, value in sorted((parameters or {}).items()):
        if not _PARAMETER.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a parameter: capitals, digits and underscores")
        if not (isinstance(value, int) or _VALUE.fullmatch(value)):
            raise ValueError(f"parameter {name} is {value!r}, neither a whole number nor a name")
        lines.append(f"#define {name} {int(value) if isinstance(value, int) else value}")
    lines += _expand("text", text, set())
    return "\n".join(lines) + "\n"


def _expand(name: str, text: str, seen: set[str]) -> Iterator[str]:
    seen.add(name)
    yield f'#line 1 "kernels/{name}"'
    for number, line in enumerate(text.splitlines(), 1):
        include = _INCLUDE.match(line)
        if include:
            if include[1] not in seen:
                yield from _expand(include[1], _read(include[1]), seen)
            yield f'#line {number + 1} "kernels/{name}"'
        else:
            yield "" if _ONCE.match(line) else line


@cache
def _read(file: str) -> str:
    from importlib.resources import files

    return files("oocpr.kernels").joinpath(file).read_text(encoding="utf-8")


def all_devices() -> str:
    """Names of all CUDA devices of the machine, with commas between them."""
    open_device("cuda")
    import cupy

    return ",".join(f"cuda:{index}" for index in range(cupy.cuda.runtime.getDeviceCount()))


def open_device(name: str) -> Device:
    """Open a CUDA device, once in a process: ``cuda`` for the first one, or ``cuda:`` and its number.

    Raises SetupError if CuPy or the driver is missing; UsageError if no such device is there, or an old one.
    """
    index = device_index(name)
    if index in _OPENED:
        return _OPENED[index]
    try:
        import cupy
    except ImportError as error:
        cause = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not load ({error})"
        raise SetupError(
            f"device {name} needs CuPy, which {cause}.",
            f"{install_remedy('cuda13')} CUDA 12 wants cupy-cuda12x. Or use device cpu.",
        ) from error
    check_device(cupy, name, index)
    # Of two threads that open it, both get the first one's.
    return _OPENED.setdefault(index, Device(index))


def is_open(name: str) -> bool:
    """Whether a CUDA device has been opened in this process."""
    return device_index(name) in _OPENED


def free_memory(name: str) -> int:
    """Bytes of a CUDA device that a run may take: most of what is free."""
    return open_device(name).free_bytes * 19 // 20


def check_device(cupy: Any, name: str, index: int) -> None:
    """Raise UsageError for a device that is not there or too old, SetupError without a driver."""
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise SetupError(
            f"device {name} cannot be used: {error}.", "Install or update NVIDIA's driver, or use device cpu."
        ) from error
    if index >= count:
        raise UsageError(
            f"device {name} does not exist: this machine has {count}.",
            "Use cuda:0 for the first, or device cpu.",
        )
    properties = runtime.getDeviceProperties(index)
    has = int(properties["major"]), int(properties["minor"])
    if has < MIN_CAPABILITY:
        raise UsageError(
            f"device {name} ({properties['name'].decode()}) has compute capability {has[0]}.{has[1]}; "
            f"the kernels need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}.",
            "Use a newer device, or device cpu.",
        )
