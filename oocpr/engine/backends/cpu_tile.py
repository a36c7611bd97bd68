"""One tile on the CPU, from its bytes to its sums, by all threads of a team."""

# Decorators of numba carry no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import float32, njit, uint64
from numpy.typing import NDArray

from oocpr.engine.backends.cpu_deliver import (
    PIECE,
    decode_piece,
    deliver_piece,
    first_at,
    join_pieces,
)
from oocpr.engine.backends.cpu_rows import (
    BLOCK,
    begin_sweeps,
    end_sweeps,
    peak_block,
    publish_block,
    sum_block,
    sweep_segments,
    update_rows,
)
from oocpr.engine.backends.team import meet
from oocpr.store.unpacking import SCRATCH


class TileArrays(NamedTuple):
    """Scratch of one tile, and what of it may be kept: columns and segments.

    Attributes
    ----------
    positions, starts, segments
        uint32: first edge, first column and number of each non-empty segment.
    columns
        uint32, shape (edges,), or (threads * piece,) where columns are used once.
    pushes, proposals
        float64, shape (segments,).
    ends
        float64, shape (pieces, 2).
    total, shares, after
        float32, shape (segments,).
    sums
        float64, shape (blocks of rows, 2 + 3 live).
    """

    positions: NDArray[np.uint32]
    starts: NDArray[np.uint32]
    segments: NDArray[np.uint32]
    columns: NDArray[np.uint32]
    pushes: NDArray[np.float64]
    proposals: NDArray[np.float64]
    ends: NDArray[np.float64]
    total: NDArray[np.float32]
    shares: NDArray[np.float32]
    after: NDArray[np.float32]
    sums: NDArray[np.float64]


class Rows(NamedTuple):
    """State of a stripe's rows.

    Attributes
    ----------
    p, r
        float64, shape (rows,).
    degree
        uint32, shape (rows,).
    teleport
        float64, shape (rows,), or (0,) where uniform.
    push
        float32: last proposal, shape (rows,); (0,) where nothing is proposed.
    changes, steps
        float32, shape (slots, rows).
    """

    p: NDArray[np.float64]
    r: NDArray[np.float64]
    degree: NDArray[np.uint32]
    teleport: NDArray[np.float64]
    push: NDArray[np.float32]
    changes: NDArray[np.float32]
    steps: NDArray[np.float32]


@njit(nogil=True, cache=True)
def publish(me, team, counter, rows, uniform, slots, thetas, kind, pushed, table, scale, sums):  # noqa: ARG001
    """Publish the blocks of one thread."""
    blocks = sums.shape[0]
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        publish_block(
            block, rows.p, rows.r, rows.degree, rows.push, rows.teleport, uniform, rows.steps,
            slots, thetas, kind, pushed, table, scale, sums,
        )  # fmt: skip


