"""A pass on the CPU: the push of a stripe's rows, and each tile from its bytes or columns to its proposals.

Rows are treated in blocks of ROW_BLOCK, which fit in the first-level cache, by several short loops over few
arrays each: a compiler vectorises such a loop, and gives up on one that touches seven arrays it cannot tell
apart. The blocks' sums are added in order, so they do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64, uint64
from numpy.typing import NDArray

from oocpr.engine.backend import RESIDUAL, RESTART, START
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
    LocalLayout,
    TilePlace,
    commit_region,
    fill_others,
    fill_region,
    permute_region,
    read_others,
    start_region,
    sum_others,
    sweep_region,
    unpermute_region,
)
from oocpr.engine.cpu.numbers import (
    ROW_BLOCK,
    add_up,
    dangles,
    decode_piece_weights,
    divisor,
    dot,
    narrowed,
    norm,
    piece_buffer,
    widened,
)
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
    """What is gathered for a tile, and its scratch; proposals have shape (0,) if nothing is proposed."""

    # Shape (segments + pieces + 1,): of rows, then of the parts that pieces begin with, then of padding.
    pushes: NDArray[np.float64]
    proposals: NDArray[np.float64]
    # For `permute_region`.
    counts: NDArray[np.uint32]
    places: NDArray[np.uint32]
    tally: NDArray[np.uint32]


class OpenTile(NamedTuple):
    """A tile that is swept or will be, and proposes then."""

    place: TilePlace
    layout: LocalLayout
    # Shape (segments,): proposal of each row, first what comes from tiles of its stripe that have proposed.
    proposed: NDArray[np.float32]
    # By permuted rows: that, what else comes from outside the tiles that are swept with it, and the proposal.
    own: NDArray[np.float32]
    start: NDArray[np.float32]
    value: NDArray[np.float32]
    # Shape (blocks of rows, 2 + 3 live).
    blocks: NDArray[np.float64]
    # Shape (1,): what other stripes propose to the tail.
    tail: NDArray[np.float64]


class SweepParams(NamedTuple):
    """Numbers of a tile and what to do with it; see SweepStep.

    `nonempty` segments have edges. Proposals of so many `visible` nodes from `visible_from` on are gathered,
    if `both` says so. `local` says whether the tile is swept, `has_layout` whether the edges along which it
    is are laid out already, and `others` whether it reads what other stripes propose.
    """

    edges: int
    nonempty: int
    visible_from: int
    visible: int
    nodes: int
    local: bool
    has_layout: bool
    others: bool
    both: bool
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
def push_rows(board, *args):
    """Make the next push of a stripe."""
    return parallel_region(board, _push_part, args)


@inner()
def _push_part(me, team, counter, rows, start, uniform, slots, thetas, kind, table, scale, sums):
    """Round the next push of one thread's blocks of rows and add it to the ranks.

    `start` is what the run begins from, shape (0,) for `uniform`; `slots` and `thetas` are the multiples of
    remembered steps to subtract. `sums`, shape (blocks, 3), receives the dangling mass, the mass and the sum
    of p.
    """
    out = np.empty(ROW_BLOCK, np.float64)
    blocks = sums.shape[0]
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(block) * uint64(ROW_BLOCK)
        end = min(begin + uint64(ROW_BLOCK), uint64(rows.p.size))
        count = end - begin
        p = rows.p[begin:end]
        r = rows.r[begin:end]
        degree = rows.degree[begin:end]
        stored = rows.pushed[begin:end]
        _first_push(kind, count, p, r, rows.push, start, uniform, rows.steps, slots, thetas, begin, out)
        for i in range(count):
            stored[i] = narrowed(stored, out[i] / divisor(degree[i]), scale)
        for i in range(count):
            out[i] = widened(stored[i], table) * divisor(degree[i])
        for i in range(count):
            p[i] += out[i]
        sums[block, 1] = add_up(out, count)
        sums[block, 2] = add_up(p, count)
        for i in range(count):
            out[i] = out[i] if dangles(degree[i]) else 0.0
        sums[block, 0] = add_up(out, count)


@inner()
def _first_push(kind, count, p, r, push, start, uniform, steps, slots, thetas, begin, out):
    """Write the next push of a block of rows to `out`; see _push_part."""
    if kind == START:
        for i in range(count):
            out[i] = uniform
        if start.size:
            given = start[begin : begin + count]
            for i in range(count):
                out[i] = given[i]
        for i in range(count):
            out[i] -= p[i]
    elif kind == RESTART:
        for i in range(count):
            out[i] = p[i] + r[i]
        for i in range(count):
            p[i] = 0.0
            r[i] = 0.0
    elif kind == RESIDUAL:
        for i in range(count):
            out[i] = r[i]
    else:
        if push.size:
            wanted = push[begin : begin + count]
            for i in range(count):
                out[i] = float64(wanted[i])
        else:
            for i in range(count):
                out[i] = r[i]
        for q in range(slots.size):
            step = steps[slots[q], begin : begin + count]
            theta = thetas[q]
            for i in range(count):
                out[i] -= theta * float64(step[i])


@entry()
def load(board, *args):
    """Bring a push to where rows gather, and zeros to where its proposals will be."""
    return parallel_region(board, _load_part, args)


@inner()
def _load_part(me, team, counter, numbers, stride, row_begin, pushed):
    rows = uint64(pushed.size)
    to = uint64(row_begin)
    for row in range(rows * uint64(me) // uint64(team), rows * uint64(me + 1) // uint64(team)):
        numbers[uint64(stride) * (to + row)] = pushed[row]
        if stride > 1:
            numbers[uint64(stride) * (to + row) + uint64(1)] = 0


@entry()
def take_proposals(board, *args):
    """Take what rows propose from where it is gathered, and leave zeros."""
    return parallel_region(board, _take_part, args)


@inner()
def _take_part(me, team, counter, numbers, row_begin, taken):
    rows = uint64(taken.size)
    first = uint64(row_begin)
    for row in range(rows * uint64(me) // uint64(team), rows * uint64(me + 1) // uint64(team)):
        place = uint64(2) * (first + row) + uint64(1)
        taken[row] = numbers[place]
        numbers[place] = 0


@entry()
def put_proposals(board, *args):
    """Bring what rows propose to where it is gathered."""
    return parallel_region(board, _put_part, args)


@inner()
def _put_part(me, team, counter, numbers, row_begin, proposals):
    rows = uint64(proposals.size)
    to = uint64(row_begin)
    for row in range(rows * uint64(me) // uint64(team), rows * uint64(me + 1) // uint64(team)):
        numbers[uint64(2) * (to + row) + uint64(1)] = proposals[row]


@entry()
def sweep_packed(board, *args):
    """Do everything that a pass does to a tile that is still packed."""
    return parallel_region(board, _sweep_packed, args)


@inner()
def _sweep_packed(
    me, team, counter, tile, starts, keep, max_columns, marks, csr, weights, opened, sends, sums, rows, reads,
    table, params, live,
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
            reads, table, params.both, uint64(params.visible_from), uint64(params.visible), sums.pushes,
            sums.proposals, opened.place.owned + 1,
        )  # fmt: skip
        piece = next_chunk(counter[1:])
    _after_gather(me, team, counter, csr, weights, opened, sends, sums, rows, reads, table, params, live)


@entry()
def sweep_decoded(board, *args):
    """Do everything that a pass does to a tile whose edges lie in slices."""
    return parallel_region(board, _sweep_decoded, args)


@inner()
def _sweep_decoded(
    me, team, counter, slices, csr, weights, opened, sends, sums, rows, reads, table, params, live
):  # fmt: skip
    _clear(me, team, sums)
    barrier(counter, team, 1)
    count = uint64(slices.slice_ptr.size - 1)
    columns = uint64(slices.slice_ptr[count])
    low = first_not_below(slices.slice_ptr, count, columns * uint64(me) // uint64(team))
    high = first_not_below(slices.slice_ptr, count, columns * uint64(me + 1) // uint64(team))
    if params.both and params.visible:
        gather_both(
            low, high, slices.slice_ptr, slices.targets, slices.columns, slices.weights, reads, table,
            uint64(params.visible_from), uint64(params.visible), uint64(params.nodes), sums.pushes,
            sums.proposals,
        )  # fmt: skip
    else:
        gather_pushes(
            low, high, slices.slice_ptr, slices.targets, slices.columns, slices.weights, reads, table,
            uint64(params.both), sums.pushes,
        )  # fmt: skip
    _after_gather(me, team, counter, csr, weights, opened, sends, sums, rows, reads, table, params, live)


@inner()
def _clear(me, team, sums):
    """Zero what is written in part only."""
    segments = sums.pushes.size
    low, high = segments * me // team, segments * (me + 1) // team
    sums.pushes[low:high] = 0.0
    if sums.proposals.size:
        sums.proposals[low:high] = 0.0


@inner()
def _after_gather(me, team, counter, csr, weights, opened, sends, sums, rows, reads, table, params, live):
    """Join the pieces, update the rows, and begin to sweep, or propose what rows have now."""
    place, layout, proposed = opened.place, opened.layout, opened.proposed
    offset = uint64(place.offset)
    barrier(counter, team, 2)
    if me == 0:
        join_pieces(
            params.edges, params.nonempty, csr.row_ptr, csr.segments, sums.pushes, sums.proposals,
            place.owned + 1, params.carry, params.carry_proposed,
        )  # fmt: skip
    barrier(counter, team, 3)
    if params.local and not params.has_layout:
        _make_layout(me, team, params, csr, weights, opened, sums, rows)
    out = np.empty(ROW_BLOCK, np.float64)
    blocks = opened.blocks.shape[0]
    mine = range(blocks * me // team, blocks * (me + 1) // team)
    for b in mine:
        begin = uint64(b * ROW_BLOCK)
        end = uint64(min(b * ROW_BLOCK + ROW_BLOCK, place.owned))
        update_block(
            begin, end, offset, rows, table, params.uniform, sums.pushes, params.damping, params.base,
            params.spread, params.slot, live, opened.blocks[b], out,
        )  # fmt: skip
        if params.both:
            begin_sweeps(begin, end, offset, rows, sums.proposals, params.damping, proposed)
    if not params.local:
        _end_rows(mine, opened, rows, reads, table, params, live, out)
        return
    if me == 0:
        proposed[place.owned] = float32(0.0)
    barrier(counter, team, 4)
    for region in _regions_of(me, team):
        start_region(region, layout, place, proposed, opened.start, opened.value, sends)
        if params.others:
            _begin_reading(region, opened, sends, reads, table, params.damping)


@inner()
def _begin_reading(region, opened, sends, reads, table, damping):
    """Add what other stripes propose to a region of a tile that comes, and sum what they do to its tail."""
    bounds = opened.layout.regions[region]
    for position in range(uint64(bounds[0]), uint64(bounds[1])):
        opened.own[position] = opened.start[position]
    end = read_others(region, opened, sends, reads, table, damping, True)
    if uint64(bounds[9]) < end:
        opened.tail[0] = sum_others(opened.layout, uint64(bounds[9]), end, reads, table)


@inner()
def _regions_of(me, team):
    return range(TILE_REGIONS * me // team, TILE_REGIONS * (me + 1) // team)


@inner()
def _make_layout(me, team, params, csr, weights, opened, sums, rows):
    for region in _regions_of(me, team):
        permute_region(
            region, params.edges, params.nonempty, csr.row_ptr, csr.segments, csr.columns, weights,
            opened.place, rows.degree, params.damping, sums.counts, sums.places, sums.tally[region],
            opened.layout,
        )  # fmt: skip
        fill_region(
            region, csr.row_ptr, csr.columns, weights, opened.place, rows.degree, params.damping, sums.places,
            opened.layout,
        )  # fmt: skip
        if params.others:
            fill_others(
                region, params.edges, params.nonempty, csr.row_ptr, csr.segments, csr.columns, weights,
                opened.place, sums.places, opened.layout,
            )  # fmt: skip


@entry()
def reread(board, *args):
    """Let an open tile have what rows of other stripes propose now."""
    return parallel_region(board, _reread_part, args)


@inner()
def _reread_part(me, team, counter, tile, sends, reads, table, damping):
    for region in _regions_of(me, team):
        read_others(region, tile, sends, reads, table, damping, False)


@entry()
def show_open(board, *args):
    """Let others read what rows of an open tile propose so far."""
    return parallel_region(board, _show_part, args)


@inner()
def _show_part(me, team, counter, tile, degree, reads, scale):
    owned = tile.place.owned
    offset = uint64(tile.place.offset)
    for region in _regions_of(me, team):
        unpermute_region(region, tile.layout, tile.value, tile.proposed)
    barrier(counter, team, 1)
    low, high = uint64(owned * me // team), uint64(owned * (me + 1) // team)
    _show(
        high - low, degree[offset + low : offset + high], tile.proposed[low:high],
        uint64(tile.place.first) + low, reads, scale,
    )  # fmt: skip


@entry()
def sweep_together(board, *args):
    """Sweep tiles that lie side by side, and end the first."""
    return parallel_region(board, _sweep_together, args)


@inner()
def _sweep_together(me, team, counter, tiles, turns, ends, sends, rows, reads, table, params, live):
    """Sweep each tile so many times, in turns; if the first `ends`, its rows propose what they have."""
    phase = 0
    mine = _regions_of(me, team)
    for turn in range(max(turns)):
        for k in range(len(tiles)):
            if turn >= turns[k]:
                continue
            tile = tiles[k]
            for region in mine:
                sweep_region(region, tile.layout, tile.place, tile.start, tile.value, sends)
            phase += 1
            barrier(counter, team, phase)
            for region in mine:
                commit_region(region, tile.layout, tile.place, sends)
            phase += 1
            barrier(counter, team, phase)
    if not ends:
        return
    tile = tiles[0]
    for region in mine:
        unpermute_region(region, tile.layout, tile.value, tile.proposed)
    barrier(counter, team, phase + 1)
    blocks = tile.blocks.shape[0]
    out = np.empty(ROW_BLOCK, np.float64)
    blocks_of_mine = range(blocks * me // team, blocks * (me + 1) // team)
    _end_rows(blocks_of_mine, tile, rows, reads, table, params, live, out)


@inner()
def _end_rows(blocks, tile, rows, reads, table, params, live, out):
    """Store what rows propose, if they do, and what numbers of a byte have to hold."""
    offset, owned = uint64(tile.place.offset), tile.place.owned
    for b in blocks:
        begin = uint64(b * ROW_BLOCK)
        end = uint64(min(b * ROW_BLOCK + ROW_BLOCK, owned))
        if params.both:
            end_sweeps(
                begin, end, uint64(tile.place.first), offset, rows, reads, table, params.scale, tile.proposed,
                params.slot, out,
            )  # fmt: skip
        if params.peaks:
            _note_peaks(begin, end, offset, rows, params, live, tile.blocks[b])


@inner()
def _note_peaks(begin, end, offset, rows, params, live, sums):
    place = 1 + 2 * live.size
    if params.both:
        sums[place] = peak_block(begin, end, offset, rows.push, rows.degree)
    else:
        sums[place] = peak_block(begin, end, offset, rows.r, rows.degree)
    for q in range(live.size):
        sums[place + 1 + q] = peak_block(begin, end, offset, rows.steps[live[q]], rows.degree)


@inner()
def update_block(
    begin, end, offset, rows, table, uniform, pushes, damping, base, spread, slot, live, sums, out
):
    """Add what was gathered to the residual, subtract what was pushed, and sum.

    `begin` and `end` are rows of the tile, `offset` its first row in the stripe. `sums`, shape (1 + 2 live,),
    receives the norm of the residual, then products of the remembered changes with this pass's change and
    with the residual.
    """
    count = end - begin
    r = rows.r[begin + offset : end + offset]
    degree = rows.degree[begin + offset : end + offset]
    stored = rows.pushed[begin + offset : end + offset]
    gathered = pushes[begin:end]
    for i in range(count):
        out[i] = widened(stored[i], table) * divisor(degree[i])
    if rows.teleport.size:
        teleport = rows.teleport[begin + offset : end + offset]
        for i in range(count):
            out[i] = damping * gathered[i] + (base * teleport[i] + spread) - out[i]
    else:
        constant = base * uniform + spread
        for i in range(count):
            out[i] = damping * gathered[i] + constant - out[i]
    for i in range(count):
        r[i] += out[i]
    sums[0] = norm(r, count)
    if slot < 0:
        return
    change = rows.changes[slot, begin + offset : end + offset]
    for i in range(count):
        change[i] = float32(out[i])
    for q in range(live.size):
        other = rows.changes[live[q], begin + offset : end + offset]
        sums[1 + q] = dot(other, change, count)
        sums[1 + live.size + q] = dot(other, r, count)
    if not rows.push.size:
        # The residual is the proposal, so the step it makes is known.
        step = rows.steps[slot, begin + offset : end + offset]
        for i in range(count):
            step[i] = float32(widened(stored[i], table) * divisor(degree[i]) + out[i])


@inner()
def begin_sweeps(begin, end, offset, rows, proposals, damping, proposed):
    """Start the proposal of a tile's rows: the residual and what earlier tiles proposed to them."""
    count = end - begin
    r = rows.r[begin + offset : end + offset]
    earlier = proposals[begin:end]
    so_far = proposed[begin:end]
    for i in range(count):
        so_far[i] = float32(r[i] + damping * earlier[i])


