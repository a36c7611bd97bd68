"""Earlier ranks find the nodes of another graph by their names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import InputError, UsageError
from oocpr.result import node_vectors as starting
from oocpr.result.names import ListedNames, RowNames
from oocpr.result.node_vectors import start_vector
from oocpr.result.ranks import Ranks

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LABELS = ListedNames(["a", "two words", "c"])


def listed(names: list[Any]) -> ListedNames:
    return ListedNames(names if isinstance(names[0], str) else np.array(names, np.int64))


def expected(ours: list[Any], ranks: dict[Any, float], least: float) -> NDArray[np.float64]:
    total = sum(ranks.values())
    found = np.array([ranks[name] / total if name in ranks else least for name in ours])
    return found / found.sum()


@given(st.data(), st.booleans(), st.integers(1, 5))
def test_ranks_go_to_nodes_of_the_same_name(data: st.DataObject, textual: bool, chunk: int) -> None:
    every = [f"page {k}" for k in range(20)] if textual else [7 * k - 50 for k in range(20)]
    subsets = st.permutations(every).flatmap(
        lambda names: st.integers(1, 20).map(lambda count: sorted(names[:count]) or names[:1])
    )
    ours, theirs = data.draw(subsets), data.draw(subsets)
    if data.draw(st.booleans()):
        ours = data.draw(st.permutations(ours))
    numbers = data.draw(st.lists(st.floats(0.01, 1), min_size=len(theirs), max_size=len(theirs)))
    known = dict(zip(theirs, numbers, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "_CHUNK", chunk)
        if not set(ours) & set(theirs):
            with pytest.raises(InputError, match="no rank of any node"):
                start_vector(known, listed(ours), len(ours), 0.1)
            return
        answers = [
            start_vector(known, listed(ours), len(ours), 0.1),
            start_vector(Ranks(np.array(numbers), listed(theirs)), listed(ours), len(ours), 0.1),
        ]
    for answer in answers:
        np.testing.assert_allclose(answer, expected(ours, known, 0.1), rtol=1e-14)
        assert abs(answer.sum() - 1) <= 1e-14


@pytest.mark.parametrize("suffix", ["parquet", "csv", "zarr"])
@pytest.mark.parametrize("names", [LABELS, RowNames()])
def test_a_file_of_ranks_is_read(tmp_path: Path, suffix: str, names: Any) -> None:
    path = tmp_path / f"ranks.{suffix}"
    getattr(Ranks(np.array([0.5, 0.2, 0.3]), names), f"to_{suffix}")(path)
    np.testing.assert_allclose(start_vector(path, names, 3, 0.1), [0.5, 0.2, 0.3], rtol=1e-15)


def test_new_nodes_get_what_they_have_at_least() -> None:
    least = np.array([0.9, 0.5, 0.25])
    answer = start_vector({"a": 3, "two words": 9}, LABELS, 3, least)
    np.testing.assert_allclose(answer, np.array([0.25, 0.75, 0.25]) / 1.25)


def test_numbers_in_store_order_are_taken_as_they_are() -> None:
    assert start_vector(np.array([1, 0, 3]), LABELS, 3, 0.1).tolist() == [0.25, 0, 0.75]


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ([1.0, 2.0], UsageError, r"start has the shape \(2,\)\. Give a number for each of the 3 nodes"),
        ([1.0, -2.0, 3.0], UsageError, "start gives row 1 -2.0"),
        ([1.0, math.nan, 3.0], UsageError, "start gives row 1 nan"),
        ([1.0, math.inf, 3.0], UsageError, "start gives row 1 inf"),
        ([0.0, 0.0, 0.0], UsageError, "start has no number above 0"),
        ({"a": -1.0, "c": 3.0}, UsageError, "start gives the node 'a' -1.0"),
        ({"a": math.nan}, UsageError, "start gives the node 'a' nan"),
        ({}, UsageError, "start has no number above 0"),
        ({7: 1.0}, InputError, "start has no rank of any node of the graph"),
        ({"a": 0.0, "b": 1.0}, UsageError, "for nodes of the graph are all zero"),
    ],
)
def test_what_cannot_be_is_refused(wanted: Any, error: type[Exception], message: str) -> None:
    given = np.array(wanted) if isinstance(wanted, list) else wanted
    with pytest.raises(error, match=message):
        start_vector(given, LABELS, 3, 0.0)


def test_a_file_that_holds_no_ranks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ranks.csv"
    path.write_text("node,rank\na,-0.5\nc,1.5\n")
    with pytest.raises(UsageError, match=r"ranks\.csv sum to 1.0 and the least is -0.5"):
        start_vector(path, LABELS, 3, 0.0)
    path.write_text("node,rank\na,nan\nc,1.5\n")
    with pytest.raises(InputError, match=r"ranks\.csv: row 1 has no finite rank"):
        start_vector(path, LABELS, 3, 0.0)
