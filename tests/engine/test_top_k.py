"""The largest values of a vector in chunks are those of a full sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.top_k import largest


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.25000001, 1.0]), max_size=9), max_size=6),
    st.integers(0, 30),
)
def test_any_cut_of_a_vector_with_many_ties_gives_what_a_stable_sort_gives(
    pieces: list[list[float]], k: int
) -> None:
    chunks = [np.array(piece, np.float64) for piece in pieces]
    whole = np.concatenate([*chunks, np.empty(0)])
    expected = np.argsort(-whole, kind="stable")[:k]
    rows, values = largest(chunks, k)
    assert rows.tolist() == expected.tolist()
    assert values.tolist() == whole[expected].tolist()


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_a_long_vector_of_one_value_gives_the_first_rows(k: int) -> None:
    rows, _ = largest([np.full(5000, 0.5), np.full(5000, 0.5)], k)
    assert rows.tolist() == list(range(k))


@given(st.data())
def test_the_largest_of_a_long_vector_are_those_of_a_sorted_one(data):
    size, k = data.draw(st.integers(1, 30_000)), data.draw(st.integers(0, 9))
    few = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 4)), max_size=40))
    values = np.zeros(size) if data.draw(st.booleans()) else np.arange(size) % 7.0
    for place, value in few:
        values[place] = value
    rows, found = largest(iter([values]), k)
    assert rows.tolist() == np.argsort(-values, kind="stable")[:k].tolist()
    assert (found == values[rows]).all()
