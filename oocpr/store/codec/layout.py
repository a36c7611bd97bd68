"""Where the parts of a coded chunk are in its bytes (docs/reference/format.md): laid out, found, checked."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import int64, uint8, uint32, uint64
from numpy.typing import NDArray

from oocpr.errors import DamagedError
from oocpr.jit import entry, inner

GROUP = 32  # values that share a width
BLOCK = 1024  # values that share an entry of the directory
MAGIC = b"oci1"
KIND_RAW, KIND_OFFSETS, KIND_TILE = 0, 1, 2
FLAG_RUNS, FLAG_VERBATIM = 1 << 8, 1 << 9
TILE_HEADER = 16
OFFSETS_HEADER = 8


class Stream(NamedTuple):
    """One packed stream of `size` values; read from a chunk, its arrays are read-only views.

    `words`: word k of lane l is ``words[32 * k + l]``. `directory`: shape (blocks + 1, 4): bit position,
    first narrow and first wide exception, carry. `widths`: one per group of 32 values.
    """

    size: int
    words: NDArray[np.uint32]
    directory: NDArray[np.uint32]
    wide: NDArray[np.uint32]
    narrow: NDArray[np.uint16]
    widths: NDArray[np.uint8]


class PackedTile(NamedTuple):
    """A tile whose bytes have been checked: whatever they say, decoding stays inside its buffers.

    `runs`: the segments are ascending runs, not rows of a matrix. `ranks`: non-empty segments before each
    block of lengths, and all.
    """

    edges: int
    segments: int
    nonempty: int
    verbatim: bool
    runs: bool
    lengths: Stream
    starts: Stream
    gaps: Stream
    ranks: NDArray[np.uint32]

    def counts(self) -> PackedTile:
        """The same without its bytes."""
        nothing = np.empty(0, np.uint32)
        none = Stream(0, nothing, nothing.reshape(0, 4), nothing, nothing.astype("u2"), nothing.astype("u1"))
        return self._replace(lengths=none, starts=none, gaps=none, ranks=nothing)


def word_rows(bits: int) -> int:
    """Rows of 32 words of a stream of `bits` bits per lane: the row that holds bit number `bits` exists."""
    return bits // 32 + 1


def blocks_of(count: int) -> int:
    """Blocks of 1024 that hold `count` values."""
    return -(-count // BLOCK)


class Counts(NamedTuple):
    """Sizes of a packed stream: numbers of values, rows of words, and exceptions of both kinds."""

    values: int
    rows: int
    wide: int
    narrow: int


def _sections(streams: Sequence[Counts], ranks: int) -> Iterator[tuple[int, str, str, int]]:
    """Yield stream number (-1 for ranks), part, dtype and items of the sections in the order of the bytes.

    Larger elements come first, so everything is aligned without gaps.
    """
    for k, counts in enumerate(streams):
        yield k, "words", "<u4", GROUP * counts.rows
    for k, counts in enumerate(streams):
        yield k, "directory", "<u4", 4 * (blocks_of(counts.values) + 1)
    yield -1, "ranks", "<u4", ranks
    for k, counts in enumerate(streams):
        yield k, "wide", "<u4", counts.wide
    for k, counts in enumerate(streams):
        yield k, "narrow", "<u2", counts.narrow
    for k, counts in enumerate(streams):
        yield k, "widths", "u1", -(-counts.values // GROUP)


def _split(
    buf: NDArray[np.uint8], at: int, streams: Sequence[Counts], ranks: int
) -> tuple[list[Stream], NDArray[np.uint32]]:
    """Find streams and ranks behind `at` bytes of header by their sizes; DamagedError if they are wrong."""
    found: list[dict[str, Any]] = [{} for _ in range(len(streams) + 1)]
    for k, part, dtype, items in _sections(streams, ranks):
        size = items * np.dtype(dtype).itemsize
        if at + size > buf.size:
            raise DamagedError(f"A chunk of {buf.size} bytes ends inside its {part}.")
        found[k][part] = buf[at : at + size].view(dtype)
        at += size
    if at + -at % 4 != buf.size:
        raise DamagedError(f"A chunk has {buf.size} bytes where its header says {at + -at % 4}.")
    for parts in found[:-1]:
        parts["directory"] = parts["directory"].reshape(-1, 4)
    return [Stream(of.values, **parts) for of, parts in zip(streams, found, strict=False)], found[-1]["ranks"]


def _split_checked(
    buf: NDArray[np.uint8], at: int, counts: Sequence[Counts], ranks: int
) -> tuple[list[Stream], NDArray[np.uint32]]:
    streams, others = _split(buf, at, counts, ranks)
    for stream in streams:
        fault = validate_stream(*stream)
        if fault:
            raise DamagedError(f"A chunk contradicts itself: {FAULTS[fault]}.")
    return streams, others


def kind_of(buf: NDArray[np.uint8]) -> int:
    """KIND of a coded chunk, and its FLAGs; DamagedError if the bytes do not begin as a chunk does."""
    if buf.size < 8 or buf[:4].tobytes() != MAGIC:
        raise DamagedError(f"{buf.size} bytes that do not begin as a packed chunk does.")
    return int.from_bytes(buf[4:8].tobytes(), "little")


def sizes_of(buf: NDArray[np.uint8]) -> tuple[int, int]:
    """Edges and segments that a tile's header promises; DamagedError if the bytes end inside it."""
    if buf.size < 4 * TILE_HEADER:
        raise DamagedError(f"A chunk of {buf.size} bytes ends inside its header.")
    edges, segments = np.frombuffer(buf[8:16].tobytes(), "<u4").tolist()
    return edges, segments


