"""Tiles of graphs in memory, written in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr.store.codec.mantissa_segments import encode_segments
from oocpr.store.codec.tiles import TileEncoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.store.writer import GraphWriter


def add_tile(
    writer: GraphWriter,
    columns: NDArray[np.uint32],
    lengths: NDArray[np.integer[Any]],
    weights: NDArray[np.float64] | None = None,
) -> None:
    """Encode the next tile of a store, write it and append it."""
    coded = TileEncoder().encode(columns, lengths)
    writer.put_tile(writer.tiles, coded, None if weights is None else encode_segments(weights))
    writer.enter_tile(coded.size, columns.size, lengths)
