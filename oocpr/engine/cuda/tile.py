"""A tile in the memory of a device: its packed columns, and where its segments lie.

The columns stay packed. Of the rest, what every sweep needs is decoded once: a bit an edge and a word a block
that say where segments begin, their first columns, and a bit a row that says which are not empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cuda.device import to_device, upload
from oocpr.engine.tiles.source import split_tile
from oocpr.errors import DamagedError
from oocpr.store.codec.layout import BLOCK, GROUP, blocks_of, parse_tile
from oocpr.store.codec.mantissa_segments import parse_segments

if TYPE_CHECKING:
    from oocpr.engine.cuda.backend import DiagonalBlocks
    from oocpr.engine.cuda.baselines import Matrix, Product
    from oocpr.engine.cuda.device import Device
    from oocpr.store.codec.layout import PackedTile, Stream
    from oocpr.store.codec.mantissa_segments import Segments

TEAMS = 4
"""Blocks of a stream that a block of threads decodes at a time, a team of lanes each."""

assert BLOCK == GROUP * GROUP, "a team of lanes takes a block"

HUBS = 1 << 15
"""Nodes, from the first one on, whose out-edges are counted: about as many as shared memory has room for."""

DEVICE_FAULTS = {
    1: "its lengths contradict its header",
    2: "its starts contradict their directory",
    4: "its columns contradict their directory",
    8: "it has a column that is no node",
}
"""What the bits mean that kernels leave behind."""

StreamArrays = tuple[Any, Any, Any, Any, Any]
"""Words, directory, wide, narrow and widths of a packed stream, of the device."""


@dataclass(frozen=True)
class DeviceWeights:
    """Weights of a tile's edges as kernels take them."""

    parts: tuple[Any, ...]  # their four segments, uint16 of the device, shape (size,); None for zeros
    size: int  # how many there are; those of edges behind them are zero
    factor: float  # what they are multiplied by

    @property
    def heads(self) -> DeviceWeights:
        """Their first two segments, with 20 bits of the mantissa: as much as proposals need."""
        return DeviceWeights((*self.parts[:2], None, None), self.size, self.factor)


@dataclass(frozen=True)
class DeviceTile:
    """A tile as kernels take it; arrays of the device."""

    edges: int
    segments: int
    nonempty: int
    columns: StreamArrays
    begins: Any  # uint32: bit e says whether a segment begins at edge e; whole blocks
    ranks: Any  # uint32, shape (blocks + 1,): segments that begin before each block of 1024 edges
    # uint32, shape (nonempty,): first column of each segment that is not empty; None for verbatim columns
    starts: Any
    # filled, filled_before: uint32: bit s says whether segment s is not empty, and how many are not before
    # each 32 segments
    filled: Any
    filled_before: Any
    weights: DeviceWeights | None = None

    @property
    def blocks(self) -> int:
        """Blocks of 1024 edges."""
        return blocks_of(self.edges)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        arrays = (*self.columns, self.begins, self.ranks, self.filled, self.filled_before)
        some = (self.starts, *(() if self.weights is None else self.weights.parts))
        return sum(int(a.nbytes) for a in arrays) + sum(int(a.nbytes) for a in some if a is not None)


@dataclass
class CudaTile:
    """A tile on the device, and what a backend has made of it."""

    there: DeviceTile
    checked: bool  # whether its columns are known to be nodes
    # whether enough of them are among the first nodes for these to be kept near; known of checked tiles
    hubs: bool = False
    matrix: Matrix | None = None  # its edges decoded, for a kernel that takes them so
    laid: Product | None = None  # the same as such a kernel wants them, once it is known what is gathered
    diagonal_blocks: DiagonalBlocks | None = None  # once they are swept; of checked tiles


