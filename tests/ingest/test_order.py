import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.ids import IdSet
from oocpr.ingest.order import degree_order
from oocpr.ingest.run import Run
from oocpr.ingest.scratch import Scratch

pairs_with_gaps = st.lists(st.tuples(st.integers(0, 9), st.integers(3, 12)), min_size=1, max_size=40)


def keys_of(pairs):
    src, dst = np.array(pairs, np.uint64).reshape(-1, 2).T
    return dst << np.uint64(32) | src


def set_of(keys):
    ids = IdSet()
    ids.reach(12)
    ids.add((keys & np.uint64(2**32 - 1)).astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32))
    return ids


def by_degree(folder, keys, nodes, ids):
    with Scratch(folder) as scratch:
        scratch.write(0, keys)
        half = keys.size // 2
        bounds = [(0, half), (half, keys.size - half)]
        runs = [Run.of_words(scratch, start, count, 0, 2**64) for start, count in bounds]
        order = degree_order(runs, nodes, ids, lambda _: None)
    rows = keys.copy()
    if order.relabel is not None:
        order.relabel(rows)
    elif ids is not None:
        ids.relabel(rows)
    return order, rows


@given(pairs_with_gaps, st.booleans())
def test_degree_order_is_a_stable_sort_of_raw_out_degrees(tmp_path_factory, pairs, gaps):
    keys = keys_of(pairs)
    ids = set_of(keys) if gaps else None
    nodes = len(ids) if gaps else 13
    order, rows = by_degree(tmp_path_factory.getbasetemp(), keys, nodes, ids)

    known = np.unique(pairs) if gaps else np.arange(13)
    out_degree = np.bincount([s for s, _ in pairs], minlength=13)[known]
    expected = known[np.argsort(-out_degree, kind="stable")]
    node_ids = np.arange(nodes) if order.node_ids is None else order.node_ids
    np.testing.assert_array_equal(node_ids, expected)

    row_of = {int(v): i for i, v in enumerate(expected)}
    np.testing.assert_array_equal(rows, keys_of([(row_of[s], row_of[d]) for s, d in pairs]))


def test_an_order_that_changes_nothing_is_none(tmp_path):
    order, _ = by_degree(tmp_path, keys_of([(0, 1), (0, 2), (1, 2)]), 3, None)
    assert order.relabel is order.node_ids is None
