"""Graphs in memory, and the wrapper that turns edges around."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from oocpr.errors import InputError, UsageError
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat

from .reading import read

LAYOUTS = ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"]


def edges_of(source, max_edges: int = 4) -> list[tuple[int, int]]:
    return read(source, max_edges).edges


@given(
    hnp.arrays(np.int8, st.integers(1, 7).map(lambda n: (n, n)), elements=st.integers(0, 2)),
    st.sampled_from(LAYOUTS),
    st.sampled_from([sp.csr_matrix, sp.csr_array]),
    st.integers(1, 60),
)
def test_every_layout_gives_the_entries_of_the_dense_matrix(dense, layout, kind, max_edges):
    source = open_source(kind(dense).asformat(layout))
    assert sorted(edges_of(source, max_edges)) == list(
        zip(*(i.tolist() for i in dense.nonzero()), strict=True)
    )
    assert source.nodes == len(dense)
    assert any("unweighted" in notice for notice in source.notices) == (dense == 2).any()


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_a_stored_zero_is_no_edge(layout):
    matrix = sp.coo_array(([1, 0, 1], ([0, 1, 2], [1, 2, 0])), shape=(3, 3)).asformat(layout)
    source = open_source(matrix)
    assert sorted(edges_of(source)) == [(0, 1), (2, 0)]
    assert source.notices == ["1 entries are stored as zero and were left out."]


def test_the_callers_matrix_stays_as_it_is():
    matrix = sp.csr_array(([1.0, 0.0, 1.0], [2, 0, 1], [0, 2, 2, 3]), shape=(3, 3))
    before = [array.copy() for array in (matrix.indptr, matrix.indices, matrix.data)]
    edges_of(open_source(matrix))
    for array, copy in zip((matrix.indptr, matrix.indices, matrix.data), before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_matrix_that_is_no_graph_is_refused():
    with pytest.raises(InputError, match=r"shape \(2, 3\)"):
        open_source(sp.csr_array((2, 3)))
    with pytest.raises(InputError, match="holds no edges"):
        edges_of(open_source(sp.csr_array((0, 0))))
    assert edges_of(open_source(sp.csr_array((2, 2)))) == []


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_pairs_of_arrays(dtype):
    src, dst = np.arange(11, dtype=dtype) * 3, np.arange(11, dtype=dtype)[::-1]
    source = open_source((src, dst))
    assert edges_of(source) == list(zip(src.tolist(), dst.tolist(), strict=True))
    assert source.nodes is None


@given(hnp.arrays(np.int64, (9, 2)), st.integers(1, 10))
def test_ids_of_arrays_are_any_of_64_bits(ids, max_edges):
    source = open_source((ids[:, 0], ids[:, 1]))
    assert edges_of(source, max_edges) == list(map(tuple, ids.tolist()))


@pytest.mark.parametrize(
    ("src", "dst", "match"),
    [
        (np.array([0, 1, 2**63], np.uint64), [0, 1, 2], "id 9223372036854775808 at place 2"),
        ([0.5], [1.0], "float64"),
        ([True], [False], "bool"),
        ([0, 1], [0], "shapes"),
        ([[0]], [[1]], "shapes"),
        (np.empty(0, int), np.empty(0, int), "holds no edges"),
    ],
)
def test_bad_pairs_are_refused(src, dst, match):
    with pytest.raises(InputError, match=match):
        edges_of(open_source((np.asarray(src), np.asarray(dst)), undirected=False), 2)


def test_labels_of_graphs_in_memory(tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\nc\n")
    for graph in ((np.array([0]), np.array([2])), sp.coo_array(([1], ([0], [2])), shape=(3, 3))):
        source = open_source(graph, labels=labels)
        assert edges_of(source) == [(0, 2)]
        assert source.nodes == 3
        assert list(source.labels) == ["a", "b", "c"]
    with pytest.raises(InputError, match="id 3 at place 0"):
        edges_of(open_source((np.array([3]), np.array([0])), labels=labels))


def test_what_is_no_graph_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="A dict is no graph"):
        open_source({})
    with pytest.raises(UsageError, match="format 'text'"):
        open_source((np.array([0]), np.array([1])), format="text")
    with pytest.raises(UsageError, match="labels file is given"):
        open_source(Rmat(3), labels=tmp_path / "labels.txt")


@given(st.lists(st.tuples(*[st.text("ab", min_size=1, max_size=2)] * 2), min_size=1), st.integers(1, 9))
def test_undirected_knows_a_loop_by_its_names(tmp_path_factory, pairs, max_edges):
    path = tmp_path_factory.mktemp("names") / "links.tsv"
    path.write_text("".join(f"{u}\t{v}\n" for u, v in pairs))
    source = open_source(path, undirected=True, header=False)
    found = edges_of(source, max_edges)
    assert set(found) == set(pairs) | {(v, u) for u, v in pairs}
    assert len(found) == len(pairs) + sum(u != v for u, v in pairs)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30), st.integers(1, 40))
def test_undirected_is_the_union_with_the_transpose(pairs, max_edges):
    src, dst = np.array(pairs).T
    found = edges_of(open_source((src, dst), undirected=True), max_edges)
    assert set(found) == set(pairs) | {(v, u) for u, v in pairs}
    assert len(found) == len(pairs) + sum(u != v for u, v in pairs)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30), st.integers(1, 40))
def test_reverse_is_the_transpose_with_its_weights(tmp_path_factory, pairs, max_edges):
    src, dst = np.array(pairs).T
    assert edges_of(open_source((src, dst), reverse=True), max_edges) == [(v, u) for u, v in pairs]
    path = tmp_path_factory.mktemp("names") / "links.tsv"
    path.write_text("".join(f"n{u}\tn{v}\t{u + 10 * v}\n" for u, v in pairs))
    source = open_source(path, reverse=True, header=False, weight=3)
    found = edges_of(source, max_edges)
    assert found == [(f"n{v}", f"n{u}") for u, v in pairs]
    blocks = list(open_source(path, reverse=True, header=False, weight=3).blocks(max_edges))
    weights = [weight for block in blocks for weight in block.weight.tolist()]
    assert weights == [u + 10 * v for u, v in pairs]
    assert [source.locate(k) for k in range(len(pairs))] == [
        f"{path}, line {k + 1}" for k in range(len(pairs))
    ]


def test_one_direction_or_both():
    with pytest.raises(UsageError, match=r"both directions, and in the other one\. Leave out reverse"):
        open_source((np.array([0]), np.array([1])), undirected=True, reverse=True)


def test_undirected_passes_on_what_the_source_knows(data):
    plain = open_source(data / "tiny" / "site.txt")
    source = open_source(data / "tiny" / "site.txt", undirected=True)
    assert source.name == plain.name
    assert source.size == plain.size
    assert len(edges_of(source)) == 2 * len(edges_of(plain))
    assert source.position == source.size
    assert source.nodes == 5
    assert list(source.labels) == list(plain.labels)
    assert source.notices == plain.notices
