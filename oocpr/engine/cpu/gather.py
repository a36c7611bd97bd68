"""Delivery on the CPU: decode a piece of a tile, gather, and sum by rows.

A tile is worked on in pieces of PIECE blocks, whatever the number of threads, and a row that is cut by the
end of a piece is joined in the order of the pieces. So the sums do not depend on the number of threads.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from numba import uint32, uint64

from oocpr.engine.cpu.numbers import widen
from oocpr.engine.cpu.weights import weighed
from oocpr.jit import entry, inner
from oocpr.store.codec.tile_decoder import decode_block

PIECE = 4
"""Blocks of 1024 edges that one thread decodes and sums at a time: their columns stay in the first-level
cache, and no part of a row is longer."""


@entry()
def pieces_of(edges):
    """Pieces of a tile."""
    return (edges + 1024 * PIECE - 1) // (1024 * PIECE)


@inner()
def first_at(positions, count, edge):
    """Index of the first of ``positions[:count]`` that is not below `edge`."""
    low = uint64(0)
    high = uint64(count)
    while low < high:
        middle = (low + high) >> uint64(1)
        if uint64(positions[middle]) < edge:
            low = middle + uint64(1)
        else:
            high = middle
    return low


@inner()
def decode_piece(tile, piece, positions, starts, columns, at, block, scratch):
    """Write the columns of a piece to ``columns[at:]``; returns a number no less than any of them."""
    first = uint64(piece) * uint64(PIECE)
    last = min(first + uint64(PIECE), uint64((tile.edges + 1023) // 1024))
    k = first_at(positions, tile.nonempty, uint64(1024) * first)
    column = uint32(0) if tile.verbatim else uint32(tile.gaps.directory[first, 3])
    most = uint32(0)
    to = uint64(at)
    for b in range(first, last):
        k, column, top = decode_block(tile, b, positions, starts, k, column, block, scratch)
        most = max(most, top)
        end = min(uint64(1024), uint64(tile.edges) - uint64(1024) * b)
        for i in range(end):
            columns[to + i] = block[i]
        to += end
    return most


@inner(inline="always")
def _sum_pushes(reads, table, columns, weights, at, begin, end):
    # One plain chain of additions: the processor overlaps the chains of several rows, and two accumulators
    # a row, or an unrolled loop, made short rows two to four times slower.
    pushed = 0.0
    for i in range(begin, end):
        pushed += weighed(widen(reads[uint64(columns[i])], table), weights, i - at)
    return pushed


@inner(inline="always")
def _sum_both(reads, table, columns, weights, at, begin, end, low, span, nothing):
    pushed = 0.0
    proposed = 0.0
    for i in range(begin, end):
        node = uint64(columns[i])
        pushed += weighed(widen(reads[uint64(2) * node], table), weights, i - at)
        earlier = node if node - low < span else nothing
        proposed += weighed(widen(reads[uint64(2) * earlier + uint64(1)], table), weights, i - at)
    return pushed, proposed


@inner()
def deliver_piece(
    piece,
    edges,
    nonempty,
    positions,
    segments,
    columns,
    weights,
    at,
    reads,
    table,
    both,
    low,
    span,
    pushes,
    proposals,
    heads,
):
    """Sum what a piece delivers to each row.

    Parameters
    ----------
    columns, weights, at
        The piece's columns are ``columns[at:]``, its weights all of `weights`, which may be None.
    both
        Whether proposals are gathered too, those of nodes low .. low + span - 1; `reads` then holds push and
        proposal of each node side by side, and zeros after the last.
    pushes, proposals
        float64: receive the sums of the segments that begin in the piece; behind all segments, at ``heads +
        piece``, the sums of the piece's edges before its first segment begins.
    """
    base = uint64(piece) * uint64(1024 * PIECE)
    stop = min(base + uint64(1024 * PIECE), uint64(edges))
    k = first_at(positions, nonempty, base)
    head = min(uint64(positions[k]), stop)
    offset = uint64(at) - base
    nothing = uint64(reads.size // 2 - 1)
    if both:
        pushes[heads + piece], proposals[heads + piece] = _sum_both(
            reads, table, columns, weights, uint64(at), base + offset, head + offset, low, span, nothing
        )
    else:
        pushes[heads + piece] = _sum_pushes(
            reads, table, columns, weights, uint64(at), base + offset, head + offset
        )
    begin = head
    while begin < stop:
        end = min(uint64(positions[k + uint64(1)]), stop)
        row = uint64(segments[k])
        if both:
            pushes[row], proposals[row] = _sum_both(
                reads, table, columns, weights, uint64(at), begin + offset, end + offset, low, span, nothing
            )
        else:
            pushes[row] = _sum_pushes(
                reads, table, columns, weights, uint64(at), begin + offset, end + offset
            )
        begin = end
        k += uint64(1)


@inner()
def join_pieces(edges, nonempty, positions, segments, pushes, proposals, heads, carry, carry_proposed):
    """Add, in order, what pieces delivered to rows that began before; the first row also gets the carries.

    `proposals` is empty where nothing is proposed.
    """
    for piece in range(pieces_of(edges)):
        k = first_at(positions, nonempty, uint64(piece * 1024 * PIECE))
        if k > uint64(0):
            row = uint64(segments[k - uint64(1)])
            pushes[row] += pushes[heads + piece]
            if proposals.size:
                proposals[row] += proposals[heads + piece]
    pushes[0] += carry
    if proposals.size:
        proposals[0] += carry_proposed


@entry()
def row_parts(edges, positions, segments, heads, begins, ends, targets):
    """List the parts that pieces cut rows into, with the places of their sums; returns how many there are.

    Parameters
    ----------
    begins, ends, targets
        uint32, shape (nonempty + pieces,).
    """
    count = uint64(0)
    k = uint64(0)
    for piece in range(pieces_of(edges)):
        base = uint64(piece * 1024 * PIECE)
        stop = min(base + uint64(1024 * PIECE), uint64(edges))
        head = min(uint64(positions[k]), stop)
        if head > base:
            begins[count] = base
            ends[count] = head
            targets[count] = heads + piece
            count += uint64(1)
        begin = head
        while begin < stop:
            end = min(uint64(positions[k + uint64(1)]), stop)
            begins[count] = begin
            ends[count] = end
            targets[count] = segments[k]
            count += uint64(1)
            begin = end
            k += uint64(1)
    return count
