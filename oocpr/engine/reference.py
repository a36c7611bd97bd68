"""The backend that is read rather than run: plain NumPy, the oracle of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.backend import RESTART, START, HostBackend, PushSums, TileSums, join_sums, kept_arrays
from oocpr.engine.degree_check import column_marks
from oocpr.engine.number_formats import READS, narrow, widen
from oocpr.store.codec.mantissa_segments import join_segments
from oocpr.store.codec.tiles import decode_tile

if TYPE_CHECKING:
    from oocpr.engine.backend import Floats, PushStep, StripeSpec, SweepStep


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
    """Edges of a tile: columns uint32, lengths of its segments uint32, weights float64."""

    columns: NDArray[np.uint32]
    lengths: NDArray[np.uint32]
    weights: NDArray[np.float64]


class ReferenceBackend(HostBackend):
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

    def make_push(
        self, state: ReferenceState, step: PushStep
    ) -> tuple[NDArray[np.generic], Callable[[], PushSums]]:
        """See Backend."""
        if state.spec.rows:
            state.r[0] += step.carry
            if state.spec.proposals:
                state.proposal[0] += step.carry
            if step.carry_slot >= 0:
                state.changes[step.carry_slot, 0] += step.carry
        if step.kind == START:
            push = state.start - state.p
        elif step.kind == RESTART:
            push = state.p + state.r
            state.p[:] = 0
            state.r[:] = 0
        else:
            push = (state.proposal if state.spec.proposals else state.r).copy()
            for slot, theta in step.mixing_coefficients:
                push -= theta * state.steps[slot]
        stored = narrow(push / state.degree, state.spec.reads, step.scale)
        state.pushed = widen(stored, state.spec.reads, step.scale) * state.degree
        state.p += state.pushed
        sums = PushSums(
            float(state.pushed[state.dangling].sum()), float(state.pushed.sum()), float(state.p.sum())
        )
        return stored, lambda: sums

    def load(self, reads: NDArray[np.generic], row_begin: int, pushed: NDArray[np.generic]) -> None:
        """See Backend."""
        rows = slice(row_begin, row_begin + len(pushed))
        reads[rows, 0] = pushed
        reads[rows, 1:] = 0

    def take_proposals(self, reads: NDArray[np.generic], row_begin: int, row_end: int) -> NDArray[np.generic]:
        """See Backend."""
        taken = reads[row_begin:row_end, 1].copy()
        reads[row_begin:row_end, 1] = 0
        return taken

    def put_proposals(
        self, reads: NDArray[np.generic], row_begin: int, proposals: NDArray[np.generic]
    ) -> None:
        """See Backend."""
        reads[row_begin : row_begin + len(proposals), 1] = proposals

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
        """See Backend."""
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
            tuple((state.changes[live, owned] @ change).tolist()),
            tuple((state.changes[live, owned] @ residual).tolist()),
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
        """Propose for a tile's rows; returns what others proposed to each segment."""
        spec = state.spec
        begin, end = rows
        columns, _, weights = tile
        owned = slice(begin - spec.row_begin, end - spec.row_begin)
        if step.exchanged:
            visible = (columns < begin) | (columns >= spec.row_end)
        else:
            visible = (columns < begin) & (columns >= spec.row_begin)
        numbers = widen(reads[columns[visible], 1], spec.reads, step.scale) * weights[visible]
        proposed = np.zeros(end - begin + 1)
        np.add.at(proposed, row[visible], numbers)
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

    def _peaks(self, state: ReferenceState, owned: slice, live: list[int]) -> Floats:
        """See TileSums.peaks."""
        if state.spec.reads != "bits8" or owned.start == owned.stop:
            return (0.0,) * (1 + len(live))
        push = state.proposal if state.spec.proposals else state.r
        vectors = [push[owned], *(state.steps[slot, owned] for slot in live)]
        return tuple(float(np.abs(vector / state.degree[owned]).max()) for vector in vectors)

    def sums(self, state: ReferenceState, swept: Sequence[TileSums], step: SweepStep) -> TileSums:
        """See Backend."""
        return join_sums(swept)._replace(residual=float(state.r.sum()) if step.key else 0.0)

    def first_row(self, state: ReferenceState, live: tuple[int, ...]) -> Floats:
        """See Backend."""
        return float(state.r[0]), *(float(state.changes[slot, 0]) for slot in live)

    def finish(
        self, state: ReferenceState, carry: float, out: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """See Backend."""
        result: NDArray[np.float64] = np.add(state.p, state.r, out=out)
        if len(result):
            result[0] += carry
        return result

    def restart(self, state: ReferenceState, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """See Backend."""
        for array in self.kept(state).values():
            array[:] = 0
        state.teleport[:] = 0
        state.teleport[rows] = weights

    def kept(self, state: ReferenceState) -> dict[str, Any]:
        """See Backend."""
        return kept_arrays(state.p, state.r, state.proposal, state.changes, state.steps)


REGIONS, LONG, ABREAST = 8, 255, 16


def local_sweeps(
    columns: NDArray[np.int64],
    lengths: NDArray[np.uint32],
    start: NDArray[np.float64],
    factors: NDArray[np.float64],
    sweeps: int,
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Sweep a tile's rows over the edges that stay inside it; a row's edge to itself is solved for.

    `columns` count from the first owned row, those outside 0 .. rows - 1 are left out; `lengths` are of the
    owned rows' segments, then of the tail. `start` and `factors` are what rows have from outside, and damping
    over the weight that leaves them. `sweeps` counts the delivering product.

    Examples
    --------
    >>> ring = np.array([1, 0])  # two rows with edges to each other
    >>> local_sweeps(ring, np.array([1, 1, 0], np.uint32), np.ones(2), np.full(2, 0.5), 3, np.ones(2))
    array([1.75, 1.75])
    """
    if sweeps == 1:
        return start.copy()
    gains = _gains(columns, lengths, factors, weights)
    value = start * gains
    groups = [list(_groups(columns, lengths, len(start), region)) for region in range(REGIONS)]
    bounds = [_bounds(lengths, len(start), region) for region in range(REGIONS)]
    for _ in range(sweeps - 1):
        before = factors * value
        for (low, high), region in zip(bounds, groups, strict=True):
            for rows, edges, owner in region:
                sources = columns[edges]
                own = (sources >= low) & (sources < high)
                sent = weights[edges] * np.where(own, factors[sources] * value[sources], before[sources])
                value[rows] = gains[rows] * (start[rows] + np.bincount(owner, sent, len(rows)))
    return value


def _gains(
    columns: NDArray[np.int64],
    lengths: NDArray[np.uint32],
    factors: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """By what an edge of a row to itself multiplies it: 1 / (1 - what of it the edge returns); else 1."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    edges = np.flatnonzero((columns == owner) & (owner < len(factors)))
    own = owner[edges]
    gains = np.ones(len(factors))
    gains[own] = 1 / (1 - factors[own] * weights[edges])
    return gains


def _segments(lengths: NDArray[np.uint32], region: int) -> NDArray[np.int64]:
    """Non-empty segments whose first edge is in a region."""
    nonempty = np.flatnonzero(lengths)
    firsts = (np.cumsum(lengths, dtype=np.int64) - lengths)[nonempty]
    edges = int(lengths.sum(dtype=np.int64))
    low, high = (np.searchsorted(firsts, edges * part // REGIONS) for part in (region, region + 1))
    return nonempty[low : len(nonempty) if region == REGIONS - 1 else high]


def _bounds(lengths: NDArray[np.uint32], rows: int, region: int) -> tuple[int, int]:
    """First row of a region and the one past its last."""

    def first(part: int) -> int:
        if part == 0:
            return 0
        later = [int(segment) for r in range(part, REGIONS) for segment in _segments(lengths, r)[:1]]
        return min([rows, *later])

    return first(region), first(region + 1)


def _groups(
    columns: NDArray[np.int64], lengths: NDArray[np.uint32], rows: int, region: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Rows that are replaced together: long ones alone, then sixteen at a time, longest first.

    Yields the rows, their edges inside the tile, and to which of the rows each edge belongs.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    inside: dict[int, NDArray[np.int64]] = {}
    for segment in map(int, _segments(lengths, region)):
        edges = np.arange(ends[segment] - lengths[segment], ends[segment])
        sources = columns[edges]
        edges = edges[(sources >= 0) & (sources < rows) & (sources != segment)]
        if segment < rows and len(edges):
            inside[segment] = edges
    long = [row for row, edges in inside.items() if len(edges) > LONG]
    short = [row for row, edges in inside.items() if len(edges) <= LONG]
    short.sort(key=lambda row: -len(inside[row]))
    chosen = [[row] for row in long]
    chosen += [short[i : i + ABREAST] for i in range(0, len(short), ABREAST)]
    for group in chosen:
        owner = np.repeat(np.arange(len(group)), [len(inside[row]) for row in group])
        yield np.array(group), np.concatenate([inside[row] for row in group]), owner
