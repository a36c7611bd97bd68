"""The coder of a tile: columns and segment lengths in, bytes out.

The layout is specified in :mod:`oocpr.store.format`; :mod:`oocpr.store.unpacking` reads it back.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import uint32, uint64

from oocpr.errors import UsageError
from oocpr.jit import entry
from oocpr.store.layout import BLOCK, GROUP, Stream, blocks_of, word_rows, write_tile
from oocpr.store.simd import bit_length
from oocpr.store.unpacking import decode_tile

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["decode_tile", "encode_runs", "encode_tile", "pack_stream"]


@entry()
def _choose_widths(values, widths):
    """Choose the width of least bits for each group; returns the numbers of narrow and wide exceptions."""
    longer = np.zeros(40, np.uint32)  # longer[w]: values of the group that have more than w bits
    narrow = uint64(0)
    wide = uint64(0)
    for g in range(uint64(widths.size)):
        first = uint64(32) * g
        union = uint32(0)
        for lane in range(uint64(32)):
            union |= values[first + lane]
        full = uint64(bit_length(uint32(union)))
        for w in range(full, full + uint64(7)):
            longer[w] = 0
        best = uint64(32) * full
        width = full
        best_narrow = uint64(0)
        best_wide = uint64(0)
        for less in range(uint64(1), min(full, uint64(22)) + uint64(1)):
            w = full - less
            shift = uint32(w)
            cut = uint32(0)
            for lane in range(uint64(32)):
                cut += uint32(values[first + lane] >> shift != 0)
            longer[w] = cut
            cut_wide = uint64(longer[w + uint64(6)])
            patches = uint64(16) * (uint64(cut) + cut_wide)
            if patches >= best:
                break
            if uint64(32) * w + patches < best:
                best = uint64(32) * w + patches
                width = w
                best_narrow = uint64(cut) - cut_wide
                best_wide = cut_wide
        widths[g] = width
        narrow += best_narrow
        wide += best_wide
    return narrow, wide


@entry()
def _fill(values, widths, words, directory, wide, narrow):
    """Write the bits, the exceptions and the directory; `words` is zero and has a row to spare."""
    position = uint64(0)
    q_narrow = uint64(0)
    q_wide = uint64(0)
    for g in range(uint64(widths.size)):
        if g & uint64(31) == uint64(0):
            b = g >> uint64(5)
            directory[b, 0] = position
            directory[b, 1] = q_narrow
            directory[b, 2] = q_wide
        w = uint64(widths[g])
        mask = uint32((uint64(1) << w) - uint64(1))
        shift = uint32(position & uint64(31))
        first = uint64(32) * g
        row = uint64(32) * (position >> uint64(5))
        rest = uint32(0)
        for lane in range(uint64(32)):
            value = values[first + lane]
            low = uint32(value & mask)
            rest |= uint32(value ^ low)
            words[row + lane] |= uint32(low << shift)
            words[row + uint64(32) + lane] |= uint32((low >> uint32(1)) >> (uint32(31) - shift))
        if rest:
            for lane in range(uint64(32)):
                high = uint64(values[first + lane]) >> w
                if high:
                    entry = ((first + lane) & uint64(1023)) | (high << uint64(10))
                    if high < uint64(64):
                        narrow[q_narrow] = entry
                        q_narrow += uint64(1)
                    else:
                        wide[q_wide] = entry
                        q_wide += uint64(1)
        position += w
    b = uint64(directory.shape[0] - 1)
    directory[b, 0] = position
    directory[b, 1] = q_narrow
    directory[b, 2] = q_wide


class _Choice(NamedTuple):
    """How a stream will be packed: width of each group, numbers of exceptions."""

    widths: NDArray[np.uint8]
    narrow: int
    wide: int

    @property
    def bits(self) -> int:
        return int(self.widths.sum(dtype=np.int64))

    @property
    def nbytes(self) -> int:
        groups = self.widths.size
        fixed = 128 * word_rows(self.bits) + 16 * (-(-groups // 32) + 1) + groups
        return fixed + 4 * self.wide + 2 * self.narrow


def _choose(values: NDArray[np.uint32]) -> _Choice:
    widths = np.empty(values.size // GROUP, np.uint8)
    return _Choice(widths, *_choose_widths(values, widths))


def _pack(values: NDArray[np.uint32], count: int, choice: _Choice) -> Stream:
    rows = word_rows(choice.bits)
    words = np.zeros(GROUP * (rows + 1), np.uint32)
    directory = np.zeros((blocks_of(count) + 1, 4), np.uint32)
    wide, narrow = np.empty(choice.wide, np.uint32), np.empty(choice.narrow, np.uint16)
    _fill(values, choice.widths, words, directory, wide, narrow)
    return Stream(count, words[: GROUP * rows], directory, wide, narrow, choice.widths)


def pack_stream(values: NDArray[np.uint32], count: int) -> Stream:
    """Pack a stream of unsigned 32-bit values; the carries of its directory are left 0.

    Parameters
    ----------
    values
        uint32, padded with zeros to a multiple of 32.
    count
        How many of them count.

    Returns
    -------
    Stream

    Examples
    --------
    >>> packed = pack_stream(np.arange(32, dtype=np.uint32), 32)
    >>> packed.widths.tolist(), packed.words.size
    ([5], 32)
    """
    return _pack(values, count, _choose(values))


@entry()
def _split(columns, lengths, gaps, starts):
    """Split columns into gaps and starts; returns the segment that is not ascending, or -1.

    `starts` receives the zigzag differences, one a non-empty segment.
    """
    position = uint64(0)
    k = uint64(0)
    before = uint32(0)
    bad = -1
    for s in range(lengths.size):
        length = uint64(lengths[uint64(s)])
        if length == uint64(0):
            continue
        start = columns[position]
        step = np.int32(uint32(start - before))
        starts[k] = uint32(uint32(step << np.int32(1)) ^ uint32(step >> np.int32(31)))
        before = start
        k += uint64(1)
        gaps[position] = 0
        descents = uint32(0)
        for i in range(position + uint64(1), position + length):
            gaps[i] = uint32(columns[i] - columns[i - uint64(1)] - uint32(1))
            descents |= uint32(columns[i] <= columns[i - uint64(1)])
        if descents and bad < 0:
            bad = s
        position += length
    return bad


@entry()
def _carry_lengths(lengths, directory, ranks):
    """Note before each block of lengths the sum of the lengths and the number that are not 0."""
    total = uint64(0)
    rank = uint64(0)
    for s in range(uint64(lengths.size)):
        if s & uint64(1023) == uint64(0):
            directory[s >> uint64(10), 3] = total
            ranks[s >> uint64(10)] = rank
        total += uint64(lengths[s])
        rank += uint64(lengths[s] != 0)
    directory[uint64(directory.shape[0] - 1), 3] = total
    ranks[uint64(ranks.size - 1)] = rank


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


def encode_tile(columns: NDArray[np.uint32], lengths: NDArray[np.integer], *, runs: bool = False) -> bytes:
    """Encode the columns of consecutive segments of rows.

    Parameters
    ----------
    columns
        uint32, shape (m,): strictly ascending inside a segment; m < 2^32.
    lengths
        Entries of each segment, 0 allowed; shape (s,), their sum is m.
    runs
        The segments are ascending runs found in the columns, not rows of a matrix.

    Returns
    -------
    bytes
        As :mod:`oocpr.store.format` specifies it.

    Raises
    ------
    UsageError
        If the lengths do not add up to m or a segment is not strictly ascending.

    Examples
    --------
    >>> coded = encode_tile(np.array([0, 2, 5, 1], np.uint32), np.array([3, 0, 1]))
    >>> columns, lengths = decode_tile(np.frombuffer(coded, np.uint8))
    >>> columns.tolist(), lengths.tolist()
    ([0, 2, 5, 1], [3, 0, 1])
    """
    columns = np.ascontiguousarray(columns, np.uint32)
    edges, segments = columns.size, len(lengths)
    total = int(np.sum(lengths, dtype=np.int64))
    if np.min(lengths, initial=0) < 0:
        raise UsageError("A segment length is negative.", "Pass the number of columns of each segment.")
    if total != edges:
        raise UsageError(
            f"Segment lengths add up to {total}, not to the {edges} columns given.",
            "Pass one length for each segment.",
        )
    length_values = _padded(segments)
    length_values[:segments] = lengths
    ends = np.cumsum(length_values[:segments], dtype=np.int64)
    positions = (ends - length_values[:segments])[length_values[:segments] > 0]
    gap_values, start_values = _padded(edges), _padded(positions.size)
    bad = _split(columns, length_values[:segments], gap_values, start_values)
    if bad >= 0:
        raise UsageError(
            f"The columns of segment {bad} are not strictly ascending.",
            "Sort the columns of each row and merge duplicates.",
        )
    packed_lengths = pack_stream(length_values, segments)
    ranks = np.zeros(packed_lengths.directory.shape[0], np.uint32)
    _carry_lengths(length_values[:segments], packed_lengths.directory, ranks)
    column_values = np.pad(columns, (0, -edges % GROUP)) if edges % GROUP else columns
    gaps, starts, plain = map(_choose, (gap_values, start_values, column_values))
    verbatim = plain.nbytes < gaps.nbytes + starts.nbytes
    packed_columns = _pack(column_values, edges, plain) if verbatim else _pack(gap_values, edges, gaps)
    _carry(packed_columns, columns)
    packed_starts = None
    if not verbatim:
        packed_starts = _pack(start_values, positions.size, starts)
        _carry(packed_starts, columns[positions])
    return write_tile(packed_lengths, ranks, packed_starts, packed_columns, positions.size, runs=runs)


def _padded(count: int) -> NDArray[np.uint32]:
    return np.zeros(-(-count // GROUP) * GROUP, np.uint32)


def _carry(stream: Stream, values: NDArray[np.uint32]) -> None:
    """Note behind each block the last of `values`, one a value of the stream."""
    ends = np.arange(1, stream.directory.shape[0]) * BLOCK
    stream.directory[1:, 3] = values[np.minimum(ends, values.size) - 1]


def encode_runs(columns: NDArray[np.uint32]) -> bytes:
    """Encode columns whose rows are not known: each maximal strictly ascending run is a segment.

    Parameters
    ----------
    columns
        uint32, shape (m,).

    Returns
    -------
    bytes

    Examples
    --------
    >>> columns, lengths = decode_tile(np.frombuffer(encode_runs(np.array([3, 7, 7], np.uint32)), np.uint8))
    >>> columns.tolist(), lengths.tolist()
    ([3, 7, 7], [2, 1])
    """
    columns = np.ascontiguousarray(columns, np.uint32)
    lengths = np.empty(columns.size, np.uint32)
    return encode_tile(columns, lengths[: _runs(columns, lengths)], runs=True)
