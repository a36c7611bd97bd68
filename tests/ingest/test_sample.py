from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.build import build_store
from oocpr.ingest.order import cost
from oocpr.ingest.order.cost import (
    CACHE_LINE_NODES,
    Sample,
    choose_windows,
    count_missed,
    measure,
    take_sample,
)
from oocpr.ingest.order.orders import Permutation, order_by_degree
from oocpr.ingest.sort.rows import unique_sorted
from oocpr.sources.rmat import Rmat


class Keys:
    """All edges, in blocks of some order."""

    def __init__(self, keys, block):
        self.keys, self.block = keys, block

    def __iter__(self):
        for start in range(0, self.keys.size, self.block):
            yield self.keys[start : start + self.block].copy()


@pytest.fixture
def small():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("WINDOWS", 3), ("WINDOW_EDGES", 7), ("WINDOW_ROWS", 4)):
            patch.setattr(cost, name, value)
        yield


def plain_windows(sizes, windows, edges, rows):
    """`choose_windows` by lists."""
    whole = sum(sizes) <= windows * edges
    step = 0 if whole else sum(sizes) // windows
    first = 0 if whole else max(0, (step - edges) // 2)
    found, row = [], 0
    while row < len(sizes) and (whole or len(found) < windows):
        if sizes[row] > edges or sum(sizes[:row]) < first + len(found) * step:
            row += 1
            continue
        end = row + 1
        while end < len(sizes) and end - row < rows and sum(sizes[row : end + 1]) <= edges:
            end += 1
        found.append((row, end, sum(sizes[row:end])))
        row = end
    return found


@pytest.mark.usefixtures("small")
class TestWindows:
    @given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.randoms())
    def test_they_are_what_lists_say(self, sizes, random):
        rows = list(range(len(sizes)))
        assert choose_windows(np.array(sizes, np.uint32), None).tolist() == [
            list(window) for window in plain_windows(sizes, 3, 7, 4)
        ]
        random.shuffle(rows)
        permutation = Permutation.of_rows(np.array(rows, np.uint32))
        by_row = [sizes[node] for node in permutation.nodes]
        found = choose_windows(np.array(sizes, np.uint32), permutation)
        assert found.tolist() == [list(window) for window in plain_windows(by_row, 3, 7, 4)]

    @given(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=80),
        st.booleans(),
        st.integers(1, 9),
        st.randoms(),
    )
    def test_a_sample_has_all_links_of_its_rows_whatever_the_blocks(self, pairs, by, block, random):
        src, dst = np.array(pairs, np.uint64).reshape(-1, 2).T
        permutation = (
            order_by_degree(np.bincount(src.astype(int), minlength=13).astype(np.uint32)) if by else None
        )
        rows = np.arange(13, dtype=np.uint64) if permutation is None else permutation.rows.astype(np.uint64)
        in_degree = np.bincount(dst.astype(int), minlength=13).astype(np.uint32)
        random.shuffle(pairs)
        keys = np.array([v << 32 | u for u, v in pairs], np.uint64)
        taken = take_sample(Keys(keys, block), in_degree, permutation)

        inside = np.zeros(13, bool)
        for first, end in taken.windows:
            inside[first:end] = True
        expected = np.unique((rows[dst] << np.uint64(32) | rows[src])[inside[rows[dst]]])
        np.testing.assert_array_equal(taken.keys, expected)


def plain_misses(lines, sets, ways):
    held = [OrderedDict() for _ in range(sets)]
    missed = 0
    for line in lines:
        at = held[line % sets]
        missed += line not in at
        at[line] = True
        at.move_to_end(line)
        if len(at) > ways:
            at.popitem(last=False)
    return missed


@given(
    st.lists(st.integers(0, 40 * CACHE_LINE_NODES), max_size=200),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 5),
)
def test_misses_are_those_of_the_least_recently_used(columns, sets, ways):
    cache = np.full((sets, ways), 0xFFFFFFFF, np.uint32)
    keys = np.array([9 << 32 | column for column in columns], np.uint64)
    half = len(columns) // 2
    found = count_missed(keys[:half], cache) + count_missed(keys[half:], cache)
    assert found == plain_misses([column // CACHE_LINE_NODES for column in columns], sets, ways)


@pytest.mark.parametrize("order", ["keep", "degree"])
def test_bytes_of_a_graph_in_one_window_are_those_of_its_store(tmp_path, order):
    source = Rmat(11)
    facts = build_store(source, tmp_path / "g.zarr", memory=3 << 30, order=order, tile_edges=1 << 16)
    src, dst = (
        np.concatenate(ends) for ends in zip(*((b.src, b.dst) for b in source.blocks(1 << 14)), strict=True)
    )
    keys = dst.astype(np.uint64) << np.uint64(32) | src
    out_degree = np.bincount(src, minlength=1 << 11).astype(np.uint32)
    permutation = order_by_degree(out_degree) if order == "degree" else None
    cost = measure(
        take_sample(Keys(keys, 1 << 14), np.bincount(dst, minlength=1 << 11).astype(np.uint32), permutation)
    )
    assert facts.tiles == 1
    assert (cost.edges, cost.stored) == (facts.edges, facts.column_bytes)


def test_a_sample_of_windows_tells_what_all_of_them_would():
    """Bytes and hits of a quarter of a graph's links are near those of all."""
    source = Rmat(18)
    [block] = source.blocks(1 << 30)
    keys = block.dst.astype(np.uint64) << np.uint64(32) | block.src
    in_degree = np.bincount(block.dst, minlength=1 << 18).astype(np.uint32)
    some = measure(take_sample(Keys(keys, 1 << 18), in_degree, None))
    keys.sort()
    cuts = np.arange(0, (1 << 18) + 1, 1 << 12)
    every = measure(Sample(keys[: unique_sorted(keys)], np.stack([cuts[:-1], cuts[1:]], axis=1)))
    assert every.edges > 3.5 * some.edges
    assert some.stored / some.edges == pytest.approx(every.stored / every.edges, rel=0.05)
    assert some.missed / some.edges == pytest.approx(every.missed / every.edges, abs=0.03)
