"""A group: stored tiles that a device takes at once, their encoded bytes unchanged, wherever each lies.

The columns stay packed. Of the rest, what every product needs is expanded: what is to be known of each block
of edges, a bit per edge and a word per block that say where segments begin, their first columns, and a bit
per row that says which are not empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cuda.device import THREADS, grid
from oocpr.engine.tiles.source import split_tile
from oocpr.errors import DamagedError
from oocpr.plan.tile_groups import BLOCK_ENTRY_BYTES, TILE_ENTRY_BYTES, GroupSizes, tile_counts
from oocpr.store.codec.layout import BLOCK, GROUP, locate_tiles
from oocpr.store.codec.mantissa_segments import SEGMENTS, parse_segments

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

TEAMS = 4
"""Blocks of a stream that a block of threads decodes at a time, a team of lanes each."""

assert BLOCK == GROUP * GROUP, "a team of lanes takes a block"

WEIGHT_PIECE = 8
"""Weights that a thread decodes: PIECE of kernels/weights.cuh."""

HUBS = 1 << 15
"""Nodes, from the first one on, whose out-edges are counted: about as many as shared memory has room for."""

DEVICE_FAULTS = {
    1: "its lengths contradict its header",
    2: "its starts contradict their directory",
    4: "its columns contradict their directory",
    8: "it has a column that is no node",
}
"""What the bits mean that kernels leave behind."""

_STREAM = np.dtype([(part, "<u8") for part in ("words", "directory", "wide", "narrow", "widths")])

TILE = np.dtype(
    [
        ("base", "<u8"), ("lengths", _STREAM), ("starts", _STREAM), ("gaps", _STREAM), ("ranks", "<u8"),
        ("weights", "<u8", (SEGMENTS,)),
        *((name, "<u4") for name in ("edges", "segments", "nonempty", "weighed", "verbatim")),
        *((name, "<u4") for name in ("block", "length_block", "start_block", "rank", "word", "edge", "row")),
        *((name, "<u4") for name in ("place", "diagonal")),
    ]
)  # fmt: skip
"""What kernels know of a tile: ``TileEntry`` of kernels/group.cuh."""

assert TILE.itemsize == TILE_ENTRY_BYTES


_WORDS = TILE.itemsize // 8
COUNTS = slice(2 * 21, 2 * 21 + 5)
"""Where a tile's edges, segments, segments that are not empty, weights and kind are, in half words."""


def map_tiles(
    encoded: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64], *, weighted: bool
) -> NDArray[np.uint64]:
    """Check encoded tiles, which begin at multiples of four bytes; TILE as words, without places, a row each.

    `weighted`: whether weights are behind their columns; see `oocpr.engine.tiles.source.WeightedTiles`.
    Raises DamagedError if the bytes are not those of tiles.
    """
    origin = encoded.ctypes.data
    split = (
        [split_tile(encoded[at:][:size]) for at, size in zip(begins, sizes, strict=True)] if weighted else []
    )
    firsts = np.array([columns.ctypes.data - origin for columns, _ in split]) if weighted else begins
    places = locate_tiles(
        encoded, firsts, np.array([columns.size for columns, _ in split]) if weighted else sizes
    )
    entries = np.zeros((begins.size, _WORDS), np.uint64)
    entries[:, 1:17] = places[:, 4:]
    counts = entries.view(np.uint32)[:, COUNTS]
    counts[:, :3], counts[:, 4] = places[:, :3], places[:, 3]
    for number, (_, coded) in enumerate(split):
        found = parse_segments(coded)
        if found.size > counts[number, 0]:
            raise DamagedError(f"A chunk has {found.size} weights where {counts[number, 0]} belong.")
        counts[number, 3] = found.size
        entries[number, 1:17] += np.uint64(firsts[number] - begins[number])
        for k, part in enumerate(found.parts):
            if part.size:
                entries[number, 17 + k] = part.ctypes.data - origin - begins[number]
    return entries


