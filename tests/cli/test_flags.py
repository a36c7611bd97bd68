"""What Python calls parameters, the command line calls flags, in notices and errors alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oocpr
from oocpr.api import as_graph
from oocpr.errors import UsageError

if TYPE_CHECKING:
    Run = Callable[..., Any]


@pytest.fixture
def links(tmp_path: Path) -> Path:
    columns = {"from": [0, 1, 1], "to": [1, 0, 0], "net weight": [1.5, 2.0, 4.0]}
    pq.write_table(pa.table(columns), tmp_path / "links.parquet")
    return tmp_path / "links.parquet"


def test_a_column_that_was_not_used_is_said_with_its_flag(
    oocpr_command: Run, links: Path, tmp_path: Path
) -> None:
    said = '"net weight" was not used: all edges count the same; {} takes it as weights.'
    assert as_graph(links).notices == [said.format('weight="net weight"')]
    note = "note: " + said.format("--weight 'net weight'") + "\n"
    for words in (("import", links, "-o", tmp_path / "g.zarr"), ("rank", links)):
        answer = oocpr_command(*words)
        assert (answer.code, answer.err) == (0, note)


@pytest.mark.parametrize(
    "words",
    [
        ("import", "-", "-o", "g.zarr", "--labels", "-"),
        ("rank", "-", "--labels", "-"),
        ("rank", "links.parquet", "--personalization", "-", "--seeds", "-"),
    ],
)
def test_standard_input_is_one_input(
    fails: Run, links: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(links.parent)
    assert fails(2, *words) == "standard input is given for two inputs."
    with pytest.raises(UsageError, match="standard input is given for two inputs"):
        oocpr.import_graph("-", links.with_suffix(".zarr"), labels="-")


def test_weights_of_duplicates_are_added_and_that_is_said(
    oocpr_command: Run, links: Path, tmp_path: Path
) -> None:
    answer = oocpr_command("import", links, "-o", tmp_path / "g.zarr", "--weight", "net weight")
    said = "note: 1 duplicate edges were added up: an edge has the sum of its weights. "
    assert (answer.code, answer.err) == (0, f"{said}--duplicates merge takes the greatest.\n")
    assert "1 duplicates added up" in answer.out
    assert "1 added up at import" in oocpr_command("info", tmp_path / "g.zarr").out
    more = oocpr_command(
        "append", tmp_path / "g.zarr", links, "-o", tmp_path / "h.zarr", "--weight", "net weight"
    )
    assert (more.code, "4 duplicates added up" in more.out) == (0, True)


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        (("--threads", "-3"), "--threads is -3, no count.", "Give a whole number of at least 1."),
        (("--threads", "1000000"), "--threads is 1000000, more than there are.", "1024 threads at most"),
        (("--stripes", "0"), "--stripes is 0, no count.", "Give a whole number of at least 1."),
        (("--max-passes", "0"), "--max-passes is 0, no count.", "Give a whole number of at least 1."),
        (("--memory", "4"), "--memory is '4', 4 bytes, too few for any process.", "such as 8GiB"),
        (("--memory", "4 parsecs"), "--memory is '4 parsecs', no size.", "such as 8GiB"),
        (("--weight", "kg"), "no column 'kg'", "Name the column of weights"),
        (("--source-column", "kg"), "no column 'kg'", "both ends: --source-column and --target-column."),
        (("--duplicates", "mean"), "--duplicates is 'mean'", "sum"),
        (("--duplicates", "sum"), "no weights are read", "give --duplicates merge or --duplicates count."),
    ],
)
def test_errors_name_flags(
    oocpr_command: Run, links: Path, words: tuple[str, ...], cause: str, remedy: str
) -> None:
    answer = oocpr_command("rank", links, *words)
    assert (answer.code, answer.out) == (2, "")
    told = answer.err.splitlines()
    assert cause in told[0]
    assert remedy in told[1]


def test_text_and_matrices_name_their_weights(oocpr_command: Run, tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1 0.5\n1 0 2\n")
    answer = oocpr_command("rank", tmp_path / "g.txt")
    assert (answer.code, "or name the one with weights: --weight 3." in answer.err) == (2, True)
    (tmp_path / "g.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 2 0.5\n2 1 2\n")
    answer = oocpr_command("rank", tmp_path / "g.mtx", "--weight", "kg")
    assert (answer.code, "Call them values: --weight values." in answer.err) == (2, True)
    answer = oocpr_command("rank", tmp_path / "g.mtx")
    assert (answer.code, "--weight values takes them as weights." in answer.err) == (0, True)
    with pytest.raises(UsageError, match=r'Call them values: weight="values"\.'):
        oocpr.pagerank(tmp_path / "g.mtx", weight="kg")
