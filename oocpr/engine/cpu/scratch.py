"""Memory that the CPU works in, kept from tile to tile, and what is made of a tile that stays decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cpu.gather import PIECE, SLICE_ROWS, pieces_of, row_parts, slice_rows
from oocpr.engine.cpu.local_sweeps import (
    BOUNDS,
    MAX_SLICED,
    PADDING,
    REGIONS,
    LocalLayout,
    max_long_rows,
    max_slices,
    permuted_rows,
)
from oocpr.engine.cpu.rows import BLOCK
from oocpr.engine.cpu.tile import LayoutScratch, Slices, Sums, TileCsr

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.store.codec.layout import PackedTile

EMPTY = np.empty(0, np.uint32)


def slice_tile(
    tile: PackedTile, csr: TileCsr, nodes: int, weights: NDArray[np.float64] | None = None
) -> Slices:
    """Lay all edges of a decoded tile out in slices.

    Weights, float64, are kept as float32 if that is exact. Column `nodes`, past the last, reads zero.
    """
    pieces = int(pieces_of(tile.edges))
    parts = tile.nonempty + pieces
    begins, ends, targets = (np.empty(parts, np.uint32) for _ in range(3))
    partials = tile.segments
    count = int(row_parts(tile.edges, csr.row_ptr, csr.segments, partials, begins, ends, targets))
    slices = -(-count // SLICE_ROWS)
    longest = 1024 * PIECE
    slice_ptr = np.empty(slices + 1, np.uint32)
    places = np.empty(slices * SLICE_ROWS, np.uint32)
    columns = np.empty(tile.edges + SLICE_ROWS * longest, np.uint32)
    exact: NDArray[Any] | None = weights
    laid = None
    if weights is not None:
        half = weights.astype(np.float32)
        exact = half if np.array_equal(half, weights) else weights
        laid = np.empty(columns.size, exact.dtype)
    used = slice_rows(
        begins, ends, targets, count, longest, csr.columns, np.uint32(nodes), np.uint32(partials + pieces),
        np.empty(longest + 2, np.uint32), slice_ptr, places, columns, exact, laid,
    )  # fmt: skip
    kept = None if laid is None else laid[: int(used)].copy()
    return Slices(slice_ptr, places, columns[: int(used)].copy(), kept)


class Scratch:
    """Arrays of one tile; each grows when a larger tile comes, and its contents are undefined."""

    def __init__(self) -> None:
        self._pool: dict[str, NDArray[Any]] = {}

    def sums(self, tile: PackedTile, owned: int, live: int, *, both: bool, local: bool) -> Sums:
        """Arrays of what a sweep adds up; the blocks are zero."""
        segments = owned + 1
        places = segments + int(pieces_of(tile.edges)) + 1
        permuted = permuted_rows(owned) if local else 0
        return Sums(
            self._take("pushes", places, np.float64),
            self._take("proposals", places if both else 0, np.float64),
            self._take("proposed", segments if both else 0, np.float32),
            self._take("start", permuted, np.float32),
            self._take("value", permuted, np.float32),
            self._take("sends", 2 * permuted, np.float32),
            np.zeros((-(-owned // BLOCK), 2 + 3 * live)),
        )

    def csr(self, tile: PackedTile, columns: int) -> tuple[TileCsr, NDArray[np.uint32]]:
        """Arrays of a tile's edges, and of the first column of its non-empty segments."""
        csr = TileCsr(
            self._take("row_ptr", tile.nonempty + 1, np.uint32),
            self._take("segments", tile.nonempty + 1, np.uint32),
            self._take("columns", columns, np.uint32),
        )
        return csr, self._take("starts", tile.nonempty, np.uint32)

    def layout(self, tile: PackedTile, owned: int, wanted: bool, weighted: bool) -> LocalLayout:
        """Arrays of the edges that stay inside a tile; empty unless they are `wanted`."""
        edges, rows, permuted = (tile.edges, tile.nonempty, permuted_rows(owned)) if wanted else (0, 0, 0)
        columns = edges + REGIONS * PADDING if wanted else 0
        return LocalLayout(
            self._take("row_at", permuted, np.uint32),
            self._take("position", owned + 1 if wanted else 0, np.uint32),
            self._take("factors", permuted, np.float32),
            self._take("gains", permuted, np.float32),
            self._take("slice_ptr", max_slices(rows), np.uint32),
            self._take("long_ptr", max_long_rows(edges), np.uint32),
            self._take("local_columns", columns, np.uint32),
            self._take("regions", REGIONS * BOUNDS, np.uint32).reshape(REGIONS, BOUNDS),
            self._take("shares", columns, np.float32) if weighted else None,
        )

    def layout_scratch(self, owned: int, wanted: bool) -> LayoutScratch:
        """Scratch in which rows are permuted; empty unless it is `wanted`."""
        rows = owned + 1 if wanted else 0
        tally = self._take("tally", REGIONS * (MAX_SLICED + 2), np.uint32).reshape(REGIONS, MAX_SLICED + 2)
        return LayoutScratch(
            self._take("counts", rows, np.uint32), self._take("places", rows, np.uint32), tally
        )

    def _take(self, name: str, items: int, dtype: Any) -> NDArray[Any]:
        held = self._pool.get(name)
        if held is None or len(held) < items:
            held = self._pool[name] = np.empty(items, dtype)
        return held[:items]