def counts_of(entries: NDArray[Any]) -> NDArray[np.int64]:
    """What each tile of a group adds to `GroupSizes`; shape (tiles, 10)."""
    edges, segments, nonempty = (entries[name].astype(np.int64) for name in ("edges", "segments", "nonempty"))
    return tile_counts(edges, segments, nonempty, np.where(entries["verbatim"], 0, nonempty))


_BEFORE = {
    "edge": 1, "rank": 2, "row": 3, "block": 4, "length_block": 5, "start_block": 6, "word": 7, "place": 8,
    "diagonal": 9,
}  # fmt: skip
"""Columns of `counts_of` that entries have of all tiles before."""


@dataclass(frozen=True)
class TileGroup:
    """Stored tiles that follow each other, as one."""

    entries: NDArray[Any]  # TILE, shape (tiles,)
    sizes: GroupSizes

    @classmethod
    def of(cls, tiles: Sequence[NDArray[np.uint64]]) -> TileGroup:
        """Put tiles of `map_tiles` together."""
        entries = np.concatenate(tiles).view(TILE).ravel()
        counts = counts_of(entries)
        before = counts.cumsum(axis=0) - counts
        for name, column in _BEFORE.items():
            entries[name] = before[:, column]
        return cls(entries, GroupSizes(*counts.sum(axis=0).tolist()))


@dataclass(frozen=True)
class GroupArrays:
    """What is expanded of a group, or room for that; arrays of the device."""

    table: Any  # uint8: TILE, one per tile
    blocks: Any  # uint8: ``BlockEntry`` of kernels/group.cuh, one per block of edges
    widths: Any  # uint8: 32 per block of edges
    begins: Any  # uint32: bit e says whether a segment begins at edge e; whole blocks
    ranks: Any  # uint32, shape (blocks + 1,): segments that begin before each block of edges
    starts: Any  # uint32, shape (nonempty,): first column of each segment that is not empty
    # filled, filled_before: uint32: bit s says whether segment s of a tile is not empty, and how many of the
    # group are not before each 32 segments
    filled: Any
    filled_before: Any

    @classmethod
    def allocate(cls, device: Device, sizes: GroupSizes) -> GroupArrays:
        """Room for a group of such sizes."""
        xp, blocks, words = device.xp, max(1, sizes.blocks), max(1, sizes.words)
        return cls(
            xp.empty(max(1, sizes.tiles) * TILE.itemsize, np.uint8),
            xp.empty(blocks * BLOCK_ENTRY_BYTES, np.uint8),
            xp.empty(blocks * GROUP, np.uint8),
            # Zeros, for a damaged tile may leave them as they are and is found only once it has been swept.
            xp.zeros(blocks * GROUP, np.uint32),
            xp.zeros(sizes.blocks + 1, np.uint32),
            xp.zeros(max(1, sizes.nonempty), np.uint32),
            xp.zeros(words, np.uint32),
            xp.zeros(words, np.uint32),
        )

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(int(getattr(self, name).nbytes) for name in self.__dataclass_fields__)


class WidthRoom:
    """Where the widths of lengths and of starts lie while a group is expanded."""

    def __init__(self, device: Device, sizes: GroupSizes) -> None:
        self.lengths = device.xp.empty(max(1, sizes.length_blocks) * GROUP, np.uint8)
        self.starts = device.xp.empty(max(1, sizes.start_blocks) * GROUP, np.uint8)


