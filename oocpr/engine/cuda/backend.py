"""The backend for CUDA devices: everything of a run stays on the device, the host only says what comes next.

All work of a process is launched on one stream, group after group, and nothing is waited for until the sums
of a pass are asked for. Workspaces of kernels are kept from group to group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.backend import Streams, kept_arrays
from oocpr.engine.cuda.communication import Communicator
from oocpr.engine.cuda.device import download, upload
from oocpr.engine.cuda.diagonal_blocks import find_diagonal_blocks, sweep_diagonal_blocks
from oocpr.engine.cuda.group import raise_faults
from oocpr.engine.cuda.local_sweeps import LocalSweep, LocalWorkspace, Overlap, SweptGroup
from oocpr.engine.cuda.resident_pass import ResidentPass
from oocpr.engine.cuda.spmv import Gather, SegmentSums, SpMV, enough_hubs, launch_config
from oocpr.engine.cuda.staging import CudaTileStream
from oocpr.engine.cuda.vectors import (
    DeviceGatherVector,
    GroupRows,
    PartitionedGatherVector,
    RowState,
)
from oocpr.errors import DamagedError, UsageError
from oocpr.plan.request import BALANCED
from oocpr.store.codec.layout import BLOCK

if TYPE_CHECKING:
    from oocpr.engine.backend import Floats, PushStep, PushSums, StripeSpec, SweepStep, TileSums
    from oocpr.engine.cuda.baselines import BinThresholds, DecodedSpMV
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.diagonal_blocks import DiagonalBlocks
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.seed_block import SeedBlock
    from oocpr.engine.tiles.stream import TileBytes
    from oocpr.plan.device_memory import Inside
    from oocpr.plan.tile_groups import GroupLayout

LOCAL_SWEEPS = 2
"""Sweeps here for one of the processor's, which lets a row read what the rows before it have just become."""

DIAGONAL_SWEEPS = 2
"""The same inside diagonal blocks, where they cost little."""


