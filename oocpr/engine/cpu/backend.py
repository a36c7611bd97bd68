"""The backend for processors: compiled by numba, all threads of a team on one tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.backend import Floats, HostBackend, PushSums, StripeSpec, TileSums, join_sums, kept_arrays
from oocpr.engine.cpu.gather import PIECE, SlicedEdges, TileCsr, slice_tile
from oocpr.engine.cpu.local_sweeps import LocalLayout, TilePlace
from oocpr.engine.cpu.numbers import (
    ROW_BLOCK,
    Weights,
    decode_weights,
    divisors,
    stored_weights,
    without_data,
)
from oocpr.engine.cpu.product import multiply_packed
from oocpr.engine.cpu.scratch import Scratch
from oocpr.engine.cpu.threads import Team, default_threads
from oocpr.engine.cpu.tile import (
    OpenTile,
    StripeRows,
    SweepParams,
    load,
    push_rows,
    put_proposals,
    reread,
    show_open,
    sweep_decoded,
    sweep_packed,
    sweep_together,
    take_proposals,
)
from oocpr.engine.cpu.window import SweepWindow
from oocpr.engine.degree_check import column_marks
from oocpr.engine.number_formats import READS, level_table
from oocpr.errors import DamagedError
from oocpr.plan.request import SWEPT_TILES
from oocpr.store.codec.layout import PackedTile, parse_tile
from oocpr.store.codec.mantissa_segments import parse_segments
from oocpr.store.codec.tiles import decode_columns, expand_segments

if TYPE_CHECKING:
    from oocpr.engine.backend import PushStep, SweepStep

_EMPTY = np.empty(0, np.uint32)
_NO_SENDS = np.empty(0, np.float32)
_NO_SUMS = np.empty(0)
_NO_BOUNDS = np.zeros(2, np.uint64)

_MAX_WEIGHT = 1 + 2.0**-20
"""No weight is more in the unit of a run, in which the largest out-weight is at most one."""


@dataclass
class CpuState:
    """A stripe's rows, and what their run begins from, shape (0,) if uniform.

    `end_open` has its tiles propose that have come and are still to be swept, if there are any.
    """

    spec: StripeSpec
    rows: StripeRows
    start: NDArray[np.float64]
    window: SweepWindow | None = None
    end_open: Callable[[], None] | None = None

    def end_sweeps(self) -> None:
        """Sweep tiles that have come as often as they are to be, and have them propose."""
        end, self.end_open = self.end_open, None
        if end is not None:
            end()


@dataclass
class CpuGatherVector:
    """What rows gather: push of each node, or push and proposal side by side; zeros after the last node.

    `swept` is the stripe that has tiles which are still to propose.
    """

    numbers: NDArray[np.generic]
    stride: int
    swept: CpuState | None = None


@dataclass
class CpuTile:
    """A tile ready to be swept: its checked bytes, or only their counts and its edges decoded in slices.

    `layout` lists the edges that stay inside the tile, after the first sweep of a decoded one. `weights` are
    as they are stored, until slices hold them; None if the graph has none.
    """

    packed: PackedTile
    csr: TileCsr | None = None
    slices: SlicedEdges | None = None
    layout: LocalLayout | None = None
    weights: Weights | None = None


class SweptTile(NamedTuple):
    """What is known of a tile once its rows are updated; see TileSums.

    `blocks` has the sums of blocks of rows and, once rows have proposed, their peaks.
    """

    carry: tuple[float, float]
    blocks: NDArray[np.float64]
    marks: int | None

    def sums(self, live: int, *, peaks: bool) -> TileSums:
        """Add the blocks up."""
        norm, *added = _in_order(self.blocks[:, : 1 + 2 * live]).tolist()
        high = (0.0,) * (1 + live)
        if peaks and len(self.blocks):
            high = tuple(self.blocks[:, 1 + 2 * live :].max(axis=0).tolist())
        return TileSums(self.carry, norm, tuple(added[:live]), tuple(added[live:]), high, self.marks)


class TileProduct(NamedTuple):
    """What `CpuBackend.multiply_tile` sums: of owned rows, float64, and so far of the row that goes on.

    `columns` and `weights` are those of the latter, whose sum is not scattered yet; empty if none is.
    """

    sums: NDArray[np.float64]
    carry: float
    columns: NDArray[np.uint32]
    weights: NDArray[np.float64] | None


class CpuBackend(HostBackend):
    """numba on several threads, whose number changes no bit; for None see `default_threads`."""

    name = "cpu"

    def __init__(self, threads: int | None, edges: int = 0, *, streams: bool = False) -> None:
        self._team = Team(threads or default_threads(edges, streams=streams))
        self._scratch: list[Scratch] = []
        self._rooms: list[list[Scratch]] = []

    def allocate(
        self,
        spec: StripeSpec,
        degree: NDArray[Any],
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None = None,
    ) -> CpuState:
        """See Backend."""
        rows, slots = spec.rows, spec.slots
        teleport = np.empty(0) if teleport is None else teleport
        return CpuState(
            spec,
            StripeRows(
                p=np.zeros(rows),
                r=np.zeros(rows),
                degree=divisors(degree),
                teleport=teleport,
                push=np.zeros(rows if spec.proposals else 0, np.float32),
                changes=np.zeros((slots, rows), np.float32),
                steps=np.zeros((slots, rows), np.float32),
                pushed=np.zeros(rows, READS[spec.reads].dtype),
            ),
            teleport if start is None else start,
        )

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> CpuGatherVector:
        """See Backend."""
        stride = 1 + proposals
        return CpuGatherVector(np.zeros((nodes + 1) * stride, READS[reads].dtype), stride)

    def make_push(
        self, state: CpuState, step: PushStep
    ) -> tuple[NDArray[np.generic], Callable[[], PushSums]]:
        """See Backend."""
        rows, spec = state.rows, state.spec
        if spec.rows:
            rows.r[0] += step.carry
            if spec.proposals:
                rows.push[0] += np.float32(step.carry)
            if step.carry_slot >= 0:
                rows.changes[step.carry_slot, 0] += np.float32(step.carry)
        sums = np.zeros((-(-spec.rows // ROW_BLOCK), 3))
        self._team.run(
            push_rows, rows, state.start, 1 / spec.nodes,
            np.array([slot for slot, _ in step.mixing_coefficients], np.int64),
            np.array([theta for _, theta in step.mixing_coefficients], np.float64),
            step.kind, _table(step.scale), step.scale, sums,
        )  # fmt: skip
        push_sums = PushSums(*_in_order(sums).tolist())
        return rows.pushed, lambda: push_sums

    def load(self, reads: CpuGatherVector, row_begin: int, pushed: NDArray[np.generic]) -> None:
        """See Backend."""
        self._team.run(load, reads.numbers, reads.stride, row_begin, pushed)

    def take_proposals(self, reads: CpuGatherVector, row_begin: int, row_end: int) -> NDArray[np.generic]:
        """See Backend."""
        taken = np.empty(row_end - row_begin, reads.numbers.dtype)
        self._team.run(take_proposals, reads.numbers, row_begin, taken)
        return taken

    def put_proposals(self, reads: CpuGatherVector, row_begin: int, proposals: NDArray[np.generic]) -> None:
        """See Backend."""
        self._team.run(put_proposals, reads.numbers, row_begin, proposals)

    def show_open(self, state: CpuState, reads: CpuGatherVector, row_end: int, step: SweepStep) -> int:
        """See HostBackend."""
        if state.window is None:
            return row_end
        for tile in state.window.tiles:
            self._team.run(show_open, tile, state.rows.degree, reads.numbers, step.scale)
        return state.window.first_open(row_end)

    def reread(self, state: CpuState, reads: CpuGatherVector, step: SweepStep) -> None:
        """See HostBackend."""
        window = state.window
        if window is None:
            return
        for tile in window.tiles:
            self._team.run(reread, tile, window.sends, reads.numbers, _table(step.scale), step.damping)

    def prepare(self, encoded: NDArray[np.uint8], nodes: int, decode: bool) -> CpuTile:
        """See Backend."""
        return self._prepared(parse_tile(encoded), None, nodes, decode)

    def prepare_weighted(
        self, encoded: NDArray[np.uint8], weights: NDArray[np.uint8], factor: float, nodes: int, decode: bool
    ) -> CpuTile:
        """See Backend."""
        packed, segments = parse_tile(encoded), parse_segments(weights)
        return self._prepared(packed, stored_weights(segments, packed.edges, factor), nodes, decode)

    def _prepared(self, packed: PackedTile, weights: Weights | None, nodes: int, decode: bool) -> CpuTile:
        if not decode:
            return CpuTile(packed, weights=weights)
        csr, starts = Scratch().csr(packed, packed.edges)
        expand_segments(packed, csr.row_ptr, starts, csr.segments)
        decode_columns(packed, csr.row_ptr, starts, csr.columns)
        _check_column(int(csr.columns.max(initial=0)), nodes)
        decoded = None
        if weights is not None:
            decoded = np.empty(packed.edges)
            decode_weights(weights, decoded)
            if not decoded.max(initial=0.0) <= _MAX_WEIGHT:
                raise DamagedError("a tile has a weight above all out-weights of the graph.")
        slices = slice_tile(packed, csr, nodes, decoded)
        return CpuTile(packed.counts(), csr, slices, weights=weights)

    def sweep_tile(
        self,
        state: CpuState,
        reads: CpuGatherVector,
        tile: CpuTile,
        rows: tuple[int, int],
        step: SweepStep,
        before: SweptTile | None,
    ) -> SweptTile:
        """See Backend."""
        carry = before.carry if before else (0.0, 0.0)
        spec, packed, weights = state.spec, tile.packed, tile.weights
        owned = rows[1] - rows[0]
        if packed.segments != owned + 1:
            raise DamagedError(f"a tile has {packed.segments} segments where {owned + 1} belong.")
        if reads.swept is not None and reads.swept is not state and not spec.exchanging:
            reads.swept.end_sweeps()
        scratch = self._spare_scratch()
        window = self._window_of(state, step)
        visible_from = spec.row_begin if spec.exchanging else step.visible_from(spec)
        first_open = rows[0] if window is None else window.first_open(rows[0])
        if not owned:
            window = None
        local, has_layout = window is not None, tile.layout is not None
        opened = self._open(spec, tile, rows, len(step.live), scratch, window)
        sums = scratch.sums(packed, owned, both=spec.proposals, permuting=local and not has_layout)
        params = SweepParams(
            packed.edges, packed.nonempty, visible_from, first_open - visible_from, spec.nodes, local,
            has_layout, spec.exchanging, spec.proposals, step.damping, step.base, step.uniform,
            1 / spec.nodes, step.slot, spec.reads == "bits8", step.scale, step.key, *carry,
        )  # fmt: skip
        sends = _NO_SENDS if window is None else window.sends
        ended = state.rows, reads.numbers, _table(step.scale), params, np.array(step.live, np.int64)
        team = self._team.size
        marks = np.zeros(team, np.uint64)
        if tile.csr is None or tile.slices is None:
            csr, starts = scratch.csr(packed, packed.edges if local else team * PIECE * 1024)
            expand_segments(packed, csr.row_ptr, starts, csr.segments)
            max_columns = np.zeros(team, np.uint32)
            self._team.run(
                sweep_packed, packed, starts, local, max_columns, marks, csr, weights, opened, sends, sums,
                *ended,
            )  # fmt: skip
            _check_column(int(max_columns.max()), spec.nodes)
        else:
            if step.key:
                marks[0] = column_marks(tile.csr.columns, step.key)
            if local:
                tile.layout = opened.layout
            self._team.run(sweep_decoded, tile.slices, tile.csr, weights, opened, sends, sums, *ended)
            # From here on the slices hold them.
            tile.csr = tile.csr._replace(columns=_EMPTY)
            tile.weights = None if weights is None else without_data(weights)
        self._scratch.append(scratch)
        if window is not None:
            window.tiles.append(opened)
            self._sweep_open(window, ended)
            reads.swept = state
            state.end_open = partial(self._end_open, window, reads, ended)
        proposed = float(sums.proposals[owned] + opened.tail[0]) if sums.proposals.size else 0.0
        carry = float(sums.pushes[owned]), proposed
        return SweptTile(carry, opened.blocks, int(marks.sum()) if step.key else None)

    def _window_of(self, state: CpuState, step: SweepStep) -> SweepWindow | None:
        """What sweeps tiles of a stripe together; None if none is swept."""
        if not state.spec.proposals or step.sweeps == 1:
            return None
        if state.window is None:
            state.window = SweepWindow(state.spec.tile_rows, step.sweeps)
        return state.window

    def _open(
        self,
        spec: StripeSpec,
        tile: CpuTile,
        rows: tuple[int, int],
        live: int,
        scratch: Scratch,
        window: SweepWindow | None,
    ) -> OpenTile:
        """What a tile has until it proposes: in `scratch`, or in a window if it is swept there."""
        owned = rows[1] - rows[0]
        place = TilePlace.alone(rows[0], owned, rows[0] - spec.row_begin)
        if window is not None:
            window.make_room(self._spare_room)
            place, scratch = window.come(rows[0], owned)
        layout, others = tile.layout, window is not None and spec.exchanging
        if layout is None:
            # Of a tile that stays it does, too.
            own = Scratch() if window is not None and tile.slices is not None else scratch
            weighted = tile.weights is not None
            layout = own.layout(
                tile.packed, owned, wanted=window is not None, others=others, weighted=weighted
            )
        rows_of = scratch.rows(owned, both=spec.proposals, local=window is not None, others=others)
        blocks = np.zeros((-(-owned // ROW_BLOCK), 2 + 3 * live))
        return OpenTile(place, layout, *rows_of, blocks, np.zeros(1))

    def _sweep_open(self, window: SweepWindow, ended: Sequence[Any], later: int = 0) -> None:
        """Sweep the open tiles of a stripe, `later` times since the last one came."""
        tiles, (turns, ends) = window.tiles, window.turns(later)
        # As many as ever, for which it is compiled.
        missing = SWEPT_TILES - len(tiles)
        padded, counts = (*tiles, *tiles[-1:] * missing), (*turns, *(0,) * missing)
        self._team.run(sweep_together, padded, counts, ends, window.sends, *ended)
        if ends:
            tiles.pop(0)

    def _end_open(self, window: SweepWindow, reads: CpuGatherVector, ended: Sequence[Any]) -> None:
        """Sweep the open tiles of a stripe with nothing behind them until all have proposed."""
        for later in range(1, SWEPT_TILES):
            self._sweep_open(window, ended, later)
        self._rooms.append(window.leave())
        reads.swept = None

    def multiply_tile(
        self,
        tile: CpuTile,
        values: NDArray[np.float64],
        owned: int,
        carry: float,
        scattered: NDArray[np.float64] | None,
        bounds: NDArray[np.uint64] | None,
    ) -> TileProduct:
        """Sum `values`, float64, shape (nodes,), over the edges into each row of a tile that is not decoded.

        `carry`: what the tile before brought to the first row. `scattered`: float64, shape (nodes,); each row
        whose sum is known adds it, times the weight of the edge, to its sources; None for not. Threads share
        that by parts of the columns, which begin at `bounds`.
        """
        packed, scratch, team = tile.packed, self._spare_scratch(), self._team.size
        if packed.segments != owned + 1:
            raise DamagedError(f"a tile has {packed.segments} segments where {owned + 1} belong.")
        keep = scattered is not None
        csr, starts = scratch.csr(packed, packed.edges if keep else team * PIECE * 1024)
        expand_segments(packed, csr.row_ptr, starts, csr.segments)
        weights = None if tile.weights is None else scratch.weights(packed.edges if keep else 0)
        sums, max_columns = scratch.row_sums(packed, owned), np.zeros(team, np.uint32)
        self._team.run(
            multiply_packed, packed, starts, keep, max_columns, csr, tile.weights, weights, values, _NO_SUMS,
            owned, carry, sums, _NO_BOUNDS if bounds is None else bounds,
            _NO_SUMS if scattered is None else scattered,
        )  # fmt: skip
        _check_column(int(max_columns.max()), len(values))
        # The row that goes on in the next tile has no sum yet.
        last = packed.nonempty - 1
        begin = int(csr.row_ptr[last]) if keep and last >= 0 and csr.segments[last] == owned else packed.edges
        rest = slice(begin, packed.edges if keep else begin)
        product = TileProduct(
            sums[:owned].copy(),
            float(sums[owned]),
            csr.columns[rest].copy(),
            None if weights is None else weights[rest].copy(),
        )
        self._scratch.append(scratch)
        return product

    def _spare_scratch(self) -> Scratch:
        # Asking first would race with a stripe that another thread sweeps.
        try:
            return self._scratch.pop()
        except IndexError:
            return Scratch()

    def _spare_room(self) -> list[Scratch]:
        """Room for tiles that are swept together, apart from where tiles are decoded."""
        try:
            return self._rooms.pop()
        except IndexError:
            return [Scratch() for _ in range(SWEPT_TILES)]

    def sums(self, state: CpuState, swept: Sequence[SweptTile], step: SweepStep) -> TileSums:
        """See Backend."""
        state.end_sweeps()
        merged = join_sums([tile.sums(len(step.live), peaks=state.spec.reads == "bits8") for tile in swept])
        if not step.key:
            return merged
        # Of a store that contradicts itself the sum may be past all numbers; who gets it looks for that.
        with np.errstate(over="ignore", invalid="ignore"):
            return merged._replace(residual=float(state.rows.r.sum()))

    def first_row(self, state: CpuState, live: tuple[int, ...]) -> Floats:
        """See Backend."""
        rows = state.rows
        return float(rows.r[0]), *(float(rows.changes[slot, 0]) for slot in live)

    def finish(
        self, state: CpuState, carry: float, out: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """See Backend."""
        # In place: at the end of a run there may be no memory for one more vector.
        result = np.add(state.rows.p, state.rows.r, out=state.rows.p if out is None else out)
        if len(result):
            result[0] += carry
        return result

    def restart(self, state: CpuState, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """See Backend."""
        # Somebody has the ranks.
        state.rows = state.rows._replace(p=np.zeros(state.spec.rows))
        for array in self.kept(state).values():
            array[:] = 0
        state.rows.teleport[:] = 0
        state.rows.teleport[rows] = weights

    def kept(self, state: CpuState) -> dict[str, Any]:
        """See Backend."""
        rows = state.rows
        return kept_arrays(rows.p, rows.r, rows.push, rows.changes, rows.steps)


@lru_cache(maxsize=8)
def _table(scale: float) -> NDArray[np.float64]:
    """Magnitude of each byte of ``bits8`` at a scale; float64, shape (256,)."""
    return level_table() * scale


def _check_column(column: int, nodes: int) -> None:
    if column >= nodes:
        raise DamagedError(f"a tile has column {column} of {nodes} nodes.")


def _in_order(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of the blocks, first to last; zeros if there are none."""
    return np.cumsum(blocks, axis=0)[-1] if len(blocks) else np.zeros(blocks.shape[1])