def upload_tile(device: Device, packed: PackedTile, faults: Any) -> DeviceTile:
    """Bring a checked tile to the device and decode its segments there.

    `faults`: uint32, shape (1,), of the device: receives what is wrong; see :func:`raise_faults`.
    """
    xp = device.xp
    groups = -(-packed.segments // GROUP)
    begins = xp.zeros(max(1, blocks_of(packed.edges)) * GROUP, np.uint32)
    ranks = xp.zeros(blocks_of(packed.edges) + 1, np.uint32)
    starts = None if packed.verbatim else xp.empty(packed.nonempty, np.uint32)
    filled, filled_before = xp.zeros(groups, np.uint32), xp.zeros(groups, np.uint32)
    lengths, ranks_of_lengths = upload_stream(device, packed.lengths), to_device(device, packed.ranks)
    packed_starts = None if packed.verbatim else upload_stream(device, packed.starts)
    tile = DeviceTile(
        packed.edges, packed.segments, packed.nonempty, upload_stream(device, packed.gaps), begins, ranks,
        starts, filled, filled_before,
    )  # fmt: skip
    decode_segments(device, tile, lengths, ranks_of_lengths, packed_starts, faults)
    return tile


def decode_segments(
    device: Device,
    tile: DeviceTile,
    lengths: StreamArrays,
    ranks: Any,
    starts: StreamArrays | None,
    faults: Any,
) -> None:
    """Fill a tile's arrays of segments, `begins` being zeros.

    `ranks`: of the device: how many segments that are not empty lie before each block of lengths.
    """
    kernels = device.load("decode.cu", TEAMS=TEAMS)
    if tile.segments:
        kernels.get_function("expand_lengths")(
            *teams(blocks_of(tile.segments)),
            (
                *lengths, ranks, np.uint32(tile.segments), np.uint32(tile.edges), np.uint32(tile.nonempty),
                tile.begins, tile.ranks, tile.filled, tile.filled_before, faults,
            ),
        )  # fmt: skip
    if starts is not None and tile.nonempty:
        kernels.get_function("expand_starts")(
            *teams(blocks_of(tile.nonempty)), (*starts, np.uint32(tile.nonempty), tile.starts, faults)
        )


def upload_weights(device: Device, segments: Segments, edges: int, factor: float) -> DeviceWeights:
    """Bring the weights of a tile of so many edges to the device."""
    check_weights(segments.size, edges)
    parts = tuple(to_device(device, part) if part.size else None for part in segments.parts)
    return DeviceWeights(parts, segments.size, factor)


def upload_stream(device: Device, stream: Stream) -> StreamArrays:
    """Bring a packed stream to the device; behind its widths stand zeros up to a whole block."""
    widths = device.xp.zeros(blocks_of(stream.size) * GROUP, np.uint8)
    if stream.widths.size:
        upload(widths[: stream.widths.size], stream.widths)
    words, directory, wide, narrow = (
        to_device(device, part) for part in (stream.words, stream.directory, stream.wide, stream.narrow)
    )
    return words, directory, wide, narrow, widths


def check_columns(device: Device, tile: DeviceTile, nodes: int, faults: Any, columns: Any = None) -> Any:
    """Check all columns of a tile, and decode them into `columns`, uint32 of the device, if that is given.

    Returns uint64, shape (1,): columns among the first HUBS nodes.
    """
    hub_edges = device.xp.zeros(1, np.uint64)
    if tile.edges:
        kernel = device.load("decode.cu", TEAMS=TEAMS).get_function("decode_columns")
        arguments = (*tile.columns, tile.begins, tile.ranks, tile.starts)
        counts = (np.uint32(tile.edges), np.uint32(nodes), np.uint32(HUBS))
        kernel(*teams(tile.blocks), (*arguments, *counts, columns, hub_edges, faults))
    return hub_edges


def raise_faults(found: int) -> None:
    """Raise DamagedError if a bit of DEVICE_FAULTS is set."""
    if found:
        what = ", ".join(text for bit, text in DEVICE_FAULTS.items() if found & bit)
        raise DamagedError(f"A tile contradicts itself: {what}.")


def teams(count: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block for `count` teams of 32 lanes.

    >>> teams(9)
    ((3,), (128,))
    """
    return (-(-count // TEAMS),), (TEAMS * GROUP,)


class Part(NamedTuple):
    """Where an array lies among the bytes of a tile."""

    offset: int
    items: int
    dtype: str


class StreamMap(NamedTuple):
    """Where the arrays of a packed stream lie; see :class:`oocpr.store.codec.layout.Stream`."""

    size: int
    words: Part
    directory: Part
    wide: Part
    narrow: Part
    widths: Part


class WeightsMap(NamedTuple):
    """Where the segments of a tile's weights lie, and how many weights there are."""

    size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class TileMap:
    """What is to be known of an encoded tile to use it on a device without its bytes at hand."""

    nbytes: int
    edges: int
    segments: int
    nonempty: int
    verbatim: bool
    lengths: StreamMap
    starts: StreamMap
    gaps: StreamMap
    ranks: Part  # non-empty segments before each block of lengths
    weights: WeightsMap | None = None


def map_tile(encoded: NDArray[np.uint8], *, weighted: bool = False) -> TileMap:
    """Check an encoded tile, which begins at a multiple of four bytes, and note where its parts are.

    `weighted`: whether weights are behind its columns; see
        :class:`oocpr.engine.tiles.source.WeightedTiles`.
    Raises DamagedError if the bytes are not those of a tile.

    >>> import numpy as np
    >>> from oocpr.store.codec.tiles import encode_tile
    >>> coded = encode_tile(np.array([0, 2, 5, 1], np.uint32), np.array([3, 0, 1]))
    >>> encoded = np.zeros(len(coded), np.uint8)
    >>> encoded[:] = np.frombuffer(coded, np.uint8)
    >>> found = map_tile(encoded)
    >>> found.edges, found.gaps.size, found.gaps.words.offset % 16
    (4, 4, 0)
    """
    columns, coded = split_tile(encoded) if weighted else (encoded, None)
    packed = parse_tile(columns)
    origin = encoded.ctypes.data

    def part(array: NDArray[Any]) -> Part:
        return Part(array.ctypes.data - origin if array.size else 0, int(array.size), array.dtype.str)

    def stream(of: Stream) -> StreamMap:
        return StreamMap(
            of.size, part(of.words), part(of.directory), part(of.wide), part(of.narrow), part(of.widths)
        )

    weights: WeightsMap | None = None
    if coded is not None:
        segments = parse_segments(coded)
        check_weights(segments.size, packed.edges)
        weights = WeightsMap(segments.size, tuple(map(part, segments.parts)))
    return TileMap(
        int(encoded.size), packed.edges, packed.segments, packed.nonempty, packed.verbatim,
        stream(packed.lengths), stream(packed.starts), stream(packed.gaps), part(packed.ranks), weights,
    )  # fmt: skip


def check_weights(size: int, edges: int) -> None:
    """Raise DamagedError if there are more weights than edges."""
    if size > edges:
        raise DamagedError(f"A chunk has {size} weights where {edges} belong.")
