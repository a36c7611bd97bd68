"""Devices of the host with a pool of memory each, of which they say and hold what CUDA devices do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from oocpr.engine.cuda.device import open_device
from oocpr.engine.cuda.names import named_devices
from oocpr.errors import DoesNotFitError

from .shim.host import HostDevice
from .shim.pool import Pool, PooledNumpy, PoolError

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

MEMORY = 1 << 36
"""Bytes that a device claims to have."""


class PooledDevice(HostDevice):
    """A device whose arrays are in a pool."""

    def __init__(self, folder: Path, pool: Pool) -> None:
        super().__init__(folder)
        self._pool = pool
        self._numpy: Any = PooledNumpy(pool)

    @property
    def xp(self) -> ModuleType:  # type: ignore[override]
        """See Device."""
        numpy: ModuleType = self._numpy
        return numpy

    @property
    def free_bytes(self) -> int:
        """See Device."""
        return MEMORY - self._pool.used

    @property
    def allocated_bytes(self) -> int:
        """See Device."""
        return self._pool.most

    def reset_allocated(self) -> None:
        """See Device."""
        self._pool.most = self._pool.total

    def limit(self, nbytes: int | None) -> int:
        """See Device."""
        self._pool.free_all_blocks()
        before = self._pool.limit
        if nbytes is not None:
            self._pool.limit = nbytes
        return before

    def __exit__(self, *exception: object) -> None:
        if isinstance(exception[1], PoolError):
            raise DoesNotFitError(f"{exception[1]}; the run needs more.", "Use more.") from exception[1]


class PooledMachine:
    """Two devices of the host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pools = [Pool(), Pool()]

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self.pools)

    def open_device(self, name: str) -> PooledDevice:
        """Stands for the function of `cuda_device`."""
        return PooledDevice(self._folder, self.pools[_number(name)])

    @property
    def used(self) -> int:
        """Bytes of arrays that are there."""
        return sum(pool.used for pool in self.pools)

    @property
    def total(self) -> int:
        """Bytes that are taken of the device of which most are."""
        return max(pool.total for pool in self.pools)

    @property
    def limits(self) -> list[int]:
        """Most bytes that may be."""
        return [pool.limit for pool in self.pools]


class CudaMachine:
    """The same of real devices; memory of theirs that others use is none of it."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._before = 0
        self.devices = min(2, cupy.cuda.runtime.getDeviceCount())
        self._before = self.used

    def open_device(self, name: str) -> Device:
        """See `cuda_device`."""
        return open_device(name)

    @property
    def used(self) -> int:
        """See PooledMachine."""
        return sum(pool.used_bytes() for pool in self._pools()) - self._before

    @property
    def total(self) -> int:
        """See PooledMachine."""
        return max(pool.total_bytes() for pool in self._pools())

    @property
    def limits(self) -> list[int]:
        """See PooledMachine."""
        return [pool.get_limit() for pool in self._pools()]

    def _pools(self) -> Iterator[Any]:
        for index in range(self.devices):
            with self._cupy.cuda.Device(index):
                yield self._cupy.get_default_memory_pool()


def _number(name: str) -> int:
    (full,) = named_devices(name)
    return int(full.removeprefix("cuda:"))
