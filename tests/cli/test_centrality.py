"""The commands of Katz and eigenvector centrality, hubs and authorities."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oocpr
from oocpr import api

if TYPE_CHECKING:
    Run = Callable[..., Any]


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """A circle, and a node that points into it."""
    (tmp_path / "g.txt").write_text("0 1\n1 2\n2 0\n3 0\n3 1\n")
    return tmp_path / "g.txt"


def test_katz_lists_and_writes(oocpr_command: Run, links: Path, tmp_path: Path) -> None:
    wanted = oocpr.katz_centrality(str(links), alpha=0.5)
    answer = oocpr_command("centrality", "katz", links, "--alpha", "0.5", "-o", tmp_path / "k.parquet")
    assert answer.code == 0
    listed = [line.split() for line in answer.out.splitlines()]
    assert [int(node) for _, _, node in listed] == [node for node, _ in wanted.top(4)]
    assert "relative error of each node <= " in answer.err
    assert oocpr.read_ranks(tmp_path / "k.parquet").top(4) == wanted.top(4)


def test_hits_write_hubs_and_authorities_and_json(oocpr_command: Run, links: Path, tmp_path: Path) -> None:
    files = ("--hubs", tmp_path / "h.csv", "--authorities", tmp_path / "a.zarr")
    answer = oocpr_command("centrality", "hits", links, *files, "--json", "-")
    assert answer.code == 0
    facts = json.loads(answer.out)
    assert list(facts) == ["hubs", "authorities"]
    assert facts["hubs"]["top"][0]["node"] == 3
    hubs, authorities = oocpr.hits(str(links))
    assert oocpr.read_ranks(tmp_path / "h.csv").top(4) == hubs.top(4)
    assert oocpr.read_ranks(tmp_path / "a.zarr").top(4) == authorities.top(4)


def test_edges_may_be_taken_the_other_way_and_both_ways(oocpr_command: Run, links: Path) -> None:
    for flag in ("--reverse", "--undirected"):
        wanted = oocpr.eigenvector_centrality(str(links), **{flag[2:]: True})
        answer = oocpr_command("centrality", "eigenvector", links, flag, "--top", "1", "--json", "-")
        assert json.loads(answer.out)["top"][0]["node"] == wanted.top(1)[0][0]


def test_more_passes_are_no_remedy_for_rounding(oocpr_command: Run, links: Path) -> None:
    answer = oocpr_command("centrality", "katz", links, "--alpha", "0.9", "--tol", "1e-17")
    assert answer.code == 3
    assert "allow a larger --tol" in answer.err
    assert "--max-passes" not in answer.err


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_passes_that_do_not_suffice_end_with_3(oocpr_command: Run, links: Path, passes: int) -> None:
    made = "1 pass" if passes == 1 else f"{passes} passes"
    for measure, more in (
        ("katz", ("--alpha", "0.9")),
        ("hits", ("--tol", "1e-15")),
        ("eigenvector", ("--tol", "1e-15")),
    ):
        answer = oocpr_command("centrality", measure, links, *more, "--max-passes", passes)
        assert answer.code == 3
        assert f"; {made} over 5 edges" in answer.err
        assert f"not converged after {made}: " in answer.err


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("katz", "--alpha", "1.5"), "--alpha is 1.5, not below 1 over the largest eigenvalue"),
        (("katz", "--alpha", "0.5", "--beta", "0"), "--beta is 0.0."),
        (("hits", "--device", "cuda"), "--device is 'cuda', and hits is found on processors only."),
        (("eigenvector", "-o", "-"), "does not end in"),
    ],
)
def test_what_cannot_be_is_refused(fails: Run, links: Path, words: tuple[str, ...], cause: str) -> None:
    measure, *others = words
    assert cause in fails(2, "centrality", measure, links, *others)


def test_a_disk_without_room_is_refused_before_the_search(
    oocpr_command: Run, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tmp_path / "g.zarr"
    oocpr.import_graph(links, graph)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3))
    monkeypatch.setattr(api, "hits", None)
    answer = oocpr_command("centrality", "hits", graph, "--authorities", tmp_path / "a.parquet")
    assert answer.code == 4
    assert "and 3 B are free there." in answer.err
