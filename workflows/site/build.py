"""Build the site: the pages of docs/ with the README, the commands' help and the public docstrings.

uv run python workflows/site/build.py build/site

Warnings, such as of links that lead nowhere, are errors. Links to files that the site does not have, such as
sources, become their text.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from sphinx.cmd.build import build_main

import oocpr
from oocpr.cli.commands import cli

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
FRONT = "index.md"
CHAPTERS = {
    "First steps": ["tutorial"],
    "How to": [
        f"how-to/{name}"
        for name in (
            *("weights", "personal-ranks", "centrality", "growing-graphs", "memory", "devices", "cluster"),
            *("long-runs", "night-jobs", "schedulers", "notebooks", "networkx", "papers"),
        )
    ],
    "Reference": [
        f"reference/{name}" for name in ("commands", "python", "sources", "exit-codes", "store", "format")
    ],
    "Explanation": ["method", "node-orders", "benchmarks"],
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_WIDTH = 100


def commands_page() -> str:
    """Help of all commands, as a terminal of a hundred columns shows it."""
    lines = ["# Commands", "", "What `oocpr --help` and `oocpr COMMAND --help` print.", ""]
    for path, command in _commands(cli, "oocpr"):
        context = click.Context(command, info_name=path, max_content_width=_WIDTH, terminal_width=_WIDTH)
        lines += [f"## {path}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from _commands(one, f"{path} {name}")


def python_page() -> str:
    """Docstrings of all public names, functions first."""
    names = [name for name in oocpr.__all__ if not name.startswith("__")]
    classes = [name for name in names if isinstance(getattr(oocpr, name), type)]
    lines = ["# Python", "", "What `import oocpr` offers.", ""]
    for name in [*(name for name in names if name not in classes), *classes]:
        kind = "function"
        if name in classes:
            kind = "exception" if issubclass(getattr(oocpr, name), Exception) else "class"
        members = ["   :members:"] if kind == "class" else []
        lines += [f"## {name}", "", "```{eval-rst}", f".. auto{kind}:: oocpr.{name}", *members, "```", ""]
    return "\n".join(lines)


def front_page() -> str:
    """Give the README with the contents of the site at its end."""
    lines = [(ROOT / "README.md").read_text(encoding="utf-8")]
    for chapter, pages in CHAPTERS.items():
        lines += ["```{toctree}", ":hidden:", f":caption: {chapter}", *pages, "```", ""]
    return "\n".join(lines)


def led_inside(text: str, page: str, pages: set[str]) -> str:
    """Let the links of a page lead to pages and pictures of the site; those that lead elsewhere become text.

    >>> led_inside("[a](docs/a.md#b), [c](oocpr/c.py)", "index.md", {"a.md"})
    '[a](a.md#b), c'
    """
    # Links of the README begin at the root of the repository, those of other pages at their own folder.
    folder = "" if page == FRONT else posixpath.join("docs", posixpath.dirname(page))

    def led(found: re.Match[str]) -> str:
        image, shown, target, anchor = found.groups()
        inside = posixpath.relpath(posixpath.normpath(posixpath.join(folder, target)), "docs")
        if inside not in pages:
            return str(shown)
        there = posixpath.relpath(inside, posixpath.dirname(page) or ".")
        return f"{image}[{shown}]({there}{anchor or ''})"

    # What stands between fences is shown as it is.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(led, part) for part in parts)


def collect(folder: Path) -> None:
    """Write all that Sphinx reads into a folder."""
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True)
    (folder / FRONT).write_text(front_page(), encoding="utf-8")
    (folder / "reference" / "commands.md").write_text(commands_page(), encoding="utf-8")
    (folder / "reference" / "python.md").write_text(python_page(), encoding="utf-8")
    pages = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for page in (page for page in pages if page.endswith(".md")):
        text = (folder / page).read_text(encoding="utf-8")
        (folder / page).write_text(led_inside(text, page, pages), encoding="utf-8")


def main() -> int:
    """Build the site into a folder; returns the exit code of Sphinx."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="FOLDER", help="where the site goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as source:
        collect(Path(source))
        words = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", str(HERE)]
        return build_main([*words, source, str(options.out)])


if __name__ == "__main__":
    sys.exit(main())
