"""How much of everything an import may hold at once: integers in, integers out.

The budget is the peak resident size of the whole process, interpreter and libraries included, because that is
what an operating system counts and kills for. So every stage asks what is resident when it starts and plans
with the rest.
"""

from __future__ import annotations

from oocpr.errors import DoesNotFitError
from oocpr.units import format_bytes

SORTED_BYTES = 16
"""Bytes of an edge while it is sorted: row and column in one uint64, and a row with its first edge."""

WEIGHT_BYTES, CODED_WEIGHT_BYTES, SUM_BYTES = 8, 8, 8
"""More bytes of an edge with a weight wherever edges wait, of a tile that is encoded, and of each node."""

SLACK_BYTES = 16 << 20
"""Left free in every stage: what allocators and libraries hold beyond what was asked of them."""

SOURCE_BYTES_PER_EDGE = 256
"""What a source may hold for each edge of a block: text, parsed numbers and their copies."""

WAITING_BYTES_PER_EDGE = 128
"""All blocks on their way from a source to temporary files, for each edge of one of them."""

NUMBERED_BYTES = 64
"""Bytes of a name of a block while it is looked up; 57 were measured."""

WRITER_BYTES_PER_EDGE = 36
"""A tile on its way out: columns, rows and their counts, 12; gaps and starts, 8; these bit-packed, up to 6,
and encoded, up to 6; and what arrays are larger than they need be.
"""

TILE_BYTES_PER_EDGE = 12
"""A tile that is not on its way yet."""

WRITER_BYTES_PER_ROW = 32
"""Row lengths of a tile, padded, bit-packed and encoded, up to 16, and their offsets, 8. Measured: 28."""

MIN_BLOCK_EDGES, MAX_BLOCK_EDGES = 1 << 12, 1 << 20
MIN_BUCKET_EDGES, DEFAULT_BUCKET_EDGES = 1 << 17, 1 << 19
MIN_TILE_EDGES, MAX_TILE_EDGES, LARGEST_TILE_EDGES = 1 << 10, 1 << 20, 1 << 31
TILES_WANTED = 4


def require(needed: int, given: int, what: str) -> None:
    """Raise DoesNotFitError if `what`, the subject of a sentence, needs more memory than was given."""
    if needed > given:
        raise DoesNotFitError(
            f"{what} needs {format_bytes(needed)} of memory in all, {format_bytes(given)} are given.",
            f"Give at least {format_bytes(-(-needed * 17 // 16))} of memory.",
        )