def new_header(words: int, kind: int) -> NDArray[np.uint32]:
    """Begin a header of `words` words."""
    header = np.zeros(words, "<u4")
    header[0] = int.from_bytes(MAGIC, "little")
    header[1] = kind
    return header


def _aligned(buf: NDArray[np.uint8], header: int) -> NDArray[np.uint8]:
    if buf.size < 4 * header:
        raise DamagedError(f"A chunk of {buf.size} bytes ends inside its header.")
    view = (buf if buf.ctypes.data % 4 == 0 else buf.copy())[:]
    # One type of array for the compiled kernels, whoever owns the bytes.
    view.flags.writeable = False
    return view


def parse_tile(buf: NDArray[np.uint8]) -> PackedTile:
    """Find the parts of a tile in its bytes and check that decoding them cannot leave them.

    Sizes, widths, directory and exceptions are checked here; the sum of the lengths and the number of starts
    by `expand_segments`, which decodes them. Returns views into `buf`, or into a copy if it does not begin at
    a multiple of four. Raises DamagedError if the bytes are not those of a tile.
    """
    kind = kind_of(buf)
    if kind & ~(FLAG_RUNS | FLAG_VERBATIM) != KIND_TILE:
        raise DamagedError(f"A chunk has kind {kind:#x} where a tile belongs.")
    buf = _aligned(buf, TILE_HEADER)
    header = [int(x) for x in buf[: 4 * TILE_HEADER].view("<u4")]
    edges, segments, nonempty = header[2:5]
    verbatim = bool(kind & FLAG_VERBATIM)
    if any(header[11 if verbatim else 14 :]):
        raise DamagedError("A tile's header has numbers where zeros belong.")
    sizes = [edges, segments] if verbatim else [edges, nonempty, segments]
    counts = [Counts(size, *header[5 + 3 * k : 8 + 3 * k]) for k, size in enumerate(sizes)]
    streams, ranks = _split_checked(buf, 4 * TILE_HEADER, counts, blocks_of(segments) + 1)
    if verbatim:
        nothing = buf[:0].view("<u4")
        streams.insert(1, Stream(0, nothing, nothing.reshape(-1, 4), nothing, buf[:0].view("<u2"), buf[:0]))
    gaps, starts, lengths = streams
    runs = bool(kind & FLAG_RUNS)
    return PackedTile(edges, segments, nonempty, verbatim, runs, lengths, starts, gaps, ranks)


def parse_offsets(buf: NDArray[np.uint8]) -> tuple[int, Stream]:
    """First offset and steps of a chunk of offsets, checked as by `parse_tile`."""
    buf = _aligned(buf, OFFSETS_HEADER)
    header = buf[: 4 * OFFSETS_HEADER].view("<u4")
    count, rows, wide, narrow = (int(x) for x in header[2:6])
    (steps,), _ = _split_checked(buf, 4 * OFFSETS_HEADER, [Counts(count, rows, wide, narrow)], 0)
    return int.from_bytes(header[6:8].tobytes(), "little", signed=True), steps


