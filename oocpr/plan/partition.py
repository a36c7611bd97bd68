"""How a graph is cut: tiles into stripes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import UsageError
from oocpr.plan.memory import READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

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


MAX_PARTITIONS = 64
"""Slices above which a run is refused: all tiles pass once for each, in every pass."""

LINE_NODES = 128
"""Slices begin at multiples of so many nodes, with whole lines of the link and of memory."""


def partition_nodes(nodes: int, slices: int) -> int:
    """Nodes of a slice; the last one may have fewer.

    Examples
    --------
    >>> partition_nodes(1000, 1), partition_nodes(1000, 2), partition_nodes(1000, 3)
    (1000, 512, 384)
    """
    if slices == 1:
        return nodes
    return min(nodes, -(-nodes // (slices * LINE_NODES)) * LINE_NODES)


def partition_bounds(nodes: int, slices: int, number: int) -> tuple[int, int]:
    """First node of a slice and the one past its last.

    Examples
    --------
    >>> [partition_bounds(1000, 3, number) for number in range(3)]
    [(0, 384), (384, 768), (768, 1000)]
    """
    each = partition_nodes(nodes, slices)
    return min(nodes, number * each), min(nodes, (number + 1) * each)


def partition_counts(nodes: int) -> Iterator[int]:
    """Numbers of slices that are worth trying, fewest first; each makes slices smaller.

    Examples
    --------
    >>> list(partition_counts(500)), list(partition_counts(2**20))[:3], max(partition_counts(2**20))
    ([1, 2, 4], [1, 2, 3], 64)
    """
    before = nodes + 1
    for slices in range(1, MAX_PARTITIONS + 1):
        each = partition_nodes(nodes, slices)
        if each < before:
            yield slices
        before = each


def partition_host_bytes(rows: int, tiles: int, reads: str, slices: int) -> tuple[int, int]:
    """Bytes of pinned memory for what all nodes pushed, and for what slices before have brought to rows.

    The row that the next tile owns is there twice, as in sums of tiles.

    Parameters
    ----------
    rows, tiles
        Of the graph.
    reads
        Format of what is pushed.
    slices
        None of this is there for one.

    Examples
    --------
    >>> partition_host_bytes(1000, 10, "bits16", 2), partition_host_bytes(1000, 10, "bits16", 1)
    ((2000, 8080), (0, 0))
    """
    return (rows * READ_BYTES[reads], 8 * (rows + tiles)) if slices > 1 else (0, 0)
