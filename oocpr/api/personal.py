"""Ranks of many seeds: looked up, planned, ranked in memory or one after the other, and kept."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.top_k import largest
from oocpr.errors import UsageError
from oocpr.progress import Progress, silent
from oocpr.result.personal_ranks import PersonalRanks
from oocpr.result.ranks import MemoryVector, Report, report_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.api.graphs import Graph
    from oocpr.engine.method import Solution
    from oocpr.engine.planning import RunRequest
    from oocpr.engine.scc.personal import Outcomes, SeedVectors
    from oocpr.engine.settings import Settings


def rank_seeds(
    opened: Graph,
    wanted: Any,
    settings: Settings,
    request: RunRequest,
    top: int | None,
    progress: Progress,
    *,
    in_blocks: bool,
) -> PersonalRanks:
    """Rank the nodes of a graph for each of many seeds; see `oocpr.pagerank`.

    `settings`, `request`: of a run for one seed.
    `in_blocks`: whether blocks of seeds are ranked in memory if that can be; with method ``"components"`` it
        is an error if it cannot.
    """
    from oocpr.engine.cpu.threads import default_threads
    from oocpr.engine.planning import DEFAULT_READS, given_memory, process_bytes, stats_of
    from oocpr.ingest.budget import require
    from oocpr.plan.forecast import MAX_SCC_NUMBERED_EDGES
    from oocpr.plan.memory import block_need, block_shape
    from oocpr.result.names import names_of
    from oocpr.result.node_vectors import seed_vectors

    store, most, threads = opened.store, given_memory(request.memory), request.threads
    names, stats = names_of(store), stats_of(store)
    seeds, vectors = seed_vectors(wanted, names, store.nodes, most)
    answers = len(seeds) * (store.nodes * 8 if top is None else min(top, store.nodes) * 16)
    base = process_bytes() - request.reusable
    # Each thread has seeds of its own, so it is their products that feed threads.
    most_threads = threads or default_threads(store.edges * len(seeds))
    shape = block_shape(
        stats, base=base, memory=most, threads=most_threads, seeds=len(seeds), answers=answers
    )
    needed = block_need(stats, base=base, threads=shape[0], width=shape[1], answers=answers)
    kept = _Kept(opened, [None] * len(seeds), top)
    if settings.method == "components":
        if store.edges > MAX_SCC_NUMBERED_EDGES:
            raise UsageError(
                f"many seeds are ranked in memory in graphs of up to {MAX_SCC_NUMBERED_EDGES:,} edges; "
                f"this one has {store.edges:,}.",
                "Leave method components out.",
            )
        require(needed, most, f"Ranking a graph in memory for {len(seeds):,} seeds")
    in_blocks &= settings.solvable
    if in_blocks and store.edges <= MAX_SCC_NUMBERED_EDGES and needed <= most:
        settings = replace(settings, method="components", reads=DEFAULT_READS["components"])
        outcomes, run = _rank_in_blocks(kept, vectors, settings, shape, threads, progress)
    else:
        require(base + answers, most, f"Keeping the ranks of {len(seeds):,} seeds")
        request = replace(request, memory=most - answers)
        outcomes, run = _rank_each(kept, vectors, settings, request, progress)
    return PersonalRanks(kept.ranks, seeds, names, outcomes, run)


class _Kept(NamedTuple):
    """The ranks of a graph for each seed that is done, or the `top` of them."""

    opened: Graph
    ranks: list[Any]
    top: int | None

    def take(self, number: int, ranks: NDArray[np.float64]) -> None:
        """Keep those of a seed."""
        top = self.top
        self.ranks[number] = ranks if top is None else largest(MemoryVector(ranks).chunks(), top)

    def take_copy(self, number: int, ranks: NDArray[np.float64]) -> None:
        """Keep those of a seed, which are going to be overwritten."""
        self.take(number, ranks.copy() if self.top is None else ranks)


def _rank_in_blocks(
    kept: _Kept,
    vectors: SeedVectors,
    settings: Settings,
    shape: tuple[int, int],
    threads: int | None,
    progress: Progress,
) -> tuple[Outcomes, Report]:
    """Rank by threads, each of which has a block of seeds: so many, and so many vectors in each."""
    from oocpr.engine.scc import personal
    from oocpr.engine.scc.run import decoded_graph
    from oocpr.jit import watched
    from oocpr.plan.memory import BLOCK_WIDTHS
    from oocpr.system import peak_resident

    begun, opened, (count, width) = time.perf_counter(), kept.opened, shape
    store = opened.store
    with watched(silent) as compilation, store.unchanged():
        graph, bytes_read = decoded_graph(store, threads, opened.decoded)
        if width > BLOCK_WIDTHS[0]:
            width = personal.filled_width(graph, vectors, count, width)
        outcomes = personal.rank_seeds(
            graph, settings, vectors, kept.take_copy, threads=count, width=width, progress=progress
        )
        store.check_identity()
    seconds = time.perf_counter() - begun
    compiling = compilation.seconds if compilation.seconds < seconds else 0.0
    return outcomes, Report(
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
        bytes_read=bytes_read,
        peak_memory=peak_resident(),
        identity=store.identity,
    )


def _rank_each(
    kept: _Kept, vectors: SeedVectors, settings: Settings, request: RunRequest, progress: Progress
) -> tuple[Outcomes, Report]:
    """Rank one seed after the other, all by one plan."""
    from oocpr.engine.cuda.names import begin_contexts, named_devices
    from oocpr.engine.devices import device_for
    from oocpr.engine.planning import plan_loaded
    from oocpr.engine.run import rank_each
    from oocpr.engine.scc.personal import Outcomes
    from oocpr.jit import watched

    begun, count, store = time.perf_counter(), len(vectors), kept.opened.store
    if request.device == "auto":
        device = device_for(store)
        within = None if device == "cpu" else request.device_memory
        request = replace(request, device=device, device_memory=within)
        begin_contexts(named_devices(device))
    (settings, plan, ranked), loading = plan_loaded(store, settings, request, progress)
    solutions: dict[int, Solution] = {}

    with watched(silent) as compilation, store.unchanged():
        for number, solution, found in rank_each(
            ranked,
            plan,
            settings,
            vectors,
            partial(_as_part, progress, count),
            path=store.shared_path,
            decoded=kept.opened.decoded,
            backend=request.device,
            threads=request.threads,
            kernel=request.kernel,
            top=kept.top,
        ):
            if found is None:
                kept.take(number, solution.ranks)
            else:
                kept.ranks[number] = found
            # The next run has their memory.
            solutions[number] = replace(solution, ranks=np.empty(0))
            del solution
            progress("personal ranks", len(solutions), count, "seeds")
    in_order = [solutions[number] for number in range(count)]
    bounds = np.array([solution.error_bound for solution in in_order])
    passes = np.array([solution.passes for solution in in_order])
    converged = np.array([solution.converged for solution in in_order])
    worst = replace(
        in_order[int(passes.argmax())],
        error_bound=float(bounds.max()),
        converged=bool(converged.all()),
        seconds=time.perf_counter() - begun,
        peak_memory=max(solution.peak_memory for solution in in_order),
        peak_device_memory=max(solution.peak_device_memory for solution in in_order),
    )
    run = report_of(
        worst,
        store,
        identity=store.identity,
        dangling=settings.dangling,
        personalized=True,
        compile_seconds=compilation.seconds + loading.compiling,
        direct=plan.direct,
    )
    return Outcomes(bounds, passes, converged), replace(
        run,
        gathers=fmean(solution.gathers for solution in in_order),
        gteps=run.gteps * int(passes.sum()) / run.passes,
        bytes_read=sum(solution.bytes_read for solution in in_order),
    )


def _as_part(progress: Progress, count: int, number: int) -> Progress:
    """Show the passes of a seed's run as a part of all seeds."""

    def part(stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:  # noqa: ARG001
        if unit == "passes" and total:
            progress("personal ranks", number + min(1.0, done / total), count, "seeds", note)

    return part
