"""The vector that rows gather from, whole or a partition of the nodes at a time; see gather_vector.cu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.device import THREADS, grid
from oocpr.engine.cuda.spmv import FORMATS, PADDING
from oocpr.engine.number_formats import READS
from oocpr.plan.device_memory import STAGED_NUMBERS
from oocpr.plan.partition import partition_bounds, partition_nodes

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.spmv import SegmentSums, Window
    from oocpr.engine.cuda.tile import DeviceTile
    from oocpr.engine.cuda.vectors import RowState, TileRows

FIRST, NEXT, LAST = (np.int32(turn) for turn in range(3))


class DeviceGatherVector:
    """The numbers that rows gather, of all nodes; if `paired`, each push with its proposal beside it."""

    def __init__(self, device: Device, nodes: int, reads: str, *, paired: bool) -> None:
        self._device = device
        self.reads, self.paired = reads, paired
        self._shape = (nodes + PADDING, 2) if paired else (nodes + PADDING,)
        self._array: Any = None

    @property
    def array(self) -> Any:
        """Numbers of all nodes, and zeros behind them; dtype of the reads."""
        if self._array is None:
            with self._device:
                self._array = self._device.xp.zeros(self._shape, READS[self.reads].dtype)
        return self._array

    def take(self, pushed: Any) -> bool:
        """Gather a push where it is, if it is that of all nodes; tell whether it is."""
        whole = getattr(pushed, "base", None)
        if self.paired or not isinstance(whole, self._device.xp.ndarray) or whole.shape != self._shape:
            return False
        self._array = whole
        return True

    def select_partition(self, number: int, *, bring: bool) -> None:
        """Gather from the only partition, all nodes; see Backend."""

    def close(self) -> None:
        """Free it."""
        self._array = None


class PartitionedGatherVector(DeviceGatherVector):
    """The numbers of one partition of the nodes, of two or more, copied from where all of them are."""

    def __init__(self, device: Device, nodes: int, reads: str, partitions: int) -> None:
        super().__init__(device, partition_nodes(nodes, partitions), reads, paired=False)
        self._nodes, self._partitions = nodes, partitions
        self._number = 0
        self._pushed: Any = None

    @property
    def window(self) -> Window:
        """First node of the partition and the one past its last."""
        return partition_bounds(self._nodes, self._partitions, self._number)

    @property
    def turn(self) -> np.int32:
        """Which of the partitions it is, as kernels take it."""
        return FIRST if self._number == 0 else LAST if self.last else NEXT

    @property
    def last(self) -> bool:
        """Whether it is the last one."""
        return self._number == self._partitions - 1

    def take(self, pushed: Any) -> bool:
        """Copy partitions from a push of all nodes from now on; always does."""
        self._pushed = pushed
        return True

    def select_partition(self, number: int, *, bring: bool) -> None:
        """Gather from another partition; see Backend."""
        self._number = number
        if not bring:
            return
        first, past = self.window
        load_pushes(self._device, self, 0, self._pushed[first:past])
        count = past - first
        if count + PADDING < self.array.size:
            # Behind the last one, which is shorter, is what the partition before had there.
            self.array[count:] = 0

    def close(self) -> None:
        """Free it."""
        super().close()
        self._pushed = None


def load_pushes(device: Device, numbers: DeviceGatherVector, row_begin: int, pushed: Any) -> None:
    """Put a stripe's push, which may be elsewhere, where rows gather; their proposals begin at zero."""
    load = device.load("gather_vector.cu", READS=FORMATS[numbers.reads], PAIRED=int(numbers.paired))
    kernel = load.get_function("load_pushes")
    if len(pushed) and device.can_read(pushed):
        arguments = (pushed, np.uint64(len(pushed)), np.uint64(row_begin), numbers.array)
        kernel(grid(len(pushed)), (THREADS,), arguments)
        return
    room = device.xp.empty(min(len(pushed), STAGED_NUMBERS), pushed.dtype)
    for first in range(0, len(pushed), STAGED_NUMBERS):
        piece = pushed[first : first + STAGED_NUMBERS]
        device.copy_from(room[: len(piece)], piece)
        arguments = (room, np.uint64(len(piece)), np.uint64(row_begin + first), numbers.array)
        kernel(grid(len(piece)), (THREADS,), arguments)


def carry_sums(
    device: Device, state: RowState, sums: SegmentSums, tile: DeviceTile, rows: TileRows, turn: np.int32
) -> None:
    """Keep what partitions have brought to the segments of a tile; the last one gives all of it back.

    `sums`: of the tile's product with one partition; after the last one, with all.
    """
    # Of a damaged tile, which is found once all of it has been swept, there may be said to be more.
    count = min(tile.nonempty, tile.segments)
    if not count:
        return
    kept = state.kept[rows.offset + rows.number :]
    kernels = device.load("gather_vector.cu", READS=FORMATS[state.spec.reads], PAIRED=0)
    keep = kernels.get_function("keep_sums")
    keep(grid(count), (THREADS,), (sums.pushes, kept, np.uint64(count), turn))
