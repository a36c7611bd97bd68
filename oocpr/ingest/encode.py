"""Tiles cut and encoded by several threads, and written in their order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.budget import WRITER_BYTES_PER_ROW, require, resident
from oocpr.ingest.tiles import cut_tile
from oocpr.store.packing import encode_tile
from oocpr.units import format_count

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from oocpr.store.graph import GraphWriter

    Coded = tuple[bytes, int, NDArray[np.uint32], int]


class TileEncoder:
    """Encodes tiles and hands them to a writer.

    Parameters
    ----------
    writer
        Takes the tiles.
    pool
        Encodes; None for the caller's own thread.
    most
        Most tiles in work.
    usual_rows
        Rows of a tile for which there is memory.
    memory
        Most bytes that the process may hold.

    Attributes
    ----------
    local_edges
        Edges written so far whose column is among the owned rows of their tile.
    """

    def __init__(
        self, writer: GraphWriter, pool: Executor | None, most: int, usual_rows: int, memory: int
    ) -> None:
        self.local_edges = 0
        self._writer = writer
        self._pool = pool
        self._most = most
        self._usual_rows = usual_rows
        self._memory = memory
        self._waiting: deque[tuple[Future[Coded], NDArray[np.uint64]]] = deque()
        self._free: list[NDArray[np.uint64]] = []

    def add(self, keys: NDArray[np.uint64], first_row: int, next_row: int) -> NDArray[np.uint64] | None:
        """Take the keys of the next tile; see `cut_tile`.

        Returns
        -------
        An array of the same size that nobody uses; None where nobody uses the keys any more.
        """
        rows = next_row - first_row + 1
        if rows > self._usual_rows:
            self.finish()
            needed = resident() + WRITER_BYTES_PER_ROW * rows
            require(needed, self._memory, f"A tile of {format_count(rows)} rows")
        if self._pool is None:
            self._write(_coded(keys, first_row, next_row))
            return None
        while len(self._waiting) >= self._most:
            self._write_first()
        self._waiting.append((self._pool.submit(_coded, keys, first_row, next_row), keys))
        # Fresh memory costs more than all that is done with it here.
        return self._free.pop() if self._free else np.empty_like(keys)

    def finish(self) -> None:
        """Write what is in work."""
        while self._waiting:
            self._write_first()

    def _write_first(self) -> None:
        coded, keys = self._waiting.popleft()
        self._write(coded.result())
        self._free.append(keys)

    def _write(self, coded: Coded) -> None:
        data, edges, lengths, local = coded
        self.local_edges += local
        self._writer.add_encoded(data, edges, lengths)


def _coded(keys: NDArray[np.uint64], first_row: int, next_row: int) -> Coded:
    columns, lengths, local = cut_tile(keys, first_row, next_row)
    return encode_tile(columns, lengths), columns.size, lengths, local
