"""Programs of the benchmarks as commands, where their sources are and where they are not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oocpr.cli import commands

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_folder_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OOCPR_GRAPHS", raising=False)


@pytest.mark.long
def test_systems_of_papers_are_compared_on_the_graph_of_the_sources(
    oocpr_command: Run, tmp_path: Path
) -> None:
    out, page = tmp_path / "papers.json", tmp_path / "papers.html"
    outcome = oocpr_command("bench", "papers", "--quick", "--out", out, "--html", page)
    assert outcome.code == 0
    assert "those that come with the sources" in outcome.err
    [(name, graph)] = json.loads(out.read_text())["graphs"].items()
    assert (name, graph["nodes"], graph["edges"]) == ("debian-bookworm-deps", 63_436, 309_498)
    assert len(graph["systems"]) == 4
    for system, cell in graph["systems"].items():
        assert len(cell["certified"]["seconds"]) == len(cell["residual"]["seconds"]) == 1
        assert cell["certified"]["error"] <= cell["certified"]["certified"] <= 1e-10
        assert system in outcome.out
        assert system in page.read_text()


@pytest.mark.long
def test_graphs_that_are_not_quick_are_left_out(oocpr_command: Run, tmp_path: Path) -> None:
    ring = b"".join(b"%d\t%d\n" % (n, (n + 1) % 1_000_001) for n in range(1_000_001))
    (tmp_path / "wiki-Vote.txt.gz").write_bytes(gzip.compress(ring, 1))
    (tmp_path / "hollins.dat.gz").write_bytes(gzip.compress(b"2 2\n1 a\n2 b\n1 2\n2 1\n"))
    out = tmp_path / "papers.json"
    outcome = oocpr_command("bench", "papers", "--quick", "--runs", 2, "--graphs", tmp_path, "--out", out)
    assert outcome.err == "wiki-Vote is left out: 1,000,001 edges are not quick.\n"
    [graph] = json.loads(out.read_text())["graphs"].values()
    assert graph["edges"] == 2
    assert len(graph["systems"]["oocpr, default"]["certified"]["seconds"]) == 2


def test_the_program_says_what_it_lacks(fails: Run, tmp_path: Path) -> None:
    assert fails(2, "bench", "papers") == "No folder of graphs is named."
    assert fails(2, "bench", "papers", "--graphs", tmp_path) == f"{tmp_path} has none of the graphs."


def test_an_installed_package_has_no_benchmarks(
    fails: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_BENCH", tmp_path / "workflows" / "bench")
    assert "come with the sources" in fails(2, "bench", "papers", "--quick")
