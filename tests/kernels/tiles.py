"""Tiles to try kernels with, groups of them on a device, and what a plain program makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from oocpr.engine.cuda.device import download, upload
from oocpr.engine.cuda.group import DeviceGroup, GroupArrays, TileGroup, WidthRoom, map_tiles, raise_faults
from oocpr.engine.cuda.staging import Room
from oocpr.plan.tile_groups import TILE_PADDING
from oocpr.store.codec.mantissa_segments import encode_segments
from oocpr.store.codec.tiles import encode_tile

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

Tile = tuple[np.ndarray, np.ndarray]
"""Columns and lengths of segments."""

BLOCK = 1024
"""Edges of a block, as the format says."""


@st.composite
def tiles(draw: st.DrawFn, nodes: int = 2**32) -> Tile:
    """Columns below `nodes`, and lengths: empty rows, short and long ones, gaps of all sizes."""
    longest = draw(st.sampled_from([1, 3, 40, 5000]))
    skew = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = []
    for _ in range(draw(st.sampled_from([0, 1, 4, 70]))):
        length = rng.integers(0, longest + 1) * (rng.random() < 0.8)
        rows.append(np.unique((rng.random(length) ** skew * nodes).astype(np.uint32)))
    columns = np.concatenate([*rows, np.empty(0, np.uint32)])
    return columns, np.array([row.size for row in rows], np.uint32)


@st.composite
def single_edges(draw: st.DrawFn, nodes: int = 2**32) -> Tile:
    """A tile of rows of one edge each, whose columns are stored as they are."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.sampled_from([600, 1024, 1500, 2048]))
    return (rng.random(count) * nodes).astype(np.uint32), np.ones(count, np.uint32)


def stored_tiles(nodes: int = 2**32) -> st.SearchStrategy[Tile]:
    """Draw what a store has: each tile has a segment at least, the one that the next tile goes on with."""

    def with_segment(tile: Tile) -> Tile:
        return (tile[0], tile[1]) if tile[1].size else (tile[0], np.zeros(1, np.uint32))

    return st.one_of(tiles(nodes), tiles(nodes), single_edges(nodes)).map(with_segment)


def groups(nodes: int = 2**32) -> st.SearchStrategy[list[Tile]]:
    """Draw up to five tiles that a device takes as one."""
    return st.lists(stored_tiles(nodes), min_size=1, max_size=5)


def cut_rows(columns: np.ndarray, lengths: np.ndarray, tile_edges: int) -> list[Tile]:
    """Tiles of so many edges of rows, as a store has them, which cuts rows at the borders of tiles."""
    ends = np.cumsum(lengths, dtype=np.int64)
    cuts = [*range(0, max(1, len(columns)), tile_edges), len(columns)]
    # A tile owns rows from that of its first edge on, and has a segment of the one behind its last.
    first_rows = [0, *(int(np.searchsorted(ends, cut, "right")) for cut in cuts[1:-1]), len(lengths)]
    found = []
    for number, (begin, end) in enumerate(pairwise(cuts)):
        rows = range(first_rows[number], first_rows[number + 1] + 1)
        bounds = [
            (max(begin, int(ends[row] - lengths[row])), min(end, int(ends[row])))
            for row in rows
            if row < len(lengths)
        ]
        sizes = [max(0, past - first) for first, past in bounds] + [0] * (len(rows) - len(bounds))
        found.append((columns[begin:end], np.array(sizes, np.uint32)))
    return found


def random_tile(rows: int, degree: float, nodes: int, *, skew: float = 1.0, seed: int = 0) -> Tile:
    """A larger tile; some rows are empty and a few are thousands of links long."""
    rng = np.random.default_rng(seed)
    lengths = rng.poisson(degree * rng.exponential(size=rows))
    lengths[rng.integers(0, rows, 2)] = [4000, 9000]
    lists = [np.unique((rng.random(n) ** skew * nodes).astype(np.uint32)) for n in lengths]
    return np.concatenate(lists), np.array([x.size for x in lists], np.uint32)


def encoded(columns: np.ndarray, lengths: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The bytes of a tile as a run reads them; `weights`: float64, of the first edges."""
    coded = np.frombuffer(encode_tile(columns, lengths), np.uint8)
    if weights is None:
        return coded
    # How many bytes columns have, and multiples of how many both begin at.
    frame = np.array([coded.size, 16], np.uint64).view(np.uint8)
    gap = np.zeros(-coded.size % 16, np.uint8)
    return np.concatenate([frame, coded, gap, encode_segments(weights)])


def map_tile(coded: np.ndarray, *, weighted: bool = False) -> np.ndarray:
    """What kernels know of a single tile; shape (1, words)."""
    return map_tiles(coded, np.zeros(1, np.int64), np.array([coded.size]), weighted=weighted)


def open_group(
    device: Device, coded: Sequence[np.ndarray], *, weighted: bool = False, factor: float = 1.0
) -> tuple[DeviceGroup, int]:
    """A group of encoded tiles on a device, opened as those that stay are; and what is wrong with it.

    Raises DamagedError if the host finds that the bytes are no tile.
    """
    room = Room(device, sum(tile.size + 2 * TILE_PADDING for tile in coded))
    entries, place = [], TILE_PADDING // 2
    with device:
        for tile in coded:
            there = device.pinned(tile.size)
            there[:] = tile
            entry = map_tile(there, weighted=weighted)
            entry[:, 0] = room.address + place
            device.upload_async(room.bytes[place : place + tile.size], there).synchronize()
            entries.append(entry)
            # Words begin 64 bytes behind the beginning of a tile, and at a multiple of 128.
            place += -(-tile.size // TILE_PADDING) * TILE_PADDING
        group = TileGroup.of(entries)
        found = DeviceGroup(group, GroupArrays.allocate(device, group.sizes), factor)
        # Its tiles stay as long as it does.
        found.made["bytes"] = room.bytes
        upload(found.arrays.table, group.entries.view(np.uint8))
        faults = device.xp.zeros(1, np.uint32)
        found.expand(device, WidthRoom(device, group.sizes), faults)
        return found, int(download(faults)[0])


def placed(device: Device, *of: Tile) -> DeviceGroup:
    """A group of tiles on a device, found sound."""
    group, faults = open_group(device, [encoded(*tile) for tile in of])
    raise_faults(faults)
    return group


def joined(of: Sequence[Tile]) -> Tile:
    """The tiles of a group behind each other, as if they were one: rows that are cut stay so."""
    return np.concatenate([columns for columns, _ in of]), np.concatenate([lengths for _, lengths in of])
