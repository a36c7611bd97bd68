"""Sweeps on a CUDA device that has the whole graph: its rows one after the other (CSR), or abreast (ELL)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cpms.segments import KINDS, segments_size
from oocpr.engine.cuda.device import THREADS, grid
from oocpr.engine.tiles.stream import PassTraffic
from oocpr.errors import DamagedError
from oocpr.store.codec.tiles import decode_tile

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.tiles.source import RankedStore


SLICE = 32
"""Rows that stand side by side in ELL, all with room for the edges of the longest."""


class DeviceSweeps:
    """See `oocpr.engine.cpms.run.Sweeps`; at most `limit` bytes of the device are taken, if it is given.

    `slices`: whether the matrix is in ELL, in slices of SLICE rows.
    """

    def __init__(
        self,
        store: RankedStore,
        device: Device,
        segments: int,
        limit: int | None = None,
        *,
        slices: bool = False,
    ) -> None:
        self._store, self._device, self._segments, self._slices = store, device, segments, slices
        self._limited, self._limit_before = limit is not None, device.limit(limit)
        device.reset_allocated()
        try:
            with device:
                self._lay_out()
        except BaseException:
            # Nobody has this, so nobody can close it.
            self.close()
            raise

    def _lay_out(self) -> None:
        store, xp = self._store, self._device.xp
        nodes, degree = store.nodes, store.out_degree(0, store.nodes)
        self._partials = xp.empty(grid(max(1, nodes))[0])
        self._dangling = xp.asarray(np.flatnonzero(degree == 0).astype(np.uint32))
        self._old, self._new, weights = (self._room(nodes) for _ in range(3))
        self._write(self._old, np.full(nodes, 1 / nodes))
        self._write(weights, 1 / np.maximum(degree, 1))
        del degree
        self._columns = xp.empty(max(1, store.edges), np.uint32)
        offsets = self._read_columns()
        self._begins = xp.asarray(offsets.astype(np.uint32))
        places = store.edges
        if self._slices:
            places = self._lay_out_slices(offsets)
        self._values = self._room(places)
        self._launch("copy_numbers", places, weights, self._columns, np.uint64(places), self._values)

    def _lay_out_slices(self, offsets: NDArray[np.int64]) -> int:
        """Put rows of SLICE side by side; returns places, of which those behind short rows stay empty."""
        nodes, xp = self._store.nodes, self._device.xp
        longest = np.maximum.reduceat(np.diff(offsets), np.arange(0, nodes, SLICE)) if nodes else offsets[1:]
        slices = np.append(0, np.cumsum(SLICE * longest))
        begins, columns = xp.asarray(slices.astype(np.uint64)), xp.full(int(slices[-1]), 2**32 - 1, np.uint32)
        self._launch("lay_out_slices", nodes, self._begins, self._columns, np.uint32(nodes), begins, columns)
        self._begins, self._columns = begins, columns
        return int(slices[-1])

    def _room(self, count: int) -> Any:
        return self._device.xp.zeros(segments_size(self._segments, count), KINDS[self._segments])

    def _write(self, array: Any, values: NDArray[np.float64]) -> None:
        sent = self._device.xp.asarray(values)
        self._launch(
            "write_numbers", values.size, sent, np.uint64(values.size), np.int32(self._segments), array
        )

    def _read_columns(self) -> NDArray[np.int64]:
        """Read and decode all tiles, and check their columns; returns where rows begin."""
        store, at = self._store, 0
        lengths = np.zeros(store.nodes + 1, np.int64)
        buffer = np.empty(store.encoded.max_bytes, np.uint8)
        self._bytes_read = 0
        for tile, first in enumerate(store.tile_rows[:-1].tolist()):
            size = store.encoded.read_into(tile, buffer)
            columns, of_rows = decode_tile(buffer[:size])
            if of_rows.size != store.tile_rows[tile + 1] - first + 1 or columns.max(initial=0) >= store.nodes:
                raise DamagedError(f"{store.path}: tile {tile} has edges of no nodes of the graph.")
            lengths[first : first + of_rows.size] += of_rows
            self._device.copy_from(self._columns[at : at + columns.size], columns)
            at, self._bytes_read = at + columns.size, self._bytes_read + size
        offsets: NDArray[np.int64] = np.append(0, np.cumsum(lengths[:-1]))
        if at != store.edges or offsets[-1] != at:
            raise DamagedError(f"{store.path}: tiles have {at} edges, not {store.edges}.")
        return offsets

    def _launch(self, name: str, threads: int, *arguments: Any) -> None:
        if threads:
            kernels = self._device.load("papers/cpms.cu", SEGMENTS=self._segments)
            kernels.get_function(name)(grid(threads), (THREADS,), arguments)

    def _sum(self, name: str, count: int, *arguments: Any) -> float:
        """Launch a kernel that adds up by blocks of threads, and add these up."""
        if not count:
            return 0.0
        self._launch(name, count, *arguments, self._partials)
        return float(self._partials[: grid(count)[0]].sum())

    def dangling_mass(self, read: int) -> float:
        """See Sweeps."""
        count = int(self._dangling.size)
        with self._device:
            return self._sum("sum_chosen", count, self._old, self._dangling, np.uint64(count), np.int32(read))

    def sweep(self, read: int, written: int, damping: float, constant: float) -> PassTraffic:
        """See Sweeps."""
        nodes = self._store.nodes
        with self._device:
            self._launch(
                "sweep_slices" if self._slices else "sweep", nodes,
                self._begins, self._columns, self._values, self._old, np.uint32(nodes), np.int32(read),
                np.float64(damping), np.float64(constant), np.int32(written), self._new,
            )  # fmt: skip
        traffic, self._bytes_read = PassTraffic(self._bytes_read, 0.0), 0
        return traffic

    def total(self, read: int) -> float:
        """See Sweeps."""
        return self._norm(self._old, read)

    def norm(self, read: int) -> float:
        """See Sweeps."""
        return self._norm(self._new, read)

    def _norm(self, vector: Any, read: int) -> float:
        nodes = self._store.nodes
        with self._device:
            return self._sum("sum_all", nodes, vector, np.uint64(nodes), np.int32(read))

    def scale(self, read: int, divisor: float) -> None:
        """See Sweeps."""
        nodes = self._store.nodes
        with self._device:
            self._launch("divide", nodes, self._new, np.uint64(nodes), np.int32(read), np.float64(divisor))

    def change(self, read: int) -> float:
        """See Sweeps."""
        nodes = self._store.nodes
        with self._device:
            return self._sum("sum_differences", nodes, self._new, self._old, np.uint64(nodes), np.int32(read))

    def advance(self) -> None:
        """See Sweeps."""
        self._old, self._new = self._new, self._old

    def to_plain(self) -> None:
        """See Sweeps."""
        with self._device:
            self._old, self._new, self._values = map(self._plain, (self._old, self._new, self._values))
        self._segments = 1

    def _plain(self, array: Any) -> Any:
        numbers = array.view(np.float64)
        self._launch("to_numbers", int(numbers.size), numbers, np.uint64(numbers.size))
        return array.view(np.uint64)

    def ranks(self, read: int) -> NDArray[np.float64]:
        """See Sweeps."""
        nodes = self._store.nodes
        with self._device:
            # In the place of the other vector, which nobody needs any more.
            values = self._new.view(np.float64)[:nodes]
            self._launch("read_numbers", nodes, self._old, np.uint64(nodes), np.int32(read), values)
            return self._device.bring(values)

    @property
    def allocated_bytes(self) -> int:
        """See Sweeps."""
        return self._device.allocated_bytes

    def close(self) -> None:
        """See Sweeps."""
        for name in ("_columns", "_begins", "_values", "_old", "_new", "_dangling", "_partials"):
            vars(self).pop(name, None)
        if self._limited:
            self._limited = False
            self._device.limit(self._limit_before)
