"""Personalized ranks for many teleport vectors of a graph in memory: block by block, thread by thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from threading import Event, Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.method import as_distribution
from oocpr.engine.scc import block as kernels
from oocpr.engine.scc.block import Block
from oocpr.engine.scc.run import (
    UNSOLVED_SHARE,
    divisors,
    max_sweeps_of,
    residual_tolerance,
    row_weights,
    zeros_together,
)
from oocpr.plan.memory import BLOCK_WIDTHS, TAKEN
from oocpr.progress import silent

if TYPE_CHECKING:
    from oocpr.engine.scc.block import RowOrder
    from oocpr.engine.scc.run import SccGraph
    from oocpr.engine.settings import Settings
    from oocpr.progress import Progress

    Taker = Callable[[int, NDArray[np.float64]], None]


_MAX_RATIO = 0.9
"""Sweeps are extrapolated as if they shrank a change by a tenth at least: with damping 0.99, larger steps
took some vectors of cnr-2000 farther away."""


class SeedVectors(NamedTuple):
    """Teleport vectors, each of few rows as a rule.

    `ptr`, int64, shape (seeds + 1,), has the first entry of each and the end; `rows`, int64, and `weights`,
    float64, shape (entries,), the entries: of a vector each row once, and weights that sum to 1.
    """

    ptr: NDArray[np.int64]
    rows: NDArray[np.int64]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def of(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows and weights of a vector."""
        entries = slice(self.ptr[number], self.ptr[number + 1])
        return self.rows[entries], self.weights[entries]

    def dense(self, nodes: int) -> Iterator[NDArray[np.float64]]:
        """Give each vector with all its zeros, in the same array again and again; shape (nodes,)."""
        vector = np.zeros(nodes)
        for number in range(len(self)):
            rows, weights = self.of(number)
            vector[rows] = weights
            yield vector
            vector[rows] = 0.0

    def chosen(self, numbers: NDArray[np.int64], width: int) -> SeedVectors:
        """Take the vectors of these numbers, and empty ones up to `width`."""
        sizes = np.zeros(width, np.int64)
        sizes[: len(numbers)] = np.diff(self.ptr)[numbers]
        ptr = np.append(0, np.cumsum(sizes))
        entries = np.repeat(self.ptr[numbers] - ptr[: len(numbers)], sizes[: len(numbers)])
        entries += np.arange(len(entries))
        return SeedVectors(ptr, self.rows[entries], self.weights[entries])


class Outcomes(NamedTuple):
    """What became of each vector: bound of its error, passes, whether it converged; shape (seeds,)."""

    error_bound: NDArray[np.float64]
    passes: NDArray[np.int64]
    converged: NDArray[np.bool]


class _Run(NamedTuple):
    """What all blocks of a run have in common."""

    graph: SccGraph
    order: RowOrder
    settings: Settings
    seeds: SeedVectors
    weights: NDArray[np.float32]
    reciprocals: NDArray[np.float32]
    # What dangling mass adds to a push if it goes to all rows alike, and times what; see `spread_dangling`.
    uniform: NDArray[np.float32]
    factor: float
    outcomes: Outcomes
    stopped: Event


def rank_seeds(
    graph: SccGraph,
    settings: Settings,
    seeds: SeedVectors,
    taker: Taker,
    *,
    threads: int,
    width: int,
    progress: Progress = silent,
) -> Outcomes:
    """Rank a graph that is in memory for each of many teleport vectors.

    Each of the `threads` has a block of `width` vectors, one of `oocpr.plan.memory.BLOCK_WIDTHS`; neither
    number changes a bit. `taker` is called, by several threads, with the number of a vector that is done and
    its ranks: float64, shape (rows,), which it may change but not keep.
    """
    # Blocks take the place of what runs for one vector work in.
    graph.kept.clear()
    order, count = graph.order, len(seeds)
    weights = row_weights(graph, settings.damping)[:-1]
    outcomes = Outcomes(np.empty(count), np.empty(count, np.int64), np.empty(count, np.bool))
    none = np.empty(0, np.float32)
    run = _Run(
        graph, order, settings, seeds, weights, np.reciprocal(weights), none, 0.0, outcomes, Event()
    )  # fmt: skip
    # Vectors that begin at neighbouring places reach about the same rows; those that reach most come first.
    rows = len(order.rows)
    places = np.empty(rows, np.uint32)
    places[order.rows] = np.arange(rows, dtype=np.uint32)
    turns = np.argsort(np.minimum.reduceat(places[seeds.rows], seeds.ptr[:-1]), kind="stable")
    blocks = [turns[first : first + width] for first in range(0, count, width)]
    done, lock = 0, Lock()

    def note() -> None:
        nonlocal done
        with lock:
            done += 1
            progress("personal ranks", done, count, "seeds")

    free: SimpleQueue[tuple[Block, NDArray[np.float64]]] = SimpleQueue()
    threads = min(threads, len(blocks))
    for _ in range(threads):
        (out,) = zeros_together(((TAKEN, rows), np.float64))
        free.put((_empty_block(rows, width), out))

    if settings.dangling == "weakly":
        block, out = free.get()
        run = _with_uniform(run, block, width)
        free.put((block, out))

    def rank_block(numbers: NDArray[np.int64]) -> None:
        held = free.get()
        try:
            _rank_block(run, numbers, *held, width, taker, note)
        finally:
            free.put(held)

    with ThreadPoolExecutor(threads, thread_name_prefix="oocpr-block") as pool:
        try:
            for ended in as_completed([pool.submit(rank_block, numbers) for numbers in blocks]):
                ended.result()
        except BaseException:
            run.stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return outcomes


