"""Memory that the CPU works in, kept from tile to tile, and what is made of a tile that stays decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cpu.gather import PIECE, pieces_of, row_parts
from oocpr.engine.cpu.local_layout import LONG, PADDING, REGIONS, Inside, long_slots, seats, slots
from oocpr.engine.cpu.rows import BLOCK
from oocpr.engine.cpu.sliced_ell import ABREAST, slice_rows
from oocpr.engine.cpu.tile import Links, Picking, Slices, Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.store.codec.layout import PackedTile

NOTHING = np.empty(0, np.uint32)


def slice_tile(
    tile: PackedTile, links: Links, nodes: int, weights: NDArray[np.float64] | None = None
) -> Slices:
    """Lay all links of a decoded tile out in slices.

    Parameters
    ----------
    tile
        For its counts.
    links
        Decoded, with all columns.
    nodes
        Nodes of the graph; the number past the last reads zero.
    weights
        Of the links, float64, shape (edges,); kept as float32 where that is exact.
    """
    pieces = int(pieces_of(tile.edges))
    parts = tile.nonempty + pieces
    begins, ends, targets = (np.empty(parts, np.uint32) for _ in range(3))
    heads = tile.segments
    count = int(row_parts(tile.edges, links.positions, links.segments, heads, begins, ends, targets))
    slices = -(-count // ABREAST)
    longest = 1024 * PIECE
    bases = np.empty(slices + 1, np.uint32)
    places = np.empty(slices * ABREAST, np.uint32)
    columns = np.empty(tile.edges + ABREAST * longest, np.uint32)
    exact: NDArray[Any] | None = weights
    laid = None
    if weights is not None:
        half = weights.astype(np.float32)
        exact = half if np.array_equal(half, weights) else weights
        laid = np.empty(columns.size, exact.dtype)
    used = slice_rows(
        begins, ends, targets, count, longest, links.columns, np.uint32(nodes), np.uint32(heads + pieces),
        np.empty(longest + 2, np.uint32), bases, places, 0, columns, exact, laid,
    )  # fmt: skip
    kept = None if laid is None else laid[: int(used)].copy()
    return Slices(bases, places, columns[: int(used)].copy(), kept)


class Scratch:
    """Arrays of one tile; each grows when a larger tile comes, and its contents are undefined."""

    def __init__(self) -> None:
        self._pool: dict[str, NDArray[Any]] = {}

    def sums(self, tile: PackedTile, owned: int, live: int, *, both: bool, local: bool) -> Sums:
        """Arrays of what a sweep adds up; the blocks are zero."""
        segments = owned + 1
        places = segments + int(pieces_of(tile.edges)) + 1
        sitting = seats(owned) if local else 0
        return Sums(
            self._take("pushes", places, np.float64),
            self._take("proposals", places if both else 0, np.float64),
            self._take("proposed", segments if both else 0, np.float32),
            self._take("start", sitting, np.float32),
            self._take("value", sitting, np.float32),
            self._take("sends", 2 * sitting, np.float32),
            np.zeros((-(-owned // BLOCK), 2 + 3 * live)),
        )

    def links(self, tile: PackedTile, columns: int) -> tuple[Links, NDArray[np.uint32]]:
        """Arrays of a tile's links, and of the first column of its non-empty segments."""
        links = Links(
            self._take("positions", tile.nonempty + 1, np.uint32),
            self._take("segments", tile.nonempty + 1, np.uint32),
            self._take("columns", columns, np.uint32),
        )
        return links, self._take("starts", tile.nonempty, np.uint32)

    def inside(self, tile: PackedTile, owned: int, wanted: bool, weighted: bool) -> Inside:
        """Arrays of the links that stay inside a tile; empty where they are not `wanted`."""
        edges, rows, sitting = (tile.edges, tile.nonempty, seats(owned)) if wanted else (0, 0, 0)
        places = edges + REGIONS * PADDING if wanted else 0
        return Inside(
            self._take("row_of", sitting, np.uint32),
            self._take("seat_of", owned + 1 if wanted else 0, np.uint32),
            self._take("factors", sitting, np.float32),
            self._take("gains", sitting, np.float32),
            self._take("bases", slots(rows), np.uint32),
            self._take("long_bases", long_slots(edges), np.uint32),
            self._take("listed", places, np.uint32),
            self._take("heads", REGIONS * 2, np.uint32).reshape(REGIONS, 2),
            self._take("shares", places, np.float32) if weighted else None,
        )

    def picking(self, owned: int, wanted: bool) -> Picking:
        """Scratch in which rows are seated; empty where it is not `wanted`."""
        rows = owned + 1 if wanted else 0
        tally = self._take("tally", REGIONS * (LONG + 2), np.uint32).reshape(REGIONS, LONG + 2)
        return Picking(self._take("counts", rows, np.uint32), self._take("places", rows, np.uint32), tally)

    def _take(self, name: str, items: int, dtype: Any) -> NDArray[Any]:
        held = self._pool.get(name)
        if held is None or len(held) < items:
            held = self._pool[name] = np.empty(items, dtype)
        return held[:items]
