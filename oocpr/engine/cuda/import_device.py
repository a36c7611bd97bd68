"""Keys sorted and tiles packed on a device for an import; the bytes are those that the host would write."""

from __future__ import annotations

from threading import Semaphore
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.device import fetch, send
from oocpr.engine.cuda.tile_encoder import TileEncoder
from oocpr.plan.memory import Needs
from oocpr.system import usable_cores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.cuda.device import Device

SORTS = 3
"""Sorts at a time: keys come and go while others are sorted."""

BYTES_PER_KEY = 24
"""Of the device, while keys are sorted: the keys, their new places, and what sorting takes beside."""


class DevicePacker:
    """Sorts keys and packs tiles for an import, see `SortEncodeService`, on a device.

    Parameters
    ----------
    device
        Where.

    Attributes
    ----------
    workers
        Threads that are worth having: as many as there are processors.
    needs
        Encoded tiles come back in parts, which are then joined.
    """

    needs = Needs(key_bytes=0, edge_bytes=12, row_bytes=32)

    def __init__(self, device: Device) -> None:
        self.workers = usable_cores()
        self._device = device
        self._encoder = TileEncoder(device)
        self._sorting = Semaphore(SORTS)
        self._most_keys = device.free_bytes // (2 * SORTS * BYTES_PER_KEY)
        # What is loaded on first use takes memory, of which an import sees only what is there when it begins.
        self.sort(np.zeros(2, np.uint64))
        self.encode(np.zeros(1, np.uint32), np.ones(1, np.uint32))

    def sort(self, keys: NDArray[np.uint64]) -> None:
        """Put keys into ascending order, in their place.

        Parameters
        ----------
        keys
            uint64, shape (k,). More of them than the device has memory for are sorted by the host.
        """
        if keys.size > self._most_keys:
            keys.sort()
            return
        with self._sorting, self._device.apart():
            there = self._device.xp.empty(keys.size, np.uint64)
            send(there, keys)
            there.sort()
            fetch(there, keys)

    def encode(self, columns: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Pack a tile.

        Parameters
        ----------
        columns
            uint32, shape (m,): strictly ascending inside a segment.
        lengths
            Entries of each segment: uint32, shape (s,), their sum is m.

        Returns
        -------
        ndarray
            The bytes of :func:`oocpr.store.codec.tile_encoder.encode_tile`: uint8, shape (bytes,).

        Raises
        ------
        UsageError
            Where a segment is not strictly ascending.
        """

        def place(there: Any) -> None:
            if columns.size:
                send(there, columns)

        return self._encoder.encode(columns.size, lengths, place)
