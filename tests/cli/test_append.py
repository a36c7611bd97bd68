"""Edges that are added to a store, as the command line tells of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import oocpr

from .conftest import contents

if TYPE_CHECKING:
    Run = Callable[..., Any]


def write(path: Path, first: int, last: int) -> Path:
    ids = np.random.default_rng(1).integers(0, 3000, (60_000, 2))[first:last]
    np.savetxt(path, ids, "%d")
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A graph of almost sixty thousand links."""
    oocpr.import_graph(write(tmp_path / "old.txt", 0, 59_940), tmp_path / "old.zarr")
    return tmp_path / "old.zarr"


@pytest.mark.long
def test_a_graph_grows_and_is_ranked_from_its_earlier_ranks(
    oocpr_command: Run, old: Path, tmp_path: Path
) -> None:
    monday = write(tmp_path / "monday.txt", 59_940, 60_000)
    both, ranks = tmp_path / "both.zarr", tmp_path / "ranks.parquet"
    assert oocpr_command("rank", old, "--method", "mixed", "-o", ranks).code == 0

    answer = oocpr_command("append", old, monday, "-o", both)
    assert answer.code == 0
    assert re.fullmatch(rf"note: \d+ of \d+ tiles of {re.escape(str(old))} are as they were\.\n", answer.err)
    assert answer.out.startswith(f"{both}: 3,000 nodes, ")
    oocpr.import_graph([tmp_path / "old.txt", monday], tmp_path / "all.zarr")
    assert contents(both) == contents(tmp_path / "all.zarr")

    how = ("rank", both, "--method", "mixed", "--json", "-")
    assert json.loads(oocpr_command(*how, "--start", ranks).out)["converged"]
    # A pass gains a factor of thirty, more than what the ranks of before may save.
    some = (*how, "--max-passes", "6")
    cold, warm = (json.loads(oocpr_command(*some, *start).out) for start in ((), ("--start", ranks)))
    assert warm["passes"] == cold["passes"] == 6
    assert warm["error_bound"] < cold["error_bound"] / 10


def test_a_graph_takes_the_place_of_the_one_that_it_grew_from(
    oocpr_command: Run, old: Path, tmp_path: Path
) -> None:
    monday = write(tmp_path / "monday.txt", 59_940, 60_000)
    refused = oocpr_command("append", old, monday, "-o", old)
    assert (refused.code, "exists" in refused.err) == (2, True)
    assert oocpr_command("append", old, monday, "-o", old, "--overwrite").code == 0
    assert oocpr.open_graph(old).info()["source"] == "old and 1 more"


def test_what_cannot_be_added_to_is_refused(fails: Run, old: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "more.txt", 0, 5)
    (tmp_path / "names.tsv").write_text("a\tb\n")
    oocpr.import_graph(more, tmp_path / "sorted.zarr", order="degree")
    both = tmp_path / "both.zarr"
    assert "in the order 'degree'" in fails(2, "append", tmp_path / "sorted.zarr", more, "-o", both)
    assert "by number, names by name" in fails(2, "append", old, tmp_path / "names.tsv", "-o", both)
    assert "does not exist" in fails(2, "append", tmp_path / "none.zarr", more, "-o", both)
    assert "does not exist" in fails(2, "append", old, tmp_path / "none.txt", "-o", both)
    assert "needs" in fails(4, "append", old, more, "-o", both, "--memory", "10MiB")
