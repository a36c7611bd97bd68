"""An independent check of ranks against the stored graph.

The engine gathers narrow numbers along sorted rows and keeps a residual up to date. This pass does neither:
every node sends its float64 rank over its out-degree along its edges, out-degrees and out-weights are counted
on the way, and what comes out is compared with what went in. The two share the bytes on disk and their
decoders, nothing else. Tiles come in the order of their rows, so sums are held for a window of rows only;
memory holds 10 bytes per node: its share, and how often it was met; 18 if edges have weights.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import DamagedError, InputError, UsageError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.spill.files import SpillDir
from oocpr.jit import entry
from oocpr.progress import silent
from oocpr.result.names import FileNames, file_names, in_same_order, match_rows, place_values, zip_blocks
from oocpr.result.rank_files import beside
from oocpr.result.ranks import MemoryVector
from oocpr.store.integrity import check_dangling, check_degrees
from oocpr.system import resident_after_trim, spans

if TYPE_CHECKING:
    from oocpr.ingest.spill.files import SpillFile
    from oocpr.progress import Progress
    from oocpr.result.ranks import Ranks, Vector
    from oocpr.store.graph import GraphStore

_WINDOW = 1 << 16
"""Rows that are compared at a time: sums are pairwise inside a window, and exact between windows."""

_UNIT = 2.0**-53
_ROW_BYTES = 10  # the share of a rank that goes along an edge, and how many edges were met, modulo 2^16
_WEIGHTED_ROW_BYTES = 8  # the sum of the weights
_WINDOW_ROW_BYTES = 96  # what a row receives, its edges, rank, step, offsets, and comparisons
_EDGE_BYTES = 8  # columns decoded, and what allocators hold beside
_WEIGHTED_EDGE_BYTES = 24
_SEGMENT_BYTES = 16
_OTHER_ROUNDINGS = 64  # the division, the products, the dangling mass, the totals


@dataclass(frozen=True)
class Verification:
    """How far ranks are from being their own PageRank.

    Parameters
    ----------
    residual, rounding
        L1 norm of M p - p, where M p is one PageRank step from the ranks p, and at least what the float64
        sums of this pass can have added to it or hidden from it.
    bound
        (residual + rounding) / (1 - damping): at least the L1 distance from p to the exact ranks.
    total
        Sum of the ranks, 1 but for rounding.
    damping, dangling
        Of the M that was used.
    identity, ranks_identity
        Of the graph, and of the one that the ranks say they are of; None if that is not known.
    """

    residual: float
    rounding: float
    bound: float
    total: float
    damping: float
    dangling: str
    identity: str | None = None
    ranks_identity: str | None = None


@entry()
def _receive(columns, lengths, weights, share, received, counted, sums, full):
    """Add to each row what its edges bring, in their order; `weights` and `sums` may be empty.

    `counted` is modulo 2^16; gives how many columns, the first of `full`, came to 0 again.
    """
    at = again = 0
    for row in range(lengths.size):
        total = received[row]
        for _ in range(lengths[row]):
            column = columns[at]
            given = share[column]
            if weights.size:
                given *= weights[at]
                sums[column] += weights[at]
            total += given
            counted[column] += 1
            if counted[column] == 0:
                full[again] = column
                again += 1
            at += 1
        received[row] = total
    return again


def verify(
    store: GraphStore,
    ranks: NDArray[np.float64] | Vector,
    *,
    damping: float = 0.85,
    dangling: str = "strongly",
    personalization: NDArray[np.float64] | None = None,
    progress: Progress = silent,
) -> Verification:
    """Bound the error of ranks by one pass of float64 numbers over all edges.

    `ranks`: float64, shape (nodes,), in store order; a vector on disk is read twice. `personalization`:
    teleport vector: float64, shape (nodes,), sums to 1; None for the uniform one. Raises UsageError,
    InputError for parameters that cannot be, and ranks of another length; DamagedError if the tiles, the
    stored out-degrees and out-weights and the row offsets contradict each other.
    """
    if not 0 < damping < 1:
        raise UsageError(f"damping is {damping}, outside (0, 1).", "Use a value such as 0.85.")
    if dangling not in ("strongly", "weakly"):
        raise UsageError(f"dangling {dangling!r} is not known.", "Use one of strongly, weakly.")
    vector = MemoryVector(ranks) if isinstance(ranks, np.ndarray) else ranks
    if vector.size != store.nodes:
        raise InputError(
            f"{vector.size:,} ranks for a graph of {store.nodes:,} nodes.", "Name the graph that was ranked."
        )
    return _Pass(store, vector, damping, dangling, personalization).run(progress)


class _Pass:
    """One PageRank step from ranks."""

    def __init__(
        self,
        store: GraphStore,
        ranks: Vector,
        damping: float,
        dangling: str,
        personalization: NDArray[np.float64] | None,
    ) -> None:
        self._store = store
        self._damping, self._dangling, self._personalization = damping, dangling, personalization
        self._ranks = ranks
        weighted = store.weights is not None
        # The unit of weights cancels; one in which their sums are near one cannot overflow.
        most = (
            max((float(store.out_weight(*w).max()) for w in self._windows()), default=0.0) if weighted else 0
        )
        self._octaves = -math.frexp(most)[1] if weighted else 0
        self._share = np.empty(store.nodes)
        self._counted = np.zeros(store.nodes, np.uint16)
        self._full = [np.empty(0, np.uint32)]  # columns, once for each 2^16 edges
        self._weighed = np.zeros(store.nodes if weighted else 0)
        self._offset = 0  # edges of all rows before the window
        self._wrong_offsets: int | None = None
        self._residuals: list[float] = []
        self._roundings: list[float] = []

    def _windows(self) -> Iterator[tuple[int, int]]:
        return spans(self._store.nodes, _WINDOW)

    def _leaving(self, lo: int, hi: int) -> NDArray[np.float64]:
        """Out-weights of rows in the unit of this pass."""
        return np.ldexp(self._store.out_weight(lo, hi), self._octaves)

    # Ranks of any size are verified: what float64 cannot add up bounds nothing.
    @np.errstate(over="ignore")
    def run(self, progress: Progress) -> Verification:
        store, damping = self._store, self._damping
        total, stuck, dangling_nodes = _Sum(), _Sum(), 0
        for (lo, hi), ranks in zip(self._windows(), _recut(self._ranks.chunks(), _WINDOW), strict=True):
            leaving = self._leaving(lo, hi)
            linking = leaving > 0
            self._share[lo:hi] = np.divide(ranks, leaving, out=np.zeros(hi - lo), where=linking)
            total.add(ranks)
            stuck.add(ranks[~linking])
            dangling_nodes += hi - lo - int(linking.sum())
        lost = damping * stuck.value()
        resident_after_trim()
        ranked = _recut(self._ranks.chunks(), _WINDOW)
        pieces = self._row_pieces(progress)
        held = next(pieces, None)
        for lo, hi in self._windows():
            received, edges = np.zeros(hi - lo), np.zeros(hi - lo, np.int64)
            while held is not None and held[0] < hi:
                first, lengths, columns, weights = held
                count = min(lengths.size, hi - first)
                used = int(lengths[:count].sum(dtype=np.int64))
                here = slice(first - lo, first - lo + count)
                full = np.empty(used, np.uint32)
                again = _receive(
                    columns[:used], lengths[:count], weights[:used], self._share, received[here],
                    self._counted, self._weighed, full,
                )  # fmt: skip
                if again:
                    self._full.append(full[:again].copy())
                edges[here] += lengths[:count]
                held = None
                if count < lengths.size:
                    held = (first + count, lengths[count:], columns[used:], weights[used:])
                del lengths, columns, weights  # before another tile comes
                held = held or next(pieces, None)
            self._compare_offsets(lo, edges)
            self._compare_ranks(lo, next(ranked), received, edges, lost)
        self._compare_offsets(store.nodes, np.empty(0, np.int64))
        self._check_counts(dangling_nodes)
        residual = math.fsum(self._residuals)
        rounding = _UNIT * math.fsum(self._roundings)
        bound = (residual + rounding) / (1 - damping)
        return Verification(residual, rounding, bound, total.value(), damping, self._dangling)

    def _row_pieces(
        self, progress: Progress
    ) -> Iterator[tuple[int, NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float64]]]:
        """Yield for each tile its first row, the edges of each row in it, their columns and their weights."""
        from oocpr.store.codec.tiles import decode_tile

        store = self._store
        buffer = np.empty(store.encoded.max_bytes, np.uint8)
        for tile in range(store.tiles):
            size = store.encoded.read_into(tile, buffer)
            columns, lengths = decode_tile(buffer[:size])
            if int(columns.max(initial=0)) >= store.nodes:
                raise DamagedError(f"{store.path}: tile {tile} has column {columns.max()}.")
            if tile == store.tiles - 1:
                # The last tile has one segment more than there are rows, always empty.
                if lengths[-1]:
                    raise DamagedError(f"{store.path}: the last tile has edges of a row behind the last one.")
                lengths = lengths[:-1]
            weights = np.empty(0)
            if store.weights is not None:
                weights = store.weights.read(tile)
                np.ldexp(weights, self._octaves, out=weights)
            # The last segment belongs to the row that goes on in the next tile.
            yield int(store.tile_rows[tile]), lengths, columns, weights
            del lengths, columns, weights
            progress("verifying", tile + 1, store.tiles, "tiles")

    def _compare_ranks(
        self,
        first: int,
        ranks: NDArray[np.float64],
        received: NDArray[np.float64],
        edges: NDArray[np.int64],
        lost: float,
    ) -> None:
        nodes, damping = self._store.nodes, self._damping
        here = slice(first, first + ranks.size)
        teleport = 1 / nodes if self._personalization is None else self._personalization[here]
        # Teleport of mass one, whatever the ranks sum to: a multiple of the answer must not pass for it.
        step = damping * received + (1 - damping) * teleport
        step += lost * teleport if self._dangling == "strongly" else lost / nodes
        self._residuals.append(float(np.sum(np.abs(step - ranks))))
        # A sum of k terms is wrong by at most k units of rounding of the sum of their magnitudes.
        sizes = np.abs(step) + np.abs(ranks)
        self._roundings.append(float(np.sum((edges + _OTHER_ROUNDINGS) * sizes)))

    def _compare_offsets(self, first: int, edges: NDArray[np.int64]) -> None:
        """Compare the row offsets, which a run has no need of, with the rows of the tiles."""
        stored = self._store.indptr(first, min(first + _WINDOW, self._store.nodes + 1))
        ends = self._offset + np.cumsum(edges)
        right = not stored.size or (
            stored[0] == self._offset and np.array_equal(stored[1:], ends[: len(stored) - 1])
        )
        if not right and self._wrong_offsets is None:
            self._wrong_offsets = first
        self._offset = int(ends[-1]) if ends.size else self._offset

    def _check_counts(self, dangling_nodes: int) -> None:
        """Raise DamagedError if edges contradict out-degrees, out-weights or row offsets."""
        store = self._store
        full, times = np.unique(np.concatenate(self._full), return_counts=True)
        for lo, hi in self._windows():
            counted = self._counted[lo:hi].astype(np.int64)
            here = slice(*np.searchsorted(full, (lo, hi)))
            counted[full[here] - lo] += times[here] << 16
            check_degrees(store.path, counted, store.out_degree(lo, hi), lo)
        check_dangling(store.path, dangling_nodes, store.dangling)
        for lo, hi in self._windows() if store.weights is not None else ():
            leaving, weighed = self._leaving(lo, hi), self._weighed[lo:hi]
            # Both are rounded, in one unit.
            apart = np.abs(weighed - leaving) > 2 * _UNIT * store.out_degree(lo, hi) * leaving
            if apart.any():
                k = int(np.flatnonzero(apart)[0])
                raise DamagedError(
                    f"{store.path}: the weights of row {lo + k}'s out-edges are {weighed[k] / leaving[k]:g} "
                    "times its out-weight."
                    if leaving[k]
                    else f"{store.path}: row {lo + k} has out-edges with weights and out-weight 0.",
                    "Import the graph again.",
                )
        if self._wrong_offsets is not None:
            raise DamagedError(
                f"{store.path}: the row offsets from {self._wrong_offsets} on are not those of the tiles.",
                "Import the graph again.",
            )


def _recut(pieces: Iterable[NDArray[np.float64]], size: int) -> Iterator[NDArray[np.float64]]:
    """Yield the numbers of pieces in arrays of `size`, the last of what is left."""
    held = np.empty(size)
    fill = 0
    for piece in pieces:
        done = 0
        while done < piece.size:
            step = min(size - fill, piece.size - done)
            held[fill : fill + step] = piece[done : done + step]
            fill, done = fill + step, done + step
            if fill == size:
                yield held
                fill = 0
    if fill:
        yield held[:fill]


class _Sum:
    """Sum of numbers that come in pieces: pairwise inside a chunk, exactly between chunks."""

    def __init__(self) -> None:
        self._held = np.empty(0)
        self._sums: list[float] = []

    def add(self, values: NDArray[np.float64]) -> None:
        values = np.concatenate([self._held, values])
        whole = values.size // _WINDOW * _WINDOW
        self._sums += [float(np.sum(values[k : k + _WINDOW])) for k in range(0, whole, _WINDOW)]
        self._held = values[whole:].copy()

    def value(self) -> float:
        return math.fsum([*self._sums, float(np.sum(self._held))])


def _check_memory(store: GraphStore, memory: int) -> None:
    """Raise DoesNotFitError if the pass cannot be made in `memory` bytes of the whole process."""
    facts = store.attributes
    weighted = store.weights is not None
    rows = store.nodes * (_ROW_BYTES + _WEIGHTED_ROW_BYTES * weighted)
    rows += min(store.nodes, _WINDOW) * _WINDOW_ROW_BYTES
    edges = min(facts.tile_edges, facts.edges)
    tile = edges * (_EDGE_BYTES + _WEIGHTED_EDGE_BYTES * weighted) + store.encoded.max_bytes
    tile += (int(np.diff(store.tile_rows).max()) + 1) * _SEGMENT_BYTES
    needed = resident_after_trim() + rows + tile + SLACK_BYTES
    require(needed, memory, f"Verifying {store.path}")


class _SpilledVector:
    """A vector in a temporary file."""

    def __init__(self, file: SpillFile, size: int) -> None:
        self._file = file
        self.size = size

    def chunks(self) -> Iterator[NDArray[np.float64]]:
        for first, stop in spans(self.size, _WINDOW):
            yield self._file.read_array(np.float64, first, stop - first)


@contextlib.contextmanager
def in_store_order(store: GraphStore, ranks: Ranks, origin: str, memory: int) -> Iterator[Vector]:
    """Yield ranks that were read from a file in the order of the store, by the names of the nodes.

    Ranks in this order, the usual case, stay where they are; others go through temporary files of 16 bytes
    per node. Raises DoesNotFitError if names cannot be looked up, or the ranks verified, in `memory` bytes of
    the whole process; InputError if the names are not those of the graph, or name several nodes in another
    order than the store's.
    """
    nodes = store.nodes
    if len(ranks) != nodes:
        raise InputError(
            f"{origin} has {len(ranks):,} ranks, the graph {nodes:,} nodes.",
            "Name the graph that was ranked.",
        )
    names = file_names(store)
    ranks = beside(ranks, names)
    same = in_same_order(names, nodes, ranks.names.blocks(nodes))
    # By now the libraries that read both files are in memory.
    _check_memory(store, memory)
    if same:
        yield ranks.vector
        return
    with SpillDir(Path(tempfile.gettempdir())) as workspace:
        rows, file = workspace.file(), workspace.file()
        file.write(0, _matched(names, ranks, origin, memory, rows))
        workspace.drop(rows)
        # A look-up leaves more of them, and holes.
        _check_memory(store, memory)
        yield _SpilledVector(file, nodes)


def _matched(
    names: FileNames, ranks: Ranks, origin: str, memory: int, file: SpillFile
) -> NDArray[np.float64]:
    """Ranks in the order of the nodes that they name, whose rows go through `file`."""
    theirs = zip_blocks(ranks.names.blocks(len(ranks)), ranks.chunks())
    # All names of the graph are read for each batch, so memory is better spent on batches than on ranks.
    for _, rows, _ in match_rows(names, len(ranks), theirs, memory):
        file.write(file.size, rows)
    resident_after_trim()
    pieces = enumerate(_recut(ranks.chunks(), _WINDOW))
    found = ((file.read_array(np.int64, k * _WINDOW, piece.size), piece) for k, piece in pieces)
    values, placed = place_values(len(ranks), found)
    without = np.flatnonzero(np.isnan(values))
    if len(ranks) - without.size < placed:
        raise InputError(
            f"{origin} has several ranks for one node name.", "Write it in the order of the nodes."
        )
    if without.size:
        [missing] = names.take(without[:1])
        raise InputError(f"{origin} has no rank for the node {missing!r}.", "Name the graph that was ranked.")
    return values
