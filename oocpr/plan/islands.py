"""What islands of neighbouring rows take of a device, inside which tiles that stay are swept in turns."""

from __future__ import annotations

from typing import NamedTuple


class Islands(NamedTuple):
    """Bytes of the islands of a tile.

    Attributes
    ----------
    kept
        As long as the tile stays.
    finding
        While they are found, of one tile after the other: its columns, and where its segments begin.
    """

    kept: int = 0
    finding: int = 0


def islands_of(edges: int, rows: int, local_share: float) -> Islands:
    """Bytes of the islands of a tile.

    A link inside an island takes a byte, and each of 32 rows as many as the one of them that has most. On
    cnr-2000 that is 12 bytes a row, which has 4.5 links inside; what is known is how many are inside tiles,
    and these are more.

    Parameters
    ----------
    edges, rows
        Of the tile.
    local_share
        Share of edges that stay inside the rows of their tile.

    Examples
    --------
    >>> islands_of(1000, 100, 0.5)
    Islands(kept=1500, finding=4500)
    """
    return Islands(int(local_share * edges) + 10 * rows, 4 * edges + 5 * rows)