def filled_width(graph: SccGraph, seeds: SeedVectors, threads: int, width: int) -> int:
    """Width of blocks, up to `width`, that leaves no thread without one that takes long.

    A vector that begins behind the largest component takes next to no time. If those before do not fill a
    block of each thread, threads would wait: 32 seeds of cnr-2000, 16 of them in front, took two threads
    270 ms in blocks of 16, and 200 in blocks of 8; of R-MAT, all in front, 1.8 s and 2.6.
    """
    rows, groups = graph.order.rows, graph.order.groups
    cyclic = graph.schedule.inner[rows[groups[:-1]]] > 0
    sizes = np.where(cyclic, np.diff(groups), 0)
    largest = int(sizes.argmax())
    in_front = np.zeros(len(rows), np.bool)
    in_front[rows[: groups[largest + 1] if sizes[largest] else 0]] = True
    long = np.logical_or.reduceat(in_front[seeds.rows], seeds.ptr[:-1])
    return width if np.count_nonzero(long) >= threads * width else BLOCK_WIDTHS[0]


def _empty_block(rows: int, width: int) -> Block:
    size, none = (rows * width,), np.empty(0, np.int64)
    p, r, sends, starts, changes, reached = zeros_together(
        (size, np.float64), (size, np.float64), (size, np.float32), (size, np.float32), (size, np.float32),
        ((rows,), np.uint8),
    )  # fmt: skip
    return Block(p, r, sends, starts, changes, reached, none, none, np.empty(0))


def _solve(run: _Run, block: Block, row_tols: NDArray[np.float64], width: int) -> None:
    """Find what to push next."""
    damping = run.settings.damping
    ratio, sweeps = min(damping, _MAX_RATIO), max_sweeps_of(damping)
    kernels.solve(
        run.graph.schedule, run.order, run.graph.weights, block, run.weights, run.reciprocals, ratio, sweeps,
        row_tols, (0,) * width,
    )  # fmt: skip


def _with_uniform(run: _Run, block: Block, width: int) -> _Run:
    """Solve for the uniform vector, in the first place of a block."""
    graph, rows, damping = run.graph, len(run.graph.degree), run.settings.damping
    entries, tolerances = np.arange(rows), np.full(width, np.inf)
    tolerances[0] = 0.0
    every = block._replace(
        seed_ptr=np.array([0, *[rows] * width]), seed_rows=entries, seed_weights=np.full(rows, 1 / rows)
    )
    every.reached[:] = 1
    kernels.scatter(every, np.ones(width), width)
    _solve(run, every, tolerances, width)
    uniform = every.sends[::width].copy()
    kernels.clear(every, width)
    mass = float((uniform.astype(np.float64) * divisors(graph)).sum()) / damping
    return run._replace(uniform=uniform, factor=1 / ((1 - damping) * mass))


def _rank_block(
    run: _Run,
    numbers: NDArray[np.int64],
    block: Block,
    out: NDArray[np.float64],
    width: int,
    taker: Taker,
    note: Callable[[], None],
) -> None:
    """Rank the vectors of a block, pass after pass; those that are done leave it."""
    graph, settings, damping = run.graph, run.settings, run.settings.damping
    schedule, order, degree, lanes = graph.schedule, run.order, graph.degree, (0,) * width
    strongly, tolerance = settings.dangling == "strongly", residual_tolerance(settings)
    ptr, rows, weights = run.seeds.chosen(numbers, width)
    block = block._replace(seed_ptr=ptr, seed_rows=rows, seed_weights=weights)
    if strongly:
        kernels.reach(schedule, order, block)
    else:
        # What dangling rows have goes everywhere.
        block.reached[:] = 1
    left = np.arange(width) < len(numbers)
    row_tols, found = np.zeros(width), np.empty((2, width))
    kernels.scatter(block, np.ones(width), width)
    for passes in range(1, settings.pass_limit + 1):
        if run.stopped.is_set():
            return
        # Vectors that are done are not swept for the sake of the others.
        row_tols[~left] = np.inf
        _solve(run, block, row_tols, width)
        if not strongly:
            kernels.spread_dangling(block, degree, run.uniform, run.factor, lanes)
        if passes == 1:
            kernels.scatter(block, np.full(width, -1.0), width)
        kernels.push(schedule, order, graph.weights, block, degree, damping, strongly, found, lanes)
        residuals, totals = found[0, : len(numbers)], np.abs(found[1, : len(numbers)])
        residuals = residuals / totals
        ended = left[: len(numbers)] & ((residuals <= tolerance) | (passes == settings.pass_limit))
        for first in range(0, len(numbers), TAKEN):
            some = first + np.flatnonzero(ended[first : first + TAKEN])
            if len(some):
                kernels.take(block, width, first, out)
            for b in some.tolist():
                number, bound = int(numbers[b]), settings.bound(float(residuals[b]))
                run.outcomes.error_bound[number] = bound
                run.outcomes.passes[number] = passes
                run.outcomes.converged[number] = residuals[b] <= tolerance
                taker(number, as_distribution(out[b - first], bound))
                note()
        left[: len(numbers)] &= ~ended
        if not left.any():
            break
        row_tols[: len(numbers)] = UNSOLVED_SHARE * tolerance * totals / len(degree)
    kernels.clear(block, width)
