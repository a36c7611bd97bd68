"""How each program is asked for PageRank: build its own graph object, then solve with more and more accuracy.

Nothing but NumPy and SciPy is imported before a program is built, so a missing one is a fact to report.
Libraries are imported by name because the interpreter that checks the types need not have them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gap
import numpy as np
from edge_set import DAMPING, power_iteration
from search import Ladder

if TYPE_CHECKING:
    from edge_set import EdgeSet

TARGET = 1e-10
"""True L1 error that the peers have to reach, and the certified one that oocpr is asked for."""
MOST_ITERATIONS = 1000
IMPORT_MEMORY = "12GiB"
"""For importing with oocpr, which counts the edges that this process holds already."""
TOLERANCES = Ladder(start=20, top=34, decades=0.5)
"""Step k is a tolerance of 10 ** (-k / 2), so steps are factors of about 3."""
ITERATIONS = Ladder(start=100, top=400, decades=0.07)
"""Step k is k iterations."""
ONE_WAY = Ladder(start=1, top=1, decades=1.0)
"""For programs that are asked in one way only."""

Solve = Callable[[int], tuple[float, Any]]
"""From a step to the seconds it took and the ranks, in any form that NumPy reads."""


@dataclass(frozen=True)
class Way:
    """How to ask a program that has its graph in memory.

    Parameters
    ----------
    ladder
        The steps there are.
    solve
        Runs a step.
    setting
        What a person would write to ask for a step.
    """

    ladder: Ladder
    solve: Solve
    setting: Callable[[int], str]


@dataclass(frozen=True)
class Program:
    """A program to compare.

    Parameters
    ----------
    package
        Distribution whose version is reported.
    parallel
        Whether it uses more than one thread.
    build
        Makes the program's own graph object in memory, for a number of threads.
    """

    package: str
    parallel: bool
    build: Callable[[EdgeSet, int], Way]


def tolerance(step: int) -> float:
    """Tolerance of a step of `TOLERANCES`."""
    return float(10 ** (-step / 2))


def fresh_store(graph: EdgeSet, order: str = "keep") -> Any:
    """Import a graph with oocpr and open it, leaving no older store in use."""
    oocpr = import_module("oocpr")
    path = graph.folder / "store.zarr"
    shutil.rmtree(path, ignore_errors=True)
    oocpr.import_graph(graph.adjacency(np.int8), path, memory=IMPORT_MEMORY, order=order)
    return oocpr.open_graph(path)


def release(program: Program) -> str:
    """Version of a program that is here."""
    return gap.revision() if program.package == "gapbs" else version(program.package)


def _tol(step: int) -> str:
    return f"tol={tolerance(step):.1e}"


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = perf_counter()
    ranks = call()
    return perf_counter() - began, ranks


def _oocpr(graph: EdgeSet, threads: int) -> Way:
    """As anybody would call it: one certified tolerance, no search, on a graph that has been ranked."""
    oocpr, opened = import_module("oocpr"), fresh_store(graph)

    def solve(_: int) -> tuple[float, Any]:
        return _timed(lambda: oocpr.pagerank(opened, damping=DAMPING, tol=TARGET, threads=threads).to_numpy())

    solve(0)
    return Way(ONE_WAY, solve, lambda _: f"tol={TARGET:g} (certified)")


def _oocpr_store(graph: EdgeSet, threads: int) -> Way:
    """The same on a store that is opened anew each time: nothing of it is in this process."""
    oocpr, path = import_module("oocpr"), fresh_store(graph).path

    def solve(_: int) -> tuple[float, Any]:
        return _timed(lambda: oocpr.pagerank(path, damping=DAMPING, tol=TARGET, threads=threads).to_numpy())

    return Way(ONE_WAY, solve, lambda _: f"tol={TARGET:g} (certified)")


def _gap(kernel: str) -> Callable[[EdgeSet, int], Way]:
    """One of GAP's kernels; they drop dangling mass, which scaling the scores to sum 1 makes good."""

    def build(graph: EdgeSet, threads: int) -> Way:
        path = gap.write_graph(graph)
        scores = path.with_name(f"{kernel}.scores")

        def solve(step: int) -> tuple[float, Any]:
            [seconds] = gap.run(kernel, path, iterations=step, trials=1, threads=threads, scores=scores)
            ranks = gap.read_scores(scores, graph.nodes)
            scores.unlink()
            return seconds, ranks

        return Way(ITERATIONS, solve, lambda step: f"-i {step} -t 0")

    return build


