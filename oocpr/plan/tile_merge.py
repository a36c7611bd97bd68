"""How many stored tiles a device takes as one, for its kernels, and what merging them takes of the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.plan.memory import max_column_bytes, weighted_tile_bytes
from oocpr.store.codec.mantissa_segments import max_weight_bytes
from oocpr.store.direct_io import PAGE

if TYPE_CHECKING:
    from oocpr.plan.partition import GraphStats

MERGED_EDGES = (2**28, 2**26)
"""Edges of merged tiles, the first size for which there is memory: on an H200 the product of R-MAT of 263 M
edges took 1.18 ms in one tile and 1.30 in tiles of the second size; a run took 37 ms in 16, 112 in 256."""

MAKERS = (8, 4, 2)
"""Merged tiles that are made at a time for each device, the first number for which there are room and
processors; any machine makes two."""

HOST_MAKERS, HOST_MERGED_EDGES = (16, 8), (2**26, 2**25)
"""Before them, for tiles that stay, processors if there are as many, and edges of such tiles: the first size
of which each makes two. Beside an H200, 16 of them made tiles of 2**25 edges of R-MAT with 1.06 G in 1.6 s,
8 at a time tiles of 2**26 in 2.3 s; a pass took 9.3 ms rather than the 8.0 of 4 tiles."""

STREAMED_EDGES = (2**25, 2**23, 2**21)
"""The same if tiles stream through a device: the link wants several megabytes at once."""

LAUNCHED_BYTES = 10 * 2**20
"""Bytes that the link brings while the host launches the kernels of a tile: 0.2 ms with an H200."""

SHARED_EDGES = (2**26, *STREAMED_EDGES)
"""The same if several devices of one process share its Python: four H200s took 18 ms for a pass of R-MAT
with 1.06 G edges in tiles of the first size, 22 in those of the second."""

GROUP_PADDING = 2048
"""Bytes that fill up the last group, or block, of each array in which a thread merges tiles."""


class TileSize(NamedTuple):
    """How a plan takes a graph; for what stays where see `plan_on_devices`."""

    edges: int | None  # most of a merged tile; None for tiles as they are stored
    all_resident: bool
    rows_in_host: bool
    at_once: int = 0  # merged tiles that are made at a time for each device; 0 if none are
    partitioned: bool = False


def tile_sizes(
    stats: GraphStats, streamed_edges: tuple[int, ...], *, cores: int, devices: int = 1
) -> Iterator[TileSize]:
    """List the sizes in which a graph may be taken, the fastest first; for those that stream see pass_bytes.

    Stored tiles that are as large as merged ones are not merged. `streamed_edges` are those of merged tiles
    that stream, the largest first; `cores`, processors that may merge tiles for each device.
    """
    # Rows leave the device last, and what they gather only if it is the only one.
    ways = [(True, False, False), (False, False, False), (False, True, False), (False, True, True)]
    for all_resident, rows_in_host, partitioned in ways if devices == 1 else ways[:3]:
        wanted = MERGED_EDGES if all_resident else streamed_edges
        merged = [edges for edges in wanted if _are_merged(stats, edges)]
        made = list(_by_many(stats, cores, devices)) if all_resident else []
        for edges in merged:
            made += [(at_once, edges) for at_once in MAKERS if at_once <= max(2, cores)]
        for at_once, edges in dict.fromkeys(made):
            yield TileSize(edges, all_resident, rows_in_host, at_once, partitioned)
        if not all_resident or len(merged) < len(wanted):
            yield TileSize(None, all_resident, rows_in_host, partitioned=partitioned)


def _by_many(stats: GraphStats, cores: int, devices: int) -> Iterator[tuple[int, int]]:
    """Tiles that processors make at a time, and their edges, if there are enough of both."""
    for at_once, edges in product(HOST_MAKERS, HOST_MERGED_EDGES):
        tiles = -(-stats.edges // (devices * edges))
        if at_once <= cores and tiles >= 2 * at_once and _are_merged(stats, edges):
            yield at_once, edges


def _are_merged(stats: GraphStats, edges: int) -> bool:
    return stats.tiles > 1 and edges >= 2 * stats.tile_edges


def pass_bytes(column_bytes: int, tiles: int, *, resident: int, devices: int = 1) -> float:
    """Bytes that the link of a device could bring in the time of a pass: its tiles, or while all start.

    `column_bytes` are those of all tiles; all kernels are launched by one Python.
    """
    return max(column_bytes * (tiles - resident) / (tiles * devices), tiles * LAUNCHED_BYTES)


def merge_bounds(tiles: int, tile_edges: int, merged_edges: int) -> tuple[int, ...]:
    """First stored tile of each merged one of at most `merged_edges`, and the number of tiles.

    Examples
    --------
    >>> merge_bounds(10, 2**24, 2**26)
    (0, 4, 8, 10)
    >>> merge_bounds(3, 2**27, 2**26)
    (0, 1, 2, 3)
    """
    each = max(1, merged_edges // tile_edges)
    return (*range(0, tiles, each), tiles)


def even_merge_bounds(
    stripes: tuple[tuple[int, int], ...], tile_edges: int, merged_edges: int
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Merge the stored tiles of each stripe to as few as can be of at most `merged_edges`, as even as can be.

    Returns the first stored tile of each merged one, with the number of tiles behind; and the stripes in
    merged tiles.
    """
    each = max(1, merged_edges // tile_edges)
    bounds, merged = [0], []
    for first, last in stripes:
        parts = -(-(last - first) // each)
        begun = len(bounds) - 1
        bounds += [first + (last - first) * (part + 1) // parts for part in range(parts)]
        merged.append((begun, begun + parts))
    return tuple(bounds), tuple(merged)


def max_merged_bytes(edges: int, rows: int) -> int:
    """Most bytes of an encoded tile: columns and lengths of 32 bits, and what says their widths."""
    # A row without edges takes nothing but its share of a width and of a directory.
    return 4 * edges + edges // 16 + 4 * min(edges, rows) + rows // 16 + 9 * 1024


def merged_stats(stats: GraphStats, tile_rows: NDArray[np.int64], bounds: tuple[int, ...]) -> GraphStats:
    """Sizes of a graph whose stored tiles, of which `tile_rows` has the first rows, are merged.

    Its weights are taken to need the parts in all tiles that they need in the stored one where they need
    most: one of them in a merged tile gives all others there as many bytes.
    """
    most = max(last - first for first, last in pairwise(bounds))
    if most == 1:
        return stats
    rows = int(np.diff(tile_rows[np.asarray(bounds)]).max())
    edges = min(stats.tile_edges * most, stats.edges)
    merged = replace(
        stats,
        tiles=len(bounds) - 1,
        tile_edges=edges,
        max_tile_bytes=max_merged_bytes(edges, rows + 1),
        max_tile_rows=rows,
    )
    if not stats.weighted:
        return merged
    columns, weights = merged.max_tile_bytes, max_weight_bytes(edges)
    weight_bytes = -(-stats.max_weight_bytes * stats.edges // stats.tile_edges)
    return replace(
        merged,
        column_bytes=unweighted(stats).column_bytes + weight_bytes,
        max_tile_bytes=weighted_tile_bytes(columns, weights),
        weight_bytes=weight_bytes,
        max_weight_bytes=weights,
        stored_bytes=stats.column_bytes,
    )


def unweighted(stats: GraphStats) -> GraphStats:
    """Sizes of the same tiles without their weights."""
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


class MergeMemory(NamedTuple):
    """Bytes of the host that merging takes beside what a run counts, at most and as a rule.

    `at_once` tiles are made at a time for each device.
    """

    host: int = 0
    typical_host: int = 0
    at_once: int = 0

    def share(self, devices: int) -> MergeMemory:
        """What one of so many devices has of it."""
        return self._replace(host=self.host // devices, typical_host=self.typical_host // devices)


NO_MERGE = MergeMemory()
"""For tiles as they are stored."""


def merge_memory(
    stats: GraphStats, merged: GraphStats, rows: NDArray[np.int64], at_once: int, devices: int
) -> MergeMemory:
    """What merging takes in the threads that read.

    A workspace keeps what its largest tile took, and no two have merged the same one: together they have the
    rows of the tiles with most. `rows` has those of the merged tiles; int64, shape (merged.tiles,).
    """
    if merged.tiles == stats.tiles:
        return NO_MERGE
    largest = (np.sort(rows)[::-1][: devices * at_once] + 1).tolist()
    edges, stored = merged.tile_edges, min(stats.tile_edges, stats.edges)
    most = sum(_workspace_bytes(edges, of, min(edges, of), min(stored, of)) for of in largest)
    filled = [_filled(edges, of) for of in largest]
    typical = sum(
        _workspace_bytes(edges, of, some, some * stored // edges)
        for of, some in zip(largest, filled, strict=True)
    )
    # A stored tile as it is read.
    apart = len(largest) * (unweighted(stats).max_tile_bytes + PAGE + weight_merge_bytes(stats, merged))
    # Memory that has grown has an eighth to spare, which as a rule nobody writes to.
    return MergeMemory(host=most + most // 8 + apart, typical_host=typical + apart, at_once=at_once)


def _filled(edges: int, segments: int) -> int:
    """Segments that are not empty as a rule: if edges fall on rows at random."""
    return int(-segments * math.expm1(-edges / segments))


def _workspace_bytes(edges: int, segments: int, filled: int, of_stored: int) -> int:
    """Bytes that a thread keeps that has merged tiles; see `oocpr.engine.tiles.merged`.

    Columns and gaps (4 per edge each), lengths (4 per segment), starts (4 per segment that is not empty, of
    which `filled` has the number), a width for 32 of each, and the last of 1024 starts. Of a stored tile,
    with `of_stored` segments, where they lie, how they start and which they are (4 each).
    """
    values = 8 * edges + 4 * segments + 4 * filled
    widths = edges // 16 + segments // 32 + filled // 32 + filled // 256
    return values + widths + 12 * of_stored + GROUP_PADDING


def weight_merge_bytes(stats: GraphStats, merged: GraphStats) -> int:
    """Bytes that a thread takes to merge weights: a tile's as decoded, and a stored one's as read."""
    return 8 * merged.tile_edges + stats.max_weight_bytes if stats.weighted else 0
