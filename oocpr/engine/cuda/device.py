"""What kernels run on, a CUDA device or in tests the host, and how arrays come from there and go there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType

    from numpy.typing import DTypeLike, NDArray

    from oocpr.engine.cuda.nccl import Link


class Kernels(Protocol):
    """A compiled source."""

    def get_function(self, name: str) -> Any:
        """Kernel of a name, called as ``kernel(grid, block, arguments, shared_mem=0)``.

        Grid and block are tuples. An argument is an array of `Device.xp`, a NumPy scalar of the very type
        that the kernel takes (a Python int passes 64 bits), or None for a null pointer.
        """


class Mark(Protocol):
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

    def mark(self) -> Mark:
        """Remember which kernels have been launched."""

    def send_beside(self, array: Any, values: NDArray[np.uint8]) -> Mark:
        """Send pinned bytes to an array of the device while kernels run.

        What is sent first arrives first. The mark that is returned is passed once the bytes are there; until
        then they must not change.
        """

    def bring(self, array: Any, values: Any) -> None:
        """Copy numbers of another device, or of the host, to an array of this one, behind what was launched.

        What computes them has run, and they do not change before what is launched here next has.
        """

    def sees(self, values: Any) -> bool:
        """Whether kernels of the device, which is current, can read numbers where they are."""

    def join(self, key: Any, rank: int, size: int) -> Link:
        """Connect the device, which is current, with those of other processes; returns once all have come."""

    def wait_for(self, mark: Mark) -> None:
        """Let kernels that are launched from now on begin after a mark."""

    def hold_beside(self, mark: Mark) -> None:
        """Let what is sent from now on while kernels run begin after a mark."""

    def moment(self, *, beside: bool = False, again: Any = None) -> Any:
        """Note when the device gets here among its kernels or, `beside`, among what is sent meanwhile.

        A moment of before that nobody asks for any more may serve `again`.
        """

    def passed(self, moment: Any) -> bool:
        """Whether the device has got to a moment."""

    def between(self, earlier: Any, later: Any) -> float:
        """Seconds from one moment to another, both of which the device has passed."""

    def apart(self) -> AbstractContextManager[object]:
        """Make the device current for this thread, whose work waits for none that other threads launch."""

    def __enter__(self) -> object:
        """Make the device current for this thread."""

    def __exit__(self, *exception: object) -> None:
        """Make the one before current again."""


def fetch(array: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Bring an array of a device to the host, into `out` or new memory, once what was launched has run."""
    if hasattr(array, "get"):
        here: NDArray[Any] = array.get(out=out)
        return here
    if out is None:
        return np.asarray(array)
    out[...] = array
    return out


def placed(device: Device, values: NDArray[Any]) -> Any:
    """Bring numbers of the host to an array of a device.

    CuPy's own way is by pinned memory, as much as there are numbers up to the next power of two, which it
    keeps.
    """
    there = device.xp.empty(values.shape, values.dtype)
    if values.size:
        send(there, values)
    return there


def send(array: Any, values: NDArray[Any]) -> None:
    """Put numbers of the host into an array of a device; nothing is waited for."""
    if hasattr(array, "set"):
        array.set(values)
    else:
        array[...] = values
