"""Any source to a finished store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import UsageError
from oocpr.ingest import budget
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.jit_warmup import warm_up
from oocpr.ingest.nodes.row_names import ids_of_rows, names_of_rows
from oocpr.ingest.nodes.strings import take_strings
from oocpr.ingest.orders import ORDERS
from oocpr.ingest.orders.permutation import Order, make_order
from oocpr.ingest.read import SpilledEdges, spill
from oocpr.ingest.resume import OneShotImport, ResumableImport, in_ids, interrupted_import, rows_after
from oocpr.ingest.rows import NO_RANKS, EdgeCounter, Rows, duplicate_policy
from oocpr.ingest.spill.partition import BoundedExecutor, repartition
from oocpr.ingest.tiles import Sorter, TileWriter
from oocpr.progress import Progress, silent, under
from oocpr.store.atomic import Partial, clear_abandoned
from oocpr.store.graph import open_store
from oocpr.system import resident, resident_after_trim, usable_cores
from oocpr.units import format_count

if TYPE_CHECKING:
    import os
    from concurrent.futures import Executor

    from oocpr.ingest.cluster import Workers
    from oocpr.ingest.nodes.strings import Piece
    from oocpr.sources.block import Source, Strings
    from oocpr.store.format import Attributes


def _labels_of(source: Source) -> Iterable[str] | Iterable[Piece] | None:
    from oocpr.sources.names import FileLabels

    labels = source.labels
    if not isinstance(labels, FileLabels):
        return labels
    return map(_end_to_end, labels.strings())


def _end_to_end(names: Strings) -> Piece:
    lengths = (names.ends - names.starts).astype(np.uint32)
    return take_strings(names.text, names.starts, lengths, np.arange(names.size)), lengths


@dataclass(frozen=True)
class Resources:
    """What an import may use; most edges of a block and of a bucket, None for what the memory allows."""

    memory: int
    progress: Progress
    block_edges: int | None
    bucket_edges: int | None


@dataclass
class Pipeline:
    """The stages of an import, under one memory budget: `read`, `plan_tiles`, `write_tiles`, `finish`.

    `job` says where its files go, and what an earlier process has finished of it; `stack` closes all that is
    opened; `what` is done, the subject of a sentence. Duplicate edges become `how`, see `duplicate_policy`,
    None for a store without weights. `tile_edges` is None if it is not known yet. `order` is what `read` is
    going to be asked for, and `reads_store` says whether tiles of another store are read. From `plan_tiles`
    on, `sorter` gives the edges of runs, and `counter` counts them and adds up their weights.
    """

    source: Source
    job: OneShotImport
    stack: ExitStack
    what: str
    how: str | None
    tile_edges: int | None
    resources: Resources
    order: str = "keep"
    reads_store: bool = False

    def __post_init__(self) -> None:
        resources, weighted = self.resources, self.how is not None
        self._memory, self._progress = resources.memory, resources.progress
        self.writer = self.stack.enter_context(self.job.writer())
        self.spill_dir = self.stack.enter_context(self.job.spill_dir())
        stored = self.reads_store or self.job.has_tiles
        warm_up(self.spill_dir, self.how, self.order, stored=stored)
        needed = budget.min_bytes(self.tile_edges, weighted=weighted)
        require(resident() + needed, self._memory, self.what)
        spare = self._memory - resident() - SLACK_BYTES
        self._block_edges = resources.block_edges or budget.block_edges(spare, weighted=self.source.weighted)

    def read(
        self,
        find_order: Callable[[SpilledEdges], Order],
        passes: int,
        on_message: Callable[[str], None] = lambda _: None,
    ) -> tuple[SpilledEdges, Order]:
        """Read the edges, order the nodes, and partition the edges by rows; or continue with what is done.

        All edges will be written to temporary files at least `passes` times; `on_message` is told how much
        these will take, if that is much.
        """
        with _worker_threads(usable_cores()) as pool:
            executor = BoundedExecutor(pool, usable_cores())
            edges = self.job.resumed_edges(self.source, self._memory)
            if edges is None:
                limits = (self._block_edges, self._memory, self._progress, passes)
                edges = spill(self.source, self.spill_dir, *limits, executor, on_message)
                self.job.finish_reading(self.source, edges)
            order = self.job.resumed_order()
            if order is None:
                order = find_order(edges)
                # Ids in their order are in buckets of their rows already.
                if order.relabel is not None or edges.dictionary is not None:
                    read, edges = edges, self._partition(edges, order, executor)
                    read.file.close()
                    self.job.finish_partitioning(edges, order)
        return edges, order

    def _partition(self, edges: SpilledEdges, order: Order, executor: BoundedExecutor) -> SpilledEdges:
        """Partition edges by their rows into another file."""
        spare = self._memory - resident_after_trim()
        in_memory = budget.spill_memory(spare, self._block_edges, executor.limit)
        file = self.spill_dir.file(in_memory, "partitioned")
        partitioner = repartition(
            edges.runs,
            order.relabel,
            edges.nodes,
            file,
            self._block_edges,
            executor,
            lambda done: self._progress("partitioning", done, edges.edges, "edges"),
        )
        return replace(edges, file=file, runs=list(partitioner.runs()), partitioner=partitioner)

    def plan_tiles(
        self, edges: SpilledEdges, order: Order, tile_edges: int, *, stored_edges: int = 0, reserved: int = 0
    ) -> None:
        """Divide the memory among threads that sort edges and encode tiles.

        Other `stored_edges`, sorted already, are merged with these, which takes `reserved` bytes.
        """
        self._edges, self._order, self._tile_edges = edges, order, tile_edges
        nodes, total = edges.nodes, edges.edges + stored_edges
        weighted, cores = self.how is not None, usable_cores()
        share = budget.SortBudget(nodes, total, tile_edges, weighted=weighted)
        # Make room for what the threads want, and choose how many they are and how many edges they sort.
        memory, largest = self._memory - reserved, max((run.count for run in edges.runs), default=0)
        lacking = resident_after_trim() + SLACK_BYTES + share.wanted(cores, largest) - memory
        if lacking > 0:
            edges.file.shed(lacking)
        held = resident_after_trim() + SLACK_BYTES
        size = f"{format_count(nodes)} nodes and {format_count(edges.edges)} edges"
        require(held + share.min_bytes() + reserved, self._memory, f"Sorting {size}")
        self._workers = workers = share.workers(memory - held, cores)
        space = self.resources.bucket_edges or share.bucket_edges(memory - held, workers, largest)
        self._callers = self.stack.enter_context(_worker_threads(workers)) if workers else None
        self._planned_rows = budget.planned_rows(nodes, total, tile_edges)
        self.counter = EdgeCounter(nodes, weighted=weighted)
        ranks = NO_RANKS if order.relabel is not None or edges.ids is None else edges.ids.ranks
        self.sorter = Sorter(self._callers, workers, space, ranks, self.counter, self.how)

    def write_tiles(self, pieces: Iterable[Rows], first_tile: int, first_row: int, total: int) -> int:
        """Write sorted edges as tiles from number `first_tile` on, which begins with `first_row`.

        The pieces are all edges that are not in tiles yet, `total` those of all tiles, duplicates included.
        Returns how many edges have their column among the owned rows of their tile.
        """
        writer = TileWriter(
            self.writer,
            self._callers,
            self._workers,
            self._edges.nodes,
            self._tile_edges,
            self._planned_rows,
            self._memory,
            first_tile,
            first_row,
            weighted=self.how is not None,
        )
        done = self.writer.edges
        for edges in pieces:
            self.counter.add_weights(edges.columns, edges.weights)
            writer.add(edges)
            done += edges.given
            self._progress("writing", min(done, total), total, "edges")
        writer.finish()
        return writer.local_edges

    def write(self, edges: SpilledEdges, order: Order, *, named: bool = True) -> Attributes:
        """Write the tiles that are not written yet, and what belongs to the rows; name the store.

        `named`: whether the nodes keep their ids and names.
        """
        self.plan_tiles(edges, order, self.tile_edges or budget.tile_edges_for(edges.edges))
        counter, local_edges = self.counter, 0
        done = self.job.resumed_tiles(self.writer, counter)
        if done.row < edges.nodes:
            if done.key is None:
                pieces = self.sorter.pieces(edges.runs)
            else:
                by_id = order.relabel is None and edges.ids is not None
                key = in_ids(done.key, order.node_ids) if by_id else done.key
                runs = (run for run in edges.runs if run.high > key + 1)
                pieces = rows_after(self.sorter.pieces(runs), done.key, counter)
            local_edges = self.write_tiles(pieces, done.count, done.row, edges.edges)
        local_edges += done.local_edges
        return self.finish(edges.edges, counter.self_loops, local_edges, counter.out_degree(), named=named)

    def write_beside(self, edges: SpilledEdges, order: Order, path: Path, progress: Progress) -> Attributes:
        """Write edges that this pipeline has read as another store, without names."""
        resources = replace(self.resources, progress=progress)
        with ExitStack() as stack, _worker_threads(usable_cores()) as pool:
            job = OneShotImport(path, None, overwrite=False)
            beside = replace(self, job=job, stack=stack, resources=resources)
            if order.relabel is not None or edges.dictionary is not None:
                edges = beside._partition(edges, order, BoundedExecutor(pool, usable_cores()))
            return beside.write(edges, order, named=False)

    def finish(
        self,
        total: int,
        self_loops: int,
        local_edges: int,
        out_degree: NDArray[np.uint32],
        *,
        named: bool = True,
    ) -> Attributes:
        """Write what belongs to the rows, and name the store; `total` edges were given with duplicates."""
        found, order, out_weight = self._edges.dictionary, self._order, self.counter.out_weight()
        ids = names = None
        if named:
            ids = ids_of_rows(found, order.node_ids, self._memory)
            labels = _labels_of(self.source)
            names = names_of_rows(labels, found, order.node_ids, self.spill_dir, self._memory)
        return self.writer.finish(
            source=self.source.name,
            direction=getattr(self.source, "direction", None),
            order=order.name,
            tile_edges=self._tile_edges,
            duplicates=total - self.writer.edges,
            duplicate_weights=self.how,
            self_loops=self_loops,
            local_edges=local_edges,
            out_degree=[out_degree],
            out_weight=None if out_weight is None else [out_weight],
            node_ids=ids,
            labels=names,
        )


@contextmanager
def _worker_threads(workers: int) -> Iterator[Executor]:
    """Begin so many threads, and end them."""
    pool = ThreadPoolExecutor(workers, "oocpr-import")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


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
    workers: Workers | None = None,
    count_passes: Callable[[Path, Progress], int] | None = None,
    block_edges: int | None = None,
    bucket_edges: int | None = None,
) -> Attributes:
    """Write the graph of `source`, which is read once, as a store.

    Its bytes depend on the source, `order`, `tile_edges` and `duplicates` only. Besides it, temporary files
    take 4 to 8 bytes per edge that does not fit in memory, 8 for its weight; as many again for orders other
    than "keep", and 8 more for nodes with names or ids of 64 bits.

    Parameters are those of `oocpr.import_graph`, and these: `on_reason` gets one line if order "auto" has
    chosen an order; `workers` read, sort and write the edges if they can, None for threads of this process;
    `count_passes` ranks a store, for order "auto", and gives its passes, None for samples alone;
    `block_edges` and `bucket_edges` are read and sorted at once at most, None for what `memory` allows.
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
    if workers is not None:
        from oocpr.ingest.cluster import ClusterImport, OneProcessError

        try:
            if resume:
                raise OneProcessError("is to be imported so that it can be resumed")
            return ClusterImport(source, path, workers, how, order, tile_edges, overwrite, progress).run()
        except OneProcessError as reason:
            on_message(f"This process imports alone, without workers: {source.name} {reason}.")
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
        resources = Resources(memory, progress, block_edges, bucket_edges)
        pipeline = Pipeline(source, job, stack, "An import", how, tile_edges, resources, order)

        def find_order(edges: SpilledEdges) -> Order:
            if order == "keep":
                return make_order(order, None, edges.ids)

            from oocpr.ingest.orders.choice import OrderCost, Ordering

            def trial(tried: Order) -> OrderCost:
                assert count_passes is not None
                # An import that is killed leaves it where the next one to this path finds it.
                folder = Partial(path, folder=True, suffix=".zarr")
                try:
                    beside, told = folder.path / "tried.zarr", under(progress, f"order {tried.name}")
                    built = pipeline.write_beside(edges, tried, beside, told)
                    passes = count_passes(beside, told)
                finally:
                    folder.remove()
                return OrderCost(built.edges, built.column_bytes, passes=passes)

            tries = None if count_passes is None else trial
            return Ordering(edges, source, pipeline.spill_dir, memory, progress, tries).find(order)

        edges, ordered = pipeline.read(find_order, 1 if order == "keep" else 2, on_message)
        if ordered.reason is not None:
            on_reason(ordered.reason)
        return pipeline.write(edges, ordered)