@dataclass
class DeviceGroup:
    """A group whose bytes are on the device, and what a backend has made of it."""

    tiles: TileGroup
    arrays: GroupArrays
    factor: float = 1.0  # what weights are multiplied by
    # whether its columns are checked: kernels that come later find faults if some are no nodes
    checked: bool = False
    # uint32, shape (blocks * BLOCK,): columns decoded for the balanced product, if they stay; four of each
    # lane side by side
    fours: Any = None
    # whether enough of them are among the first nodes for these to be kept near; known once a checked group
    # has been swept
    hubs: bool = False
    # whether it is there until the next group of its stream has been computed
    overlaps: bool = False
    made: dict[str, Any] = field(default_factory=dict)  # by the backend, while the group stays

    @property
    def sizes(self) -> GroupSizes:
        """What it counts."""
        return self.tiles.sizes

    def expand(self, device: Device, widths: WidthRoom, faults: Any) -> None:
        """Fill the arrays, `table` being there, behind what was launched.

        `faults`: uint32, shape (1,), of the device: receives what is wrong; see `raise_faults`.
        """
        sizes, arrays = self.sizes, self.arrays
        kernels = device.load("decode.cu", TEAMS=TEAMS)
        tiles = (arrays.table, np.uint32(sizes.tiles))
        counts = sizes.blocks, sizes.length_blocks, sizes.start_blocks
        if any(counts):
            kernels.get_function("open_blocks")(
                grid(max(counts) * GROUP),
                (THREADS,),
                (
                    *tiles, *map(np.uint32, counts), arrays.blocks, arrays.widths, widths.lengths,
                    widths.starts, arrays.begins,
                ),
            )  # fmt: skip
        if sizes.length_blocks:
            kernels.get_function("expand_lengths")(
                *teams(sizes.length_blocks),
                (
                    *tiles, widths.lengths, np.uint32(sizes.length_blocks), arrays.begins, arrays.ranks,
                    arrays.filled, arrays.filled_before, faults,
                ),
            )  # fmt: skip
        if sizes.start_blocks:
            kernels.get_function("expand_starts")(
                *teams(sizes.start_blocks),
                (*tiles, widths.starts, np.uint32(sizes.start_blocks), arrays.starts, faults),
            )

    def check_columns(self, device: Device, nodes: int, faults: Any) -> Any:
        """Check all columns, and decode them if there is room for them; returns those among the first HUBS.

        Returns uint64, shape (1,).
        """
        hub_edges = device.xp.zeros(1, np.uint64)
        self.decode_columns(device, nodes, faults, fours=self.fours, hub_edges=hub_edges)
        return hub_edges

    def decode_columns(
        self,
        device: Device,
        nodes: int,
        faults: Any,
        columns: Any = None,
        *,
        window: tuple[int, int] | None = None,
        fours: Any = None,
        hub_edges: Any = None,
    ) -> None:
        """Check all columns, and decode them into `columns`, uint32 of the device, if that is given.

        `window`: first node from which columns are counted, and the one past the last; columns outside become
            the number of its nodes. None for all nodes.
        `fours`: receives them as the balanced product takes them; see the attribute.
        """
        first, past = window or (0, nodes)
        if self.sizes.blocks:
            device.load("decode.cu", TEAMS=TEAMS).get_function("decode_columns")(
                *teams(self.sizes.blocks),
                (
                    *self.packed, np.uint32(self.sizes.blocks), np.uint32(nodes), np.uint32(HUBS),
                    np.uint64(first | (past - first) << 32), columns, fours, hub_edges,
                    faults,
                ),
            )  # fmt: skip

    def decode_weights(self, device: Device, weights: Any) -> None:
        """Decode the weights of all edges into float64 of the device."""
        arrays, blocks = self.arrays, self.sizes.blocks
        if blocks:
            device.load("decode.cu", TEAMS=TEAMS).get_function("decode_weights")(
                grid(blocks * (BLOCK // WEIGHT_PIECE)),
                (THREADS,),
                (arrays.table, arrays.blocks, np.uint32(blocks), np.float64(self.factor), weights),
            )

    def list_begins(self, device: Device, faults: Any, begins: Any) -> None:
        """List the first edge of each segment that is not empty, in uint32 of the device, if all is sound."""
        arrays, blocks = self.arrays, self.sizes.blocks
        if blocks:
            device.load("decode.cu", TEAMS=TEAMS).get_function("list_begins")(
                *teams(blocks),
                (arrays.table, arrays.blocks, arrays.begins, arrays.ranks, np.uint32(blocks), faults, begins),
            )

    @property
    def packed(self) -> tuple[Any, ...]:
        """What decoding columns takes: ``Group`` of kernels/group.cuh."""
        arrays = self.arrays
        return arrays.table, arrays.blocks, arrays.widths, arrays.begins, arrays.ranks, arrays.starts

    @property
    def table(self) -> tuple[Any, np.uint32]:
        """The tiles, as kernels take them."""
        return self.arrays.table, np.uint32(self.sizes.tiles)


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
