"""Where the parts of a coded chunk are in its bytes (docs/reference/format.md): laid out, found, checked."""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
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
_KIND, _SIZES = Struct("<4sI"), Struct("<2I")


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


def kind_of(buf: NDArray[np.uint8]) -> int:
    """KIND of a coded chunk, and its FLAGs; DamagedError if the bytes do not begin as a chunk does."""
    magic, kind = _KIND.unpack_from(buf.data) if buf.size >= _KIND.size else (b"", 0)
    if magic != MAGIC:
        raise DamagedError(f"{buf.size} bytes that do not begin as a packed chunk does.")
    return int(kind)


def sizes_of(buf: NDArray[np.uint8]) -> tuple[int, int]:
    """Edges and segments that a tile's header promises; DamagedError if the bytes end inside it."""
    if buf.size < 4 * TILE_HEADER:
        raise DamagedError(f"A chunk of {buf.size} bytes ends inside its header.")
    edges, segments = _SIZES.unpack_from(buf.data, _KIND.size)
    return edges, segments


def new_header(words: int, kind: int) -> NDArray[np.uint32]:
    """Begin a header of `words` words."""
    header = np.zeros(words, "<u4")
    header[0] = int.from_bytes(MAGIC, "little")
    header[1] = kind
    return header


def _aligned(buf: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return buf if buf.ctypes.data % 4 == 0 else buf.copy()


def _read_only(buf: NDArray[np.uint8]) -> NDArray[np.uint8]:
    view = buf[:]
    # One type of array for the compiled kernels, whoever owns the bytes.
    view.flags.writeable = False
    return view


def parse_tile(buf: NDArray[np.uint8]) -> PackedTile:
    """Find the parts of a tile in its bytes and check that decoding them cannot leave them.

    Sizes, widths, directory and exceptions are checked here; the sum of the lengths and the number of starts
    by `expand_segments`, which decodes them. Returns views into `buf`, or into a copy if it does not begin at
    a multiple of four. Raises DamagedError if the bytes are not those of a tile.
    """
    buf = _aligned(buf)
    # Numba takes microseconds to know an array that is read-only.
    places = locate_tiles(buf, np.zeros(1, np.int64), np.array([buf.size]))[0].tolist()
    buf = _read_only(buf)
    edges, segments, nonempty, verbatim = places[:4]
    header = buf[: 4 * TILE_HEADER].view("<u4").tolist()

    def stream(number: int, behind: int, size: int) -> Stream:
        at, (rows, wide, narrow) = places[4 + STREAM_PARTS * number :], header[behind : behind + 3]
        return Stream(
            size,
            buf[at[0] : at[0] + 4 * GROUP * rows].view("<u4"),
            buf[at[1] : at[1] + 16 * (blocks_of(size) + 1)].view("<u4").reshape(-1, 4),
            buf[at[2] : at[2] + 4 * wide].view("<u4"),
            buf[at[3] : at[3] + 2 * narrow].view("<u2"),
            buf[at[4] : at[4] + -(-size // GROUP)],
        )

    nothing = buf[:0].view("<u4")
    starts = Stream(0, nothing, nothing.reshape(-1, 4), nothing, buf[:0].view("<u2"), buf[:0])
    return PackedTile(
        edges,
        segments,
        nonempty,
        bool(verbatim),
        bool(kind_of(buf) & FLAG_RUNS),
        lengths=stream(0, 8 if verbatim else 11, segments),
        starts=starts if verbatim else stream(1, 8, nonempty),
        gaps=stream(2, 5, edges),
        ranks=buf[places[-1] : places[-1] + 4 * (blocks_of(segments) + 1)].view("<u4"),
    )


def parse_offsets(buf: NDArray[np.uint8]) -> tuple[int, Stream]:
    """First offset and steps of a chunk of offsets, checked as by `parse_tile`."""
    if buf.size < 4 * OFFSETS_HEADER:
        raise DamagedError(f"A chunk of {buf.size} bytes ends inside its header.")
    buf = _read_only(_aligned(buf))
    header = buf[: 4 * OFFSETS_HEADER].view("<u4")
    count, rows, wide, narrow = (int(x) for x in header[2:6])
    (steps,), _ = _split(buf, 4 * OFFSETS_HEADER, [Counts(count, rows, wide, narrow)], 0)
    fault = validate_stream(*steps)
    if fault:
        raise DamagedError(f"A chunk contradicts itself: {FAULTS[fault]}.")
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


FAULTS = {
    1: "a group is wider than 32 bits",
    2: "the directory contradicts the widths",
    3: "the number of words contradicts the widths",
    4: "the directory contradicts the exceptions",
    5: "an exception lies behind the last value",
    6: "an exception has more than 32 bits",
}
"""What the numbers that `validate_stream` returns mean."""


@inner()
def _fault(entry, values, widths, first):
    at = entry & uint64(1023)
    if at >= values:
        return 5
    if (entry >> uint64(10)) << uint64(widths[first + (at >> uint64(5))]) >> uint64(32):
        return 6
    return 0


@entry(shared=True)
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
"""Numbers that `locate_tiles` finds of each tile."""


_PARTS = ("words", "directory", "wide", "narrow", "widths", "ranks")
_ENDS, _OTHER_SIZE, _NO_ZEROS, _NO_TILE = 16, 32, 33, 34
"""What `_locate` returns beside keys of FAULTS: the bytes end inside a part, which is added; have another
size than the header says, which is then the first of `places`; the header has numbers where zeros belong; or
is none of a tile.
"""
_MAGIC_WORD = int.from_bytes(MAGIC, "little")


@inner()
def _locate(buf, places):
    """Fill `places` as `locate_tiles` says; returns 0, or what is wrong."""
    if buf.size < 4 * TILE_HEADER:
        return _NO_TILE
    header = buf[: 4 * TILE_HEADER].view(np.uint32)
    kind = header[1]
    if header[0] != _MAGIC_WORD or kind & uint32(0xFFFFFFFF ^ (FLAG_RUNS | FLAG_VERBATIM)) != KIND_TILE:
        return _NO_TILE
    verbatim = kind & uint32(FLAG_VERBATIM) != 0
    streams = 2 if verbatim else 3
    for k in range(5 + 3 * streams, TILE_HEADER):
        if header[k] != 0:
            return _NO_ZEROS
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
            if at > size:
                return _ENDS + STREAM_PARTS
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
                return _ENDS + part
    at += -at & 3
    if at != size:
        places[0] = at
        return _OTHER_SIZE
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
        fault = validate_stream(values, words, directory, wide_of, narrow_of, widths)
        if fault:
            return fault
    return 0


@entry()
def _locate_all(buf, begins, sizes, places):
    """Locate tiles up to the first with which something is wrong; returns how many, and what it is."""
    for k in range(sizes.size):
        fault = _locate(buf[begins[k] : begins[k] + sizes[k]], places[k])
        if fault:
            return k, fault
    return sizes.size, 0


def locate_tiles(
    buf: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Find where the parts of tiles are, and check them as `parse_tile` says; shape (tiles, PLACES).

    Tiles begin at multiples of four. Returns of each edges, segments, segments that are not empty, whether
    columns are verbatim; of the lengths, then of the starts and of the gaps, where words, directory, wide and
    narrow exceptions and widths begin in the tile; and where ranks begin. Raises DamagedError if the bytes
    are not those of tiles.
    """
    places = np.empty((sizes.size, PLACES), np.int64)
    wrong, fault = _locate_all(buf, begins, sizes, places)
    if fault:
        raise _damage(buf[begins[wrong] : begins[wrong] + sizes[wrong]], fault, int(places[wrong, 0]))
    return places


def _damage(buf: NDArray[np.uint8], fault: int, size: int) -> DamagedError:
    """Make the error for what `_locate` has found; `size` is what the header says."""
    if fault in FAULTS:
        return DamagedError(f"A chunk contradicts itself: {FAULTS[fault]}.")
    if fault == _NO_ZEROS:
        return DamagedError("A tile's header has numbers where zeros belong.")
    if fault == _OTHER_SIZE:
        return DamagedError(f"A chunk has {buf.size} bytes where its header says {size}.")
    if fault < _OTHER_SIZE:
        return DamagedError(f"A chunk of {buf.size} bytes ends inside its {_PARTS[fault - _ENDS]}.")
    kind = kind_of(buf)
    if kind & ~(FLAG_RUNS | FLAG_VERBATIM) != KIND_TILE:
        return DamagedError(f"A chunk has kind {kind:#x} where a tile belongs.")
    return DamagedError(f"A chunk of {buf.size} bytes ends inside its header.")
