"""What rows gather in slices of the nodes, where a device has no room for the numbers of all of them.

The device has the numbers of one slice at a time, and all tiles pass through it once for each: links to nodes
of other slices bring nothing meanwhile. What a slice has brought to each row waits in pinned memory of the
host, and so does what all nodes pushed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.plan.memory import READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

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
