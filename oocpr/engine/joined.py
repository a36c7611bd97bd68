"""Several stored tiles as one larger tile."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import DamagedError
from oocpr.plan.joining import most_bytes
from oocpr.store.format import REMEDY
from oocpr.store.packing import encode_tile
from oocpr.store.unpacking import decode_tile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.ranked import RankedStore


class JoinedStore:
    """A stored graph with fewer, larger tiles; a `RankedStore`.

    Parameters
    ----------
    store
        The graph as stored.
    tile_edges
        Most edges of a stored tile.
    cuts
        First stored tile of each joined one, and the number of tiles.

    Attributes
    ----------
    cuts
        The same.
    """

    def __init__(self, store: RankedStore, tile_edges: int, cuts: tuple[int, ...]) -> None:
        self._store = store
        self.cuts = cuts
        self.nodes = store.nodes
        self.tile_rows: NDArray[np.int64] = store.tile_rows[np.asarray(cuts)]
        self.encoded = JoinedTiles(store, tile_edges, cuts)
        assert store.weights is None, "only CUDA devices take joined tiles, and they take no weights"
        self.weights = None

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """See RankedStore."""
        return self._store.out_degree(lo, hi)

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """See RankedStore."""
        return self._store.out_weight(lo, hi)


class JoinedTiles:
    """Encoded tiles, each made of several when it is read; see `JoinedStore`."""

    def __init__(self, store: RankedStore, tile_edges: int, cuts: tuple[int, ...]) -> None:
        self._tiles = store.encoded
        self._rows = store.tile_rows
        self._cuts = cuts
        most = max(last - first for first, last in pairwise(cuts))
        rows = int(np.diff(self._rows[np.asarray(cuts)]).max()) + 1
        self.max_bytes = most_bytes(tile_edges * most, rows)

    def read_into(self, tile: int, out: NDArray[np.uint8]) -> int:
        """Read and check the stored tiles, and write them as one; returns its number of bytes.

        Raises
        ------
        DamagedError
            When bytes are not what was written.
        """
        first, last = self._cuts[tile], self._cuts[tile + 1]
        if last - first == 1:
            return self._tiles.read_into(first, out)
        begin = int(self._rows[first])
        lengths = np.zeros(int(self._rows[last]) - begin + 1, np.int64)
        buffer = np.empty(self._tiles.max_bytes, np.uint8)
        parts = []
        for stored in range(first, last):
            columns, part = decode_tile(buffer[: self._tiles.read_into(stored, buffer)])
            row = int(self._rows[stored]) - begin
            owned = int(self._rows[stored + 1]) - begin - row
            if len(part) != owned + 1:
                raise DamagedError(
                    f"tile {stored} has {len(part)} segments where {owned + 1} belong.", REMEDY
                )
            # The last number is of the row after those that the tile owns, which the next tile goes on with.
            lengths[row : row + len(part)] += part
            parts.append(columns)
        coded = encode_tile(np.concatenate(parts), lengths)
        out[: len(coded)] = np.frombuffer(coded, np.uint8)
        return len(coded)
