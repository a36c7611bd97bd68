"""A tile in the memory of a device: its packed columns, and where its segments lie.

The columns stay packed. Of the rest, what every sweep needs is decoded once: a bit an edge and a word a block
that say where segments begin, their first columns, and a bit a row that says which are not empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.device import placed, send
from oocpr.engine.cuda.encoded_tile import check_weights
from oocpr.errors import DamagedError
from oocpr.store.codec.layout import BLOCK, GROUP, blocks_of
from oocpr.store.format import REMEDY

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.encoded_tile import TileMap
    from oocpr.store.codec.layout import PackedTile, Stream
    from oocpr.store.codec.mantissa_segments import Segments

TEAMS = 4
"""Blocks of a stream that a block of threads decodes at a time."""

HUBS = 1 << 15
"""Nodes, from the first one on, whose out-links are counted: about as many as shared memory has room for."""

FAULTS = {
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
    """Weights of a tile's links as kernels take them.

    Attributes
    ----------
    parts
        Their four segments, uint16 of the device, shape (size,); None for zeros.
    size
        How many there are; those of links behind them are zero.
    factor
        What they are multiplied by.
    """

    parts: tuple[Any, ...]
    size: int
    factor: float

    @property
    def heads(self) -> DeviceWeights:
        """Their first two segments, with 20 bits of the mantissa: as much as proposals need."""
        return DeviceWeights((*self.parts[:2], None, None), self.size, self.factor)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the product takes of them."""
        return *self.parts, np.uint32(self.size), np.float64(self.factor)


@dataclass(frozen=True)
class DeviceTile:
    """A tile as kernels take it; arrays of the device.

    Attributes
    ----------
    edges, segments, nonempty
        As in PackedTile.
    columns
        words, directory, wide, narrow and widths of the packed columns.
    begins
        uint32: bit e says whether a segment begins at edge e; whole blocks.
    ranks
        uint32, shape (blocks + 1,): segments that begin before each block of 1024 edges.
    starts
        uint32, shape (nonempty,): first column of each segment that is not empty; None for verbatim columns.
    filled, filled_before
        uint32: bit s says whether segment s is not empty, and how many are not before each 32 segments.
    weights
        Of its links; None where they have none.
    """

    edges: int
    segments: int
    nonempty: int
    columns: StreamArrays
    begins: Any
    ranks: Any
    starts: Any
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


