"""Sweeps on a CUDA device: groups of tiles are decoded there, once if there is room, else in every sweep.

Rows of a group stand one after the other (CSR) or, if all groups stay decoded, side by side (ELL).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cpms.segments import KINDS, segments_size
from oocpr.engine.cpms.sweeps import Sweeps
from oocpr.engine.cuda.baselines import allocated, decode
from oocpr.engine.cuda.device import THREADS, download, grid
from oocpr.engine.cuda.group import DeviceGroup, raise_faults
from oocpr.engine.cuda.staging import CudaTileStream
from oocpr.engine.tiles.source import tiles_of
from oocpr.errors import DoesNotFitError
from oocpr.plan.products import decoded_arrays
from oocpr.plan.residency import ring_slots

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.tiles.groups import GroupedStore
    from oocpr.engine.tiles.stream import PassTraffic
    from oocpr.plan.device_memory import DeviceTiers

SLICE = 32
"""Rows that stand side by side in ELL, all with room for the edges of the longest."""


class Decoded(NamedTuple):
    """A group decoded, or room for one: arrays of `decoded_arrays`, and a matrix value for each column."""

    arrays: dict[str, Any]
    values: Any


class Slices(NamedTuple):
    """Rows of a group side by side: where each slice begins, and its columns and matrix values."""

    begins: Any
    columns: Any
    values: Any


class DeviceSweeps(Sweeps):
    """The sweeps on a device; what stays where is as `tiers` say.

    `slices`: whether rows stand side by side; raises DoesNotFitError if groups do not stay decoded.
    """

    def __init__(
        self,
        store: GroupedStore,
        device: Device,
        segments: int,
        tiers: DeviceTiers,
        *,
        direct: bool = False,
        slices: bool,
    ) -> None:
        if slices and not tiers.layouts_stay:
            raise DoesNotFitError(
                "kernel ell needs all rows decoded in the memory of the device.",
                "Use kernel csr-scalar, or more device memory.",
            )
        self._store, self._device, self._segments, self._slices = store, device, segments, slices
        self._stay = tiers.layouts_stay
        self._limited, self._limit_before = tiers.limit is not None, device.limit(tiers.limit)
        device.reset_allocated()
        self._stream: CudaTileStream | None = None
        try:
            with device:
                self._allocate()
                self._open(tiers, direct=direct)
        except BaseException:
            # Nobody has this, so nobody can close it.
            self.close()
            raise

    def _allocate(self) -> None:
        """Make the vectors, and the matrix value that a node gives to each of its edges."""
        store, xp = self._store, self._device.xp
        nodes, degree = store.nodes, store.out_degree(0, store.nodes)
        self._partials = xp.empty(grid(max(1, nodes))[0])
        self._dangling = xp.asarray(np.flatnonzero(degree == 0).astype(np.uint32))
        # Columns that are no nodes are taken for one more, until a pass ends.
        self._old, self._new, self._weights = (self._room(nodes + 1) for _ in range(3))
        self._write(self._old, np.full(nodes, 1 / nodes))
        self._write(self._weights, 1 / np.maximum(degree, 1))

    def _open(self, tiers: DeviceTiers, *, direct: bool) -> None:
        """Have groups read, and make room for those that are decoded in every sweep."""
        layout, xp = self._store.layout, self._device.xp
        groups = range(len(layout.sizes))
        largest = layout.largest(list(groups))
        self._sums = xp.empty(largest.rows + largest.tiles)
        self._carries = xp.zeros(len(groups) + 1)
        self._faults = xp.zeros(1, np.uint32)
        self._made: dict[int, Decoded | Slices] = {}
        self._workspace = None if self._stay else self._decoded(largest.rows + largest.tiles, largest.edges)
        on_device, in_memory = tiers.places(groups)
        self._stream = CudaTileStream(
            self._device, tiles_of(self._store), groups, layout=layout, on_device=on_device,
            in_host=in_memory - on_device, slots=tiers.slots, readers=tiers.readers,
            buffers=ring_slots(tiers.readers), keep=lambda _: None, faults=self._faults, direct=direct,
        )  # fmt: skip

    def _decoded(self, segments: int, edges: int) -> Decoded:
        """Room for a group of so many segments of tiles, and edges."""
        return Decoded(allocated(self._device, decoded_arrays(segments, edges)), self._room(edges))

    def _room(self, count: int) -> Any:
        return self._device.xp.zeros(segments_size(self._segments, count), KINDS[self._segments])

    def _write(self, array: Any, values: NDArray[np.float64]) -> None:
        sent = self._device.xp.asarray(values)
        self._launch(
            "write_numbers", values.size, sent, np.uint64(values.size), np.int32(self._segments), array
        )

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
        assert self._stream is not None, "it is open until `close`"
        first_rows = self._store.layout.group_rows

        def compute(number: int, group: DeviceGroup) -> None:
            sizes = group.sizes
            with self._device:
                made = self._made.get(number) or self._make(number, group, read)
                segments = sizes.rows + sizes.tiles
                if isinstance(made, Slices):
                    name, rows = "sum_slices", (made.begins, made.columns)
                else:
                    name, rows = "sum_rows", (made.arrays["offsets"], made.arrays["columns"])
                self._launch(
                    name, segments,
                    *rows, made.values, self._old, np.uint32(segments), np.int32(read), self._sums,
                )  # fmt: skip
                self._launch(
                    "write_rows", max(1, sizes.rows),
                    *group.table, self._sums, np.uint64(first_rows[number]), np.uint32(sizes.rows),
                    np.float64(damping), np.float64(constant), np.int32(written), self._new,
                    self._carries[number:],
                )  # fmt: skip

        traffic = self._stream.run(compute)
        with self._device:
            raise_faults(int(download(self._faults)[0]))
        return traffic

    def _make(self, number: int, group: DeviceGroup, read: int) -> Decoded | Slices:
        """Decode a group, to stay or for now, with matrix values of which so many segments are read."""
        sizes = group.sizes
        segments = sizes.rows + sizes.tiles
        made = self._workspace or self._decoded(segments, sizes.edges)
        decode(self._device, group, self._store.nodes, (0, self._store.nodes), made.arrays, self._faults)
        if self._slices:
            self._made[number] = self._side_by_side(made.arrays, segments)
            return self._made[number]
        self._give_values(
            made.arrays["columns"], sizes.edges, self._segments if self._stay else read, made.values
        )
        if self._stay:
            self._made[number] = made
        return made

    def _give_values(self, columns: Any, count: int, kept: int, values: Any) -> None:
        self._launch("copy_numbers", count, self._weights, columns, np.uint64(count), np.int32(kept), values)

    def _side_by_side(self, arrays: dict[str, Any], segments: int) -> Slices:
        """Put rows of SLICE side by side; places behind short rows have no column."""
        xp, offsets = self._device.xp, arrays["offsets"]
        lengths = np.diff(download(offsets[: segments + 1]).astype(np.int64))
        longest = np.maximum.reduceat(lengths, np.arange(0, segments, SLICE))
        slices = np.append(0, np.cumsum(SLICE * longest))
        count = int(slices[-1])
        begins, columns = xp.asarray(slices.astype(np.uint64)), xp.full(count, 2**32 - 1, np.uint32)
        rows = np.uint32(segments)
        self._launch("lay_out_slices", segments, offsets, arrays["columns"], rows, begins, columns)
        values = self._room(count)
        self._give_values(columns, count, self._segments, values)
        return Slices(begins, columns, values)

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

    def to_plain(self) -> None:
        """See Sweeps."""
        with self._device:
            self._old, self._new, self._weights = map(self._plain, (self._old, self._new, self._weights))
            self._made = {
                number: made._replace(values=self._plain(made.values)) for number, made in self._made.items()
            }
        if self._workspace is not None:
            self._workspace = self._workspace._replace(values=self._workspace.values.view(np.uint64))
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
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        for name in (
            "_old", "_new", "_weights", "_dangling", "_partials", "_sums", "_carries", "_faults", "_made",
            "_workspace",
        ):  # fmt: skip
            vars(self).pop(name, None)
        if self._limited:
            self._limited = False
            self._device.limit(self._limit_before)
