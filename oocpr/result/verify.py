"""An independent check of ranks against the stored graph.

The engine pulls narrow numbers along sorted rows and keeps a residual up to date. This pass does neither:
every node pushes its whole float64 rank to the nodes it links to, one scattered addition an edge, with
out-degrees and out-weights counted on the way, and what comes out is compared with what went in. The two
share the bytes on disk and their decoders, nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import DamagedError, InputError, UsageError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.progress import silent
from oocpr.result.names import aligned, matched_rows, names_of
from oocpr.store.format import REMEDY
from oocpr.store.zarr_arrays import check_dangling, check_degrees
from oocpr.system import resident_after_trim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.progress import Progress
    from oocpr.result.ranks import Ranks
    from oocpr.store.graph import GraphStore

_CHUNK = 1 << 16
_OFFSETS = 1 << 18
_UNIT = 2.0**-53
_ROW_BYTES = 64
"""Ranks, their shares, what is received, the weight that leaves, edges in and out (8 each), the out-degree
(4), whether there is one (1), and a comparison."""

_WEIGHED_ROW_BYTES = 40
"""What weights add up to, and a comparison."""

_EDGE_BYTES = 48
"""Of a tile: columns decoded, rows and what is given, and copies."""

_WEIGHED_EDGE_BYTES = 40
_OTHER_ROUNDINGS = 64  # the division, the products, the dangling mass, the totals


@dataclass(frozen=True)
class Verification:
    """How far ranks are from being their own PageRank.

    Parameters
    ----------
    residual
        L1 norm of M p - p, where M p is one PageRank step from the ranks p.
    rounding
        No less than what the float64 sums of this pass can have added to or hidden from `residual`.
    bound
        (residual + rounding) / (1 - damping): no less than the L1 distance from p to the exact ranks.
    total
        Sum of the ranks, 1 but for rounding.
    damping, dangling
        Of the M that was used.
    identity, ranks_identity
        Of the graph, and of the one that the ranks say they are of; None where that is not known.
    """

    residual: float
    rounding: float
    bound: float
    total: float
    damping: float
    dangling: str
    identity: str | None = None
    ranks_identity: str | None = None


def verify(
    store: GraphStore,
    ranks: NDArray[np.float64],
    *,
    damping: float = 0.85,
    dangling: str = "strongly",
    personalization: NDArray[np.float64] | None = None,
    progress: Progress = silent,
) -> Verification:
    """Bound the error of ranks by one push of float64 numbers over all edges.

    Parameters
    ----------
    store
        The graph.
    ranks
        float64, shape (nodes,), in store order.
    damping
        Probability of following a link, in (0, 1).
    dangling
        ``"strongly"``: the mass of nodes without out-links follows the teleport vector; ``"weakly"``: it is
        spread evenly.
    personalization
        Teleport vector: float64, shape (nodes,), sums to 1; None for the uniform one.
    progress
        Told of each tile.

    Raises
    ------
    UsageError, InputError
        For parameters that cannot be, and ranks of another length.
    DamagedError
        Where the tiles, the stored out-degrees and out-weights and the row offsets contradict each other.
    """
    if not 0 < damping < 1:
        raise UsageError(f"damping is {damping}, outside (0, 1).", "Use a value such as 0.85.")
    if dangling not in ("strongly", "weakly"):
        raise UsageError(f"dangling {dangling!r} is not known.", "Use one of strongly, weakly.")
    if ranks.shape != (store.nodes,):
        raise InputError(
            f"{len(ranks):,} ranks for a graph of {store.nodes:,} nodes.", "Name the graph that was ranked."
        )
    nodes = store.nodes
    degree = store.out_degree(0, nodes)
    leaving = store.out_weight(0, nodes)
    # The unit of weights cancels; one in which their sums are near one cannot overflow.
    octaves = 0 if store.weights is None else -math.frexp(leaving.max(initial=0.0))[1]
    leaving = np.ldexp(leaving, octaves)
    linking = leaving > 0
    share = np.divide(ranks, leaving, out=np.zeros(nodes), where=linking)
    received, counted, weighed, links = _push(store, share, octaves, progress)
    check_degrees(store.path, counted, degree)
    check_dangling(store.path, int((~linking).sum()), store.dangling)
    _check_weights(store, degree, leaving, weighed)
    _check_offsets(store, links)
    del share, leaving, degree, counted, weighed
    lost = damping * _total(ranks[~linking])
    residuals, roundings = [], []
    for first in range(0, nodes, _CHUNK):
        here = slice(first, first + _CHUNK)
        teleport = 1 / nodes if personalization is None else personalization[here]
        # Teleport of mass one, whatever the ranks sum to: a multiple of the answer must not pass for it.
        step = damping * received[here] + (1 - damping) * teleport
        step += lost * teleport if dangling == "strongly" else lost / nodes
        residuals.append(float(np.sum(np.abs(step - ranks[here]))))
        # A sum of k terms is wrong by at most k units of rounding of the sum of their magnitudes.
        sizes = np.abs(step) + np.abs(ranks[here])
        roundings.append(float(np.sum((links[here] + _OTHER_ROUNDINGS) * sizes)))
    residual = math.fsum(residuals)
    rounding = _UNIT * math.fsum(roundings)
    bound = (residual + rounding) / (1 - damping)
    return Verification(residual, rounding, bound, _total(ranks), damping, dangling)


def require_memory(store: GraphStore, memory: int, *, personalized: bool = False) -> None:
    """Refuse memory in which a graph's ranks cannot be verified.

    Parameters
    ----------
    store
        The graph.
    memory
        Most bytes that the process may hold.
    personalized
        Whether a teleport vector is given.

    Raises
    ------
    DoesNotFitError
        Where it is too small.
    """
    facts = store.attributes
    weighted = store.weights is not None
    rows = store.nodes * (_ROW_BYTES + _WEIGHED_ROW_BYTES * weighted + 8 * personalized)
    tile = facts.tile_edges * (_EDGE_BYTES + _WEIGHED_EDGE_BYTES * weighted) + store.encoded.max_bytes
    needed = resident_after_trim() + rows + tile + SLACK_BYTES
    require(needed, memory, f"Verifying {store.path}")


def in_store_order(
    store: GraphStore, ranks: Ranks, origin: str, memory: int | None = None
) -> NDArray[np.float64]:
    """Put ranks that were read from a file into the order of the store, by the names of the nodes.

    Parameters
    ----------
    store
        The graph that was ranked.
    ranks
        Ranks with names, in any order.
    origin
        Where they come from, for the message.
    memory
        Most bytes that the process may hold while names are looked up; None for any number.

    Returns
    -------
    float64, shape (nodes,)

    Raises
    ------
    DoesNotFitError
        Where `memory` is too small.
    InputError
        Where the names are not those of the graph, or name several nodes in another order than the store's.
    """
    if len(ranks) != store.nodes:
        raise InputError(
            f"{origin} has {len(ranks):,} ranks, the graph {store.nodes:,} nodes.",
            "Name the graph that was ranked.",
        )
    values = np.full(store.nodes, np.nan)
    named = 0
    names = names_of(store)
    theirs = aligned(ranks.names.blocks(len(ranks)), ranks.chunks())
    for rows, found in matched_rows(names, store.nodes, theirs, memory):
        known = rows >= 0
        values[rows[known]] = found[known]
        named += int(known.sum())
    without = np.flatnonzero(np.isnan(values))
    if store.nodes - without.size < named:
        raise InputError(
            f"{origin} has several ranks for one node name.", "Write it in the order of the nodes."
        )
    if without.size:
        [missing] = names.take(without[:1])
        raise InputError(f"{origin} has no rank for the node {missing!r}.", "Name the graph that was ranked.")
    return values


def _push(
    store: GraphStore, share: NDArray[np.float64], octaves: int, progress: Progress
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    from oocpr.store.codec.tile_encoder import decode_tile

    weights = store.weights
    received = np.zeros(store.nodes)
    counted = np.zeros(store.nodes, np.int64)
    weighed = np.zeros(0 if weights is None else store.nodes)
    links = np.zeros(store.nodes, np.int64)
    buffer = np.empty(store.encoded.max_bytes, np.uint8)
    for tile in range(store.tiles):
        size = store.encoded.read_into(tile, buffer)
        columns, lengths = decode_tile(buffer[:size])
        first = int(store.tile_rows[tile])
        if int(columns.max(initial=0)) >= store.nodes:
            raise DamagedError(f"{store.path}: tile {tile} has column {columns.max()}.", REMEDY)
        # The last tile has one segment more than there are rows, always empty.
        if tile == store.tiles - 1 and lengths[-1]:
            raise DamagedError(f"{store.path}: the last tile has edges of a row behind the last one.", REMEDY)
        owned = links[first : first + len(lengths)]
        owned += lengths[: len(owned)]
        # The last segment belongs to the row that goes on in the next tile.
        rows = np.repeat(np.arange(first, first + len(lengths)), lengths)
        given = share[columns]
        if weights is not None:
            each = np.ldexp(weights.read(tile), octaves)
            given *= each
            np.add.at(weighed, columns, each)
        np.add.at(received, rows, given)
        np.add.at(counted, columns, 1)
        progress("verifying", tile + 1, store.tiles, "tiles")
    return received, counted, weighed, links


def _check_weights(
    store: GraphStore, degree: NDArray[np.uint32], leaving: NDArray[np.float64], weighed: NDArray[np.float64]
) -> None:
    """Compare out-weights with the sums of the weights, both of them rounded, in one unit."""
    if store.weights is None:
        return
    apart = np.abs(weighed - leaving) > 2 * _UNIT * degree * leaving
    if apart.any():
        node = int(np.flatnonzero(apart)[0])
        raise DamagedError(
            f"{store.path}: the weights of row {node}'s out-links are {weighed[node] / leaving[node]:g} "
            "times its out-weight."
            if leaving[node]
            else f"{store.path}: row {node} has out-links with weights and out-weight 0.",
            "Import the graph again.",
        )


def _check_offsets(store: GraphStore, links: NDArray[np.int64]) -> None:
    """Compare the row offsets, which a run has no need of, with the rows of the tiles."""
    offset = 0
    for start in range(0, store.nodes + 1, _OFFSETS):
        stored = store.indptr(start, min(start + _OFFSETS, store.nodes + 1))
        counted = offset + np.cumsum(links[start : start + _OFFSETS])
        if stored[0] != offset or not np.array_equal(stored[1:], counted[: len(stored) - 1]):
            raise DamagedError(
                f"{store.path}: the row offsets from {start} on are not those of the tiles.",
                "Import the graph again.",
            )
        offset = int(counted[-1]) if len(counted) else offset


def _total(values: NDArray[np.float64]) -> float:
    # Pairwise inside a chunk, exactly between chunks.
    return math.fsum(float(np.sum(values[k : k + _CHUNK])) for k in range(0, len(values), _CHUNK))
