"""Several stored tiles as one larger tile."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import DamagedError
from oocpr.plan.tile_merge import max_merged_bytes
from oocpr.store.codec.bitpacking import BufferPool
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.mantissa_segments import encode_segments, join_segments, max_weight_bytes
from oocpr.store.codec.tiles import TileEncoder, add_lengths, decode_columns, expand_segments
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.engine.tiles.stream import TileBytes
    from oocpr.store.graph import GraphStore


class HostJoins:
    """Makes one tile of several, on the processor; any number of threads may ask.

    A thread has memory of its own for that, which the next tile takes again: fresh memory costs as much as
    joining. `tile_edges` are in each stored tile but the last of a graph with so many `edges`.
    """

    def __init__(self, tiles: TileBytes, edges: int, tile_edges: int) -> None:
        self._tiles = tiles
        self._edges, self._tile_edges = edges, tile_edges
        self._rooms: list[_Room] = []

    def join(
        self, stored: range, rows: NDArray[np.int64], out: NDArray[np.uint8], *, direct: bool = False
    ) -> int:
        """Read, check and encode stored tiles as one; returns its number of bytes.

        `rows` are the first owned row of each of them, and of the next one.
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
    """Raise DamagedError for a tile with another number of segments than its rows, and the one after them."""
    if found != belong:
        raise DamagedError(f"tile {tile} has {found} segments where {belong} belong.")


class MergedStore:
    """A stored graph with fewer, larger tiles; a `RankedStore`.

    A stored tile has at most `tile_edges`; `cuts` are the first stored tile of each joined one, and their
    number.
    """

    def __init__(self, store: GraphStore, tile_edges: int, cuts: tuple[int, ...]) -> None:
        self._store = store
        self.cuts = cuts
        self.path = store.path
        self.nodes, self.edges, self.dangling = store.nodes, store.edges, store.dangling
        self.tile_rows: NDArray[np.int64] = store.tile_rows[np.asarray(cuts)]
        self.encoded = MergedTiles(store, tile_edges, cuts)
        self.weights = (
            None if store.weights is None else MergedWeights(store.weights, store.edges, tile_edges, cuts)
        )

    @property
    def identity(self) -> str:
        """See RankedStore."""
        return self._store.identity

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """See RankedStore."""
        return self._store.out_degree(lo, hi)

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """See RankedStore."""
        return self._store.out_weight(lo, hi)

    def close(self) -> None:
        """Free what joining takes; see HostJoins."""
        self.encoded.close()


def closing_merges(store: RankedStore) -> AbstractContextManager[object]:
    """Free, at the end, what joining its tiles takes, if a store joins any."""
    return closing(store) if isinstance(store, MergedStore) else nullcontext()


def free_joins(store: RankedStore) -> None:
    """Free what joining its tiles takes, if a store joins any, while none is read."""
    if isinstance(store, MergedStore):
        store.close()


class MergedTiles:
    """Encoded tiles, each made of several when it is read; see `MergedStore`."""

    def __init__(self, store: GraphStore, tile_edges: int, cuts: tuple[int, ...]) -> None:
        self._tiles = store.encoded
        self._rows = store.tile_rows
        self._cuts = cuts
        self._joins = HostJoins(store.encoded, store.edges, tile_edges)
        self._left = self._all()
        rows = int(np.diff(self._rows[np.asarray(cuts)]).max()) + 1
        self.max_bytes = max_merged_bytes(_most_edges(store.edges, tile_edges, cuts), rows)

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        """Read and check the stored tiles, and write them as one; returns its number of bytes."""
        first, last = self._cuts[tile], self._cuts[tile + 1]
        if last - first == 1:
            size = self._tiles.read_into(first, out, direct=direct)
        else:
            rows = self._rows[first : last + 1]
            size = self._joins.join(range(first, last), rows, out, direct=direct)
        # Joined tiles stay somewhere, so as a rule none is made again.
        self._left.discard(tile)
        if not self._left:
            self._joins.close()
        return size

    def close(self) -> None:
        """Free what joining takes, while no tile is read; all may be read again."""
        self._joins.close()
        self._left = self._all()

    def _all(self) -> set[int]:
        return set(range(len(self._cuts) - 1))


class MergedWeights:
    """Weights of tiles, each made of those of several when they are read; any number of threads may read."""

    def __init__(self, weights: TileBytes, edges: int, tile_edges: int, cuts: tuple[int, ...]) -> None:
        self._weights = weights
        self._edges, self._tile_edges = edges, tile_edges
        self._cuts = cuts
        self.max_bytes = max_weight_bytes(_most_edges(edges, tile_edges, cuts))

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        """Read and check weights of stored tiles, and write them as one; returns their number of bytes."""
        first, last = self._cuts[tile], self._cuts[tile + 1]
        if last - first == 1:
            return self._weights.read_into(first, out, direct=direct)
        buffer = aligned(self._weights.max_bytes)
        values = np.empty(min(last * self._tile_edges, self._edges) - first * self._tile_edges)
        for stored in range(first, last):
            begin = (stored - first) * self._tile_edges
            size = self._weights.read_into(stored, buffer, direct=direct)
            join_segments(buffer[:size], values[begin : begin + self._tile_edges])
        return encode_segments(values, out).size


def _most_edges(edges: int, tile_edges: int, cuts: tuple[int, ...]) -> int:
    """Most edges of a joined tile."""
    return min(edges, tile_edges * max(last - first for first, last in pairwise(cuts)))
