"""The graphs of data/: one graph in every format, and ranks that exact arithmetic confirms."""

from __future__ import annotations

import csv
from fractions import Fraction

import numpy as np
import pytest

from oocpr.sources import open_source

from .reading import read

GRAPHS = {"site": 0, "langville-meyer": 1, "graphalytics-directed": 1}
BY_NAME = (".tsv", ".csv", ".jsonl")
SUFFIXES = [".txt", ".mtx", ".npz", ".gr0", ".dat", *BY_NAME]
PUBLISHED = {
    "langville-meyer.ranks-0.9.csv": ([0.03721, 0.05396, 0.04151, 0.3751, 0.206, 0.2862], 5.1e-5),
    "graphalytics-directed.ranks-0.85-2-passes.csv": (
        [.1477629166667, .04753375, .1550469444444, .1597573611111, .14624,
         .04753375, .04753375, .1135740277778, .04753375, .08748375],
        1e-13,
    ),
}  # fmt: skip


def edges_of(path, **options):
    by_name = path.suffix in BY_NAME
    source = open_source(path, **options)
    graph = read(source, 7)
    if by_name:
        source.labels = list(graph.nodes)
    return np.array(graph.numbered() if by_name else graph.edges), source


def table(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_format_holds_the_same_graph(data, name, suffix):
    first = GRAPHS[name]
    text, _ = edges_of(data / "tiny" / f"{name}.txt")
    names = [row["name"] for row in table(data / "tiny" / f"{name}.ranks-0.85.csv")]
    edges, source = edges_of(data / "tiny" / f"{name}{suffix}")
    expected = {(names[u - first], names[v - first]) for u, v in text}
    if source.labels is not None:
        labels = list(source.labels)
        assert {(labels[u], labels[v]) for u, v in edges} == expected
    else:
        start = first if suffix == ".txt" else 0
        assert {(names[u - start], names[v - start]) for u, v in edges} == expected
    assert len(edges) == len(expected)
    if suffix not in BY_NAME:
        assert source.nodes == (None if source.labels is None and suffix == ".txt" else len(names))


@pytest.mark.parametrize("packing", [".gz", ".xz", ".zst", ".bz2"])
def test_compressed_files_hold_the_same_graph(data, packing):
    plain, _ = edges_of(data / "tiny" / "site.txt")
    compressed, source = edges_of(data / "tiny" / f"site.txt{packing}")
    np.testing.assert_array_equal(compressed, plain)
    assert list(source.labels) == ["home", "about", "news", "archive", "contact"]


def step(x, edges, degrees, damping):
    n = len(x)
    lost = sum(x[u] for u in range(n) if not degrees[u])
    ranks = [(1 - damping) / n + damping * lost / n for _ in x]
    for u, v in edges:
        ranks[v] += damping * x[u] / degrees[u]
    return ranks


@pytest.mark.parametrize("name", GRAPHS)
def test_the_expected_ranks_are_exact(data, name):
    edges, source = edges_of(data / "tiny" / f"{name}.mtx")
    n = source.nodes
    degrees = np.bincount(edges[:, 0], minlength=n).tolist()
    checked = 0
    for path in (data / "tiny").glob(f"{name}.ranks-*.csv"):
        rows = table(path)
        assert [int(row["node"]) for row in rows] == list(range(GRAPHS[name], GRAPHS[name] + n))
        ranks = [Fraction(float(row["rank"])) for row in rows]
        words = path.stem.split("ranks-")[1].split("-")
        damping = Fraction(words[0])
        if len(words) > 1:
            exact = [Fraction(1, n)] * n
            for _ in range(int(words[1])):
                exact = step(exact, edges, degrees, damping)
            error = sum(abs(x - y) for x, y in zip(ranks, exact, strict=True))
        else:
            # The residual of a contraction bounds the distance to its fixed point.
            residual = step(ranks, edges, degrees, damping)
            error = sum(abs(x - y) for x, y in zip(ranks, residual, strict=True)) / (1 - damping)
        assert error < Fraction(1, 10**15)
        checked += 1
        if path.name in PUBLISHED:
            digits, tolerance = PUBLISHED[path.name]
            np.testing.assert_allclose([float(rank) for rank in ranks], digits, rtol=0, atol=tolerance)
            checked += 1
    assert checked == 1 + 2 * (name != "site")


def test_the_debian_graph_is_whole(data):
    edges, source = edges_of(data / "debian-bookworm-deps.txt.gz")
    assert source.nodes == len(source.labels) == 63_436
    assert len(edges) == 330_017
    assert len(np.unique(edges, axis=0)) == 309_498
    labels = list(source.labels)
    assert labels[0] == "0ad"
    into = np.bincount(edges[:, 1], minlength=source.nodes)
    assert labels[int(into.argmax())] == "libc6"
