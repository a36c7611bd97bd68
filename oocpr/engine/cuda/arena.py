"""Memory of a device that is taken once and given out again for each piece of work.

A pool finds no room for arrays of ever different sizes where memory is short, and gives back and takes again,
which every kernel waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from oocpr.engine.cuda.device import Device

ALIGNED = 256


class Memory(Protocol):
    """Makes arrays of a device: `Device.xp` does, and a slab."""

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
        """Array of whatever."""

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
        """Array of zeros."""


class Slab:
    """Memory of a fixed size.

    Parameters
    ----------
    device
        Where.
    nbytes
        How much; what is asked for beyond comes from the device's pool.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self._xp = device.xp
        with device:
            self._memory = self._xp.empty(nbytes, np.uint8)
        self._used = 0

    def clear(self) -> None:
        """Take everything back; nobody may use an array any more that was given out."""
        self._used = 0

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
        """See Memory."""
        kind = np.dtype(dtype)
        begin = self._used
        end = begin + int(np.prod(shape)) * kind.itemsize
        if end > self._memory.size:
            return self._xp.empty(shape, dtype)
        self._used = -(-end // ALIGNED) * ALIGNED
        return self._memory[begin:end].view(kind).reshape(shape)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
        """See Memory."""
        array = self.empty(shape, dtype)
        array.fill(0)
        return array
