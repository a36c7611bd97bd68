"""The rows of a stripe, what they gather, and the kernels that go through both: vectors.cu, gather_vector.cu.

Rows are on the device or, if it has no room, in memory of the host that kernels reach by the link. A pass
goes through them from the first to the last, each warp reading and writing neighbours, so that the link
carries whole lines; only what rows gather, a few bytes a node, is read in no order, so it is on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.backend import PushSums, TileSums
from oocpr.engine.cpu.numbers import divisors
from oocpr.engine.cuda.device import THREADS, download, grid, to_device, upload
from oocpr.engine.cuda.spmv import GATHER_PADDING, READ_STRUCTS
from oocpr.engine.number_formats import READS
from oocpr.plan.device_memory import STAGED_NUMBERS
from oocpr.plan.partition import partition_bounds, partition_nodes
from oocpr.plan.tile_groups import THREAD_BLOCK_ROWS

if TYPE_CHECKING:
    from oocpr.engine.backend import PushStep, StripeSpec, SweepStep
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.spmv import SegmentSums, Window


FIRST, NEXT, LAST = (np.int32(turn) for turn in range(3))
"""Which of the partitions it is, as `keep_sums` takes it."""


@dataclass(frozen=True)
class GroupRows:
    """Where the rows of a group are."""

    number: int  # number of its first tile in the stripe
    tiles: int
    first: int  # first owned row in the graph
    owned: int  # number of owned rows
    offset: int  # first owned row in the stripe
    place: int  # blocks of rows of the stripe's tiles before
    blocks: int  # its own ones, the rows that next tiles own included


class LocalWorkspace:
    """Where tile-local sweeps work.

    `start`: float32, shape (rows,): what rows of a group have from outside their tile.
    `sends`: float32, shape (rows + 1,): what they send along each edge, and a zero behind the last.
    """

    def __init__(self, device: Device, rows: int) -> None:
        self.start = device.xp.zeros(max(1, rows), np.float32)
        self.sends = device.xp.zeros(rows + 1, np.float32)


class DeviceGatherVector:
    """The numbers that rows gather, of all nodes; if `paired`, each push with its proposal beside it."""

    def __init__(self, device: Device, nodes: int, reads: str, *, paired: bool) -> None:
        self._device = device
        self.reads, self.paired = reads, paired
        self._shape = (nodes + GATHER_PADDING, 2) if paired else (nodes + GATHER_PADDING,)
        self._array: Any = None

    @property
    def array(self) -> Any:
        """Numbers of all nodes, and zeros behind them; dtype of the reads."""
        if self._array is None:
            with self._device:
                self._array = self._device.xp.zeros(self._shape, READS[self.reads].dtype)
        return self._array

    def take(self, pushed: Any) -> bool:
        """Gather a push where it is, if it is that of all nodes, and say whether it is."""
        whole = getattr(pushed, "base", None)
        if self.paired or not isinstance(whole, self._device.xp.ndarray) or whole.shape != self._shape:
            return False
        self._array = whole
        return True

    def load(self, row_begin: int, pushed: Any) -> None:
        """Put a stripe's push, which may be elsewhere, where rows gather; their proposals begin at zero."""
        device = self._device
        kernels = device.load("gather_vector.cu", READS=READ_STRUCTS[self.reads], PAIRED=int(self.paired))
        kernel = kernels.get_function("load_pushes")
        if len(pushed) and device.can_read(pushed):
            arguments = (pushed, np.uint64(len(pushed)), np.uint64(row_begin), self.array)
            kernel(grid(len(pushed)), (THREADS,), arguments)
            return
        room = device.xp.empty(min(len(pushed), STAGED_NUMBERS), pushed.dtype)
        for first in range(0, len(pushed), STAGED_NUMBERS):
            piece = pushed[first : first + STAGED_NUMBERS]
            device.copy_from(room[: len(piece)], piece)
            arguments = (room, np.uint64(len(piece)), np.uint64(row_begin + first), self.array)
            kernel(grid(len(piece)), (THREADS,), arguments)

    def select_partition(self, number: int, *, bring: bool) -> None:
        """Gather from the only partition, all nodes."""

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
    def last(self) -> bool:
        """Whether it is the last one."""
        return self._number == self._partitions - 1

    def take(self, pushed: Any) -> bool:
        """Copy partitions from a push of all nodes from now on; always does."""
        self._pushed = pushed
        return True

    def select_partition(self, number: int, *, bring: bool) -> None:
        """Gather from another partition, whose numbers are brought if `bring`."""
        self._number = number
        if not bring:
            return
        first, past = self.window
        self.load(0, self._pushed[first:past])
        count = past - first
        if count + GATHER_PADDING < self.array.size:
            # Behind the last one, which is shorter, is what the partition before had there.
            self.array[count:] = 0

    def carry_sums(self, state: RowState, sums: SegmentSums, group: DeviceGroup, rows: GroupRows) -> None:
        """Add what this partition brings to the segments of a group to what those before have brought.

        `sums`: of the group's product with this partition; after the last one, with all.
        """
        # Of a damaged tile, which is found once all of it has been swept, there may be said to be more.
        count = min(group.sizes.nonempty, rows.owned + rows.tiles)
        if not count:
            return
        turn = FIRST if self._number == 0 else LAST if self.last else NEXT
        carried = state.partition_sums[rows.offset + rows.number :]
        kernels = self._device.load("gather_vector.cu", READS=READ_STRUCTS[self.reads], PAIRED=0)
        kernel = kernels.get_function("keep_sums")
        kernel(grid(count), (THREADS,), (sums.pushes, carried, np.uint64(count), turn))

    def close(self) -> None:
        """Free it."""
        super().close()
        self._pushed = None


