"""How many stored tiles a device takes as one: its kernels want more edges at once than a processor."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.plan.memory import most_column_bytes, weighted_tile_bytes
from oocpr.store.segments import most_bytes as most_weight_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.plan.plan import GraphFacts

JOINED_EDGES = (2**28, 2**26)
"""Edges of joined tiles, the first size for which there is memory: on an H200 the product of R-MAT of 263 M
edges took 1.18 ms in one tile and 1.30 in tiles of the second size; a run took 37 ms in 16, 112 in 256."""


Maker = tuple[int, bool]
"""Joined tiles that are made at a time for each device, and whether it makes them or processors do."""

MAKERS: tuple[Maker, ...] = ((2, True), (1, True), (8, False), (4, False), (2, False))
"""Who makes joined tiles that stay on their device, the first for whom there is room and who are there: the
host has a part in each of a device, and each processor makes one of its own."""

STREAMED_MAKERS: tuple[Maker, ...] = ((8, False), (2, True), (4, False), (1, True), (2, False))
"""The same of smaller ones that stream."""

STREAMED_EDGES = (2**25, 2**23, 2**21)
"""The same where tiles stream through a device: the link wants several megabytes at once."""


SHARED_EDGES = (2**26, *STREAMED_EDGES)
"""The same where several devices of one process share its Python: four H200s took 18 ms for a pass of R-MAT
with 1.06 G edges in tiles of the first size, 22 in those of the second."""


class TileSize(NamedTuple):
    """How a plan takes a graph.

    Attributes
    ----------
    edges
        Of a joined tile, or fewer; None for tiles as they are stored.
    stays
        Whether all tiles are to stay on their device.
    rows_in_host
        Whether rows are kept in memory of the host.
    at_once
        Joined tiles that are made at a time for each device; 0 where none are.
    there
        Whether devices make them.
    """

    edges: int | None
    stays: bool
    rows_in_host: bool
    at_once: int = 0
    there: bool = False


def tile_sizes(
    facts: GraphFacts, streamed_edges: tuple[int, ...], *, cores: int, joined_there: bool = True
) -> Iterator[TileSize]:
    """List the sizes in which a graph may be taken, the fastest first.

    Parameters
    ----------
    facts
        Of the graph as stored: tiles that are as large as joined ones are not joined.
    streamed_edges
        Edges of joined tiles that stream, the largest first.
    cores
        Processors that may join tiles for each device.
    joined_there
        Whether devices may join tiles.

    Examples
    --------
    >>> from oocpr.plan.plan import GraphFacts
    >>> facts = GraphFacts(2**24, 2**28, 256, 2**20, 2**29, 2**22, 2**18, 0.5)
    >>> sizes = list(tile_sizes(facts, (2**25, 2**23), cores=4))
    >>> sizes[0]
    TileSize(edges=268435456, stays=True, rows_in_host=False, at_once=2, there=True)
    >>> sizes[-1]
    TileSize(edges=None, stays=False, rows_in_host=True, at_once=0, there=False)
    >>> [(size.at_once, size.there) for size in sizes[:4]]
    [(2, True), (1, True), (4, False), (2, False)]
    >>> [size.stays for size in tile_sizes(replace(facts, tile_edges=2**28), (2**25, 2**23), cores=4)]
    [True, False, False]
    """
    for stays, rows_in_host in ((True, False), (False, False), (False, True)):
        wanted = JOINED_EDGES if stays else streamed_edges
        joined = [edges for edges in wanted if facts.tiles > 1 and edges >= 2 * facts.tile_edges]
        for edges in joined:
            for at_once, there in MAKERS if stays else STREAMED_MAKERS:
                if joined_there if there else at_once <= max(2, cores):
                    yield TileSize(edges, stays, rows_in_host, at_once, there)
        if not stays or len(joined) < len(wanted):
            yield TileSize(None, stays, rows_in_host)


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


def joined_facts(facts: GraphFacts, tile_rows: NDArray[np.int64], cuts: tuple[int, ...]) -> GraphFacts:
    """What a plan has to know of a graph whose tiles are joined.

    Its weights are taken to need the parts in all tiles that they need in the stored one where they need
    most: one of them in a joined tile gives all others there as many bytes.

    Parameters
    ----------
    facts
        Of the graph as stored.
    tile_rows
        First row of each stored tile, and the number of nodes.
    cuts
        As `joined_cuts` made them.
    """
    most = max(last - first for first, last in pairwise(cuts))
    if most == 1:
        return facts
    rows = int(np.diff(tile_rows[np.asarray(cuts)]).max())
    edges = min(facts.tile_edges * most, facts.edges)
    joined = replace(
        facts,
        tiles=len(cuts) - 1,
        tile_edges=edges,
        most_tile_bytes=most_bytes(edges, rows + 1),
        most_tile_rows=rows,
    )
    if not facts.weighted:
        return joined
    columns, weights = joined.most_tile_bytes, most_weight_bytes(edges)
    weight_bytes = -(-facts.most_weight_bytes * facts.edges // facts.tile_edges)
    return replace(
        joined,
        column_bytes=unweighted(facts).column_bytes + weight_bytes,
        most_tile_bytes=weighted_tile_bytes(columns, weights),
        weight_bytes=weight_bytes,
        most_weight_bytes=weights,
    )


def unweighted(facts: GraphFacts) -> GraphFacts:
    """What a plan has to know of the same tiles without their weights.

    Examples
    --------
    >>> from oocpr.plan.plan import GraphFacts
    >>> facts = GraphFacts(1000, 10**5, 4, 2**15, 300_000, 94_208, 300, 0.5, True, 200_000, 65_552)
    >>> found = unweighted(facts)
    >>> found.column_bytes, found.most_tile_bytes, found.weighted
    (100000, 24560, False)
    """
    if not facts.weighted:
        return facts
    return replace(
        facts,
        column_bytes=facts.column_bytes - facts.weight_bytes,
        most_tile_bytes=most_column_bytes(facts.most_tile_bytes, facts.most_weight_bytes),
        weighted=False,
        weight_bytes=0,
        most_weight_bytes=0,
    )
