"""Run the systems of earlier papers and the default on the same graphs, to the same error, in one table.

OOCPR_GRAPHS=FOLDER python workflows/bench/papers.py --out workflows/bench/results/papers.json
OOCPR_GRAPHS=FOLDER python workflows/bench/papers.py --device cuda --rmat 24 --out FILE.json --html FILE.html
python workflows/bench/papers.py --device cuda --rmat 22 --device-memory 128MiB --out FILE.json
python workflows/bench/papers.py --device cuda --store web22.zarr --device-memory least --out FILE.json
python workflows/bench/papers.py --quick

Every run begins with an open store whose files are in the page cache, and ends with ranks: once when an L1
error of 1e-10 is certified, and once by the rule of the papers, an L1 change below 1e-10. The error of each
is measured too, against ranks certified to 1e-12. Systems take turns; times are medians. With a device the
default is device auto, which leaves small graphs to processors. `oocpr bench papers`
runs this program with the same options.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import passes
from machine import provenance
from rich.console import Console
from rich.progress import track
from rich.table import Table

import oocpr
from oocpr.cli import fail
from oocpr.errors import DoesNotFitError, OocprError, UsageError
from oocpr.sources.rmat import Rmat

TOL, EXACT = 1e-10, 1e-12
RUNS = 5
QUICK_EDGES = 1_000_000
SHIPPED = Path(__file__).parents[2] / "data"
STOPS = ("certified", "residual")

GRAPHS = passes.GRAPHS | {
    "p2p-Gnutella31": "p2p-Gnutella31.e.gz",
    "openjdk17-javadoc": "openjdk17-javadoc.txt.gz",
    "wiki-Vote": "wiki-Vote.txt.gz",
    "gr0.California": "gr0.California.gz",
    "hollins": "hollins.dat.gz",
    "python311-doc": "python311-doc.txt.gz",
}
DEFAULT = "oocpr, default"
POWER = {"method": "power", "reads": "float64"}
SYSTEMS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "power iteration, float64": POWER,
    "CPMS, 2 segments (Grützmacher 2018)": {"method": "cpms2"},
    "CPMS, 4 segments (Grützmacher 2018)": {"method": "cpms4"},
}
ON_DEVICES: dict[str, dict[str, Any]] = {
    "oocpr, always on the device": {},
    "hybrid, rows in bins (Wu 2010)": {**POWER, "kernel": "binned:6:96"},
    "one thread per row (Wu 2010, Jiang 2014 C)": {**POWER, "kernel": "csr-scalar"},
    "16 threads per row (Wu 2010)": {**POWER, "kernel": "csr-16"},
    "a warp per row (Wu 2010)": {**POWER, "kernel": "csr-vector"},
    "one thread per edge, dividing (Jiang 2014 A)": {**POWER, "kernel": "edges"},
    "one thread per edge, exchange (Jiang 2014 B)": {**POWER, "kernel": "exchange"},
    "blocks 1 x 4 (Shan 2010)": {**POWER, "kernel": "bcsr"},
    "chunks in shared memory (contest report)": {**POWER, "kernel": "chunked"},
}


def add_graph_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `stores` is told by."""
    folder = os.environ.get("OOCPR_GRAPHS") or None
    parser.add_argument("--graphs", type=Path, default=folder, help="their folder")
    parser.add_argument("--rmat", type=int, metavar="SCALE", help="R-MAT of 2^SCALE nodes in their place")
    parser.add_argument("--store", type=Path, nargs="+", metavar="STORE", help="stores in their place")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only graphs of up to a million edges; if no folder is named, those that come with the sources",
    )


def stores(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, oocpr.Graph]]:
    """Open stores, or import R-MAT or the graphs of a folder; quickly: those that are there and not large."""
    if options.store:
        for path in options.store:
            yield path.stem, oocpr.open_graph(path)
        return
    if options.rmat:
        made = oocpr.import_graph(Rmat(options.rmat), folder / "rmat.zarr", order="degree")
        yield f"R-MAT {options.rmat}", made
        return
    for name, file in GRAPHS.items():
        if options.quick and not (options.graphs / file).exists():
            continue
        graph = oocpr.import_graph(str(options.graphs / file), folder / f"{file}.zarr")
        if options.quick and graph.edges > QUICK_EDGES:
            print(f"{name} is left out: {graph.edges:,} edges are not quick.", file=sys.stderr)
            continue
        yield name, graph


def check(options: argparse.Namespace) -> None:
    """Find the folder of the graphs, if one is needed; raises UsageError if it is not there or empty."""
    if options.store or options.rmat:
        return
    if options.graphs is None:
        if not options.quick:
            raise UsageError(
                "No folder of graphs is named.",
                "Name it with --graphs FOLDER or OOCPR_GRAPHS; or give --rmat SCALE, or --quick.",
            )
        options.graphs = SHIPPED
        print("No folder of graphs is named: those that come with the sources are taken.", file=sys.stderr)
    if not any((options.graphs / file).exists() for file in GRAPHS.values()):
        raise UsageError(
            f"{options.graphs} has none of the graphs.", f"Name a folder with {', '.join(GRAPHS.values())}."
        )


