"""What islands of neighbouring rows take of a device, inside which tiles that stay are swept in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DiagonalBlocks(NamedTuple):
    """Bytes of the islands of tiles; int64, shape (tiles,).

    Attributes
    ----------
    kept
        As long as the tile stays.
    finding
        While they are found, of one tile after the other: its columns, and where its segments begin.
    """

    kept: NDArray[np.int64]
    finding: NDArray[np.int64]


def diagonal_blocks(edges: NDArray[np.int64], rows: NDArray[np.int64], local_share: float) -> DiagonalBlocks:
    """Bytes of the islands of tiles.

    A link inside an island takes a byte, and each of 32 rows as many as the one of them that has most. On
    cnr-2000 that is 12 bytes a row, which has 4.5 links inside; what is known is how many are inside tiles,
    and these are more.

    Parameters
    ----------
    edges, rows
        Of the tiles; int64, shape (tiles,).
    local_share
        Share of edges that stay inside the rows of their tile.

    Examples
    --------
    >>> diagonal_blocks(np.array([1000, 1000]), np.array([100, 200]), 0.5)
    DiagonalBlocks(kept=array([1500, 2500]), finding=array([4500, 5000]))
    """
    return DiagonalBlocks((local_share * edges).astype(np.int64) + 10 * rows, 4 * edges + 5 * rows)
