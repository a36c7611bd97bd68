"""Nodes are found by the names people know them by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from oocpr.errors import DoesNotFitError, InputError, UsageError
from oocpr.result import row_lookup
from oocpr.result.names import ListedNames, Name, Names, RowNames, aligned, size_of
from oocpr.result.node_vectors import rows_named, teleport_vector
from oocpr.result.row_lookup import find_rows, match_rows

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize("textual", [True, False])
def test_names_are_found_in_any_number_of_batches(textual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_lookup, "_budget", lambda *_: 2000)
    random = np.random.default_rng(5)
    ours, theirs = random.permutation(3000)[:1000], random.integers(0, 3000, 500)

    def listed(numbers: Any) -> ListedNames:
        return ListedNames([f"node {k}" for k in numbers] if textual else numbers)

    blocks = listed(theirs).blocks(500)
    values = theirs.astype(float)
    rows_of = {int(name): row for row, name in enumerate(ours)}
    rows = []
    for block, some, of_them in match_rows(listed(ours), 1000, aligned(blocks, iter(np.split(values, 25)))):
        assert size_of(block) == some.size == of_them.size
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
    with pytest.raises(InputError, match="No such file"):
        teleport_vector(tmp_path / "seeds.txt", RowNames(), 3)
    (tmp_path / "seeds.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        teleport_vector(tmp_path / "seeds.txt", RowNames(), 3)


@pytest.mark.parametrize("weights", [[0, 0, 0], [1, -1, 1], [1, np.nan, 1], [1, np.inf, 1]])
def test_weights_that_are_no_distribution_are_refused(weights: list[float]) -> None:
    message = "personalization (gives .* (1 )?(-1|nan|inf)|has no number above 0)"
    with pytest.raises(UsageError, match=message):
        teleport_vector(np.array(weights, float), RowNames(), 3)
    with pytest.raises(UsageError, match=message):
        teleport_vector(dict(enumerate(weights)), RowNames(), 3)


def test_an_array_of_another_length_is_refused() -> None:
    with pytest.raises(UsageError, match="shape"):
        teleport_vector(np.ones(4), RowNames(), 3)
