"""Samples of neighbourhoods tell graphs whose nodes were shuffled from those that no search helps."""

import lzma
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import mmread

import oocpr
from oocpr.errors import DoesNotFitError
from oocpr.ingest.budget import SLACK_BYTES
from oocpr.ingest.orders import choice, neighbourhoods
from oocpr.ingest.orders.neighbourhoods import HUB, grow, search_helps
from oocpr.ingest.read import SpilledEdges
from oocpr.ingest.spill.files import SpillDir
from oocpr.ingest.spill.partition import KeyRun
from oocpr.system import resident_after_trim

from .test_orders import Keys


def ring(nodes, reach=6):
    """Edges from each node to the next ones of a ring."""
    near = np.arange(nodes)
    return np.concatenate([np.stack([near, (near + k) % nodes], 1) for k in range(1, reach + 1)])


def drawn(nodes, edges):
    return np.random.default_rng(1).integers(0, nodes, (edges, 2))


def shuffled(pairs, nodes):
    return np.random.default_rng(2).permutation(nodes)[pairs]


def degrees(pairs, nodes):
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    return [np.bincount(ends[:, k], minlength=nodes).astype(np.uint32) for k in (1, 0)]


@pytest.mark.parametrize(
    ("pairs", "helps"),
    [
        (ring(20_000), False),
        (shuffled(ring(20_000), 20_000), True),
        (drawn(20_000, 120_000), False),
        (drawn(20_000, 0), False),
        # More edges than are taken are between few nodes.
        (np.stack(np.divmod(np.arange(1_000_000), 1000), 1), False),
    ],
    ids=["in order", "shuffled", "drawn", "none", "dense"],
)
def test_a_search_helps_where_nodes_near_each_other_are_far_apart(tmp_path, pairs, helps):
    with SpillDir(tmp_path) as folder:
        for turned in (pairs, pairs[::-1]):
            found = search_helps(Keys(turned, 1000), *degrees(pairs, 20_000), folder)
            assert found == helps


def grown_by_sets(pairs, nodes, starts, most):
    """Nodes near some starts, level by level, if there is room for all."""
    edges = np.sum(degrees(pairs, nodes), 0)
    inside = set(starts)
    while True:
        open_ones = {node for node in inside if edges[node] <= HUB}
        near = {v for u, v in pairs if u in open_ones} | {u for u, v in pairs if v in open_ones}
        if near <= inside or len(inside) >= most:
            return inside
        inside |= near


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=60), st.integers(1, 60))
def test_neighbourhoods_are_whole_and_the_same_for_any_order_of_edges(pairs, block):
    in_degree, out_degree = degrees(pairs, 40)
    marks = grow(Keys(pairs, block), in_degree, out_degree)
    assert np.array_equal(marks, grow(Keys(pairs[::-1], 7), in_degree, out_degree))
    some = np.flatnonzero((in_degree + out_degree >= 2) & (in_degree + out_degree <= HUB))
    inside = set(np.flatnonzero(marks).tolist())
    starts = inside & set(some.tolist())
    assert bool(inside) == bool(some.size)
    # Whoever the starts are, what is inside is all that is near it.
    assert inside == grown_by_sets(pairs, 40, starts, 1 << 13)


def test_no_more_nodes_are_inside_than_may_be(monkeypatch):
    monkeypatch.setattr(neighbourhoods, "NODES", 100)
    pairs = drawn(5000, 20_000)
    marks = [grow(Keys(each, 999), *degrees(pairs, 5000)) for each in (pairs, pairs[::-1])]
    assert np.array_equal(*marks)
    assert np.count_nonzero(marks[0]) == 100


def test_nothing_grows_through_a_hub():
    star = [(0, node) for node in range(1, HUB + 2)]
    far = [(HUB + 2, 1), (HUB + 2, 1), (HUB + 3, HUB + 4), (HUB + 4, HUB + 3)]
    marks = grow(Keys(star + far, 10), *degrees(star + far, HUB + 5))
    assert marks[1]
    assert np.count_nonzero(marks[2 : HUB + 2]) == 0


def test_a_search_without_memory_is_refused_with_a_way_out(tmp_path):
    nodes = 1 << 20
    pairs = shuffled(ring(nodes, 2), nodes).astype(np.uint64)
    with SpillDir(tmp_path) as folder:
        file = folder.file()
        file.write(0, pairs[:, 1] << np.uint64(32) | pairs[:, 0])
        run = KeyRun.of_words(file, 0, len(pairs), 0, nodes << 32)
        spilled = SpilledEdges(file, len(pairs), nodes, None, None, [run], None)
        memory = resident_after_trim() + 40 * nodes + choice._BYTES_BESIDE["auto"] + SLACK_BYTES
        source = SimpleNamespace(name="ring", labels=None)
        with pytest.raises(DoesNotFitError, match=r"Choosing an order of 1\.05 M nodes needs") as caught:
            choice.Ordering(spilled, source, folder, memory, lambda *_: None).find("auto")
        assert re.fullmatch(r"Give at least .* of memory, or name an order: .*\.", caught.value.remedy)


@pytest.mark.long
def test_a_shuffled_crawl_is_searched_unasked(tmp_path, graphs, monkeypatch):
    # As of a graph too large to be ranked in each order.
    monkeypatch.setattr(choice, "_TRIED_EDGES", 1 << 20)
    crawl = oocpr.import_graph(graphs / "cnr-2000.mtx.xz", tmp_path / "crawl.zarr", order="auto")
    assert crawl.info()["order"] == "keep"
    with lzma.open(graphs / "cnr-2000.mtx.xz") as file:
        links = mmread(file)
    names = np.random.default_rng(1).permutation(crawl.nodes).astype(np.uint32)
    ends = names[links.row], names[links.col]
    found = oocpr.import_graph(ends, tmp_path / "found.zarr", order="auto")
    assert found.info()["order"] == "dfs"
    assert found.store.attributes.column_bytes < 1.2 * crawl.store.attributes.column_bytes