def tile_edges_for(edges: int) -> int:
    """Edges of a tile if nobody chose: a power of two, within limits, for edges with their duplicates.

    Proposals that pass from tile to tile need some tiles to work with, sweeps inside a tile gain from large
    ones, and a tile has to be worth a read: between the limits there are 4 to 7 tiles, less the share of
    duplicate edges.
    """
    wanted = 1 << max(0, (edges // TILES_WANTED).bit_length() - 1)
    return min(max(wanted, MIN_TILE_EDGES), MAX_TILE_EDGES)


def _source_bytes(*, weighted: bool) -> int:
    """Bytes that a source may hold for each edge of a block; libraries keep what they had for weights."""
    return SOURCE_BYTES_PER_EDGE * (1 + weighted)


def block_edges(spare: int, *, weighted: bool = False) -> int:
    """Edges of a block of the source if reading may take `spare` bytes: a power of two."""
    wanted = 1 << max(0, (spare // _source_bytes(weighted=weighted)).bit_length() - 1)
    return min(max(wanted, MIN_BLOCK_EDGES), MAX_BLOCK_EDGES)


def spill_memory(spare: int, block_edges: int, cores: int, *, weighted: bool = False) -> int:
    """Bytes of temporary files that stay in memory, of `spare` ones for the files and all else.

    The rest is for blocks on their way, and for writing, by a thread per core, when reading is over; what
    says which nodes there are may need some, too. If it is too little, part of the files goes to the disk.
    """
    spare = max(0, spare - SLACK_BYTES)
    writing = (cores + 1) * _written_bytes(weighted=weighted) * MAX_TILE_EDGES
    beside = _source_bytes(weighted=weighted) * block_edges if weighted else 0
    return spare - max(
        min(beside, spare), min(spare // 3, max(WAITING_BYTES_PER_EDGE * block_edges, writing))
    )


def _written_bytes(*, weighted: bool) -> int:
    """Bytes of an edge of a tile on its way out."""
    return WRITER_BYTES_PER_EDGE + (WEIGHT_BYTES + CODED_WEIGHT_BYTES) * weighted


def min_bytes(tile_edges: int | None, *, weighted: bool = False) -> int:
    """Bytes that an import needs beside what the process holds already, however small the graph is."""
    reading = MIN_BLOCK_EDGES * SOURCE_BYTES_PER_EDGE
    share = SortBudget(1, LARGEST_TILE_EDGES, tile_edges or MIN_TILE_EDGES, weighted=weighted)
    return SLACK_BYTES + reading + share.writing(0)


def planned_rows(nodes: int, edges: int, tile_edges: int) -> int:
    """Rows that one tile owns at most, unless the edges are spread very unevenly; for these there is room."""
    return min(nodes, (1 << 16) + 8 * nodes * tile_edges // max(edges, 1))


def stored_tile_bytes(tile_edges: int, rows: int, *, weighted: bool) -> int:
    """Bytes that a tile of a stored graph takes while new edges are merged with it.

    Its encoded bytes (5 an edge and a row), what it is decoded to (8 an edge, 16 a row), its keys or what it
    is merged to (8 an edge, 8 a row), and what is there of new edges (16 an edge). Weights are there encoded,
    decoded and new, and merged with room for both (40 an edge).
    """
    return (37 + 40 * weighted) * tile_edges + 29 * rows + 4000


class SortBudget:
    """How the memory of sorting and writing so many nodes and edges, duplicates included, is divided.

    `tile` are the bytes of a tile on its way out.
    """

    def __init__(self, nodes: int, edges: int, tile_edges: int, *, weighted: bool = False) -> None:
        self._nodes = nodes
        self._edges = edges
        self._key = SORTED_BYTES + WEIGHT_BYTES * weighted
        self.tile = WRITER_BYTES_PER_ROW * planned_rows(nodes, edges, tile_edges)
        self.tile += _written_bytes(weighted=weighted) * min(tile_edges, edges)
        self._filling = (TILE_BYTES_PER_EDGE + WEIGHT_BYTES * weighted) * min(tile_edges, edges)
        self._counters = (4 + SUM_BYTES * weighted) * nodes

    def writing(self, workers: int) -> int:
        """Bytes that counting and writing hold beside the keys that are sorted."""
        tiles = self.tile * max(1, workers) + (self._filling if workers else 0)
        return self._counters + self._nodes * (workers + 1) + tiles

    def min_bytes(self) -> int:
        """Bytes without which nothing goes."""
        return self.writing(0) + self._key * min(self._edges, MIN_BUCKET_EDGES)

    def workers(self, spare: int, cores: int) -> int:
        """Threads, at most `cores`, that sort and encode in `spare` bytes beside the caller's, or 0."""
        for workers in range(cores, 0, -1):
            buckets = (workers + 1) * self._key * min(self._edges, MIN_BUCKET_EDGES)
            if self.writing(workers) + buckets <= spare:
                return workers
        return 0

    def wanted(self, workers: int, largest: int) -> int:
        """Bytes that so many threads use if they get them; `largest` is the number of edges of a bucket."""
        return self.writing(workers) + self._key * self._useful(workers, largest)

    def bucket_edges(self, spare: int, workers: int, largest: int) -> int:
        """Most edges that are in memory to be sorted, of all threads together; never more than are useful."""
        return min((spare - self.writing(workers)) // self._key, self._useful(workers, largest))

    def _useful(self, workers: int, largest: int) -> int:
        return (workers + 1) * min(max(largest, DEFAULT_BUCKET_EDGES), max(self._edges, 1))
