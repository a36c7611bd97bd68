"""Ranks of many seeds: looked up, planned, ranked in memory and kept."""

from __future__ import annotations

import time
from statistics import fmean
from typing import TYPE_CHECKING, Any

from oocpr.errors import UsageError
from oocpr.progress import silent
from oocpr.result.personal_ranks import PersonalRanks
from oocpr.result.ranks import MemoryVector, Report, largest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.api.graphs import Graph
    from oocpr.engine.settings import Settings
    from oocpr.progress import Progress


def rank_seeds(
    opened: Graph,
    wanted: Any,
    settings: Settings,
    top: int | None,
    memory: str | int | None,
    threads: int | None,
    progress: Progress,
) -> PersonalRanks:
    """Rank the nodes of a graph for each of many seeds; see `oocpr.pagerank`."""
    from oocpr.engine.cpu.threads import default_threads
    from oocpr.engine.planning import given_memory, process_bytes, stats_of
    from oocpr.engine.scc import personal
    from oocpr.engine.scc.run import load_scc_graph
    from oocpr.ingest.budget import require
    from oocpr.jit import watched
    from oocpr.plan.forecast import MAX_SCC_NUMBERED_EDGES
    from oocpr.plan.memory import BLOCK_WIDTHS, block_need, block_shape
    from oocpr.result.names import names_of
    from oocpr.result.node_vectors import seed_vectors
    from oocpr.system import peak_resident

    begun, store = time.perf_counter(), opened.store
    if store.weights is not None:
        raise UsageError(
            "ranks of many seeds are for graphs without weights.",
            "Rank one seed at a time, or import the graph without weights.",
        )
    if store.edges > MAX_SCC_NUMBERED_EDGES:
        raise UsageError(
            f"ranks of many seeds are for graphs of up to {MAX_SCC_NUMBERED_EDGES:,} edges; "
            f"this one has {store.edges:,}.",
            "Rank one seed at a time, with method mixed.",
        )
    names, most, stats = names_of(store), given_memory(memory), stats_of(store)
    seeds, vectors = seed_vectors(wanted, names, store.nodes, most)
    answers = len(seeds) * (store.nodes * 8 if top is None else min(top, store.nodes) * 16)
    base = process_bytes() - sum(decoded.nbytes for decoded in opened.decoded.values())
    # Each thread has seeds of its own, so it is their products that feed threads.
    most_threads = threads or default_threads(store.edges * len(seeds))
    count, width = block_shape(
        stats, base=base, memory=most, threads=most_threads, seeds=len(seeds), answers=answers
    )
    needed = block_need(stats, base=base, threads=count, width=width, answers=answers)
    require(needed, most, f"Ranking a graph in memory for {len(seeds):,} seeds")
    kept: list[Any] = [None] * len(seeds)

    def taker(number: int, ranks: NDArray[np.float64]) -> None:
        kept[number] = ranks.copy() if top is None else largest(MemoryVector(ranks).chunks(), top)

    with watched(silent) as compilation, store.unchanged():
        read = "graph" not in opened.decoded
        if read:
            opened.decoded["graph"] = load_scc_graph(store, threads)
        graph = opened.decoded["graph"]
        if width > BLOCK_WIDTHS[0]:
            width = personal.filled_width(graph, vectors, count, width)
        outcomes = personal.rank_seeds(
            graph, settings, vectors, taker, threads=count, width=width, progress=progress
        )
        store.check_identity()
    seconds = time.perf_counter() - begun
    compiling = compilation.seconds if compilation.seconds < seconds else 0.0
    run = Report(
        nodes=store.nodes,
        edges=store.edges,
        method=settings.method,
        reads=settings.reads,
        damping=settings.damping,
        tol=settings.tol,
        dangling=settings.dangling,
        personalized=True,
        converged=bool(outcomes.converged.all()),
        error_bound=float(outcomes.error_bound.max()),
        passes=int(outcomes.passes.max()),
        gathers=fmean(outcomes.passes.tolist()),
        seconds=seconds,
        compile_seconds=compiling,
        gteps=store.edges * int(outcomes.passes.sum()) / (seconds - compiling) / 1e9,
        bytes_per_edge=store.attributes.encoded_bytes / max(store.edges, 1),
        bytes_read=graph.bytes_read if read else 0,
        peak_memory=peak_resident(),
        identity=store.identity,
    )
    return PersonalRanks(kept, seeds, names, outcomes, run)
