"""Products of a graph's matrix with a vector, in float64, from one decode of each tile.

A tile has the edges into its rows, so it sums what rows receive by gathering: y = A^T x, for A[u, v] the
weight of the edge from u to v. Once a row has its sum, the same decoded columns give each of its sources
their share of it by scattering: z += A y. So A (A^T x) takes one pass. Threads share the scattering by
columns: each adds to its own, in the order of the rows, and the sums do not depend on how many there are.
"""

from __future__ import annotations

import numpy as np
from numba import uint32, uint64

from oocpr.engine.cpu.gather import PIECE, decode_piece, first_not_below, gather_piece, join_pieces, pieces_of
from oocpr.engine.cpu.numbers import decode_piece_weights, piece_buffer, times_weight
from oocpr.engine.cpu.threads import barrier, next_chunk, parallel_region
from oocpr.jit import entry, inner
from oocpr.store.codec.tiles import SCRATCH

_SHORT = 32
"""Edges of a row up to which all are looked at, rather than the first of a thread's columns looked for."""


@entry()
def multiply_packed(board, *args):
    """Sum what each row of a packed tile receives, and scatter the sums of whole rows if that is wanted."""
    return parallel_region(board, _multiply_part, args)


@inner()
def _multiply_part(
    me, team, counter, tile, starts, keep, max_columns, csr, stored, weights, values, nothing, owned, carry,
    sums, bounds, scattered,
):  # fmt: skip
    """Do the part of one thread.

    `keep`: whether columns, and weights, are written to their places in the tile and then scattered, by the
    `owned` first segments, to `scattered`; thread `me` of as many as `bounds` has parts adds to the columns
    between its two. `nothing`: float64, shape (0,). `sums`: as `gather_piece` has `pushes`.
    """
    segments = sums.size
    sums[segments * me // team : segments * (me + 1) // team] = 0.0
    barrier(counter, team, 1)
    block = np.empty(SCRATCH, np.uint32)
    decoded = np.empty(SCRATCH, np.uint32)
    size = uint64(1024 * PIECE)
    piece_weights = piece_buffer(weights, 1024 * PIECE)
    nodes = uint64(values.size)
    piece = next_chunk(counter[1:])
    while piece < pieces_of(tile.edges):
        first = uint64(piece) * size
        count = min(size, uint64(tile.edges) - first)
        at = first if keep else uint64(me) * size
        top = decode_piece(tile, piece, csr.row_ptr, starts, csr.columns, at, block, decoded)
        max_columns[me] = max(max_columns[me], top)
        if top >= nodes:
            break
        decode_piece_weights(stored, first, count, piece_weights)
        _keep_weights(keep, weights, first, count, piece_weights)
        gather_piece(
            piece, tile.edges, tile.nonempty, csr.row_ptr, csr.segments, csr.columns, piece_weights, at,
            values, nothing, False, uint64(0), uint64(0), sums, nothing, owned + 1,
        )  # fmt: skip
        piece = next_chunk(counter[1:])
    barrier(counter, team, 2)
    if me == 0:
        join_pieces(
            tile.edges, tile.nonempty, csr.row_ptr, csr.segments, sums, nothing, owned + 1, carry, 0.0
        )
    barrier(counter, team, 3)
    top = uint32(0)
    for k in range(team):
        top = max(top, max_columns[k])
    if keep and top < nodes:
        parts = bounds.size - 1
        low, high = bounds[parts * me // team], bounds[parts * (me + 1) // team]
        _scatter(tile.nonempty, csr, weights, owned, sums, low, high, scattered)


@inner()
def _keep_weights(keep, weights, first, count, piece_weights):
    if weights is None or not keep:
        return
    for i in range(count):
        weights[first + i] = piece_weights[i]


@inner()
def _scatter(nonempty, csr, weights, owned, sums, low, high, scattered):
    """Add the sum of each owned row to its sources low .. high - 1."""
    for k in range(uint64(nonempty)):
        row = uint64(csr.segments[k])
        if row >= uint64(owned):
            break
        begin, end = uint64(csr.row_ptr[k]), uint64(csr.row_ptr[k + uint64(1)])
        value = sums[row]
        if end - begin > uint64(_SHORT):
            begin += first_not_below(csr.columns[begin:end], end - begin, low)
        for i in range(begin, end):
            column = uint64(csr.columns[i])
            if column >= high:
                break
            if column >= low:
                scattered[column] += times_weight(value, weights, i)
