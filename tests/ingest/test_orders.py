import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oocpr.ingest.nodes import strings
from oocpr.ingest.nodes.strings import NumberedStrings, StringFile, external_argsort, split_strings
from oocpr.ingest.orders import permutation as orders
from oocpr.ingest.orders.permutation import (
    EdgeScan,
    Permutation,
    add_degree_keys,
    count_degrees,
    degree_keys,
    host_keys,
    invert,
    looks_like_urls,
    make_order,
    order_by_bfs,
    order_by_degree,
    order_by_host,
)
from oocpr.ingest.spill.files import SpillDir, SpillFile
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.partition import KeyRun
from oocpr.sources.rmat import Rmat

pairs_with_gaps = st.lists(st.tuples(st.integers(0, 9), st.integers(3, 12)), min_size=1, max_size=40)


def keys_of(pairs):
    src, dst = np.array(pairs, np.uint64).reshape(-1, 2).T
    return dst << np.uint64(32) | src


def set_of(keys):
    ids = IdBitmap()
    ids.reach(12)
    ids.add((keys & np.uint64(2**32 - 1)).astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32))
    return ids


degrees_of_nodes = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=40)


@given(degrees_of_nodes, st.sampled_from([1, 4, 100]))
def test_by_degree_is_a_stable_sort_with_nodes_that_edges_reach_first(degrees, usual):
    outgoing, incoming = np.array(degrees, np.uint32).T
    expected = np.lexsort((incoming == 0, -outgoing.astype(int)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "_COUNTED", usual)
        found = order_by_degree(degree_keys(outgoing.copy(), incoming))
    if (expected == np.arange(outgoing.size)).all():
        assert found is None
    else:
        np.testing.assert_array_equal(found.nodes, expected)
        np.testing.assert_array_equal(found.rows[found.nodes], np.arange(outgoing.size))


def test_out_degrees_beyond_the_usual_come_first():
    degrees = np.array([65_535, 65_536, 2**32 - 1, 0, 65_536], np.uint32)
    keys = degree_keys(degrees, np.ones(5, np.uint32))
    assert order_by_degree(keys).nodes.tolist() == [2, 1, 4, 0, 3]


most = st.sampled_from([0, 1, 2, 2**31 - 2, 2**31 - 1])


@given(st.lists(st.tuples(most, most, st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=9))
def test_keys_of_parts_add_up_to_those_of_all_edges(nodes):
    one, two, reached, also = np.array(nodes, np.uint32).T
    keys = degree_keys(one.copy(), reached)
    add_degree_keys(keys, degree_keys(two.copy(), also))
    np.testing.assert_array_equal(keys, degree_keys(one + two, reached + also))


@given(pairs_with_gaps, st.booleans())
def test_ids_stay_with_their_rows(tmp_path_factory, pairs, gaps):
    keys = keys_of(pairs)
    known = np.unique(pairs) if gaps else np.arange(13)
    ids = set_of(keys) if gaps else None
    rows = np.random.default_rng(len(pairs)).permutation(known.size).astype(np.uint32)
    with SpillFile(tmp_path_factory.getbasetemp()) as scratch:
        scratch.write(0, keys)
        scan = EdgeScan([KeyRun.of_words(scratch, 0, keys.size, 0, 2**64)], ids, lambda _: None)
        [nodes] = [block.copy() for block in scan]
        [again] = [block.copy() for block in scan]
    np.testing.assert_array_equal(again, nodes)
    number_of = dict(zip(known.tolist(), range(known.size), strict=True))
    np.testing.assert_array_equal(nodes, keys_of([(number_of[s], number_of[d]) for s, d in pairs]))
    made = make_order("some", Permutation(rows, invert(rows)), ids)
    numbers = keys.copy()
    made.relabel(numbers)
    row_of = dict(zip(known.tolist(), rows.tolist(), strict=True))
    np.testing.assert_array_equal(numbers, keys_of([(row_of[s], row_of[d]) for s, d in pairs]))
    np.testing.assert_array_equal(made.node_ids[rows], known)


def test_links_are_counted_as_often_as_they_come(tmp_path):
    keys = keys_of([(0, 1), (2, 1), (0, 1), (3, 3)])
    told = []
    with SpillFile(tmp_path) as scratch:
        scratch.write(0, keys)
        scan = EdgeScan([KeyRun.of_words(scratch, 0, 4, 0, 2**64)], None, told.append)
        out_degree, in_degree = count_degrees(scan, 5, destinations=True)
        assert count_degrees(scan, 5)[1].size == 0
    assert out_degree.tolist() == [2, 0, 1, 1, 0]
    assert in_degree.tolist() == [0, 3, 0, 1, 0]
    assert told == [4, 8]


NODES = 14
graphs = st.lists(st.tuples(st.integers(0, NODES - 2), st.integers(0, NODES - 2)), max_size=40)


class Keys:
    """All edges, in blocks of some order; counts how often they are gone over."""

    def __init__(self, pairs, block):
        self.keys = np.array([v << 32 | u for u, v in pairs], np.uint64)
        self.block = block
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        for start in range(0, self.keys.size, self.block):
            yield self.keys[start : start + self.block]


def stats_of(pairs, nodes):
    in_degree = np.bincount([v for _, v in pairs], minlength=nodes).astype(np.uint32)
    return in_degree, len({node for pair in pairs for node in pair})


def plain_search(pairs, nodes, classes, most):
    """`order_by_bfs` with sets and lists."""
    near = [set() for _ in range(nodes)]
    for u, v in pairs:
        near[u].add(v)
        near[v].add(u)
    in_degree, linked = stats_of(pairs, nodes)
    order, level, wanted = [], [], 1
    for _ in range(most):
        if not level:
            left = [v for v in range(nodes) if v not in order and in_degree[v] > 0]
            level = sorted(sorted(left, key=lambda v: -min(int(in_degree[v]), classes - 1))[:wanted])
            order += level
            wanted *= 2
            if not level:
                break
        found = {v for u in level for v in near[u]} - set(order)
        first = {v: min(order.index(u) for u in near[v] & set(level)) for v in found}
        level = sorted(found, key=lambda v: (first[v], v))
        order += level
        if 16 * (linked - len(order)) < linked and 512 * len(level) < linked:
            break
    return order + [v for v in range(nodes) if v not in order]


@given(graphs, st.sampled_from([1, 3, 100]), st.sampled_from([2, 3, 1 << 16]), st.sampled_from([1, 3, 64]))
def test_nodes_come_as_a_search_with_lists_meets_them(pairs, block, classes, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "_CLASSES", classes)
        patch.setattr(orders, "MAX_PASSES", most)
        keys = Keys(pairs, block)
        found = order_by_bfs(keys, *stats_of(pairs, NODES))
    expected = plain_search(pairs, NODES, classes, most)
    assert keys.passes <= most
    assert (list(range(NODES)) if found is None else found.nodes.tolist()) == expected
    if found is not None:
        assert found.rows[found.nodes].tolist() == list(range(NODES))


def test_a_path_that_was_shuffled_is_found_again():
    rng = np.random.default_rng(2)
    names = rng.permutation(100)
    pairs = [(int(names[k]), int(names[k + 1])) for k in range(99)] + [(int(names[5]), int(names[0]))]
    found = order_by_bfs(Keys(pairs, 1000), *stats_of(pairs, 100))
    places = found.rows[names].astype(int)
    # From one end, the other end being two links away over the last of them.
    assert np.abs(np.diff(places)).max() <= 3


def test_a_random_graph_is_searched_in_few_passes():
    [block] = Rmat(14).blocks(1 << 30)
    pairs = list(zip(block.src.tolist(), block.dst.tolist(), strict=True))
    keys = Keys(pairs, 1 << 20)
    found = order_by_bfs(keys, *stats_of(pairs, 1 << 14))
    assert keys.passes <= 6
    assert np.array_equal(np.sort(found.nodes), np.arange(1 << 14))


URLS = [
    "http://www.example.com/b",
    "https://example.com/",
    "http://example.org/a/b?c=http://www.example.com/",
    "http://WWW.Example.com/a",
    "http://www.example.com:8080/a",
    "http://me:secret@mail.example.com/a@b",
    "http://example.com",
    "http://example.com?q=1",
    "ftp://192.168.10.1/a",
    "ftp://192.168.9.1/a",
    "http://[2001:db8::1]:80/a",
    "http://example.com./a",
    "example.net/x.y/z",
    "localhost",
    "//cdn.example.com/x",
    "",
]


def plain_key(name):
    """What a name is sorted by, with regular expressions."""
    rest = re.sub(r"\A[^:/?#]*://", "", name)
    authority, tail = re.fullmatch(r"([^/?#]*)(.*)", rest, re.DOTALL).groups()
    host, port = re.fullmatch(r"(.*?)(:[0-9]*)?", authority.rpartition("@")[2], re.DOTALL).groups()
    if not re.fullmatch(r"[0-9.]*|\[.*", host, re.DOTALL):
        host = ".".join(reversed(host.removesuffix(".").split(".")))
        host = re.sub("[A-Z]", lambda letter: letter[0].lower(), host)
    return (host + (port or "") + ("" if tail.startswith("/") else "/") + tail).encode()


def joined(names):
    coded = [name.encode() for name in names]
    lengths = np.array([len(name) for name in coded], np.uint32)
    return np.frombuffer(b"".join(coded), np.uint8), lengths


@pytest.fixture
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "BUCKETS", 3)
        patch.setattr(strings, "_SPLITTERS_FROM", 4)
        yield


@given(st.lists(st.text("aB.:/?#@[]19é", max_size=12)))
@example(URLS)
def test_keys_are_what_regular_expressions_make_of_names(names):
    assert split_strings(host_keys(*joined(names))) == [plain_key(name) for name in names]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("http://www.example.com/a", "com.example.www/a"),
        ("HTTP://WWW.EXAMPLE.COM/A", "com.example.www/A"),
        ("https://example.com", "com.example/"),
        ("http://me@a.b:80?q", "b.a:80/?q"),
        ("http://10.2.3.4/x", "10.2.3.4/x"),
        ("http://[::1]:80/x", "[::1]:80/x"),
        ("file:///etc", "/etc"),
        ("a.b/c.d", "b.a/c.d"),
        ("a.b/c?d=x://y.z", "b.a/c?d=x://y.z"),
    ],
)
def test_a_key(name, key):
    assert split_strings(host_keys(*joined([name]))) == [key.encode()]


