"""Personalized ranks for many seeds, beside programs that rank one seed at a time.

OOCPR_GRAPHS=FOLDER python workflows/bench/seeds.py cnr-2000 rmat22 --cache FOLDER --python PEERS \
    --out workflows/bench/results/seeds.json

Each seed is a node drawn among those with out-edges. oocpr ranks one seed by a run of its own, 32 and all of
them in one run each, from an open graph that was ranked before, to a certified L1 error of 1e-10; of many
seeds the ten nodes that rank highest are kept. The others rank a sample of the seeds, each in a process of
its own after one seed that does not count, by the setting that takes them nearest to the ranks of SciPy's
power iteration in float64; the seconds to load the graph are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from edge_set import DAMPING, EdgeSet, prepare
from machine import describe, provenance
from numpy.typing import NDArray

TOL = 1e-10
CHANGE = 1e-11
"""L1 change between two iterations at which the peers stop; their error is five to six times as large."""

MAX_ITERATIONS = 1000
BATCH, TOP = 32, 10
NETWORKX_EDGES = 10_000_000
"""Edges past which NetworkX's dicts take more memory than most machines have."""

Solve = Callable[[int], Any]
"""From a seed to its ranks."""


def teleport(graph: EdgeSet, seed: int) -> NDArray[np.float64]:
    """Make the vector of a seed."""
    vector = np.zeros(graph.nodes)
    vector[seed] = 1.0
    return vector


def reference(graph: EdgeSet, change: float) -> Solve:
    """Power iteration by SciPy's product, dangling mass to the seed, until so little changes."""
    step, dangling = graph.transition(), np.flatnonzero(np.diff(graph.out_indptr) == 0)

    def solve(seed: int) -> NDArray[np.float64]:
        ranks = teleport(graph, seed)
        for _ in range(MAX_ITERATIONS):
            moved: NDArray[np.float64] = step @ ranks
            moved[seed] += DAMPING * ranks[dangling].sum() + 1 - DAMPING
            moved /= moved.sum()
            changed = float(np.abs(moved - ranks).sum())
            ranks = moved
            if changed < change:
                break
        return ranks

    return solve


def _networkx(graph: EdgeSet) -> Solve:
    if graph.edges > NETWORKX_EDGES:
        raise ValueError("not run: it takes too much memory")
    networkx = import_module("networkx")
    built = networkx.DiGraph()
    built.add_nodes_from(range(graph.nodes))
    built.add_edges_from(zip(graph.sources.tolist(), graph.out_indices.tolist(), strict=True))
    tol = CHANGE / graph.nodes

    def solve(seed: int) -> Any:
        asked = {"personalization": {seed: 1}, "tol": tol, "max_iter": MAX_ITERATIONS}
        return list(networkx.pagerank(built, alpha=DAMPING, **asked).values())

    return solve


def _igraph(graph: EdgeSet) -> Solve:
    pairs: Any = np.empty((graph.edges, 2), dtype=np.int64)
    pairs[:, 0], pairs[:, 1] = graph.sources, graph.out_indices
    built = import_module("igraph").Graph(n=graph.nodes, edges=memoryview(pairs), directed=True)
    return lambda seed: built.personalized_pagerank(
        damping=DAMPING, reset_vertices=[seed], implementation="prpack"
    )


def _scikit_network(graph: EdgeSet) -> Solve:
    ranking = import_module("sknetwork.ranking")
    matrix = graph.adjacency()
    # As of all seeds alike, the one solver that gets there.
    asked = ranking.PageRank(damping_factor=DAMPING, solver="RH", n_iter=150)
    return lambda seed: asked.fit_predict(matrix, weights={seed: 1})


def _fast_pagerank(graph: EdgeSet) -> Solve:
    power, matrix = import_module("fast_pagerank").pagerank_power, graph.adjacency()
    return lambda seed: power(
        matrix, p=DAMPING, personalize=teleport(graph, seed), tol=CHANGE, max_iter=MAX_ITERATIONS
    )


PEERS: dict[str, Callable[[EdgeSet], Solve]] = {
    "SciPy, power iteration": lambda graph: reference(graph, CHANGE),
    "NetworkX": _networkx,
    "igraph": _igraph,
    "scikit-network": _scikit_network,
    "fast-pagerank": _fast_pagerank,
}


def measure_peer(name: str, folder: Path, exact: Path, seeds: list[int]) -> dict[str, Any]:
    """Seconds of each seed but the first of several, and the worst L1 error of their ranks."""
    graph = EdgeSet(folder)
    try:
        solve = PEERS[name](graph)
    except ValueError as error:
        return {"reason": str(error)}
    seconds, errors = [], []
    for seed in seeds:
        begun = perf_counter()
        ranks = solve(seed)
        seconds.append(perf_counter() - begun)
        found = np.asarray(ranks, dtype=np.float64)
        errors.append(float(np.abs(found / found.sum() - np.load(exact / f"{seed}.npy")).sum()))
    return {"seconds a seed": seconds[1:] or seconds, "worst error": max(errors)}


