"""How many stored tiles a device takes as one group, and what groups take of its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.plan.memory import tile_edges, weighted_tile_bytes

if TYPE_CHECKING:
    from oocpr.plan.request import GraphStats

GROUP_EDGES = (2**28, 2**26, 2**24)
"""Edges of groups that stay, the first size for which there is memory: what is computed with grows with them,
and the time of launching kernels falls."""

STREAMED_EDGES = (2**25, 2**23, 2**21)
"""The same if groups stream through a device: the link wants several megabytes at once."""

LAUNCHED_BYTES = 16 * 2**20
"""Bytes that the link brings while the host launches the kernels of a group: 0.3 ms with an H200."""

HOST_ROW_BYTES = 45
"""Bytes that the link brings while the host computes a row: with rows in its memory, passes of R-MAT with
1.06 G edges took an H200 and 16 cores 89 to 107 ms, 47 of them for tiles; of a web-like graph 39, of 23."""

SHARED_EDGES = (2**26, *STREAMED_EDGES)
"""The same if several devices of one process share its Python: four H200s took 18 ms for a pass of R-MAT
with 1.06 G edges in groups of the first size, 22 in those of the second."""

RUN_BYTES = 12 * 2**20
"""Bytes of tiles that a thread reads, checks and sends at once, at most: Python has as much to do for such a
run as for a tile, and all buffers are of that size. R-MAT with 1.06 G edges was read by 8 threads and ranked
on an H100 in 0.46 s with half of it, in 0.40 s with this, in 0.43 s with four times as much."""

THREAD_BLOCK_ROWS = 1024
"""Rows that a block of threads takes."""

DIAGONAL_ROWS = 255
"""Rows of a diagonal block; one number more stands for no row."""

TILE_ENTRY_BYTES, BLOCK_ENTRY_BYTES = 224, 32
"""Bytes of what kernels know of a tile, and of a block of edges."""

TILE_PADDING = 128
"""The words of tiles in memory of a device begin at multiples of that."""

POOL_BYTES = 512
"""Pieces of memory of a device are multiples of that: CuPy's pool has no others."""


class GroupSize(NamedTuple):
    """How a plan takes a graph; for what stays where see `plan_on_devices`."""

    edges: int  # most of a group
    all_resident: bool
    rows_in_host: bool
    partitioned: bool = False
    remembered: int | None = None  # passes by mixing, of streams with nothing proposed; None: what pays

    @property
    def way(self) -> tuple[bool, bool, bool, bool]:
        """What stays where, of groups of any size, and whether rows have less than pays."""
        return *self[1:4], self.remembered is not None


def group_sizes(
    stats: GraphStats,
    streamed_edges: tuple[int, ...],
    *,
    alone: bool = True,
    remembered: Sequence[int] = (),
) -> Iterator[GroupSize]:
    """List the sizes in which a graph may be taken, the fastest first; for those that stream see pass_bytes.

    `streamed_edges` are those of groups that stream, the largest first; `alone` says whether there is one
    device for one stripe; `remembered` are the passes that mixing may remember where memory is short.
    """
    # Rows leave the device last, and what they gather only if it is the only one.
    ways: list[tuple[bool, bool, bool, int | None]] = [
        (True, False, False, None),
        # The first of them is all that pays.
        *((True, False, False, few) for few in remembered[1:]),
        (False, False, False, None),
        *((False, False, False, few) for few in remembered),
        (False, True, False, None),
        (False, True, True, None),
    ]
    if not alone:
        del ways[-1]
    for all_resident, rows_in_host, partitioned, few in ways:
        wanted = GROUP_EDGES if all_resident else streamed_edges
        # A group has a tile at least, and is no larger than the graph.
        edges = dict.fromkeys(
            max(stats.tile_edges, min(size, stats.tiles * stats.tile_edges)) for size in wanted
        )
        if not all_resident:
            edges[stats.tile_edges] = None
        for size in edges:
            yield GroupSize(size, all_resident, rows_in_host, partitioned, few)


def pass_bytes(
    column_bytes: int,
    groups: int,
    *,
    resident: int,
    devices: int = 1,
    sweeps: int = 1,
    decoded_first: bool = False,
) -> float:
    """Bytes that the link of a device could bring in the time of a pass: its groups, or while all start.

    `column_bytes` are those of all groups; all kernels are launched by one Python, half as many again for
    each sweep after the first (142 groups of three sweeps took an H200 50 to 88 ms) and twice as many where
    groups are decoded before they are multiplied (127 took it 60 to 85 ms, 38 to 55 otherwise).
    """
    sent = column_bytes * (groups - resident) / (groups * devices)
    return max(sent, groups * LAUNCHED_BYTES * (1 + sweeps) / 2 * (1 + decoded_first))


