"""The host as a device: kernels compiled with g++ and called with NumPy arrays.

What CuPy does not check is checked here: that each argument has the very type that the kernel takes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from oocpr.engine.cuda.device import download, inline

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Event

SHIM = Path(__file__).parent
SANITIZE = os.environ.get("OOCPR_SHIM_SANITIZE") == "1"
"""Whether to compile with the sanitizers of addresses and of undefined behaviour; needs libasan preloaded."""

_FLAGS = (
    "-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE",
    # Nothing that copies or merges code: calls are told apart by their addresses.
    "-fno-thread-jumps", "-fno-tree-dominator-opts", "-fno-tree-ch", "-fno-crossjumping",
    "-fno-tree-tail-merge",
    "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-sign-compare",
)  # fmt: skip
_SANITIZERS = (
    "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer",
    "-fsanitize-sections=shim_shared",
)  # fmt: skip


_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')

_LAUNCHING = threading.Lock()
"""A library keeps the threads of the kernel that runs in variables of its own, for one kernel at a time; and
what a kernel takes, in text that is written whenever it is asked for."""


class HostError(Exception):
    """A kernel does not compile, got arguments that it does not take, or waits for ever."""


_RECORDED = threading.local()
"""What a thread records, if it does: ``work``, a list of functions."""


def _run_or_record(work: Callable[[], None]) -> None:
    recorded: list[Callable[[], None]] | None = getattr(_RECORDED, "work", None)
    if recorded is None:
        work()
    else:
        recorded.append(work)


class HostKernel:
    """One kernel; called as CuPy's are."""

    def __init__(self, path: Path, name: str, reverse: bool) -> None:
        library = ctypes.CDLL(str(path))
        self._path = path
        self._name = name
        self._reverse = reverse
        signature = getattr(library, f"signature_{name}")
        signature.restype = ctypes.c_char_p
        with _LAUNCHING:
            self.parameters: list[str] = signature().decode().split()
        self._launch = getattr(library, f"launch_{name}")
        self._launch.restype = ctypes.c_char_p
        self._launch.argtypes = [
            ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t, ctypes.c_bool, ctypes.POINTER(ctypes.c_void_p),
        ]  # fmt: skip
        self.max_dynamic_shared_size_bytes = 48 << 10

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        """Run the kernel to its end, or later if the thread records what it launches; see `run`."""
        _run_or_record(partial(self.run, grid, block, args, shared_mem))

    def run(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int
    ) -> None:
        """Run the kernel to its end.

        Raises HostError if an argument is not of the parameter's type, or threads wait for others that do not
            come.
        """
        if any(n != 1 for n in (*grid[1:], *block[1:])):
            raise HostError(f"{self._name}: grids and blocks have one dimension")
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise HostError(f"{self._name}: {shared_mem} bytes of shared memory were not asked for")
        if len(args) != len(self.parameters):
            raise HostError(f"{self._name} takes {len(self.parameters)} arguments, not {len(args)}")
        held = [self._place(k, args[k]) for k in range(len(args))]
        arrays = [(given, copy) for given, copy, _ in held if copy is not None]
        places = (ctypes.c_void_p * len(held))(*(pointer.ctypes.data for _, _, pointer in held))
        with _LAUNCHING:
            fault = self._launch(int(grid[0]), int(block[0]), shared_mem, self._reverse, places)
        for given, copy in arrays:
            given[...] = copy
        if fault:
            raise HostError(f"{self._name}: {re.sub(r'{[+]([0-9a-f]+)}', self._place_of, fault.decode())}")

    def _place_of(self, offset: re.Match[str]) -> str:
        """Lines of an offset in the library, the innermost call first."""
        # The address behind a call may belong to the next line.
        address = hex(int(offset[1], 16) - 1)
        command = ["addr2line", "-i", "-e", str(self._path), address]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        sources = [line.split(" ")[0].split("/kernels/")[-1] for line in lines if "/kernels/" in line]
        return " in ".join(line for line in sources if not line.startswith("shim/")) or offset[0]

    def _place(self, number: int, value: Any) -> tuple[Any, Any, Any]:
        """An argument, its copy that has to be brought back, and an array that holds what is passed."""
        parameter = self.parameters[number]
        if value is None and parameter[0] in "pc":
            return value, None, np.zeros(1, np.uintp)
        if not isinstance(value, np.ndarray | np.generic):
            raise HostError(f"{self._name}: argument {number} is a {type(value).__name__}, not {parameter}")
        kind = {"b": "u", "V": "x"}.get(value.dtype.kind, value.dtype.kind) + str(value.dtype.itemsize)
        if isinstance(value, np.generic):
            if kind != parameter:
                raise HostError(f"{self._name}: argument {number} is {kind}, not {parameter}")
            return value, None, np.array(value)
        # CuPy has no arrays of structures: these come as bytes.
        structures = parameter[1] == "x" and kind == "u1" and value.size % int(parameter[2:]) == 0
        if parameter[0] not in "pc" or not (structures or kind == parameter[1:]):
            raise HostError(f"{self._name}: argument {number} is an array of {kind}, not {parameter}")
        if not value.flags.c_contiguous:
            raise HostError(f"{self._name}: argument {number} is not contiguous")
        if parameter[0] == "p" and not value.flags.writeable:
            raise HostError(f"{self._name}: argument {number} is written but may not be")
        copy = value
        if SANITIZE and value.base is not None:
            # A view's memory goes on behind its end, where the sanitizer would find nothing wrong.
            copy = value.copy()
        return value, copy if copy is not value and parameter[0] == "p" else None, _pointer_to(copy)