class CudaBackend(Streams):
    """Kernels on one device; see Backend and Streams.

    `kernel`: a name of :data:`oocpr.engine.cuda.baselines.KERNELS`: what delivers pushes to rows.
    `pairs`: whether rows also gather the proposals of groups before theirs, at twice the bytes.
    `rows_in_host`: whether what a row has is kept in memory of the host, which kernels reach by the link.
    `inside`: what rows are swept in; see `oocpr.plan.device_memory.Inside`.
    `overlap`: whether groups that pass are swept two at a time; see `oocpr.engine.cuda.local_sweeps`.
    `thresholds`: how kernel ``binned`` divides rows; None for the default.
    `limit`: most bytes of the device that may be taken until the backend is closed; None for no limit.
    `slices`: partitions of what rows gather, which are on the device one after the other; several only
        without pairs. The pushes are then in memory of the host.
    `layouts_stay`: whether groups that stay also stay as the kernel lays them out, for the default one
        decoded, unless there are several partitions. Others are laid out in every pass.
    `at_once`: bytes that the driver is asked for at once.
    """

    name = "cuda"

    def __init__(
        self,
        device: Device,
        kernel: str = BALANCED,
        *,
        pairs: bool = True,
        rows_in_host: bool = False,
        inside: Inside = "tiles",
        overlap: bool = False,
        thresholds: BinThresholds | None = None,
        limit: int | None = None,
        slices: int = 1,
        layouts_stay: bool = False,
        at_once: int = 0,
    ) -> None:
        self._device, self.slices = device, slices
        self._limited = limit is not None
        self._limit_before = device.limit(limit)
        device.reset_allocated()
        if at_once:
            device.reserve(at_once)
        self._opened: list[ref[Any]] = []
        self._counted: list[tuple[DeviceGroup, Any]] = []  # with the edges of hubs, on the device
        self._kernel = kernel
        # What is laid out is of one partition.
        self._layouts_stay = layouts_stay and slices == 1
        self._pairs = pairs
        self._rows_in_host = rows_in_host
        self._inside = inside
        self._overlap = overlap and inside != "tiles"
        # Stripes whose last group is to be swept again, what their rows gather, and how often; by id.
        self._unfinished: dict[int, tuple[RowState, DeviceGatherVector, int]] = {}
        self._lock = Lock()
        # Blocks of edges, segments that are not empty, all segments, and rows of the largest group.
        self._largest = [0, 0, 0, 0]
        self._products: dict[tuple[Gather, bool], SpMV] = {}
        self._thresholds = thresholds
        try:
            self._make_workspaces()
        except BaseException:
            # Nobody has this backend, so nobody can close it.
            self.close()
            raise

    def _make_workspaces(self) -> None:
        """Make those of a run that has no group yet."""
        device = self._device
        with device:
            self._sums = SegmentSums.allocate(device, 1, 1, paired=self._pairs)
            self._local = LocalWorkspace.allocate(device, 1)
            self._faults = device.xp.zeros(1, np.uint32)
            self._decoded: DecodedSpMV | None = None
            if self._kernel != BALANCED:
                from oocpr.engine.cuda.baselines import DecodedSpMV

                stay = self._layouts_stay
                self._decoded = DecodedSpMV(device, self._kernel, self._thresholds, layouts_stay=stay)

    def allocate(
        self,
        spec: StripeSpec,
        degree: NDArray[Any],
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None = None,
    ) -> RowState:
        """See Backend."""
        divided = self._decoded is None or not self._decoded.divides
        if not divided and (spec.rows < spec.nodes or self.slices > 1):
            raise UsageError(
                f"kernel {self._kernel!r} takes one stripe on a device with room for all that it gathers.",
                "Use one device and more of its memory, or kernel exchange.",
            )
        with self._device, self._lock:
            if self._limited:
                # As in `clear`.
                self._device.limit(None)
            state = RowState(
                self._device, spec, degree, teleport, start,
                pairs=self._pairs, in_host=self._rows_in_host, partitioned=self.slices > 1, divided=divided,
            )  # fmt: skip
            self._opened.append(ref(state))
        return state

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> DeviceGatherVector:
        """See Backend."""
        if self.slices > 1:
            made: DeviceGatherVector = PartitionedGatherVector(self._device, nodes, reads, self.slices)
        else:
            made = DeviceGatherVector(self._device, nodes, reads, paired=proposals and self._pairs)
        self._opened.append(ref(made))
        return made

    def make_push(self, state: RowState, step: PushStep) -> tuple[Any, Callable[[], PushSums]]:
        """See Backend."""

        def sums() -> PushSums:
            self._bring_report(state)
            return state.push_sums()

        with self._device, self._lock:
            state.make_push(step)
            return state.stored[: state.spec.rows], sums

    @property
    def device(self) -> Device:
        """Where everything is."""
        return self._device

    def select_partition(self, reads: DeviceGatherVector, number: int, *, bring: bool) -> None:
        """See Streams."""
        with self._device, self._lock:
            reads.select_partition(number, bring=bring)

    def load(self, reads: DeviceGatherVector, row_begin: int, pushed: Any) -> None:
        """See Backend; the push of a stripe of this device that has all rows is gathered where it is."""
        if not reads.take(pushed):
            with self._device, self._lock:
                reads.load(row_begin, pushed)

    def take_proposals(self, reads: DeviceGatherVector, row_begin: int, row_end: int) -> Any:
        """See Backend."""
        with self._device, self._lock:
            for state, _, _ in list(self._unfinished.values()):
                self._finish_group(state)
            return reads.take_proposals(row_begin, row_end)

    def put_proposals(self, reads: DeviceGatherVector, row_begin: int, proposals: Any) -> None:
        """See Backend."""
        with self._device, self._lock:
            reads.load(row_begin, proposals, proposals=True)

    @property
    def allocated_bytes(self) -> int:
        """See Streams."""
        return self._device.allocated_bytes

    @property
    def preparing_seconds(self) -> float | None:
        """See Streams."""
        with self._device, self._lock:
            return None if self._decoded is None else self._decoded.preparing_seconds

    def clear(self) -> None:
        """See Streams."""
        self._free()
        # What is held back of it would be cut up, and lost to what is larger.
        self._device.limit(None)
        self._make_workspaces()

    def close(self) -> None:
        """See Streams; what was made here is freed whoever has it, as the error of a run that failed may."""
        self._free()
        if self._limited:
            self._limited = False
            self._device.limit(self._limit_before)

    def _free(self) -> None:
        while self._opened:
            made = self._opened.pop()()
            if made is not None:
                made.close()
        self._counted.clear()
        self._unfinished.clear()
        self._largest = [0, 0, 0, 0]
        for room in ("_sums", "_local", "_faults", "_decoded"):
            vars(self).pop(room, None)

    def join_group(self, unique_id: Any, rank: int, size: int) -> Communicator:
        """Take a place among devices of other processes, which may come later."""
        return Communicator(self._device, unique_id, rank, size)

    def open_stream(
        self,
        source: TileBytes,
        groups: Sequence[int],
        nodes: int,
        *,
        layout: GroupLayout,
        on_device: frozenset[int],
        factor: float | None = None,
        **ring: Any,
    ) -> CudaTileStream:
        """See Streams.

        Raises UsageError if edges have weights that the kernel does not take.
        """
        if self._decoded is not None and factor is not None and not self._decoded.takes_weights:
            raise UsageError(
                f"kernel {self._kernel!r} takes no weighted graphs.", "Use kernel balanced, or leave it out."
            )
        sizes = layout.largest(groups)
        with self._lock:
            segments = sizes.rows + sizes.tiles
            wanted = sizes.blocks, min(sizes.nonempty, segments), segments, sizes.rows
            self._largest = [max(pair) for pair in zip(self._largest, wanted, strict=True)]
            if self._decoded is not None:
                self._decoded.expect(segments, sizes.edges)

        def keep(there: DeviceGroup) -> None:
            with self._lock:
                self._check(there, nodes)

        stream = CudaTileStream(
            self._device, source, groups, layout=layout, on_device=on_device, keep=keep, faults=self._faults,
            factor=factor, overlap=self._overlap, **ring,
        )  # fmt: skip
        self._opened.append(ref(stream))
        return stream

    def _check(self, there: DeviceGroup, nodes: int) -> None:
        """Have the columns of a group that stays checked; what is found is looked at when a pass ends."""
        if self._layouts_stay and self._decoded is None:
            there.fours = self._device.xp.empty(BLOCK * there.sizes.blocks, np.uint32)
        self._counted.append((there, there.check_columns(self._device, nodes, self._faults)))
        there.checked = True

    def _raise_faults(self) -> None:
        """Raise DamagedError if kernels have found faults; waits for the device."""
        found = int(download(self._faults)[0])
        if found:
            self._faults[:] = 0
            raise_faults(found)

    def sweep_tile(
        self,
        state: RowState,
        reads: DeviceGatherVector,
        tile: DeviceGroup,
        rows: tuple[int, int],
        step: SweepStep,
        before: GroupRows | None,
        *,
        later: list[Callable[[], None]] | None = None,
    ) -> GroupRows:
        """See Backend, for a group of tiles; returns before any of it is done.

        `later`: receives what sweeps inside the group, on which no sum depends, instead of having it done.
        """
        spec, sizes = state.spec, tile.sizes
        begin, end = rows
        if sizes.rows != end - begin:
            raise DamagedError(f"tiles have {sizes.rows} rows where {end - begin} belong.")
        number, place = (before.number + before.tiles, before.place + before.blocks) if before else (0, 0)
        swept = GroupRows(
            number, sizes.tiles, begin, end - begin, begin - spec.row_begin, place, sizes.places
        )
        with self._device, self._lock:
            inside, diagonal = self._inner_sweeps(state, tile, step)
            overlap = None
            if inside and tile.overlaps:
                overlap = self._overlap_of(state, begin)
            else:
                self._finish_group(state)
            self._make_room(swept.owned if inside and overlap is None else 0)
            there = None if overlap is None else overlap.room(tile, swept)
            sums, local = self._sums, self._local if there is None else there.local
            part = reads if isinstance(reads, PartitionedGatherVector) else None
            if before is None:
                state.begin_sweep(step)
            window = (step.visible_from(spec), begin) if part is None else part.window
            packed = self._decoded is None
            gather = Gather(
                spec.reads, reads.paired, reads.paired and spec.rows < spec.nodes,
                decoded=packed and tile.fours is not None, checked=packed and not tile.checked,
                weighted=state.weighted, local=part is not None,
            )  # fmt: skip
            if self._decoded is None:
                product = self._product(gather, hubs=tile.hubs and part is None)
                product(tile, reads.array, spec.nodes, window, sums, self._faults)
            else:
                degrees = state.degree if self._decoded.divides else None
                self._decoded(tile, gather, reads.array, spec.nodes, window, sums, self._faults, degrees)
            if part is not None:
                part.carry_sums(state, sums, tile, swept, every=self._decoded is not None)
                if not part.last:
                    return swept
            room = (local.start if inside else None, local.sends if inside and not diagonal else None)
            state.update(sums, tile, swept, reads, room, every=self._decoded is not None)
            if overlap is not None:
                turns = LOCAL_SWEEPS * (step.sweeps - 1) // 2
                overlap.sweep(there, turns, partial(self._local_sweep, state, reads))
                self._unfinished[id(state)] = state, reads, turns
            elif inside:
                # Finding them waits for the device, which what is put off must not.
                blocks = self._diagonal_blocks(tile, begin, spec.nodes) if diagonal else None
                sweep = partial(self._sweep_inside, state, reads, tile, swept, step, blocks)
                if later is None:
                    sweep()
                else:
                    later.append(sweep)
        return swept

    def _inner_sweeps(self, state: RowState, tile: DeviceGroup, step: SweepStep) -> tuple[bool, bool]:
        """Whether rows are swept inside a group, and whether in its diagonal blocks."""
        inside = state.spec.proposals and step.sweeps > 1
        # They are found in what stays, and know nothing of weights.
        return inside, inside and self._inside == "blocks" and tile.checked and not state.weighted

    def prepare_group(self, state: RowState, tile: DeviceGroup, first: int, step: SweepStep) -> None:
        """Make what sweeping a group needs, so that nothing is made or waited for then."""
        with self._device, self._lock:
            inside, diagonal = self._inner_sweeps(state, tile, step)
            self._make_room(tile.sizes.rows if inside else 0)
            if diagonal:
                self._diagonal_blocks(tile, first, state.spec.nodes)

    def sweep_later(self, later: Sequence[Callable[[], None]]) -> None:
        """Sweep inside groups for which that was put off."""
        with self._device, self._lock:
            for sweep in later:
                sweep()

    def _diagonal_blocks(self, there: DeviceGroup, first: int, nodes: int) -> DiagonalBlocks:
        """Those of a group that stays, which are found once."""
        blocks: DiagonalBlocks | None = there.made.get("diagonal blocks")
        if blocks is None:
            self._raise_faults()
            blocks = find_diagonal_blocks(self._device, there, first, nodes)
            there.made["diagonal blocks"] = blocks
            if self._limited:
                # As in `allocate`: what finding took is as large as a group.
                self._device.limit(None)
        return blocks

    def _sweep_inside(
        self,
        state: RowState,
        reads: DeviceGatherVector,
        there: DeviceGroup,
        rows: GroupRows,
        step: SweepStep,
        blocks: DiagonalBlocks | None,
    ) -> None:
        """Sweep inside the group, inside each of its tiles, or inside such diagonal blocks."""
        if blocks is not None:
            turns = DIAGONAL_SWEEPS * (step.sweeps - 1)
            sweep_diagonal_blocks(self._device, there, blocks, self._local.start, state, rows, reads, turns)
            return
        local, whole = self._local, self._inside != "tiles"
        swept = SweptGroup(there, rows, local, rows.first, local.sends)
        sweep = self._local_sweep(state, reads, swept, swept.past, sending=False, whole=whole)
        turns = LOCAL_SWEEPS * (step.sweeps - 1)
        for turn in range(1, turns + 1):
            sweep.launch(last=turn == turns)

    def _local_sweep(
        self,
        state: RowState,
        reads: DeviceGatherVector,
        swept: SweptGroup,
        past: int,
        sending: bool,
        *,
        whole: bool = True,
    ) -> LocalSweep:
        """See LocalSweep."""
        decoded = swept.there.fours is not None
        gather = Gather("bits16", decoded=decoded, weighted=state.weighted, local=whole, inside=not whole)
        return LocalSweep(
            self._product(gather), swept, past, state, reads, self._sums, self._faults,
            whole=whole, sending=sending,
        )  # fmt: skip

    def _overlap_of(self, state: RowState, begin: int) -> Overlap:
        """Where the groups of a stripe are swept two at a time; the next one has rows from `begin` on."""
        if state.overlap is None:
            state.overlap = Overlap(self._device, state.spec, self._largest[3])
        before = state.overlap.before
        if before is not None and before.past != begin:
            self._finish_group(state)
        return state.overlap

    def _finish_group(self, state: RowState) -> None:
        """Sweep the last group of a stripe again, with none behind it, if that is to be done."""
        _, reads, turns = self._unfinished.pop(id(state), (state, None, 0))
        if reads is not None and state.overlap is not None:
            state.overlap.sweep(None, turns, partial(self._local_sweep, state, reads))

    def sums(self, state: RowState, swept: Sequence[GroupRows], step: SweepStep) -> TileSums:
        """See Backend."""
        self.add_up(state, swept[-1], step)
        self._bring_report(state)
        return self.tile_sums(state, step)

    def add_up(self, state: RowState, last: GroupRows, step: SweepStep) -> None:
        """Have the sums of a stripe's tiles added up, `last` being the last of its groups."""
        with self._device, self._lock:
            self._finish_group(state)
            state.add_up(last, step, self._faults)

    def tile_sums(self, state: RowState, step: SweepStep) -> TileSums:
        """Sums of a stripe's tiles, once their report has been brought; raises DamagedError for faults."""
        sums, faults = state.tile_sums(step)
        with self._device, self._lock:
            if faults:
                self._faults[:] = 0
                raise_faults(faults)
            self._look_for_hubs()
        return sums

    def check_groups(self) -> None:
        """Wait until groups that stay are there and checked; raises DamagedError for faults."""
        with self._device, self._lock:
            if self._counted:
                self._raise_faults()
                self._look_for_hubs()

    def _look_for_hubs(self) -> None:
        """Say of groups that have come, and were checked, whether they have enough edges of hubs."""
        for there, hub_edges in self._counted:
            there.hubs = enough_hubs(int(download(hub_edges)[0]), there.sizes.edges)
        self._counted.clear()

    def _bring_report(self, state: RowState) -> None:
        with self._device, self._lock:
            state.bring_report()
            # Not for what is sent meanwhile for the next pass.
            self._device.record_event().synchronize()

    def resident_pass(
        self,
        state: RowState,
        reads: DeviceGatherVector,
        stream: CudaTileStream,
        row_bounds: NDArray[np.int64],
        push: PushStep,
        step: SweepStep,
    ) -> ResidentPass:
        """See Streams."""
        recorded = self._decoded is None and stream.recordable
        return ResidentPass(self, state, reads, stream, row_bounds, (push, step), recorded=recorded)

    def seed_block(
        self, state: RowState, stream: CudaTileStream, row_bounds: NDArray[np.int64], lanes: int
    ) -> SeedBlock:
        """See Streams."""
        from oocpr.engine.cuda.seed_block import SeedBlock

        blocks, nonempty = self._largest[:2]
        with self._device, self._lock:
            block = SeedBlock(
                self._device, state, stream, row_bounds, lanes, (nonempty, blocks), self._faults
            )
            self._opened += [ref(lane) for lane in block.lanes[1:]]
        return block

    def first_row(self, state: RowState, live: tuple[int, ...]) -> Floats:  # noqa: ARG002
        """See Backend."""
        return state.first_row

    def finish(
        self, state: RowState, carry: float, out: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """See Backend."""
        with self._device, self._lock:
            return state.finish(carry, out)

    def restart(self, state: RowState, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """See Backend."""
        with self._device, self._lock:
            state.restart(rows, weights)

    def largest(
        self, state: RowState, carry: float, k: int, bound: float, pushed: float, growth: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """See Streams."""
        with self._device, self._lock:
            return state.largest(carry, k, bound, pushed, growth)

    def kept(self, state: RowState) -> dict[str, Any]:
        """See Backend."""
        return kept_arrays(state.ranks, state.residual, state.push, state.changes, state.steps)

    def bring(self, array: Any) -> NDArray[Any]:
        """See Backend."""
        with self._device, self._lock:
            return self._device.bring(array)

    def put(self, array: Any, values: NDArray[Any]) -> None:
        """See Backend."""
        with self._device, self._lock:
            upload(array, values)

    def _make_room(self, owned: int) -> None:
        """Have room for a group's sums, and for so many rows that are swept inside.

        At once for the largest group: what grows group by group leaves holes that nothing else fits into.
        """
        blocks, nonempty, segments, rows = self._largest
        count = nonempty if self._decoded is None else segments
        # What is too small goes first: beside what is made for other groups it has no room.
        if count > self._sums.pushes.size or blocks > self._sums.heads.size:
            del self._sums
            self._sums = SegmentSums.allocate(self._device, count, blocks, paired=self._pairs)
        if owned > self._local.start.size:
            del self._local
            self._local = LocalWorkspace.allocate(self._device, max(owned, rows))

    def _product(self, gather: Gather, *, hubs: bool = False) -> SpMV:
        if (gather, hubs) not in self._products:
            config = launch_config(gather, self._device.shared_bytes if hubs else 0)
            self._products[gather, hubs] = SpMV(self._device, gather, config)
        return self._products[gather, hubs]
