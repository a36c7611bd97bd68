"""The rows of a stripe, and the kernels that go through them, see kernels/vectors.cu.

Rows are on the device or, if it has no room, in memory of the host that kernels reach by the link. A pass
goes through them from the first to the last, each warp reading and writing neighbours, so that the link
carries whole lines; only what rows gather, a few bytes a node, is read in no order, so it is on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.backend import PushSums, TileSums
from oocpr.engine.cpu.numbers import divisors
from oocpr.engine.cuda.device import THREADS, download, grid, to_device, upload
from oocpr.engine.cuda.spmv import FORMATS, PADDING
from oocpr.engine.number_formats import READS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backend import PublishStep, StripeSpec, SweepStep
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.gather_vector import DeviceGatherVector
    from oocpr.engine.cuda.tile import DeviceTile


ROWS = 4 * THREADS
"""Rows that a block of threads takes."""


@dataclass(frozen=True)
class TileRows:
    """Where the rows of a tile are."""

    number: int  # number of the tile in its stripe
    first: int  # first owned row in the graph
    owned: int  # number of owned rows
    offset: int  # first owned row in the stripe
    place: int  # blocks of rows of the stripe's tiles before

    @property
    def blocks(self) -> int:
        """Blocks of rows, the row that the next tile owns included."""
        return -(-(self.owned + 1) // ROWS)


@dataclass
class RowState:
    """Rows of a stripe; arrays of the device."""

    spec: StripeSpec
    degree: Any  # uint32, shape (rows,); with weights float64, what leaves each row, -1 if nothing does
    teleport: Any  # float64, shape (rows,); None if uniform
    start: Any  # what the run begins from, float64, shape (rows,); None for the teleport vector
    ranks: Any  # ranks, residual: float64, shape (rows,)
    residual: Any
    push: Any  # float32, shape (rows,): last proposal; (1,) if nothing is proposed
    # changes, steps: uint16, shape (slots, rows): what mixing remembers, the upper halves of float32
    changes: Any
    steps: Any
    # last push and PADDING zeros, dtype of the reads, shape (rows + PADDING,); in memory of the host if
    # rows gather partitions of it
    stored: Any
    thetas: Any  # float64, shape (slots,), one at least: weights of the steps that the next push subtracts
    # float64, shape (tiles + 1, 2): what each tile leaves to the row that the next one owns; zeros first
    carries: Any
    partials: Any  # partials, totals: float64: sums of blocks of rows, shape (vectors, places), and of all
    totals: Any
    # float64, shape (rows + tiles,), in memory of the host: what partitions before have brought to the
    # segments of each tile; None if rows gather from all nodes
    kept: Any
    ranks_here: NDArray[np.float64] | None  # the memory of `ranks` if that is the host's; else None
    # residual of the first row after a pass, and its change in each slot; of the host
    first_row: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""
        return bool(self.degree.dtype == np.float64)

    def close(self) -> None:
        """Free all of it."""
        vars(self).clear()


class LocalWorkspace:
    """Where tile-local sweeps work.

    `start`: float32, shape (rows,): what rows have from outside the tile.
    `sends`: float32, shape (rows + 1,): what they send along each edge, and a zero behind the last.
    """

    def __init__(self, device: Device, rows: int) -> None:
        self.start = device.xp.zeros(max(1, rows), np.float32)
        self.sends = device.xp.zeros(rows + 1, np.float32)


class Vectors:
    """The kernels of one format of reads and one number of remembered passes.

    `spec` is of one stripe of a run, others may be treated too. `in_host`: rows are kept in memory of the
    host. `sliced`: rows gather one partition after the other, see :mod:`oocpr.engine.cuda.gather_vector`.
    """

    def __init__(
        self,
        device: Device,
        spec: StripeSpec,
        *,
        pairs: bool,
        in_host: bool,
        weighted: bool = False,
        sliced: bool = False,
    ) -> None:
        self._device = device
        self._in_host, self._sliced = in_host, sliced
        self._slots = max(1, spec.slots)
        self._sums = 1 + 2 * self._slots
        self._peaks = 1 + self._slots if spec.reads == "bits8" else 0
        kernels = device.load(
            "vectors.cu",
            READS=FORMATS[spec.reads],
            PAIRED=int(spec.proposals and pairs),
            PROPOSES=int(spec.proposals),
            SLOTS=spec.slots,
            WEIGHTED=int(weighted),
        )
        self._kernel = kernels.get_function

    def allocate(
        self,
        spec: StripeSpec,
        degree: NDArray[Any],
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None,
    ) -> RowState:
        """Rows of a stripe without ranks and residual."""
        xp, rows, tiles = self._device.xp, spec.rows, spec.last_tile - spec.first_tile

        def zeros(
            shape: int | tuple[int, ...], dtype: Any = np.float64, mapped: bool | None = None
        ) -> tuple[Any, NDArray[Any] | None]:
            if not (self._in_host if mapped is None else mapped):
                return xp.zeros(shape, dtype), None
            there, here = self._device.mapped(shape, dtype)
            here[...] = 0
            return there, here

        def copied(values: NDArray[Any] | None) -> Any:
            if values is None or not self._in_host:
                return None if values is None else to_device(self._device, values)
            there, here = self._device.mapped(values.shape, values.dtype)
            here[...] = values
            return there

        sums = self._sums + self._peaks
        places = max(1, -(-rows // ROWS) + 2 * tiles)
        ranks, ranks_here = zeros(rows)
        return RowState(
            spec,
            degree=copied(divisors(degree)),
            teleport=copied(teleport),
            start=copied(start),
            ranks=ranks,
            residual=zeros(rows)[0],
            push=zeros(rows if spec.proposals else 1, np.float32)[0],
            changes=zeros((spec.slots, rows), np.uint16)[0],
            steps=zeros((spec.slots, rows), np.uint16)[0],
            stored=zeros(rows + PADDING, READS[spec.reads].dtype, self._sliced)[0],
            thetas=xp.zeros(self._slots),
            carries=xp.zeros((tiles + 1, 2)),
            partials=xp.zeros((sums, places)),
            totals=xp.zeros(sums + 4 + self._slots),
            kept=zeros(rows + tiles, mapped=True)[0] if self._sliced else None,
            ranks_here=ranks_here,
        )

    def publish(self, state: RowState, step: PublishStep) -> None:
        """Make the next push."""
        spec = state.spec
        if spec.rows == 0:
            return
        weighted = 0
        if step.mixing_coefficients:
            thetas = np.zeros(self._slots)
            for slot, theta in step.mixing_coefficients:
                thetas[slot] = theta
                weighted |= 1 << slot
            upload(state.thetas, thetas)
        blocks = -(-spec.rows // ROWS)
        stride = np.uint64(state.partials.shape[1])
        self._kernel("publish")(
            (blocks,),
            (THREADS,),
            (
                np.uint64(spec.rows), np.int32(step.kind), np.float64(1 / spec.nodes),
                state.teleport if state.start is None else state.start, state.degree,
                state.ranks, state.residual, state.push, state.changes, state.steps, state.thetas,
                np.uint32(weighted), np.float64(step.carry), np.int32(step.carry_slot),
                np.float64(step.scale), state.stored, state.partials, stride,
            ),
        )  # fmt: skip
        self._total(state, 3, 3, blocks)

    def pushed(self, state: RowState) -> PushSums:
        """Sums of the push that has just been made; waits for them."""
        return PushSums(*download(state.totals)[:3].tolist()) if state.spec.rows else PushSums(0.0, 0.0, 0.0)

    def update(
        self,
        state: RowState,
        sums: Any,
        tile: DeviceTile,
        rows: TileRows,
        step: SweepStep,
        numbers: DeviceGatherVector,
        room: tuple[Any, Any],
    ) -> None:
        """Add what was delivered to a tile's rows to their residual, and begin their proposal.

        `room`: ``start`` and ``sends`` of a LocalWorkspace; each None if not needed, both if the proposal is
            done at once.
        """
        spec = state.spec
        live = sum(1 << slot for slot in step.live)
        self._kernel("update")(
            (rows.blocks,),
            (THREADS,),
            (
                sums.pushes, sums.proposals, tile.filled, tile.filled_before, np.uint64(rows.owned),
                np.uint64(rows.offset), np.uint64(spec.rows), state.carries, np.uint32(rows.number),
                state.stored, state.degree, np.float64(1 / spec.nodes), state.teleport,
                np.float64(step.damping), np.float64(step.base), np.float64(step.uniform),
                np.float64(step.scale), np.int32(step.slot), np.uint32(live), state.residual,
                state.changes, state.steps, state.push, *room, numbers.array,
                np.uint64(rows.first), state.partials, np.uint64(state.partials.shape[1]),
                np.uint64(rows.place),
            ),
        )  # fmt: skip

    def settle(
        self,
        state: RowState,
        sums: Any,
        tile: DeviceTile,
        rows: TileRows,
        step: SweepStep,
        local: LocalWorkspace,
    ) -> None:
        """End one tile-local sweep that another follows."""
        if rows.owned:
            self._kernel("settle")(
                grid(rows.owned),
                (THREADS,),
                (
                    local.start, sums.pushes, tile.filled, tile.filled_before, np.uint64(rows.owned),
                    np.uint64(rows.offset), state.degree, np.float64(step.damping), local.sends,
                ),
            )  # fmt: skip

    def propose(
        self,
        state: RowState,
        sums: Any,
        tile: DeviceTile,
        rows: TileRows,
        step: SweepStep,
        numbers: DeviceGatherVector,
        local: LocalWorkspace,
    ) -> None:
        """End the last tile-local sweep."""
        if rows.owned:
            self._kernel("propose")(
                grid(rows.owned),
                (THREADS,),
                (
                    local.start, sums.pushes, tile.filled, tile.filled_before, np.uint64(rows.owned),
                    np.uint64(rows.offset), np.uint64(state.spec.rows), state.stored, state.degree,
                    np.float64(step.scale), np.int32(step.slot), state.steps, state.push, numbers.array,
                    np.uint64(rows.first),
                ),
            )  # fmt: skip

    def totals(self, state: RowState, last: TileRows, step: SweepStep, faults: Any) -> tuple[TileSums, int]:
        """Sums of a stripe's tiles, `last` being the last of them, and their faults; waits for both."""
        spec, live = state.spec, list(step.live)
        sums, peaks = self._sums, self._peaks
        self._total(state, sums, sums, last.place + last.blocks, last.number + 1, faults)
        report = download(state.totals)
        rest = report[sums:]
        carry, proposed, faults = (float(x) for x in rest[:3])
        state.first_row = np.array([rest[3], *rest[4:][live]])
        added = report[:sums].copy()
        high = np.zeros(1 + len(live))
        if peaks and spec.rows:
            blocks = -(-spec.rows // ROWS)
            mask = np.uint32(sum(1 << slot for slot in live))
            self._kernel("find_peaks")(
                (blocks,),
                (THREADS,),
                (
                    np.uint64(spec.rows), state.degree, state.residual, state.push, state.steps, mask,
                    state.partials, np.uint64(state.partials.shape[1]),
                ),
            )  # fmt: skip
            self._total(state, peaks, 0, blocks)
            found = download(state.totals)
            high = np.array([found[0], *found[1:][live]])
        residual = float(self._device.xp.sum(state.residual)) if step.key else 0.0
        return TileSums(
            (carry, proposed), float(added[0]), added[1:][live], added[1 + self._slots :][live], high,
            residual=residual,
        ), int(faults)  # fmt: skip

    def finish(self, state: RowState, carry: float) -> NDArray[np.float64]:
        """Sum of ranks and residual, in the memory of the ranks."""
        rows = state.spec.rows
        if rows:
            arguments = (np.uint64(rows), state.ranks, state.residual, np.float64(carry))
            self._kernel("finish")(grid(rows), (THREADS,), arguments)
        if state.ranks_here is None:
            return download(state.ranks)
        # They are in memory of the host, once what was launched has run.
        self._device.synchronize()
        return state.ranks_here

    def _total(
        self, state: RowState, vectors: int, added: int, count: int, carry: int = 0, faults: Any = None
    ) -> None:
        self._kernel("total_up")(
            (vectors + 1,),
            (THREADS,),
            (
                state.partials, np.uint64(state.partials.shape[1]), np.uint64(count), np.uint32(vectors),
                np.uint32(added), state.carries, np.uint32(carry), faults, np.uint64(state.spec.rows),
                state.residual, state.changes, state.totals,
            ),
        )  # fmt: skip