def measure(graph: EdgeSet, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rank by oocpr, and by each peer in a process of its own."""
    import oocpr

    rng = np.random.default_rng(options.seed)
    able = np.flatnonzero(np.diff(graph.out_indptr))
    seeds = rng.choice(able, options.count, replace=False).tolist()
    sample = seeds[: options.sample + 1]
    solve, exact = reference(graph, 1e-15), {}
    for seed in sample:
        exact[seed] = solve(seed)
        np.save(folder / f"{seed}.npy", exact[seed])
    opened = oocpr.import_graph(graph.adjacency(np.int8), folder / "graph.zarr", memory="12GiB")
    how: dict[str, Any] = {"damping": DAMPING, "tol": TOL}

    def timed(wanted: Any, **more: Any) -> tuple[float, Any]:
        begun = perf_counter()
        ranks = oocpr.pagerank(opened, personalization=wanted, **how, **more)
        return perf_counter() - begun, ranks

    timed({seeds[0]: 1})
    ones = [timed({seed: 1})[0] for seed in sample[1:]]
    batches = [timed([{seed: 1} for seed in seeds[:BATCH]], top=TOP)[0] for _ in range(4)][1:]
    seconds, many = timed([{seed: 1} for seed in seeds], top=TOP)
    seconds -= many.run.compile_seconds
    _, whole = timed([{seed: 1} for seed in sample])
    errors = [float(np.abs(whole[k].to_numpy() - exact[seed]).sum()) for k, seed in enumerate(sample)]
    found = {
        "one seed, seconds": ones,
        f"{BATCH} seeds, seconds": batches,
        "seeds": len(seeds),
        "all seeds, seconds": seconds,
        "worst bound": float(many.run.error_bound),
        "all converged": bool(many.run.converged),
        "worst error": max(errors),
        "worst bound of the sample": float(whole.run.error_bound),
        "peak memory, MiB": many.run.peak_memory / 2**20,
    }
    return {"oocpr": found, "peers": {name: of_peer(name, graph, options, folder, sample) for name in PEERS}}


def of_peer(
    name: str, graph: EdgeSet, options: argparse.Namespace, folder: Path, sample: list[int]
) -> dict[str, Any]:
    """What a peer's process finds, or why there is nothing."""
    command = [str(options.python), __file__, "--peer", name, "--folder", str(graph.folder)]
    command += ["--exact", str(folder), "--of", ",".join(map(str, sample))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return {"reason": f"not done after {options.limit:g} s"}
    if done.returncode:
        return {"reason": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    cell: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return cell


def main() -> None:
    """Measure all graphs and write JSON, or what one process of a peer is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("graphs", nargs="*", metavar="GRAPH", help="rmatN, or the name of a file")
    parser.add_argument("--count", type=int, default=1000, help="seeds")
    parser.add_argument("--sample", type=int, default=3, help="of them ranked one by one")
    parser.add_argument("--seed", type=int, default=7, help="of the draw")
    parser.add_argument("--cache", type=Path, help="folder for prepared graphs")
    parser.add_argument("--graphs-folder", type=Path, default=os.environ.get("OOCPR_GRAPHS"))
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="one that has the peers")
    parser.add_argument("--limit", type=float, default=900, help="seconds that a peer may take")
    parser.add_argument("--out", type=Path)
    for name in ("--peer", "--folder", "--exact", "--of"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        seeds = [int(seed) for seed in options.of.split(",")]
        print(json.dumps(measure_peer(options.peer, Path(options.folder), Path(options.exact), seeds)))
        return
    if not options.graphs or options.cache is None or options.out is None:
        parser.error("name graphs, --cache FOLDER and --out FILE")
    found: dict[str, Any] = {"provenance": provenance("seeds.py"), "machine": describe(), "graphs": {}}
    for name in options.graphs:
        graph = prepare(name, options.graphs_folder, options.cache)
        with tempfile.TemporaryDirectory() as folder:
            cells = measure(graph, options, Path(folder))
        found["graphs"][name] = {"nodes": graph.nodes, "edges": graph.edges, **cells}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        ours = cells["oocpr"]
        each = ours["all seeds, seconds"] / ours["seeds"]
        print(f"{name}: one seed {median(ours['one seed, seconds']):.3g} s, {each:.3g} s a seed of all")
        for peer, cell in cells["peers"].items():
            said = cell.get("reason") or f"{median(cell['seconds a seed']):.3g} s, {cell['worst error']:.1e}"
            print(f"  {peer}: {said}", flush=True)


if __name__ == "__main__":
    main()
