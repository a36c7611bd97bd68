"""Rank for one node at a time as the contest report on CUDA describes it, and say how near the answers are.

OOCPR_GRAPHS=FOLDER python workflows/bench/contest.py --out FILE.json
python workflows/bench/contest.py --device cuda --rmat 22 --out FILE.json

The report stops at a change of 1e-6, or after 30 passes, and counts how many of the first nodes are right.
Its steps are products and precisions: one thread a row in float64 (0), in float32 (1), chunks of the vector
in shared memory (2). Step 3 puts the vector work of step 0 into fewer kernels, and step 4 that of step 2:
here these kernels are fused in every run. The default certifies an L1 error of 1e-6. Errors are against
ranks certified to 1e-12.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from machine import provenance
from papers import add_graph_options, check, stores
from rich.console import Console
from rich.progress import track
from rich.table import Table

import oocpr
from oocpr.cli import fail
from oocpr.errors import OocprError

TOL, EXACT, PASSES = 1e-6, 1e-12, 30
DEFAULT = "oocpr, default, certified 1e-6"
RULE = {"method": "power", "stop": "residual", "max_passes": PASSES}
STEPS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "steps 0, 3: one thread per row, float64": {**RULE, "reads": "float64", "kernel": "csr-scalar"},
    "step 1: one thread per row, float32": {**RULE, "reads": "float32", "kernel": "csr-scalar"},
    "steps 2, 4: chunks in shared memory, float32": {**RULE, "reads": "float32", "kernel": "chunked"},
}
ON_PROCESSORS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "power iteration, float64": {**RULE, "reads": "float64"},
    "power iteration, float32": {**RULE, "reads": "float32"},
}
PUBLISHED = {"step 0": 1600, "step 1": 1000, "step 2": 800, "step 3": 800, "step 4": 600}
"""Milliseconds on the report's own graph and machine."""


def compare(
    graph: oocpr.Graph, steps: dict[str, dict[str, Any]], options: argparse.Namespace
) -> dict[str, Any]:
    """Rank for some nodes by each of the steps, in turns; the first node warms up and does not count."""
    # Not by name: several functions of the Linux kernel may have one.
    nodes = np.argsort(-oocpr.pagerank(graph).to_numpy(), kind="stable")[:1000]
    seeds = np.random.default_rng(1).choice(nodes, options.seeds + 1, replace=False).tolist()
    cells: dict[str, Any] = {
        name: {key: [] for key in ("seconds", "passes", "L1", "L2", "top")} for name in steps
    }
    for turn, seed in enumerate(track(seeds, "ranking", transient=True)):
        wanted = np.zeros(graph.nodes)
        wanted[seed] = 1.0
        exact = oocpr.pagerank(graph, personalization=wanted, tol=EXACT).to_numpy()
        first = set(np.argsort(-exact, kind="stable")[: options.top].tolist())
        for name, how in steps.items():
            begun = time.perf_counter()
            ranks = oocpr.pagerank(graph, personalization=wanted, tol=TOL, **how)
            seconds, found = time.perf_counter() - begun, ranks.to_numpy()
            if not turn:
                continue
            assert ranks.run is not None, "a run has a report"
            same = first & set(np.argsort(-found, kind="stable")[: options.top].tolist())
            values = seconds, ranks.run.passes, np.abs(found - exact).sum(), np.linalg.norm(found - exact)
            for key, value in zip(("seconds", "passes", "L1", "L2"), values, strict=True):
                cells[name][key].append(float(value))
            cells[name]["top"].append(len(same) / len(first))
    return cells


def render(name: str, graph: dict[str, Any]) -> Table:
    """Make a table of a graph."""
    title = f"{name}: {graph['nodes']:,} nodes, {graph['edges']:,} edges"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for column in (
        "a node",
        "over the default",
        "passes",
        "L1 error, most",
        "L2 error, most",
        "first nodes right",
    ):
        table.add_column(column, justify="right")
    usual = median(graph["steps"][DEFAULT]["seconds"])
    for step, cell in graph["steps"].items():
        seconds = median(cell["seconds"])
        table.add_row(
            step, f"{seconds * 1e3:.3g} ms", f"{seconds / usual:.2f}x", f"{median(cell['passes']):.0f}",
            f"{max(cell['L1']):.1e}", f"{max(cell['L2']):.1e}", f"{100 * mean(cell['top']):.0f} %",
        )  # fmt: skip
    return table


def main() -> None:
    """Compare the steps on all graphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_graph_options(parser)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", type=int, default=5, help="nodes that are ranked for")
    parser.add_argument("--top", type=int, default=20, help="first nodes that are compared")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    options = parser.parse_args()
    check(options)
    steps = ON_PROCESSORS
    if options.device != "cpu":
        steps = {name: {**how, "device": options.device} for name, how in STEPS.items()}
    found: dict[str, Any] = {"provenance": provenance("contest.py"), "published, ms": PUBLISHED, "graphs": {}}
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory() as folder:
        for name, graph in stores(options, Path(folder)):
            cells = compare(graph, steps, options)
            found["graphs"][name] = {"nodes": graph.nodes, "edges": graph.edges, "steps": cells}
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            console.print(render(name, found["graphs"][name]))


if __name__ == "__main__":
    try:
        main()
    except OocprError as error:
        sys.exit(fail(error.cause, error.remedy, error.exit_code))
