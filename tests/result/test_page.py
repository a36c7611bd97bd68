"""The page about a run says what the run says, and nothing in it is taken for a tag."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

import oocpr
from oocpr.cli import main
from oocpr.errors import UsageError
from oocpr.result.names import ListedNames
from oocpr.result.ranks import Ranks
from oocpr.units import format_bound


class Page(HTMLParser):
    """Tables as lists of rows, by the heading above them, and all tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.heading, self.inside = "", ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag in ("h1", "h2"):
            self.heading = ""
        if tag == "tr":
            self.tables.setdefault(self.heading, []).append([])
        if tag in ("td", "th"):
            self.tables[self.heading][-1].append("")

    def handle_data(self, data: str) -> None:
        if self.inside in ("h1", "h2"):
            self.heading += data
        if self.inside in ("td", "th"):
            self.tables[self.heading][-1][-1] += data

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self.inside = ""


def test_a_page_has_what_the_run_found(graph, tmp_path):
    ranks = oocpr.pagerank(graph, method="mixed", predict=True)
    ranks.to_html(tmp_path / "report.html", top=5, title="Ranks of <today>")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page, run = Page(text), ranks.run
    found = dict(page.tables["What was found"])
    assert found["nodes"] == f"{graph.nodes}"
    assert found["edges"] == f"{graph.edges:,}"
    assert found["passes"] == f"{run.passes}"
    assert f"<p>Certified: L1 error &lt;= {format_bound(run.error_bound)}.</p>" in text
    rows = page.tables["The 5 largest ranks"][1:]
    assert [(int(node), float(rank)) for _, node, rank in rows] == [
        (node, pytest.approx(rank, rel=1e-5)) for node, rank in ranks.top(5)
    ]
    assert [row[0] for row in page.tables["Passes"][1:]] == [str(of.number) for of in ranks.history]
    assert {row[0] for row in page.tables["Plan and run"][1:]} >= {"a pass", "passes", "in all"}
    assert dict(page.tables["What was asked for"])["graph"] == run.identity
    lines = [about["points"] for tag, about in page.tags if tag == "polyline"]
    assert [len(points.split()) for points in lines[:2]] == [run.passes] * 2
    assert "today" not in {tag for tag, _ in page.tags}


def test_a_page_is_one_file_that_loads_nothing(graph, tmp_path):
    oocpr.pagerank(graph).to_html(tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"}
    assert not [about for _, about in page.tags if {"src", "href"} & set(about)]
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags


def test_a_run_that_did_not_converge_says_so_first(graph, tmp_path):
    ranks = oocpr.pagerank(graph, method="mixed", max_passes=2)
    ranks.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert re.search(r"</h1>\s*<p class=\"lost\">Not converged: L1 error .*; 1e-10 was asked for", text)


def test_names_are_text_and_ranks_from_elsewhere_have_no_certificate(tmp_path):
    ranks = Ranks(np.array([0.75, 0.25, 0.0]), ListedNames(["<script>alert(1)</script>", "&amp;", "\ud800"]))
    ranks.to_html(tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert [row[1] for row in page.tables["The 3 largest ranks"][1:]] == [
        "<script>alert(1)</script>", "&amp;", r"\ud800",
    ]  # fmt: skip
    assert "script" not in {tag for tag, _ in page.tags}
    assert "nothing certifies them" in (tmp_path / "report.html").read_text()
    assert "Passes" not in page.tables
    with pytest.raises(UsageError, match="top is -1"):
        ranks.to_html(tmp_path / "other.html", top=-1)
    assert not (tmp_path / "other.html").exists()


def test_centralities_say_how_exact_they_are(graph, tmp_path):
    katz = oocpr.katz_centrality(graph, alpha=0.001)
    katz.to_html(tmp_path / "katz.html")
    text = (tmp_path / "katz.html").read_text()
    assert "<h1>Katz centrality</h1>" in text
    assert f"<p>Converged: {html.escape(katz.facts.quality)}.</p>" in text
    assert "nothing certifies" not in text


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [390, 1100])
def test_a_browser_shows_it_without_complaints(graph, tmp_path, width):
    oocpr.pagerank(graph, method="mixed").to_html(tmp_path / "report.html")
    done = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--window-size={width},900", "--dump-dom", f"file://{tmp_path}/report.html",
        ],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.count("<polyline") == 3
    assert "CONSOLE" not in done.stderr


def test_the_page_of_a_command_lists_a_thousand_at_most(tmp_path):
    src, dst = np.random.default_rng(5).integers(0, 2000, (2, 9000))
    np.savetxt(tmp_path / "links.txt", np.stack((src, dst), axis=1), fmt="%d")
    words = ["rank", str(tmp_path / "links.txt"), "--top", "1500", "--report", str(tmp_path / "r.html")]
    assert main([*words, "-o", str(tmp_path / "r.csv")]) == 0
    assert len(Page((tmp_path / "r.html").read_text()).tables["The 1000 largest ranks"]) == 1001