@njit(nogil=True, cache=True)
def sweep(
    me, team, counter, tile, decoded, keep, arrays, rows, reads, table, nodes, first, owned, offset,
    stripe_first, both, sweeps, damping, base, spread, uniform, slot, live, carry, carry_proposed, peaks, scale, most,
):  # fmt: skip
    """Everything a pass does to one tile, the part of one thread.

    Parameters
    ----------
    decoded
        The columns are there already.
    keep
        The columns are written to their places in the tile rather than used once.
    first, owned, offset
        First owned row in the graph, number of owned rows, first owned row in the stripe.
    stripe_first
        First row of the stripe: proposals of nodes from here to `first` are used.
    both
        Whether the pass proposes.
    peaks
        Whether the largest magnitudes are wanted.
    most
        uint32, shape (team,): receives the largest column that a thread decoded.
    """
    met = 0
    segments = arrays.pushes.size
    arrays.pushes[segments * me // team : segments * (me + 1) // team] = 0.0
    arrays.proposals[segments * me // team : segments * (me + 1) // team] = 0.0
    met += 1
    meet(counter, team, met)
    pieces = arrays.ends.shape[0]
    block = np.empty(SCRATCH, np.uint32)
    scratch = np.empty(SCRATCH, np.uint32)
    size = uint64(1024 * PIECE)
    for piece in range(pieces * me // team, pieces * (me + 1) // team):
        at = uint64(piece) * size if keep else uint64(me) * size
        if not decoded:
            top = decode_piece(tile, piece, arrays.positions, arrays.starts, arrays.columns, at, block, scratch)
            most[me] = max(most[me], top)
            if top >= nodes:
                break
        deliver_piece(
            tile, piece, arrays.positions, arrays.segments, arrays.columns, at, reads, table,
            both, uint64(stripe_first), uint64(first - stripe_first), arrays.pushes, arrays.proposals, arrays.ends,
        )  # fmt: skip
    met += 1
    meet(counter, team, met)
    if me == 0:
        join_pieces(tile, arrays.positions, arrays.segments, arrays.pushes, arrays.proposals, arrays.ends, carry, carry_proposed)
    met += 1
    meet(counter, team, met)
    blocks = arrays.sums.shape[0]
    for b in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(b * BLOCK)
        end = uint64(min(b * BLOCK + BLOCK, owned))
        update_rows(
            begin, end, uint64(first), uint64(offset), reads, uint64(1 + both), table, rows.degree, rows.teleport, uniform,
            arrays.pushes, damping, base, spread, rows.r, rows.changes, slot,
        )  # fmt: skip
        sum_block(begin, end, uint64(offset), rows.r, rows.changes, slot, live, arrays.sums[b])
        if both:
            begin_sweeps(
                begin, end, uint64(offset), rows.r, arrays.proposals, rows.degree, damping, arrays.total, arrays.shares
            )
    if both:
        _local_sweeps(me, team, counter, met, tile, arrays, rows, first, owned, offset, sweeps, damping)
        for b in range(blocks * me // team, blocks * (me + 1) // team):
            begin = uint64(b * BLOCK)
            end = uint64(min(b * BLOCK + BLOCK, owned))
            end_sweeps(
                begin, end, uint64(first), uint64(offset), reads, table, scale, rows.degree,
                arrays.total, rows.push, rows.steps, slot,
            )  # fmt: skip
    if peaks:
        place = 1 + 2 * live.size
        for b in range(blocks * me // team, blocks * (me + 1) // team):
            begin = uint64(b * BLOCK)
            end = uint64(min(b * BLOCK + BLOCK, owned))
            if both:
                arrays.sums[b, place] = peak_block(begin, end, uint64(offset), rows.push, rows.degree)
            else:
                arrays.sums[b, place] = peak_block(begin, end, uint64(offset), rows.r, rows.degree)
            for q in range(live.size):
                arrays.sums[b, place + 1 + q] = peak_block(
                    begin, end, uint64(offset), rows.steps[live[q]], rows.degree
                )


@njit(nogil=True, cache=True)
def _local_sweeps(me, team, counter, met, tile, arrays, rows, first, owned, offset, sweeps, damping):
    """The products inside the tile after the delivering one; ends with all threads done."""
    edges = uint64(tile.edges)
    low = first_at(arrays.positions, tile.nonempty, edges * uint64(me) // uint64(team))
    high = first_at(arrays.positions, tile.nonempty, edges * uint64(me + 1) // uint64(team))
    begin = uint64(arrays.segments[low]) if me > 0 else uint64(0)
    end = uint64(arrays.segments[high]) if me < team - 1 else uint64(owned)
    end = min(end, uint64(owned))
    shares, after = arrays.shares, arrays.after
    if me == 0:
        shares[owned] = float32(0.0)
        after[owned] = float32(0.0)
    for _ in range(sweeps - 1):
        met += 1
        meet(counter, team, met)
        sweep_segments(
            begin, end, low, uint64(owned), uint64(first), arrays.positions, arrays.segments, arrays.columns,
            uint64(offset), rows.degree, damping, shares, arrays.total, after,
        )  # fmt: skip
        shares, after = after, shares
    met += 1
    meet(counter, team, met)