def least_of_cpms(graph: oocpr.Graph) -> str:
    """Give the least memory of a device in which CPMS ranks the graph, and decodes it in every sweep."""
    (tiers,) = oocpr.plan(graph, method="cpms4", device="cuda", device_memory="1MiB").devices
    return f"{-(-tiers.need.total // 2**20)}MiB"


def fits(graph: oocpr.Graph, name: str, how: dict[str, Any]) -> bool:
    """Whether a system can rank the graph in the memory that it is given; says which one cannot, and why."""
    try:
        oocpr.pagerank(graph, max_passes=1, tol=TOL, **how)
    except (DoesNotFitError, UsageError) as error:
        print(f"{name} is left out: {error.cause}", file=sys.stderr)
        return False
    return True


def compare(
    graph: oocpr.Graph,
    systems: dict[str, dict[str, Any]],
    runs: int,
    title: str,
    stops: tuple[str, ...] = STOPS,
) -> dict[str, Any]:
    """Time all systems in turns, by each rule; the first round warms up and does not count."""
    systems = {name: how for name, how in systems.items() if fits(graph, name, how)}
    exact = oocpr.pagerank(graph, method="mixed", tol=EXACT).to_numpy()
    cells: dict[str, Any] = {name: {stop: {"seconds": []} for stop in stops} for name in systems}
    turns = [(name, stop) for _ in range(runs + 1) for name in systems for stop in stops]
    for turn, (name, stop) in enumerate(track(turns, title, transient=True, disable=not sys.stdout.isatty())):
        begun = time.perf_counter()
        ranks = oocpr.pagerank(graph, stop=stop, tol=TOL, **systems[name])
        seconds, cell = time.perf_counter() - begun, cells[name][stop]
        if turn >= len(turns) // (runs + 1):
            cell["seconds"].append(seconds)
        assert ranks.run is not None, "a run has a report"
        cell |= {
            "passes": ranks.run.passes,
            "converged": ranks.converged,
            "certified": ranks.error_bound,
            "error": float(np.abs(ranks.to_numpy() - exact).sum()),
            "peak_device_memory": ranks.run.peak_device_memory,
        }
        if ranks.run.sweeps:
            cell["sweeps"] = ranks.run.sweeps
    return cells


def render(found: dict[str, Any]) -> Iterator[Table]:
    """Make a table of each graph: seconds and passes to a certified error, and by the papers' rule."""
    for name, graph in found["graphs"].items():
        table = Table(
            title=f"{name}: {graph['nodes']:,} nodes, {graph['edges']:,} edges", title_justify="left"
        )
        table.add_column("", no_wrap=True)
        for column in (
            "certified 1e-10",
            "passes",
            "over the default",
            "change < 1e-10",
            "passes",
            "L1 error",
        ):
            table.add_column(column, justify="right")
        usual = median(graph["systems"][DEFAULT]["certified"]["seconds"])
        for system, cell in graph["systems"].items():
            both = [cell[stop] for stop in STOPS]
            times = [median(each["seconds"]) for each in both]
            table.add_row(
                system, f"{times[0] * 1e3:.3g} ms", str(both[0]["passes"]), f"{times[0] / usual:.2f}x",
                f"{times[1] * 1e3:.3g} ms", str(both[1]["passes"]), f"{both[1]['error']:.1e}",
            )  # fmt: skip
        yield table


def main() -> None:
    """Compare the systems on all graphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_graph_options(parser)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--device-memory",
        metavar="SIZE",
        help="as for oocpr rank; what needs more is left out. least: the least that CPMS takes",
    )
    parser.add_argument("--runs", type=int, help=f"runs of each that count; {RUNS}, or 1 with --quick")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--html", type=Path, help="where the tables go as a page")
    options = parser.parse_args()
    check(options)
    runs = options.runs or (1 if options.quick else RUNS)
    systems = SYSTEMS | (ON_DEVICES if options.device != "cpu" else {})
    found: dict[str, Any] = {"provenance": provenance("papers.py"), "graphs": {}}
    with tempfile.TemporaryDirectory() as temporary:
        for name, graph in stores(options, Path(temporary)):
            if options.device != "cpu":
                memory = options.device_memory
                given = {
                    "device": options.device,
                    "device_memory": least_of_cpms(graph) if memory == "least" else memory,
                }
                systems = {system: {**how, **given} for system, how in systems.items()}
                systems[DEFAULT] = {**given, "device": "auto"}
                name += f" within {given['device_memory']}" if memory else ""
            cells = compare(graph, systems, runs, name)
            found["graphs"][name] = {"nodes": graph.nodes, "edges": graph.edges, "systems": cells}
            if options.out is not None:
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    console = Console(record=options.html is not None, width=None if sys.stdout.isatty() else 120)
    for table in render(found):
        console.print(table)
    if options.html is not None:
        console.save_html(str(options.html))


if __name__ == "__main__":
    try:
        main()
    except OocprError as error:
        sys.exit(fail(error.cause, error.remedy, error.exit_code))