class _Pointer(np.ndarray):
    """The address of an array, which it keeps alive."""

    target: Any


def _pointer_to(array: Any) -> Any:
    pointer = np.array([array.ctypes.data], np.uintp).view(_Pointer)
    pointer.target = array
    return pointer


class HostKernels:
    """A compiled source."""

    def __init__(self, path: Path, names: tuple[str, ...], reverse: bool) -> None:
        self._kernels = {name: HostKernel(path, name, reverse) for name in names}

    def get_function(self, name: str) -> HostKernel:
        """Kernel of a name."""
        return self._kernels[name]


class HostMark:
    """See Event; the host does everything at once."""

    done = True

    def synchronize(self) -> None:
        """See Event."""


class HostLink:
    """See Link; between devices of this process, whose threads meet at a barrier."""

    _meetings: ClassVar[dict[Any, tuple[threading.Barrier, list[Any]]]] = {}
    _lock = threading.Lock()

    def __init__(self, key: Any, rank: int, size: int) -> None:
        with self._lock:
            meeting = self._meetings.setdefault(key, (threading.Barrier(size, timeout=60), [None]))
        self._rank = rank
        self._barrier, self._sent = meeting
        self._barrier.wait()

    def broadcast(self, source: Any, target: Any, root: int) -> None:
        """See Link."""
        if root == self._rank:
            # On its way it is in the memory of no device.
            self._sent[0] = np.array(source)
        self._barrier.wait()
        target[...] = self._sent[0]
        self._barrier.wait()

    def abort(self) -> None:
        """See Link."""
        self._barrier.abort()


