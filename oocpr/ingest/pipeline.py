"""Steps that making a store and adding to one have in common."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from oocpr.ingest import budget
from oocpr.ingest.budget import require
from oocpr.ingest.concurrency import BoundedExecutor
from oocpr.ingest.spill.partition import repartition
from oocpr.system import resident_after_trim
from oocpr.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from oocpr.ingest.order.permutation import Order
    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.resume.none import NothingKept
    from oocpr.ingest.resume.session import Kept
    from oocpr.ingest.spill.files import SpillDir
    from oocpr.progress import Progress


def dealt(
    spilled: SpilledEdges,
    ordered: Order,
    kept: NothingKept | Kept,
    workspace: SpillDir,
    memory: int,
    block_edges: int,
    threads: tuple[Executor | None, int],
    progress: Progress,
) -> SpilledEdges:
    """Deal edges to buckets of their rows, where they are not in such; their file is closed then."""
    if ordered.relabel is None and spilled.dictionary is None:
        return spilled
    file = workspace.file(
        budget.spill_memory(memory - resident_after_trim(), block_edges, threads[1]), "dealt"
    )
    dealer = repartition(
        spilled.runs,
        ordered.relabel,
        spilled.nodes,
        file,
        block_edges,
        BoundedExecutor(*threads),
        lambda done: progress("partitioning", done, spilled.edges, "edges"),
    )
    spilled.file.close()
    kept.dealt(spilled, ordered, dealer)
    return replace(spilled, file=file, runs=list(dealer.runs()))


def shared(share: budget.SortBudget, spilled: SpilledEdges, memory: int, cores: int) -> tuple[int, int]:
    """Choose how many threads sort and write, and how many edges they sort at once; make room for that."""
    largest = max((run.count for run in spilled.runs), default=0)
    lacking = resident_after_trim() + budget.SLACK_BYTES + share.wanted(cores, largest) - memory
    if lacking > 0:
        spilled.file.shed(lacking)
    beside = resident_after_trim() + budget.SLACK_BYTES
    size = f"{format_count(spilled.nodes)} nodes and {format_count(spilled.edges)} edges"
    require(beside + share.least(), memory, f"Sorting {size}")
    workers = share.workers(memory - beside, cores)
    return workers, share.bucket_edges(memory - beside, workers, largest)


@contextmanager
def threads_of(workers: int) -> Iterator[Executor]:
    """Begin so many threads, and end them."""
    pool = ThreadPoolExecutor(workers, "oocpr-import")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
