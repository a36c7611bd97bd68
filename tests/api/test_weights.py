"""Weights that are taken, and those that are not used and said so, against NetworkX and SciPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy.sparse import coo_array

import oocpr
from oocpr.api import as_graph
from oocpr.errors import UsageError

NODES = 60


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Payments between named nodes, many of them repeated."""
    random = np.random.default_rng(5)
    ends = np.array([f"account {k}" for k in range(NODES)])
    payer, payee = ends[random.integers(0, NODES, (2, 900)) ** 2 % NODES]
    amount = random.integers(1, 4000, 900) / 8
    return pd.DataFrame({"payer": payer, "payee": payee, "year": 2020, "amount": amount})


COLUMNS: dict[str, Any] = {"source_column": "payer", "target_column": "payee"}


def by_name(ranks: oocpr.Ranks) -> dict[Any, float]:
    return dict(ranks.top(len(ranks)))


def distance(ranks: oocpr.Ranks, exact: dict[Any, float]) -> float:
    found = by_name(ranks)
    assert found.keys() == exact.keys()
    return sum(abs(found[name] - exact[name]) for name in exact)


def multigraph(frame: pd.DataFrame, kind: type[nx.MultiDiGraph] = nx.MultiDiGraph) -> nx.MultiDiGraph:
    return nx.from_pandas_edgelist(frame, "payer", "payee", ["amount"], create_using=kind)


@pytest.mark.long
def test_a_frame_with_weights_has_the_ranks_of_networkx(frame: pd.DataFrame) -> None:
    exact = nx.pagerank(multigraph(frame), weight="amount", tol=1e-14, max_iter=1000)
    assert distance(oocpr.pagerank(frame, weight="amount", **COLUMNS), exact) < 2e-10
    merged = oocpr.pagerank(frame, weight="amount", duplicates="merge", **COLUMNS)
    assert distance(merged, exact) > 1e-3  # duplicates matter


@pytest.mark.long
def test_every_way_to_give_weights_has_the_same_ranks(frame: pd.DataFrame, tmp_path: Path) -> None:
    expected = by_name(oocpr.pagerank(frame, weight="amount", **COLUMNS))
    pq.write_table(pa.table(frame), tmp_path / "g.parquet")
    totals = frame.groupby(["payer", "payee"], as_index=False)["amount"].sum()
    for source in (tmp_path / "g.parquet", str(tmp_path / "g.parquet"), pa.table(frame), totals):
        assert by_name(oocpr.pagerank(source, weight="amount", **COLUMNS)) == pytest.approx(expected)
    assert distance(oocpr.pagerank(multigraph(frame), weight="amount"), expected) < 2e-10


def test_edges_in_both_directions_have_the_ranks_of_networkx(frame: pd.DataFrame) -> None:
    exact = nx.pagerank(multigraph(frame, nx.MultiGraph), weight="amount", tol=1e-14, max_iter=1000)
    assert distance(oocpr.pagerank(frame, weight="amount", undirected=True, **COLUMNS), exact) < 2e-10


def scipy_ranks(matrix: coo_array) -> NDArray[np.float64]:
    whole = matrix.toarray()  # repeated entries are added
    nodes = len(whole)
    sums = whole.sum(axis=1)
    ranks = np.full(nodes, 1 / nodes)
    for _ in range(400):
        share = np.divide(ranks, sums, out=np.zeros(nodes), where=sums > 0)
        ranks = 0.85 * (whole.T @ share + ranks[sums == 0].sum() / nodes) + 0.15 / nodes
    return ranks


def test_repeated_entries_of_a_matrix_are_added_as_scipy_does() -> None:
    random = np.random.default_rng(6)
    ends = random.integers(0, 30, (2, 500)) ** 2 % 30
    matrix = coo_array((random.integers(1, 99, 500), tuple(ends)), shape=(30, 30))
    found = oocpr.pagerank(matrix, weight="values").to_numpy()
    assert np.abs(found - scipy_ranks(matrix)).sum() < 2e-10


def test_how_many_were_added_is_said(frame: pd.DataFrame) -> None:
    graph = as_graph(frame, weight="amount", **COLUMNS)
    repeated = int(frame.duplicated(["payer", "payee"]).sum())
    assert repeated > 100
    assert graph.notices == [
        f"{repeated:,} duplicate edges were added up: an edge has the sum of its weights. "
        'duplicates="merge" takes the greatest.'
    ]
    assert graph.info()["duplicate_weights"] == "sum"
    assert as_graph(frame, weight="amount", duplicates="sum", **COLUMNS).notices == []


def unused(takes: str, named: str = "") -> str:
    shown, it = (named, f'"{takes}"') if named else (f'"{takes}"', "it")
    were = "were" if named else "was"
    return f'{shown} {were} not used: all edges count the same; weight="{takes}" takes {it} as weights.'


TABLE = pa.table(
    {
        "from": [0, 1, 2],
        "to": [1, 2, 0],
        "since": ["x", "y", "z"],
        "weight": [1.0, 2.5, 1.0],
        "fresh": [True, False, True],
    }
)


