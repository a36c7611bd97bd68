"""Rank the series of Jiang 2014, on processors and on a device: hollins, and subgraphs of a link set.

OOCPR_GRAPHS=FOLDER python workflows/bench/subgraphs.py --quick
OOCPR_GRAPHS=FOLDER python workflows/bench/subgraphs.py --out workflows/bench/results/subgraphs.json
OOCPR_GRAPHS=FOLDER python workflows/bench/subgraphs.py --device cuda --out FILE.json

The paper's link set of Wikipedia has 5,716,808 nodes and is not at hand. Subgraphs are induced on the first
100 k to 2 M nodes of `oocpr generate wu --like wikipedia-20070206`, which has the shape of another link set:
its nodes are shuffled by a seed, so the first ones are a random sample, and there is no crawl order to take.
They have fewer edges a node than the whole graph.

Times are those of whole runs from an open graph to a certified L1 error of 1e-10, medians; systems take
turns, as in `papers.py`. On a device these are the paper's kernels A (a thread per edge), B (the same, each
node's share computed once) and C (a thread per row), all by power iteration in float64, and the default. A
factor is the time of the default on processors over another. The published figures are of another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from machine import provenance
from papers import DEFAULT, GRAPHS, ON_DEVICES, POWER, RUNS, compare
from rich.console import Console
from rich.table import Table
from scipy.sparse import coo_array

import oocpr
from oocpr.cli import fail
from oocpr.errors import OocprError
from oocpr.sources.wu import Wu
from oocpr.units import format_count, format_seconds

HOLLINS, LIKE = "hollins", "wikipedia-20070206"
BLOCK_EDGES = 1 << 22


class Published(NamedTuple):
    """Seconds of Jiang 2014, on four cores and on a GPU."""

    cpu: float
    gpu: float


PUBLISHED = {
    100_000: Published(0.2903, 0.0139),
    500_000: Published(0.7644, 0.0282),
    1_000_000: Published(2.1048, 0.0559),
    2_000_000: Published(6.4298, 0.1259),
}
"""By nodes of a subgraph."""


def systems_on(device: str) -> dict[str, dict[str, Any]]:
    """What is compared: settings of runs by name, the default on processors first."""
    found: dict[str, dict[str, Any]] = {DEFAULT: {}, "power iteration, float64": POWER}
    if device != "cpu":
        kernels = {name: how for name, how in ON_DEVICES.items() if "Jiang 2014" in name}
        on_device = {f"{device}: {name}": how for name, how in {**kernels, DEFAULT: {}}.items()}
        found |= {name: {**how, "device": device} for name, how in on_device.items()}
    return found


def subgraphs(whole: Wu, counts: list[int]) -> Iterator[tuple[int, coo_array]]:
    """Edges between the first nodes of a graph, for each of such counts of nodes, as a matrix."""
    most, src, dst = max(counts), [], []
    for block in whole.blocks(BLOCK_EDGES):
        inside = (block.src < most) & (block.dst < most)
        src.append(block.src[inside])
        dst.append(block.dst[inside])
    ends = np.concatenate(src), np.concatenate(dst)
    for count in counts:
        inside = (ends[0] < count) & (ends[1] < count)
        rows, columns = (each[inside] for each in ends)
        yield count, coo_array((np.ones(rows.size, bool), (rows, columns)), shape=(count, count))


def stores(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, oocpr.Graph]]:
    """Import hollins, if it is there, and then the subgraphs."""
    file = None if options.graphs is None else options.graphs / GRAPHS[HOLLINS]
    if file is not None and file.exists():
        yield HOLLINS, oocpr.import_graph(str(file), folder / "hollins.zarr")
    else:
        print(f"{HOLLINS} is left out: no folder of graphs has {GRAPHS[HOLLINS]}.", file=sys.stderr)
    for count, links in subgraphs(Wu(LIKE), [*PUBLISHED][: 1 if options.quick else None]):
        yield f"{format_count(count)} nodes", oocpr.import_graph(links, folder / f"{count}.zarr")


def render(found: dict[str, Any]) -> Table:
    """Make a table of all graphs: time and factor of each system, beside what was published."""
    graphs = found["graphs"]
    table = Table(title=f"Subgraphs are {found['subgraphs']}", title_justify="left")
    table.caption = "Other machine: Jiang 2014, whose subgraphs are of another graph, too."
    systems = list(next(iter(graphs.values()))["systems"])
    table.add_column("")
    for column in ("edges", *systems, *(f"other machine: {what}" for what in ("CPU", "GPU", "speed-up"))):
        table.add_column(column, justify="right")
    for name, graph in graphs.items():
        times = [median(cell["certified"]["seconds"]) for cell in graph["systems"].values()]
        cells = [f"{format_seconds(taken)}, {times[0] / taken:.2g}x" for taken in times]
        published = graph["published"]
        figures = ("", "", "")
        if published is not None:
            cpu, gpu = published["cpu"], published["gpu"]
            figures = (f"{cpu} s", f"{gpu} s", f"{cpu / gpu:.0f}x")
        table.add_row(name, f"{graph['edges']:,}", *cells, *figures)
    return table


def main() -> None:
    """Compare the systems on all graphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = os.environ.get("OOCPR_GRAPHS") or None
    parser.add_argument("--graphs", type=Path, default=folder, help=f"folder of {GRAPHS[HOLLINS]}")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--runs", type=int, help=f"runs of each that count; {RUNS}, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="hollins and 100 k nodes only")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    runs = options.runs or (1 if options.quick else RUNS)
    device = ""
    if options.device != "cpu":
        from oocpr.engine.cuda.device import open_device

        device = open_device(options.device).name
    found: dict[str, Any] = {
        "provenance": provenance("subgraphs.py", device),
        "subgraphs": f"of a graph {Wu(LIKE).name}",
        "graphs": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        for name, graph in stores(options, Path(temporary)):
            published = None if name == HOLLINS else PUBLISHED[graph.nodes]._asdict()
            cells = compare(graph, systems_on(options.device), runs, name, ("certified",))
            found["graphs"][name] = {
                "nodes": graph.nodes,
                "edges": graph.edges,
                "published": published,
                "systems": cells,
            }
            if options.out is not None:
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    Console(width=None if sys.stdout.isatty() else 140).print(render(found))


if __name__ == "__main__":
    try:
        main()
    except OocprError as error:
        sys.exit(fail(error.cause, error.remedy, error.exit_code))
