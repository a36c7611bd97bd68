"""How many stored tiles a device takes as one: its kernels want more edges at once than a processor."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.plan.memory import max_column_bytes, weighted_tile_bytes
from oocpr.store.codec.mantissa_segments import most_bytes as max_weight_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.plan.graph_stats import GraphStats

JOINED_EDGES = (2**28, 2**26)
"""Edges of joined tiles, the first size for which there is memory: on an H200 the product of R-MAT of 263 M
edges took 1.18 ms in one tile and 1.30 in tiles of the second size; a run took 37 ms in 16, 112 in 256."""


MAKERS = (8, 4, 2)
"""Joined tiles that are made at a time for each device, the first number for which there are room and
processors; any machine makes two."""

HOST_MAKERS, HOST_JOINED_EDGES = (16, 8), (2**26, 2**25)
"""Before them, for tiles that stay, processors if there are as many, and edges of such tiles: the first size
of which each makes two. Beside an H200, 16 of them made tiles of 2**25 edges of R-MAT with 1.06 G in 1.6 s,
8 at a time tiles of 2**26 in 2.3 s; a pass took 9.3 ms rather than the 8.0 of 4 tiles."""

STREAMED_EDGES = (2**25, 2**23, 2**21)
"""The same where tiles stream through a device: the link wants several megabytes at once."""


LAUNCHED_BYTES = 10 * 2**20
"""Bytes that the link brings while the host launches the kernels of a tile: 0.2 ms with an H200."""

SHARED_EDGES = (2**26, *STREAMED_EDGES)
"""The same where several devices of one process share its Python: four H200s took 18 ms for a pass of R-MAT
with 1.06 G edges in tiles of the first size, 22 in those of the second."""


class TileSize(NamedTuple):
    """How a plan takes a graph.

    Attributes
    ----------
    edges
        Of a joined tile, or fewer; None for tiles as they are stored.
    all_resident
        Whether all tiles are to stay on their device.
    rows_in_host
        Whether rows are kept in memory of the host.
    at_once
        Joined tiles that are made at a time for each device; 0 where none are.
    partitioned
        Whether what rows gather may be on the device in column partitions, as well.
    """

    edges: int | None
    all_resident: bool
    rows_in_host: bool
    at_once: int = 0
    partitioned: bool = False


def tile_sizes(
    stats: GraphStats,
    streamed_edges: tuple[int, ...],
    *,
    cores: int,
    devices: int = 1,
) -> Iterator[TileSize]:
    """List the sizes in which a graph may be taken, the fastest first; for those that stream see pass_bytes.

    Parameters
    ----------
    stats
        Of the graph as stored: tiles that are as large as joined ones are not joined.
    streamed_edges
        Edges of joined tiles that stream, the largest first.
    cores
        Processors that may join tiles for each device.
    devices
        How many have parts of the graph.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> stats = GraphStats(2**24, 2**28, 256, 2**20, 2**29, 2**22, 2**18, 0.5)
    >>> sizes = list(tile_sizes(stats, (2**25, 2**23), cores=4))
    >>> sizes[0]
    TileSize(edges=268435456, all_resident=True, rows_in_host=False, at_once=4, partitioned=False)
    >>> sizes[-1]
    TileSize(edges=None, all_resident=False, rows_in_host=True, at_once=0, partitioned=True)
    >>> [size.at_once for size in sizes[:4]]
    [4, 2, 4, 2]
    >>> [size.all_resident for size in tile_sizes(replace(stats, tile_edges=2**28), (2**25, 2**23), cores=4)]
    [True, False, False, False]
    """
    # Rows leave the device last, and what they gather only where it is the only one.
    ways = [(True, False, False), (False, False, False), (False, True, False), (False, True, True)]
    for all_resident, rows_in_host, partitioned in ways if devices == 1 else ways[:3]:
        wanted = JOINED_EDGES if all_resident else streamed_edges
        joined = [edges for edges in wanted if _are_joined(stats, edges)]
        made = list(_by_many(stats, cores, devices)) if all_resident else []
        for edges in joined:
            made += [(at_once, edges) for at_once in MAKERS if at_once <= max(2, cores)]
        for at_once, edges in dict.fromkeys(made):
            yield TileSize(edges, all_resident, rows_in_host, at_once, partitioned)
        if not all_resident or len(joined) < len(wanted):
            yield TileSize(None, all_resident, rows_in_host, partitioned=partitioned)


def _by_many(stats: GraphStats, cores: int, devices: int) -> Iterator[tuple[int, int]]:
    """Tiles that processors make at a time, and their edges, where there are enough of both."""
    for at_once, edges in product(HOST_MAKERS, HOST_JOINED_EDGES):
        tiles = -(-stats.edges // (devices * edges))
        if at_once <= cores and tiles >= 2 * at_once and _are_joined(stats, edges):
            yield at_once, edges


def _are_joined(stats: GraphStats, edges: int) -> bool:
    return stats.tiles > 1 and edges >= 2 * stats.tile_edges


def pass_bytes(column_bytes: int, tiles: int, *, staying: int, devices: int = 1) -> float:
    """Bytes that the link of a device could bring in the time of a pass: its tiles, or while all start.

    Parameters
    ----------
    column_bytes
        Of all tiles, encoded.
    tiles, staying
        How many there are, and how many of them stay on their device.
    devices
        How many have parts of the graph; all kernels are launched by one Python.

    Examples
    --------
    >>> pass_bytes(2**31, 32, staying=0) / 2**20, pass_bytes(2**31, 128, staying=64) / 2**20
    (2048.0, 1280.0)
    """
    return max(column_bytes * (tiles - staying) / (tiles * devices), tiles * LAUNCHED_BYTES)


def joined_cuts(tiles: int, tile_edges: int, joined_edges: int) -> tuple[int, ...]:
    """First stored tile of each joined one, and the number of tiles.

    Parameters
    ----------
    tiles, tile_edges
        As stored.
    joined_edges
        Edges of a joined tile, or fewer.

    Examples
    --------
    >>> joined_cuts(10, 2**24, 2**26)
    (0, 4, 8, 10)
    >>> joined_cuts(3, 2**27, 2**26)
    (0, 1, 2, 3)
    """
    each = max(1, joined_edges // tile_edges)
    return (*range(0, tiles, each), tiles)


def most_bytes(edges: int, rows: int) -> int:
    """Most bytes of an encoded tile: columns and lengths of 32 bits, and what tells their widths.

    Examples
    --------
    >>> most_bytes(1024, 10), most_bytes(1024, 10**6)
    (13416, 79972)
    """
    # A row without edges takes nothing but its share of a width and of a directory.
    return 4 * edges + edges // 16 + 4 * min(edges, rows) + rows // 16 + 9 * 1024


def joined_facts(stats: GraphStats, tile_rows: NDArray[np.int64], cuts: tuple[int, ...]) -> GraphStats:
    """What a plan has to know of a graph whose tiles are joined.

    Its weights are taken to need the parts in all tiles that they need in the stored one where they need
    most: one of them in a joined tile gives all others there as many bytes.

    Parameters
    ----------
    stats
        Of the graph as stored.
    tile_rows
        First row of each stored tile, and the number of nodes.
    cuts
        As `joined_cuts` made them.
    """
    most = max(last - first for first, last in pairwise(cuts))
    if most == 1:
        return stats
    rows = int(np.diff(tile_rows[np.asarray(cuts)]).max())
    edges = min(stats.tile_edges * most, stats.edges)
    joined = replace(
        stats,
        tiles=len(cuts) - 1,
        tile_edges=edges,
        max_tile_bytes=most_bytes(edges, rows + 1),
        max_tile_rows=rows,
    )
    if not stats.weighted:
        return joined
    columns, weights = joined.max_tile_bytes, max_weight_bytes(edges)
    weight_bytes = -(-stats.max_weight_bytes * stats.edges // stats.tile_edges)
    return replace(
        joined,
        column_bytes=unweighted(stats).column_bytes + weight_bytes,
        max_tile_bytes=weighted_tile_bytes(columns, weights),
        weight_bytes=weight_bytes,
        max_weight_bytes=weights,
        stored_bytes=stats.column_bytes,
    )


def unweighted(stats: GraphStats) -> GraphStats:
    """What a plan has to know of the same tiles without their weights.

    Examples
    --------
    >>> from oocpr.plan.graph_stats import GraphStats
    >>> stats = GraphStats(1000, 10**5, 4, 2**15, 300_000, 94_208, 300, 0.5, True, 200_000, 65_552)
    >>> found = unweighted(stats)
    >>> found.column_bytes, found.max_tile_bytes, found.weighted
    (100000, 24560, False)
    """
    if not stats.weighted:
        return stats
    return replace(
        stats,
        column_bytes=stats.column_bytes - stats.weight_bytes,
        max_tile_bytes=max_column_bytes(stats.max_tile_bytes, stats.max_weight_bytes),
        weighted=False,
        weight_bytes=0,
        max_weight_bytes=0,
        stored_bytes=0,
    )
