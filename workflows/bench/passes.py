"""Count passes over real graphs until the L1 residual is below 1e-10, with each method and number format.

OOCPR_GRAPHS=FOLDER python workflows/bench/passes.py --out workflows/bench/results/passes.json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from machine import provenance

import oocpr

GRAPHS = {
    "cnr-2000 (web crawl)": "cnr-2000.mtx.xz",
    "linux61-calls": "linux61-calls.txt.xz",
    "soc-Slashdot0902": "soc-Slashdot0902.mtx.gz",
    "cit-HepTh": "cit-HepTh.mtx.gz",
    "debian-bookworm-deps": "debian-bookworm-deps.txt.gz",
}
RUNS: dict[str, dict[str, Any]] = {
    "power": {"method": "power", "reads": "float64"},
    "residual, bits16": {"method": "residual", "reads": "bits16"},
    "mixed, bits16": {"method": "mixed", "reads": "bits16"},
    "mixed, bits8": {"method": "mixed", "reads": "bits8"},
}


def count(name: str, graph: oocpr.Graph) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rank a graph with each setting."""
    cells: dict[str, Any] = {"edges": graph.edges}
    for title, options in RUNS.items():
        history = oocpr.pagerank(graph, stop="residual", tol=1e-10, **options).history
        cells[title] = {
            "passes": len(history),
            "gathers": round(sum(record.gathers for record in history), 1),
        }
    yield name, cells


def measure_graphs(
    description: str | None,
    found: dict[str, Any],
    measure: Callable[[str, oocpr.Graph], Iterable[tuple[str, Any]]],
    order: str,
    graphs: dict[str, str] = GRAPHS,
) -> None:
    """Import each of the graphs in an order, and write `found` as JSON, with what is measured of them.

    `measure` takes a graph's name and the graph, and yields what it measures, each with a name.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    named = os.environ.get("OOCPR_GRAPHS")
    parser.add_argument("--graphs", type=Path, default=named, required=not named, help="their folder")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    chosen = parser.parse_args()
    found["graphs"] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, file in graphs.items():
            graph = oocpr.import_graph(str(chosen.graphs / file), f"{folder}/{file}.zarr", order=order)
            for title, cells in measure(name, graph):
                found["graphs"][title] = cells
                print(title, json.dumps(cells), flush=True)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    facts = {"provenance": provenance("passes.py"), "columns": list(RUNS)}
    measure_graphs(__doc__, facts, count, "keep")
