"""The sizes of a graph, its stripes of tiles, and the column partitions of what rows gather.

If a device has no room for the numbers of all nodes, it has those of one column partition at a time, and all
tiles stream through it once for each: edges from nodes of other partitions add nothing meanwhile. The sums of
rows over earlier partitions wait in pinned memory of the host, and so does what all nodes pushed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import UsageError
from oocpr.plan.memory import READ_BYTES
from oocpr.system import shares

EDGES_PER_STRIPE = 2**25
"""A graph gets a stripe per so many edges, so that every worker of a cluster finds one."""

MAX_STRIPES = 64

MIN_STRIPE_TILES = 4
"""A stripe of fewer tiles proposes little: later tiles use what earlier ones of the stripe proposed."""

MAX_SECTIONS, FEW_SECTIONS = 32, 4
"""Most parts of a stripe after which stripes exchange what their rows propose: on processors, and on devices
or if few edges come from other stripes."""

FEW_OUTSIDE = 0.1
"""Share of edges from other stripes below which that makes no difference: in four stripes of 25 tiles a crawl
of 104 million edges, 0.07 of them, took 18 passes with 2 to 25 sections."""

MAX_PARTITIONS = 64
"""Column partitions above which a run is refused: all tiles stream once for each, in every pass."""

LINE_NODES = 128
"""Column partitions begin at multiples of so many nodes, with whole lines of the link and of memory."""


def default_stripes(edges: int, tiles: int, workers: int = 1) -> int:
    """Stripes of a graph if nobody says: by its size, and one for each worker at least, if it has the tiles.

    >>> default_stripes(10**6, 7), default_stripes(10**6, 7, workers=4), default_stripes(10**6, 7, workers=9)
    (1, 4, 7)
    """
    alone = min(edges // EDGES_PER_STRIPE, MAX_STRIPES, tiles // MIN_STRIPE_TILES)
    return max(1, alone, min(workers, tiles))


def stripe_tiles(tiles: int, stripes: int) -> tuple[tuple[int, int], ...]:
    """First tile of each stripe and the one past its last, as even as can be.

    Raises UsageError if there are fewer tiles than stripes.

    Examples
    --------
    >>> stripe_tiles(10, 4)
    ((0, 2), (2, 5), (5, 7), (7, 10))
    """
    if not 1 <= stripes <= tiles:
        raise UsageError(
            f"{stripes} stripes were asked for and the graph has {tiles} tiles.",
            f"Leave stripes out{f', or use 1 to {tiles}' * (tiles > 1)}.",
        )
    return tuple(shares(tiles, stripes))


def stripe_owner(stripe: int, stripes: int, workers: int) -> int:
    """Worker of a stripe; neighbours are one worker's.

    >>> [stripe_owner(stripe, 5, 2) for stripe in range(5)]
    [0, 0, 0, 1, 1]
    """
    return stripe * workers // stripes


def speed_shares(speeds: Sequence[float], stripes: int) -> list[float]:
    """Share that each stripe has of the tiles, so that workers of such speeds end a pass together.

    Speeds that differ by less than a fifth are taken for equal, others in eighths of the highest: measured
    again, they give the same stripes as a rule, and so the same bits.

    >>> speed_shares([90.0, 44.0], 3), speed_shares([90.0, 80.0], 2)
    ([0.5, 0.5, 0.5], [1.0, 1.0])
    """
    highest = max(speeds)
    if min(speeds) > 0.8 * highest:
        speeds, highest = [1.0] * len(speeds), 1.0
    rounded = [max(1, round(8 * speed / highest)) / 8 for speed in speeds]
    owners = [stripe_owner(stripe, stripes, len(speeds)) for stripe in range(stripes)]
    return [rounded[owner] / owners.count(owner) for owner in owners]


def section_tiles(stripe: tuple[int, int], sections: int, number: int) -> range:
    """Tiles of a section of a stripe; none if the stripe has fewer tiles than sections.

    >>> [section_tiles((10, 17), 4, number) for number in range(4)]
    [range(10, 11), range(11, 13), range(13, 15), range(15, 17)]
    """
    first, last = stripe
    tiles = last - first
    return range(first + tiles * number // sections, first + tiles * (number + 1) // sections)


def weighted_stripes(weights: NDArray[np.int64], shares: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """First tile of each stripe and the one past its last, of weights as near to such shares as can be.

    >>> weighted_stripes(np.ones(10, np.int64), [2, 1, 2])
    ((0, 4), (4, 6), (6, 10))
    """
    tiles, stripes = len(weights), len(shares)
    stripe_tiles(tiles, stripes)
    before = np.concatenate([[0], np.cumsum(weights)])
    ends = np.cumsum(shares)
    bounds = [0]
    for stripe in range(1, stripes):
        wanted = before[-1] * ends[stripe - 1] / ends[-1]
        nearest = int(np.abs(before - wanted).argmin())
        bounds.append(min(max(nearest, bounds[-1] + 1), tiles - (stripes - stripe)))
    return tuple(pairwise([*bounds, tiles]))


def partition_nodes(nodes: int, partitions: int) -> int:
    """Nodes of a column partition; the last one may have fewer."""
    if partitions == 1:
        return nodes
    return min(nodes, -(-nodes // (partitions * LINE_NODES)) * LINE_NODES)


def partition_bounds(nodes: int, partitions: int, number: int) -> tuple[int, int]:
    """First node of a column partition and the one past its last.

    Examples
    --------
    >>> [partition_bounds(1000, 3, number) for number in range(3)]
    [(0, 384), (384, 768), (768, 1000)]
    """
    each = partition_nodes(nodes, partitions)
    return min(nodes, number * each), min(nodes, (number + 1) * each)


def partition_counts(nodes: int) -> Iterator[int]:
    """Numbers of column partitions that are worth trying, fewest first; each makes partitions smaller."""
    before = nodes + 1
    for partitions in range(1, MAX_PARTITIONS + 1):
        each = partition_nodes(nodes, partitions)
        if each < before:
            yield partitions
        before = each


def partition_host_bytes(rows: int, tiles: int, reads: str, partitions: int) -> tuple[int, int]:
    """Bytes of pinned memory for what all nodes pushed, and for the sums of rows over earlier partitions.

    The row that the next tile owns is there twice, as in sums of tiles. A single partition takes none of it.
    """
    return (rows * READ_BYTES[reads], 8 * (rows + tiles)) if partitions > 1 else (0, 0)
