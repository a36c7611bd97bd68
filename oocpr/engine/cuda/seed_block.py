"""Several runs over the same groups, side by side: see kernels/spmm.cu and kernels/seed_rows.cu.

Each run has rows of its own, and the bits that it would have by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cuda.device import THREADS, grid, to_device
from oocpr.engine.cuda.group import raise_faults
from oocpr.engine.cuda.spmv import (
    GATHER_PADDING,
    READ_STRUCTS,
    Gather,
    LaunchConfig,
    scratch_bytes,
)
from oocpr.engine.cuda.vectors import GroupRows, RowState
from oocpr.engine.number_formats import READS
from oocpr.plan.tile_groups import THREAD_BLOCK_ROWS
from oocpr.store.codec.layout import GROUP

if TYPE_CHECKING:
    from oocpr.engine.backend import Floats, PushStep, PushSums, SweepStep, TileSums
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.staging import CudaTileStream

CONFIG = LaunchConfig(teams=4, resident=3, edge_order=False)
"""Threads want registers for two sums of each vector."""

ABREAST_NUMBERS = 64
"""Numbers that are on their way to a thread at a time."""

SEED_ROWS = np.dtype([
    (name, np.uint64) for name in (
        "teleport", "ranks", "residual", "changes", "steps", "pass", "coefficients", "partials", "carries"
    )
])  # fmt: skip
"""Where a run has its rows: ``SeedRows`` of kernels/seed_rows.cu."""


class SeedBlock:
    """Rows of several runs on a device, and the passes that they take together.

    Parameters
    ----------
    first
        Rows of a run that has ended, which become those of the first lane.
    row_bounds
        First row of each group, and the number of rows behind; int64.
    lanes
        Runs side by side; one of SEED_LANES.
    largest
        Segments that are not empty, and blocks of edges, of the largest group.
    """

    def __init__(
        self,
        device: Device,
        first: RowState,
        stream: CudaTileStream,
        row_bounds: NDArray[np.int64],
        lanes: int,
        largest: tuple[int, int],
        faults: Any,
    ) -> None:
        self._device, self._stream, self._row_bounds, self._faults = device, stream, row_bounds, faults
        self.spec = spec = first.spec
        xp, nodes, dtype = device.xp, spec.nodes, READS[spec.reads].dtype
        # Nobody gathers what a run by itself has stored.
        first.stored = none = xp.zeros(0, dtype)
        self._numbers = xp.zeros((nodes + GATHER_PADDING, lanes), dtype)
        segments, blocks = (max(1, count) for count in largest)
        self._pushes, self._heads = xp.empty((segments, lanes)), xp.empty((blocks, lanes))
        # A bit for each row that runs teleport to, and for each that can have a rank; the latter once marked.
        self._named, self._reached = xp.zeros((2, spec.rows // 32 + 1), np.uint32)
        self._marked = False
        self.lanes = [first]
        while len(self.lanes) < lanes:
            beside = RowState(
                device, spec, first, None, None, pairs=False, in_host=False, partitioned=False, stored=none
            )
            beside.teleport = xp.zeros(spec.rows)
            self.lanes.append(beside)
        self._lanes = to_device(
            device, np.array([lane.addresses for lane in self.lanes], SEED_ROWS).view(np.uint8)
        )

    def restart(self, lane: int, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Make a lane as before a run, with these teleport weights."""
        with self._device:
            self.lanes[lane].restart(rows, weights)
            there = to_device(self._device, rows.astype(np.uint32))
            arguments = (np.uint64(rows.size), there, self._named, self._reached)
            self._kernel("name_rows")(grid(max(1, rows.size)), (THREADS,), arguments)

    def run(
        self, steps: Mapping[int, tuple[PushStep, SweepStep]]
    ) -> dict[int, tuple[PushSums, TileSums, Floats]]:
        """Push and sweep in some lanes; returns their sums, and what is told of the first row.

        Raises DamagedError for a tile whose bytes are not what was written.
        """
        device, spec = self._device, self.spec
        active = np.uint32(sum(1 << lane for lane in steps))
        last: GroupRows | None = None

        def sweep(number: int, there: DeviceGroup) -> None:
            nonlocal last
            last = self._rows_of(number, there, last)
            with device:
                self._multiply(there)
                self._launch(
                    "update",
                    last.blocks,
                    (
                        *there.table, self._pushes, there.arrays.filled, there.arrays.filled_before,
                        np.uint64(last.offset), np.uint64(spec.rows), self._lanes, active, self._named,
                        self._reached, np.uint64(last.number), self._numbers, degree, stride,
                        np.uint64(last.place),
                    ),
                )  # fmt: skip

        degree, stride = self.lanes[0].degree, self.lanes[0].stride
        if not self._marked:
            self._mark(strongly=all(step.strongly for _, step in steps.values()))
        with device:
            for lane, (push, step) in steps.items():
                self.lanes[lane].tell(push, step)
            blocks = -(-spec.rows // THREAD_BLOCK_ROWS)
            self._launch(
                "publish",
                blocks,
                (
                    np.uint64(spec.rows), self._lanes, active, self._reached, degree, self._numbers, stride
                ),
            )  # fmt: skip
            for lane, (_, step) in steps.items():
                self.lanes[lane].add_up_push()
                self.lanes[lane].begin_sweep(step)
        self._stream.run(sweep)
        assert last is not None, "there is a group"
        with device:
            for lane, (_, step) in steps.items():
                self.lanes[lane].add_up(last, step, self._faults)
                self.lanes[lane].bring_report()
            device.record_event().synchronize()
        return {lane: self._reported(self.lanes[lane], step) for lane, (_, step) in steps.items()}

    def _rows_of(self, number: int, there: DeviceGroup, before: GroupRows | None) -> GroupRows:
        """Rows of a group, behind those of the one `before`."""
        begin, end = int(self._row_bounds[number]), int(self._row_bounds[number + 1])
        tile, place = (before.number + before.tiles, before.place + before.blocks) if before else (0, 0)
        return GroupRows(tile, there.sizes.tiles, begin, end - begin, begin, place, there.sizes.places)

    def _mark(self, *, strongly: bool) -> None:
        """Mark the rows that can have a rank: those that edges reach, or all, if dangling mass goes to all.

        Half of the nodes of R-MAT have none, and no run needs to look at them.
        """
        self._marked = True
        if not strongly:
            self._reached.fill(0xFFFFFFFF)
            return

        def mark(number: int, there: DeviceGroup) -> None:
            rows = self._rows_of(number, there, None)
            with self._device:
                self._kernel("mark_rows")(
                    (rows.blocks,),
                    (THREADS,),
                    (
                        *there.table, there.arrays.filled, there.arrays.filled_before,
                        np.uint64(rows.offset), self._reached,
                    ),
                )  # fmt: skip

        self._stream.run(mark)

    @staticmethod
    def _reported(state: RowState, step: SweepStep) -> tuple[PushSums, TileSums, Floats]:
        sums, faults = state.tile_sums(step)
        raise_faults(faults)
        return state.push_sums(), sums, state.first_row

    def _launch(self, name: str, blocks: int, arguments: tuple[Any, ...]) -> None:
        if blocks:
            self._kernel(name)((blocks,), (GROUP * len(self.lanes),), arguments)

    def _kernel(self, name: str) -> Any:
        reads, lanes = READ_STRUCTS[self.spec.reads], len(self.lanes)
        kernels = self._device.load("seed_rows.cu", READS=reads, VECTORS=lanes, SLOTS=self.spec.slots)
        return kernels.get_function(name)

    def _multiply(self, there: DeviceGroup) -> None:
        """Sum what is delivered to each segment of a group that is not empty, in all lanes."""
        blocks = there.sizes.blocks
        if not blocks:
            return
        decoded, arrays = there.fours is not None, there.arrays
        grid_size, each = CONFIG.split(blocks, self._device.multiprocessors)
        kernels = self._device.load(
            "spmm.cu",
            READS=READ_STRUCTS[self.spec.reads],
            VECTORS=len(self.lanes),
            ABREAST=ABREAST_NUMBERS // len(self.lanes),
            DECODED=int(decoded),
            TEAMS=CONFIG.teams,
            RESIDENT=CONFIG.resident,
        )
        kernels.get_function("product")(
            (grid_size,),
            (GROUP * CONFIG.teams,),
            (
                *there.packed, np.uint32(blocks), np.uint32(self.spec.nodes), self._numbers, np.uint32(each),
                self._pushes, self._heads, self._faults, *((there.fours,) if decoded else ()),
            ),
            shared_mem=scratch_bytes(Gather(self.spec.reads, decoded=decoded), CONFIG.teams),
        )  # fmt: skip
        joined = (arrays.begins, arrays.ranks, np.uint32(blocks), self._heads, self._pushes)
        kernels.get_function("join_blocks")(grid(blocks), (THREADS,), joined)
