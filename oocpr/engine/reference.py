"""The backend that is read rather than run: plain NumPy, the oracle of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    sends: NDArray[np.float64]
    open_tiles: list[OpenTile] = field(default_factory=list)
    end_open: Callable[[], None] | None = None

    def end_sweeps(self) -> None:
        """Sweep tiles that have come as often as they are to be, and have them propose."""
        end, self.end_open = self.end_open, None
        if end is not None:
            end()


@dataclass
class ReferenceGatherVector:
    """Push and proposal of each node, and the stripe that has tiles which are still to propose."""

    numbers: NDArray[np.generic]
    swept: ReferenceState | None = None


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
            sends=np.zeros(spec.rows),
        )

    def allocate_reads(self, nodes: int, reads: str, proposals: bool) -> ReferenceGatherVector:
        """See Backend."""
        return ReferenceGatherVector(np.zeros((nodes, 1 + proposals), READS[reads].dtype))

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

    def load(self, reads: ReferenceGatherVector, row_begin: int, pushed: NDArray[np.generic]) -> None:
        """See Backend."""
        rows = slice(row_begin, row_begin + len(pushed))
        reads.numbers[rows, 0] = pushed
        reads.numbers[rows, 1:] = 0

    def take_proposals(
        self, reads: ReferenceGatherVector, row_begin: int, row_end: int
    ) -> NDArray[np.generic]:
        """See Backend."""
        taken = reads.numbers[row_begin:row_end, 1].copy()
        reads.numbers[row_begin:row_end, 1] = 0
        return taken

    def put_proposals(
        self, reads: ReferenceGatherVector, row_begin: int, proposals: NDArray[np.generic]
    ) -> None:
        """See Backend."""
        reads.numbers[row_begin : row_begin + len(proposals), 1] = proposals

    def show_open(
        self, state: ReferenceState, reads: ReferenceGatherVector, row_end: int, step: SweepStep
    ) -> int:
        """See HostBackend."""
        for tile in state.open_tiles:
            self._show(state, reads, tile.rows, tile.value, step)
        return state.open_tiles[0].rows.start + state.spec.row_begin if state.open_tiles else row_end

    def reread(self, state: ReferenceState, reads: ReferenceGatherVector, step: SweepStep) -> None:
        """See HostBackend."""
        for tile in state.open_tiles:
            tile.read_others(reads.numbers[:, 1], state.spec, step)
            tile.restart(state.sends)

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
        reads: ReferenceGatherVector,
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
        if reads.swept is not None and reads.swept is not state and not spec.exchanging:
            reads.swept.end_sweeps()
        row = np.repeat(np.arange(len(lengths)), lengths)
        pushed = widen(reads.numbers[columns, 0], spec.reads, step.scale) * weights
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
            (0.0,) * (1 + len(live)),
            int(column_marks(columns, step.key)) if step.key else None,
        )

    def _propose(
        self,
        state: ReferenceState,
        reads: ReferenceGatherVector,
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
        first = state.open_tiles[0].rows.start + spec.row_begin if state.open_tiles else begin
        if step.exchanged and not spec.exchanging:
            visible = (columns < first) | (columns >= spec.row_end)
        else:
            visible = (columns < first) & (columns >= spec.row_begin)
        numbers = widen(reads.numbers[columns[visible], 1], spec.reads, step.scale) * weights[visible]
        proposed = np.zeros(end - begin + 1)
        np.add.at(proposed, row[visible], numbers)
        proposed[0] += carry
        start = state.r[owned] + step.damping * proposed[:-1]
        if step.sweeps == 1:
            self._end_tile(state, reads, owned, start, step)
        elif end > begin:
            lengths = np.bincount(row, minlength=end - begin + 1).astype(np.uint32)
            beside = _beside(spec.tile_rows, begin)
            inside = columns.astype(np.int64) - spec.row_begin
            factors = step.damping / state.degree
            edges = TileEdges(inside, lengths, weights, owned, slice(*(beside - spec.row_begin)), factors)
            opened = OpenTile(edges, start)
            if spec.exchanging:
                proposed[-1] += opened.read_others(reads.numbers[:, 1], spec, step)
            opened.open(state.sends)
            state.open_tiles.append(opened)
            self._sweep_open(state, reads, step)
            reads.swept = state
            state.end_open = partial(self._end_open, state, reads, step)
        return proposed

    def _sweep_open(
        self, state: ReferenceState, reads: ReferenceGatherVector, step: SweepStep, later: int = 0
    ) -> None:
        """Sweep the open tiles in turns; the last of their sweeps come when they have been there longest."""
        ages = [later + number for number in reversed(range(len(state.open_tiles)))]
        turns = [(step.sweeps - 1 + age) // TOGETHER for age in ages]
        for turn in range(max(turns)):
            for tile, count in zip(state.open_tiles, turns, strict=True):
                if turn < count:
                    tile.sweep(state.sends)
        if ages[0] == TOGETHER - 1:
            tile = state.open_tiles.pop(0)
            self._end_tile(state, reads, tile.rows, tile.value, step)

    def _end_open(self, state: ReferenceState, reads: ReferenceGatherVector, step: SweepStep) -> None:
        for later in range(1, TOGETHER):
            self._sweep_open(state, reads, step, later)
        state.sends[:] = 0
        reads.swept = None

    def _end_tile(
        self,
        state: ReferenceState,
        reads: ReferenceGatherVector,
        owned: slice,
        proposal: NDArray[np.float64],
        step: SweepStep,
    ) -> None:
        """Let others read what rows of a tile propose."""
        if step.slot >= 0:
            state.steps[step.slot, owned] = state.pushed[owned] + proposal - state.proposal[owned]
        state.proposal[owned] = proposal
        self._show(state, reads, owned, proposal, step)

    def _show(
        self,
        state: ReferenceState,
        reads: ReferenceGatherVector,
        owned: slice,
        proposal: NDArray[np.float64],
        step: SweepStep,
    ) -> None:
        spec = state.spec
        rows = slice(owned.start + spec.row_begin, owned.stop + spec.row_begin)
        reads.numbers[rows, 1] = narrow(proposal / state.degree[owned], spec.reads, step.scale)

    def sums(self, state: ReferenceState, swept: Sequence[TileSums], step: SweepStep) -> TileSums:
        """See Backend."""
        state.end_sweeps()
        residual = float(state.r.sum()) if step.key else 0.0
        return join_sums(swept)._replace(residual=residual, peaks=self._peaks(state, step.live))

    def _peaks(self, state: ReferenceState, live: Sequence[int]) -> Floats:
        """See TileSums.peaks."""
        if state.spec.reads != "bits8" or not state.spec.rows:
            return (0.0,) * (1 + len(live))
        push = state.proposal if state.spec.proposals else state.r
        vectors = [push, *(state.steps[slot] for slot in live)]
        return tuple(float(np.abs(vector / state.degree).max()) for vector in vectors)

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


TOGETHER = 3
REGIONS, LONG, ABREAST = 8, 255, 16


class TileEdges(NamedTuple):
    """Edges of a tile along which it is swept; rows count from the first of its stripe.

    `columns`, int64, are of all its edges, and `lengths` of the owned rows' segments, then of the tail; of
    the `rows` owned, those with columns `beside` count. `factors`: damping over the weight that leaves each
    row of the stripe.
    """

    columns: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    weights: NDArray[np.float64]
    rows: slice
    beside: slice
    factors: NDArray[np.float64]


class OpenTile:
    """A tile that is swept; a row's edge to itself is solved for.

    `start` is what its rows have from outside, and `sends`, below, what each row of the stripe sends along
    its edges.

    Examples
    --------
    >>> ring = np.array([1, 0]), np.array([1, 1, 0], np.uint32)  # two rows with edges to each other
    >>> whole, sends = slice(0, 2), np.zeros(2)
    >>> tile = OpenTile(TileEdges(*ring, np.ones(2), whole, whole, np.full(2, 0.5)), np.ones(2))
    >>> tile.open(sends)
    >>> tile.sweep(sends)
    >>> tile.sweep(sends)
    >>> tile.value
    array([1.75, 1.75])
    """

    def __init__(self, edges: TileEdges, start: NDArray[np.float64]) -> None:
        self.rows, self._edges = edges.rows, edges
        self._own = self._start = start
        self._gains = _gains(edges)
        self._groups = [list(_groups(edges, region)) for region in range(REGIONS)]
        self._bounds = [_bounds(edges, region) for region in range(REGIONS)]
        self.value = start.copy()

    def read_others(self, proposals: NDArray[np.generic], spec: StripeSpec, step: SweepStep) -> float:
        """Begin from what rows of other stripes propose, too; returns what they do to the tail."""
        edges = self._edges
        others = np.flatnonzero((edges.columns < 0) | (edges.columns >= spec.rows))
        sent = widen(proposals[edges.columns[others] + spec.row_begin], spec.reads, step.scale)
        owner = np.repeat(np.arange(len(edges.lengths)), edges.lengths)[others]
        read = np.bincount(owner, sent * edges.weights[others], minlength=len(edges.lengths))
        self._start = self._own + step.damping * read[:-1]
        return float(read[-1])

    def open(self, sends: NDArray[np.float64]) -> None:
        """Let rows send what they begin with."""
        self._begin_with(np.arange(len(self._start)), sends)

    def restart(self, sends: NDArray[np.float64]) -> None:
        """Let rows that are not swept send what they begin with now."""
        swept = [rows for region in self._groups for rows, _, _ in region]
        idle = np.ones(len(self._start), bool)
        idle[np.concatenate([*swept, []]).astype(np.int64)] = False
        self._begin_with(np.flatnonzero(idle), sends)

    def _begin_with(self, rows: NDArray[np.int64], sends: NDArray[np.float64]) -> None:
        self.value[rows] = self._start[rows] * self._gains[rows]
        sends[rows + self.rows.start] = self._edges.factors[rows + self.rows.start] * self.value[rows]

    def sweep(self, sends: NDArray[np.float64]) -> None:
        """Sweep it once."""
        edges, first = self._edges, self.rows.start
        before = sends.copy()
        for (low, high), region in zip(self._bounds, self._groups, strict=True):
            for rows, listed, owner in region:
                sources = edges.columns[listed]
                own = (sources >= first + low) & (sources < first + high)
                sent = edges.weights[listed] * np.where(own, sends[sources], before[sources])
                self.value[rows] = self._gains[rows] * (
                    self._start[rows] + np.bincount(owner, sent, len(rows))
                )
                sends[first + rows] = edges.factors[first + rows] * self.value[rows]


def _beside(tile_rows: NDArray[np.int64], begin: int) -> NDArray[np.int64]:
    """First row that tiles beside the one whose first row is `begin` own, and the one past their last."""
    bounds = np.unique(tile_rows)
    number = int(np.searchsorted(bounds, begin))
    last = len(bounds) - 1
    return bounds[[max(0, number - TOGETHER + 1), min(last, number + TOGETHER)]]


def _gains(edges: TileEdges) -> NDArray[np.float64]:
    """By what an edge of a row to itself multiplies it: 1 / (1 - what of it the edge returns); else 1."""
    owner = np.repeat(np.arange(len(edges.lengths)), edges.lengths) + edges.rows.start
    loops = np.flatnonzero((edges.columns == owner) & (owner < edges.rows.stop))
    own = owner[loops]
    gains = np.ones(len(edges.factors))
    gains[own] = 1 / (1 - edges.factors[own] * edges.weights[loops])
    return gains[edges.rows]


def _segments(lengths: NDArray[np.uint32], region: int) -> NDArray[np.int64]:
    """Non-empty segments whose first edge is in a region."""
    nonempty = np.flatnonzero(lengths)
    firsts = (np.cumsum(lengths, dtype=np.int64) - lengths)[nonempty]
    edges = int(lengths.sum(dtype=np.int64))
    low, high = (np.searchsorted(firsts, edges * part // REGIONS) for part in (region, region + 1))
    return nonempty[low : len(nonempty) if region == REGIONS - 1 else high]


def _bounds(edges: TileEdges, region: int) -> tuple[int, int]:
    """First row of a region and the one past its last, counted from the tile's first."""
    lengths, rows = edges.lengths, len(edges.lengths) - 1

    def first(part: int) -> int:
        if part == 0:
            return 0
        later = [int(segment) for r in range(part, REGIONS) for segment in _segments(lengths, r)[:1]]
        return min([rows, *later])

    return first(region), first(region + 1)


def _groups(
    edges: TileEdges, region: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Rows that are replaced together: long ones alone, then sixteen at a time, longest first.

    Yields the rows, the edges along which they are swept, and to which of the rows each edge belongs.
    """
    ends = np.cumsum(edges.lengths, dtype=np.int64)
    inside: dict[int, NDArray[np.int64]] = {}
    for segment in map(int, _segments(edges.lengths, region)):
        listed = np.arange(ends[segment] - edges.lengths[segment], ends[segment])
        sources, row = edges.columns[listed], segment + edges.rows.start
        listed = listed[(sources >= edges.beside.start) & (sources < edges.beside.stop) & (sources != row)]
        if row < edges.rows.stop and len(listed):
            inside[segment] = listed
    long = [row for row, listed in inside.items() if len(listed) > LONG]
    short = [row for row, listed in inside.items() if len(listed) <= LONG]
    short.sort(key=lambda row: -len(inside[row]))
    chosen = [[row] for row in long]
    chosen += [short[i : i + ABREAST] for i in range(0, len(short), ABREAST)]
    for group in chosen:
        owner = np.repeat(np.arange(len(group)), [len(inside[row]) for row in group])
        yield np.array(group), np.concatenate([inside[row] for row in group]), owner
