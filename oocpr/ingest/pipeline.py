"""From a source to a finished store: the stages that making a store and adding to one have in common."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from oocpr.ingest import budget
from oocpr.ingest.budget import require
from oocpr.ingest.concurrency import BoundedExecutor
from oocpr.ingest.node_ids import ids_of_rows, names_of_rows
from oocpr.ingest.read import spill
from oocpr.ingest.sort.rows import NO_RANKS, EdgeCounter
from oocpr.ingest.sort.sorter import Sorter
from oocpr.ingest.sort.tiles import TileCutter, TileEncoder
from oocpr.ingest.sort.weights import OutWeights
from oocpr.ingest.spill.partition import repartition
from oocpr.ingest.warmup import warm_up, warm_up_weights
from oocpr.system import resident, resident_after_trim, usable_cores
from oocpr.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor
    from contextlib import ExitStack

    import numpy as np
    from numpy.typing import NDArray

    from oocpr.ingest.order.permutation import Order
    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.resume.imports import OneShotImport
    from oocpr.ingest.sort.rows import Rows
    from oocpr.ingest.sort.sorter import SortEncodeService
    from oocpr.ingest.spill.keys import KeyRun
    from oocpr.progress import Progress
    from oocpr.sources.block import Source
    from oocpr.store.format import Attributes


class Pipeline:
    """The stages of an import, under one memory budget: `read`, `plan_tiles`, `write_tiles`, `finish`.

    Parameters
    ----------
    source, job
        What is imported; where its files go, and what an earlier process has finished of it.
    stack
        Closes all that the pipeline opens.
    what
        What is done, the subject of a sentence.
    service
        Sorts edges and encodes tiles.
    how
        What duplicate edges become, see `duplicate_policy`; None for a store without weights.
    tile_edges
        Edges of a tile, None if that is not known yet.

    Attributes
    ----------
    writer, spill_dir
        Of the store, and of temporary files.
    counter, out_weights
        Count the edges and add up their weights, None if there are none; from `plan_tiles` on.
    """

    counter: EdgeCounter
    out_weights: OutWeights | None

    def __init__(
        self,
        source: Source,
        job: OneShotImport,
        stack: ExitStack,
        what: str,
        *,
        service: SortEncodeService,
        how: str | None,
        tile_edges: int | None,
        memory: int,
        progress: Progress,
        block_edges: int | None,
        bucket_edges: int | None,
    ) -> None:
        self._source = source
        self._job = job
        self._stack = stack
        self._service = service
        self._how = how
        self._weighted = how is not None
        self._memory = memory
        self._progress = progress
        self._bucket_edges = bucket_edges
        self.writer = stack.enter_context(job.writer())
        self.spill_dir = stack.enter_context(job.spill_dir())
        warm_up(self.spill_dir)
        if how is not None:
            warm_up_weights(self.spill_dir, how)
        needed = budget.least_bytes(tile_edges, service.needs, weighted=self._weighted)
        require(resident() + needed, memory, what)
        spare = memory - resident() - budget.SLACK_BYTES
        self._block_edges = block_edges or budget.block_edges(spare, weighted=source.weighted)

    def read(
        self,
        find_order: Callable[[SpilledEdges], Order],
        passes: int,
        on_message: Callable[[str], None] = lambda _: None,
    ) -> tuple[SpilledEdges, Order]:
        """Read the edges, order the nodes, and partition the edges by rows; or take up what was done of that.

        All edges will be written to temporary files at least `passes` times; `on_message` is told how much
        these will take, if that is much.
        """
        cores = usable_cores()
        with _worker_threads(cores) as pool:
            edges = self._job.resumed_edges(self._source, self._memory)
            if edges is None:
                edges = spill(
                    self._source,
                    self.spill_dir,
                    self._block_edges,
                    self._memory,
                    self._progress,
                    passes,
                    pool,
                    cores,
                    on_message,
                )
                self._job.finish_reading(self._source, edges)
            order = self._job.resumed_order()
            if order is None:
                order = find_order(edges)
                # Ids in their order are in buckets of their rows already.
                if order.relabel is not None or edges.dictionary is not None:
                    edges = self._partition(edges, order, pool, cores)
                    self._job.finish_partitioning(edges, order)
        return edges, order

    def _partition(self, edges: SpilledEdges, order: Order, pool: Executor, cores: int) -> SpilledEdges:
        """Partition edges by their rows into another file."""
        spare = self._memory - resident_after_trim()
        file = self.spill_dir.file(budget.spill_memory(spare, self._block_edges, cores), "partitioned")
        partitioner = repartition(
            edges.runs,
            order.relabel,
            edges.nodes,
            file,
            self._block_edges,
            BoundedExecutor(pool, cores),
            lambda done: self._progress("partitioning", done, edges.edges, "edges"),
        )
        edges.file.close()
        return replace(edges, file=file, runs=list(partitioner.runs()), partitioner=partitioner)

    def plan_tiles(
        self, edges: SpilledEdges, order: Order, tile_edges: int, *, stored_edges: int = 0, reserved: int = 0
    ) -> None:
        """Share the memory out among threads that sort edges and encode tiles.

        Other `stored_edges`, sorted already, are merged with these, which takes `reserved` bytes.
        """
        self._edges, self._order, self._tile_edges = edges, order, tile_edges
        nodes, total, service = edges.nodes, edges.edges + stored_edges, self._service
        share = budget.SortBudget(nodes, total, tile_edges, service.needs, weighted=self._weighted)
        workers, space = self._threads_and_space(share, self._memory - reserved)
        self._workers = workers
        self._callers = self._stack.enter_context(_worker_threads(workers)) if workers else None
        self._usual_rows = budget.usual_rows(nodes, total, tile_edges)
        self.counter = EdgeCounter(nodes)
        self.out_weights = OutWeights(nodes) if self._weighted else None
        ranks = NO_RANKS if order.relabel is not None or edges.ids is None else edges.ids.ranks
        self._sorter = Sorter(
            service, self._callers, workers, self._bucket_edges or space, ranks, self.counter, self._how
        )

    def _threads_and_space(self, share: budget.SortBudget, memory: int) -> tuple[int, int]:
        """Choose how many threads work, and how many edges they sort at once; make room for that."""
        edges, cores = self._edges, self._service.workers
        largest = max((run.count for run in edges.runs), default=0)
        lacking = resident_after_trim() + budget.SLACK_BYTES + share.wanted(cores, largest) - memory
        if lacking > 0:
            edges.file.shed(lacking)
        held = resident_after_trim() + budget.SLACK_BYTES
        size = f"{format_count(edges.nodes)} nodes and {format_count(edges.edges)} edges"
        require(held + share.least(), memory, f"Sorting {size}")
        workers = share.workers(memory - held, cores)
        return workers, share.bucket_edges(memory - held, workers, largest)

    def sorted_edges(self, runs: Iterable[KeyRun]) -> Iterator[Rows]:
        """Yield the edges of runs in the order of their rows, each once; they are counted."""
        return self._sorter.pieces(runs)

    def write_tiles(self, pieces: Iterable[Rows], first_tile: int, first_row: int, total: int) -> int:
        """Write sorted edges as tiles from number `first_tile` on, which begins with `first_row`.

        The pieces are all edges that are not in tiles yet, `total` those of all tiles, duplicates included.
        Returns how many edges have their column among the owned rows of their tile.
        """
        encoder = TileEncoder(
            self._service,
            self.writer,
            self._callers,
            self._workers,
            self._tile_edges,
            self._usual_rows,
            self._memory,
            first_tile,
            weighted=self._weighted,
        )
        nodes, sums = self._edges.nodes, self.out_weights
        cutter = TileCutter(self._tile_edges, nodes, encoder.add, first_row, weighted=self._weighted)
        done = self.writer.edges
        for edges in pieces:
            cutter.add(edges if sums is None else sums.take(edges))
            done += edges.given
            self._progress("writing", min(done, total), total, "edges")
        cutter.finish()
        encoder.finish()
        return encoder.local_edges

    def finish(
        self, total: int, self_loops: int, local_edges: int, out_degree: NDArray[np.uint32]
    ) -> Attributes:
        """Write what belongs to the rows, out-degrees (uint32) among it, and give the store its name.

        `total` edges were given, duplicates included.
        """
        found, order = self._edges.dictionary, self._order
        return self.writer.finish(
            source=self._source.name,
            order=order.name,
            tile_edges=self._tile_edges,
            duplicates=total - self.writer.edges,
            duplicate_weights=self._how,
            self_loops=self_loops,
            local_edges=local_edges,
            out_degree=[out_degree],
            out_weight=None if self.out_weights is None else [self.out_weights.to_numpy()],
            node_ids=ids_of_rows(found, order, self._memory),
            labels=names_of_rows(self._source, found, order, self.spill_dir, self._memory),
        )


@contextmanager
def _worker_threads(workers: int) -> Iterator[Executor]:
    """Begin so many threads, and end them."""
    pool = ThreadPoolExecutor(workers, "oocpr-import")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
