"""Room for what one tile needs while it is computed, used again for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cpu.gather import PIECE, SLICE_ROWS, TileCsr
from oocpr.engine.cpu.local_sweeps import (
    BOUNDS,
    MAX_LOCAL_SLICED,
    REGION_PADDING,
    ROW_PADDING,
    TILE_REGIONS,
    LocalLayout,
)
from oocpr.engine.cpu.tile import Sums

if TYPE_CHECKING:
    from oocpr.store.codec.layout import PackedTile

_NO_SUMS = np.empty(0)


class Scratch:
    """Arrays of one tile; each grows when a larger tile comes, and its contents are undefined."""

    def __init__(self) -> None:
        self._pool: dict[str, NDArray[Any]] = {}

    def sums(self, tile: PackedTile, owned: int, *, both: bool, permuting: bool) -> Sums:
        """Arrays of what is gathered, and for finding an order of the rows."""
        unpermuted = owned + 1 if permuting else 0
        tally = self.take("tally", TILE_REGIONS * (MAX_LOCAL_SLICED + 2), np.uint32)
        return Sums(
            self.row_sums(tile, owned),
            self.row_sums(tile, owned, "proposals") if both else _NO_SUMS,
            self.take("counts", unpermuted, np.uint32),
            self.take("places", unpermuted, np.uint32),
            tally.reshape(TILE_REGIONS, MAX_LOCAL_SLICED + 2),
        )

    def rows(
        self, owned: int, *, both: bool, local: bool, others: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Proposals of rows; by permuted rows what they have from their stripe and from all, and propose."""
        permuted = owned + ROW_PADDING if local else 0
        return (
            self.take("proposed", owned + 1 if both else 0, np.float32),
            self.take("own", permuted if others else 0, np.float32),
            self.take("start", permuted, np.float32),
            self.take("value", permuted, np.float32),
        )

    def row_sums(self, tile: PackedTile, owned: int, name: str = "pushes") -> NDArray[np.float64]:
        """Room for the sums of segments, of the parts that pieces begin with, and of padding."""
        return self.take(name, owned + 2 - (-tile.edges // (1024 * PIECE)), np.float64)

    def weights(self, edges: int) -> NDArray[np.float64]:
        """Room for decoded weights."""
        return self.take("weights", edges, np.float64)

    def csr(self, tile: PackedTile, columns: int) -> tuple[TileCsr, NDArray[np.uint32]]:
        """Arrays of a tile's edges, and of the first column of its non-empty segments."""
        csr = TileCsr(
            self.take("row_ptr", tile.nonempty + 1, np.uint32),
            self.take("segments", tile.nonempty + 1, np.uint32),
            self.take("columns", columns, np.uint32),
        )
        return csr, self.take("starts", tile.nonempty, np.uint32)

    def layout(
        self, tile: PackedTile, owned: int, *, wanted: bool, others: bool, weighted: bool
    ) -> LocalLayout:
        """Arrays of the edges that a tile is swept along; empty unless they are `wanted`."""
        edges, rows, permuted = (tile.edges, tile.nonempty, owned + ROW_PADDING) if wanted else (0, 0, 0)
        columns = edges + TILE_REGIONS * REGION_PADDING if wanted else 0
        return LocalLayout(
            self.take("row_at", permuted, np.uint32),
            self.take("factors", permuted, np.float32),
            self.take("gains", permuted, np.float32),
            # `permute_region` says where the part of a region begins.
            self.take("slice_ptr", rows // SLICE_ROWS + 2 * TILE_REGIONS + 1, np.uint32),
            self.take("long_ptr", edges // (MAX_LOCAL_SLICED + 1) + 2 * TILE_REGIONS + 1, np.uint32),
            self.take("local_columns", columns, np.uint32),
            self.take("regions", TILE_REGIONS * BOUNDS, np.uint32).reshape(TILE_REGIONS, BOUNDS),
            self.take("others", 2 * rows if others else 0, np.uint32).reshape(-1, 2),
            self.take("shares", columns, np.float32) if weighted else None,
        )

    def take(self, name: str, items: int, dtype: Any) -> NDArray[Any]:
        """An array with room for so many items, the same for the same name while it is large enough."""
        held = self._pool.get(name)
        if held is None or len(held) < items:
            held = self._pool[name] = np.empty(items, dtype)
        return held[:items]
