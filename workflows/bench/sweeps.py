"""Seconds of one float64-accurate sweep over a graph in memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gap
import numpy as np
from edge_set import DAMPING
from programs import TARGET, fresh_store

if TYPE_CHECKING:
    from edge_set import EdgeSet

LEAST_EDGES = 100_000_000
"""Edges that the longer of GAP's two runs walks more than the shorter, at least."""


def _summary(seconds: list[float], what: str) -> dict[str, Any]:
    return {
        "status": "reached",
        "seconds_min": min(seconds),
        "seconds_median": median(seconds),
        "seconds": seconds,
        "what": what,
    }


def scipy_dot(graph: EdgeSet, runs: int, threads: int) -> dict[str, Any]:
    """SciPy's CSR product alone, on one thread."""
    del threads  # SciPy's product uses one
    step = graph.transition()
    ranks = np.full(graph.nodes, 1 / graph.nodes)
    seconds = []
    for _ in range(runs + 1):
        began = perf_counter()
        step @ ranks
        seconds.append(perf_counter() - began)
    return _summary(seconds[1:], "matrix-vector product alone") | {"threads": 1}


def gap_spmv(graph: EdgeSet, runs: int, threads: int, *, huge_pages: bool) -> dict[str, Any]:
    """An iteration of GAP's pr_spmv: the difference between a long and a short run."""
    path = gap.write_graph(graph)
    more = min(20, max(5, -(-LEAST_EDGES // graph.edges)))

    def trials(iterations: int) -> list[float]:
        took = gap.run(
            "pr_spmv",
            path,
            iterations=iterations,
            trials=runs + 1,
            threads=threads,
            huge_pages=huge_pages,
        )
        return took[1:]

    short = min(trials(1))
    seconds = [(long - short) / more for long in trials(1 + more)]
    return _summary(seconds, f"whole iteration, difference of -i {1 + more} and -i 1") | {
        "threads": threads,
        "version": gap.revision(),
    }


def oocpr_residual(graph: EdgeSet, runs: int, threads: int, *, order: str = "keep") -> dict[str, Any]:
    """A pass of the residual method with 16-bit reads, all its vector work included."""
    store = fresh_store(graph, order)
    seconds: list[float] = []
    while len(seconds) < runs:
        ranks = import_module("oocpr").pagerank(
            store, damping=DAMPING, tol=TARGET, method="residual", reads="bits16", threads=threads
        )
        # The first pass also fills the caches.
        seconds += [record.seconds for record in ranks.history[1:]]
    return _summary(seconds, "whole pass, method residual, reads bits16") | {"threads": threads}


SWEEPS: dict[str, Callable[[EdgeSet, int, int], dict[str, Any]]] = {
    "oocpr": oocpr_residual,
    "oocpr-degree": lambda graph, runs, threads: oocpr_residual(graph, runs, threads, order="degree"),
    "gap-pr_spmv": lambda graph, runs, threads: gap_spmv(graph, runs, threads, huge_pages=False),
    "gap-pr_spmv-huge": lambda graph, runs, threads: gap_spmv(graph, runs, threads, huge_pages=True),
    "scipy": scipy_dot,
}
