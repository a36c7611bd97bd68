"""Attributes of nodes in answers and in files of ranks."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oocpr
from oocpr.errors import UsageError
from oocpr.result import writers
from oocpr.result.files import read_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from oocpr.result.ranks import Ranks

ROWS: dict[str, dict[str, Any]] = {
    "hub": {"year": 2001, "score": 0.1, "sure": True, "tiny": -3, "who, by": 'Ann "A"'},
    "b": {"year": None, "score": None, "sure": None, "tiny": None, "who, by": ""},
    "c": {"year": 2**63, "score": -1.5e300, "sure": False, "tiny": 0, "who, by": "é\tx"},
    "d": {"year": 0, "score": 5e-324, "sure": True, "tiny": 127, "who, by": "NaN"},
}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("year", pa.uint64()),
        ("score", pa.float64()),
        ("sure", pa.bool_()),
        ("tiny", pa.int8()),
        ("who, by", pa.string()),
    ]
)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Ranks of four named nodes of which one has no row in the table."""
    rows = [{"id": node, **row} for node, row in ROWS.items() if node != "b"]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "nodes.parquet")
    links = pa.table({"from": ["b", "c", "d", "hub"], "to": ["hub", "hub", "hub", "c"]})
    graph = oocpr.import_graph(links, tmp_path / "g.zarr", nodes=tmp_path / "nodes.parquet")
    return oocpr.pagerank(graph)


def test_the_first_nodes_come_with_their_attributes(ranks: Ranks) -> None:
    plain = ranks.top()
    top = ranks.top(attributes="all")
    assert [(node, rank) for node, rank, _ in top] == plain
    assert [known for *_, known in top] == [ROWS[str(node)] for node, _ in plain]
    assert ranks.top(1, attributes=["tiny", "year"]) == [(*plain[0], {"tiny": -3, "year": 2001})]
    assert ranks.top(1, attributes=[]) == [(*plain[0], {})]
    report = ranks.report(2, attributes=["year"])["top"]
    assert [entry["attributes"] for entry in report] == [{"year": ROWS[str(n)]["year"]} for n, _ in plain[:2]]
    assert "attributes" not in ranks.report(1)["top"][0]


@pytest.mark.parametrize("sort", ["node", "rank"])
def test_attributes_come_back_from_parquet(
    tmp_path: Path, ranks: Ranks, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_ROWS", 3)
    path = tmp_path / "ranks.parquet"
    ranks.to_parquet(path, sort=sort, attributes="all")
    table = pq.read_table(path)
    assert table.schema.names == ["node", "rank", *SCHEMA.names[1:]]
    assert table.schema.types[2:] == SCHEMA.types[1:]
    assert {row["node"]: {name: row[name] for name in SCHEMA.names[1:]} for row in table.to_pylist()} == ROWS
    again = read_ranks(path)
    assert again.top(attributes="all") == ranks.top(attributes="all")
    assert again.top() == ranks.top()


def test_attributes_come_back_from_csv(tmp_path: Path, ranks: Ranks) -> None:
    path = tmp_path / "ranks.csv"
    ranks.to_csv(path, attributes=["who, by", "score", "sure"])
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["who, by"] for line in lines] == [ROWS[line["node"]]["who, by"] for line in lines]
    said = {True: "true", False: "false", None: ""}
    assert [line["sure"] for line in lines] == [said[ROWS[line["node"]]["sure"]] for line in lines]
    for line in lines:
        score = ROWS[line["node"]]["score"]
        assert line["score"] == "" if score is None else float(line["score"]) == score
    again = read_ranks(path).top(attributes="all")
    assert [known for *_, known in again] == [
        {name: ROWS[str(node)][name] for name in ("who, by", "score", "sure")} for node, _ in ranks.top()
    ]


def test_only_what_is_there_can_be_asked_for(tmp_path: Path, ranks: Ranks) -> None:
    for ask in (lambda: ranks.top(attributes=["Year"]), lambda: ranks.to_csv("x.csv", attributes=["Year"])):
        with pytest.raises(
            UsageError, match="no attribute 'Year'; there is year, score, sure, tiny, who, by"
        ):
            ask()
    with pytest.raises(UsageError, match="'year' says not which"):
        ranks.to_parquet(tmp_path / "x.parquet", attributes="year")
    ranks.to_parquet(tmp_path / "plain.parquet")
    with pytest.raises(UsageError, match="there is none"):
        read_ranks(tmp_path / "plain.parquet").top(attributes=["year"])


def test_columns_of_other_programs_are_attributes_where_they_can_be_told(tmp_path: Path) -> None:
    table = pa.table(
        {
            "tags": [["x"], ["y"]],
            "node": [4, 7],
            "rank": [0.25, 0.75],
            "half": pa.array([math.nan, 0.5], pa.float32()),
            "label": pa.array([None, "é"], pa.large_string()),
        }
    )
    pq.write_table(table, tmp_path / "ranks.parquet")
    found = read_ranks(tmp_path / "ranks.parquet")
    assert dict(found.attributes.kinds) == {"half": "float32", "label": "text"}
    assert found.attributes.take("half", np.array([1, 0])) == [0.5, None]
    assert found.top(2, attributes="all") == [
        (7, 0.75, {"half": 0.5, "label": "é"}),
        (4, 0.25, {"half": None, "label": ""}),
    ]