class AllocatedTile(NamedTuple):
    """Bytes of a tile, and its parts in them, which are yet to be filled."""

    coded: NDArray[np.uint8]
    streams: list[Stream]
    ranks: NDArray[np.uint32]


def allocate_tile(
    counts: Sequence[Counts], nonempty: int, space: Callable[[int], NDArray[np.uint8]], *, runs: bool
) -> AllocatedTile:
    """Lay out a tile whose sizes are known, so that its streams are packed where they belong.

    `space`: gives memory for so many bytes, at an address that is a multiple of four.
    """
    columns, lengths = counts[0], counts[-1]
    flags = (FLAG_RUNS if runs else 0) | (FLAG_VERBATIM if len(counts) == 2 else 0)
    header = new_header(TILE_HEADER, KIND_TILE | flags)
    header[2:5] = columns.values, lengths.values, nonempty
    for k, of in enumerate(counts):
        header[5 + 3 * k : 8 + 3 * k] = of[1:]
    return AllocatedTile(*_allocate(header, counts, blocks_of(lengths.values) + 1, space))


def allocate_offsets(base: int, counts: Counts) -> tuple[NDArray[np.uint8], Stream]:
    """Lay out a chunk of offsets: its bytes, and in them the stream of the steps, yet to be filled."""
    header = new_header(OFFSETS_HEADER, KIND_OFFSETS)
    header[2:6] = counts
    header[6:8].view("<i8")[0] = base
    coded, (steps,), _ = _allocate(header, [counts], 0, lambda size: np.empty(size, np.uint8))
    return coded, steps


def _allocate(
    header: NDArray[np.uint32],
    counts: Sequence[Counts],
    ranks: int,
    space: Callable[[int], NDArray[np.uint8]],
) -> tuple[NDArray[np.uint8], list[Stream], NDArray[np.uint32]]:
    """Begin a chunk: its bytes, with nothing but the header and the last padding, and its parts in them."""
    used = sum(items * np.dtype(dtype).itemsize for _, _, dtype, items in _sections(counts, ranks))
    used += header.nbytes
    out = space(used + -used % 4)
    out[: header.nbytes] = header.view(np.uint8)
    out[used:] = 0
    return (out, *_split(out, header.nbytes, counts, ranks))


# What the numbers that validate_stream returns mean.
FAULTS = {
    1: "a group is wider than 32 bits",
    2: "the directory contradicts the widths",
    3: "the number of words contradicts the widths",
    4: "the directory contradicts the exceptions",
    5: "an exception lies behind the last value",
    6: "an exception has more than 32 bits",
}


@inner()
def _fault(entry, values, widths, first):
    at = entry & uint64(1023)
    if at >= values:
        return 5
    if (entry >> uint64(10)) << uint64(widths[first + (at >> uint64(5))]) >> uint64(32):
        return 6
    return 0


@entry()
def validate_stream(size, words, directory, wide, narrow, widths):
    """Return 0, or a key of FAULTS; the shapes agree with each other."""
    position = uint64(0)
    blocks = uint64(directory.shape[0] - 1)
    if directory[0, 1] != 0 or directory[0, 2] != 0:
        return 4
    if directory[blocks, 1] != narrow.size or directory[blocks, 2] != wide.size:
        return 4
    for b in range(blocks):
        if directory[b, 0] != position:
            return 2
        first = uint64(32) * b
        widest = uint8(0)
        for g in range(first, min(uint64(widths.size), first + uint64(32))):
            position += uint64(widths[g])
            widest = max(widest, widths[g])
        if widest > 32:
            return 1
        n_lo, n_hi = uint64(directory[b, 1]), uint64(directory[b + uint64(1), 1])
        w_lo, w_hi = uint64(directory[b, 2]), uint64(directory[b + uint64(1), 2])
        if n_hi < n_lo or n_hi > uint64(narrow.size) or w_hi < w_lo or w_hi > uint64(wide.size):
            return 4
        values = min(uint64(1024), uint64(size) - uint64(1024) * b)
        # Of a full block, exceptions lie inside; and six or 22 bits above a small width always have room.
        if values < uint64(1024) or widest > 26:
            for q in range(n_lo, n_hi):
                fault = _fault(uint64(narrow[q]), values, widths, first)
                if fault:
                    return fault
        if values < uint64(1024) or widest > 10:
            for q in range(w_lo, w_hi):
                fault = _fault(uint64(wide[q]), values, widths, first)
                if fault:
                    return fault
    if directory[blocks, 0] != position:
        return 2
    if words.size != uint64(32) * ((position >> uint64(5)) + uint64(1)):
        return 3
    return 0