class HostDevice:
    """What :class:`oocpr.engine.cuda.device.Device` describes, on the host.

    `folder`: where compiled libraries are kept; they are found again by what they were compiled of.
    `warp`: lanes of a warp, 32 or 64.
    `reverse`: whether blocks, warps and lanes run from the last to the first.
    `multiprocessors`: how many the device claims to have.
    `linked`: whether its kernels read what other devices have.
    """

    xp: ModuleType = np
    shared_bytes = 227 << 10

    def __init__(
        self,
        folder: Path,
        *,
        warp: int = 32,
        reverse: bool = False,
        multiprocessors: int = 2,
        linked: bool = True,
    ) -> None:
        self._folder = folder
        self._loaded: dict[tuple[Any, ...], HostKernels] = {}
        self.warp = warp
        self._reverse = reverse
        self._linked = linked
        self.limited = 0
        self.multiprocessors = multiprocessors
        self.name = f"host, warps of {warp}" + (", reverse" if reverse else "")

    def load(self, file: str, **parameters: int | str) -> HostKernels:
        """See Device."""
        return self.compile(f'#include "{file}"', **parameters)

    def compile(self, text: str, **parameters: int | str) -> HostKernels:
        """See Device."""
        key = (text, *sorted(parameters.items()))
        if key not in self._loaded:
            whole = inline(text, {**parameters, "WARP_SIZE": self.warp})
            names = kernel_names(whole)
            self._loaded[key] = HostKernels(build(whole, names, self._folder), names, self._reverse)
        return self._loaded[key]

    def synchronize(self) -> None:
        """See Device."""

    @property
    def free_bytes(self) -> int:
        """See Device: more than any test takes."""
        return 1 << 36

    @property
    def allocated_bytes(self) -> int:
        """See Device; the host's memory is not counted."""
        return 0

    def reset_allocated(self) -> None:
        """See Device."""

    def limit(self, nbytes: int | None) -> int:
        """See Device; told, but not held."""
        before = self.limited
        self.limited = before if nbytes is None else nbytes
        return before

    def reserve(self, nbytes: int) -> None:
        """See Device; arrays of NumPy have their own memory."""

    def past_pool(self) -> AbstractContextManager[None]:
        """See Device; the host has no pool."""
        return nullcontext()

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """See Device."""
        return np.empty(nbytes, np.uint8)

    def register(self, memory: NDArray[np.uint8]) -> Callable[[], Any] | None:  # noqa: ARG002
        """See Device."""
        return lambda: None

    def mapped(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """See Device."""
        memory = np.empty(shape, dtype)
        return memory, memory

    def record_event(self, *, copy_stream: bool = False) -> HostMark:  # noqa: ARG002
        """See Device."""
        return HostMark()

    def receiving(self, nbytes: int) -> Any:
        """See Device."""
        memory = self.xp.empty(nbytes, np.uint8)
        self.copy_stream_wait(self.record_event())
        return memory

    def upload_async(self, array: Any, values: NDArray[np.uint8]) -> HostMark:
        """See Device."""
        array[...] = values
        return HostMark()

    def send(self, there: Any, here: Any) -> None:
        """See Device."""
        _run_or_record(partial(np.copyto, there, here))

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See Device."""
        recorded: list[Callable[[], None]] = []
        _RECORDED.work = recorded
        try:
            work()
        finally:
            _RECORDED.work = None

        def launch() -> None:
            for each in recorded:
                each()

        return launch

    def copy_from(self, array: Any, values: Any) -> None:
        """See Device."""
        array[...] = values

    def bring(self, array: Any, out: Any = None) -> Any:
        """See Device."""
        return np.positive(download(array), out=out)

    def put(self, array: Any, values: Any) -> None:
        """See Device."""
        array[...] = values

    def can_read(self, values: Any) -> bool:
        """See Device; one without links gets copies of all, its own too."""
        return self._linked and isinstance(values, np.ndarray)

    def connect(self, key: Any, rank: int, size: int) -> HostLink:
        """See Device."""
        return HostLink(key, rank, size)

    @property
    def cores(self) -> frozenset[int]:
        """See Device."""
        return frozenset()

    def wait_for(self, mark: Event) -> None:
        """See Device."""

    def copy_stream_wait(self, mark: Event) -> None:
        """See Device."""

    def timestamp(self, *, copy_stream: bool = False, again: Any = None) -> list[float]:  # noqa: ARG002
        """See Device."""
        moment: list[float] = [] if again is None else again
        moment[:] = [perf_counter()]
        return moment

    def has_passed(self, moment: list[float]) -> bool:  # noqa: ARG002
        """See Device; the host does everything at once."""
        return True

    def elapsed(self, earlier: list[float], later: list[float]) -> float:
        """See Device."""
        return later[0] - earlier[0]

    def __enter__(self) -> HostDevice:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def kernel_names(text: str) -> tuple[str, ...]:
    """Names of the kernels that a source defines, in its order."""
    return tuple(_KERNEL.findall(text))


def build(text: str, names: tuple[str, ...], folder: Path) -> Path:
    """Compile a source into a library that has ``launch_NAME`` and ``signature_NAME`` of each kernel."""
    flags = _FLAGS + _SANITIZERS if SANITIZE else _FLAGS
    exported = "".join(_EXPORT.replace("NAME", name) for name in names)
    # Outside of any header, everything of a source is its own: static, and free to be placed in a section.
    defines, rest = _split(text)
    unit = f'{defines}#include "shim.hpp"\nnamespace {{\n{rest}\n}}\n{exported}'
    seen = hashlib.sha256("\0".join((unit, *flags, *_shim())).encode()).hexdigest()[:24]
    library = folder / f"{seen}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{seen}-{os.getpid()}-{threading.get_ident()}.so"
        command = ["g++", *flags, f"-I{SHIM}", "-x", "c++", "-", "-o", str(partial)]
        done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HostError(done.stderr)
        partial.replace(library)
    return library


_EXPORT = """
extern "C" const char* signature_NAME() { return shim::signature(NAME); }
extern "C" const char* launch_NAME(unsigned grid, unsigned block, size_t shared, bool reverse, void** args) {
  return shim::launch([](void** a) { shim::call(NAME, a); }, grid, block, shared, reverse, args);
}
"""


def _split(text: str) -> tuple[str, str]:
    """Macros in front, and what follows."""
    lines = text.splitlines(keepends=True)
    end = next((k for k, line in enumerate(lines) if not line.startswith("#define ")), len(lines))
    return "".join(lines[:end]), "".join(lines[end:])


def _shim() -> list[str]:
    return [path.read_text() for path in sorted(SHIM.glob("*.hpp"))]


def libasan() -> str:
    """Library to preload where SANITIZE is set."""
    command = ["g++", "-print-file-name=libasan.so"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
