"""Any source to a finished store."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from oocpr.errors import UsageError
from oocpr.ingest import budget
from oocpr.ingest.order.find import ORDERS, Ordering
from oocpr.ingest.pipeline import Pipeline
from oocpr.ingest.resume.files import interrupted_import
from oocpr.ingest.resume.imports import OneShotImport, ResumableImport
from oocpr.ingest.resume.tiles import in_ids, rows_after, runs_after
from oocpr.ingest.sort.sorter import LocalSortEncode
from oocpr.ingest.sort.weights import duplicate_policy
from oocpr.progress import silent
from oocpr.store.atomic import clear_abandoned
from oocpr.store.graph import open_store
from oocpr.system import usable_cores

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from oocpr.ingest.sort.sorter import SortEncodeService
    from oocpr.progress import Progress
    from oocpr.sources.block import Source
    from oocpr.store.format import Attributes


def build_store(
    source: Source,
    path: str | os.PathLike[str],
    *,
    memory: int,
    order: str = "keep",
    tile_edges: int | None = None,
    tmp: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    duplicates: str | None = None,
    progress: Progress = silent,
    on_message: Callable[[str], None] = lambda _: None,
    on_reason: Callable[[str], None] = lambda _: None,
    service: SortEncodeService | None = None,
    block_edges: int | None = None,
    bucket_edges: int | None = None,
) -> Attributes:
    """Write the graph of `source`, which is read once, as a store.

    Its bytes depend on the source, `order`, `tile_edges` and `duplicates` only. Besides it, temporary files
    take 4 to 8 bytes per edge that does not fit in memory, 8 for its weight; as many again for orders other
    than "keep", and 8 more for nodes with names or ids of 64 bits. Parameters not listed are those of
    `oocpr.import_graph`.

    Parameters
    ----------
    tile_edges
        Edges of a tile; None chooses a power of two from 2^10 to 2^20 that gives 4 tiles or more.
    progress
        Told the stages "reading", "looking up", "numbering", "ordering", "partitioning" and "writing", those
        that there are.
    on_message
        Told what a person should know: what was left by imports that were interrupted, how much disk the
        temporary files will take if that is much.
    on_reason
        Called with the reason, one line, if order "auto" has chosen an order.
    service
        Sorts the edges and encodes the tiles; None for threads of this process.
    block_edges, bucket_edges
        Most edges that are read and that are sorted at once; None takes what `memory` allows.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from oocpr.sources import open_source
    >>> source = open_source((np.array([0, 1, 1, 5]), np.array([1, 5, 5, 5])))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     facts = build_store(source, f"{folder}/g.zarr", memory=2**33)
    >>> facts.nodes, facts.edges, facts.duplicates, facts.self_loops
    (3, 3, 1, 1)
    """
    if order not in ORDERS:
        raise UsageError(f"{order!r} is no order of nodes.", f"Choose one of {', '.join(ORDERS)}.")
    if tile_edges is not None and not 1 <= tile_edges <= budget.LARGEST_TILE_EDGES:
        raise UsageError(
            f"A tile of {tile_edges} edges cannot be.", f"Choose from 1 to {budget.LARGEST_TILE_EDGES}."
        )
    how = duplicate_policy(duplicates, weighted=source.weighted)
    path = Path(path)
    for removed in clear_abandoned(path):
        on_message(removed)
    if not resume and (found := interrupted_import(path, tmp)) is not None:
        on_message(found)
    with ExitStack() as stack:
        job = OneShotImport(path, tmp, overwrite=overwrite)
        if resume:
            options = {"order": order, "tile_edges": tile_edges, "duplicates": how or "merge"}
            job = stack.enter_context(
                ResumableImport(
                    source, path, tmp, overwrite=overwrite, options=options, on_message=on_message
                )
            )
        if job.whole:
            return open_store(path).attributes
        pipeline = Pipeline(
            source,
            job,
            stack,
            "An import",
            service=LocalSortEncode(usable_cores()) if service is None else service,
            how=how,
            tile_edges=tile_edges,
            memory=memory,
            progress=progress,
            block_edges=block_edges,
            bucket_edges=bucket_edges,
        )
        edges, ordered = pipeline.read(
            lambda edges: Ordering(edges, source, pipeline.spill_dir, memory, progress).find(order),
            1 if order == "keep" else 2,
            on_message,
        )
        if ordered.reason is not None:
            on_reason(ordered.reason)
        pipeline.plan_tiles(edges, ordered, tile_edges or budget.tile_edges_for(edges.edges))
        counter, local_edges = pipeline.counter, 0
        done = job.resumed_tiles(pipeline.writer, counter, pipeline.out_weights)
        if done.row < edges.nodes:
            by_id = ordered.relabel is None and edges.ids is not None
            runs = runs_after(edges.runs, in_ids(done.key, ordered.node_ids) if by_id else done.key)
            pieces = rows_after(pipeline.sorted_edges(runs), done.key, counter)
            local_edges = pipeline.write_tiles(pieces, done.count, done.row, edges.edges)
        return pipeline.finish(
            edges.edges, counter.self_loops, done.local_edges + local_edges, counter.out_degree()
        )
