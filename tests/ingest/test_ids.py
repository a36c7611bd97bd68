import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.spill.id_bitmap import IdBitmap

LAST = 2**32 - 1
ids_with_gaps = st.one_of(st.integers(0, 70), st.integers(500, 1100), st.integers(2**20, 2**20 + 600))


def keys_of(rows, columns):
    return np.array(rows, np.uint64) << np.uint64(32) | np.array(columns, np.uint64)


@given(st.lists(st.tuples(ids_with_gaps, ids_with_gaps), min_size=1))
def test_ranks_are_positions_among_the_sorted_ids(pairs):
    rows, columns = np.array(pairs).T
    keys = keys_of(rows, columns)
    ids = IdBitmap()
    for row, column in pairs:
        ids.reach(max(row, column))
        ids.add(np.array([column], np.uint32), np.array([row], np.uint32))
    expected = np.unique(pairs)
    np.testing.assert_array_equal(ids.to_numpy(), expected)
    assert len(ids) == expected.size
    assert ids.largest == expected[-1]
    ids.relabel(keys)
    np.testing.assert_array_equal(
        keys, keys_of(np.searchsorted(expected, rows), np.searchsorted(expected, columns))
    )


def test_the_largest_id_of_all_has_its_rank():
    keys = keys_of([LAST, 0], [2**31, LAST])
    ids = IdBitmap()
    ids.reach(LAST)
    ids.add(np.array([2**31, LAST], np.uint32), np.array([LAST, 0], np.uint32))
    ids.relabel(keys)
    np.testing.assert_array_equal(keys, keys_of([2, 0], [1, 2]))
    assert ids.to_numpy().tolist() == [0, 2**31, LAST]


def test_growth_covers_what_a_larger_id_takes():
    ids = IdBitmap()
    assert ids.growth(2**32 - 1) > 2**29
    ids.reach(1000)
    assert ids.growth(1000) == ids.growth(7) == 0
