"""The rows of a stripe, what they gather, and the kernels that go through both: vectors.cu, gather_vector.cu.

Rows are on the device or, if it has no room, in memory of the host that kernels reach by the link. A pass
goes through them from the first to the last, each warp reading and writing neighbours, so that the link
carries whole lines; only what rows gather, a few bytes a node, is read in no order, so it is on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.backend import Floats, PushSums, TileSums
from oocpr.engine.cpu.numbers import divisors
from oocpr.engine.cuda.device import THREADS, address_of, download, grid, to_device
from oocpr.engine.cuda.host_memory import Landing
from oocpr.engine.cuda.spmv import GATHER_PADDING, READ_STRUCTS
from oocpr.engine.method import checked_total
from oocpr.engine.number_formats import READS
from oocpr.engine.top_k import largest
from oocpr.plan.device_memory import STAGED_NUMBERS
from oocpr.plan.partition import partition_bounds, partition_nodes
from oocpr.plan.tile_groups import THREAD_BLOCK_ROWS

if TYPE_CHECKING:
    from oocpr.engine.backend import PushStep, StripeSpec, SweepStep
    from oocpr.engine.cuda.device import Device, Event
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.local_sweeps import Overlap, SweptGroup
    from oocpr.engine.cuda.spmv import SegmentSums, Window


PUSH_STEP = Struct("=ddiiI4x")
SWEEP_STEP = Struct("=dddiII4x")
"""What kernels are told of a pass: ``PassStep`` of kernels/rows.cuh, of the push and then of the sweep."""

LANDED_ROWS = 2**20
"""Rows from which on a thread makes memory for their ranks while passes run."""

PUSH, TILES, PEAKS, RESIDUAL = range(4)
"""What sums are of, in the order of the report."""

FIRST, NEXT, LAST = (np.int32(turn) for turn in range(3))
"""Which of the partitions it is, as `keep_sums` takes it."""


LOCAL_THREADS = 512
"""Threads of a block that ends a local sweep of 1024 rows."""


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

    def load(self, row_begin: int, pushed: Any, *, proposals: bool = False) -> None:
        """Put a stripe's push, which may be elsewhere, where rows gather; their proposals begin at zero.

        If `proposals`, it is what they propose, which comes after the push.
        """
        device, kernel = self._device, self._kernel("load_proposals" if proposals else "load_pushes")
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

    def take_proposals(self, row_begin: int, row_end: int) -> Any:
        """Take what rows propose, and leave zeros; waits for it."""
        assert self.paired, "rows that gather no proposals take none"
        count = row_end - row_begin
        taken = self._device.xp.empty(count, READS[self.reads].dtype)
        if count:
            arguments = (taken, np.uint64(count), np.uint64(row_begin), self.array)
            self._kernel("take_proposals")(grid(count), (THREADS,), arguments)
            self._device.record_event().synchronize()
        return taken

    def _kernel(self, name: str) -> Any:
        kernels = self._device.load(
            "gather_vector.cu", READS=READ_STRUCTS[self.reads], PAIRED=int(self.paired)
        )
        return kernels.get_function(name)

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

    def carry_sums(
        self, state: RowState, sums: SegmentSums, group: DeviceGroup, rows: GroupRows, *, every: bool
    ) -> None:
        """Add what this partition brings to the segments of a group to what those before have brought.

        `sums`: of the group's product with this partition; after the last one, with all.
        `every`: whether empty segments have sums as well.
        """
        # Of a damaged tile, which is found once all of it has been swept, there may be said to be more.
        segments = rows.owned + rows.tiles
        count = segments if every else min(group.sizes.nonempty, segments)
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


class StepMemory:
    """What kernels are told of a pass: written in pinned memory, and sent behind what was launched.

    It may be written again once the pass has been waited for.
    """

    def __init__(self, device: Device, slots: int) -> None:
        self._device = device
        size = PUSH_STEP.size + SWEEP_STEP.size
        self._pinned = device.pinned(size + 8 * max(1, slots))
        self._pinned[:] = 0
        self._coefficients = self._pinned[size:].view(np.float64)
        self._there = device.xp.zeros(self._pinned.size, np.uint8)
        self.there = self._there[:size]
        self.coefficients = self._there[size:].view(np.float64)

    def set_push(self, step: PushStep) -> None:
        """Write how the push is made."""
        mixed = 0
        for slot, coefficient in step.mixing_coefficients:
            self._coefficients[slot] = coefficient
            mixed |= 1 << slot
        PUSH_STEP.pack_into(self._pinned.data, 0, step.scale, step.carry, step.kind, step.carry_slot, mixed)

    def set_sweep(self, step: SweepStep) -> None:
        """Write how the pass treats each row; a stripe that is alone finds `base` and `uniform` itself."""
        live = sum([1 << slot for slot in step.live])
        numbers = step.damping, step.base, step.uniform, step.slot, live, step.strongly
        SWEEP_STEP.pack_into(self._pinned.data, PUSH_STEP.size, *numbers)

    def send(self) -> None:
        """Have what is launched from now on see what was written."""
        self._device.send(self._there, self._pinned)


class RowState:
    """Rows of a stripe, in arrays of the device or, if `in_host`, of the host, and the kernels for them.

    `partitioned`: whether rows gather from one partition of the nodes after the other.
    `pairs`: whether proposals are gathered beside pushes.
    `divided`: whether what is pushed is divided by out-degrees before it is gathered.
    `degree`: also a state of the same rows, whose divisors serve for both.
    `stored`: zeros that receive the pushes; None to make them.
    The others are those of `allocate`, see Backend.
    """

    def __init__(
        self,
        device: Device,
        spec: StripeSpec,
        degree: NDArray[Any] | RowState,
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None,
        *,
        pairs: bool,
        in_host: bool,
        partitioned: bool,
        divided: bool = True,
        stored: Any = None,
    ) -> None:
        self.weighted: bool = (
            degree.weighted if isinstance(degree, RowState) else bool(degree.dtype == np.float64)
        )
        self._kernel = device.load(
            "vectors.cu",
            READS=READ_STRUCTS[spec.reads],
            PAIRED=int(spec.proposals and pairs),
            PROPOSES=int(spec.proposals),
            SLOTS=spec.slots,
            WEIGHTED=int(self.weighted),
            DIVIDED=int(divided),
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
        self._landing: Landing | None = None
        self.degree: Any = degree.degree if isinstance(degree, RowState) else copied(divisors(degree))
        self.teleport, self.start = copied(teleport), copied(start)
        self.residual = zeros(rows)[0]
        # float32: the last proposal, if anything is proposed
        self.push = zeros(rows if spec.proposals else 1, np.float32)[0]
        # What mixing remembers, the upper halves of float32.
        self.changes = zeros((spec.slots, rows), np.uint16)[0]
        self.steps = zeros((spec.slots, rows), np.uint16)[0]
        # Last push and zeros behind it; in memory of the host if rows gather partitions of it.
        if stored is None:
            stored = zeros(rows + GATHER_PADDING, READS[spec.reads].dtype, partitioned)[0]
        self.stored = stored
        self._slots = max(1, spec.slots)
        self.step = StepMemory(device, spec.slots)
        # Shape (tiles + 1, 2): what each tile leaves to the row that the next one owns; zeros first.
        self._carries = xp.zeros((tiles + 1, 2))
        # Sums of blocks of rows, and of all rows.
        self._sums = 1 + 2 * self._slots
        self._peaks = 1 + self._slots if spec.reads == "bits8" else 0
        places = max(1, -(-rows // THREAD_BLOCK_ROWS) + 2 * tiles)
        self._partials = xp.zeros((self._sums + self._peaks, places))
        self.stride = np.uint64(places)
        # Sums of the push and of the tiles, peaks, and sum of the residual, a few numbers as they are behind
        # each; on the device, and as they were when brought.
        each = 4 + self._slots
        self._places = tuple(accumulate((0, 3 + each, self._sums + each, self._peaks + each, 1 + each)))
        self._totals = xp.zeros(self._places[-1])
        self._report = device.pinned(self._totals.nbytes).view(np.float64)
        self._report[:] = 0
        # In memory of the host: what the partitions before have brought to the segments of each tile.
        self.partition_sums: Any = zeros(rows + tiles, mapped=True)[0] if partitioned else None
        # Residual of the first row after a pass, and its change in each slot; of the host.
        self.first_row: Floats = (0.0,)
        # Where groups are swept two at a time, once some are.
        self.overlap: Overlap | None = None

    @property
    def scaled(self) -> bool:
        """Whether the largest of what rows propose is one of the sums."""
        return self._peaks > 0

    def close(self) -> None:
        """Free all of it."""
        vars(self).clear()

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where a run side by side with others has its rows; SEED_ROWS of seed_block.py."""
        arrays = (
            self.teleport, self.ranks, self.residual, self.changes, self.steps, self.step.there,
            self.step.coefficients, self._partials, self._carries,
        )  # fmt: skip
        return tuple(address_of(array) for array in arrays)

    def tell(self, push: PushStep, sweep: SweepStep) -> None:
        """Have what is launched from now on see what a pass is made with."""
        self.step.set_push(push)
        self.step.set_sweep(sweep)
        self.step.send()

    def add_up_push(self) -> None:
        """Add up the sums of a push that was made beside others."""
        self._total(PUSH, 3, 3, -(-self.spec.rows // THREAD_BLOCK_ROWS))

    def make_push(self, step: PushStep) -> None:
        """Make the next push."""
        spec = self.spec
        self.step.set_push(step)
        if spec.rows == 0:
            return
        self.step.send()
        blocks = -(-spec.rows // THREAD_BLOCK_ROWS)
        self._kernel("publish")(
            (blocks,),
            (THREADS,),
            (
                np.uint64(spec.rows), np.float64(1 / spec.nodes),
                self.teleport if self.start is None else self.start, self.degree,
                self.ranks, self.residual, self.push, self.changes, self.steps, self.step.there,
                self.step.coefficients, self.stored, self._partials, self.stride,
            ),
        )  # fmt: skip
        self._total(PUSH, 3, 3, blocks)

    def push_sums(self) -> PushSums:
        """Sums of the push, as they were when the report was brought."""
        return PushSums(*self._report[:3].tolist())

    def bring_report(self) -> None:
        """Have all sums brought, behind what was launched; whoever waits for the device has them."""
        self._device.send(self._report, self._totals)

    def begin_sweep(self, step: SweepStep) -> None:
        """Have what is launched from now on treat rows as a pass does; if it is alone, it was told before."""
        if not step.alone:
            self.step.set_sweep(step)
            self.step.send()
        else:
            arguments = (self._totals, np.float64(self.spec.nodes), self.step.there)
            self._kernel("share_out")((1,), (1,), arguments)

    def update(
        self,
        sums: SegmentSums,
        group: DeviceGroup,
        rows: GroupRows,
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
        self._kernel("update")(
            (rows.blocks,),
            (THREADS,),
            (
                *group.table, sums.pushes, sums.proposals, *self._filled(group, every),
                np.uint64(rows.offset), np.uint64(spec.rows), self._carries[rows.number :], self.stored,
                self.degree, np.float64(1 / spec.nodes), self.teleport, self.step.there, self.residual,
                self.changes, self.steps, self.push, *room, numbers.array,
                np.uint64(rows.first), self._partials, self.stride, np.uint64(rows.place),
            ),
        )  # fmt: skip

    def local_end(
        self,
        sums: SegmentSums,
        swept: SweptGroup,
        numbers: DeviceGatherVector | None,
        *,
        whole: bool,
        sending: bool = False,
    ) -> Callable[[], None]:
        """What ends a local sweep: the last one if `numbers` are given, which receive the proposal.

        `whole`: whether it was inside the group, or with its neighbours, rather than inside each tile.
        `sending`: whether a neighbour is still swept behind the last one.
        """
        group, rows, local = swept.there, swept.rows, swept.local
        if not rows.owned and swept.leaves is None:
            return lambda: None
        delivered = (
            *group.table, local.start, sums.pushes, *self._filled(group, False), np.int32(whole),
            np.uint64(rows.offset),
        )  # fmt: skip
        if numbers is None:
            rest: tuple[Any, ...] = (self.degree, self.step.there, local.sends)
        else:
            rest = (
                np.uint64(self.spec.rows), self.stored, self.degree, self.step.there, self.steps, self.push,
                numbers.array, np.uint64(rows.first), local.sends if sending else None,
            )  # fmt: skip
        kernel = self._kernel("resend" if numbers is None else "propose")
        arguments = (*delivered, *rest, swept.left, swept.leaves)
        return partial(kernel, (rows.blocks,), (LOCAL_THREADS,), arguments)

    @staticmethod
    def _filled(group: DeviceGroup, every: bool) -> tuple[Any, Any]:
        return (None, None) if every else (group.arrays.filled, group.arrays.filled_before)

    def add_up(self, last: GroupRows, step: SweepStep, faults: Any) -> None:
        """Add up what the tiles of the stripe have left, `last` being the last of them."""
        spec, sums, peaks = self.spec, self._sums, self._peaks
        self._total(TILES, sums, sums, last.place + last.blocks, last.number + last.tiles, faults)
        blocks = -(-spec.rows // THREAD_BLOCK_ROWS)
        if step.key:
            self.add_up_residual()
        if peaks and spec.rows:
            self._kernel("find_peaks")(
                (blocks,),
                (THREADS,),
                (
                    np.uint64(spec.rows), self.degree, self.residual, self.push, self.steps, self.step.there,
                    self._partials, self.stride,
                ),
            )  # fmt: skip
            self._total(PEAKS, peaks, 0, blocks)

    def add_up_residual(self) -> None:
        """Add up the residual of all rows."""
        rows = self.spec.rows
        if rows:
            blocks = -(-rows // THREAD_BLOCK_ROWS)
            arguments = (np.uint64(rows), self.residual, self._partials, self.stride)
            self._kernel("add_residual")((blocks,), (THREADS,), arguments)
            self._total(RESIDUAL, 1, 1, blocks)

    def tile_sums(self, step: SweepStep) -> tuple[TileSums, int]:
        """Sums of the stripe's tiles and their faults, as they were when the report was brought."""
        numbers = self._report.tolist()
        tiles, peaks, residual = self._places[1:4]
        carry, proposed, found, *first = numbers[tiles + self._sums : peaks]
        live = step.live

        def of_live(place: int) -> Floats:
            return tuple([numbers[place + slot] for slot in live])

        self.first_row = first[0], *[first[1 + slot] for slot in live]
        high = (numbers[peaks], *of_live(peaks + 1)) if self._peaks else (0.0,) * (1 + len(live))
        return TileSums(
            (carry, proposed), numbers[tiles], of_live(tiles + 1), of_live(tiles + 1 + self._slots), high,
            residual=numbers[residual] if step.key else 0.0,
        ), int(found)  # fmt: skip

    def expect_end(self, event: Event) -> None:
        """Make memory of the host for the ranks of many rows, until the device has passed an event."""
        if self._ranks_here is None and self.spec.rows >= LANDED_ROWS:
            if self._landing is None:
                self._landing = Landing(self._device, self.spec.rows)
            self._landing.pin_until(event)

    def finish(self, carry: float, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Sum of ranks and residual, in the memory of the ranks; brought to `out` if it is given."""
        rows = self.spec.rows
        if rows:
            self._kernel("finish")(grid(rows), (THREADS,), self._ending(carry))
        if self._landing is not None and out is None:
            landing, self._landing = self._landing, None
            return landing.bring(self.ranks)
        if self._ranks_here is None:
            return self._device.bring(self.ranks, out)
        # They are in memory of the host, once what was launched has run.
        self._device.synchronize()
        if out is None:
            return self._ranks_here
        out[:] = self._ranks_here
        return out

    def restart(self, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Make all as before a run, with these rows' teleport weights instead of others."""
        for array in (self.ranks, self.residual, self.push, self.changes, self.steps, self.teleport):
            array[:] = 0
        if not rows.size:
            return
        places, values = (to_device(self._device, each) for each in (rows.astype(np.uint32), weights))
        self._kernel("scatter")(
            grid(rows.size), (THREADS,), (np.uint64(rows.size), places, values, self.teleport)
        )

    def _ending(self, carry: float) -> tuple[Any, ...]:
        return np.uint64(self.spec.rows), self.ranks, self.residual, np.float64(carry)

    def largest(
        self, carry: float, k: int, bound: float, pushed: float, growth: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """Rows and ranks of the `k` largest, as `finish`, `as_distribution` and `largest` would find them.

        Sums are added in another order, so last bits may differ. None if there are few rows, or so many that
        are equal and not zero that all have to be looked at.
        """
        rows, device = self.spec.rows, self._device
        blocks, room = -(-rows // THREAD_BLOCK_ROWS), k * THREAD_BLOCK_ROWS
        if k == 0 or blocks < 4 * k:
            return None
        there = device.xp.empty((4, blocks))
        ending = self._ending(carry)
        self._kernel("describe")((blocks,), (THREADS,), (*ending, there, np.uint64(blocks)))
        above, below, *peaks = download(there)
        total = checked_total(float(above.sum()), float(below.sum()), bound, pushed, growth)
        # That many blocks have a row that is no less than this; all that are not zero are listed at most.
        least = max(largest([peaks[total < 0]], k)[1][-1], np.nextafter(0.0, 1.0))
        found, listed = device.xp.zeros(1, np.uint32), device.xp.empty(room, np.uint32)
        values = device.xp.empty(room)
        self._kernel("list_largest")(
            grid(rows),
            (THREADS,),
            (
                *ending, np.float64(math.copysign(1, total)), np.float64(least), np.uint32(room), found,
                listed, values,
            ),
        )  # fmt: skip
        count = int(download(found)[0])
        if count > room:
            return None
        numbers, ranks = download(listed[:count]).astype(np.int64), download(values[:count])
        order = np.lexsort((numbers, -ranks))[:k]
        zeros = np.setdiff1d(np.arange(k), numbers)[: k - len(order)]
        return np.append(numbers[order], zeros), np.append(ranks[order] / abs(total), np.zeros(len(zeros)))

    def _total(
        self, place: int, vectors: int, added: int, count: int, carry: int = 0, faults: Any = None
    ) -> None:
        self._kernel("total_up")(
            (vectors + 1,),
            (THREADS,),
            (
                self._partials, self.stride, np.uint64(count), np.uint32(vectors), np.uint32(added),
                self._carries, np.uint32(carry), faults, np.uint64(self.spec.rows), self.residual,
                self.changes, self._totals[self._places[place] :],
            ),
        )  # fmt: skip
