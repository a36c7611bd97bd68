"""Encoder and decoder of tiles: columns and lengths of segments in, bytes out, and back.

Indices are unsigned 64-bit integers throughout: signed ones would be tested for being negative at every
access.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from oocpr.errors import DamagedError, UsageError
from oocpr.jit import BORROWING, entry, inner
from oocpr.store.codec.bitpacking import (
    BufferPool,
    bit_length,
    choose_widths,
    fixed_bytes,
    pack_into,
    padded,
    running_sums,
    unpack_block,
)
from oocpr.store.codec.layout import BLOCK, GROUP, PackedTile, allocate_tile, blocks_of, parse_tile

if TYPE_CHECKING:
    from oocpr.store.codec.bitpacking import WidthChoice


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


@entry(shared=True, **BORROWING)
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
    """Columns and lengths of an encoded tile; DamagedError if the bytes are not those of one."""
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


@entry()
def _split(columns, lengths, gaps, starts, carries):
    """Split columns into gaps and starts by padded lengths; returns the segment that is not ascending, or -1.

    `starts` receives zigzag differences, one per non-empty segment, `carries` the last start of each block.
    """
    descents = uint64(0)
    for i in range(uint64(1), uint64(columns.size)):
        gaps[i] = uint32(columns[i] - columns[i - uint64(1)] - uint32(1))
        descents += uint64(columns[i] <= columns[i - uint64(1)])
    position = uint64(0)
    k = uint64(0)
    before = uint32(0)
    falls = uint64(0)
    for first in range(uint64(0), uint64(lengths.size), uint64(32)):
        # Many rows in a row may have no edges.
        union = uint32(0)
        for s in range(first, first + uint64(32)):
            union |= lengths[s]
        if union == uint32(0):
            continue
        end = first + uint64(32)
        while lengths[end - uint64(1)] == uint32(0):
            end -= uint64(1)
        # Without a branch: for an empty segment, what is written is that of the next one that is not.
        for s in range(first, end):
            length = uint64(lengths[s])
            start = columns[position]
            filled = length != uint64(0)
            step = np.int32(uint32(start - before))
            starts[k] = uint32(uint32(step << np.int32(1)) ^ uint32(step >> np.int32(31)))
            carries[k >> uint64(10)] = start
            gaps[position] = 0
            before = start if filled else before
            # The first column is compared with itself, one fall that is not counted above.
            ascends = start > columns[max(position, uint64(1)) - uint64(1)]
            falls += uint64(filled & (not ascends))
            k += uint64(filled)
            position += length
    if columns.size and descents + uint64(1) != falls:
        return _first_bad(columns, lengths)
    return -1


@inner()
def _first_bad(columns, lengths):
    """First segment that is not ascending."""
    position = uint64(0)
    for s in range(uint64(lengths.size)):
        end = position + uint64(lengths[s])
        for i in range(position + uint64(1), end):
            if columns[i] <= columns[i - uint64(1)]:
                return np.int64(s)
        position = end
    return np.int64(-1)


@entry()
def _bits(values):
    """Sum of the bits of all values: no packing takes fewer, as an exception takes 10 more."""
    total = uint64(0)
    for i in range(uint64(values.size)):
        total += uint64(bit_length(values[i]))
    return total


@entry()
def _count(lengths):
    """Sum of the lengths, and the number that are not 0."""
    total = uint64(0)
    nonempty = uint64(0)
    for s in range(uint64(lengths.size)):
        total += uint64(lengths[s])
        nonempty += uint64(lengths[s] != uint32(0))
    return total, nonempty


@entry()
def _carry_lengths(lengths, directory, ranks):
    """Note before each block of lengths the sum of the lengths and the number that are not 0."""
    total = uint32(0)
    rank = uint32(0)
    blocks = uint64(ranks.size - 1)
    for b in range(blocks):
        directory[b, 3] = total
        ranks[b] = rank
        first = uint64(1024) * b
        for s in range(first, min(first + uint64(1024), uint64(lengths.size))):
            total += lengths[s]
            rank += uint32(lengths[s] != uint32(0))
    directory[blocks, 3] = total
    ranks[blocks] = rank


@entry()
def _runs(columns, lengths):
    """Write the lengths of the maximal strictly ascending runs; returns how many there are."""
    k = uint64(0)
    first = uint64(0)
    for i in range(uint64(1), uint64(columns.size)):
        if columns[i] <= columns[i - uint64(1)]:
            lengths[k] = i - first
            k += uint64(1)
            first = uint64(i)
    if columns.size:
        lengths[k] = uint64(columns.size) - first
        k += uint64(1)
    return k


class TileEncoder:
    """Encodes tiles one after the other, in memory that it uses again."""

    def __init__(self) -> None:
        self._space = BufferPool()

    def encode(
        self, columns: NDArray[np.uint32], lengths: NDArray[np.integer], *, runs: bool = False
    ) -> NDArray[np.uint8]:
        """Encode a tile as `encode_tile` does, into memory that the next one overwrites."""
        space = self._space
        columns = np.ascontiguousarray(columns, np.uint32)
        edges, segments = columns.size, len(lengths)
        length_values = padded(space, "lengths", segments)
        length_values[:segments] = lengths
        nonempty = _checked(edges, lengths, length_values)
        gap_values, start_values = padded(space, "gaps", edges), padded(space, "starts", nonempty)
        start_carries = space.array("start carries", blocks_of(nonempty), np.uint32)
        bad = _split(columns, length_values, gap_values, start_values, start_carries)
        if bad >= 0:
            raise UsageError(
                f"The columns of segment {bad} are not strictly ascending.",
                "Sort the columns of each row and merge duplicates.",
            )
        parts = [
            choose_widths(space, "gaps", gap_values, edges),
            choose_widths(space, "starts", start_values, nonempty),
        ]
        verbatim = self._verbatim(columns, sum(part.nbytes for part in parts))
        parts = [
            *(parts if verbatim is None else [verbatim]),
            choose_widths(space, "lengths", length_values, segments),
        ]
        give = partial(space.array, "coded", dtype=np.uint8)
        laid = allocate_tile([part.counts() for part in parts], nonempty, give, runs=runs)
        for part, stream in zip(parts, laid.streams, strict=True):
            pack_into(part, stream)
        if verbatim is None:
            laid.streams[1].directory[1:, 3] = start_carries
        whole = edges // BLOCK
        carries = laid.streams[0].directory[1:, 3]
        carries[:whole] = columns[BLOCK - 1 :: BLOCK]
        carries[whole:] = columns[-1:]
        _carry_lengths(length_values[:segments], laid.streams[-1].directory, laid.ranks)
        return laid.coded

    def _verbatim(self, columns: NDArray[np.uint32], split_bytes: int) -> WidthChoice | None:
        """Take the columns themselves if they take fewer bytes than gaps and starts."""
        groups = -(-columns.size // GROUP)
        if fixed_bytes(groups) + int(_bits(columns)) / 8 >= split_bytes:
            return None
        values = columns
        if columns.size % GROUP:
            values = padded(self._space, "columns", columns.size)
            values[: columns.size] = columns
        part = choose_widths(self._space, "columns", values, columns.size)
        return part if part.nbytes < split_bytes else None


def _checked(edges: int, lengths: NDArray[np.integer], values: NDArray[np.uint32]) -> int:
    """Check lengths, which are `values` if they have 32 bits; returns how many are not 0."""
    total, nonempty = map(int, _count(values))
    if lengths.dtype != np.uint32:
        if np.min(lengths, initial=0) < 0:
            raise UsageError("A segment length is negative.", "Pass the number of columns of each segment.")
        total = int(np.sum(lengths, dtype=np.int64))
    if total != edges:
        raise UsageError(
            f"Segment lengths add up to {total}, not to the {edges} columns given.",
            "Pass one length for each segment.",
        )
    return nonempty


def encode_tile(columns: NDArray[np.uint32], lengths: NDArray[np.integer], *, runs: bool = False) -> bytes:
    """Encode the columns of consecutive segments of rows, strictly ascending in each.

    `lengths`: entries of each segment, 0 allowed; they add up to the number of columns, below 2^32. `runs`:
    the segments are ascending runs found in the columns, not rows of a matrix. Raises UsageError if the
    lengths do not add up or a segment is not strictly ascending.

    >>> coded = encode_tile(np.array([0, 2, 5, 1], np.uint32), np.array([3, 0, 1]))
    >>> columns, lengths = decode_tile(np.frombuffer(coded, np.uint8))
    >>> columns.tolist(), lengths.tolist()
    ([0, 2, 5, 1], [3, 0, 1])
    """
    return TileEncoder().encode(columns, lengths, runs=runs).tobytes()


def encode_runs(columns: NDArray[np.uint32]) -> bytes:
    """Encode columns whose rows are not known: each maximal strictly ascending run is a segment.

    >>> columns, lengths = decode_tile(np.frombuffer(encode_runs(np.array([3, 7, 7], np.uint32)), np.uint8))
    >>> columns.tolist(), lengths.tolist()
    ([3, 7, 7], [2, 1])
    """
    columns = np.ascontiguousarray(columns, np.uint32)
    lengths = np.empty(columns.size, np.uint32)
    return encode_tile(columns, lengths[: _runs(columns, lengths)], runs=True)