def place_tile(device: Device, packed: PackedTile, faults: Any) -> DeviceTile:
    """Bring a checked tile to the device and expand its segments there.

    Parameters
    ----------
    device
        Where to.
    packed
        As :func:`oocpr.store.codec.layout.parse_tile` returned it.
    faults
        uint32, shape (1,), of the device: receives what is wrong; look at it with :func:`raise_faults`.

    Returns
    -------
    DeviceTile
    """
    xp = device.xp
    groups = -(-packed.segments // GROUP)
    segments = Expanded(
        begins=xp.zeros(max(1, blocks_of(packed.edges)) * GROUP, np.uint32),
        ranks=xp.zeros(blocks_of(packed.edges) + 1, np.uint32),
        starts=None if packed.verbatim else xp.empty(packed.nonempty, np.uint32),
        filled=xp.zeros(groups, np.uint32),
        filled_before=xp.zeros(groups, np.uint32),
    )
    lengths, ranks = place_stream(device, packed.lengths), placed(device, packed.ranks)
    starts = place_stream(device, packed.starts) if segments.starts is not None else None
    expand(device, packed, lengths, ranks, starts, segments, faults)
    return device_tile(packed, place_stream(device, packed.gaps), segments)


@dataclass(frozen=True)
class Expanded:
    """Where the segments of a tile lie, decoded; arrays as in DeviceTile."""

    begins: Any
    ranks: Any
    starts: Any
    filled: Any
    filled_before: Any


def expand(
    device: Device,
    tile: PackedTile | TileMap,
    lengths: StreamArrays,
    ranks: Any,
    starts: StreamArrays | None,
    segments: Expanded,
    faults: Any,
) -> None:
    """Decode where the segments of a tile lie.

    Parameters
    ----------
    device
        Where.
    tile
        Its numbers of edges and segments.
    lengths, ranks, starts
        Of the device: the packed lengths and first columns, and segments before each block of lengths.
    segments
        Receives what is decoded; its `begins` are zeros.
    faults
        As for `place_tile`.
    """
    kernels = device.load("decode.cu", TEAMS=TEAMS)
    if tile.segments:
        kernels.get_function("expand_lengths")(
            *teams(blocks_of(tile.segments)),
            (
                *lengths, ranks, np.uint32(tile.segments), np.uint32(tile.edges), np.uint32(tile.nonempty),
                segments.begins, segments.ranks, segments.filled, segments.filled_before, faults,
            ),
        )  # fmt: skip
    if starts is not None and tile.nonempty:
        kernels.get_function("expand_starts")(
            *teams(blocks_of(tile.nonempty)), (*starts, np.uint32(tile.nonempty), segments.starts, faults)
        )


def device_tile(
    tile: PackedTile | TileMap,
    columns: StreamArrays,
    segments: Expanded,
    weights: DeviceWeights | None = None,
) -> DeviceTile:
    """Put a tile together of its columns, its expanded segments and its weights."""
    starts = None if tile.verbatim else segments.starts
    return DeviceTile(
        tile.edges, tile.segments, tile.nonempty, columns, segments.begins, segments.ranks, starts,
        segments.filled, segments.filled_before, weights,
    )  # fmt: skip


def place_weights(device: Device, segments: Segments, edges: int, factor: float) -> DeviceWeights:
    """Bring the weights of a tile of so many links to the device.

    Raises
    ------
    DamagedError
        Where there are more weights than links.
    """
    check_weights(segments.size, edges)
    parts = tuple(placed(device, part) if part.size else None for part in segments.parts)
    return DeviceWeights(parts, segments.size, factor)


def place_stream(device: Device, stream: Stream) -> StreamArrays:
    """Bring a packed stream to the device; behind its widths stand zeros up to a whole block."""
    xp = device.xp
    widths = xp.zeros(blocks_of(stream.size) * GROUP, np.uint8)
    if stream.widths.size:
        send(widths[: stream.widths.size], stream.widths)
    words, directory, wide, narrow = (
        placed(device, part) for part in (stream.words, stream.directory, stream.wide, stream.narrow)
    )
    return words, directory, wide, narrow, widths


def check_columns(device: Device, tile: DeviceTile, nodes: int, faults: Any, columns: Any = None) -> Any:
    """Decode all columns of a tile and check them.

    Parameters
    ----------
    device, tile
        The tile, and where it is.
    nodes
        Number of nodes.
    faults
        As for `place_tile`.
    columns
        uint32, of the device: receives the columns; None to have them checked only.

    Returns
    -------
    array of the device
        uint64, shape (1,): columns among the first HUBS nodes.
    """
    hub_edges = device.xp.zeros(1, np.uint64)
    if tile.edges:
        kernel = device.load("decode.cu", TEAMS=TEAMS).get_function("decode_columns")
        arguments = (*tile.columns, tile.begins, tile.ranks, tile.starts)
        counts = (np.uint32(tile.edges), np.uint32(nodes), np.uint32(HUBS))
        kernel(*teams(tile.blocks), (*arguments, *counts, columns, hub_edges, faults))
    return hub_edges


def raise_faults(faults: Any) -> None:
    """Wait for the device, and say what it found wrong.

    Raises
    ------
    DamagedError
        If something is.
    """
    raise_found(int(faults[0]))


def raise_found(found: int) -> None:
    """Say what is wrong, in bits of FAULTS.

    Raises
    ------
    DamagedError
        If something is.
    """
    if found:
        what = ", ".join(text for bit, text in FAULTS.items() if found & bit)
        raise DamagedError(f"A tile contradicts itself: {what}.", REMEDY)


def teams(count: int) -> tuple[tuple[int], tuple[int]]:
    """Grid and block for `count` teams of 32 lanes.

    Examples
    --------
    >>> teams(9)
    ((3,), (128,))
    """
    return (-(-count // TEAMS),), (TEAMS * GROUP,)


assert BLOCK == GROUP * GROUP, "a team of lanes takes a block"
