"""One tile on the CPU, from its bytes or columns to its sums, by all threads of a team."""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import float32, uint64

from oocpr.engine.cpu.degree_checksum import add_marks
from oocpr.engine.cpu.gather import (
    PIECE,
    decode_piece,
    deliver_piece,
    first_at,
    join_pieces,
    pieces_of,
)
from oocpr.engine.cpu.local_layout import REGIONS, list_region, seat_region
from oocpr.engine.cpu.local_sweeps import seat_proposals, settle_region, sweep_region, unseat_region
from oocpr.engine.cpu.mailbox import by_all
from oocpr.engine.cpu.rows import (
    BLOCK,
    begin_sweeps,
    end_sweeps,
    peak_block,
    update_block,
)
from oocpr.engine.cpu.sliced_ell import deliver_both, deliver_pushes
from oocpr.engine.cpu.threads import claim, meet
from oocpr.engine.cpu.weights import join_piece, room_for_piece
from oocpr.jit import entry, inner
from oocpr.store.codec.tile_decoder import SCRATCH

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Rows(NamedTuple):
    """State of a stripe's rows.

    Attributes
    ----------
    p, r
        float64, shape (rows,).
    degree
        Shape (rows,): uint32, or float64 as `oocpr.engine.cpu.weights.divisors` makes them.
    teleport
        float64, shape (rows,), or (0,) where uniform.
    push
        float32: last proposal, shape (rows,); (0,) where nothing is proposed.
    changes, steps
        float32, shape (slots, rows).
    """

    p: NDArray[np.float64]
    r: NDArray[np.float64]
    degree: NDArray[Any]
    teleport: NDArray[np.float64]
    push: NDArray[np.float32]
    changes: NDArray[np.float32]
    steps: NDArray[np.float32]


class Links(NamedTuple):
    """Where the links of a tile are.

    Attributes
    ----------
    positions, segments
        uint32, shape (nonempty + 1,): first edge and number of each non-empty segment.
    columns
        uint32, shape (edges,), or one piece a thread where columns are used once.
    """

    positions: NDArray[np.uint32]
    segments: NDArray[np.uint32]
    columns: NDArray[np.uint32]


class Slices(NamedTuple):
    """All links of a decoded tile, sixteen rows abreast, with their weights if any; see slice_rows."""

    bases: NDArray[np.uint32]
    targets: NDArray[np.uint32]
    columns: NDArray[np.uint32]
    weights: NDArray[Any] | None


class Picking(NamedTuple):
    """Scratch in which the rows of a tile are given their seats; see seat_region."""

    counts: NDArray[np.uint32]
    places: NDArray[np.uint32]
    tally: NDArray[np.uint32]


class Sums(NamedTuple):
    """What a sweep of one tile adds up.

    Attributes
    ----------
    pushes, proposals
        float64, shape (segments + pieces + 1,): of rows, then of the parts that pieces begin with, then of
        nobody; proposals (0,) where nothing is proposed.
    proposed
        float32, shape (segments,): proposal of each row, first what comes from outside the tile; (0,) where
        nothing is proposed.
    start, value
        float32, shape (seats,): the same by seats, where the tile is swept on its own.
    sends
        float32, shape (2 seats,): what each seat sends along a link; see cpu_local.
    blocks
        float64, shape (blocks of rows, 2 + 3 live).
    """

    pushes: NDArray[np.float64]
    proposals: NDArray[np.float64]
    proposed: NDArray[np.float32]
    start: NDArray[np.float32]
    value: NDArray[np.float32]
    sends: NDArray[np.float32]
    blocks: NDArray[np.float64]


class Shape(NamedTuple):
    """Numbers of a tile.

    Attributes
    ----------
    edges, nonempty
        Edges, and segments that have some.
    first, owned, offset
        First owned row in the graph, number of owned rows, first owned row in the stripe.
    stripe_first, nodes
        First row of the stripe, and nodes of the graph.
    picked
        Whether the links inside the tile have been picked out already.
    """

    edges: int
    nonempty: int
    first: int
    owned: int
    offset: int
    stripe_first: int
    nodes: int
    picked: bool


class Orders(NamedTuple):
    """What to do with each tile; see SweepStep."""

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


@entry()
def sweep_packed(board, *args):
    """Everything a pass does to a tile that is still packed; see _sweep_packed."""
    return by_all(board, _sweep_packed, args)


