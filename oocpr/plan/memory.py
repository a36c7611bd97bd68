"""Bytes of each stage as pure functions, every copy named; checkable with a pencil."""

from __future__ import annotations

from dataclasses import dataclass

from oocpr.store.direct_io import PAGE

READ_BYTES = {"float64": 8, "float32": 4, "bits16": 2, "bits8": 1}
"""Bytes of one gathered number."""

SHARED = 40 * 2**20
"""Thread stacks, what the allocator keeps back, reports and small arrays."""

PADDING = 3 * 2**17
"""Bytes that fill up the slices of sixteen rows in which a tile's columns are kept decoded."""


WEIGHED_EDGE = 20
"""Bytes of an edge of one weighted tile, beside its column: its weight as it is decoded and as it is laid
out (8 each), and for sweeps inside the tile (4)."""

WRITING = 48 * 2**20
"""Texts that are sorted at once, rows that are made a row group, its encoded and compressed bytes, and what
allocators keep of all this."""

ALLOCATOR_SLACK = 2**23
"""Small arrays and what the allocator keeps back, as a rule."""


def weighted_tile_bytes(columns: int, weights: int) -> int:
    """Most bytes of a tile with its weights behind it, on pages of their own, by the most of both."""
    return PAGE + -(-columns // PAGE) * PAGE + weights


def max_column_bytes(tile: int, weights: int) -> int:
    """Most bytes of the columns of a tile that `weighted_tile_bytes` allows for."""
    return tile - PAGE - weights


@dataclass(frozen=True)
class Need:
    """Bytes that a run keeps at its peak, by what they are.

    Parameters
    ----------
    base
        The process before the run: interpreter, libraries, compiled kernels.
    vectors
        Ranks and residual (8 each), out-degree (4, or the weight that leaves, 8) and, where rows propose, the
        proposal (4), a row; 8 more where the teleport vector is not uniform.
    history
        Change and step of each remembered pass, 4 bytes each, a row.
    reads
        The last push as it was made and as other rows read it, there with any proposal, for all nodes.
    scratch
        Of one tile: columns (4 an edge) and weights (WEIGHED_EDGE); sums (8 a row, 20 where rows propose),
        and where the links of a row that has some are (12). Where a tile is swept on its own, its columns
        twice more (8 an edge), and seats of its rows (40).
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
        """All of it, and the small change."""
        return self.base + self.vectors + self.history + self.reads + self.scratch + self.ring + SHARED


def run_need(
    *,
    base: int,
    nodes: int,
    tile_edges: int,
    max_tile_rows: int,
    max_tile_bytes: int,
    ring_slots: int,
    reads: str,
    proposals: bool,
    mixing: int,
    personalized: bool,
    sweeps: int = 1,
    weighted: bool = False,
) -> Need:
    """Bytes of a run in one process.

    Examples
    --------
    >>> need = run_need(base=0, nodes=1000, tile_edges=64, max_tile_rows=10, max_tile_bytes=100,
    ...                 ring_slots=4, reads="bits16", proposals=True, mixing=5, personalized=False)
    >>> need.vectors, need.history, need.reads, need.ring
    (24000, 40000, 6000, 400)
    """
    rows = max_tile_rows + 1
    scratch = tile_edges * 4 + rows * _sum_bytes(proposals) + min(rows, tile_edges) * 12
    if sweeps > 1:
        scratch += tile_edges * 8 + rows * 40 + PADDING
    return Need(
        base=base,
        vectors=nodes * (16 + (8 if weighted else 4) + (4 if proposals else 0) + (8 if personalized else 0)),
        history=nodes * 8 * mixing,
        reads=nodes * READ_BYTES[reads] * (3 if proposals else 2),
        scratch=scratch + (tile_edges * WEIGHED_EDGE + 3 * PADDING if weighted else 0),
        ring=ring_slots * max_tile_bytes,
    )


def _sum_bytes(proposals: bool) -> int:
    """Bytes of a row's sums: of pushes and, where rows propose, of proposals, and its own."""
    return 20 if proposals else 8


def scc_need(*, base: int, nodes: int, edges: int, max_tile_bytes: int, personalized: bool) -> Need:
    """Bytes of a run on a graph that is kept in memory whole.

    Of each edge the column is kept twice, as decoded and in the order in which rows are solved; at the peak,
    while that order is being found, both have a copy beside them. Of each row: what it is sent and sends
    (28), what mixing keeps of sweeps (28), weights, starts and places (96). Finding the order takes no more:
    components, levels and groups (52), the lists that are being made (44), a table of rows to compare (48).

    Examples
    --------
    >>> need = scc_need(base=0, nodes=1000, edges=10_000, max_tile_bytes=100, personalized=False)
    >>> need.vectors, need.reads, need.scratch - PADDING
    (20000, 4000, 312000)
    """
    return Need(
        base=base,
        vectors=nodes * (20 + (8 if personalized else 0)),
        history=0,
        reads=nodes * 4,
        scratch=edges * 16 + nodes * 152 + PADDING,
        ring=max_tile_bytes,
    )


def usual_scc_bytes(need: Need, *, nodes: int, edges: int) -> int:
    """Bytes that a run on a graph in memory comes to hold, where `need` is what it may at most.

    Of crawls and call graphs, 8 an edge and 80 a row were found beside the vectors: what is being found and
    what is made of it are not all there at once.

    Examples
    --------
    >>> need = scc_need(base=10**8, nodes=1000, edges=10_000, max_tile_bytes=100, personalized=False)
    >>> usual_scc_bytes(need, nodes=1000, edges=10_000)
    108572708
    """
    return need.base + need.vectors + need.reads + need.ring + edges * 8 + nodes * 80 + ALLOCATOR_SLACK


def decoded_bytes(nodes: int, edges: int, tiles: int, inside: bool, weighted: bool = False) -> int:
    """Bytes of a graph's tiles that are kept decoded; where `inside`, the columns inside tiles twice more.

    Weights take 8 an edge, and 4 more for those inside tiles. Tiles are swept `inside` where they are swept
    on their own.

    Examples
    --------
    >>> decoded_bytes(10, 100, 0, True), decoded_bytes(10, 100, 0, False)
    (1520, 720)
    """
    weights = edges * (12 if inside else 8) + tiles * 2 * PADDING if weighted else 0
    return edges * (12 if inside else 4) + nodes * 32 + tiles * PADDING + weights


def usual_bytes(
    need: Need,
    *,
    nodes: int,
    edges: int,
    tiles: int,
    tile_edges: int,
    max_tile_rows: int,
    column_bytes: int,
    local_share: float,
    cached_tiles: int,
    decoded: bool,
    proposals: bool,
    sweeps: int,
    weight_bytes: int = 0,
) -> int:
    """Bytes that a run in one process comes to hold, where `need` and the cache are what it may at most.

    Tiles that stay are as large as they are rather than as the largest one, links inside tiles are as many as
    the graph has, and little is left over.

    Examples
    --------
    >>> need = run_need(base=10**8, nodes=10**6, tile_edges=10**6, max_tile_rows=10**5, ring_slots=4,
    ...                 max_tile_bytes=2 * 10**6, reads="bits16", proposals=True, mixing=5,
    ...                 personalized=False)
    >>> usual_bytes(need, nodes=10**6, edges=10**7, tiles=10, tile_edges=10**6, max_tile_rows=10**5,
    ...             column_bytes=2 * 10**7, local_share=0.1, cached_tiles=0, decoded=False, proposals=True,
    ...             sweeps=2)
    198388680
    """
    inside = 8 * local_share if sweeps > 1 else 0
    rows = max_tile_rows + 1
    scratch = rows * _sum_bytes(proposals) + min(rows, tile_edges) * 12 + (0 if decoded else tile_edges * 4)
    if sweeps > 1:
        scratch += rows * 40 + (0 if decoded else int(tile_edges * inside))
    if decoded:
        kept = edges * (4 + inside + weight_bytes) + nodes * 12
    else:
        kept = column_bytes * cached_tiles / tiles
    ring = need.ring if cached_tiles < tiles else 0
    return need.base + need.vectors + need.history + need.reads + scratch + int(kept) + ring + ALLOCATOR_SLACK


def writing_bytes(*, base: int, nodes: int, ordered: bool, texts: int = 0) -> int:
    """Bytes of a process that writes ranks, or lists the first of them.

    Beside the ranks themselves: where they are `ordered`, their order as it is found (20 a row), or the order
    and the place of each row for every column of texts (8); and `WRITING` for what is on its way out.

    Examples
    --------
    >>> [writing_bytes(base=0, nodes=10, ordered=ordered) - WRITING for ordered in (False, True)]
    [80, 280]
    """
    return base + nodes * (8 + ordered * max(20, 8 + 8 * texts)) + WRITING


@dataclass(frozen=True)
class Needs:
    """Bytes that sorting and packing take beside what they are given, all calls taken alike.

    Parameters
    ----------
    key_bytes
        For each key that is sorted, beside the keys.
    edge_bytes, row_bytes
        For each edge and each row of a tile that is packed, beside its columns and lengths; its encoded bytes
        count, at most 6 an edge and 5 a row.
    usual_keys
        Neighbouring buckets are sorted in one call until they have so many keys, where memory allows.

    Examples
    --------
    >>> Needs(key_bytes=8, edge_bytes=6, row_bytes=5).usual_keys
    1
    """

    key_bytes: int
    edge_bytes: int
    row_bytes: int
    usual_keys: int = 1
