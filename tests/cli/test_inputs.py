"""Tables of edges as people have them, ranked by one command, against NetworkX on the same edges."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import pytest

if TYPE_CHECKING:
    Run = Callable[..., Any]

EDGES = [
    ("a b", "#c", 2.5),
    ("#c", 'd "e"', 1.0),
    ('d "e"', "a b", 4.0),
    ("a b", 'd "e"', 1.5),
    ("#c", "f", 7.0),
]


def written(folder: Path, kind: str) -> tuple[Path, list[str]]:
    path = folder / f"trips.{kind}"
    with path.open("w", newline="", encoding="utf-8-sig" if kind == "semicolons.csv" else "utf-8") as file:
        if kind == "csv":
            csv.writer(file).writerows([("source", "target", "amount"), *EDGES])
        elif kind == "semicolons.csv":
            rows = [("amount", "target", "source"), *(row[::-1] for row in EDGES)]
            csv.writer(file, delimiter=";", quoting=csv.QUOTE_ALL).writerows(rows)
        elif kind == "tsv":
            file.writelines(f"{u}\t{v}\t{w}\n" for u, v, w in [("source", "target", "amount"), *EDGES])
        else:
            file.writelines(json.dumps({"source": u, "target": v, "amount": w}) + "\n" for u, v, w in EDGES)
    return path, ["--weight", "3" if kind == "tsv" else "amount"]


@pytest.mark.parametrize("kind", ["csv", "semicolons.csv", "tsv", "jsonl"])
def test_ranks_are_those_of_networkx(oocpr_command: Run, tmp_path: Path, kind: str) -> None:
    path, weight = written(tmp_path, kind)
    outcome = oocpr_command("rank", path, *weight, "-o", tmp_path / "r.csv")
    assert outcome.code == 0, outcome.err
    assert ("header" in outcome.err) == (kind != "jsonl")
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(EDGES)
    with (tmp_path / "r.csv").open(newline="") as file:
        ranks = {row["node"]: float(row["rank"]) for row in csv.DictReader(file)}
    assert ranks == pytest.approx(nx.pagerank(graph, tol=1e-14, max_iter=1000), abs=1e-9)
