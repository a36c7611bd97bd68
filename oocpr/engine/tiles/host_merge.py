"""Stored tiles joined on the processor.

Each thread that joins has memory of its own, a room, which the next tile takes again: fresh memory costs as
much as joining. Columns are decoded where they are encoded from, and encoded where they are wanted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import DamagedError
from oocpr.store.codec.bitpacking import BufferPool
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tile_decoder import add_lengths, decode_columns, expand_segments
from oocpr.store.codec.tile_encoder import TileEncoder
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.tiles.stream import TileBytes


class HostJoins:
    """Makes one tile of several, on the processor; any number of threads may ask.

    There are as many rooms as threads that have joined at a time.

    Parameters
    ----------
    tiles
        Encoded tiles as stored.
    edges
        Of the graph.
    tile_edges
        Of each stored tile but the last.
    """

    def __init__(self, tiles: TileBytes, edges: int, tile_edges: int) -> None:
        self._tiles = tiles
        self._edges, self._tile_edges = edges, tile_edges
        self._rooms: list[_Room] = []

    def join(
        self, stored: range, rows: NDArray[np.int64], out: NDArray[np.uint8], *, direct: bool = False
    ) -> int:
        """Read and check stored tiles, and write them as one; returns its number of bytes.

        Parameters
        ----------
        stored
            Their numbers.
        rows
            First owned row of each, and of the next one.
        out
            Receives the bytes that :func:`oocpr.store.codec.tile_encoder.encode_tile` makes of their edges.
        direct
            Whether stored tiles are read past the system's page cache.

        Raises
        ------
        DamagedError
            When bytes are not what was written.
        """
        try:
            room = self._rooms.pop()
        except IndexError:
            room = _Room(self._tiles.max_bytes)
        try:
            return self._join(room, stored, rows, out, direct)
        finally:
            self._rooms.append(room)

    def close(self) -> None:
        """Free what joining takes, while no tile is joined; another tile takes it again."""
        self._rooms.clear()

    def _join(
        self, room: _Room, stored: range, rows: NDArray[np.int64], out: NDArray[np.uint8], direct: bool
    ) -> int:
        begin, first = stored.start * self._tile_edges, int(rows[0])
        columns = room.coder.columns(min(stored.stop * self._tile_edges, self._edges) - begin)
        lengths = room.coder.lengths(int(rows[-1]) - first + 1)
        lengths[:] = 0
        for tile, (low, high) in zip(stored, pairwise(rows.tolist()), strict=True):
            encoded = room.buffer[: self._tiles.read_into(tile, room.buffer, direct=direct)]
            at = tile * self._tile_edges - begin
            part = columns[at : at + self._tile_edges]
            # The last length is of the row after those that the tile owns, which the next tile goes on with.
            room.decode(tile, encoded, part, lengths[low - first : high - first + 1])
        return room.coder.encode(columns, lengths, out=out).size


class _Room:
    """What a thread joins in."""

    def __init__(self, max_bytes: int) -> None:
        self.buffer = aligned(max_bytes)
        self.coder = TileEncoder()
        self._space = BufferPool()

    def decode(
        self,
        number: int,
        encoded: NDArray[np.uint8],
        columns: NDArray[np.uint32],
        lengths: NDArray[np.uint32],
    ) -> None:
        """Decode a stored tile: its columns to their place, and lengths on top of what is there."""
        tile = parse_tile(encoded)
        check_segments(number, tile.segments, lengths.size)
        if tile.edges != columns.size:
            raise DamagedError(f"tile {number} has {tile.edges} edges where {columns.size} belong.")
        names = ("positions", "starts", "segments")
        positions, starts, segments = (
            self._space.array(name, tile.nonempty + 1, np.uint32) for name in names
        )
        expand_segments(tile, positions, starts, segments)
        add_lengths(tile, positions, segments, lengths)
        decode_columns(tile, positions, starts, columns)


def check_segments(tile: int, found: int, belong: int) -> None:
    """Refuse a tile with another number of segments than its rows, and the one after them.

    Raises
    ------
    DamagedError
        With the number of the tile.
    """
    if found != belong:
        raise DamagedError(f"tile {tile} has {found} segments where {belong} belong.")
