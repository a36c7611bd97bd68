"""Comparisons of rankings are what dictionaries of them give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oocpr
from oocpr.errors import InputError, UsageError
from oocpr.result.comparison import MOVERS
from oocpr.result.names import ListedNames, RowNames
from oocpr.result.ranks import Ranks

# Sums of such numbers are exact, and many are equal; other programs' ranks may be below 0 by rounding.
RANKS = st.integers(-4, 40).map(lambda number: number / 64)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[dict[int, float], dict[int, float]]:
    """Two rankings of nodes of which some are the same, each in an order of its own."""
    one, other = (draw(st.dictionaries(st.integers(0, 30), RANKS, max_size=25)) for _ in range(2))
    return tuple(dict(draw(st.permutations(list(ranks.items())))) for ranks in (one, other))  # type: ignore[return-value]


def made(ranks: dict[int, float], textual: bool) -> Ranks:
    nodes = list(ranks)
    names = ListedNames([f"<{node}>" for node in nodes] if textual else np.array(nodes, np.int64))
    return Ranks(np.array(list(ranks.values())), names)


def top_of(ranks: dict[int, float], count: int) -> set[int]:
    order = list(ranks)
    return set(sorted(order, key=lambda node: (-ranks[node], order.index(node)))[:count])


def place(ranks: dict[int, float], node: int) -> int | None:
    return 1 + sum(rank > ranks[node] for rank in ranks.values()) if node in ranks else None


@given(rankings(), st.integers(0, 30), st.booleans())
def test_any_rankings(drawn: tuple[dict[int, float], dict[int, float]], top: int, textual: bool) -> None:
    one, other = drawn
    found = made(one, textual).compare(made(other, textual), top)
    nodes = set(one) | set(other)
    change = {node: abs(one.get(node, 0) - other.get(node, 0)) for node in nodes}
    assert (found.nodes, found.other_nodes, found.common) == (
        len(one),
        len(other),
        len(set(one) & set(other)),
    )
    assert found.distance == sum(change.values())
    first, second = top_of(one, top), second_top(one, other, top)
    listed = max(len(first), len(second))
    assert found.overlap == (len(first & second) / listed if listed else 1)
    # Not imported with this module, which every process of the tests collects.
    from scipy.stats import kendalltau

    union = sorted(first | second)
    sides = [[ranks.get(node, 0) for node in union] for ranks in (one, other)]
    if all(len(set(side)) < 2 for side in sides):
        assert found.kendall_tau == 1
    else:
        assert found.kendall_tau == pytest.approx(kendalltau(*sides).statistic, nan_ok=True)
    moved = sorted((size for size in change.values() if size), reverse=True)[:MOVERS]
    assert [abs(mover.rank - mover.other_rank) for mover in found.movers] == moved
    for mover in found.movers:
        node = int(str(mover.node).strip("<>"))
        assert (mover.rank, mover.other_rank) == (one.get(node, 0), other.get(node, 0))
        assert (mover.place, mover.other_place) == (place(one, node), place(other, node))


def second_top(one: dict[int, float], other: dict[int, float], top: int) -> set[int]:
    """The largest of the other; of equal ones first those that the one has, in its order."""
    return top_of(
        {
            node: other[node]
            for node in [*(n for n in one if n in other), *(n for n in other if n not in one)]
        },
        top,
    )


def test_runs_with_other_orders_of_the_same_graph_are_close(tmp_path):
    src, dst = np.random.default_rng(5).integers(0, 200, (2, 2000))
    graphs = [
        oocpr.import_graph((src, dst), tmp_path / f"{order}.zarr", order=order)
        for order in ("keep", "degree")
    ]
    one, other = (oocpr.pagerank(graph) for graph in graphs)
    found = one.compare(other)
    assert found.common == found.nodes == one.nodes
    assert found.distance <= one.error_bound + other.error_bound
    assert found.overlap == 1
    # A file has its nodes by rank, and names tell which are the same.
    other.to_parquet(tmp_path / "ranks.parquet", sort="rank")
    again = one.compare(oocpr.read_ranks(tmp_path / "ranks.parquet"))
    assert again.distance == pytest.approx(found.distance)


def test_nodes_are_shown_as_text():
    found = made({1: 0.5, 2: 0.25}, True).compare(made({2: 0.5, 3: 0.125}, True))
    lines = str(found).splitlines()
    assert lines[:3] == ["nodes              2, before 2", "nodes in both      1", "L1 distance        0.875"]
    assert lines[5:] == [
        "node  rank  before  place  before",
        "<1>    0.5       0      1       -",
        "<2>   0.25     0.5      2       1",
        "<3>      0   0.125      -       2",
    ]
    assert "<1>" not in found._repr_html_()
    assert "&lt;1&gt;" in found._repr_html_()


def test_names_from_strangers_stay_in_their_lines():
    one, other = (
        Ranks(ranks, ListedNames(["a\x1b[31m", "b\nc"])) for ranks in np.array([[0.5, 0.5], [0.25, 0.75]])
    )
    lines = str(one.compare(other)).splitlines()[-2:]
    assert [line.split("  ")[0] for line in lines] == [r"a\x1b[31m", r"b\nc"]


def test_what_is_no_ranking_is_refused():
    ranks = Ranks(np.ones(2) / 2, RowNames())
    with pytest.raises(UsageError, match="other is ndarray, no ranks"):
        ranks.compare(np.ones(2))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="top is -1, no count"):
        ranks.compare(ranks, -1)


def test_names_that_two_ranks_have_are_refused_on_either_side():
    once, twice = (Ranks(np.ones(2) / 2, ListedNames(["a", name])) for name in "ba")
    for one, other in ((once, twice), (twice, once)):
        with pytest.raises(InputError, match="several"):
            one.compare(other)
