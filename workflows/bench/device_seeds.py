"""Personalized ranks of a stored graph for many seeds on a CUDA device, beside a run for one seed.

Seeds are nodes drawn among those with out-edges; of each the ten nodes that rank highest are kept. Compiled
kernels are there, from a run before. With `--peers`, programs of processors rank one of the seeds, all at the
same time, as each takes one thread; the seconds to load the graph are left out. Such as::

    python3 workflows/bench/device.py seeds r26.zarr --counts 32 1000 --peers --out device-seeds.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from edge_set import EdgeSet
from machine import provenance
from numpy.typing import NDArray
from rich.progress import track
from scipy import sparse
from seeds import PEERS, of_peer
from skipping import edges_of

import oocpr
from oocpr.engine import run
from oocpr.result.names import names_of

TOP = 10
SAMPLE = 3
"""Seeds that are ranked by runs of their own, too."""

IN_TURN = 8
"""Seeds that are ranked one after the other."""


def draw_rows(graph: oocpr.Graph, count: int, seed: int) -> NDArray[np.intp]:
    """Rows of so many nodes with out-edges."""
    able = np.flatnonzero(graph.store.out_degree(0, graph.nodes))
    return np.random.default_rng(seed).choice(able, count, replace=False)


def weights_of(graph: oocpr.Graph, rows: NDArray[np.intp]) -> list[dict[Any, float]]:
    """Teleport weights of seeds by their names."""
    return [{name: 1.0} for name in names_of(graph.store).take(rows)]


def measure(graph: oocpr.Graph, options: argparse.Namespace) -> dict[str, Any]:
    """Rank for one seed, for several one after the other, and for each of the counts side by side."""
    seeds = weights_of(graph, draw_rows(graph, max(*options.counts, IN_TURN + SAMPLE), options.seed))

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


def edge_set(graph: oocpr.Graph, folder: Path) -> EdgeSet:
    """Write the edges of a stored graph as its peers read them."""
    store, shape = graph.store, (graph.nodes, graph.nodes)
    rows, columns = store.indptr(0, store.nodes + 1), edges_of(graph)[0].view(np.int32)
    into = sparse.csr_matrix((np.ones(columns.size, np.int8), columns, rows), shape)
    out = into.T.tocsr()
    for name, array in (
        ("in_indptr", rows),
        ("in_indices", columns),
        ("out_indptr", out.indptr.astype(np.int64)),
        ("out_indices", out.indices),
    ):
        np.save(folder / f"{name}.npy", array)
    (folder / "facts.json").write_text(json.dumps({"nodes": graph.nodes, "edges": graph.edges}))
    return EdgeSet(folder)


def measure_peers(graph: oocpr.Graph, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds that each peer takes for one seed, and how far its ranks are from oocpr's."""
    rows = draw_rows(graph, 1, options.seed)
    ranks = oocpr.pagerank(graph, personalization=weights_of(graph, rows)[0], device="cuda")
    with tempfile.TemporaryDirectory() as path:
        folder, sample = Path(path), rows.tolist()
        prepared = edge_set(graph, folder)
        np.save(folder / f"{sample[0]}.npy", ranks.to_numpy())
        with ThreadPoolExecutor(len(PEERS)) as pool:
            cells = pool.map(lambda name: of_peer(name, prepared, options, folder, sample), PEERS)
            return dict(zip(PEERS, cells, strict=True))


def main(arguments: list[str] | None = None) -> None:
    """Measure stored graphs and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stores", type=Path, nargs="+", metavar="STORE")
    parser.add_argument("--counts", type=int, nargs="+", default=[32, 1000], help="seeds at a time")
    parser.add_argument("--runs", type=int, default=3, help="of less than a hundred seeds")
    parser.add_argument("--seed", type=int, default=7, help="of the draw")
    parser.add_argument("--peers", action="store_true", help="programs of processors rank one seed")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="one that has the peers")
    parser.add_argument("--limit", type=float, default=900, help="seconds that a peer may take")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {"provenance": provenance("device.py"), "graphs": {}}
    for path in options.stores:
        graph = oocpr.open_graph(path)
        cells = {"nodes": graph.nodes, "edges": graph.edges, **measure(graph, options)}
        found["graphs"][path.stem] = cells
        if options.peers:
            cells["peers"] = measure_peers(graph, options)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(path.stem, json.dumps(cells, indent=1), flush=True)


if __name__ == "__main__":
    main()