@pytest.mark.long
@pytest.mark.parametrize("form", ["arrow", "pandas", "parquet", "dask"])
def test_a_column_of_numbers_that_is_not_used_is_said(tmp_path: Path, form: str) -> None:
    def source(table: pa.Table) -> Any:
        if form == "parquet":
            pq.write_table(table, tmp_path / "g.parquet")
            return tmp_path / "g.parquet"
        if form == "dask":
            return pytest.importorskip("dask.dataframe").from_pandas(table.to_pandas(), npartitions=2)
        return table if form == "arrow" else table.to_pandas()

    assert as_graph(source(TABLE)).notices == [unused("weight")]
    year = TABLE.append_column("year", pa.array([1, 2, 3]))
    assert as_graph(source(year)).notices == [unused("weight", '"weight", "year"')]
    assert as_graph(source(year), undirected=True).notices == [unused("weight", '"weight", "year"')]
    for known in ({"weight": "year"}, {"duplicates": "count"}):
        assert as_graph(source(year), **known).notices == []
    assert as_graph(source(TABLE.drop_columns("weight"))).notices == []


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiDiGraph])
def test_an_attribute_of_numbers_that_is_not_used_is_said(kind: type[nx.Graph]) -> None:
    graph = kind()
    graph.add_edge(0, 1, weight=1, kind="road", toll=True)
    graph.add_edge(1, 2, weight=1.0)
    assert as_graph(graph).notices == []  # all 1: nothing is lost
    graph.add_edge(2, 0, km=12)
    assert as_graph(graph).notices == [unused("km")]
    assert as_graph(graph, weight="km").notices == [
        "2 of 3 edges have no 'km': they have the weight 1, as in NetworkX."
    ]
    exact = nx.pagerank(graph, weight="km", tol=1e-14, max_iter=1000)
    assert distance(oocpr.pagerank(graph, weight="km"), exact) < 2e-10


def test_a_weight_that_no_edge_has_is_refused() -> None:
    graph = nx.DiGraph([(0, 1, {"weight": 3}), (1, 0, {"km": 2})])
    message = r"weight is 'wieght', which no edge of the graph has; their attributes are 'weight', 'km'\."
    with pytest.raises(UsageError, match=message):
        as_graph(graph, weight="wieght")
    with pytest.raises(UsageError, match="their attributes are none"):
        as_graph(nx.path_graph(3), weight="weight")
    alone = nx.empty_graph(3, create_using=nx.DiGraph)
    assert oocpr.pagerank(alone, weight="weight").to_numpy() == pytest.approx(1 / 3)


def test_parallel_edges_that_count_once_are_said() -> None:
    graph = nx.MultiDiGraph([(0, 1), (0, 1), (0, 2), (1, 0), (2, 0)])
    assert as_graph(graph).notices == [
        'Parallel edges count once. duplicates="count" makes their number the weight, as NetworkX does.'
    ]
    counted = as_graph(graph, duplicates="count")
    assert counted.notices == []
    assert distance(oocpr.pagerank(counted), nx.pagerank(graph, tol=1e-14, max_iter=1000)) < 2e-10
    assert as_graph(nx.MultiDiGraph([(0, 1), (1, 0)])).notices == []


def test_values_that_are_not_used_are_said() -> None:
    matrix = coo_array(([1.0, 2.0], ([0, 1], [1, 0])))
    assert as_graph(matrix).notices == [
        "The values of the matrix were not used: it is ranked as an unweighted graph; "
        'weight="values" takes them as weights.'
    ]
    assert as_graph(matrix, weight="values").notices == []
    assert as_graph(coo_array(([1, 1], ([0, 1], [1, 0])))).notices == []


def appended(
    folder: Path, frame: pd.DataFrame, change: Callable[[Path], None], **more: Any
) -> tuple[oocpr.Graph, oocpr.Graph]:
    """Add the second half of a table to a store of the first half, and import both."""
    halves = frame[:450], frame[450:]
    oocpr.import_graph(halves[0], folder / "half.zarr", weight="amount", **COLUMNS)
    change(folder / "half.zarr")
    added = oocpr.append(
        folder / "half.zarr", halves[1], folder / "b.zarr", weight="amount", **COLUMNS, **more
    )
    return added, oocpr.import_graph(frame, folder / "all.zarr", weight="amount", **COLUMNS)


def test_edges_that_are_added_become_what_those_before_became(frame: pd.DataFrame, tmp_path: Path) -> None:
    added, whole = appended(tmp_path, frame, lambda _: None)
    assert added.info()["duplicate_weights"] == "sum"
    found, expected = by_name(oocpr.pagerank(added)), by_name(oocpr.pagerank(whole))
    assert found == pytest.approx(expected, abs=1e-12)
    for wrong in ("merge", "count"):
        with pytest.raises(
            UsageError, match=f"imported with duplicates sum, and duplicates is now '{wrong}'"
        ):
            oocpr.append(whole, frame, tmp_path / "c.zarr", duplicates=wrong, weight="amount", **COLUMNS)


@pytest.mark.long
def test_counts_go_on_being_counted(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1\n0 1\n0 2\n1 0\n2 0\n")
    old = oocpr.import_graph(tmp_path / "g.txt", tmp_path / "old.zarr", duplicates="count")
    both = oocpr.append(old, tmp_path / "g.txt", tmp_path / "both.zarr")
    assert both.info()["duplicate_weights"] == "count"
    assert oocpr.pagerank(both).to_numpy() == pytest.approx(oocpr.pagerank(old).to_numpy())


def test_a_store_that_does_not_say_what_duplicates_became_wants_to_be_told(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    import json

    def age(path: Path) -> None:
        document = path / "zarr.json"
        text = json.loads(document.read_text())
        attributes = text["attributes"]["oocpr"]
        del attributes["duplicate_weights"], attributes["metadata_crc32c"]
        document.write_text(json.dumps(text))

    with pytest.raises(
        UsageError, match=r"of an earlier version.* Give duplicates as it was given to the import"
    ):
        appended(tmp_path, frame, age)
    (tmp_path / "again").mkdir()
    added, whole = appended(tmp_path / "again", frame, age, duplicates="sum")
    assert by_name(oocpr.pagerank(added)) == pytest.approx(by_name(oocpr.pagerank(whole)), abs=1e-12)