@inner()
def _sweep_packed(
    me, team, counter, tile, starts, keep, most, marks, shape, links, weights, inside, picking, sums, rows,
    pushed, reads, table, orders, live, carry, carry_proposed,
):  # fmt: skip
    """Sweep a packed tile, the part of one thread.

    Parameters
    ----------
    tile, starts
        The packed tile, and the first column of each non-empty segment.
    keep
        Whether the columns are written to their places in the tile rather than used once.
    most
        uint32, shape (team,): receives the largest column that a thread decoded.
    marks
        uint64, shape (team,): receives the sum of the marks of those columns, where there is a key.
    weights
        Of the links, as they are stored; or None.
    """
    _clear(me, team, sums)
    meet(counter, team, 1)
    pieces = pieces_of(shape.edges)
    block = np.empty(SCRATCH, np.uint32)
    scratch = np.empty(SCRATCH, np.uint32)
    size = uint64(1024 * PIECE)
    of_piece = room_for_piece(weights, 1024 * PIECE)
    # The readers of tiles have no processor of their own: who is held up by them takes fewer pieces.
    piece = claim(counter[1:])
    while piece < pieces:
        at = uint64(piece) * size if keep else uint64(me) * size
        top = decode_piece(tile, piece, links.positions, starts, links.columns, at, block, scratch)
        most[me] = max(most[me], top)
        if top >= shape.nodes:
            break
        first = uint64(piece) * size
        count = min(size, uint64(shape.edges) - first)
        if orders.key:
            marks[me] += add_marks(links.columns, at, at + count, orders.key)
        join_piece(weights, first, count, of_piece)
        deliver_piece(
            piece, shape.edges, shape.nonempty, links.positions, links.segments, links.columns, of_piece, at,
            reads, table, orders.both, uint64(shape.stripe_first), uint64(shape.first - shape.stripe_first),
            sums.pushes, sums.proposals, shape.owned + 1,
        )  # fmt: skip
        piece = claim(counter[1:])
    _after_delivery(
        me, team, counter, shape, links, weights, inside, picking, sums, rows, pushed, reads, table, orders,
        live, carry, carry_proposed,
    )  # fmt: skip


@entry()
def sweep_decoded(board, *args):
    """Everything a pass does to a tile whose links lie in slices; see _sweep_decoded."""
    return by_all(board, _sweep_decoded, args)


