"""Several runs over the same groups, side by side: a pass gathers for all at once, see kernels/spmm.cu.

Each run has rows of its own, and the bits that it would have by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cuda.device import THREADS, grid
from oocpr.engine.cuda.group import raise_faults
from oocpr.engine.cuda.spmv import (
    GATHER_PADDING,
    READ_STRUCTS,
    Gather,
    LaunchConfig,
    SegmentSums,
    scratch_bytes,
)
from oocpr.engine.cuda.vectors import DeviceGatherVector, GroupRows, RowState
from oocpr.engine.number_formats import READS
from oocpr.plan.device_memory import SEED_LANES

if TYPE_CHECKING:
    from oocpr.engine.backend import Floats, PushStep, PushSums, SweepStep, TileSums
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.staging import CudaTileStream

CONFIG = LaunchConfig(teams=4, resident=3, edge_order=False)
"""Threads want registers for two sums of each vector."""


class SeedBlock:
    """Rows of several runs on a device, and the passes that they take together.

    Parameters
    ----------
    first
        Rows of a run that has been finished, which become those of the first lane.
    row_bounds
        First row of each group, and the number of rows behind; int64.
    largest
        Segments that are not empty, and blocks of edges, of the largest group.
    """

    def __init__(
        self,
        device: Device,
        first: RowState,
        stream: CudaTileStream,
        row_bounds: NDArray[np.int64],
        largest: tuple[int, int],
        faults: Any,
    ) -> None:
        self._device, self._stream, self._row_bounds, self._faults = device, stream, row_bounds, faults
        self.spec = spec = first.spec
        xp, nodes, dtype = device.xp, spec.nodes, READS[spec.reads].dtype
        self._stored = xp.zeros((SEED_LANES, nodes + GATHER_PADDING), dtype)
        self._numbers = xp.zeros((nodes + GATHER_PADDING, SEED_LANES), dtype)
        segments, blocks = (max(1, count) for count in largest)
        self._pushes, self._heads = xp.empty((SEED_LANES, segments)), xp.empty((SEED_LANES, blocks))
        none = xp.empty(1, np.float32)
        self._sums = [
            SegmentSums(pushes, none, heads, none)
            for pushes, heads in zip(self._pushes, self._heads, strict=True)
        ]
        first.stored = self._stored[0]
        self.lanes = [first]
        while len(self.lanes) < SEED_LANES:
            beside = RowState(
                device, spec, first, None, None,
                pairs=False, in_host=False, partitioned=False, stored=self._stored[len(self.lanes)],
            )  # fmt: skip
            beside.teleport = xp.zeros(spec.rows)
            self.lanes.append(beside)
        # Rows propose nothing, so they only hand it on.
        self._unread = DeviceGatherVector(device, 0, spec.reads, paired=False)

    def run(
        self, steps: Mapping[int, tuple[PushStep, SweepStep]]
    ) -> dict[int, tuple[PushSums, TileSums, Floats]]:
        """Push and sweep in some lanes; returns their sums, and what is told of the first row.

        Raises DamagedError for a tile whose bytes are not what was written.
        """
        device = self._device
        last: GroupRows | None = None

        def sweep(number: int, there: DeviceGroup) -> None:
            nonlocal last
            begin, end = int(self._row_bounds[number]), int(self._row_bounds[number + 1])
            tile, place = (last.number + last.tiles, last.place + last.blocks) if last else (0, 0)
            last = GroupRows(tile, there.sizes.tiles, begin, end - begin, begin, place, there.sizes.places)
            with device:
                self._multiply(there)
                for lane in steps:
                    self.lanes[lane].update(self._sums[lane], there, last, self._unread, (None, None))

        with device:
            for lane, (push, step) in steps.items():
                state = self.lanes[lane]
                state.step.set_sweep(step)
                state.make_push(push)
                state.begin_sweep(step)
            self._put_side_by_side()
        self._stream.run(sweep)
        assert last is not None, "there is a group"
        with device:
            for lane, (_, step) in steps.items():
                self.lanes[lane].add_up(last, step, self._faults)
                self.lanes[lane].bring_report()
            device.record_event().synchronize()
        return {lane: self._reported(self.lanes[lane], step) for lane, (_, step) in steps.items()}

    @staticmethod
    def _reported(state: RowState, step: SweepStep) -> tuple[PushSums, TileSums, Floats]:
        sums, faults = state.tile_sums(step)
        raise_faults(faults)
        return state.push_sums(), sums, state.first_row

    def _put_side_by_side(self) -> None:
        nodes = self.spec.nodes
        arguments = (self._stored, np.uint64(nodes + GATHER_PADDING), np.uint64(nodes), self._numbers)
        self._kernel("put_side_by_side")(grid(nodes), (THREADS,), arguments)

    def _multiply(self, there: DeviceGroup) -> None:
        """Sum what is delivered to each segment of a group that is not empty, in all lanes."""
        blocks = there.sizes.blocks
        if not blocks:
            return
        decoded, arrays = there.fours is not None, there.arrays
        grid_size, each = CONFIG.split(blocks, self._device.multiprocessors)
        strides = np.uint64(self._pushes.shape[1]), np.uint64(self._heads.shape[1])
        self._kernel("product", decoded=decoded)(
            (grid_size,),
            (32 * CONFIG.teams,),
            (
                *there.packed, np.uint32(blocks), np.uint32(self.spec.nodes), self._numbers, np.uint32(each),
                self._pushes, strides[0], self._heads, strides[1], self._faults,
                *((there.fours,) if decoded else ()),
            ),
            shared_mem=scratch_bytes(Gather(self.spec.reads, decoded=decoded), CONFIG.teams),
        )  # fmt: skip
        joined = (
            arrays.begins, arrays.ranks, np.uint32(blocks), self._heads, strides[1], self._pushes, strides[0]
        )  # fmt: skip
        self._kernel("join_blocks", decoded=decoded)((-(-blocks // THREADS),), (THREADS,), joined)

    def _kernel(self, name: str, *, decoded: bool = False) -> Any:
        return self._device.load(
            "spmm.cu",
            READS=READ_STRUCTS[self.spec.reads],
            VECTORS=SEED_LANES,
            DECODED=int(decoded),
            TEAMS=CONFIG.teams,
            RESIDENT=CONFIG.resident,
        ).get_function(name)
