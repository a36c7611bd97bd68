"""The decoder of a tile that `parse_tile` has checked: whole, or block by block in a caller's loop.

Indices are unsigned 64-bit integers throughout: signed ones would be tested for being negative at every
access.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import uint32, uint64

from oocpr.errors import DamagedError
from oocpr.jit import BORROWING, entry, inner
from oocpr.store.codec.bitpacking import unpack_block
from oocpr.store.codec.layout import BLOCK, PackedTile, parse_tile
from oocpr.store.codec.simd import running_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCRATCH = BLOCK  # entries of the buffers of decode_block


@entry()
def _expand(tile, positions, starts, segments):
    """Decode lengths and starts; returns 0, 1 if they contradict the header, or 2 if the directory."""
    buf = np.empty(1024, np.uint32)
    position = uint64(0)
    k = uint64(0)
    room = uint64(tile.nonempty)
    for b in range(uint64(tile.lengths.directory.shape[0] - 1)):
        if tile.lengths.directory[b, 3] != position or tile.ranks[b] != k:
            return 2
        unpack_block(tile.lengths, b, 0, buf, uint64(0))
        first = uint64(1024) * b
        for i in range(min(uint64(1024), uint64(tile.segments) - first)):
            length = uint64(buf[i])
            positions[k] = position
            segments[k] = first + i
            position += length
            k += uint64(length != uint64(0))
            if k > room:
                return 1
    blocks = uint64(tile.ranks.size - 1)
    if tile.lengths.directory[blocks, 3] != position or tile.ranks[blocks] != k:
        return 2
    if position != uint64(tile.edges) or k != room:
        return 1
    positions[k] = position
    if tile.verbatim:
        return 0
    column = uint32(0)
    for b in range(uint64(tile.starts.directory.shape[0] - 1)):
        if tile.starts.directory[b, 3] != column:
            return 2
        unpack_block(tile.starts, b, 0, buf, uint64(0))
        for i in range(uint64(1024)):
            buf[i] = uint32((buf[i] >> uint32(1)) ^ uint32(-np.int32(buf[i] & uint32(1))))
        running_sums(buf, uint64(0), buf, uint64(0), uint64(64), column)
        first = uint64(1024) * b
        end = min(uint64(1024), room - first)
        for i in range(end):
            starts[first + i] = buf[i]
        column = buf[end - uint64(1)]
    if tile.starts.directory[uint64(tile.starts.directory.shape[0] - 1), 3] != column:
        return 2
    return 0


@inner(**BORROWING, forceinline=True)
def _decode_block(tile, b, positions, starts, k, column, out, at, scratch):
    """Decode the columns of block `b` to ``out[at:at+1024]``; else as decode_block."""
    base = uint64(1024) * b
    end = min(base + uint64(1024), uint64(tile.edges))
    last = at + end - base - uint64(1)
    count = uint64(tile.nonempty)
    if tile.verbatim:
        unpack_block(tile.gaps, b, uint32(0), out, at)
        top = uint32(0)
        for i in range(at, at + uint64(1024)):
            top = max(top, out[i])
        while k < count and uint64(positions[k]) < end:
            k += uint64(1)
        return k, out[last], top
    unpack_block(tile.gaps, b, uint32(1), out, at)
    if k < count and uint64(positions[k]) < end:
        # Sums that ignore the segments tell how far to jump at each start: so no step waits for another.
        running_sums(out, at, scratch, uint64(0), uint64(64), uint32(0))
        offset = column
        while k < count and uint64(positions[k]) < end:
            i = uint64(positions[k]) - base
            jump = uint32(starts[k] - scratch[i])
            out[at + i] = uint32(out[at + i] + jump - offset)
            offset = jump
            k += uint64(1)
    top = running_sums(out, at, out, at, uint64(64), column)
    return k, out[last], top


@entry(**BORROWING)
def decode_block(tile, b, positions, starts, k, column, out, scratch):
    """Decode the columns of block `b`, edges 1024 * b to 1024 * b + 1023; for a kernel's own loop.

    `positions`, `starts`: as expand_segments filled them. `k`: uint64, first non-empty segment that starts at
    or behind the first edge of the block. `column`: uint32, column of the edge before the block, 0 for b = 0,
    as the directory of the gaps has it. `out`, `scratch`: uint32, shape (SCRATCH,): `out` receives the
    columns; what is behind the last edge is undefined. Returns k and column for the next block, and a number
    no less than any column written.
    """
    return _decode_block(tile, b, positions, starts, k, column, out, uint64(0), scratch)


@entry()
def _decode(tile, positions, starts, columns):
    """Decode all columns; returns 0, or 2 if the directory contradicts them."""
    out = np.empty(1024, np.uint32)
    scratch = np.empty(1024, np.uint32)
    edges = uint64(tile.edges)
    carries = tile.gaps.directory
    k = uint64(0)
    column = uint32(0)
    whole = edges >> uint64(10)
    for b in range(whole):
        if carries[b, 3] != column:
            return 2
        k, column, _ = _decode_block(
            tile, b, positions, starts, k, column, columns, uint64(1024) * b, scratch
        )
    if carries[whole, 3] != column:
        return 2
    if edges & uint64(1023):
        k, column, _ = _decode_block(tile, whole, positions, starts, k, column, out, uint64(0), scratch)
        for i in range(edges & uint64(1023)):
            columns[(whole << uint64(10)) + i] = out[i]
        if carries[whole + uint64(1), 3] != column:
            return 2
    return 0


def expand_segments(
    tile: PackedTile,
    positions: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    segments: NDArray[np.uint32],
) -> None:
    """Decode where the non-empty segments of a tile are; DamagedError if header or directory contradict it.

    `positions`, shape (>= nonempty + 1,): receives the first edge of each, and the number of edges behind the
    last. `starts`, shape (>= nonempty,): the first column of each, unless verbatim. `segments`, shape
    (>= nonempty + 1,): the number of each among all segments.
    """
    if min(positions.size, segments.size) <= tile.nonempty or starts.size < tile.nonempty:
        raise ValueError(f"buffers too short for {tile.nonempty} segments")
    if _expand(tile, positions, starts, segments):
        raise DamagedError("A tile's lengths contradict its header.")


def decode_columns(
    tile: PackedTile,
    positions: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    columns: NDArray[np.uint32],
) -> None:
    """Decode the columns of a tile with expanded segments; DamagedError if the directory contradicts them."""
    if columns.size < tile.edges:
        raise ValueError(f"buffer too short for {tile.edges} columns")
    if _decode(tile, positions, starts, columns):
        raise DamagedError("A tile's columns contradict its directory.")


@entry()
def _add_lengths(positions, segments, lengths):
    for k in range(uint64(segments.size - 1)):
        lengths[segments[k]] += positions[k + uint64(1)] - positions[k]


def add_lengths(
    tile: PackedTile,
    positions: NDArray[np.uint32],
    segments: NDArray[np.uint32],
    lengths: NDArray[np.uint32],
) -> None:
    """Add the lengths of a tile's segments to `lengths`, shape (>= segments,)."""
    if lengths.size < tile.segments:
        raise ValueError(f"buffer too short for {tile.segments} lengths")
    _add_lengths(positions, segments[: tile.nonempty + 1], lengths)


def decode_tile(buf: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Columns and lengths of an encoded tile; DamagedError if the bytes are not those of one.

    >>> from oocpr.store.codec.tile_encoder import encode_tile
    >>> coded = encode_tile(np.array([7, 9], np.uint32), np.array([0, 2]))
    >>> columns, lengths = decode_tile(np.frombuffer(coded, np.uint8))
    >>> columns.tolist(), lengths.tolist()
    ([7, 9], [0, 2])
    """
    tile = parse_tile(buf)
    positions = np.empty(tile.nonempty + 1, np.uint32)
    segments = np.empty(tile.nonempty + 1, np.uint32)
    starts = np.empty(tile.nonempty, np.uint32)
    expand_segments(tile, positions, starts, segments)
    lengths = np.zeros(tile.segments, np.uint32)
    add_lengths(tile, positions, segments, lengths)
    del segments
    columns = np.empty(tile.edges, np.uint32)
    decode_columns(tile, positions, starts, columns)
    return columns, lengths
