"""Any source to a finished store: drives the stages and shares the memory out among them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from oocpr.errors import UsageError
from oocpr.ingest import budget
from oocpr.ingest.budget import require
from oocpr.ingest.node_ids import ids_of_rows, names_of_rows
from oocpr.ingest.order.find import ORDERS, Ordering
from oocpr.ingest.pipeline import dealt, shared, threads_of
from oocpr.ingest.read import spill
from oocpr.ingest.resume.leftovers import left_over
from oocpr.ingest.resume.none import NothingKept
from oocpr.ingest.resume.session import Kept
from oocpr.ingest.resume.tiles import in_ids, rows_behind, runs_behind
from oocpr.ingest.sort.rows import NO_RANKS, EdgeCounter
from oocpr.ingest.sort.sorter import LocalSortEncode, Sorter
from oocpr.ingest.sort.tiles import TileCutter, TileEncoder
from oocpr.ingest.sort.weights import OutWeights, duplicate_policy
from oocpr.ingest.warmup import warm_up, warm_up_weights
from oocpr.progress import silent
from oocpr.store.atomic import clear_abandoned
from oocpr.store.graph import open_store
from oocpr.system import resident, usable_cores

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
    tell: Callable[[str], None] = lambda _: None,
    explain: Callable[[str], None] = lambda _: None,
    hands: SortEncodeService | None = None,
    block_edges: int | None = None,
    bucket_edges: int | None = None,
) -> Attributes:
    """Write the graph of `source` as a store.

    Its bytes depend on the source, `order`, `tile_edges` and `duplicates` only. Links from a node to itself
    are kept. Beside the store, 4 to 8 bytes an edge that do not fit in memory, and 8 for its weight, are
    needed for temporary files, as many again for orders other than "keep", and 8 more an edge for nodes with
    names or ids of 64 bits.

    Parameters
    ----------
    source
        What to import; it is read once.
    path
        The store to make. It appears when it is whole; an import that does not finish leaves nothing, unless
        it can be resumed.
    memory
        Most bytes that this process may hold, those it holds already included.
    order
        Order of the rows: "keep" has that of the source's ids, "degree" goes by out-degree, descending, where
        repeated links count as often as they come, and by id among equals; "host" by name, hosts reversed;
        "bfs" as a breadth-first search meets the nodes; "auto" chooses one of them from a sample of the
        graph, the same one whatever `memory` is.
    tile_edges
        Edges of a tile; None chooses a power of two from 2^10 to 2^20 that gives 4 tiles or more.
    tmp
        Folder for temporary files; None takes the one that `path` is in.
    overwrite
        Whether to replace a store that stands at `path`.
    resume
        Whether to keep on the disk all that is finished, and to go on with what another import has kept.
    duplicates
        What a link that the source repeats becomes: with "merge" it counts once, with its greatest weight;
        with "sum" its weights are added, smaller ones first; with "count" its weight is how often it comes,
        and the source has none of its own. None for "sum" where the source has weights, else "merge".
    progress
        Told the stages "reading", "looking up", "numbering", "ordering", "partitioning" and "writing", those
        that there are.
    tell
        Told what a person should know: what was left by imports that were interrupted, how much disk the
        temporary files will take where that is much.
    explain
        Called with the reason, one line, where "auto" has chosen an order.
    hands
        Sort the edges and encode the tiles; None for those of this process.
    block_edges, bucket_edges
        Most edges that are read and that are sorted at once; None takes what `memory` allows.

    Returns
    -------
    facts : Attributes
        What the store says about itself.

    Raises
    ------
    DoesNotFitError
        Where `memory` or the disk is too small; before any work where that can be known.
    InputError
        Where the source cannot be read or contradicts itself, or weights add up to more than float64 holds.
    UsageError
        Where `order`, `tile_edges`, `duplicates` or `tmp` cannot be, something stands at `path`, or what was
        left cannot be resumed: it is of another source or of other options.

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
    weighted = how is not None
    cores = usable_cores()
    hands = LocalSortEncode(cores) if hands is None else hands
    path = Path(path)
    for removed in clear_abandoned(path):
        tell(removed)
    if not resume and (found := left_over(path, tmp)) is not None:
        tell(str(found))
    with ExitStack() as stack:
        kept: NothingKept | Kept = NothingKept(path, tmp, overwrite=overwrite)
        if resume:
            options = {"order": order, "tile_edges": tile_edges, "duplicates": how or "merge"}
            kept = stack.enter_context(
                Kept(source, path, tmp, overwrite=overwrite, options=options, tell=tell)
            )
        if kept.whole:
            return open_store(path).attributes
        writer = stack.enter_context(kept.writer())
        workspace = stack.enter_context(kept.workspace())
        warm_up(workspace)
        if how is not None:
            warm_up_weights(workspace, how)
        least = budget.least_bytes(tile_edges, hands.needs, weighted=weighted)
        require(resident() + least, memory, "An import")
        spare = memory - resident() - budget.SLACK_BYTES
        block_edges = block_edges or budget.block_edges(spare, weighted=source.weighted)
        passes = 1 if order == "keep" else 2
        with threads_of(cores) as pool:
            spilled = kept.spilled(source)
            if spilled is None:
                spilled = spill(
                    source, workspace, block_edges, memory, progress, kept, passes, pool, cores, tell
                )
            ordered = kept.ordered()
            if ordered is None:
                ordered = Ordering(spilled, source, workspace, memory, progress).find(order)
                threads = pool, cores
                spilled = dealt(spilled, ordered, kept, workspace, memory, block_edges, threads, progress)
            if ordered.reason is not None:
                explain(ordered.reason)

        tile_edges = tile_edges or budget.tile_edges_for(spilled.edges)
        share = budget.SortBudget(spilled.nodes, spilled.edges, tile_edges, hands.needs, weighted=weighted)
        workers, space = shared(share, spilled, memory, hands.workers)
        callers = stack.enter_context(threads_of(workers)) if workers else None
        usual = budget.usual_rows(spilled.nodes, spilled.edges, tile_edges)
        tally = EdgeCounter(spilled.nodes)
        sums = OutWeights(spilled.nodes) if weighted else None
        taken = kept.take_tiles(writer, tally, sums)
        encoder = TileEncoder(
            hands, writer, callers, workers, tile_edges, usual, memory, taken.tiles, weighted=weighted
        )
        if taken.row < spilled.nodes:
            cutter = TileCutter(tile_edges, spilled.nodes, encoder.add, taken.row, weighted=weighted)
            by_id = spilled.ids if ordered.relabel is None else None
            ranks = NO_RANKS if by_id is None else by_id.ranks
            left = runs_behind(spilled.runs, in_ids(taken.key, ordered.node_ids) if by_id else taken.key)
            sorter = Sorter(hands, callers, workers, bucket_edges or space, ranks, tally, how)
            done = writer.edges
            for edges in rows_behind(sorter.pieces(left), taken.key, tally):
                cutter.add(edges if sums is None else sums.take(edges))
                done += edges.given
                progress("writing", min(done, spilled.edges), spilled.edges, "edges")
            cutter.finish()
            encoder.finish()
        return writer.finish(
            source=source.name,
            order=ordered.name,
            tile_edges=tile_edges,
            duplicates=spilled.edges - writer.edges,
            duplicate_weights=how,
            self_loops=tally.self_loops,
            local_edges=taken.local_edges + encoder.local_edges,
            out_degree=[tally.out_degree()],
            out_weight=None if sums is None else [sums.to_numpy()],
            node_ids=ids_of_rows(spilled.dictionary, ordered, memory),
            labels=names_of_rows(source, spilled.dictionary, ordered, workspace, memory),
        )
