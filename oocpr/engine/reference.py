"""The backend that is read rather than run: plain NumPy, the oracle of the others.

One statement a step of the method; no narrow arithmetic beyond the rounding of what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.backend import Pushed, TileSums, join_sums
from oocpr.engine.cpu.degree_checksum import column_marks
from oocpr.engine.number_formats import READS, narrow, widen
from oocpr.engine.reference_local import local_sweeps
from oocpr.store.codec.mantissa_segments import join_segments
from oocpr.store.codec.tile_decoder import decode_tile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.backend import PublishStep, StripeSpec, SweepStep


@dataclass
class ReferenceState:
    """Rows of one stripe; float64, shape (rows,), history (slots, rows)."""

    spec: StripeSpec
    degree: NDArray[np.float64]
    dangling: NDArray[np.bool_]
    teleport: NDArray[np.float64]
    start: NDArray[np.float64]
    p: NDArray[np.float64]
    r: NDArray[np.float64]
    proposal: NDArray[np.float64]
    pushed: NDArray[np.float64]
    changes: NDArray[np.float64]
    steps: NDArray[np.float64]


class ReferenceTile(NamedTuple):
    """Links of a tile: columns uint32, lengths of its segments uint32, weights float64."""

    columns: NDArray[np.uint32]
    lengths: NDArray[np.uint32]
    weights: NDArray[np.float64]


class ReferenceBackend:
    """NumPy, float64 throughout."""

    name = "reference"

    def allocate(
        self,
        spec: StripeSpec,
        degree: NDArray[Any],
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None = None,
    ) -> ReferenceState:
        """See Backend."""
        if teleport is None:
            teleport = np.full(spec.rows, 1 / spec.nodes)
        return ReferenceState(
            spec,
            np.where(degree > 0, degree, 1).astype(np.float64),
            degree == 0,
            teleport,
            teleport if start is None else start,
            p=np.zeros(spec.rows),
            r=np.zeros(spec.rows),
            proposal=np.zeros(spec.rows),
            pushed=np.zeros(spec.rows),
            changes=np.zeros((spec.slots, spec.rows)),
            steps=np.zeros((spec.slots, spec.rows)),
        )

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> NDArray[np.generic]:
        """See Backend."""
        return np.zeros((nodes, 1 + proposals), READS[reads].dtype)

    def publish(
        self, state: ReferenceState, step: PublishStep
    ) -> tuple[NDArray[np.generic], Callable[[], Pushed]]:
        """See Backend."""
        if state.spec.rows:
            state.r[0] += step.carry
            if state.spec.proposals:
                state.proposal[0] += step.carry
            if step.carry_slot >= 0:
                state.changes[step.carry_slot, 0] += step.carry
        if step.start:
            push = state.start - state.p
        elif step.restart:
            push = state.p + state.r
            state.p[:] = 0
            state.r[:] = 0
        else:
            push = (state.proposal if state.spec.proposals else state.r).copy()
            for slot, theta in step.weights:
                push -= theta * state.steps[slot]
        stored = narrow(push / state.degree, state.spec.reads, step.scale)
        state.pushed = widen(stored, state.spec.reads, step.scale) * state.degree
        state.p += state.pushed
        sums = Pushed(
            float(state.pushed[state.dangling].sum()), float(state.pushed.sum()), float(state.p.sum())
        )
        return stored, lambda: sums

    def load(self, reads: NDArray[np.generic], row_begin: int, pushed: NDArray[np.generic]) -> None:
        """See Backend."""
        reads[row_begin : row_begin + len(pushed), 0] = pushed

    def prepare(
        self,
        encoded: NDArray[np.uint8],
        nodes: int,  # noqa: ARG002
        decode: bool,  # noqa: ARG002
    ) -> ReferenceTile:
        """See Backend."""
        columns, lengths = decode_tile(encoded)
        return ReferenceTile(columns, lengths, np.ones(len(columns)))

    def prepare_weighted(
        self, encoded: NDArray[np.uint8], weights: NDArray[np.uint8], factor: float, nodes: int, decode: bool
    ) -> ReferenceTile:
        """See Weighs."""
        tile = self.prepare(encoded, nodes, decode)
        return tile._replace(weights=join_segments(weights, np.empty(len(tile.columns))) * factor)

    def sweep_tile(
        self,
        state: ReferenceState,
        reads: NDArray[np.generic],
        tile: ReferenceTile,
        rows: tuple[int, int],
        step: SweepStep,
        before: TileSums | None,
    ) -> TileSums:
        """See Backend."""
        carry = before.carry if before else (0.0, 0.0)
        spec = state.spec
        begin, end = rows
        columns, lengths, weights = tile
        row = np.repeat(np.arange(len(lengths)), lengths)
        pushed = widen(reads[columns, 0], spec.reads, step.scale) * weights
        delivered = np.bincount(row, pushed, minlength=len(lengths))
        delivered[0] += carry[0]
        proposed = np.zeros(len(lengths))
        owned = slice(begin - spec.row_begin, end - spec.row_begin)
        change = (
            step.damping * delivered[:-1]
            + (step.base * state.teleport[owned] + step.uniform)
            - state.pushed[owned]
        )
        state.r[owned] += change
        if spec.proposals:
            proposed = self._propose(state, reads, tile, row, rows, step, carry[1])
        elif step.slot >= 0:
            state.steps[step.slot, owned] = state.pushed[owned] + change
        if step.slot >= 0:
            state.changes[step.slot, owned] = change
        live = list(step.live)
        residual = state.r[owned]
        return TileSums(
            (float(delivered[-1]), float(proposed[-1])),
            float(np.abs(residual).sum()),
            state.changes[live, owned] @ change,
            state.changes[live, owned] @ residual,
            self._peaks(state, owned, live),
            int(column_marks(columns, step.key)) if step.key else None,
        )

    def _propose(
        self,
        state: ReferenceState,
        reads: NDArray[np.generic],
        tile: ReferenceTile,
        row: NDArray[np.int64],
        rows: tuple[int, int],
        step: SweepStep,
        carry: float,
    ) -> NDArray[np.float64]:
        """Propose for a tile's rows; returns what earlier tiles proposed to each segment."""
        spec = state.spec
        begin, end = rows
        columns, _, weights = tile
        owned = slice(begin - spec.row_begin, end - spec.row_begin)
        earlier = (columns >= spec.row_begin) & (columns < begin)
        numbers = widen(reads[columns[earlier], 1], spec.reads, step.scale) * weights[earlier]
        proposed = np.zeros(end - begin + 1)
        np.add.at(proposed, row[earlier], numbers)
        proposed[0] += carry
        start = state.r[owned] + step.damping * proposed[:-1]
        proposal = local_sweeps(
            columns.astype(np.int64) - begin,
            np.bincount(row, minlength=end - begin + 1).astype(np.uint32),
            start,
            step.damping / state.degree[owned],
            step.sweeps,
            weights,
        )
        if step.slot >= 0:
            state.steps[step.slot, owned] = state.pushed[owned] + proposal - state.proposal[owned]
        state.proposal[owned] = proposal
        reads[begin:end, 1] = narrow(proposal / state.degree[owned], spec.reads, step.scale)
        return proposed

    def _peaks(self, state: ReferenceState, owned: slice, live: list[int]) -> NDArray[np.float64]:
        """See TileSums.peaks."""
        if state.spec.reads != "bits8" or owned.start == owned.stop:
            return np.zeros(1 + len(live))
        push = state.proposal if state.spec.proposals else state.r
        vectors = [push[owned], *(state.steps[slot, owned] for slot in live)]
        return np.array([np.abs(vector / state.degree[owned]).max() for vector in vectors])

    def sums(self, state: ReferenceState, swept: Sequence[TileSums], step: SweepStep) -> TileSums:
        """See Backend."""
        return replace(join_sums(swept), residual=float(state.r.sum()) if step.key else 0.0)

    def first_row(self, state: ReferenceState, live: tuple[int, ...]) -> NDArray[np.float64]:
        """See Backend."""
        return np.array([state.r[0], *(state.changes[slot, 0] for slot in live)])

    def finish(self, state: ReferenceState, carry: float) -> NDArray[np.float64]:
        """See Backend."""
        result = state.p + state.r
        if len(result):
            result[0] += carry
        return result
