import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.order import orders
from oocpr.ingest.order.orders import order_by_bfs
from oocpr.sources.rmat import Rmat

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
