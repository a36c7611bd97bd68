"""A run on a graph in memory: solve, push, deliver, until what is left is small enough."""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cpu.mailbox import by_all
from oocpr.engine.cpu.rows import BLOCK
from oocpr.engine.cpu.threads import Team, meet, usual_threads
from oocpr.engine.scc.anderson import DEPTH, TERMS
from oocpr.engine.scc.contributions import SETTLED, Sending
from oocpr.engine.scc.level_schedule import REGIONS
from oocpr.engine.scc.push import Ranking, deliver, publish, update
from oocpr.engine.scc.solve import solve, solve_once
from oocpr.engine.settings import ROUNDING
from oocpr.engine.solution import PassRecord, Solution, as_distribution
from oocpr.jit import entry, inner
from oocpr.plan.forecast import COMPONENT_PASSES
from oocpr.system import peak_resident

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.scc.graph import WholeGraph
    from oocpr.engine.settings import Settings
    from oocpr.progress import Progress

SPARE = 0.25
"""Share of the tolerated residual that components may leave behind."""


class WholeRun:
    """A run on a graph that is in memory.

    A pass pushes the solution of (I - damping * links) z = r for the residual r, found in float32 and rounded
    to what rows read; as with any push, the residual stays exact, so two or three are enough.

    Parameters
    ----------
    graph
        As `load_whole` made it.
    settings
        Its damping, tol, stop, dangling and max_passes count.
    threads
        None for `usual_threads`; results do not depend on it.
    teleport
        float64, shape (nodes,), sums to 1; None for uniform.
    start
        What is pushed first, float64, shape (nodes,), sums to 1; None for what the teleport vector makes rows
        send each other.
    """

    def __init__(
        self,
        graph: WholeGraph,
        settings: Settings,
        threads: int | None,
        teleport: NDArray[np.float64] | None,
        start: NDArray[np.float64] | None = None,
    ) -> None:
        nodes = len(graph.degree)
        self._settings = settings
        self._levels = graph.levels
        self._team = Team(threads or usual_threads())
        self._ranking = Ranking(
            np.zeros(nodes),
            np.full(nodes, 1 / nodes) if teleport is None else teleport.copy(),
            graph.degree,
            np.empty(0) if teleport is None else teleport,
            np.zeros(nodes + 1, np.float32),
            np.zeros(nodes + 1),
            np.zeros((-(-nodes // BLOCK), 4)),
        )
        self._sending = _sending(graph, settings.damping)
        self._most = math.ceil(math.log(SETTLED / 10) / math.log(settings.damping))
        if start is None:
            self._team.run(solve_once, 0, self._levels, self._ranking.r, self._most, 0.0, self._sending)
        else:
            sends = self._sending.sends[nodes + 1 : 2 * nodes + 1]
            np.multiply(start, settings.damping, out=sends, casting="same_kind")
            sends /= np.maximum(graph.degree, np.uint32(1))
        self._ranking.r[:] = 0.0

    def rank(self, begun: float, bytes_read: int, progress: Progress) -> Solution:
        """Pass after pass, until the residual is small enough or the passes run out.

        Parameters
        ----------
        begun
            When the run began, by `time.perf_counter`.
        bytes_read
            Encoded bytes that came from the store since.
        progress
            Told after every pass.
        """
        settings, enough = self._settings, _enough(self._settings)
        history: list[PassRecord] = []
        passed, out = begun, np.empty(1)
        while len(history) < settings.pass_limit:
            self._team.run(
                _pass, self._levels, self._ranking, self._sending, settings.damping,
                settings.dangling == "strongly", enough, self._most, out,
            )  # fmt: skip
            now, residual = time.perf_counter(), float(out[0])
            bound = settings.bound(residual)
            read = 0 if history else bytes_read
            history.append(PassRecord(len(history) + 1, residual, bound, 1.0, now - passed, read, 0.0))
            passed = now
            progress("ranking", len(history), COMPONENT_PASSES, "passes", f"bound {bound:.1e}")
            if residual <= enough:
                break
        ranks = self._ranking.p
        ranks += self._ranking.r
        residual = history[-1].residual
        bound = settings.bound(residual)
        return Solution(
            ranks=as_distribution(ranks, bound),
            error_bound=bound,
            converged=residual <= enough,
            history=tuple(history),
            method=settings.method,
            reads=settings.reads,
            damping=settings.damping,
            tol=settings.tol,
            seconds=time.perf_counter() - begun,
            peak_memory=peak_resident(),
        )


def _enough(settings: Settings) -> float:
    """Largest residual with which a run may stop."""
    if settings.stop == "residual":
        return math.nextafter(settings.tol, 0)
    return (settings.tol * (1 - settings.damping) - ROUNDING) / settings.damping


def _sending(graph: WholeGraph, damping: float) -> Sending:
    levels, nodes = graph.levels, len(graph.degree)
    weights = np.ones(nodes + 1, np.float32)
    np.divide(
        np.float32(damping), np.maximum(graph.degree, np.uint32(1)), out=weights[:nodes], casting="same_kind"
    )
    loops = weights[levels.loops]
    weights[levels.loops] = loops / (1 - loops)
    return Sending(
        np.zeros(2 * (nodes + 1), np.float32),
        weights,
        weights[levels.targets],
        np.empty(len(levels.targets), np.float32),
        weights[levels.twin_rows],
        np.empty(len(levels.twin_rows), np.float32),
        np.empty(len(levels.long_rows), np.float32),
        np.empty(len(levels.members), np.float32),
        np.zeros(max(1, len(levels.stages)), np.int64),
        np.reciprocal(weights),
        np.empty((DEPTH + 2, nodes), np.float32),
        np.empty((DEPTH + 1, nodes), np.float32),
        np.zeros((2, REGIONS, TERMS)),
    )


@entry()
def _pass(board, *args):  # type: ignore[no-untyped-def]
    """Do a pass by all threads of a team; see _part_of_pass."""
    return by_all(board, _part_of_pass, args)  # type: ignore[call-arg]


@inner()
def _part_of_pass(  # type: ignore[no-untyped-def]
    me, team, counter, levels, ranking, sending, damping, strongly, enough, most, out
) -> Any:
    """Push what rows send, and find what to push next unless the residual is small enough."""
    rows = ranking.p.size
    sends = sending.sends[rows + 1 : 2 * rows + 1]
    publish(me, team, ranking, sends, damping)
    meet(counter, team, 1)
    # Each thread adds the same numbers in the same order.
    dangling, mass, total = 0.0, 0.0, 0.0
    for block in range(ranking.blocks.shape[0]):
        dangling += ranking.blocks[block, 0]
        mass += ranking.blocks[block, 1]
        total += ranking.blocks[block, 2]
    met = deliver(me, team, counter, 1, levels, ranking.reads, ranking.pushes)
    base, spread = (1 - damping) * mass, damping * dangling / rows
    if strongly:
        base, spread = base + damping * dangling, 0.0
    update(me, team, ranking, damping, base, spread)
    met += 1
    meet(counter, team, met)
    left = 0.0
    for block in range(ranking.blocks.shape[0]):
        left += ranking.blocks[block, 3]
    residual = left / abs(total)
    if me == 0:
        out[0] = residual
    if residual > enough:
        spare = SPARE * enough * abs(total) / rows
        solve(me, team, counter, met, levels, ranking.r, most, spare, sending)
