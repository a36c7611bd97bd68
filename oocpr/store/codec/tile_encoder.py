"""The encoder of a tile: columns and lengths of segments in, bytes out."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import uint32, uint64

from oocpr.errors import UsageError
from oocpr.jit import entry, inner
from oocpr.store.codec.bitpacking import (
    BufferPool,
    choose_widths,
    fixed_bytes,
    pack_into,
    pack_stream,
    padded,
)
from oocpr.store.codec.layout import BLOCK, GROUP, allocate_tile, blocks_of
from oocpr.store.codec.simd import bit_length
from oocpr.store.codec.tile_decoder import decode_tile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.store.codec.bitpacking import WidthChoice

__all__ = ["TileEncoder", "decode_tile", "encode_runs", "encode_tile", "pack_stream"]


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
    """Encodes tiles one after the other, in memory that it uses again.

    >>> coder = TileEncoder()
    >>> coded = coder.encode(np.array([0, 2, 5, 1], np.uint32), np.array([3, 0, 1]))
    >>> decode_tile(coded)[0].tolist()
    [0, 2, 5, 1]
    """

    def __init__(self) -> None:
        self._space = BufferPool()

    def columns(self, edges: int) -> NDArray[np.uint32]:
        """Memory for columns, shape (edges,), from which `encode` takes them without a copy."""
        return padded(self._space, "columns", edges)[:edges]

    def lengths(self, segments: int) -> NDArray[np.uint32]:
        """Memory for lengths, shape (segments,), from which `encode` takes them without a copy."""
        return padded(self._space, "lengths", segments)[:segments]

    def encode(
        self,
        columns: NDArray[np.uint32],
        lengths: NDArray[np.integer],
        *,
        runs: bool = False,
        out: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Encode a tile as `encode_tile` does, into `out`, or memory that the next one overwrites.

        Raises ValueError, and writes nothing, if `out` is too short or not aligned to four bytes.
        """
        space = self._space
        columns = np.ascontiguousarray(columns, np.uint32)
        edges, segments = columns.size, len(lengths)
        length_values = padded(space, "lengths", segments)
        # Of lengths that are there already, nothing is copied.
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
            _Part.of(space, "gaps", gap_values, edges),
            _Part.of(space, "starts", start_values, nonempty),
        ]
        verbatim = self._verbatim(columns, sum(part.choice.nbytes for part in parts))
        parts = [
            *(parts if verbatim is None else [verbatim]),
            _Part.of(space, "lengths", length_values, segments),
        ]
        give = partial(space.array, "coded", dtype=np.uint8) if out is None else partial(_front, out)
        laid = allocate_tile([part.choice.counts(part.size) for part in parts], nonempty, give, runs=runs)
        for part, stream in zip(parts, laid.streams, strict=True):
            pack_into(part.values, part.choice, stream)
        if verbatim is None:
            laid.streams[1].directory[1:, 3] = start_carries
        whole = edges // BLOCK
        carries = laid.streams[0].directory[1:, 3]
        carries[:whole] = columns[BLOCK - 1 :: BLOCK]
        carries[whole:] = columns[-1:]
        _carry_lengths(length_values[:segments], laid.streams[-1].directory, laid.ranks)
        return laid.coded

    def _verbatim(self, columns: NDArray[np.uint32], split_bytes: int) -> _Part | None:
        """Take the columns themselves if they take fewer bytes than gaps and starts."""
        groups = -(-columns.size // GROUP)
        if fixed_bytes(groups) + int(_bits(columns)) / 8 >= split_bytes:
            return None
        values = columns
        if columns.size % GROUP:
            values = padded(self._space, "columns", columns.size)
            # The same as for lengths.
            values[: columns.size] = columns
        part = _Part.of(self._space, "columns", values, columns.size)
        return part if part.choice.nbytes < split_bytes else None


class _Part(NamedTuple):
    """Values of a stream, padded; how many of them count; how they will be packed."""

    values: NDArray[np.uint32]
    size: int
    choice: WidthChoice

    @classmethod
    def of(cls, space: BufferPool, name: str, values: NDArray[np.uint32], size: int) -> _Part:
        return cls(values, size, choose_widths(values, space, name))


def _front(out: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    if size > out.size or out.ctypes.data % 4:
        raise ValueError(f"a buffer of {out.size} bytes at {out.ctypes.data} for a tile of {size}")
    return out[:size]


def _checked(edges: int, lengths: NDArray[np.integer], values: NDArray[np.uint32]) -> int:
    """Check lengths, which are `values` where they have 32 bits; returns how many are not 0."""
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
