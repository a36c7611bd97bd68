"""A stored graph and a source of more edges to a new store, without sorting the old edges again.

Tiles hold equally many edges in the order of their rows, so those before the first new edge are what they
were, and are copied. Later ones are decoded, merged with the new edges, and cut anew.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.ingest import budget
from oocpr.ingest.append.merge import NewEdges
from oocpr.ingest.append.source import Joined
from oocpr.ingest.append.stored_tiles import OldTiles, new_rows
from oocpr.ingest.budget import require
from oocpr.ingest.node_ids import ids_of_rows, names_of_rows
from oocpr.ingest.order.permutation import keep_order
from oocpr.ingest.pipeline import dealt, shared, threads_of
from oocpr.ingest.read import spill
from oocpr.ingest.resume.none import NothingKept
from oocpr.ingest.sort.rows import NO_RANKS, EdgeCounter
from oocpr.ingest.sort.sorter import LocalSortEncode, Sorter
from oocpr.ingest.sort.tiles import TileCutter, TileEncoder
from oocpr.ingest.sort.weights import OutWeights, duplicate_policy
from oocpr.ingest.warmup import warm_up, warm_up_weights
from oocpr.progress import silent
from oocpr.store.zarr_arrays import check_degree_sum
from oocpr.system import resident, resident_after_trim, usable_cores

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.sort.sorter import SortEncodeService
    from oocpr.progress import Progress
    from oocpr.sources.block import Source
    from oocpr.store.format import Attributes
    from oocpr.store.graph import GraphStore

_CHUNK = 1 << 18


def append_store(
    store: GraphStore,
    source: Source,
    path: str | os.PathLike[str],
    *,
    memory: int,
    tmp: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    duplicates: str | None = None,
    progress: Progress = silent,
    hands: SortEncodeService | None = None,
    block_edges: int | None = None,
    bucket_edges: int | None = None,
) -> tuple[Attributes, int]:
    """Write a stored graph with the edges of `source` added as a new store.

    Its bytes are those of an import of all sources together: edges that are there already count once, nodes
    are in the order of their ids or, if they have names, new ones behind the old ones. Only sums of weights
    may differ, by rounding: what the old ones are sums of is not known any more.

    Parameters
    ----------
    store
        The graph so far; its order is "keep".
    source
        The new edges. Its nodes have ids, or names where the stored graph has labels.
    path
        The store to make. It appears when it is whole; what does not finish leaves nothing.
    memory, tmp, overwrite, progress, hands, block_edges, bucket_edges
        As for `oocpr.ingest.build.build_store`.
    duplicates
        As for `build_store`; None for what the store was made with.

    Returns
    -------
    facts : Attributes
        What the new store says about itself.
    copied : int
        Tiles that are those of `store`.

    Raises
    ------
    DamagedError
        Where the bytes of `store` are not what was written.
    ReplacedError
        Where it was replaced meanwhile, and is not there to be read or is what is to be replaced.
    DoesNotFitError
        Where `memory` or the disk is too small.
    InputError
        Where the source cannot be read, contradicts itself, or calls its nodes otherwise than the store does.
    UsageError
        Where the store has another order, only one of store and source has weights, `duplicates` is not
        what the store was made with, `tmp` cannot be, or something stands at `path`.

    Examples
    --------
    >>> import tempfile
    >>> from oocpr.ingest.build import build_store
    >>> from oocpr.sources import open_source
    >>> from oocpr.store.graph import open_store
    >>> old = open_source((np.array([0, 1]), np.array([1, 0])))
    >>> new = open_source((np.array([1]), np.array([2])))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = build_store(old, f"{folder}/old.zarr", memory=2**33)
    ...     store = open_store(f"{folder}/old.zarr")
    ...     facts, copied = append_store(store, new, f"{folder}/all.zarr", memory=2**33)
    >>> facts.nodes, facts.edges
    (3, 3)
    """
    facts = store.attributes
    duplicates = _as_before(store, duplicates, weighted=source.weighted)
    how = duplicate_policy(duplicates, weighted=source.weighted)
    if (how is not None) != facts.weighted:
        have = ("has weights", "has none") if facts.weighted else ("has no weights", "has some")
        raise UsageError(
            f"{store.path} {have[0]}, and what is to be added {have[1]}.",
            "Say where weights are, or that links are to be counted."
            if facts.weighted
            else "Leave the weights out, or import all sources together.",
        )
    if facts.order != "keep":
        raise UsageError(
            f"{store.path} has its nodes in the order {facts.order!r}, in which new ones have no place.",
            "Import all sources together, or the first ones with order keep.",
        )
    _check_degrees(store)
    cores = usable_cores()
    hands = LocalSortEncode(cores) if hands is None else hands
    joined = Joined(store, source)
    with ExitStack() as stack:
        kept = NothingKept(Path(path), tmp, overwrite=overwrite)
        writer = stack.enter_context(kept.writer())
        workspace = stack.enter_context(kept.workspace())
        warm_up(workspace)
        if how is not None:
            warm_up_weights(workspace, how)
        needed = budget.least_bytes(facts.tile_edges, hands.needs, weighted=facts.weighted)
        require(resident() + needed, memory, "Adding edges")
        spare = memory - resident() - budget.SLACK_BYTES
        block_edges = block_edges or budget.block_edges(spare, weighted=source.weighted)
        with threads_of(cores) as pool:
            spilled = spill(joined, workspace, block_edges, memory, progress, kept, 2, pool, cores)
            ordered = keep_order(spilled.ids)
            threads = pool, cores
            spilled = dealt(spilled, ordered, kept, workspace, memory, block_edges, threads, progress)
        rows = _rows(store, spilled, memory)

        given = facts.edges + facts.duplicates
        tile_edges = _tile_edges(facts, given, spilled.edges)
        most_rows = int(np.diff(store.tile_rows).max())
        weighted = facts.weighted
        old_bytes = budget.stored_tile_bytes(facts.tile_edges, most_rows, weighted=weighted)
        together = facts.edges + spilled.edges
        share = budget.SortBudget(spilled.nodes, together, tile_edges, hands.needs, weighted=weighted)
        workers, space = shared(share, spilled, memory - old_bytes, hands.workers)
        callers = stack.enter_context(threads_of(workers)) if workers else None
        tally = EdgeCounter(spilled.nodes)
        sums = OutWeights(spilled.nodes) if weighted else None
        sorter = Sorter(hands, callers, workers, bucket_edges or space, NO_RANKS, tally, how)
        new = NewEdges(sorter.pieces(spilled.runs), tally, how)
        old = OldTiles(store, rows)
        copied = 0
        if rows is None and tile_edges == facts.tile_edges:
            copied = old.copy(writer, new, grown=spilled.nodes > store.nodes, sums=sums)
        usual = budget.usual_rows(spilled.nodes, facts.edges + spilled.edges, tile_edges)
        encoder = TileEncoder(
            hands, writer, callers, workers, tile_edges, usual, memory, copied, weighted=weighted
        )
        if copied < store.tiles:
            first_row = int(store.tile_rows[copied])
            cutter = TileCutter(tile_edges, spilled.nodes, encoder.add, first_row, weighted=weighted)
            done = writer.edges
            for edges in new.blended(old.edges(copied)):
                cutter.add(edges if sums is None else sums.take(edges))
                done += edges.given
                progress("writing", min(done, given + spilled.edges), given + spilled.edges, "edges")
            cutter.finish()
            encoder.finish()
        degree = _out_degree(store, tally, rows)
        if Path(path).resolve() == Path(store.path).resolve():
            # What somebody else has made of the graph meanwhile is not to be lost.
            store.check_current()
        store.check_unchanged()
        attributes = writer.finish(
            source=joined.name,
            order="keep",
            tile_edges=tile_edges,
            duplicates=given + spilled.edges - writer.edges,
            duplicate_weights=how,
            self_loops=facts.self_loops + tally.self_loops,
            local_edges=encoder.local_edges + (facts.local_edges - old.local_edges if copied else 0),
            out_degree=[degree],
            out_weight=None if sums is None else [sums.to_numpy()],
            node_ids=ids_of_rows(spilled.dictionary, ordered, memory),
            labels=names_of_rows(joined, spilled.dictionary, ordered, workspace, memory),
        )
    return attributes, copied


def _check_degrees(store: GraphStore) -> None:
    """Refuse degrees that are not there or do not add up, before all nodes are gone through for hours."""
    spans = ((lo, min(lo + _CHUNK, store.nodes)) for lo in range(0, store.nodes, _CHUNK))
    degrees = sum(int(store.out_degree(lo, hi).sum(dtype=np.uint64)) for lo, hi in spans)
    check_degree_sum(store.path, degrees, store.edges)


def _as_before(store: GraphStore, duplicates: str | None, *, weighted: bool) -> str | None:
    """Say what duplicate edges become, as they did when the store was made."""
    facts = store.attributes
    before = facts.duplicate_weights
    if before is None and facts.weighted and weighted and duplicates is None:
        raise UsageError(
            f"{store.path} is of an earlier version, which did not write down what duplicate edges became.",
            'Give duplicates as it was given to the import; the default was duplicates="merge".',
        )
    if before is not None and duplicates not in (None, before):
        raise UsageError(
            f"{store.path} was imported with duplicates {before}, and duplicates is now {duplicates!r}.",
            "Leave duplicates out, or import all sources together.",
        )
    # Edges without weights, and none counted, are refused for that.
    return before if weighted or before == "count" else duplicates


def _tile_edges(facts: Attributes, given: int, more: int) -> int:
    """Edges of a tile as an import of all would choose them, unless the store was made with others."""
    if facts.tile_edges != budget.tile_edges_for(given):
        return facts.tile_edges
    return budget.tile_edges_for(given + more)


def _rows(store: GraphStore, spilled: SpilledEdges, memory: int) -> NDArray[np.uint32] | None:
    """New row of each old one; None where they are the same."""
    dictionary = spilled.dictionary
    assert dictionary is not None, "the nodes of a store are given as such"
    if dictionary.names is not None:
        if dictionary.given < store.nodes:
            raise InputError(
                f"{store.path} has {store.nodes - dictionary.given:,} names more than once, so names do not "
                "tell its nodes apart.",
                "Import all sources together.",
            )
        return None
    last = store.nodes - 1
    if dictionary.ids(last, 1)[0] == store.ids(last, last + 1)[0]:
        return None
    require(resident_after_trim() + 4 * store.nodes + budget.SLACK_BYTES, memory, "Giving old nodes new rows")
    return new_rows(store, dictionary)


def _out_degree(store: GraphStore, tally: EdgeCounter, rows: NDArray[np.uint32] | None) -> NDArray[np.uint32]:
    """Out-degrees of all rows: uint32, shape (nodes,)."""
    degree = tally.out_degree()
    for lo in range(0, store.nodes, _CHUNK):
        hi = min(lo + _CHUNK, store.nodes)
        here = slice(lo, hi) if rows is None else rows[lo:hi]
        degree[here] += store.out_degree(lo, hi)
    return degree
