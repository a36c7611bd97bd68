"""Launching what is done row by row, see kernels/vectors.cu and kernels/local.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.backend import PushSums, TileSums
from oocpr.engine.cuda.device import fetch, send
from oocpr.engine.cuda.spmv import FORMATS
from oocpr.engine.cuda.state import allocate_rows, fetch_ranks
from oocpr.plan.device_memory import STAGED_NUMBERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backend import PublishStep, StripeSpec, SweepStep
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.state import DeviceReads, RowState
    from oocpr.engine.cuda.tile import DeviceTile

THREADS = 256
ROWS = 4 * THREADS
"""Threads of a block, and the rows that it takes."""

START, RESTART, RESIDUAL, MIXED = (np.int32(kind) for kind in range(4))


@dataclass(frozen=True)
class TileRows:
    """Where the rows of a tile are.

    Parameters
    ----------
    number
        Number of the tile in its stripe.
    first
        First owned row in the graph.
    owned
        Number of owned rows.
    offset
        First owned row in the stripe.
    place
        Blocks of rows of the stripe's tiles before.
    """

    number: int
    first: int
    owned: int
    offset: int
    place: int

    @property
    def blocks(self) -> int:
        """Blocks of rows, the row that the next tile owns included."""
        return -(-(self.owned + 1) // ROWS)


class Vectors:
    """The kernels of one format of reads and one number of remembered passes.

    Parameters
    ----------
    device
        Where they run.
    spec
        A stripe; others of the same run may be treated too.
    pairs
        Whether rows also gather proposals.
    in_host
        Whether rows are kept in memory of the host; see :mod:`oocpr.engine.cuda.state`.
    weighted
        Whether links have weights.
    sliced
        Whether rows gather slice by slice; see :mod:`oocpr.engine.cuda.partitions`.
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
        self._settle = device.load("local.cu", WEIGHTED=int(weighted)).get_function("settle")

    def allocate(
        self,
        spec: StripeSpec,
        degree: NDArray[Any],
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None,
    ) -> RowState:
        """Rows of a stripe without ranks and residual."""
        tiles = spec.last_tile - spec.first_tile
        places = max(1, -(-spec.rows // ROWS) + 2 * tiles)
        return allocate_rows(
            self._device, spec, degree, teleport, start,
            slots=self._slots, sums=self._sums + self._peaks, places=places, in_host=self._in_host,
            sliced=self._sliced,
        )  # fmt: skip

    def publish(self, state: RowState, step: PublishStep) -> None:
        """Make the next push."""
        spec = state.spec
        if spec.rows == 0:
            return
        usual = MIXED if spec.proposals or spec.slots else RESIDUAL
        kind = START if step.start else RESTART if step.restart else usual
        weighted = 0
        if step.mixing_coefficients:
            thetas = np.zeros(self._slots)
            for slot, theta in step.mixing_coefficients:
                thetas[slot] = theta
                weighted |= 1 << slot
            send(state.thetas, thetas)
        blocks = -(-spec.rows // ROWS)
        stride = np.uint64(state.partials.shape[1])
        self._kernel("publish")(
            (blocks,),
            (THREADS,),
            (
                np.uint64(spec.rows), kind, np.float64(1 / spec.nodes),
                state.teleport if state.start is None else state.start, state.degree,
                state.ranks, state.residual, state.push, state.changes, state.steps, state.thetas,
                np.uint32(weighted), np.float64(step.carry), np.int32(step.carry_slot),
                np.float64(step.scale), state.stored, state.partials, stride,
            ),
        )  # fmt: skip
        self._total(state, 3, 3, blocks)

    def pushed(self, state: RowState) -> PushSums:
        """Sums of the push that has just been made; waits for them."""
        return PushSums(*fetch(state.totals)[:3].tolist()) if state.spec.rows else PushSums(0.0, 0.0, 0.0)

    def update(
        self,
        state: RowState,
        sums: Any,
        tile: DeviceTile,
        rows: TileRows,
        step: SweepStep,
        numbers: DeviceReads,
        room: tuple[Any, Any],
    ) -> None:
        """Add what was delivered to a tile's rows to their residual, and begin their proposal.

        Parameters
        ----------
        sums
            SegmentSums of the product.
        numbers
            What rows gather.
        room
            ``start`` and ``sends`` of the LocalRoom that tile-local sweeps work in; each None where it is not
            needed, both where the proposal is done at once.
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
        self, state: RowState, sums: Any, tile: DeviceTile, rows: TileRows, step: SweepStep, local: LocalRoom
    ) -> None:
        """End one tile-local sweep that another follows."""
        if rows.owned:
            self._settle(
                _grid(rows.owned),
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
        numbers: DeviceReads,
        local: LocalRoom,
    ) -> None:
        """End the last tile-local sweep."""
        if rows.owned:
            self._kernel("propose")(
                _grid(rows.owned),
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
        report = fetch(state.totals)
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
            found = fetch(state.totals)
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
            self._kernel("finish")(_grid(rows), (THREADS,), arguments)
        return fetch_ranks(self._device, state)

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


class LocalRoom:
    """Where tile-local sweeps work.

    Parameters
    ----------
    device
        Where.
    rows
        Rows of the largest tile.

    Attributes
    ----------
    start
        float32, shape (rows,): what rows have from outside the tile.
    sends
        float32, shape (rows + 1,): what they send along each link, and a zero behind the last.
    """

    def __init__(self, device: Device, rows: int) -> None:
        self.start = device.xp.zeros(max(1, rows), np.float32)
        self.sends = device.xp.zeros(rows + 1, np.float32)


def load_pushes(device: Device, numbers: DeviceReads, row_begin: int, pushed: Any) -> None:
    """Put a stripe's push, which may be elsewhere, where rows gather; their proposals begin at zero."""
    load = device.load("load.cu", READS=FORMATS[numbers.reads], PAIRED=int(numbers.paired))
    kernel = load.get_function("load_pushes")
    if len(pushed) and device.sees(pushed):
        arguments = (pushed, np.uint64(len(pushed)), np.uint64(row_begin), numbers.array)
        kernel(_grid(len(pushed)), (THREADS,), arguments)
        return
    room = device.xp.empty(min(len(pushed), STAGED_NUMBERS), pushed.dtype)
    for first in range(0, len(pushed), STAGED_NUMBERS):
        piece = pushed[first : first + STAGED_NUMBERS]
        device.bring(room[: len(piece)], piece)
        arguments = (room, np.uint64(len(piece)), np.uint64(row_begin + first), numbers.array)
        kernel(_grid(len(piece)), (THREADS,), arguments)


def _grid(threads: int) -> tuple[int]:
    return (-(-threads // THREADS),)
