"""Tiles encoded, written by several threads, and entered in their order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from oocpr.ingest.budget import ENTERED_BYTES_PER_ROW, require
from oocpr.ingest.sort.tile_cutter import Tile
from oocpr.store.codec.mantissa_segments import encode_segments
from oocpr.system import resident
from oocpr.units import format_count

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    import numpy as np
    from numpy.typing import NDArray

    from oocpr.ingest.sort.executor import SortEncodeService
    from oocpr.store.graph import GraphWriter


class _Written(NamedTuple):
    """A tile whose bytes are on the disk."""

    tile: Tile
    size: int
    lengths: NDArray[np.uint32]
    local_edges: int


class TileEncoder:
    """Has tiles encoded and gives them to a writer.

    Parameters
    ----------
    hands
        Encode.
    writer
        Takes the tiles.
    pool
        Calls both; None for the caller's own thread.
    most
        Most tiles in work.
    tile_edges
        Most edges of a tile.
    usual_rows
        Rows of a tile for which there is memory.
    memory
        Most bytes that the process may hold.
    first
        Number of the first tile.
    weighted
        Whether edges have weights.

    Attributes
    ----------
    local_edges
        Edges written so far whose column is among the owned rows of their tile.
    """

    def __init__(
        self,
        hands: SortEncodeService,
        writer: GraphWriter,
        pool: Executor | None,
        most: int,
        tile_edges: int,
        usual_rows: int,
        memory: int,
        first: int = 0,
        *,
        weighted: bool = False,
    ) -> None:
        self.local_edges = 0
        self._hands = hands
        self._writer = writer
        self._pool = pool
        self._most = most
        self._tile_edges = tile_edges
        self._usual_rows = usual_rows
        self._memory = memory
        self._number = first
        self._weighted = weighted
        self._waiting: deque[Future[_Written]] = deque()
        # Fresh memory costs more than much of what is done with it here.
        self._tiles: list[Tile] = []

    def add(self, tile: Tile) -> Tile | None:
        """Take the next tile.

        Returns
        -------
        A tile that nobody uses; None where nobody uses this one any more.
        """
        rows = tile.next_row - tile.first_row + 1
        if rows > self._usual_rows:
            self.finish()
            needed = resident() + (ENTERED_BYTES_PER_ROW + self._hands.needs.row_bytes) * rows
            require(needed, self._memory, f"A tile of {format_count(rows)} rows")
        while self._waiting and len(self._waiting) >= self._most:
            self._enter(self._waiting.popleft().result())
        number, self._number = self._number, self._number + 1
        if self._pool is None:
            self._enter(self._write(number, tile))
        else:
            self._waiting.append(self._pool.submit(self._write, number, tile))
        return self._tiles.pop() if self._tiles else Tile(self._tile_edges, weighted=self._weighted)

    def finish(self) -> None:
        """Enter what is in work."""
        while self._waiting:
            self._enter(self._waiting.popleft().result())

    def _write(self, number: int, tile: Tile) -> _Written:
        lengths = tile.lengths()
        coded = self._hands.encode(tile.columns, lengths)
        weights = tile.weights
        self._writer.put_tile(number, coded, None if weights is None else encode_segments(weights))
        return _Written(tile, coded.size, lengths, tile.local_edges())

    def _enter(self, written: _Written) -> None:
        self.local_edges += written.local_edges
        self._writer.enter_tile(written.size, written.tile.columns.size, written.lengths)
        self._tiles.append(written.tile)
