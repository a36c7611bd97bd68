"""Bytes of each stage of a run on processors, and of its tiles, as pure functions; every copy is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.plan.request import SWEPT_TILES
from oocpr.store.direct_io import PAGE

if TYPE_CHECKING:
    from oocpr.plan.request import GraphStats, PlanRequest

READ_BYTES = {"float64": 8, "float32": 4, "bits16": 2, "bits8": 1}
"""Bytes of one gathered number."""

SEGMENTED_METHODS = {"cpms2": 2, "cpms4": 4}
"""Segments in which a method holds its numbers."""

SEGMENTED_KERNELS = ("csr-scalar", "ell")
"""Kernels of segmented methods on a device, a thread a row: rows one after the other, or side by side."""

SHARED = 40 * 2**20
"""Thread stacks, what the allocator keeps back, reports and small arrays."""

SLICE_PADDING = 3 * 2**17
"""Bytes that fill up the slices of sixteen rows of a decoded tile's columns."""

WEIGHTED_EDGE_BYTES = 16
"""Bytes of an edge of one weighted tile, beside its column: its weight as decoded and as laid out."""

WRITING = 48 * 2**20
"""Texts that are sorted at once, rows that are made a row group, its encoded and compressed bytes, and what
allocators keep of all this."""

ALLOCATOR_SLACK = 2**23
"""Small arrays and what the allocator keeps back, as a rule."""


@dataclass(frozen=True)
class Need:
    """Bytes that a run keeps at its peak, by what they are.

    Parameters
    ----------
    base
        The process before the run: interpreter, libraries, compiled kernels.
    vectors
        Per row: ranks and residual (8 each), out-degree (4, or the weight that leaves, 8), the proposal if
        rows propose (4), and the teleport vector if it is not uniform (8).
    history
        Per row: change and step of each remembered pass (4 each).
    reads
        The last push as it was made and as other rows read it, there with any proposal, for all nodes; and
        proposals that are on their way from stripe to stripe.
    scratch
        Of one tile: columns (4 per edge) and weights (WEIGHTED_EDGE_BYTES); sums (8 per row), and where the
        edges of a row that has some are (12). If tiles are swept, sums of proposals and an order of rows (16
        more per row), and of each that is: columns (4 per edge) and weights (4), and positions and proposals
        of rows (24); and, twice, what rows send of all that any of them may read (4 each). All that is swept
        is there once for each of several stripes, with what rows read of others (12 more); a worker of a
        cluster has its share of them, unless any number of workers has to do.
    ring
        Buffers through which tiles pass that stay in the store.
    """

    base: int
    vectors: int
    history: int
    reads: int
    scratch: int
    ring: int

    @property
    def total(self) -> int:
        """All of it, and what is SHARED."""
        return self.base + self.vectors + self.history + self.reads + self.scratch + self.ring + SHARED


