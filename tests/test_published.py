"""Ranks that others have computed and published, and real graphs against SciPy."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

import oocpr
from oocpr.api import as_graph
from oocpr.sources import open_source

from .sources.reading import read

REAL = {
    "wiki-Vote.txt.gz": None,
    "hollins.dat.gz": None,
    "gr0.California.gz": None,
    "python311-doc.txt.gz": None,
    "openjdk17-javadoc.txt.gz": None,
    "p2p-Gnutella31.e.gz": None,
    "wikispeedia_links.tsv.gz": "wikispeedia_articles.tsv.gz",
    "cit-HepTh.mtx.gz": None,
    "debian-bookworm-deps.txt.gz": None,
    "soc-Slashdot0902.mtx.gz": None,
    "cnr-2000.mtx.xz": None,
    "linux61-calls.txt.xz": None,
}
LARGE = {"cnr-2000.mtx.xz", "linux61-calls.txt.xz", "soc-Slashdot0902.mtx.gz"}
SMALL_NOISE = 1e-13  # what a float64 reference may be off itself


def reference(folder: Path, name: str, damping: float = 0.85) -> NDArray[np.float64]:
    """Power iteration in float64 with SciPy, to where it no longer moves."""
    source = open_source(folder / name, labels=None if REAL[name] is None else folder / str(REAL[name]))
    if name.startswith("wikispeedia"):
        # Nodes with names: those of the file of articles first, then others as they are met.
        named = read(source, 1 << 22)
        src, dst = np.array(named.numbered(), np.int64).T
        nodes = len(named.nodes)
    else:
        blocks = list(source.blocks(1 << 22))
        src = np.concatenate([block.src for block in blocks]).astype(np.int64)
        dst = np.concatenate([block.dst for block in blocks]).astype(np.int64)
        nodes = source.nodes
    if nodes is None:
        ids, both = np.unique(np.concatenate([src, dst]), return_inverse=True)
        src, dst, nodes = both[: len(src)], both[len(src) :], len(ids)
    pairs = np.unique(src * nodes + dst)
    src, dst = pairs // nodes, pairs % nodes
    out = np.bincount(src, minlength=nodes)
    links = csr_array((1 / out[src], (dst, src)), shape=(nodes, nodes))
    x = np.full(nodes, 1 / nodes)
    for _ in range(400):
        y = damping * (links @ x + x[out == 0].sum() / nodes) + (1 - damping) / nodes
        y /= y.sum()
        moved, x = np.abs(y - x).sum(), y
        if moved < 2e-16:
            break
    return x


@pytest.fixture(scope="module")
def references() -> dict[str, NDArray[np.float64]]:
    return {}


@pytest.mark.parametrize("reads", ["float64", "bits16", "bits8", None])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in REAL]
)
def test_the_true_error_of_real_graphs_is_under_the_bound(
    graphs: Path, references: dict[str, NDArray[np.float64]], name: str, reads: str
) -> None:
    if name not in references:
        references[name] = reference(graphs, name)
    labels = None if REAL[name] is None else graphs / str(REAL[name])
    graph = as_graph(graphs / name, labels=labels)
    ranks = oocpr.pagerank(graph, tol=1e-10, reads=reads)
    error = np.abs(ranks.to_numpy() - references[name]).sum()
    assert ranks.run is not None
    assert ranks.run.method == ("mixed" if reads else "components")
    assert ranks.converged
    assert error <= ranks.error_bound + SMALL_NOISE
    assert ranks.error_bound <= 1e-10


@pytest.mark.slow
def test_the_top_of_cnr_2000_is_as_published(graphs: Path) -> None:
    with (graphs / "cnr-2000.pagerank-top20-published.csv").open() as file:
        published = [(int(row["i"]) - 1, float(row["y"])) for row in csv.DictReader(file)]
    ranks = oocpr.pagerank(graphs / "cnr-2000.mtx.xz", tol=1e-12).to_numpy()
    ours = np.array([ranks[node] for node, _ in published])
    np.testing.assert_allclose(ours, [rank for _, rank in published], rtol=1e-7)
    assert ours.min() >= np.sort(ranks)[-20] * (1 - 1e-7)


def test_ten_steps_on_gnutella_are_as_published(graphs: Path, tmp_path: Path) -> None:
    with gzip.open(graphs / "p2p-Gnutella31.undirected-pagerank-10it.txt.gz", "rt") as file:
        lines = file.read().split()
    published = dict(zip(map(int, lines[::2]), map(float, lines[1::2]), strict=True))
    graph = oocpr.import_graph(graphs / "p2p-Gnutella31.e.gz", tmp_path / "g.zarr", undirected=True)
    ranks = oocpr.pagerank(graph, method="power", reads="float64", max_passes=10)
    assert not ranks.converged
    found = dict(ranks.top(graph.nodes))
    assert found.keys() == published.keys()
    assert sum(abs(found[node] - rank) for node, rank in published.items()) <= 1e-12


def test_two_steps_of_graphalytics_are_as_published(data: Path) -> None:
    published = {1: 0.1477629166667, 3: 0.1550469444444, 4: 0.1597573611111, 5: 0.14624}
    published |= {
        8: 0.1135740277778,
        10: 0.08748375,
        2: 0.04753375,
        6: 0.04753375,
        7: 0.04753375,
        9: 0.04753375,
    }
    edges = {1: [3, 5], 2: [4, 5, 10], 3: [1, 5, 8, 10], 5: [3, 4, 8], 6: [3, 4], 7: [4], 8: [1], 9: [4]}
    src = np.array([node for node, to in edges.items() for _ in to])
    dst = np.array([target for to in edges.values() for target in to])
    ranks = oocpr.pagerank((src, dst), method="power", reads="float64", max_passes=2)
    found: dict[Any, float] = dict(ranks.top(10))
    assert found == pytest.approx(published, abs=1e-6)


@pytest.mark.parametrize("reads", ["float64", "bits8"])
def test_networkx_agrees_on_its_six_nodes(reads: str) -> None:
    graph = nx.DiGraph([(1, 2), (1, 3), (3, 1), (3, 2), (3, 5), (4, 5), (4, 6), (5, 4), (5, 6), (6, 4)])
    src, dst = (np.array(ends) for ends in zip(*graph.edges, strict=True))
    ranks = oocpr.pagerank((src, dst), tol=1e-12, reads=reads)
    assert dict(ranks.top(6)) == pytest.approx(nx.pagerank(graph, tol=1e-14, max_iter=500), abs=1e-11)


def test_langville_and_meyers_six_nodes() -> None:
    src, dst = np.array([1, 1, 3, 3, 3, 4, 4, 5, 5, 6]), np.array([2, 3, 1, 2, 5, 5, 6, 4, 6, 4])
    ranks = oocpr.pagerank((src, dst), damping=0.9, tol=1e-12)
    published = {1: 0.03721, 2: 0.05396, 3: 0.04151, 4: 0.3751, 5: 0.206, 6: 0.2862}
    assert dict(ranks.top(6)) == pytest.approx(published, abs=5e-5)
