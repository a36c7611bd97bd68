from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

from oocpr.errors import InputError, UsageError
from oocpr.ingest import rows as pair_sort
from oocpr.ingest.build import build_store
from oocpr.ingest.rows import sort_pairs
from oocpr.sources import open_source
from oocpr.store.graph import open_store
from oocpr.system import resident

PLENTY = 3 * 2**30


def read(path):
    """Read a store with Zarr alone: the weights at (v, u) for links u -> v, and their sums by u."""
    root = zarr.open_group(Path(path), mode="r")
    edges = root["in_edges"]
    matrix = csr_array(
        (edges["data"][:], edges["indices"][:], edges["indptr"][:]), shape=edges.attrs["shape"]
    )
    return matrix, root["out_weight"][:]


def weighed(links, duplicates):
    """Weigh links in plain Python: a dictionary of (from, to)."""
    found = defaultdict(list)
    for src, dst, weight in links:
        found[src, dst].append(weight)
    if duplicates == "merge":
        return {ends: max(weights) for ends, weights in found.items()}
    if duplicates == "count":
        return {ends: float(len(weights)) for ends, weights in found.items()}
    sums = {}
    for ends, weights in found.items():
        total, *rest = sorted(weights)
        for weight in rest:
            total += weight
        sums[ends] = total
    return sums


ids = st.one_of(st.integers(0, 5), st.integers(90, 93))
weights = st.one_of(
    st.sampled_from([0.0, 0.1, 0.2, 0.3, 1e-300, 5e-324, 1e16, 1.0]),
    st.floats(0, 1e300, allow_subnormal=True),
)
links = st.lists(st.tuples(ids, ids, weights), min_size=1, max_size=60)


@pytest.mark.long
@given(
    links=links,
    duplicates=st.sampled_from(["merge", "sum", "count"]),
    order=st.sampled_from(["keep", "degree"]),
    tile_edges=st.integers(1, 20),
    block_edges=st.sampled_from([1, 7, 100]),
    bucket_edges=st.sampled_from([3, 10, 100]),
    wide=st.booleans(),
    data=st.data(),
)
@settings(max_examples=20)
@example(
    links=[(0, 1, 0.1 * k) for k in range(50)],
    duplicates="sum",
    order="keep",
    tile_edges=4,
    block_edges=7,
    bucket_edges=3,
    wide=False,
    data=None,
)
@example(
    links=[(0, 1, 0.1)] * 50,
    duplicates="sum",
    order="keep",
    tile_edges=4,
    block_edges=7,
    bucket_edges=3,
    wide=True,
    data=None,
)
def test_any_graph_has_the_weights_of_plain_python_and_the_same_bytes_however_it_is_made(
    tmp_path_factory,
    arrays,
    contents,
    links,
    duplicates,
    order,
    tile_edges,
    block_edges,
    bucket_edges,
    wide,
    data,
):
    base = tmp_path_factory.getbasetemp()
    bytes_of = []
    for name, block, bucket in (("one", None, None), ("two", block_edges, bucket_edges)):
        shuffled = links if name == "one" or data is None else data.draw(st.permutations(links))
        src, dst, weight = (np.array(part) for part in zip(*shuffled, strict=True))
        if wide:
            src, dst = src - 2**40, dst - 2**40
        facts = build_store(
            arrays(src, dst, weight=None if duplicates == "count" else weight),
            base / name,
            memory=4 * PLENTY,
            order=order,
            tile_edges=tile_edges,
            block_edges=block,
            bucket_edges=bucket,
            duplicates=duplicates,
            overwrite=True,
        )
        bytes_of.append(contents(base / name))
    assert bytes_of[0] == bytes_of[1]

    expected = weighed(links, duplicates)
    assert facts.weighted
    assert (facts.edges, facts.duplicates) == (len(expected), len(links) - len(expected))
    matrix, sums = read(base / "two")
    node_ids = open_store(base / "two").node_ids()
    node_ids = np.arange(facts.nodes) if node_ids is None else node_ids
    node_ids = (node_ids + (2**40 if wide else 0)).tolist()
    found = matrix.tocoo()
    assert {
        (node_ids[u], node_ids[v]): w for v, u, w in zip(found.row, found.col, found.data, strict=True)
    } == expected
    one_by_one = np.zeros(facts.nodes)
    np.add.at(one_by_one, matrix.indices, matrix.data)
    np.testing.assert_array_equal(sums, one_by_one)
    assert facts.dangling == np.count_nonzero(sums == 0)


