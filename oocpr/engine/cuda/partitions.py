"""What rows gather slice by slice, for the lack of room; see kernels/slices.cu, plan/partition.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.papers.products import PADDING
from oocpr.engine.cuda.state import DeviceReads
from oocpr.engine.cuda.vectors import THREADS, load_pushes
from oocpr.plan.partition import partition_bounds, partition_nodes

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.spmv import SegmentSums, Window
    from oocpr.engine.cuda.state import RowState
    from oocpr.engine.cuda.tile import DeviceTile
    from oocpr.engine.cuda.vectors import TileRows

FIRST, NEXT, LAST = (np.int32(turn) for turn in range(3))


class SlicedReads(DeviceReads):
    """What rows gather: the numbers of one slice of the nodes, brought from where all of them are.

    Parameters
    ----------
    device
        Where it is.
    nodes
        Nodes of the graph.
    reads
        Format.
    slices
        How many there are, two at least.
    """

    def __init__(self, device: Device, nodes: int, reads: str, slices: int) -> None:
        super().__init__(device, partition_nodes(nodes, slices), reads, paired=False)
        self._nodes, self._slices = nodes, slices
        self._number = 0
        self._pushed: Any = None

    @property
    def window(self) -> Window:
        """First node of the slice and the one past its last."""
        return partition_bounds(self._nodes, self._slices, self._number)

    @property
    def turn(self) -> np.int32:
        """Which of the slices it is, as kernels take it."""
        return FIRST if self._number == 0 else LAST if self.last else NEXT

    @property
    def last(self) -> bool:
        """Whether it is the last one."""
        return self._number == self._slices - 1

    def take(self, pushed: Any) -> bool:
        """Bring slices from a push of all nodes from now on; always does."""
        self._pushed = pushed
        return True

    def select_partition(self, number: int, *, bring: bool) -> None:
        """Gather from another slice; see Streams."""
        self._number = number
        if not bring:
            return
        first, past = self.window
        load_pushes(self._device, self, 0, self._pushed[first:past])
        count = past - first
        if count + PADDING < self.array.size:
            # Behind the last one, which is shorter, is what the slice before had there.
            self.array[count:] = 0

    def close(self) -> None:
        """Free it."""
        super().close()
        self._pushed = None


def keep_sums(
    device: Device, state: RowState, sums: SegmentSums, tile: DeviceTile, rows: TileRows, turn: np.int32
) -> None:
    """Keep what slices have brought to the segments of a tile; the last one gives all of it back.

    Parameters
    ----------
    device
        Which is current.
    state, rows
        Rows of the stripe, and where those of the tile are.
    sums
        Of the tile's product with one slice; after the last one, with all.
    tile
        The tile.
    turn
        Which slice it is.
    """
    # Of a damaged tile, which is found once all of it has been swept, there may be said to be more.
    count = min(tile.nonempty, tile.segments)
    if not count:
        return
    kept = state.kept[rows.offset + rows.number :]
    keep = device.load("slices.cu").get_function("keep_sums")
    keep((-(-count // THREADS),), (THREADS,), (sums.pushes, kept, np.uint64(count), turn))