class RowState:
    """Rows of a stripe, in arrays of the device or, if `in_host`, of the host, and the kernels for them.

    `partitioned`: whether rows gather from one partition of the nodes after the other.
    `pairs`: whether proposals are gathered beside pushes.
    The others are those of `allocate`, see Backend.
    """

    def __init__(
        self,
        device: Device,
        spec: StripeSpec,
        degree: NDArray[Any],
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None,
        *,
        pairs: bool,
        in_host: bool,
        partitioned: bool,
    ) -> None:
        self.weighted = bool(degree.dtype == np.float64)
        self._kernel = device.load(
            "vectors.cu",
            READS=READ_STRUCTS[spec.reads],
            PAIRED=int(spec.proposals and pairs),
            PROPOSES=int(spec.proposals),
            SLOTS=spec.slots,
            WEIGHTED=int(self.weighted),
        ).get_function
        self._device, self.spec = device, spec
        xp, rows, tiles = device.xp, spec.rows, spec.borders

        def zeros(
            shape: int | tuple[int, ...], dtype: Any = np.float64, mapped: bool = in_host
        ) -> tuple[Any, NDArray[Any] | None]:
            if not mapped:
                return xp.zeros(shape, dtype), None
            there, here = device.mapped(shape, dtype)
            here[...] = 0
            return there, here

        def copied(values: NDArray[Any] | None) -> Any:
            if values is None or not in_host:
                return None if values is None else to_device(device, values)
            there, here = device.mapped(values.shape, values.dtype)
            here[...] = values
            return there

        # The second is the memory of the first if that is the host's, else None.
        self.ranks, self._ranks_here = zeros(rows)
        self.degree = copied(divisors(degree))
        self.teleport, self.start = copied(teleport), copied(start)
        self.residual = zeros(rows)[0]
        # float32: the last proposal, if anything is proposed
        self.push = zeros(rows if spec.proposals else 1, np.float32)[0]
        # What mixing remembers, the upper halves of float32.
        self.changes = zeros((spec.slots, rows), np.uint16)[0]
        self.steps = zeros((spec.slots, rows), np.uint16)[0]
        # Last push and zeros behind it; in memory of the host if rows gather partitions of it.
        self.stored = zeros(rows + GATHER_PADDING, READS[spec.reads].dtype, partitioned)[0]
        self._slots = max(1, spec.slots)
        # Coefficients of the steps that the next push subtracts.
        self._thetas = xp.zeros(self._slots)
        # Shape (tiles + 1, 2): what each tile leaves to the row that the next one owns; zeros first.
        self._carries = xp.zeros((tiles + 1, 2))
        # Sums of blocks of rows, and of all rows.
        self._sums = 1 + 2 * self._slots
        self._peaks = 1 + self._slots if spec.reads == "bits8" else 0
        places = max(1, -(-rows // THREAD_BLOCK_ROWS) + 2 * tiles)
        self._partials = xp.zeros((self._sums + self._peaks, places))
        self._stride = np.uint64(places)
        self._totals = xp.zeros(self._sums + self._peaks + 4 + self._slots)
        # In memory of the host: what the partitions before have brought to the segments of each tile.
        self.partition_sums: Any = zeros(rows + tiles, mapped=True)[0] if partitioned else None
        # Residual of the first row after a pass, and its change in each slot; of the host.
        self.first_row = np.zeros(1)

    def close(self) -> None:
        """Free all of it."""
        vars(self).clear()

    def make_push(self, step: PushStep) -> None:
        """Make the next push."""
        spec = self.spec
        if spec.rows == 0:
            return
        mixed = 0
        if step.mixing_coefficients:
            thetas = np.zeros(self._slots)
            for slot, theta in step.mixing_coefficients:
                thetas[slot] = theta
                mixed |= 1 << slot
            upload(self._thetas, thetas)
        blocks = -(-spec.rows // THREAD_BLOCK_ROWS)
        self._kernel("publish")(
            (blocks,),
            (THREADS,),
            (
                np.uint64(spec.rows), np.int32(step.kind), np.float64(1 / spec.nodes),
                self.teleport if self.start is None else self.start, self.degree,
                self.ranks, self.residual, self.push, self.changes, self.steps, self._thetas,
                np.uint32(mixed), np.float64(step.carry), np.int32(step.carry_slot),
                np.float64(step.scale), self.stored, self._partials, self._stride,
            ),
        )  # fmt: skip
        self._total(3, 3, blocks)

    def push_sums(self) -> PushSums:
        """Sums of the push that has just been made; waits for them."""
        return PushSums(*download(self._totals)[:3].tolist()) if self.spec.rows else PushSums(0.0, 0.0, 0.0)

    def update(
        self,
        sums: SegmentSums,
        group: DeviceGroup,
        rows: GroupRows,
        step: SweepStep,
        numbers: DeviceGatherVector,
        room: tuple[Any, Any],
        *,
        every: bool = False,
    ) -> None:
        """Add what was delivered to a group's rows to their residual, and begin their proposal.

        `room`: ``start`` and ``sends`` of a LocalWorkspace; each None if not needed, both if the proposal is
            done at once.
        `every`: whether empty segments have sums as well.
        """
        spec = self.spec
        live = sum(1 << slot for slot in step.live)
        self._kernel("update")(
            (rows.blocks,),
            (THREADS,),
            (
                *group.table, sums.pushes, sums.proposals, *self._filled(group, every),
                np.uint64(rows.offset), np.uint64(spec.rows), self._carries[rows.number :], self.stored,
                self.degree, np.float64(1 / spec.nodes), self.teleport, np.float64(step.damping),
                np.float64(step.base), np.float64(step.uniform), np.float64(step.scale),
                np.int32(step.slot), np.uint32(live),
                self.residual, self.changes, self.steps, self.push, *room, numbers.array,
                np.uint64(rows.first), self._partials, self._stride, np.uint64(rows.place),
            ),
        )  # fmt: skip

    def end_local_sweep(
        self,
        sums: SegmentSums,
        group: DeviceGroup,
        rows: GroupRows,
        step: SweepStep,
        local: LocalWorkspace,
        numbers: DeviceGatherVector | None,
        *,
        whole: bool,
    ) -> None:
        """End one local sweep: the last one if `numbers` are given, which receive the proposal.

        `whole`: whether it was inside the group rather than inside each tile.
        """
        if not rows.owned:
            return
        delivered = (
            *group.table, local.start, sums.pushes, *self._filled(group, False), np.int32(whole),
            np.uint64(rows.offset),
        )  # fmt: skip
        if numbers is None:
            rest: tuple[Any, ...] = (self.degree, np.float64(step.damping), local.sends)
        else:
            rest = (
                np.uint64(self.spec.rows), self.stored, self.degree, np.float64(step.scale),
                np.int32(step.slot), self.steps, self.push, numbers.array, np.uint64(rows.first),
            )  # fmt: skip
        name = "resend" if numbers is None else "propose"
        self._kernel(name)((rows.blocks,), (THREADS,), (*delivered, *rest))

    @staticmethod
    def _filled(group: DeviceGroup, every: bool) -> tuple[Any, Any]:
        return (None, None) if every else (group.arrays.filled, group.arrays.filled_before)

    def tile_sums(self, last: GroupRows, step: SweepStep, faults: Any) -> tuple[TileSums, int]:
        """Sums of the stripe's tiles, `last` being the last of them, and their faults; waits for both."""
        spec, live = self.spec, list(step.live)
        sums, peaks = self._sums, self._peaks
        self._total(sums, sums, last.place + last.blocks, last.number + last.tiles, faults)
        report = download(self._totals)
        rest = report[sums:]
        carry, proposed, found = (float(x) for x in rest[:3])
        self.first_row = np.array([rest[3], *rest[4:][live]])
        added = report[:sums].copy()
        high = np.zeros(1 + len(live))
        if peaks and spec.rows:
            blocks = -(-spec.rows // THREAD_BLOCK_ROWS)
            mask = np.uint32(sum(1 << slot for slot in live))
            self._kernel("find_peaks")(
                (blocks,),
                (THREADS,),
                (
                    np.uint64(spec.rows), self.degree, self.residual, self.push, self.steps, mask,
                    self._partials, self._stride,
                ),
            )  # fmt: skip
            self._total(peaks, 0, blocks)
            largest = download(self._totals)
            high = np.array([largest[0], *largest[1:][live]])
        residual = float(self._device.xp.sum(self.residual)) if step.key else 0.0
        return TileSums(
            (carry, proposed), float(added[0]), added[1:][live], added[1 + self._slots :][live], high,
            residual=residual,
        ), int(found)  # fmt: skip

    def finish(self, carry: float) -> NDArray[np.float64]:
        """Sum of ranks and residual, in the memory of the ranks."""
        rows = self.spec.rows
        if rows:
            arguments = (np.uint64(rows), self.ranks, self.residual, np.float64(carry))
            self._kernel("finish")(grid(rows), (THREADS,), arguments)
        if self._ranks_here is None:
            return self._device.bring(self.ranks)
        # They are in memory of the host, once what was launched has run.
        self._device.synchronize()
        return self._ranks_here

    def _total(self, vectors: int, added: int, count: int, carry: int = 0, faults: Any = None) -> None:
        self._kernel("total_up")(
            (vectors + 1,),
            (THREADS,),
            (
                self._partials, self._stride, np.uint64(count), np.uint32(vectors), np.uint32(added),
                self._carries, np.uint32(carry), faults, np.uint64(self.spec.rows), self.residual,
                self.changes, self._totals,
            ),
        )  # fmt: skip
