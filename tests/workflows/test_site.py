"""The site is built of all pages without a warning, has all commands and names, and fetches nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import oocpr

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "workflows" / "site" / "build.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, str(BUILD), str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


pytestmark = pytest.mark.long


def test_the_contents_have_every_page_of_docs(site: Path) -> None:
    contents = set(
        re.findall(r'<a class="reference internal" href="([^"#]+)\.html"', (site / "index.html").read_text())
    )
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert contents == pages | {"reference/commands", "reference/python"}
    assert all((site / f"{page}.html").exists() for page in contents)


def test_every_command_and_public_name_has_its_place(site: Path) -> None:
    commands = unescape(re.sub("<[^>]*>", "", (site / "reference" / "commands.html").read_text()))
    for words in ("", "rank ", "import ", "centrality katz "):
        printed = subprocess.run(
            [sys.executable, "-m", "oocpr", *words.split(), "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", printed, re.MULTILINE)
        assert options
        begin = commands.index(f"Usage: oocpr {words}[OPTIONS]")
        shown = commands[begin : commands.find("Usage: ", begin + 1)]
        assert [option for option in options if option not in shown] == []
    names = set(re.findall(r'id="oocpr\.(\w+)"', (site / "reference" / "python.html").read_text()))
    assert names >= {name for name in oocpr.__all__ if not name.startswith("__")}


def test_nothing_is_fetched_from_others(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        fetched = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]+)"', text)
        fetched += re.findall(r'<link[^>]* href="([^"]+)"', text)
        assert [address for address in fetched if "//" in address] == []