@inner()
def _sweep_decoded(
    me, team, counter, slices, shape, links, weights, inside, picking, sums, rows, pushed, reads, table,
    orders, live, carry, carry_proposed,
):  # fmt: skip
    """Sweep a tile in slices, the part of one thread."""
    _clear(me, team, sums)
    meet(counter, team, 1)
    count = uint64(slices.bases.size - 1)
    columns = uint64(slices.bases[count])
    low = first_at(slices.bases, count, columns * uint64(me) // uint64(team))
    high = first_at(slices.bases, count, columns * uint64(me + 1) // uint64(team))
    if orders.both and shape.first > shape.stripe_first:
        deliver_both(
            low, high, slices.bases, slices.targets, slices.columns, slices.weights, reads, table,
            uint64(shape.stripe_first), uint64(shape.first - shape.stripe_first), uint64(shape.nodes),
            sums.pushes, sums.proposals,
        )  # fmt: skip
    else:
        deliver_pushes(
            low, high, slices.bases, slices.targets, slices.columns, slices.weights, reads, table,
            uint64(orders.both), sums.pushes,
        )  # fmt: skip
    _after_delivery(
        me, team, counter, shape, links, weights, inside, picking, sums, rows, pushed, reads, table, orders,
        live, carry, carry_proposed,
    )  # fmt: skip


@inner()
def _clear(me, team, sums):
    """Zero what is written in part only."""
    segments = sums.pushes.size
    low, high = segments * me // team, segments * (me + 1) // team
    sums.pushes[low:high] = 0.0
    if sums.proposals.size:
        sums.proposals[low:high] = 0.0


@inner()
def _after_delivery(
    me,
    team,
    counter,
    shape,
    links,
    weights,
    inside,
    picking,
    sums,
    rows,
    pushed,
    reads,
    table,
    orders,
    live,
    carry,
    carry_proposed,
):
    """Join the pieces, update the rows, sweep inside the tile, propose."""
    offset = uint64(shape.offset)
    meet(counter, team, 2)
    if me == 0:
        join_pieces(
            shape.edges, shape.nonempty, links.positions, links.segments, sums.pushes, sums.proposals,
            shape.owned + 1, carry, carry_proposed,
        )  # fmt: skip
    local = orders.both and orders.sweeps > 1
    meet(counter, team, 3)
    met = 3
    if local and not shape.picked:
        _pick(me, team, counter, shape, links, weights, inside, picking, rows, orders.damping)
        met = 4
    out = np.empty(BLOCK, np.float64)
    blocks = sums.blocks.shape[0]
    mine = range(blocks * me // team, blocks * (me + 1) // team)
    for b in mine:
        begin = uint64(b * BLOCK)
        end = uint64(min(b * BLOCK + BLOCK, shape.owned))
        update_block(
            begin, end, offset, rows, pushed, table, orders.uniform, sums.pushes, orders.damping,
            orders.base, orders.spread, orders.slot, live, sums.blocks[b], out,
        )  # fmt: skip
        if orders.both:
            begin_sweeps(begin, end, offset, rows, sums.proposals, orders.damping, sums.proposed)
    if local:
        _local_sweeps(me, team, counter, met, shape, links, inside, sums, orders)
    for b in mine:
        begin = uint64(b * BLOCK)
        end = uint64(min(b * BLOCK + BLOCK, shape.owned))
        if orders.both:
            end_sweeps(
                begin, end, uint64(shape.first), offset, rows, pushed, reads, table, orders.scale,
                sums.proposed, orders.slot, out,
            )  # fmt: skip
        if orders.peaks:
            _note_peaks(begin, end, offset, rows, orders, live, sums.blocks[b])


@inner()
def _pick(me, team, counter, shape, links, weights, inside, picking, rows, damping):
    """Seat the tile's rows and list the links that stay inside it."""
    mine = range(REGIONS * me // team, REGIONS * (me + 1) // team)
    degree = rows.degree[uint64(shape.offset) : uint64(shape.offset + shape.owned)]
    for region in mine:
        seat_region(
            region, shape.edges, shape.nonempty, links.positions, links.segments, links.columns, weights,
            shape.first, shape.owned, degree, damping, picking.counts, picking.places, picking.tally[region],
            inside,
        )  # fmt: skip
    meet(counter, team, 4)
    for region in mine:
        list_region(
            region, shape.edges, shape.nonempty, links.positions, links.segments, links.columns, weights,
            shape.first, shape.owned, degree, damping, inside.row_of.size, picking.places, inside,
        )  # fmt: skip


@inner()
def _local_sweeps(me, team, counter, met, shape, links, inside, sums, orders):
    """The products inside the tile after the delivering one; begins and ends with all threads done."""
    if me == 0:
        sums.sends[sums.start.size - 1] = float32(0.0)
        sums.proposed[shape.owned] = float32(0.0)
    met += 1
    meet(counter, team, met)
    edges, nonempty, owned = shape.edges, shape.nonempty, shape.owned
    positions, segments = links.positions, links.segments
    start, value, sends = sums.start, sums.value, sums.sends
    mine = range(REGIONS * me // team, REGIONS * (me + 1) // team)
    for region in mine:
        seat_proposals(
            region, edges, nonempty, positions, segments, owned, inside, sums.proposed, start, value, sends
        )
    for turn in range(1, orders.sweeps):
        met += 1
        meet(counter, team, met)
        for region in mine:
            sweep_region(region, edges, nonempty, positions, segments, owned, inside, start, value, sends)
        if turn < orders.sweeps - 1:
            met += 1
            meet(counter, team, met)
            for region in mine:
                settle_region(region, edges, nonempty, positions, segments, owned, sends)
    for region in mine:
        unseat_region(region, edges, nonempty, positions, segments, owned, inside, value, sums.proposed)
    met += 1
    meet(counter, team, met)


@inner()
def _note_peaks(begin, end, offset, rows, orders, live, sums):
    place = 1 + 2 * live.size
    if orders.both:
        sums[place] = peak_block(begin, end, offset, rows.push, rows.degree)
    else:
        sums[place] = peak_block(begin, end, offset, rows.r, rows.degree)
    for q in range(live.size):
        sums[place + 1 + q] = peak_block(begin, end, offset, rows.steps[live[q]], rows.degree)
