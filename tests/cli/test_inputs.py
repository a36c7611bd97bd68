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
        elif kind == "blanks.txt":
            rows = [("caller", "amount", "note", "callee"), *((u, w, "x y", v) for u, v, w in EDGES)]
            csv.writer(file, delimiter=" ").writerows(rows)
        elif kind == "bars.dat":
            csv.writer(file, delimiter="|").writerows([("citing", "cited", "amount"), *EDGES])
        elif kind == "semicolons.csv":
            rows = [("amount", "target", "source"), *(row[::-1] for row in EDGES)]
            csv.writer(file, delimiter=";", quoting=csv.QUOTE_ALL).writerows(rows)
        elif kind == "tsv":
            file.writelines(f"{u}\t{v}\t{w}\n" for u, v, w in [("source", "target", "amount"), *EDGES])
        else:
            file.writelines(json.dumps({"source": u, "target": v, "amount": w}) + "\n" for u, v, w in EDGES)
    return path, ["--weight", "3" if kind == "tsv" else "amount"]


@pytest.mark.parametrize("kind", ["csv", "semicolons.csv", "bars.dat", "blanks.txt", "tsv", "jsonl"])
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


def test_a_name_that_no_file_can_have_is_refused(oocpr_command: Run) -> None:
    outcome = oocpr_command("rank", "x" * 300)
    assert outcome.code == 2
    # From Python 3.14 on it is only asked whether there is such a file.
    causes = (
        f"the name {'x' * 60}... is too long for a file.",
        "graph is a str, too long for the name of a file.",
    )
    assert outcome.err in [f"error: {cause}\nremedy: Use a shorter one.\n" for cause in causes]


def test_an_import_ends_with_what_was_guessed(oocpr_command: Run, tmp_path: Path) -> None:
    path = tmp_path / "calls.txt"
    path.write_text("kg|callee|caller\n2|b|a\n")
    outcome = oocpr_command("import", path, "-o", tmp_path / "g.zarr", "--weight", "kg")
    assert outcome.code == 0
    assert outcome.err == (
        f"note: {path} is CSV separated by bars, line 1 is its header; "
        "edges run from column 'caller' to column 'callee' and weights are in column 'kg'.\n"
    )
    assert outcome.out.startswith(f"{tmp_path / 'g.zarr'}: 2 nodes, 1 edges")


@pytest.mark.parametrize(
    ("text", "options", "cause", "remedy"),
    [
        ("a;b,c\nb;c,d\n", [], "line 1: semicolons and commas split", "--delimiter ';' or --delimiter ,"),
        ("source,target\nsource,b\n", [], "line 1: 'source,target' may be", "--no-header if it is an edge"),
        ("1,2\n", ["--delimiter", "::"], "--delimiter is '::'", "tab, comma"),
        ("a,b\n1,2\n1;2\n", [], "line 3: a row of 1 columns", "as many columns"),
    ],
)
def test_a_wrong_guess_has_exit_code_2(
    oocpr_command: Run, tmp_path: Path, text: str, options: list[str], cause: str, remedy: str
) -> None:
    (tmp_path / "g.csv").write_text(text)
    outcome = oocpr_command("import", tmp_path / "g.csv", "-o", tmp_path / "g.zarr", *options)
    said = outcome.err.splitlines()
    assert (outcome.code, len(said)) == (2, 2)
    assert cause in said[0]
    assert remedy in said[1]
    assert not (tmp_path / "g.zarr").exists()
