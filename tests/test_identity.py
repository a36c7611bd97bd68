"""A graph that is replaced, and ranks of another one, as callers see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oocpr
from oocpr.cli import main
from oocpr.errors import ReplacedError

A = np.array([0, 1, 2, 2]), np.array([1, 2, 0, 1])
B = np.array([0, 1, 2, 1]), np.array([1, 2, 0, 0])


@pytest.mark.parametrize(
    "use",
    [
        oocpr.pagerank,
        oocpr.plan,
        lambda graph: oocpr.verify(graph, oocpr.pagerank(A)),
        lambda graph: oocpr.append(graph, A, "nowhere.zarr"),
        lambda graph: graph.info(),
    ],
)
def test_a_graph_whose_path_has_another_one_is_refused(tmp_path: Path, use: Any) -> None:
    graph = oocpr.import_graph(A, tmp_path / "g.zarr")
    oocpr.pagerank(graph)
    oocpr.import_graph(B, tmp_path / "g.zarr", overwrite=True)
    with pytest.raises(ReplacedError, match=graph.store.identity):
        use(graph)


@pytest.mark.parametrize("suffix", ["parquet", "zarr"])
def test_files_of_ranks_say_which_graph_they_are_of(
    tmp_path: Path, suffix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b, ranks, said = (tmp_path / name for name in ("a.zarr", "b.zarr", f"r.{suffix}", "said.json"))
    mine, other = (oocpr.import_graph(g, p).info()["identity"] for g, p in ((A, a), (B, b)))
    assert mine != other
    assert main(["rank", str(a), "-o", str(ranks), "--json", str(said)]) == 0
    assert json.loads(said.read_text())["identity"] == mine
    assert json.loads(said.read_text())["start_identity"] is None

    capfd.readouterr()
    assert main(["verify", str(a), str(ranks)]) == 0
    assert "another graph" not in capfd.readouterr().out
    assert main(["verify", str(b), str(ranks)]) == 3
    out, err = capfd.readouterr()
    assert f"{other}; the ranks are of another graph, {mine}" in out
    assert f"; the ranks are of another graph, {mine}." in err

    assert main(["rank", str(b), "--start", str(ranks), "--json", str(said)]) == 0
    assert f"began with ranks of another graph, {mine}; this one is {other}" in capfd.readouterr().out
    assert json.loads(said.read_text())["start_identity"] == mine
    assert main(["rank", str(a), "--start", str(ranks)]) == 0
    assert "another graph" not in capfd.readouterr().out
    assert main(["info", str(a)]) == 0
    assert mine in capfd.readouterr().out


def test_a_name_is_never_that_of_another_graph(tmp_path: Path) -> None:
    for name, labels in (("a", "one\ntwo\nthree\n"), ("b", "un\ndeux\ntrois\n")):
        (tmp_path / f"{name}.labels").write_text(labels)
    path = tmp_path / "g.zarr"
    graph = oocpr.import_graph(A, path, labels=tmp_path / "a.labels")
    ranks = oocpr.pagerank(graph)
    assert ranks.top(1)[0][0] in ("one", "two", "three")
    oocpr.import_graph(A, path, labels=tmp_path / "b.labels", overwrite=True)
    with pytest.raises(ReplacedError, match=graph.store.identity):
        ranks.top(1)


def test_edges_that_somebody_else_has_added_meanwhile_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "g.zarr"
    graph = oocpr.import_graph(A, path)

    def meanwhile(stage: str, *rest: Any) -> None:
        if stage == "writing":
            oocpr.append(path, (np.array([1]), np.array([0])), path, overwrite=True)

    with pytest.raises(ReplacedError, match=graph.store.identity):
        oocpr.append(graph, (np.array([0]), np.array([2])), path, overwrite=True, progress=meanwhile)
    assert oocpr.open_graph(path).edges == 5
