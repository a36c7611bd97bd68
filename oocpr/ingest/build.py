"""Any source to a finished store: drives the stages and shares the memory out among them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import UsageError
from oocpr.ingest import budget
from oocpr.ingest.budget import require, resident, settled
from oocpr.ingest.called import ids_of_rows, names_of_rows
from oocpr.ingest.encode import TileEncoder
from oocpr.ingest.merge import Tally
from oocpr.ingest.ordering import ORDERS, Ordering
from oocpr.ingest.partition import Run, partition
from oocpr.ingest.scratch import Scratch, Workspace
from oocpr.ingest.sort import Sorter
from oocpr.ingest.spill import spill
from oocpr.ingest.tiles import TileCutter
from oocpr.progress import silent
from oocpr.store.codec import encode_chunk
from oocpr.store.graph import GraphWriter
from oocpr.store.packing import encode_tile
from oocpr.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

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
    progress: Progress = silent,
    tell: Callable[[str], None] = lambda _: None,
    block_edges: int | None = None,
    bucket_edges: int | None = None,
) -> Attributes:
    """Write the graph of `source` as a store; its bytes depend on the source, `order` and `tile_edges` only.

    Links that the source repeats count once, links from a node to itself are kept. Beside the store, 8 bytes
    an edge that do not fit in memory are needed for temporary files, and 8 more an edge for orders other than
    "keep" and for nodes with names or ids of 64 bits.

    Parameters
    ----------
    source
        What to import; it is read once.
    path
        The store to make. It appears when it is whole; an import that does not finish leaves nothing.
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
    progress
        Told the stages "reading", "looking up", "numbering", "ordering", "partitioning" and "writing", those
        that there are.
    tell
        Called with the reason, one line, where "auto" has chosen an order.
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
        Where the source cannot be read or contradicts itself.
    UsageError
        Where `order`, `tile_edges` or `tmp` cannot be, or something stands at `path`.

    Examples
    --------
    >>> import tempfile
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
    _load_coders()
    require(resident() + budget.least_bytes(tile_edges), memory, "An import")
    with ExitStack() as stack:
        writer = stack.enter_context(GraphWriter(path, overwrite=overwrite))
        folder = Path(path).absolute().parent if tmp is None else Path(tmp)
        workspace = stack.enter_context(Workspace(folder))
        spare = memory - resident() - budget.SLACK_BYTES
        passes = 1 if order == "keep" else 2
        block_edges = block_edges or budget.block_edges(spare)
        spilled = spill(source, workspace, block_edges, memory, progress, passes)
        tile_edges = tile_edges or budget.tile_edges_for(spilled.edges)
        run = Run(spilled.file, 0, spilled.edges, 0, spilled.nodes << 32)
        ordered = Ordering(run, spilled, source, workspace, memory, progress).find(order)
        if ordered.reason is not None:
            tell(ordered.reason)

        share = budget.Share(spilled.nodes, spilled.edges, tile_edges)
        cores = len(os.sched_getaffinity(0))
        if share.workers(memory - settled() - budget.SLACK_BYTES, cores) < cores:
            spilled.file.shed()
        beside = settled() + budget.SLACK_BYTES
        size = f"{format_count(spilled.nodes)} nodes and {format_count(spilled.edges)} edges"
        require(beside + share.least(), memory, f"Sorting {size}")
        workers = share.workers(memory - beside, cores)
        bucket_edges = bucket_edges or share.bucket_edges(memory - beside, workers)
        pool = stack.enter_context(_threads(workers)) if workers else None

        usual = budget.usual_rows(spilled.nodes, spilled.edges, tile_edges)
        encoder = TileEncoder(writer, pool, workers, usual, memory)
        cutter = TileCutter(tile_edges, spilled.nodes, encoder.add)
        tally = Tally(spilled.nodes)
        with Scratch(folder) as dealt:
            if ordered.name == "keep" and spilled.dictionary is None:
                runs = spilled.dealer.runs() if spilled.dealer else iter(())
                relabel = ordered.relabel
                if order != "keep" and spilled.ids is not None:
                    runs = map(spilled.ids.relabel_bounds, runs)
            else:
                run = replace(run, relabel=ordered.relabel)
                runs = iter(_partitioned(run, dealt, bucket_edges, progress))
                relabel = None
            done = 0
            for keys, count in Sorter(pool, workers, bucket_edges, relabel).pieces(runs):
                tally.add(keys, count)
                cutter.add(keys)
                done += count
                progress("writing", done, spilled.edges, "edges")
        cutter.finish()
        encoder.finish()
        return writer.finish(
            source=source.name,
            order=ordered.name,
            tile_edges=tile_edges,
            duplicates=tally.duplicates,
            self_loops=tally.self_loops,
            local_edges=encoder.local_edges,
            out_degree=[tally.out_degree],
            node_ids=ids_of_rows(spilled.dictionary, ordered, memory),
            labels=names_of_rows(source, spilled.dictionary, ordered, workspace, memory),
        )


def _load_coders() -> None:
    """Load the store's compiled functions, so that their memory is counted before it is shared out."""
    encode_tile(np.zeros(1, np.uint32), np.ones(1, np.uint32))
    encode_chunk(np.zeros(1, np.int64))


def _partitioned(run: Run, dealt: Scratch, bucket_edges: int, progress: Progress) -> list[Run]:
    """Deal the keys of a run to buckets where they do not fit in memory; its file is closed then."""
    if run.count <= max(1, bucket_edges):
        return [run] if run.count else []
    space = np.empty(max(2, bucket_edges), np.uint64)
    buckets = partition(
        run, dealt, space, lambda done: progress("partitioning", done, 2 * run.count, "edges")
    )
    run.scratch.close()
    return buckets


@contextmanager
def _threads(workers: int) -> Iterator[Executor]:
    pool = ThreadPoolExecutor(workers, "oocpr-import")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
