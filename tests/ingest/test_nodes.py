"""Nodes that are known by ids of 64 bits or by names, looked up in bounded memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.errors import InputError
from oocpr.ingest.build import build_store
from oocpr.ingest.nodes import dictionary
from oocpr.ingest.nodes import strings as string_file
from oocpr.ingest.nodes.hashing import NOT_FOUND, Fingerprints, HashIndex, factorize
from oocpr.ingest.nodes.strings import StringFile, permute_strings
from oocpr.ingest.spill.files import SpillDir
from oocpr.store.graph import open_store
from oocpr.system import resident

PLENTY = 3 * 2**30
MIB = 2**20

words = st.lists(st.text("abé/ ", max_size=12), min_size=1, max_size=5).map(tuple)
any_id = st.one_of(
    st.integers(-3, 5), st.integers(2**32 - 3, 2**32 + 3), st.sampled_from([-(2**63), 2**63 - 1])
)
pairs_of_ids = st.lists(st.tuples(any_id, any_id), min_size=1, max_size=40)
some_names = st.sampled_from(["", "a", "b", "aa", "é", "b" * 7, "b" * 8, "http://x.org/" + "y" * 90, "c"])
pairs_of_names = st.lists(st.tuples(some_names, some_names), min_size=1, max_size=40)
orders = st.sampled_from(["keep", "degree", "bfs", "auto"])


@pytest.fixture
def little(monkeypatch):
    """Make every list longer than its chunk, and every piece of names a piece of few."""
    monkeypatch.setattr(dictionary, "_CHUNK", 3)
    monkeypatch.setattr(string_file, "MAX_PIECE_NAMES", 5)
    monkeypatch.setattr(string_file, "MAX_PIECE_BYTES", 20)
    real = dictionary._Parts.__init__

    def in_parts(self, known, nodes, records, space):
        real(self, known, nodes, records, space)
        self.largest = min(nodes, 3)
        self.starts = range(0, nodes, self.largest)

    monkeypatch.setattr(dictionary._Parts, "__init__", in_parts)


def graph_of(path):
    """The links of a store between the names it gives, and all the names in order."""
    store = open_store(path)
    indptr = store.indptr(0, store.nodes + 1)
    import zarr

    columns = zarr.open_group(path, mode="r")["in_edges/indices"][:]
    called = store.labels(range(store.nodes)) if store.has_labels else store.node_ids()
    called = range(store.nodes) if called is None else list(called)
    heads = np.repeat(np.arange(store.nodes), np.diff(indptr))
    return {(called[u], called[v]) for u, v in zip(columns, heads, strict=True)}, list(called)


def in_order(nodes, pairs, order, called):
    """The names that rows must have; what a search or a choice makes has tests of its own."""
    assert sorted(called) == sorted(nodes)
    if order == "degree":
        return sorted(nodes, key=lambda node: -sum(u == node for u, _ in pairs))
    return nodes if order == "keep" else called


@pytest.mark.long
@given(pairs=pairs_of_ids, order=orders, block_edges=st.sampled_from([1, 3, 100]))
@settings(max_examples=30)
def test_ids_of_64_bits_are_kept(tmp_path_factory, arrays, pairs, order, block_edges):
    src, dst = np.array(pairs, np.int64).T
    path = tmp_path_factory.getbasetemp() / "ids.zarr"
    build_store(
        arrays(src, dst),
        path,
        memory=PLENTY,
        order=order,
        overwrite=True,
        tile_edges=4,
        block_edges=block_edges,
    )
    links, called = graph_of(path)
    nodes = np.unique(pairs).tolist()
    assert links == set(pairs)
    assert called == in_order(nodes, pairs, order, called)


@pytest.mark.long
@given(pairs=pairs_of_names, order=orders, block_edges=st.sampled_from([1, 3, 100]), extra=words)
@settings(max_examples=30)
def test_names_are_kept_in_the_order_they_come(tmp_path_factory, named, pairs, order, block_edges, extra):
    path = tmp_path_factory.getbasetemp() / "names.zarr"
    build_store(
        named(pairs, nodes=extra),
        path,
        memory=PLENTY,
        order=order,
        overwrite=True,
        tile_edges=4,
        block_edges=block_edges,
    )
    links, called = graph_of(path)
    nodes = list(dict.fromkeys([*extra, *(node for pair in pairs for node in pair)]))
    assert links == set(pairs)
    assert called == in_order(nodes, pairs, order, called)


@pytest.mark.long
@pytest.mark.parametrize("order", ["keep", "degree", "bfs", "auto"])
@pytest.mark.parametrize("kind", ["ids", "names"])
def test_a_list_that_does_not_fit_gives_the_same_bytes(
    tmp_path, request, arrays, named, contents, order, kind
):
    ids = np.random.default_rng(5).integers(-20, 20, (150, 2)) * 2**40

    def build(name, **ways):
        source = named([(f"n{u}", f"n{v}") for u, v in ids]) if kind == "names" else arrays(*ids.T)
        build_store(source, tmp_path / name, memory=PLENTY, order=order, **ways)
        return contents(tmp_path / name)

    whole = build("whole.zarr")
    request.getfixturevalue("little")
    assert build("parts.zarr", block_edges=4, bucket_edges=10) == whole
    assert build("single.zarr", block_edges=1) == whole


def test_small_ids_and_large_ones_in_turn(tmp_path, arrays, contents):
    """Edges kept with ids before the first large one are looked up like those after it."""
    small, large = np.arange(100), np.arange(100) + 2**40
    src = np.concatenate([small, large, small])
    dst = np.concatenate([small[::-1], small, large])
    build_store(arrays(src, dst), tmp_path / "a.zarr", memory=PLENTY, block_edges=30)
    build_store(arrays(src[::-1], dst[::-1]), tmp_path / "b.zarr", memory=PLENTY)
    assert contents(tmp_path / "a.zarr") == contents(tmp_path / "b.zarr")
    assert graph_of(tmp_path / "a.zarr") == (
        set(zip(src.tolist(), dst.tolist(), strict=True)),
        [*small.tolist(), *large.tolist()],
    )


@pytest.mark.long
def test_ids_of_32_bits_too_far_apart_for_a_bitmap_are_looked_up(tmp_path, arrays, contents):
    rng = np.random.default_rng(1)
    source = arrays(*rng.integers(0, 2**32 - 1, (2, 3000), np.uint32))
    build_store(source, tmp_path / "bitmap.zarr", memory=4 * PLENTY)
    before = resident()
    build_store(source, tmp_path / "listed.zarr", memory=before + 100 * MIB)
    assert contents(tmp_path / "listed.zarr") == contents(tmp_path / "bitmap.zarr")


def test_wide_ids_that_are_dense_cost_nothing(tmp_path, arrays, contents):
    src, dst = np.array([0, 1, 2]), np.array([1, 2, 0])
    build_store(arrays(src, dst), tmp_path / "wide.zarr", memory=PLENTY)
    build_store(arrays(src.astype(np.uint32), dst.astype(np.uint32)), tmp_path / "narrow.zarr", memory=PLENTY)
    assert open_store(tmp_path / "wide.zarr").node_ids() is None
    assert contents(tmp_path / "wide.zarr") == contents(tmp_path / "narrow.zarr")


@pytest.mark.parametrize("bits", [0, 2, 5])
def test_words_that_meet_are_drawn_again(tmp_path, named, monkeypatch, bits):
    real = Fingerprints.of

    def poor(self, strings, words, checks):
        real(self, strings, words, checks)
        words &= np.uint64(2**bits - 1)

    monkeypatch.setattr(Fingerprints, "of", poor)
    pairs = [(f"n{k}", f"n{k * k % 50}") for k in range(50)]
    build_store(named(pairs), tmp_path / "g.zarr", memory=PLENTY, block_edges=7)
    assert graph_of(tmp_path / "g.zarr")[0] == set(pairs)


class TestClosed:
    def test_every_listed_node_is_there(self, tmp_path, named):
        build_store(
            named([("b", "a")], nodes=["c", "a", "b"], closed="all.txt"), tmp_path / "g.zarr", memory=PLENTY
        )
        assert graph_of(tmp_path / "g.zarr") == ({("b", "a")}, ["c", "a", "b"])

    @pytest.mark.parametrize("block_edges", [1, 2, 100])
    def test_a_stranger_is_named_with_its_place(self, tmp_path, named, block_edges):
        source = named([("b", "a"), ("a", "b"), ("a", "x"), ("y", "x")], nodes=["a", "b"], closed="all.txt")
        with pytest.raises(InputError, match=r"edge 2: 'x' is not in all\.txt"):
            build_store(source, tmp_path / "g.zarr", memory=PLENTY, block_edges=block_edges)
        assert list(tmp_path.iterdir()) == []

    def test_a_name_listed_twice_is_refused(self, tmp_path, named):
        source = named([("b", "a")], nodes=["a", "b", "a"], closed="all.txt")
        with pytest.raises(InputError, match=r"all\.txt holds 1 names twice"):
            build_store(source, tmp_path / "g.zarr", memory=PLENTY)


def test_numbers_and_names_do_not_mix(tmp_path, arrays, named):
    class Mixed(named):
        def blocks(self, max_edges):
            yield from arrays([1], [2]).blocks(max_edges)
            yield from super().blocks(max_edges)

    with pytest.raises(InputError, match="nodes with numbers and nodes with names"):
        build_store(Mixed([("a", "b")]), tmp_path / "g.zarr", memory=PLENTY)


@given(st.lists(st.binary(max_size=9), max_size=30), st.integers(1, 400), st.randoms())
def test_names_are_arranged_in_any_space(tmp_path_factory, texts, space, random):
    rows = list(range(len(texts)))
    random.shuffle(rows)
    with SpillDir(tmp_path_factory.getbasetemp()) as workspace:
        stored = StringFile(workspace)
        for text in texts:
            stored.append(np.frombuffer(text, np.uint8), np.array([len(text)], np.uint32))
        found = []
        for text, lengths in permute_strings(stored, np.array(rows, np.uint32), workspace, space):
            ends = np.cumsum(lengths)
            found += [text[end - size : end].tobytes() for end, size in zip(ends, lengths, strict=True)]
    assert found == [texts[rows.index(row)] for row in range(len(texts))]


@given(
    st.lists(st.integers(0, 2**64 - 1)), st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(0, 9)
)
def test_places_are_those_of_a_dictionary(wanted, known, key):
    known = np.unique(np.array(known, np.uint64))
    place = {word: k for k, word in enumerate(known.tolist())}
    asked = [*wanted, *known.tolist()]
    found = HashIndex(known, key).of(np.array(asked, np.uint64))
    assert found.tolist() == [place.get(word, int(NOT_FOUND)) for word in asked]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2))), st.integers(0, 2**64 - 1))
def test_numbers_follow_first_occurrence(pairs, key):
    one, two = np.array(pairs, np.uint64).reshape(-1, 2).T
    numbers, firsts = factorize(np.ascontiguousarray(one), np.ascontiguousarray(two), key)
    seen = list(dict.fromkeys(pairs))
    assert numbers.tolist() == [seen.index(pair) for pair in pairs]
    assert firsts.tolist() == [pairs.index(pair) for pair in seen]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20, unique=True))
def test_fingerprints_are_polynomials(texts):
    from oocpr.sources.block import Strings

    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    found = np.empty((2, len(texts)), np.uint64)
    makes = Fingerprints()
    makes.of(Strings(np.frombuffer(b"".join(texts), np.uint8), starts, ends), *found)
    prime = 2**61 - 1
    for text, word, check in zip(texts, *found.tolist(), strict=True):
        values = []
        for point in (int(makes._one), int(makes._two)):
            value = len(text)
            for at in range(0, len(text), 7):
                value = (value * point + int.from_bytes(text[at : at + 7], "little")) % prime
            values.append(value * point % prime)
        assert (word & prime, check) == tuple(values)
    assert len(set(found[0].tolist())) == len(texts)
