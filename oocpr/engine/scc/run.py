"""A run on a graph in memory: solve, push, deliver, until what is left is small enough."""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cpu.rows import BLOCK
from oocpr.engine.cpu.threads import Team, barrier, default_threads, parallel_region
from oocpr.engine.scc.anderson import DEPTH, TERMS
from oocpr.engine.scc.level_schedule import REGIONS
from oocpr.engine.scc.push import RankVectors, deliver, publish, update
from oocpr.engine.scc.solve import REL_TOL, Contributions, solve, solve_once
from oocpr.engine.settings import ROUNDING
from oocpr.engine.solution import PassRecord, Solution, as_distribution
from oocpr.jit import entry, inner
from oocpr.plan.forecast import COMPONENT_PASSES
from oocpr.system import peak_resident

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.scc.graph import SccGraph
    from oocpr.engine.settings import Settings
    from oocpr.progress import Progress

UNSOLVED_SHARE = 0.25
"""Share of the tolerated residual that components may leave behind."""


class SccRun:
    """A run on a graph that is in memory.

    A pass pushes the solution of (I - damping * edges) z = r for the residual r, found in float32 and rounded
    to what rows read; as with any push, the residual stays exact, so two or three are enough.

    `threads`, None for `default_threads`, change no bit. `teleport` and `start`, what is pushed first, sum to
    1; None for uniform, and for what the teleport vector makes rows contribute to each other.
    """

    def __init__(
        self,
        graph: SccGraph,
        settings: Settings,
        threads: int | None,
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None = None,
    ) -> None:
        nodes = len(graph.degree)
        self._settings = settings
        self._schedule = graph.schedule
        self._team = Team(threads or default_threads())
        self._vectors = RankVectors(
            np.zeros(nodes),
            np.full(nodes, 1 / nodes) if teleport is None else teleport.copy(),
            graph.degree,
            np.empty(0) if teleport is None else teleport,
            np.zeros(nodes + 1, np.float32),
            np.zeros(nodes + 1),
            np.zeros((-(-nodes // BLOCK), 4)),
        )
        self._contributions = _contributions(graph, settings.damping)
        self._max_sweeps = math.ceil(math.log(REL_TOL / 10) / math.log(settings.damping))
        if start is None:
            self._team.run(
                solve_once, 0, self._schedule, self._vectors.r, self._max_sweeps, 0.0, self._contributions
            )
        else:
            sends = self._contributions.sends[nodes + 1 : 2 * nodes + 1]
            np.multiply(start, settings.damping, out=sends, casting="same_kind")
            sends /= np.maximum(graph.degree, np.uint32(1))
        self._vectors.r[:] = 0.0

    def rank(self, begun: float, bytes_read: int, progress: Progress) -> Solution:
        """Pass after pass, until the residual is small enough or the passes run out.

        The run began at `begun`, by `time.perf_counter`; `bytes_read` encoded bytes have been read since.
        """
        settings, tolerance = self._settings, _tolerance(self._settings)
        history: list[PassRecord] = []
        passed, out = begun, np.empty(1)
        while len(history) < settings.pass_limit:
            self._team.run(
                _pass, self._schedule, self._vectors, self._contributions, settings.damping,
                settings.dangling == "strongly", tolerance, self._max_sweeps, out,
            )  # fmt: skip
            now, residual = time.perf_counter(), float(out[0])
            bound = settings.bound(residual)
            read = 0 if history else bytes_read
            history.append(PassRecord(len(history) + 1, residual, bound, 1.0, now - passed, read, 0.0))
            passed = now
            progress("ranking", len(history), COMPONENT_PASSES, "passes", f"bound {bound:.1e}")
            if residual <= tolerance:
                break
        ranks = self._vectors.p
        ranks += self._vectors.r
        residual = history[-1].residual
        bound = settings.bound(residual)
        return Solution(
            ranks=as_distribution(ranks, bound),
            error_bound=bound,
            converged=residual <= tolerance,
            history=tuple(history),
            method=settings.method,
            reads=settings.reads,
            damping=settings.damping,
            tol=settings.tol,
            seconds=time.perf_counter() - begun,
            peak_memory=peak_resident(),
        )


def _tolerance(settings: Settings) -> float:
    """Largest residual with which a run may stop."""
    if settings.stop == "residual":
        return math.nextafter(settings.tol, 0)
    return (settings.tol * (1 - settings.damping) - ROUNDING) / settings.damping


def _contributions(graph: SccGraph, damping: float) -> Contributions:
    schedule, nodes = graph.schedule, len(graph.degree)
    weights = np.ones(nodes + 1, np.float32)
    np.divide(
        np.float32(damping), np.maximum(graph.degree, np.uint32(1)), out=weights[:nodes], casting="same_kind"
    )
    loops = weights[schedule.loops]
    weights[schedule.loops] = loops / (1 - loops)
    return Contributions(
        np.zeros(2 * (nodes + 1), np.float32),
        weights,
        weights[schedule.targets],
        np.empty(len(schedule.targets), np.float32),
        weights[schedule.duplicate_rows],
        np.empty(len(schedule.duplicate_rows), np.float32),
        np.empty(len(schedule.long_rows), np.float32),
        np.empty(len(schedule.members), np.float32),
        np.zeros(max(1, len(schedule.stages)), np.int64),
        np.reciprocal(weights),
        np.empty((DEPTH + 2, nodes), np.float32),
        np.empty((DEPTH + 1, nodes), np.float32),
        np.zeros((2, REGIONS, TERMS)),
    )


@entry()
def _pass(board, *args):  # type: ignore[no-untyped-def]
    """Do a pass by all threads of a team; see _part_of_pass."""
    return parallel_region(board, _part_of_pass, args)  # type: ignore[call-arg]


@inner()
def _part_of_pass(  # type: ignore[no-untyped-def]
    me, team, counter, schedule, vectors, contrib, damping, strongly, tolerance, max_sweeps, out
) -> Any:
    """Push what rows send, and find what to push next unless the residual is small enough."""
    rows = vectors.p.size
    sends = contrib.sends[rows + 1 : 2 * rows + 1]
    publish(me, team, vectors, sends, damping)
    barrier(counter, team, 1)
    # Each thread adds the same numbers in the same order.
    dangling, mass, total = 0.0, 0.0, 0.0
    for block in range(vectors.blocks.shape[0]):
        dangling += vectors.blocks[block, 0]
        mass += vectors.blocks[block, 1]
        total += vectors.blocks[block, 2]
    phase = deliver(me, team, counter, 1, schedule, vectors.reads, vectors.pushes)
    base, spread = (1 - damping) * mass, damping * dangling / rows
    if strongly:
        base, spread = base + damping * dangling, 0.0
    update(me, team, vectors, damping, base, spread)
    phase += 1
    barrier(counter, team, phase)
    left = 0.0
    for block in range(vectors.blocks.shape[0]):
        left += vectors.blocks[block, 3]
    residual = left / abs(total)
    if me == 0:
        out[0] = residual
    if residual > tolerance:
        row_tol = UNSOLVED_SHARE * tolerance * abs(total) / rows
        solve(me, team, counter, phase, schedule, vectors.r, max_sweeps, row_tol, contrib)