def _scipy(graph: EdgeSet, _: int) -> Way:
    """Power iteration on a CSR matrix in float64, stopped by the L1 change."""
    matrix = graph.transition()
    dangling = np.flatnonzero(np.diff(graph.out_indptr) == 0)

    def solve(step: int) -> tuple[float, Any]:
        tol, iterations = tolerance(step), count(1)

        def stop(change: float) -> bool:
            return change < tol or next(iterations) == MOST_ITERATIONS

        return _timed(lambda: power_iteration(matrix, dangling, stop))

    return Way(TOLERANCES, solve, _tol)


def _scikit_network(graph: EdgeSet, _: int) -> Way:
    """The one solver that gets there, a polynomial of fixed degree scaled to sum 1.

    Of the others, bicgstab stops at 1e-5, diteration and push work in float32, and piteration and lanczos
    give the rank of dangling nodes to the wrong nodes: an L1 error of 0.4 on graphs that have many.
    """
    ranking = import_module("sknetwork.ranking")
    matrix = graph.adjacency()

    def solve(step: int) -> tuple[float, Any]:
        asked = ranking.PageRank(damping_factor=DAMPING, solver="RH", n_iter=step)
        return _timed(lambda: asked.fit_predict(matrix))

    return Way(ITERATIONS, solve, lambda step: f"n_iter={step}")


def _igraph(graph: EdgeSet, _: int) -> Way:
    """PRPACK, whose tolerance is fixed; its threads are those of the environment."""
    pairs: Any = np.empty((graph.edges, 2), dtype=np.int64)
    pairs[:, 0], pairs[:, 1] = graph.sources, graph.out_indices
    built = import_module("igraph").Graph(n=graph.nodes, edges=memoryview(pairs), directed=True)

    def solve(_: int) -> tuple[float, Any]:
        return _timed(lambda: built.pagerank(damping=DAMPING, implementation="prpack"))

    return Way(ONE_WAY, solve, lambda _: "implementation=prpack")


def _networkit(graph: EdgeSet, threads: int) -> Way:
    """With sinks distributed, which takes a quarter of the iterations where there are many."""
    kit = import_module("networkit")
    kit.setNumberOfThreads(threads)
    pairs = (graph.sources.astype(np.int64), graph.out_indices.astype(np.int64))
    built = kit.GraphFromCoo(pairs, n=graph.nodes, directed=True)
    sinks = kit.centrality.SinkHandling.DistributeSinks

    def solve(step: int) -> tuple[float, Any]:
        solver = kit.centrality.PageRank(built, damp=DAMPING, tol=tolerance(step), distributeSinks=sinks)
        solver.maxIterations = MOST_ITERATIONS
        seconds, _ = _timed(solver.run)
        return seconds, solver.scores()

    return Way(TOLERANCES, solve, _tol)


def _fast_pagerank(graph: EdgeSet, _: int) -> Way:
    """The power method; the other one solves by sparse LU, which no graph of this size survives."""
    power = import_module("fast_pagerank").pagerank_power
    matrix = graph.adjacency()

    def solve(step: int) -> tuple[float, Any]:
        return _timed(lambda: power(matrix, p=DAMPING, tol=tolerance(step), max_iter=MOST_ITERATIONS))

    return Way(TOLERANCES, solve, _tol)


def _graphblas(graph: EdgeSet, threads: int) -> Way:
    """SuiteSparse:GraphBLAS underneath; the tolerance is the mean change of a node."""
    blas = import_module("graphblas")
    blas.ss.config["nthreads"] = threads
    size = {"nrows": graph.nodes, "ncols": graph.nodes}
    matrix = blas.Matrix.from_coo(graph.sources, graph.out_indices, 1.0, **size)
    built = import_module("graphblas_algorithms").DiGraph(matrix)
    pagerank = import_module("graphblas_algorithms.algorithms").pagerank

    def solve(step: int) -> tuple[float, Any]:
        tol = tolerance(step) / graph.nodes
        seconds, ranks = _timed(lambda: pagerank(built, alpha=DAMPING, tol=tol, max_iter=MOST_ITERATIONS))
        return seconds, ranks.to_dense()

    return Way(TOLERANCES, solve, lambda step: f"{_tol(step)} / nodes")


PROGRAMS = {
    "oocpr": Program("oocpr", True, _oocpr),
    "oocpr-store": Program("oocpr", True, _oocpr_store),
    "gap-pr_spmv": Program("gapbs", True, _gap("pr_spmv")),
    "gap-pr": Program("gapbs", True, _gap("pr")),
    "scipy": Program("scipy", False, _scipy),
    "scikit-network": Program("scikit-network", False, _scikit_network),
    "igraph": Program("igraph", True, _igraph),
    "networkit": Program("networkit", True, _networkit),
    "fast-pagerank": Program("fast-pagerank", False, _fast_pagerank),
    "graphblas-algorithms": Program("graphblas-algorithms", True, _graphblas),
}
