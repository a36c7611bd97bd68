"""One tile on the CPU, from its bytes or columns to its sums, by all threads of a team."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float32, uint64
from numpy.typing import NDArray

from oocpr.engine.cpu.gather import (
    PIECE,
    decode_piece,
    first_not_below,
    gather_both,
    gather_piece,
    gather_pushes,
    join_pieces,
    pieces_of,
)
from oocpr.engine.cpu.local_sweeps import (
    TILE_REGIONS,
    commit_region,
    fill_region,
    permute_region,
    start_region,
    sweep_region,
    unpermute_region,
)
from oocpr.engine.cpu.numbers import decode_piece_weights, piece_buffer
from oocpr.engine.cpu.rows import ROW_BLOCK, begin_sweeps, end_sweeps, peak_block, update_block
from oocpr.engine.cpu.threads import barrier, next_chunk, parallel_region
from oocpr.engine.degree_check import add_marks
from oocpr.jit import entry, inner
from oocpr.store.codec.tiles import SCRATCH


class StripeRows(NamedTuple):
    """State of a stripe's rows: changes and steps of shape (slots, rows), the others (rows,).

    `degree` is uint32, or float64 as `oocpr.engine.cpu.numbers.divisors` makes it. `teleport` has shape (0,)
    if it is uniform, `push`, the last proposal, if nothing is proposed. `pushed` is as rows gather it.
    """

    p: NDArray[np.float64]
    r: NDArray[np.float64]
    degree: NDArray[Any]
    teleport: NDArray[np.float64]
    push: NDArray[np.float32]
    changes: NDArray[np.float32]
    steps: NDArray[np.float32]
    pushed: NDArray[np.generic]


class Sums(NamedTuple):
    """What a sweep of one tile adds up, and its scratch; proposals have shape (0,) if nothing is proposed."""

    # Shape (segments + pieces + 1,): of rows, then of the parts that pieces begin with, then of padding.
    pushes: NDArray[np.float64]
    proposals: NDArray[np.float64]
    # Shape (segments,): proposal of each row, first what comes from outside the tile.
    proposed: NDArray[np.float32]
    # By permuted rows, for local sweeps: the proposal before and after, and, twice, what is sent per edge.
    start: NDArray[np.float32]
    value: NDArray[np.float32]
    sends: NDArray[np.float32]
    # Shape (blocks of rows, 2 + 3 live).
    blocks: NDArray[np.float64]
    # For `permute_region`.
    counts: NDArray[np.uint32]
    places: NDArray[np.uint32]
    tally: NDArray[np.uint32]


class SweepParams(NamedTuple):
    """Numbers of a tile and what to do with it; see SweepStep.

    Its first owned row is `first` of the graph and `offset` of the stripe; `nonempty` segments have edges.
    `has_layout` says whether the edges inside it are laid out already, `both` whether proposals are gathered.
    """

    edges: int
    nonempty: int
    first: int
    owned: int
    offset: int
    stripe_first: int
    nodes: int
    has_layout: bool
    both: bool
    sweeps: int
    damping: float
    base: float
    spread: float
    uniform: float
    slot: int
    peaks: bool
    scale: float
    key: int
    carry: float
    carry_proposed: float


@entry()
def sweep_packed(board, *args):
    """Do everything that a pass does to a tile that is still packed."""
    return parallel_region(board, _sweep_packed, args)


@inner()
def _sweep_packed(
    me, team, counter, tile, starts, keep, max_columns, marks, csr, weights, layout, sums, rows, reads, table,
    params, live,
):  # fmt: skip
    """Sweep a packed tile, the part of one thread.

    `keep` says whether columns are written to their places in the tile rather than used once. `max_columns`
    and `marks`, shape (team,), receive each thread's largest column and, if there is a key, sum of marks.
    """
    _clear(me, team, sums)
    barrier(counter, team, 1)
    pieces = pieces_of(params.edges)
    block = np.empty(SCRATCH, np.uint32)
    decoded = np.empty(SCRATCH, np.uint32)
    size = uint64(1024 * PIECE)
    piece_weights = piece_buffer(weights, 1024 * PIECE)
    # The readers of tiles have no processor of their own: who is held up by them takes fewer pieces.
    piece = next_chunk(counter[1:])
    while piece < pieces:
        at = uint64(piece) * size if keep else uint64(me) * size
        top = decode_piece(tile, piece, csr.row_ptr, starts, csr.columns, at, block, decoded)
        max_columns[me] = max(max_columns[me], top)
        if top >= params.nodes:
            break
        first = uint64(piece) * size
        count = min(size, uint64(params.edges) - first)
        if params.key:
            marks[me] += add_marks(csr.columns, at, at + count, params.key)
        decode_piece_weights(weights, first, count, piece_weights)
        gather_piece(
            piece, params.edges, params.nonempty, csr.row_ptr, csr.segments, csr.columns, piece_weights, at,
            reads, table, params.both, uint64(params.stripe_first),
            uint64(params.first - params.stripe_first), sums.pushes, sums.proposals, params.owned + 1,
        )  # fmt: skip
        piece = next_chunk(counter[1:])
    _after_gather(me, team, counter, csr, weights, layout, sums, rows, reads, table, params, live)


@entry()
def sweep_decoded(board, *args):
    """Do everything that a pass does to a tile whose edges lie in slices."""
    return parallel_region(board, _sweep_decoded, args)


@inner()
def _sweep_decoded(me, team, counter, slices, csr, weights, layout, sums, rows, reads, table, params, live):
    _clear(me, team, sums)
    barrier(counter, team, 1)
    count = uint64(slices.slice_ptr.size - 1)
    columns = uint64(slices.slice_ptr[count])
    low = first_not_below(slices.slice_ptr, count, columns * uint64(me) // uint64(team))
    high = first_not_below(slices.slice_ptr, count, columns * uint64(me + 1) // uint64(team))
    if params.both and params.first > params.stripe_first:
        gather_both(
            low, high, slices.slice_ptr, slices.targets, slices.columns, slices.weights, reads, table,
            uint64(params.stripe_first), uint64(params.first - params.stripe_first), uint64(params.nodes),
            sums.pushes, sums.proposals,
        )  # fmt: skip
    else:
        gather_pushes(
            low, high, slices.slice_ptr, slices.targets, slices.columns, slices.weights, reads, table,
            uint64(params.both), sums.pushes,
        )  # fmt: skip
    _after_gather(me, team, counter, csr, weights, layout, sums, rows, reads, table, params, live)


@inner()
def _clear(me, team, sums):
    """Zero what is written in part only."""
    segments = sums.pushes.size
    low, high = segments * me // team, segments * (me + 1) // team
    sums.pushes[low:high] = 0.0
    if sums.proposals.size:
        sums.proposals[low:high] = 0.0


@inner()
def _after_gather(me, team, counter, csr, weights, layout, sums, rows, reads, table, params, live):
    """Join the pieces, update the rows, sweep inside the tile, propose."""
    offset = uint64(params.offset)
    barrier(counter, team, 2)
    if me == 0:
        join_pieces(
            params.edges, params.nonempty, csr.row_ptr, csr.segments, sums.pushes, sums.proposals,
            params.owned + 1, params.carry, params.carry_proposed,
        )  # fmt: skip
    local = params.both and params.sweeps > 1
    barrier(counter, team, 3)
    phase = 3
    if local and not params.has_layout:
        _make_layout(me, team, counter, params, csr, weights, layout, sums, rows)
        phase = 4
    out = np.empty(ROW_BLOCK, np.float64)
    blocks = sums.blocks.shape[0]
    mine = range(blocks * me // team, blocks * (me + 1) // team)
    for b in mine:
        begin = uint64(b * ROW_BLOCK)
        end = uint64(min(b * ROW_BLOCK + ROW_BLOCK, params.owned))
        update_block(
            begin, end, offset, rows, table, params.uniform, sums.pushes, params.damping, params.base,
            params.spread, params.slot, live, sums.blocks[b], out,
        )  # fmt: skip
        if params.both:
            begin_sweeps(begin, end, offset, rows, sums.proposals, params.damping, sums.proposed)
    if local:
        _local_sweeps(me, team, counter, phase, params, layout, sums)
    for b in mine:
        begin = uint64(b * ROW_BLOCK)
        end = uint64(min(b * ROW_BLOCK + ROW_BLOCK, params.owned))
        if params.both:
            end_sweeps(
                begin, end, uint64(params.first), offset, rows, reads, table, params.scale, sums.proposed,
                params.slot, out,
            )  # fmt: skip
        if params.peaks:
            _note_peaks(begin, end, offset, rows, params, live, sums.blocks[b])


@inner()
def _make_layout(me, team, counter, params, csr, weights, layout, sums, rows):
    mine = range(TILE_REGIONS * me // team, TILE_REGIONS * (me + 1) // team)
    degree = rows.degree[uint64(params.offset) : uint64(params.offset + params.owned)]
    for region in mine:
        permute_region(
            region, params.edges, params.nonempty, csr.row_ptr, csr.segments, csr.columns, weights,
            params.first, params.owned, degree, params.damping, sums.counts, sums.places, sums.tally[region],
            layout,
        )  # fmt: skip
    barrier(counter, team, 4)
    for region in mine:
        fill_region(
            region, csr.row_ptr, csr.columns, weights, params.first, params.owned, degree, params.damping,
            layout.row_at.size, sums.places, layout,
        )  # fmt: skip


@inner()
def _local_sweeps(me, team, counter, phase, params, layout, sums):
    """The products inside the tile after the gathering one; begins and ends with all threads done."""
    start, value, sends = sums.start, sums.value, sums.sends
    if me == 0:
        sends[start.size - 1] = float32(0.0)
        sums.proposed[params.owned] = float32(0.0)
    phase += 1
    barrier(counter, team, phase)
    mine = range(TILE_REGIONS * me // team, TILE_REGIONS * (me + 1) // team)
    for region in mine:
        start_region(region, layout, sums.proposed, start, value, sends)
    for turn in range(1, params.sweeps):
        phase += 1
        barrier(counter, team, phase)
        for region in mine:
            sweep_region(region, layout, start, value, sends)
        if turn < params.sweeps - 1:
            phase += 1
            barrier(counter, team, phase)
            for region in mine:
                commit_region(region, layout, sends)
    for region in mine:
        unpermute_region(region, layout, value, sums.proposed)
    phase += 1
    barrier(counter, team, phase)


@inner()
def _note_peaks(begin, end, offset, rows, params, live, sums):
    place = 1 + 2 * live.size
    if params.both:
        sums[place] = peak_block(begin, end, offset, rows.push, rows.degree)
    else:
        sums[place] = peak_block(begin, end, offset, rows.r, rows.degree)
    for q in range(live.size):
        sums[place + 1 + q] = peak_block(begin, end, offset, rows.steps[live[q]], rows.degree)
