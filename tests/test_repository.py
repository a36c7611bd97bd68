"""What holds for the repository as a whole: rooms, sizes, imports, and documents that say what is so."""

from __future__ import annotations

import ast
import gzip
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
HEAVY = ("dask", "distributed", "numba", "numpy", "pyarrow", "scipy", "zarr")


def modules() -> list[Path]:
    return [path for folder in ("oocpr", "kernels", "workflows") for path in (ROOT / folder).rglob("*.py")]


def blocks(document: Path, language: str) -> list[str]:
    """Texts of a document's fenced blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def run(*command: str, folder: Path = ROOT) -> str:
    """Standard output of a command that has to succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_rooms_import_one_way() -> None:
    assert "0 broken" in run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")


def test_modules_stay_readable() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > 600} == {}


def test_importing_oocpr_loads_nothing_heavy() -> None:
    loaded = set(run(sys.executable, "-c", "import oocpr, sys; print(*sys.modules)").split())
    assert "oocpr.errors" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_ci_runs_the_commands_of_the_readme() -> None:
    first, *others = blocks(ROOT / "README.md", "console")
    assert others
    steps = (ROOT / ".ci" / "run").read_text()
    assert len(first.splitlines()) == 2
    for command in first.splitlines():
        assert re.search(rf"{re.escape(command)}[)\s]", steps), f".ci/run does not run {command!r}"


def test_first_command_prints_what_the_readme_shows() -> None:
    first = blocks(ROOT / "README.md", "console")[0].splitlines()[0]
    (shown,) = blocks(ROOT / "README.md", "text")
    words = shlex.split(first.removeprefix("uv run oocpr "))
    printed = run(sys.executable, "-m", "oocpr", *words).splitlines()
    expected = [line.split() for line in shown.splitlines()]
    assert len(expected) == 10
    for line, (place, rank, name) in zip(printed, expected, strict=False):
        assert line.split()[0::2] == [place, name]
        assert float(line.split()[1]) == pytest.approx(float(rank), abs=1e-10)


@pytest.mark.long
def test_only_compiled_code_calls_what_is_compiled_for_it() -> None:
    # Such a function has nothing that takes Python's objects apart; called by Python it ends the process.
    files = [*modules(), *(ROOT / "tests").rglob("*.py")]
    trees = {path: ast.parse(path.read_text()) for path in files}
    inners = {
        (".".join(path.relative_to(ROOT).with_suffix("").parts), node.name)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if _compiled(node) == "inner"
    }
    assert len(inners) > 40
    wrong = []
    for path, tree in trees.items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        mine = {name for where, name in inners if where == module}
        for node in ast.walk(tree):
            for name in node.names if isinstance(node, ast.ImportFrom) else ():
                alias = name.asname or name.name
                mine |= {alias} if (node.module, name.name) in inners else set()
                mine |= {
                    f"{alias}.{inner}" for where, inner in inners if where == f"{node.module}.{name.name}"
                }
        wrong += [f"{module}: {name}" for name in sorted(mine & set(_names_for_python(tree)))]
    assert wrong == []


def _compiled(node: ast.AST) -> str | None:
    """How a function is compiled, or makes compiled code: "entry", "inner"; None where it does neither."""
    if isinstance(node, ast.FunctionDef):
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            if name in {"by_types", "entry", "inner", "intrinsic", "njit", "overload"}:
                return name
    return None


def _names_for_python(node: ast.AST) -> Iterator[str]:
    """Names that are read outside compiled functions."""
    if isinstance(node, ast.Name):
        yield node.id
    if isinstance(node, ast.Attribute):
        yield ast.unparse(node)
    for child in ast.iter_child_nodes(node):
        if not _compiled(child):
            yield from _names_for_python(child)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the graph that the README's examples speak of."""
    shutil.copy(ROOT / "data" / "tiny" / "site.txt.gz", tmp_path / "web.txt.gz")
    (tmp_path / "trips.txt.gz").write_bytes(gzip.compress(b"0 1 2.5\n1 0 3\n1 0 1\n"))
    (tmp_path / "calls.txt").write_bytes(b"0 1\n1 0\n1 0\n")
    (tmp_path / "seeds.tsv").write_text("first\t0\nsecond\t1\t2\nsecond\t3\n")
    (tmp_path / "monday.txt.gz").write_bytes(gzip.compress(b"0 5\n5 1\n"))
    return tmp_path


@pytest.mark.long
def test_commands_of_the_guides_run(folder: Path) -> None:
    guides = [
        "tutorial",
        "how-to/growing-graphs",
        "how-to/weights",
        "how-to/cluster",
        "how-to/personal-ranks",
        "how-to/centrality",
        "how-to/schedulers",
    ]
    shown = [block for name in guides for block in blocks(ROOT / "docs" / f"{name}.md", "console")]
    commands = [command for block in shown for command in block.splitlines()]
    later = blocks(ROOT / "README.md", "console")[1:]
    readme = [command for block in later for command in block.splitlines()]
    assert readme
    assert set(readme) <= set(commands)
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "oocpr"
        run(sys.executable, "-m", "oocpr", *words, folder=folder)
    assert (folder / "ranks.parquet").is_file()
    assert (folder / "ranks2.parquet").is_file()


@pytest.mark.long
def test_python_of_the_readme_and_the_tutorial_runs(folder: Path) -> None:
    (short,) = blocks(ROOT / "README.md", "python")
    (whole,) = blocks(ROOT / "docs" / "tutorial.md", "python")
    run(sys.executable, "-c", short, folder=folder)
    run(sys.executable, "-c", whole.replace("web.zarr", "again.zarr"), folder=folder)
    assert (folder / "ranks.parquet").is_file()
    (seeds,) = blocks(ROOT / "docs" / "how-to" / "personal-ranks.md", "python")
    run(sys.executable, "-c", seeds, folder=folder)
    assert (folder / "personal.parquet").is_file()
    (centrality,) = blocks(ROOT / "docs" / "how-to" / "centrality.md", "python")
    run(sys.executable, "-c", centrality, folder=folder)
    run(sys.executable, "-c", "\n".join(blocks(ROOT / "docs/how-to/notebooks.md", "python")), folder=folder)
    assert (folder / "ranks.png").is_file()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    missing = [
        target for target in targets if "://" not in target and not (document.parent / target).exists()
    ]
    assert missing == []


def test_exit_codes_of_the_reference_are_those_of_the_program() -> None:
    from oocpr.cli import EXIT_CODES

    page = ROOT / "docs" / "reference" / "exit-codes.md"
    rows = re.findall(r"^\| (\d+) \| .* \|$", page.read_text(), re.MULTILINE)
    assert [int(code) for code in rows] == list(EXIT_CODES)


def test_formats_of_the_reference_are_those_of_the_sources() -> None:
    from oocpr.sources import FORMATS

    table = (ROOT / "docs" / "reference" / "sources.md").read_text().split("\n\n")[1]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(FORMATS)