def run_need(
    stats: GraphStats, request: PlanRequest, *, mixing: int, sweeps: int, ring_slots: int, stripes: int = 1
) -> Need:
    """Bytes of a run in one process; rows propose if tiles are swept more than once."""
    nodes, edges = stats.nodes, min(stats.tile_edges, stats.edges)
    swept = sweeps > 1
    together = min(SWEPT_TILES, stats.tiles - stripes + 1) if swept else 0
    row = 16 + (8 if stats.weighted else 4) + (4 if swept else 0) + (8 if request.personalized else 0)
    own = stripes if request.reproducible else -(-stripes // request.workers)
    scratch = edges * 4 + _row_scratch(stats, together, own, others=stripes > 1)
    if swept:
        scratch += edges * 4 * together * own + SLICE_PADDING
    if stats.weighted:
        scratch += edges * (WEIGHTED_EDGE_BYTES + 4 * together * own) + 3 * SLICE_PADDING
    return Need(
        base=request.base,
        vectors=nodes * row,
        history=nodes * 8 * mixing,
        reads=nodes * READ_BYTES[request.reads] * (2 if not swept else 3 if stripes == 1 else 4),
        scratch=scratch,
        ring=ring_slots * stats.max_tile_bytes,
    )


def _row_scratch(stats: GraphStats, together: int, stripes: int, *, others: bool) -> int:
    """Bytes of a tile's rows, and of so many that are swept `together` in each of the stripes; see Need."""
    rows = stats.max_tile_rows + 1
    each = rows * 8 + min(rows, stats.tile_edges, stats.edges) * 12
    if together:
        # An open tile reads from the others beside it, and they from those beside them.
        swept = rows * (36 if others else 24) * together
        each += rows * 16 + stripes * (swept + 8 * min(stats.nodes, rows * (3 * together - 2)))
    return each


def scc_need(stats: GraphStats, request: PlanRequest) -> Need:
    """Bytes of a run on a whole graph in memory.

    Of each edge the column is kept twice, as decoded and in the order in which rows are solved; at the peak,
    while that order is being found, both have a copy beside them. Of each row: what it is sent and sends
    (28), what mixing keeps of sweeps (28), weights, starts and places (96). Finding the order takes no more:
    components, levels and groups (52), the lists that are being made (44), a table of rows to compare (48).
    """
    return Need(
        base=request.base,
        vectors=stats.nodes * (20 + (8 if request.personalized else 0)),
        history=0,
        reads=stats.nodes * 4,
        scratch=stats.edges * 16 + stats.nodes * 152 + SLICE_PADDING,
        ring=stats.max_tile_bytes,
    )


def typical_scc_bytes(need: Need, stats: GraphStats) -> int:
    """Bytes that a run on a graph in memory comes to hold, of which `need` is the most.

    Of crawls and call graphs, 8 per edge and 80 per row were found beside the vectors: what is being found
    and what is made of it are not all there at once.
    """
    found = stats.edges * 8 + stats.nodes * 80
    return need.base + need.vectors + need.reads + need.ring + found + ALLOCATOR_SLACK


BLOCK_WIDTHS = (8, 16)
"""Vectors that are solved side by side: as many float32 numbers as fill half a cache line, or one.

With 32 each took a twentieth less time than with 16, and as much memory.
"""

TAKEN = 8
"""Vectors that are copied out of a block at a time: as many float64 numbers as a cache line has."""


def block_need(stats: GraphStats, *, base: int, threads: int, width: int, answers: int) -> int:
    """Bytes of a process that ranks a graph in memory for many teleport vectors.

    Beside the process (`base`) and what is kept of each vector (`answers`, bytes of all): at first what
    `scc_need` says of reading the graph and finding the order of its rows; then the graph (8 per edge, 80 per
    row), an order of rows for blocks, with what finding it takes (64), weights of rows (8), and for each
    thread a block: per row and vector ranks and residual (8 each) and contributions (4 each of three kinds),
    per row TAKEN vectors on their way out (8 each), one that is searched for its largest (8), and a flag (1).
    Weights of edges take 8 more each, and out-weights 12 more per row.
    """
    weights = stats.weighted * (stats.edges * 8 + stats.nodes * 12)
    reading = stats.edges * 16 + stats.nodes * 176 + stats.max_tile_bytes + weights
    graph = stats.edges * 8 + stats.nodes * 152 + weights
    blocks = threads * stats.nodes * (28 * width + 8 * TAKEN + 9)
    return base + answers + SLICE_PADDING + max(reading, graph + blocks) + SHARED


def block_shape(
    stats: GraphStats, *, base: int, memory: int, threads: int, seeds: int, answers: int
) -> tuple[int, int]:
    """Threads and most vectors in the block of each, as many as fit in memory; the least if nothing fits.

    More threads go before wider blocks. Blocks are wide if each thread has one of them at least.
    """
    narrow, wide = BLOCK_WIDTHS

    def fits(count: int, width: int) -> bool:
        return block_need(stats, base=base, threads=count, width=width, answers=answers) <= memory

    for count in range(min(threads, -(-seeds // narrow)), 0, -1):
        if fits(count, narrow):
            return count, wide if count * wide <= seeds and fits(count, wide) else narrow
    return 1, narrow


def segmented_need(stats: GraphStats, request: PlanRequest, *, ring_slots: int) -> Need:
    """Bytes of a run of a segmented method.

    Of each row there are two vectors and a matrix value (8 each), the out-degree while they are made and
    nodes without out-edges (4 each). Each buffer of the ring has a tile decoded beside it.
    """
    return Need(
        base=request.base,
        vectors=stats.nodes * 32,
        history=0,
        reads=0,
        scratch=ring_slots * segmented_tile_bytes(stats),
        ring=ring_slots * stats.max_tile_bytes,
    )


def segmented_tile_bytes(stats: GraphStats) -> int:
    """Bytes of a decoded tile of a segmented method.

    Of an edge the column (4) and the matrix value (8), of a row that has edges two places, and its first
    column while it is decoded.
    """
    edges = min(stats.tile_edges, stats.edges)
    return edges * 12 + (min(stats.max_tile_rows + 1, edges) + 1) * 12


def typical_segmented_bytes(need: Need, stats: GraphStats, cached_tiles: int) -> int:
    """Bytes that a run of a segmented method comes to hold, of which `need` and the cache are the most."""
    share, ring = cached_tiles / stats.tiles, need.ring + need.scratch if cached_tiles < stats.tiles else 0
    cached = int(share * (stats.edges * 12 + min(stats.nodes, stats.edges) * 8))
    return need.base + stats.nodes * 28 + max(cached + ring, stats.nodes * 8) + ALLOCATOR_SLACK


def decoded_bytes(stats: GraphStats, swept: bool, stripes: int = 1) -> int:
    """Bytes of a graph's tiles that are kept decoded; if tiles are `swept`, the columns twice more.

    Weights take 8 per edge, and 4 more for sweeps. Which edges are from other stripes takes 8 per row.
    """
    edges, padding = stats.edges, stats.tiles * SLICE_PADDING
    weights = edges * (12 if swept else 8) + 2 * padding if stats.weighted else 0
    rows = stats.nodes * (36 if swept and stripes > 1 else 28)
    return edges * (12 if swept else 4) + rows + padding + weights


def typical_bytes(
    need: Need, stats: GraphStats, cached_tiles: int, decoded: bool, sweeps: int, stripes: int = 1
) -> int:
    """Bytes that a run in one process comes to hold, of which `need` and the cache are the most.

    Tiles that stay are as large as they are rather than as the largest one, edges that tiles are swept along
    are about as many as the graph has, and little is left over.
    """
    edges = min(stats.tile_edges, stats.edges)
    together = min(SWEPT_TILES, stats.tiles - stripes + 1) if sweeps > 1 else 0
    near = 4 * min(1.0, stats.near_share(stripes) + stats.outside_share(stripes))
    scratch = _row_scratch(stats, together, stripes, others=stripes > 1)
    if not decoded:
        scratch += edges * 4 + int(edges * near * together * stripes)
    # Two segments of a decoded weight have no more of the fraction than a float, as a rule.
    weight = 0 if not stats.weighted else 4 if stats.weight_bytes <= 4 * stats.edges else 8
    if decoded:
        cached = stats.edges * (4 + (2 * near if together else 0) + weight) + stats.nodes * 12
    else:
        cached = stats.column_bytes * cached_tiles / stats.tiles
    ring = need.ring if cached_tiles < stats.tiles else 0
    vectors = need.vectors + need.history + need.reads
    return need.base + vectors + scratch + int(cached) + ring + ALLOCATOR_SLACK


def writing_bytes(*, base: int, nodes: int, ordered: bool, texts: int = 0) -> int:
    """Bytes of a process that writes ranks, or lists the first of them.

    Beside the ranks themselves: if they are `ordered`, their order as it is found (20 per row), or the order
    and the place of each row for every column of texts (8); and `WRITING` for what is on its way out.
    """
    return base + nodes * (8 + ordered * max(20, 8 + 8 * texts)) + WRITING


def weighted_tile_bytes(columns: int, weights: int) -> int:
    """Most bytes of a tile with its weights behind it, on pages of their own, by the most of both."""
    return PAGE + -(-columns // PAGE) * PAGE + weights


def tile_edges(stats: GraphStats, tile_rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Edges of each tile: all have as many but the last; of groups of tiles, about as many."""
    tiles = len(tile_rows) - 1
    last = stats.edges - (stats.tiles - 1) * stats.tile_edges
    edges = np.full(tiles, min(stats.tile_edges, stats.edges))
    if not 0 < last <= stats.tile_edges:
        edges[:] = -(-stats.edges // stats.tiles)
    elif tile_rows[-1] == stats.nodes:
        edges[-1] = last
    return edges


def centrality_need(
    stats: GraphStats, *, base: int, directions: int, largest_row: int, scatters: bool, ring_slots: int
) -> Need:
    """Bytes of a process that finds a centrality in a subspace of `directions`, beside tiles that stay.

    Of each row the vectors of the subspace and two more (8 each). Of a tile: sums of its rows, twice (8
    each), and where the edges of a row that has some are (12). If it `scatters`, the tile's columns (4) and
    weights (8), those of the longest row, which several tiles may have parts of, and sums of a part (16).
    """
    edges, rows = min(stats.tile_edges, stats.edges), stats.max_tile_rows + 1
    edge_bytes = 12 if stats.weighted else 4
    scattering = edge_bytes * (edges + largest_row) + 16 * min(edges, largest_row)
    return Need(
        base=base,
        vectors=stats.nodes * 8 * (directions + 2),
        history=0,
        reads=0,
        scratch=rows * 16 + min(rows, edges) * 12 + scatters * scattering,
        ring=ring_slots * stats.max_tile_bytes,
    )