@pytest.mark.usefixtures("small")
@given(
    st.lists(st.sampled_from([*URLS, *(f"http://h{k}.org/" for k in range(9))]), max_size=60), st.booleans()
)
def test_the_order_is_that_of_an_independent_sort(names, roomy):
    with SpillDir(Path()) as workspace:
        given_names = StringFile(workspace)
        given_names.append(*joined(names))
        found = order_by_host(given_names, workspace, 1 << 20 if roomy else 0)
    expected = sorted(range(len(names)), key=lambda k: plain_key(names[k]))
    assert (list(range(len(names))) if found is None else found.nodes.tolist()) == expected


@pytest.mark.usefixtures("small")
@given(
    st.lists(st.one_of(st.sampled_from([b"", b"\0", b"a", b"a\0", b"ab"]), st.binary(max_size=9))),
    st.integers(0, 3000),
)
def test_names_that_do_not_fit_are_sorted_like_those_that_do(names, space):
    numbers = np.random.default_rng(len(names)).permutation(len(names)).astype(np.uint32)
    with SpillDir(Path()) as workspace:
        keys = NumberedStrings(workspace)
        lengths = np.array([len(name) for name in names], np.uint32)
        keys.add(np.frombuffer(b"".join(names), np.uint8), lengths, numbers)
        found = [number for part in external_argsort(keys, workspace, space) for number in part.tolist()]
    assert found == [int(numbers[k]) for k in sorted(range(len(names)), key=names.__getitem__)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["http://a", "b"], True),
        (["http://a", "b", "c"], False),
        (["libc6", "python3.11"], False),
        ([], False),
    ],
)
def test_urls_are_told_by_half_of_the_names(names, expected):
    assert looks_like_urls(iter([joined(names)])) is expected


def test_no_names_are_no_urls():
    assert not looks_like_urls(iter([]))
