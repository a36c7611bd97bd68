"""What a run needs of a stored graph, whatever its tiles are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from oocpr.store.direct_io import PAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.tiles.stream import TileBytes


class RankedStore(Protocol):
    """What a run needs of a stored graph."""

    @property
    def identity(self) -> str:
        """What identifies the graph."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def edges(self) -> int:
        """Number of edges."""

    @property
    def dangling(self) -> int:
        """Number of nodes that nothing leaves, as the store says."""

    @property
    def tile_rows(self) -> NDArray[np.int64]:
        """First owned row of each tile, and the number of nodes."""

    @property
    def encoded(self) -> TileBytes:
        """Encoded tiles."""

    @property
    def weights(self) -> TileBytes | None:
        """Encoded weights of the tiles; None if the graph is not weighted."""

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """Out-degrees of the nodes lo .. hi - 1."""

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """Weights that leave the nodes lo .. hi - 1."""


_FRAME = 16
"""Bytes before a tile with weights: how many those of the columns are, and of what both begin at a
multiple."""


def tiles_of(store: RankedStore) -> TileBytes:
    """Where a run reads the tiles of a graph."""
    return store.encoded if store.weights is None else WeightedTiles(store.encoded, store.weights)


class WeightedTiles:
    """Encoded tiles with their weights behind them; a `TileBytes`."""

    def __init__(self, columns: TileBytes, weights: TileBytes) -> None:
        self._columns = columns
        self._weights = weights
        self.max_bytes = _behind(columns.max_bytes, PAGE) + weights.max_bytes

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        """Read and check both; returns their number of bytes with the header."""
        step = PAGE if direct else _FRAME
        size = self._columns.read_into(tile, out[step:], direct=direct)
        out[:_FRAME].view(np.uint64)[:] = size, step
        begin = _behind(size, step)
        return begin + self._weights.read_into(tile, out[begin:], direct=direct)


def split_tile(encoded: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Part the bytes of a tile with weights into those of its columns and of its weights."""
    size, step = encoded[:_FRAME].view(np.uint64).tolist()
    return encoded[step : step + size], encoded[_behind(size, step) :]


def _behind(size: int, step: int) -> int:
    """Where weights begin behind so many bytes of columns."""
    return step + -(-size // step) * step
