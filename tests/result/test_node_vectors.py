"""Nodes are found by the names people know them by, for teleport vectors and for earlier ranks."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oocpr.errors import DoesNotFitError, InputError, UsageError
from oocpr.result import names as node_names
from oocpr.result import node_vectors
from oocpr.result.names import (
    ListedNames,
    Name,
    Names,
    RowNames,
    find_rows,
    match_rows,
    zip_blocks,
)
from oocpr.result.node_vectors import rows_named, seed_vectors, start_vector, teleport_vector
from oocpr.result.ranks import Ranks

LABELS = ListedNames(["a", "two words", "c"])
IDS = ListedNames(np.array([10, 30, 20], np.uint32))


def found(names: Names, nodes: int, wanted: list[Name], origin: str = "x") -> list[int]:
    [(rows, _)] = rows_named(names, nodes, [(wanted, np.ones(len(wanted)))], origin)
    return rows.tolist()


def test_names_are_found() -> None:
    assert found(LABELS, 3, ["c", "a"]) == [2, 0]
    assert found(RowNames(), 5, [4, 4, 0]) == [4, 4, 0]
    assert found(IDS, 3, [20, 10]) == [2, 0]


@pytest.mark.parametrize("names", [LABELS, RowNames(), IDS])
@pytest.mark.parametrize("stranger", ["10 ", "\ud800", 7, 2**64, -1, 10.5, None, ("a",)])
def test_whatever_is_no_name_of_the_graph_is_no_node(names: Names, stranger: Any) -> None:
    with pytest.raises(InputError, match="x: the graph has no node"):
        found(names, 3, [stranger])


def test_a_lookup_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DoesNotFitError, match="Looking up 3 nodes by their names needs"):
        next(find_rows(LABELS, 3, [], 1 << 20))


def test_an_unknown_name_is_repeated() -> None:
    with pytest.raises(InputError, match=r"seeds\.txt: the graph has no node 'd'"):
        found(LABELS, 3, ["a", "d"], "seeds.txt")


def test_a_name_of_two_nodes_is_refused() -> None:
    for names in (["b", "a", "b"], ["a", "b", "b"]):
        with pytest.raises(InputError, match="'b' is the name of several nodes"):
            found(ListedNames(names), 3, ["b"])


@pytest.mark.parametrize("at_once", [5, 20])
@pytest.mark.parametrize("kind", ["texts", "numbers", "numbers that end alike"])
def test_names_are_found_in_any_number_of_batches(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_names, "_FEW", 5)
    monkeypatch.setattr(node_names, "_budget", lambda *_: 100 * at_once)
    random = np.random.default_rng(5)
    ours, theirs = random.permutation(3000)[:1000], random.integers(0, 3000, 500)
    if "alike" in kind:
        ours, theirs = ours << 40, theirs << 40

    def listed(numbers: Any) -> ListedNames:
        return ListedNames([f"node {k}" for k in numbers] if kind == "texts" else numbers)

    blocks = listed(theirs).blocks(500)
    values = theirs.astype(float)
    rows_of = {int(name): row for row, name in enumerate(ours)}
    rows = []
    for block, some, of_them in match_rows(
        listed(ours), 1000, zip_blocks(blocks, iter(np.split(values, 500 // at_once)))
    ):
        assert block.size == some.size == of_them.size
        rows += some.tolist()
    assert rows == [rows_of.get(int(name), -1) for name in theirs]


@pytest.mark.parametrize(
    ("names", "text", "weights"),
    [
        (LABELS, "two words\t3\nc\n", [0, 0.75, 0.25]),
        (LABELS, "# comment\n\na\nc\n", [0.5, 0, 0.5]),
        (LABELS, "#\n c \t3\n two words\r\n", [0, 0.25, 0.75]),
        (ListedNames(["#cats", "%x", "c"]), "#cats\n%x\t3\n# c\n", [0.25, 0.75, 0]),
        (IDS, "#10\n%30\n20\n", [0, 0, 1]),
        (IDS, "30 3\n20\t1\n", [0, 0.75, 0.25]),
        (IDS, "10\n10\n20 2\r\n", [0.5, 0, 0.5]),
        (RowNames(), "2\n", [0, 0, 1]),
    ],
)
def test_a_file_of_weights_is_read_by_name(
    tmp_path: Path, names: Names, text: str, weights: list[float]
) -> None:
    path = tmp_path / "seeds.txt"
    path.write_bytes(text.encode())
    assert teleport_vector(path, names, 3).tolist() == weights
    assert teleport_vector(str(path), names, 3).tolist() == weights


@pytest.mark.parametrize(
    ("names", "text", "message"),
    [
        (LABELS, "a\tmuch\n", "line 1: 'a\\tmuch' is no node and weight"),
        (IDS, "10\n\nten\n", "line 3: 'ten'"),
        (IDS, "10 1 1\n", "line 1: '10 1 1'"),
        (IDS, "10\r30\r", "line 1: lines end in carriage returns alone"),
        (IDS, "10\n1_0\n", "line 2: '1_0' is no node and weight"),
        (IDS, "10 1_0\n", "line 1: '10 1_0' is no node and weight"),
        (LABELS, "a\t1_0\n", "line 1: 'a\\t1_0' is no node and weight"),
    ],
)
def test_the_line_that_cannot_be_read_is_named(tmp_path: Path, names: Names, text: str, message: str) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        teleport_vector(path, names, 3)
    assert str(path) in caught.value.cause
    assert message in caught.value.cause


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        teleport_vector(tmp_path / "seeds.txt", RowNames(), 3)
    (tmp_path / "seeds.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-16"):
        teleport_vector(tmp_path / "seeds.txt", RowNames(), 3)


def test_a_file_may_be_compressed(tmp_path: Path) -> None:
    (tmp_path / "seeds.txt.gz").write_bytes(gzip.compress(b"a\t3\nc\n"))
    assert teleport_vector(tmp_path / "seeds.txt.gz", LABELS, 3).tolist() == [0.75, 0, 0.25]


@pytest.mark.parametrize("weights", [[0, 0, 0], [1, -1, 1], [1, np.nan, 1], [1, np.inf, 1]])
def test_weights_that_are_no_distribution_are_refused(weights: list[float]) -> None:
    message = "personalization (gives .* (1 )?(-1|nan|inf)|has no number above 0)"
    with pytest.raises(UsageError, match=message):
        teleport_vector(np.array(weights, float), RowNames(), 3)
    with pytest.raises(UsageError, match=message):
        teleport_vector(dict(enumerate(weights)), RowNames(), 3)


def test_numbers_of_one_node_that_float64_cannot_add_up_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.tsv"
    path.write_text("0\t1e308\n0\t1e308\n1\t1\n")
    with pytest.raises(UsageError, match=f"{path} gives one node numbers"):
        teleport_vector(path, RowNames(), 3)
    path.write_text("s\t0\t1e308\ns\t0\t1e308\nt\t1\t1\n")
    with pytest.raises(UsageError, match=f"{path} gives one node numbers"):
        seed_vectors(path, RowNames(), 3)
    # Those of several nodes have shares all the same.
    path.write_text("0\t1e308\n1\t1e308\n2\t1e308\n")
    assert np.allclose(teleport_vector(path, RowNames(), 3), 1 / 3, rtol=1e-15)


def test_an_array_of_another_length_is_refused() -> None:
    with pytest.raises(UsageError, match="shape"):
        teleport_vector(np.ones(4), RowNames(), 3)


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
        patch.setattr(node_vectors, "_CHUNK", chunk)
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