@pytest.mark.parametrize(
    ("duplicates", "order"),
    [
        *(("sum", order) for order in ("keep", "degree", "bfs", "auto")),
        *product(("merge", "count"), ("keep", "auto")),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in product(("merge", "count"), ("degree", "bfs"))
        ),
    ],
)
def test_a_larger_graph_is_the_matrix_of_scipy(tmp_path, arrays, contents, cores, duplicates, order):
    rng = np.random.default_rng(5)
    nodes, edges = 3000, 120_000
    src, dst = (np.minimum(rng.zipf(1.3, edges) - 1, nodes - 1).astype(np.uint32) for _ in range(2))
    weight = rng.integers(0, 2**20, edges) / 2**10
    given = None if duplicates == "count" else weight
    parts = [slice(None), rng.permutation(edges)]
    found = []
    for threads, memory, block, bucket in (
        (2, PLENTY, None, None),
        (1, resident() + (80 << 20), 1 << 12, 3000),
        (2, resident() + (80 << 20), 1 << 10, 999),
    ):
        cores(threads)
        part = parts[bucket is not None]
        path = tmp_path / str(len(found))
        build_store(
            arrays(src[part], dst[part], nodes, weight=None if given is None else given[part]),
            path,
            memory=memory,
            order=order,
            tile_edges=1 << 12,
            block_edges=block,
            bucket_edges=bucket,
            duplicates=duplicates,
        )
        found.append(contents(path))
    if order == "keep" or order == "degree":
        assert found[0] == found[1]
    assert found[1] == found[2]

    expected = coo_array(
        (np.ones(edges) if given is None else given, (dst, src)), shape=(nodes, nodes)
    ).tocsr()
    if duplicates == "merge":
        rows = np.lexsort((weight, src, dst))
        last = np.flatnonzero(np.diff(dst[rows].astype(np.int64) << 32 | src[rows], append=-1))
        rows = rows[last]
        expected = csr_array((weight[rows], (dst[rows], src[rows])), shape=(nodes, nodes))
    matrix, sums = read(path)
    node_ids = open_store(path).node_ids()
    node_ids = np.arange(nodes) if node_ids is None else node_ids
    expected = csr_array(expected[node_ids][:, node_ids])
    assert abs(matrix - expected).max() == 0
    np.testing.assert_array_equal(sums, matrix.sum(axis=0))


def test_names_keep_the_weights_of_their_links(tmp_path, named):
    pairs = [("b", "a"), ("a", "c"), ("b", "a"), ("c", "c")]
    for block in (1, 3, None):
        build_store(
            named(pairs, nodes=["z"], weight=np.array([0.5, 2.0, 0.25, 0.0])),
            tmp_path / "g.zarr",
            memory=PLENTY,
            duplicates="sum",
            block_edges=block,
            overwrite=True,
        )
        store = open_store(tmp_path / "g.zarr")
        names = store.labels(range(4))
        found = read(tmp_path / "g.zarr")[0].tocoo()
        assert {
            (names[u], names[v], w) for v, u, w in zip(found.row, found.col, found.data, strict=True)
        } == {("b", "a", 0.75), ("a", "c", 2.0), ("c", "c", 0.0)}
    assert store.attributes.dangling == 2  # z has no link, and that of c has no weight


def test_both_directions_have_the_weight_of_the_link(tmp_path):
    matrix = coo_array(([2.0, 3.0], ([0, 1], [1, 1])), shape=(2, 2))
    source = open_source(matrix, weight="values", undirected=True)
    build_store(source, tmp_path / "g.zarr", memory=PLENTY)
    assert read(tmp_path / "g.zarr")[0].toarray().tolist() == [[0, 2], [2, 3]]


def test_bytes_without_weights_are_those_of_an_import_that_merges(tmp_path, arrays, contents):
    for name, ways in (("one", {}), ("two", {"duplicates": "merge"})):
        build_store(arrays([0, 0, 1], [1, 1, 0]), tmp_path / name, memory=PLENTY, **ways)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert not open_store(tmp_path / "one").attributes.weighted


@pytest.mark.parametrize("bucket", [3, 100])
def test_a_sum_that_float64_does_not_hold_is_refused(tmp_path, arrays, bucket):
    largest = np.finfo(np.float64).max
    source = arrays([0] * 9, [1] * 9, weight=np.full(9, largest))
    with pytest.raises(InputError, match="duplicate edge add up to more"):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY, duplicates="sum", bucket_edges=bucket)
    source = arrays([0, 0], [1, 2], weight=np.full(2, largest))
    with pytest.raises(InputError, match="leave a node add up to more"):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY, bucket_edges=bucket)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("duplicates", "weight", "message"),
    [
        ("sum", None, "no weights are read"),
        ("count", np.ones(1), "to be counted, and weights are to be read"),
        ("mean", None, "merge, sum, count"),
    ],
)
def test_what_does_not_go_together_is_refused_before_any_work(tmp_path, arrays, duplicates, weight, message):
    source = arrays([0], [1], weight=weight)
    with pytest.raises(UsageError, match=message):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY, duplicates=duplicates)
    assert source.reads == 0
    assert list(tmp_path.iterdir()) == []


@given(
    st.lists(st.tuples(st.integers(0, 3) | st.integers(0, 2**64 - 1), st.integers(0, 3)), max_size=300),
    st.integers(1, 40),
)
def test_pairs_are_sorted_as_python_sorts_them(pairs, times):
    pairs = pairs * times
    for sort in (sort_pairs, pair_sort._sort_all):
        keys, words = (np.array([pair[k] for pair in pairs], np.uint64) for k in range(2))
        sort(keys, words)
        assert list(zip(keys.tolist(), words.tolist(), strict=True)) == sorted(pairs)


@pytest.mark.parametrize("order", ["ascending", "descending", "equal", "organ pipe", "sawtooth"])
def test_no_order_of_the_pairs_takes_long_to_sort(order):
    count = 1 << 20
    numbers = np.arange(count)
    keys = {
        "ascending": numbers,
        "descending": numbers[::-1],
        "equal": np.zeros(count),
        "organ pipe": np.abs(numbers - count // 2),
        "sawtooth": numbers % 1000,
    }[order].astype(np.uint64)
    words = keys.copy()
    sort_pairs(keys, words)  # quadratic time would be hours
    assert (keys[1:] >= keys[:-1]).all()
    np.testing.assert_array_equal(keys, words)