@inner()
def end_sweeps(begin, end, first, offset, rows, reads, table, scale, total, slot, out):
    """Store the proposal of rows of a tile and the step it makes, and let later tiles read it."""
    count = end - begin
    degree = rows.degree[begin + offset : end + offset]
    push = rows.push[begin + offset : end + offset]
    proposal = total[begin:end]
    if slot >= 0:
        stored = rows.pushed[begin + offset : end + offset]
        step = rows.steps[slot, begin + offset : end + offset]
        for i in range(count):
            out[i] = widened(stored[i], table) * divisor(degree[i])
        for i in range(count):
            step[i] = float32(out[i] + (float64(proposal[i]) - float64(push[i])))
    for i in range(count):
        push[i] = proposal[i]
    _show(count, degree, proposal, uint64(begin + first), reads, scale)


@inner()
def _show(count, degree, proposal, row, reads, scale):
    """Let others read what rows propose, from `row` on."""
    place = uint64(2) * row + uint64(1)
    for i in range(count):
        value = float64(proposal[i]) / divisor(degree[i])
        reads[place + uint64(2) * i] = narrowed(reads, value, scale)


@inner()
def peak_block(begin, end, offset, values, degree):
    """Largest magnitude per out-edge of ``values[offset + begin : offset + end]``."""
    most = 0.0
    for t in range(begin, end):
        i = t + offset
        most = max(most, abs(float64(values[i])) / divisor(degree[i]))
    return most
