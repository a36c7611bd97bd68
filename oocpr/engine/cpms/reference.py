"""The sweeps in NumPy and SciPy: numbers are plain float64, and cut to what would be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from oocpr.engine.cpms.sweeps import Sweeps
from oocpr.engine.tiles.stream import PassTraffic
from oocpr.store.codec.tiles import decode_tile

if TYPE_CHECKING:
    from oocpr.engine.tiles.source import RankedStore


class ReferenceSweeps(Sweeps):
    """The sweeps, the whole graph in memory."""

    def __init__(self, store: RankedStore, segments: int) -> None:
        self._segments, self._nodes = segments, store.nodes
        degree = store.out_degree(0, store.nodes)
        self._dangling = degree == 0
        lengths, columns = np.zeros(store.nodes + 1, np.int64), [np.empty(0, np.uint32)]
        self._unread, buffer = 0, np.empty(store.encoded.max_bytes, np.uint8)
        for tile, first in enumerate(store.tile_rows[:-1].tolist()):
            size = store.encoded.read_into(tile, buffer)
            some, of_rows = decode_tile(buffer[:size])
            lengths[first : first + of_rows.size] += of_rows
            columns.append(some)
            self._unread += size
        self._columns = np.concatenate(columns)
        self._offsets = np.append(0, np.cumsum(lengths[:-1]))
        self._values = 1 / np.maximum(degree, 1)[self._columns]
        self._old, self._new = np.full(store.nodes, 1 / store.nodes), np.zeros(store.nodes)

    def _cut(self, numbers: NDArray[np.float64], read: int) -> NDArray[np.float64]:
        """Take what is not read of numbers as zeros."""
        dropped = np.uint64(64 - 64 // self._segments * read)
        if not dropped:
            return numbers
        return (numbers.view(np.uint64) >> dropped << dropped).view(np.float64)

    def dangling_mass(self, read: int) -> float:
        """See Sweeps."""
        return float(np.abs(self._cut(self._old, read)[self._dangling]).sum())

    def sweep(self, read: int, written: int, damping: float, constant: float) -> PassTraffic:
        """See Sweeps."""
        matrix = csr_array((self._cut(self._values, read), self._columns, self._offsets), (self._nodes,) * 2)
        self._write(damping * (matrix @ self._cut(self._old, read)) + constant, written)
        traffic, self._unread = PassTraffic(self._unread, 0.0), 0
        return traffic

    def _write(self, numbers: NDArray[np.float64], written: int) -> None:
        """Write the first segments, which leaves the others as they were."""
        bits = np.uint64(64 // self._segments * written)
        left = np.uint64(0) if bits == 64 else self._new.view(np.uint64) << bits >> bits
        self._new = (self._cut(numbers, written).view(np.uint64) | left).view(np.float64)

    def _norm(self, vector: NDArray[np.float64], read: int) -> float:
        return float(np.abs(self._cut(vector, read)).sum())

    def scale(self, read: int, divisor: float) -> None:
        """See Sweeps."""
        self._write(self._cut(self._new, read) / divisor, read)

    def change(self, read: int) -> float:
        """See Sweeps."""
        return float(np.abs(self._cut(self._new, read) - self._cut(self._old, read)).sum())

    def to_plain(self) -> None:
        """See Sweeps."""
        self._segments = 1

    def ranks(self, read: int) -> NDArray[np.float64]:
        """See Sweeps."""
        return self._cut(self._old, read).copy()
