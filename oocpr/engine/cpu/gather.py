"""Gather on the CPU: decode a piece of a tile, or take rows in slices, and sum by rows.

A tile is worked on in pieces of PIECE blocks, whatever the number of threads, and a row that is cut by the
end of a piece is joined in the order of the pieces. So the sums do not depend on the number of threads.

Most rows of a real graph have a handful of edges, and a processor mispredicts the end of each. Of tiles that
stay decoded, and in sweeps, rows sorted by length therefore lie side by side in slices of sixteen (sliced
ELLPACK, Monakov et al. 2010), which have one length each; the rest is padded with a column that reads zero.
Each row is still added up in its own order, so a sum has the same bits as in a plain loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import types, uint32, uint64
from numpy.typing import NDArray

from oocpr.engine.cpu.numbers import by_types, copy_weight, pad_weight, times_weight, widened
from oocpr.jit import entry, inner
from oocpr.store.codec.tiles import decode_block

if TYPE_CHECKING:
    from oocpr.store.codec.layout import PackedTile

PIECE = 4
"""Blocks of 1024 edges that one thread decodes and sums at a time: their columns stay in the first-level
cache, and no part of a row is longer."""

SLICE_ROWS = 16
"""Rows of a slice."""


class TileCsr(NamedTuple):
    """Edges of a tile: the first edge and the number of each non-empty segment, shape (nonempty + 1,).

    Columns have shape (edges,), or have room for one piece per thread if they are used once.
    """

    row_ptr: NDArray[np.uint32]
    segments: NDArray[np.uint32]
    columns: NDArray[np.uint32]


class SlicedEdges(NamedTuple):
    """All edges of a decoded tile in slices: first column of each, and the row of each lane."""

    slice_ptr: NDArray[np.uint32]
    targets: NDArray[np.uint32]
    columns: NDArray[np.uint32]
    weights: NDArray[Any] | None


@inner()
def pieces_of(edges):
    """Pieces of a tile."""
    return (edges + 1024 * PIECE - 1) // (1024 * PIECE)


@inner()
def first_not_below(values, count, bound):
    """Index of the first of ``values[:count]``, ascending, that is not below `bound`."""
    low = uint64(0)
    high = uint64(count)
    while low < high:
        middle = (low + high) >> uint64(1)
        if uint64(values[middle]) < bound:
            low = middle + uint64(1)
        else:
            high = middle
    return low


@inner()
def decode_piece(tile, piece, row_ptr, starts, columns, at, block, scratch):
    """Write the columns of a piece to ``columns[at:]``; returns a number no less than any of them."""
    first = uint64(piece) * uint64(PIECE)
    last = min(first + uint64(PIECE), uint64((tile.edges + 1023) // 1024))
    k = first_not_below(row_ptr, tile.nonempty, uint64(1024) * first)
    column = uint32(0) if tile.verbatim else uint32(tile.gaps.directory[first, 3])
    most = uint32(0)
    to = uint64(at)
    for b in range(first, last):
        k, column, top = decode_block(tile, b, row_ptr, starts, k, column, block, scratch)
        most = max(most, top)
        end = min(uint64(1024), uint64(tile.edges) - uint64(1024) * b)
        for i in range(end):
            columns[to + i] = block[i]
        to += end
    return most


@inner(inline="always")
def _sum_pushes(reads, table, columns, weights, at, begin, end):
    # One plain chain of additions: the processor overlaps the chains of several rows, and two accumulators
    # per row, or an unrolled loop, made short rows two to four times slower.
    pushed = 0.0
    for i in range(begin, end):
        pushed += times_weight(widened(reads[uint64(columns[i])], table), weights, i - at)
    return pushed


@inner(inline="always")
def _sum_both(reads, table, columns, weights, at, begin, end, low, span, nothing):
    pushed = 0.0
    proposed = 0.0
    for i in range(begin, end):
        node = uint64(columns[i])
        pushed += times_weight(widened(reads[uint64(2) * node], table), weights, i - at)
        earlier = node if node - low < span else nothing
        proposed += times_weight(widened(reads[uint64(2) * earlier + uint64(1)], table), weights, i - at)
    return pushed, proposed


@inner()
def gather_piece(
    piece, edges, nonempty, row_ptr, segments, columns, weights, at, reads, table, both, low, span, pushes,
    proposals, partials,
):  # fmt: skip
    """Sum what the edges of a piece, with columns ``columns[at:]`` and `weights` or None, bring to each row.

    If `both`, proposals of nodes low .. low + span - 1 are gathered too: `reads` then holds push and proposal
    of each node side by side, and zeros after the last. `pushes` and `proposals`, float64, receive the sums
    of the segments that begin in the piece and, at ``partials + piece``, those of its edges before these.
    """
    base = uint64(piece) * uint64(1024 * PIECE)
    stop = min(base + uint64(1024 * PIECE), uint64(edges))
    k = first_not_below(row_ptr, nonempty, base)
    head = min(uint64(row_ptr[k]), stop)
    offset = uint64(at) - base
    nothing = uint64(reads.size // 2 - 1)
    if both:
        pushes[partials + piece], proposals[partials + piece] = _sum_both(
            reads, table, columns, weights, uint64(at), base + offset, head + offset, low, span, nothing
        )
    else:
        pushes[partials + piece] = _sum_pushes(
            reads, table, columns, weights, uint64(at), base + offset, head + offset
        )
    begin = head
    while begin < stop:
        end = min(uint64(row_ptr[k + uint64(1)]), stop)
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
def join_pieces(edges, nonempty, row_ptr, segments, pushes, proposals, partials, carry, carry_proposed):
    """Add, in order, what pieces delivered to rows that began before; the first row also gets the carries."""
    for piece in range(pieces_of(edges)):
        k = first_not_below(row_ptr, nonempty, uint64(piece * 1024 * PIECE))
        if k > uint64(0):
            row = uint64(segments[k - uint64(1)])
            pushes[row] += pushes[partials + piece]
            if proposals.size:
                proposals[row] += proposals[partials + piece]
    pushes[0] += carry
    if proposals.size:
        proposals[0] += carry_proposed


def slice_tile(
    tile: PackedTile, csr: TileCsr, nodes: int, weights: NDArray[np.float64] | None
) -> SlicedEdges:
    """Lay all edges of a decoded tile out in slices, padded with column `nodes`, which reads zero.

    Weights, float64, become float32 if that is exact.
    """
    pieces = -(-tile.edges // (1024 * PIECE))
    parts = tile.nonempty + pieces
    begins, ends, targets = (np.empty(parts, np.uint32) for _ in range(3))
    partials = tile.segments
    count = int(_row_parts(tile.edges, csr.row_ptr, csr.segments, partials, begins, ends, targets))
    slices = -(-count // SLICE_ROWS)
    slice_ptr = np.empty(slices + 1, np.uint32)
    places = np.empty(slices * SLICE_ROWS, np.uint32)
    columns = np.empty(tile.edges + SLICE_ROWS * PIECE * 1024, np.uint32)
    exact: NDArray[Any] | None = weights
    laid = None
    if weights is not None:
        half = weights.astype(np.float32)
        exact = half if np.array_equal(half, weights) else weights
        laid = np.empty(columns.size, exact.dtype)
    used = _build_slices(
        begins, ends, targets, count, csr.columns, np.uint32(nodes), np.uint32(partials + pieces),
        slice_ptr, places, columns, exact, laid,
    )  # fmt: skip
    kept = None if laid is None else laid[: int(used)].copy()
    return SlicedEdges(slice_ptr, places, columns[: int(used)].copy(), kept)


@entry()
def _row_parts(edges, row_ptr, segments, partials, begins, ends, targets):
    """List the parts that pieces cut rows into, with the places of their sums; returns how many there are."""
    count = uint64(0)
    k = uint64(0)
    for piece in range(pieces_of(edges)):
        base = uint64(piece * 1024 * PIECE)
        stop = min(base + uint64(1024 * PIECE), uint64(edges))
        head = min(uint64(row_ptr[k]), stop)
        if head > base:
            begins[count] = base
            ends[count] = head
            targets[count] = partials + piece
            count += uint64(1)
        begin = head
        while begin < stop:
            end = min(uint64(row_ptr[k + uint64(1)]), stop)
            begins[count] = begin
            ends[count] = end
            targets[count] = segments[k]
            count += uint64(1)
            begin = end
            k += uint64(1)
    return count


@entry()
def _build_slices(
    begins, ends, targets, count, columns, nothing, nobody, slice_ptr, out_targets, out, weights, out_weights
):  # fmt: skip
    """Lay rows out in slices, longest first, equally long ones in their order; returns the columns' number.

    Row q, no longer than a piece, has the columns ``columns[begins[q]:ends[q]]`` and maybe weights, and its
    sum goes to ``targets[q]``. The padding has column `nothing`, target `nobody` and weight zero.
    """
    longest = 1024 * PIECE
    counts = np.zeros(longest + 2, np.uint32)
    for q in range(uint64(count)):
        counts[longest - uint64(ends[q] - begins[q]) + uint64(1)] += uint32(1)
    for length in range(uint64(1), uint64(longest + 2)):
        counts[length] += counts[length - uint64(1)]
    slices = (uint64(count) + uint64(SLICE_ROWS - 1)) // uint64(SLICE_ROWS)
    for i in range(uint64(count), slices * uint64(SLICE_ROWS)):
        out_targets[i] = nobody
    # First the order alone: a row's place among all, kept where its target will stand.
    for q in range(uint64(count)):
        length = uint64(longest) - uint64(ends[q] - begins[q])
        out_targets[counts[length]] = q
        counts[length] += uint32(1)
    base = uint64(0)
    for s in range(slices):
        slice_ptr[s] = base
        first = uint64(out_targets[s * uint64(SLICE_ROWS)])
        width = uint64(ends[first] - begins[first])
        for lane in range(uint64(SLICE_ROWS)):
            place = s * uint64(SLICE_ROWS) + lane
            begin = uint64(0)
            length = uint64(0)
            if place < uint64(count):
                q = uint64(out_targets[place])
                begin = uint64(begins[q])
                length = uint64(ends[q]) - begin
                out_targets[place] = targets[q]
            to = base + lane
            for i in range(begin, begin + length):
                out[to] = columns[i]
                copy_weight(out_weights, to, weights, i)
                to += uint64(SLICE_ROWS)
            for _ in range(length, width):
                out[to] = nothing
                pad_weight(out_weights, to)
                to += uint64(SLICE_ROWS)
        base += width * uint64(SLICE_ROWS)
    slice_ptr[slices] = base
    return base


@inner()
def gather_pushes(low, high, slice_ptr, targets, columns, weights, reads, table, shift, pushes):
    """Sum the pushes to the rows of the slices low .. high - 1; that of node i is ``reads[i << shift]``."""
    # Made here, where the compiler sees that nothing else is written to.
    lanes = np.empty(SLICE_ROWS, np.float64)
    for s in range(low, high):
        for lane in range(uint64(SLICE_ROWS)):
            lanes[lane] = 0.0
        i = uint64(slice_ptr[s])
        end = uint64(slice_ptr[s + uint64(1)])
        while i < end:
            for lane in range(uint64(SLICE_ROWS)):
                number = widened(reads[uint64(columns[i + lane]) << shift], table)
                lanes[lane] += times_weight(number, weights, i + lane)
            i += uint64(SLICE_ROWS)
        for lane in range(uint64(SLICE_ROWS)):
            pushes[uint64(targets[s * uint64(SLICE_ROWS) + lane])] = lanes[lane]


@inner()
def gather_both(
    slices_low, slices_high, slice_ptr, targets, columns, weights, reads, table, low, span, nothing, pushes,
    proposals,
):  # fmt: skip
    """Sum pushes, and proposals of the nodes low .. low + span - 1."""
    lanes = np.empty(SLICE_ROWS, np.float64)
    more = np.empty(SLICE_ROWS, np.float64)
    for s in range(slices_low, slices_high):
        for lane in range(uint64(SLICE_ROWS)):
            lanes[lane] = 0.0
            more[lane] = 0.0
        i = uint64(slice_ptr[s])
        end = uint64(slice_ptr[s + uint64(1)])
        while i < end:
            for lane in range(uint64(SLICE_ROWS)):
                node = uint64(columns[i + lane])
                lanes[lane] += times_weight(widened(reads[uint64(2) * node], table), weights, i + lane)
                earlier = node if node - low < span else nothing
                number = widened(reads[uint64(2) * earlier + uint64(1)], table)
                more[lane] += times_weight(number, weights, i + lane)
            i += uint64(SLICE_ROWS)
        for lane in range(uint64(SLICE_ROWS)):
            target = uint64(targets[s * uint64(SLICE_ROWS) + lane])
            pushes[target] = lanes[lane]
            proposals[target] = more[lane]


@by_types(inline="always")
def folded(column, nodes):
    """Return a column less `nodes` if it is that large; with None for `nodes`, as it is."""
    if isinstance(nodes, types.NoneType):
        return lambda column, nodes: column
    # Unsigned: a smaller column wraps to a large number.
    return lambda column, nodes: min(column, column - nodes)


@inner(inline="always")
def sum_slice(lanes, values, columns, nodes, weights, begin, end):
    """Sum values, of the columns folded by `nodes` and times weights if any, over a slice: a row per lane."""
    for lane in range(uint64(SLICE_ROWS)):
        lanes[lane] = 0.0
    i = uint64(begin)
    while i < end:
        for lane in range(uint64(SLICE_ROWS)):
            lanes[lane] += times_weight(values[uint64(folded(columns[i + lane], nodes))], weights, i + lane)
        i += uint64(SLICE_ROWS)


@inner(inline="always")
def sum_long_row(lanes, values, columns, nodes, weights, begin, end):
    """Sum a row of many columns as `sum_slice` does several short ones."""
    # Sixteen chains of additions: one chain would wait for each to end.
    for lane in range(uint64(SLICE_ROWS)):
        lanes[lane] = 0.0
    i = uint64(begin)
    while i + uint64(SLICE_ROWS) <= end:
        for lane in range(uint64(SLICE_ROWS)):
            lanes[lane] += times_weight(values[uint64(folded(columns[i + lane], nodes))], weights, i + lane)
        i += uint64(SLICE_ROWS)
    for lane in range(end - i):
        lanes[lane] += times_weight(values[uint64(folded(columns[i + lane], nodes))], weights, i + lane)
    total = lanes[uint64(0)]
    for lane in range(uint64(1), uint64(SLICE_ROWS)):
        total += lanes[lane]
    return total
