"""How a graph is cut: tiles into stripes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

EDGES_PER_STRIPE = 2**25
"""A graph gets a stripe for so many edges, so that every worker of a cluster finds one."""

MAX_STRIPES = 64

MIN_STRIPE_TILES = 4
"""A stripe of fewer tiles proposes little: later tiles use what earlier ones of the stripe proposed."""


def default_stripes(edges: int, tiles: int) -> int:
    """Stripes of a graph when nobody says; depends on the graph alone, so that results do too.

    Examples
    --------
    >>> default_stripes(10**6, 16), default_stripes(10**9, 1000), default_stripes(10**11, 10**5)
    (1, 29, 64)
    """
    return max(1, min(edges // EDGES_PER_STRIPE, MAX_STRIPES, tiles // MIN_STRIPE_TILES))


def stripe_tiles(tiles: int, stripes: int) -> tuple[tuple[int, int], ...]:
    """First tile of each stripe and the one past its last, as even as can be.

    Raises
    ------
    UsageError
        When there are fewer tiles than stripes.

    Examples
    --------
    >>> stripe_tiles(10, 4)
    ((0, 2), (2, 5), (5, 7), (7, 10))
    """
    if not 1 <= stripes <= tiles:
        raise UsageError(
            f"{stripes} stripes were asked for and the graph has {tiles} tiles.",
            f"Use 1 to {tiles} stripes, or import with smaller tiles.",
        )
    cuts = [tiles * stripe // stripes for stripe in range(stripes + 1)]
    return tuple(pairwise(cuts))


def weighted_stripes(sizes: NDArray[np.int64], stripes: int) -> tuple[tuple[int, int], ...]:
    """First tile of each stripe and the one past its last, of sizes as even as can be.

    Parameters
    ----------
    sizes
        Of each tile: int64, shape (tiles,).
    stripes
        At most as many as tiles.

    Examples
    --------
    >>> weighted_stripes(np.array([1, 1, 1, 1, 2, 2]), 2), weighted_stripes(np.array([9, 1, 1]), 3)
    (((0, 4), (4, 6)), ((0, 1), (1, 2), (2, 3)))
    """
    tiles = len(sizes)
    stripe_tiles(tiles, stripes)
    before = np.concatenate([[0], np.cumsum(sizes)])
    cuts = [0]
    for stripe in range(1, stripes):
        wanted = before[-1] * stripe / stripes
        nearest = int(np.abs(before - wanted).argmin())
        cuts.append(min(max(nearest, cuts[-1] + 1), tiles - (stripes - stripe)))
    return tuple(pairwise([*cuts, tiles]))
