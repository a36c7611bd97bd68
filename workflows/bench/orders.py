"""Bytes to an answer in each order of the nodes, and what it takes to find the order.

Each graph is imported in each order, by the command line and within `--memory`, and ranked by method `mixed`
to a residual of 1e-10, in one stripe and in four. Bytes to an answer are encoded bytes times passes, over
those of the best order. Beside real graphs and R-MAT: a crawl many times beside itself, with one random link
for a hundred of its own, and the same with its nodes shuffled. What has more than `--small` edges is taken as
in the source, by degree, depth first and by `auto` alone.

    OOCPR_GRAPHS=FOLDER python workflows/bench/orders.py --rmat 18 20 22 24 --copies 32 \
        --out workflows/bench/results/orders.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from machine import provenance
from papers import GRAPHS
from skipping import CRAWL, beside, edges_of

import oocpr
from oocpr.store.graph import open_store

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
ORDERS = ("keep", "degree", "bfs", "dfs", "auto")
LARGE = ("keep", "degree", "dfs", "auto")


def grown(crawl: oocpr.Graph, copies: int, folder: Path, *, shuffled: bool) -> list[str]:
    """Write a crawl so many times beside itself as two files of node numbers."""
    nodes, rng = crawl.nodes, np.random.default_rng(1)
    names = rng.permutation(nodes * copies).astype(np.uint32) if shuffled else None
    files = []
    for name, whole in zip(("from", "to"), beside(edges_of(crawl), nodes, copies, rng), strict=True):
        file = folder / f"{name}.npy"
        np.save(file, whole if names is None else names[whole])
        files.append(str(file))
    return files


def sources(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Graphs by name, with the words that make the command line take them."""
    for name, file in GRAPHS.items():
        yield name, ["import", str(options.graphs / file)]
    if options.copies:
        crawl = oocpr.import_graph(str(options.graphs / GRAPHS[CRAWL]), folder / "crawl.zarr")
        for shuffled in (False, True):
            name = f"crawl x{options.copies}{', shuffled' * shuffled}"
            yield name, ["import", *grown(crawl, options.copies, folder, shuffled=shuffled)]
    for scale in options.rmat:
        yield f"R-MAT {scale}", ["generate", "rmat", "--scale", str(scale)]


def run(words: list[str]) -> tuple[str, float, int]:
    """Run the command line; returns what it said, seconds, and the bytes of the process at most."""
    begun, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "oocpr", *words]
        with subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as process:
            # Not by what the system says at the end: the peak of the process that starts it is in that.
            while process.poll() is None:
                with suppress(OSError):
                    found = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text())
                    peak = int(found[1]) << 10 if found else peak
                time.sleep(0.005)
        seconds = time.perf_counter() - begun
        said.seek(0)
        text = said.read()
    if process.returncode:
        sys.exit(text)
    return text, seconds, peak


def measure(words: list[str], order: str, memory: str, store: Path) -> dict[str, Any]:
    """Import a graph in an order, and rank it in one stripe and in four."""
    said, seconds, peak = run([*words, "-o", str(store), "--order", order, "--memory", memory])
    graph, known = oocpr.open_graph(store), open_store(str(store)).attributes
    why = re.search(r"order: .*$", said, re.MULTILINE)
    return {
        "edges": graph.edges,
        "seconds": round(seconds, 2),
        "peak, MiB": peak >> 20,
        "bytes": known.column_bytes,
        "order": graph.info()["order"],
        "passes": [
            len(oocpr.pagerank(graph, method="mixed", stop="residual", tol=1e-10, stripes=stripes).history)
            for stripes in (1, 4)
        ],
        **({"why": why[0]} if why else {}),
    }


def main() -> None:
    """Measure all graphs in all orders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    named = os.environ.get("OOCPR_GRAPHS")
    parser.add_argument("--graphs", type=Path, default=named, required=not named, help="their folder")
    parser.add_argument("--rmat", type=int, nargs="*", default=[18, 20], metavar="SCALE")
    parser.add_argument("--copies", type=int, default=0, help="of the crawl; 0 for none")
    parser.add_argument("--memory", default="4GiB", help="of each import")
    parser.add_argument("--small", type=int, default=1 << 26, help="edges up to which all orders are taken")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    options = parser.parse_args()
    found: dict[str, Any] = {"provenance": provenance("orders.py"), "memory": options.memory, "graphs": {}}
    with tempfile.TemporaryDirectory() as temporary:
        for name, words in sources(options, Path(temporary)):
            cells: dict[str, Any] = {}
            for order in ORDERS:
                if order not in LARGE and cells["keep"]["edges"] > options.small:
                    continue
                store = Path(temporary) / f"{order}.zarr"
                cells[order] = measure([*words, "--overwrite"], order, options.memory, store)
                print(name, order, json.dumps(cells[order]), flush=True)
            found["graphs"][name] = cells
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