def group_bounds(
    stripes: Sequence[tuple[int, int]], tile_edges: int, group_edges: int
) -> tuple[NDArray[np.int64], tuple[tuple[int, int], ...]]:
    """Divide the tiles of each stripe into as few groups as can be of at most so many edges, evenly.

    Returns the first tile of each group, with the number of tiles behind; and the stripes in groups.

    Examples
    --------
    >>> group_bounds([(0, 5), (5, 6)], 2**24, 2**26)
    (array([0, 2, 5, 6]), ((0, 2), (2, 3)))
    """
    each = max(1, group_edges // tile_edges)
    bounds, grouped = [stripes[0][0]], []
    for first, last in stripes:
        parts = -(-(last - first) // each)
        begun = len(bounds) - 1
        bounds += [first + (last - first) * (part + 1) // parts for part in range(parts)]
        grouped.append((begun, begun + parts))
    return np.array(bounds), tuple(grouped)


class GroupSizes(NamedTuple):
    """What a group counts, or the largest of several groups."""

    tiles: int
    edges: int
    nonempty: int  # segments that are not empty
    rows: int  # owned ones
    blocks: int  # of 1024 edges
    length_blocks: int  # of 1024 lengths
    start_blocks: int  # of 1024 first columns
    words: int  # of a bit per segment, whole ones of each tile
    places: int  # blocks of rows, of which a block of threads takes one
    diagonal_blocks: int  # blocks of rows that are swept by themselves


def tile_counts(
    edges: NDArray[np.int64],
    segments: NDArray[np.int64],
    nonempty: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> NDArray[np.int64]:
    """What each tile adds to the `GroupSizes` of its group; shape (tiles, 10).

    A tile has so many segments, one more than it owns rows; `starts` are the first columns that are stored.
    """
    return np.stack(
        [
            np.ones_like(edges), edges, nonempty, segments - 1, -(-edges // 1024), -(-segments // 1024),
            -(-starts // 1024), -(-segments // 32), -(-segments // THREAD_BLOCK_ROWS),
            -(-(segments - 1) // DIAGONAL_ROWS),
        ], axis=1,
    )  # fmt: skip


def expanded_bytes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of what is expanded of groups that count so much; `sizes` has shape (..., 10).

    A table of tiles, one of blocks with the widths and a bit of each edge, the first column of each segment,
    and two words per 32 segments.
    """
    tiles, _, nonempty, _, blocks, _, _, words, _, _ = np.moveaxis(sizes, -1, 0)
    block = BLOCK_ENTRY_BYTES + 32 + 128 + 4
    taken: NDArray[np.int64] = TILE_ENTRY_BYTES * tiles + block * blocks + 4 * nonempty + 8 * words
    return taken + 8 * POOL_BYTES


@dataclass(frozen=True)
class GroupLayout:
    """Which stored tiles are in each group of a graph, and how large they are at most.

    Parameters
    ----------
    bounds
        First tile of each group, and the number of tiles; int64, shape (groups + 1,).
    edges, first_rows
        Edges of each tile; its first owned row, and the number of nodes; int64.
    limits
        Most bytes of each tile as it is read; int64.
    max_tile_bytes
        Bytes of a buffer that any tile is read into.
    """

    bounds: NDArray[np.int64]
    edges: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    limits: NDArray[np.int64]
    max_tile_bytes: int

    def tiles(self, group: int) -> range:
        """Stored tiles of a group."""
        return range(int(self.bounds[group]), int(self.bounds[group + 1]))

    def runs(self, group: int, *, one_by_one: bool = False) -> list[range]:
        """Stored tiles of a group that are read at once, in their order.

        Examples
        --------
        >>> tiles = [np.array(of) for of in ([0, 5], [9] * 5, range(6), [2**21, 2**22, 2**23, 2**21, 2**24])]
        >>> GroupLayout(*tiles, 2**24).runs(0)
        [range(0, 2), range(2, 4), range(4, 5)]
        """
        tiles = self.tiles(group)
        if one_by_one:
            return [range(tile, tile + 1) for tile in tiles]
        ends = self.places[tiles.start : tiles.stop] + self.limits[tiles.start : tiles.stop]
        runs, first = list[range](), tiles.start
        while first < tiles.stop:
            within = tiles.start + int(np.searchsorted(ends, self.places[first] + RUN_BYTES, side="right"))
            runs.append(range(first, max(first + 1, within)))
            first = runs[-1].stop
        return runs

    @property
    def run_bytes(self) -> int:
        """Bytes of a buffer that any run is read into, and of what is behind its last tile."""
        return min(max(RUN_BYTES, self.max_tile_bytes) + TILE_PADDING // 2, int(self.room.max()))

    def ring_of_tiles(self, buffers: int, readers: int) -> tuple[int, int, int]:
        """Turn a ring for runs into one for tiles that are read one by one, past the page cache.

        Returns its buffers, threads that read, and bytes of a buffer. It has no more bytes: there are more
        buffers, and a disk wants many reads at once. An H200's was read at 1.2 to 1.6 GB/s by 8 threads, at
        1.6 to 1.7 by 16 and at 1.7 to 2.1 by 32, where it gave 1.7 to 2.0 to whoever did nothing else.
        """
        tile = min(self.max_tile_bytes + TILE_PADDING // 2, self.run_bytes)
        count = max(buffers, buffers * self.run_bytes // tile)
        return count, max(readers, count - 2), tile

    def part(self, first: int, last: int) -> GroupLayout:
        """The groups ``first .. last - 1``; tiles keep their numbers."""
        return replace(self, bounds=self.bounds[first : last + 1])

    @property
    def group_rows(self) -> NDArray[np.int64]:
        """First owned row of each group, and the number of rows behind the last."""
        return self.first_rows[self.bounds]

    def _sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        first, last = int(self.bounds[0]), int(self.bounds[-1])
        sums: NDArray[np.int64] = np.add.reduceat(values[first:last], self.bounds[:-1] - first)
        return sums

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Edges and segments of each tile; shape (tiles, 2)."""
        return np.stack([self.edges, np.diff(self.first_rows) + 1], axis=1)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """What each group counts at most; shape (groups, 10).

        Examples
        --------
        >>> tiles = [np.array(of) for of in ([0, 2, 3], [2000, 2000, 5], [0, 100, 100, 107], [9, 9, 9])]
        >>> GroupLayout(*tiles, 9).sizes[:, :5].tolist()
        [[2, 4000, 102, 100, 4], [1, 5, 5, 7, 1]]
        """
        segments = np.diff(self.first_rows) + 1
        nonempty = np.minimum(self.edges, segments)
        return self._sums(tile_counts(self.edges, segments, nonempty, nonempty))

    def largest(self, groups: Sequence[int]) -> GroupSizes:
        """Most that any of some groups counts; zeros if there are none."""
        return GroupSizes(*self.sizes[list(groups)].max(axis=0, initial=0).tolist())

    @property
    def room(self) -> NDArray[np.int64]:
        """Bytes that the tiles of each group take one behind the other, at most."""
        return self._sums(_room_of(self.limits))

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Where each tile lies in the room of its group, which begins at a multiple of 128 bytes."""
        before = np.cumsum(_room_of(self.limits)) - _room_of(self.limits)
        group = np.searchsorted(self.bounds, np.arange(len(before)), side="right") - 1
        first = self.bounds[np.clip(group, 0, len(self.bounds) - 2)]
        places: NDArray[np.int64] = before - before[first] + TILE_PADDING // 2
        return places


def _room_of(limits: NDArray[np.int64]) -> NDArray[np.int64]:
    # Words begin 64 bytes behind the beginning of a tile, and at a multiple of 128.
    room: NDArray[np.int64] = -(-limits // TILE_PADDING) * TILE_PADDING + TILE_PADDING
    return room


def layout_of(
    stats: GraphStats,
    tile_rows: NDArray[np.int64],
    sizes: NDArray[np.int64] | None,
    bounds: NDArray[np.int64],
) -> GroupLayout:
    """Lay out the stored tiles of a graph in groups.

    `tile_rows` has the first owned row of each tile, and the number of nodes; `sizes` the bytes of each with
    its weights, None if they are not known.
    """
    limits = np.full(stats.tiles, stats.max_tile_bytes)
    if sizes is not None:
        # Weights begin on pages of their own, wherever columns end.
        more = weighted_tile_bytes(1, 0) if stats.weighted else 0
        limits = np.minimum(sizes + more, stats.max_tile_bytes)
    return GroupLayout(bounds, tile_edges(stats, tile_rows), tile_rows, limits, stats.max_tile_bytes)


def grouped_stats(stats: GraphStats, layout: GroupLayout) -> GraphStats:
    """Sizes of a graph whose tiles are taken in groups."""
    sizes = GroupSizes(*layout.sizes.max(axis=0).tolist())
    return replace(
        stats,
        tiles=len(layout.bounds) - 1,
        tile_edges=sizes.edges,
        max_tile_bytes=int(layout.room.max()),
        max_tile_rows=sizes.rows,
    )
