"""Weights of links at the command line: the same store from every format, ranks, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.io import mmwrite
from scipy.sparse import coo_array, csr_array, diags_array, save_npz

import oocpr

from .conftest import contents

if TYPE_CHECKING:
    Run = Callable[..., Any]

NODES = 400


@pytest.fixture(scope="module")
def links() -> coo_array:
    """A graph whose nodes all have links, some of them repeated; sums of the weights are exact."""
    rng = np.random.default_rng(3)
    tails = np.concatenate([np.arange(NODES - 9), rng.integers(0, NODES - 9, 3000)])
    heads = np.concatenate([rng.integers(0, NODES, NODES - 9), np.arange(NODES), rng.integers(0, 9, 2600)])
    weights = rng.integers(0, 2**12, tails.size) / 2**6
    return coo_array((weights, (tails, heads)), shape=(NODES, NODES))


@pytest.fixture(scope="module")
def sources(links: coo_array, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """The graph in each format, with what its weights are called."""
    folder = tmp_path_factory.mktemp("sources")
    tails, heads = links.coords
    np.savetxt(folder / "g.txt", np.stack([tails, heads, links.data]).T, "%d %d %.17g")
    table = pa.table({"from": tails, "to": heads, "kg": links.data})
    pq.write_table(table, folder / "g.parquet")
    mmwrite(folder / "g.mtx", links)
    save_npz(folder / "g.npz", links)
    names = {"txt": "3", "parquet": "kg", "mtx": "values", "npz": "values"}
    return {suffix: (folder / f"g.{suffix}", weight) for suffix, weight in names.items()}


ROWS_OF_MTX = "Nodes are numbered from 0, as in SciPy: node 0 is row 1 of"


@pytest.mark.parametrize("duplicates", ["merge", "sum"])
def test_every_format_makes_the_same_store(
    oocpr_command: Run,
    tmp_path: Path,
    links: coo_array,
    sources: dict[str, tuple[Path, str]],
    duplicates: str,
) -> None:
    found = []
    for suffix, (source, weight) in sources.items():
        path = tmp_path / f"{suffix}.zarr"
        words = ("import", source, "-o", path, "--weight", weight, "--duplicates", duplicates)
        answer = oocpr_command(*words)
        assert answer.code == 0
        assert answer.err == (f"note: {ROWS_OF_MTX} {source}.\n" if suffix == "mtx" else "")
        assert f"duplicates {'merged' if duplicates == 'merge' else 'added up'}" in answer.out
        found.append(contents(path))
    assert all(each == found[0] for each in found)

    # What these are called stands in the store.
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(NODES))
    triples = zip(*(part.tolist() for part in (*links.coords, links.data)), strict=True)
    graph.add_weighted_edges_from(triples, weight="kg")
    table = pq.read_table(sources["parquet"][0])
    for name, source, weight in (
        ("graph", graph, "kg"),
        ("table", table, "kg"),
        ("matrix", links.tocsc() if duplicates == "sum" else links, "values"),
    ):
        oocpr.import_graph(source, tmp_path / name, weight=weight, duplicates=duplicates)
        others = contents(tmp_path / name)
        if not (name == "matrix" and duplicates == "sum"):  # which knows of no repeated links
            assert {key for key in others if others[key] != found[0][key]} == {"zarr.json"}


@pytest.mark.parametrize("duplicates", ["merge", "sum", "count"])
@pytest.mark.parametrize("order", ["keep", "degree"])
def test_ranks_are_those_of_scipy(
    oocpr_command: Run,
    tmp_path: Path,
    links: coo_array,
    sources: dict[str, tuple[Path, str]],
    duplicates: str,
    order: str,
) -> None:
    source, weight = sources["parquet"]
    path, ranks = tmp_path / "g.zarr", tmp_path / "ranks.parquet"
    weigh = () if duplicates == "count" else ("--weight", weight)
    words = (*weigh, "--duplicates", duplicates, "--order", order)
    assert oocpr_command("import", source, "-o", path, *words).code == 0

    tails, heads = links.coords
    matrix = np.zeros((NODES, NODES))
    if duplicates == "merge":
        np.maximum.at(matrix, (tails, heads), links.data)
    else:
        np.add.at(matrix, (tails, heads), links.data if duplicates == "sum" else 1.0)
    sums = matrix.sum(axis=1)
    steps = diags_array(np.divide(1, sums, out=np.zeros(NODES), where=sums > 0)) @ csr_array(matrix)
    exact = np.full(NODES, 1 / NODES)
    for _ in range(300):
        exact = 0.85 * (steps.T @ exact + exact[sums == 0].sum() / NODES) + 0.15 / NODES
    assert abs(matrix.max() - 1) > 0.5  # weights matter

    for method in ("auto", "mixed", "residual"):
        assert oocpr_command("rank", path, "--method", method, "-o", ranks).code == 0
        found = pq.read_table(ranks).sort_by("node")
        assert np.abs(found["rank"].to_numpy() - exact).sum() < 1e-10
    assert oocpr_command("verify", path, ranks).code == 0


def test_a_source_is_ranked_with_its_weights(
    oocpr_command: Run, tmp_path: Path, sources: dict[str, tuple[Path, str]]
) -> None:
    source, weight = sources["txt"]
    words = ("--weight", weight, "--duplicates", "sum", "-o", "-")
    answer = oocpr_command("rank", source, *words)
    assert answer.code == 0
    oocpr.import_graph(source, tmp_path / "g.zarr", weight=weight, duplicates="sum")
    assert oocpr_command("rank", tmp_path / "g.zarr", "-o", "-").out == answer.out


def test_info_says_what_weights_take(
    oocpr_command: Run, tmp_path: Path, sources: dict[str, tuple[Path, str]]
) -> None:
    source, weight = sources["txt"]
    path = tmp_path / "g.zarr"
    said = oocpr_command("import", source, "-o", path, "--weight", weight).out
    facts = json.loads(oocpr_command("info", path, "--json", "-").out)
    assert facts["weighted"]
    assert 2 <= facts["weight_bytes_per_edge"] < 8.1
    assert f", {facts['weight_bytes_per_edge']:.2f} of them weights, " in said
    lines = oocpr_command("info", path).out.splitlines()
    shown = next(line for line in lines if line.startswith("weighted"))
    assert shown.split(maxsplit=1)[1] == f"yes, {facts['weight_bytes_per_edge']:.3f} B/edge"


def test_links_are_counted_without_weights(oocpr_command: Run, tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1\n0 1\n0 1\n0 2\n1 0\n2 0\n")
    answer = oocpr_command("import", tmp_path / "g.txt", "-o", tmp_path / "g.zarr", "--duplicates", "count")
    assert "2 duplicates counted" in answer.out
    ranks = oocpr.pagerank(tmp_path / "g.zarr", damping=0.5).to_numpy()
    # Three of four links lead from node 0 to node 1.
    assert ranks[1] - 1 / 6 == pytest.approx(3 * (ranks[2] - 1 / 6), abs=1e-10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("g.txt", "--weight", "3"), "line 2: the weight '-1' in column 3 is negative"),
        (("g.txt", "--weight", "4"), "line 1: .* holds no weight in column 4"),
        (("g.txt", "--weight", "kg"), "'kg' is no column of weights"),
        (("g.txt", "--weight", "3", "--duplicates", "count"), "to be counted, and weights are to be read"),
        (("g.txt", "--duplicates", "sum"), "no weights are read"),
        (("g.txt", "--duplicates", "mean"), "--duplicates is 'mean', which duplicate edges cannot become"),
        (("g.npy", "--weight", "3"), "Files of the format npy have no weights"),
    ],
)
def test_what_cannot_be_is_refused(
    fails: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.txt").write_text("0 1 0.5\n1 0 -1\n")
    np.save(tmp_path / "g.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    assert re.search(message, fails(2, "import", *words, "-o", "g.zarr"))
    assert re.search(message, fails(2, "rank", *words))


def test_a_store_has_its_weights_already(
    fails: Run, tmp_path: Path, sources: dict[str, tuple[Path, str]]
) -> None:
    oocpr.import_graph(sources["txt"][0], tmp_path / "g.zarr", weight=3)
    assert "decided" in fails(2, "rank", tmp_path / "g.zarr", "--weight", "3")
    assert "decided" in fails(2, "rank", tmp_path / "g.zarr", "--duplicates", "sum")
