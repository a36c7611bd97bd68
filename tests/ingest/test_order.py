import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.order import orders
from oocpr.ingest.order.orders import EdgeScan, Permutation, count_degrees, make_order, order_by_degree
from oocpr.ingest.spill.files import SpillFile
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.partition import KeyRun

pairs_with_gaps = st.lists(st.tuples(st.integers(0, 9), st.integers(3, 12)), min_size=1, max_size=40)


def keys_of(pairs):
    src, dst = np.array(pairs, np.uint64).reshape(-1, 2).T
    return dst << np.uint64(32) | src


def set_of(keys):
    ids = IdBitmap()
    ids.reach(12)
    ids.add((keys & np.uint64(2**32 - 1)).astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32))
    return ids


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.sampled_from([1, 4, 100]))
def test_by_degree_is_a_stable_sort(degrees, usual):
    degrees = np.array(degrees, np.uint32)
    expected = np.argsort(-degrees.astype(int), kind="stable")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "_COUNTED", usual)
        found = order_by_degree(degrees)
    if (expected == np.arange(degrees.size)).all():
        assert found is None
    else:
        np.testing.assert_array_equal(found.nodes, expected)
        np.testing.assert_array_equal(found.rows[found.nodes], np.arange(degrees.size))


def test_out_degrees_beyond_the_usual_come_first():
    degrees = np.array([65_535, 65_536, 2**32 - 1, 0, 65_536], np.uint32)
    assert order_by_degree(degrees).nodes.tolist() == [2, 1, 4, 0, 3]


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
    made = make_order("some", Permutation.of_rows(rows), ids)
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
        out_degree, in_degree = count_degrees(scan, 5, sources=True, destinations=True)
        assert count_degrees(scan, 5, destinations=True)[0].size == 0
    assert out_degree.tolist() == [2, 0, 1, 1, 0]
    assert in_degree.tolist() == [0, 3, 0, 1, 0]
    assert told == [4, 8]