STREAM_PARTS = 5
PLACES = 4 + 3 * STREAM_PARTS + 1
"""Numbers that `locate_tile` finds."""


@entry()
def _locate(buf, places):
    """Fill `places` as `locate_tile` says; whether the bytes are those of a sound tile."""
    header = buf[: 4 * TILE_HEADER].view(np.uint32)
    kind = header[1]
    if header[0] != _MAGIC_WORD or kind & uint32(0xFFFFFFFF ^ (FLAG_RUNS | FLAG_VERBATIM)) != KIND_TILE:
        return False
    verbatim = kind & uint32(FLAG_VERBATIM) != 0
    streams = 2 if verbatim else 3
    for k in range(5 + 3 * streams, TILE_HEADER):
        if header[k] != 0:
            return False
    edges, segments, nonempty = int64(header[2]), int64(header[3]), int64(header[4])
    places[:] = 0
    places[0], places[1], places[2], places[3] = edges, segments, nonempty, verbatim
    at = int64(4 * TILE_HEADER)
    size = int64(buf.size)
    # In the order of the bytes: gaps, starts, lengths; `places` has them the other way round.
    for part in range(STREAM_PARTS):
        if part == 2:
            places[PLACES - 1] = at
            at += 4 * ((segments + 1023) // 1024 + 1)
        for k in range(streams):
            own = 4 + STREAM_PARTS * (0 if k == streams - 1 else 2 - k)
            values = edges if k == 0 else segments if k == streams - 1 else nonempty
            places[own + part] = at
            counts = header[5 + 3 * k : 8 + 3 * k]
            if part == 0:
                at += 128 * int64(counts[0])
            elif part == 1:
                at += 16 * ((values + 1023) // 1024 + 1)
            elif part == 2:
                at += 4 * int64(counts[1])
            elif part == 3:
                at += 2 * int64(counts[2])
            else:
                at += (values + 31) // 32
            if at > size:
                return False
    if at + (-at & 3) != size:
        return False
    for k in range(streams):
        own = 4 + STREAM_PARTS * (0 if k == streams - 1 else 2 - k)
        values = edges if k == 0 else segments if k == streams - 1 else nonempty
        rows, wide, narrow = header[5 + 3 * k], header[6 + 3 * k], header[7 + 3 * k]
        words = buf[places[own] : places[own] + 128 * int64(rows)].view(np.uint32)
        blocks = (values + 1023) // 1024 + 1
        directory = buf[places[own + 1] : places[own + 1] + 16 * blocks].view(np.uint32).reshape(blocks, 4)
        wide_of = buf[places[own + 2] : places[own + 2] + 4 * int64(wide)].view(np.uint32)
        narrow_of = buf[places[own + 3] : places[own + 3] + 2 * int64(narrow)].view(np.uint16)
        widths = buf[places[own + 4] : places[own + 4] + (values + 31) // 32]
        if validate_stream(values, words, directory, wide_of, narrow_of, widths):
            return False
    return True


_MAGIC_WORD = int.from_bytes(MAGIC, "little")


def locate_tile(buf: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Check a tile as `parse_tile` does, and find where its parts are, as fast as its bytes can be read.

    `buf` begins at a multiple of four. Returns edges, segments, segments that are not empty, whether columns
    are verbatim; of the lengths, then of the starts and of the gaps, where words, directory, wide and narrow
    exceptions and widths begin; and where ranks begin. Raises DamagedError if the bytes are not those of a
    tile.
    """
    places = np.empty(PLACES, np.int64)
    if buf.size < 4 * TILE_HEADER or not _locate(buf, places):
        parse_tile(buf)  # says why
        raise DamagedError("A chunk is no tile.")
    return places
