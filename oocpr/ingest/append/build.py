"""A stored graph and a source of more edges to a new store, without sorting the stored edges again.

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
from oocpr.ingest.append.stored_graph import StoredPlusNew, StoredTiles, new_rows
from oocpr.ingest.budget import require
from oocpr.ingest.order.permutation import keep_order
from oocpr.ingest.pipeline import Pipeline
from oocpr.ingest.resume.imports import OneShotImport
from oocpr.ingest.sort.sorter import LocalSortEncode
from oocpr.ingest.sort.weights import duplicate_policy
from oocpr.progress import silent
from oocpr.store.zarr_arrays import check_degree_sum
from oocpr.system import resident_after_trim, usable_cores

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.sort.rows import EdgeCounter
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
    service: SortEncodeService | None = None,
    block_edges: int | None = None,
    bucket_edges: int | None = None,
) -> tuple[Attributes, int]:
    """Write a stored graph of order "keep" with the edges of `source` added as a new store.

    Its bytes are those of an import of all sources together: edges that are stored already count once, nodes
    are in the order of their ids or, if they have names, new ones after the old ones. Only sums of weights
    may differ, by rounding: what the stored ones are sums of is not known any more. Returns what the new
    store says about itself, and how many tiles are those of `store`.

    Parameters are as for `build_store`; `duplicates` is None for what the store was made with. DamagedError
    if the bytes of `store` are not what was written, ReplacedError if it was replaced meanwhile.

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
    joined = StoredPlusNew(store, source)
    with ExitStack() as stack:
        pipeline = Pipeline(
            joined,
            OneShotImport(Path(path), tmp, overwrite=overwrite),
            stack,
            "Adding edges",
            service=LocalSortEncode(usable_cores()) if service is None else service,
            how=how,
            tile_edges=facts.tile_edges,
            memory=memory,
            progress=progress,
            block_edges=block_edges,
            bucket_edges=bucket_edges,
        )
        edges, order = pipeline.read(lambda edges: keep_order(edges.ids), 2)
        rows = _rows(store, edges, memory)

        given = facts.edges + facts.duplicates
        tile_edges = _tile_edges(facts, given, edges.edges)
        most_rows = int(np.diff(store.tile_rows).max())
        reserved = budget.stored_tile_bytes(facts.tile_edges, most_rows, weighted=facts.weighted)
        pipeline.plan_tiles(edges, order, tile_edges, stored_edges=facts.edges, reserved=reserved)
        counter, sums = pipeline.counter, pipeline.out_weights
        new = NewEdges(pipeline.sorted_edges(edges.runs), counter, how)
        old = StoredTiles(store, rows)
        copied, local_edges, total = 0, 0, given + edges.edges
        if rows is None and tile_edges == facts.tile_edges:
            copied = old.copy(pipeline.writer, new, grown=edges.nodes > store.nodes, sums=sums)
        if copied < store.tiles:
            pieces = new.merged(old.edges(copied))
            local_edges = pipeline.write_tiles(pieces, copied, int(store.tile_rows[copied]), total)
        degree = _out_degree(store, counter, rows)
        if Path(path).resolve() == Path(store.path).resolve():
            # What somebody else has made of the graph meanwhile is not to be lost.
            store.check_current()
        store.check_unchanged()
        if copied:
            local_edges += facts.local_edges - old.local_edges
        self_loops = facts.self_loops + counter.self_loops
        return pipeline.finish(total, self_loops, local_edges, degree), copied


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


def _rows(store: GraphStore, edges: SpilledEdges, memory: int) -> NDArray[np.uint32] | None:
    """New row of each stored one; None if they are the same."""
    dictionary = edges.dictionary
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


def _out_degree(
    store: GraphStore, counter: EdgeCounter, rows: NDArray[np.uint32] | None
) -> NDArray[np.uint32]:
    """Out-degrees of all rows: uint32, shape (nodes,)."""
    degree = counter.out_degree()
    for lo in range(0, store.nodes, _CHUNK):
        hi = min(lo + _CHUNK, store.nodes)
        here = slice(lo, hi) if rows is None else rows[lo:hi]
        degree[here] += store.out_degree(lo, hi)
    return degree
