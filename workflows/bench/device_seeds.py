"""Personalized ranks of a stored graph for many seeds on a CUDA device, beside a run for one seed.

Seeds are nodes drawn among those with out-edges; of each the ten nodes that rank highest are kept. Compiled
kernels are there, from a run before. Such as::

    python3 workflows/bench/device.py seeds r26.zarr --counts 32 1000 --out device-seeds.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from machine import provenance
from rich.progress import track

import oocpr
from oocpr.engine import run
from oocpr.result.names import names_of

TOP = 10
SAMPLE = 3
"""Seeds that are ranked by runs of their own, too."""

IN_TURN = 8
"""Seeds that are ranked one after the other."""


def drawn(graph: oocpr.Graph, count: int, seed: int) -> list[dict[Any, float]]:
    """Teleport weights of so many nodes with out-edges."""
    able = np.flatnonzero(graph.store.out_degree(0, graph.nodes))
    rows = np.random.default_rng(seed).choice(able, count, replace=False)
    return [{name: 1.0} for name in names_of(graph.store).take(rows)]


def measure(graph: oocpr.Graph, options: argparse.Namespace) -> dict[str, Any]:
    """Rank for one seed, for several one after the other, and for each of the counts side by side."""
    seeds = drawn(graph, max(*options.counts, IN_TURN + SAMPLE), options.seed)

    def timed(wanted: Any, **more: Any) -> tuple[float, Any]:
        begun = perf_counter()
        ranks = oocpr.pagerank(graph, personalization=wanted, device="cuda", **more)
        return perf_counter() - begun, ranks

    timed(seeds[:SAMPLE], top=TOP)
    timed(seeds[0])
    ones = [timed(seed) for seed in seeds[:SAMPLE]]
    with patch.object(run, "lanes_of", lambda *_: 1):
        in_turn, _ = timed(seeds[:IN_TURN], top=TOP)
    found: dict[str, Any] = {
        "one seed, seconds": [seconds for seconds, _ in ones],
        f"{IN_TURN} seeds one after the other, seconds": in_turn,
        "side by side": {},
    }
    for count in track(options.counts, "counts", transient=True):
        runs = [timed(seeds[:count], top=TOP) for _ in range(options.runs if count < 100 else 1)]
        ranks = runs[-1][1]
        apart = [
            max(abs(value - dict(own.top(TOP))[name]) for name, value in top)
            for (_, own), top in zip(ones, ranks.top(TOP), strict=False)
        ]
        found["side by side"][count] = {
            "seconds": [seconds for seconds, _ in runs],
            "passes": [int(ranks.passes.min()), float(ranks.passes.mean()), int(ranks.passes.max())],
            "worst bound": float(ranks.error_bound.max()),
            "all converged": bool(ranks.converged.all()),
            "largest ranks, apart from runs of their own": max(apart),
            "peak memory of the device, MiB": ranks.run.peak_device_memory / 2**20,
            "peak memory, MiB": ranks.run.peak_memory / 2**20,
        }
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure stored graphs and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stores", type=Path, nargs="+", metavar="STORE")
    parser.add_argument("--counts", type=int, nargs="+", default=[32, 1000], help="seeds at a time")
    parser.add_argument("--runs", type=int, default=3, help="of less than a hundred seeds")
    parser.add_argument("--seed", type=int, default=7, help="of the draw")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {"provenance": provenance("device.py"), "graphs": {}}
    for path in options.stores:
        graph = oocpr.open_graph(path)
        cells = {"nodes": graph.nodes, "edges": graph.edges, **measure(graph, options)}
        found["graphs"][path.stem] = cells
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(path.stem, json.dumps(cells, indent=1), flush=True)


if __name__ == "__main__":
    main()
