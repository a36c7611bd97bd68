"""Depth-first orders beside a search by recursion, and rehearsed passes beside passes with dense matrices."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import oocpr
from oocpr.ingest.budget import SLACK_BYTES
from oocpr.ingest.orders.choice import Ordering
from oocpr.ingest.orders.convergence import DAMPING, DIGITS, MOST_PASSES, SWEEPS, rehearsed_passes
from oocpr.ingest.orders.depth_first import nodes_left
from oocpr.ingest.orders.neighbours import PAGE, Neighbours, find_neighbours
from oocpr.ingest.read import SpilledEdges
from oocpr.ingest.spill.files import SpillDir
from oocpr.ingest.spill.partition import KeyRun
from oocpr.system import resident_after_trim

from .test_orders import Keys

NODES = 12
graphs = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=50)


def degrees(pairs, nodes):
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    return [np.bincount(end, minlength=nodes).astype(np.uint32) for end in ends.T]


@pytest.fixture(scope="module")
def spill_dir(tmp_path_factory):
    with SpillDir(tmp_path_factory.mktemp("spilled")) as folder:
        yield folder


def neighbours_of(pairs, nodes, spill_dir, *, outgoing, block=7, room=1 << 30, order=None):
    degree = degrees(pairs, nodes)[not outgoing]
    how = {}
    if order is not None:
        how["rows"], degree = np.argsort(order).astype(np.uint32), degree[order]
    return find_neighbours(
        Keys(pairs, block), degree, outgoing=outgoing, room=room, spill_dir=spill_dir, **how
    )


def left_by_recursion(pairs, nodes):
    """Nodes in the order in which a search along edges leaves them."""
    seen, left = set(), []

    def visit(node):
        seen.add(node)
        for other in sorted(v for u, v in pairs if u == node):
            if other not in seen:
                visit(other)
        left.append(node)

    for node in range(nodes):
        if node not in seen:
            visit(node)
    return left


@given(graphs, st.sampled_from([1, 7, 100]), st.sampled_from([0, 12, 1 << 20]), st.booleans())
def test_a_search_leaves_nodes_as_one_by_recursion_does(spill_dir, pairs, block, room, outgoing):
    neighbours = neighbours_of(pairs, NODES, spill_dir, outgoing=outgoing, block=block, room=room)
    found = nodes_left(neighbours)
    neighbours.close()
    turned = pairs if outgoing else [(v, u) for u, v in pairs]
    assert found.tolist() == left_by_recursion(turned, NODES)


@given(graphs)
def test_what_leads_to_a_node_comes_before_it_where_there_is_no_cycle(spill_dir, pairs):
    forward = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    names = np.random.default_rng(len(pairs)).permutation(NODES)
    shuffled = [(int(names[u]), int(names[v])) for u, v in forward]
    along = nodes_left(neighbours_of(shuffled, NODES, spill_dir, outgoing=True))[::-1]
    against = nodes_left(neighbours_of(shuffled, NODES, spill_dir, outgoing=False))
    for nodes in (along, against):
        rows = np.argsort(nodes)
        assert all(rows[u] < rows[v] for u, v in shuffled)


def test_a_path_of_many_nodes_needs_no_recursion(spill_dir):
    nodes = 1 << 17
    pairs = [(node + 1, node) for node in range(nodes - 1)]
    neighbours = neighbours_of(pairs, nodes, spill_dir, outgoing=False, block=nodes)
    assert nodes_left(neighbours).tolist() == list(range(nodes - 1, -1, -1))


def test_a_search_in_a_file_is_that_in_memory(spill_dir):
    nodes, edges = 1 << 12, 1 << 16
    pairs = np.random.default_rng(1).integers(0, nodes, (edges, 2)).tolist()
    order = np.random.default_rng(2).permutation(nodes)
    for how in ({"outgoing": True}, {"outgoing": False}, {"outgoing": False, "order": order}):
        inside = neighbours_of(pairs, nodes, spill_dir, block=1000, **how)
        told = []
        expected = nodes_left(inside, told.append)
        assert sum(told) == nodes
        # Three pages of sixteen are there.
        outside = neighbours_of(pairs, nodes, spill_dir, block=1000, room=12 * PAGE, **how)
        assert outside.pages.shape == (3, PAGE)
        assert np.array_equal(outside.starts, inside.starts)
        assert np.array_equal(outside.degree(), inside.degree())
        count = int(inside.starts[-1])
        assert np.array_equal(outside.between(0, count), inside.between(0, count))
        told.clear()
        assert np.array_equal(nodes_left(outside, told.append), expected)
        assert sum(told) == nodes
        assert len(told) > 16
        for each in (inside, outside):
            each.close()


def test_an_order_is_the_same_where_neighbours_have_no_room(tmp_path, monkeypatch):
    nodes, edges = 1 << 14, 1 << 22
    rng = np.random.default_rng(1)
    brought, bring = [], Neighbours.bring

    def note(neighbours, page):
        brought.append(page)
        bring(neighbours, page)

    monkeypatch.setattr(Neighbours, "bring", note)
    found, done = [], []
    with SpillDir(tmp_path) as folder:
        file = folder.file()
        file.write(
            0,
            rng.integers(0, nodes, edges, np.uint64) << np.uint64(32)
            | rng.integers(0, nodes, edges, np.uint64),
        )
        spilled = SpilledEdges(
            file, edges, nodes, None, None, [KeyRun.of_words(file, 0, edges, 0, nodes << 32)], None
        )
        # All edges take 16 MiB, and a run of rows that is rehearsed 2 or 4.
        for room in (1 << 30, 6 << 20):
            spare = 64 * nodes + (15 << 20) + SLACK_BYTES + room
            ordering = Ordering(
                spilled,
                None,
                folder,
                resident_after_trim() + spare,
                lambda *told: done.append(told[1:3]),
            )
            found.append(ordering.find("dfs").node_ids)
            assert bool(brought) == (room < 1 << 30)
            assert done[-1][0] <= done[-1][1]
    assert np.array_equal(*found)
    assert list(tmp_path.iterdir()) == []


def rehearsed(pairs, nodes, tile_edges):
    """`rehearsed_passes` with a dense matrix, and least squares over whole vectors.

    As there, earlier passes are known in 24 bits, and by what nodes pass on along an edge.
    """
    pairs = sorted(set(pairs))
    out_degree, in_degree = (degree.astype(float) for degree in degrees(pairs, nodes.size))
    matrix = np.zeros((nodes.size, nodes.size))
    for u, v in pairs:
        matrix[v, u] = 1
    tiles, tile, edges = [], [], 0
    for node in nodes:
        if tile and edges >= tile_edges:
            tiles.append(tile)
            tile, edges = [], 0
        tile.append(node)
        edges += in_degree[node]
    tiles.append(tile)
    begin, known, digits = np.zeros(nodes.size), [], [0.0]
    for number in range(MOST_PASSES):
        passed_on = begin.copy()
        for tile in tiles:
            for _ in range(SWEEPS):
                for node in tile:
                    if out_degree[node]:
                        passed_on[node] = DAMPING / out_degree[node] * (1 + matrix[node] @ passed_on)
        change = (passed_on - begin) * out_degree
        ranks = (passed_on * out_degree).sum()
        digits.append(math.log10(ranks / np.abs(change).sum()) if change.any() else math.inf)
        if digits[-1] >= DIGITS:
            return number + (DIGITS - digits[-2]) / (digits[-1] - digits[-2])
        begin = passed_on
        if known:
            differences = np.array([change - before for before, _ in known]).T
            theta = np.linalg.lstsq(differences, change, rcond=1e-6)[0]
            steps = (t * (passed_on - outcome) for t, (_, outcome) in zip(theta, known, strict=True))
            begin = passed_on - sum(steps)
        known = [(change.astype(np.float32), passed_on.astype(np.float32)), *known][:2]
    return MOST_PASSES * DIGITS / max(digits[-1], 1 / DIGITS)


@example([(0, 0)] * 4 + [(1, 0), (2, 2), (3, 0), (3, 1)], 1, 0)
@given(graphs, st.sampled_from([1, 5, 100]), st.sampled_from([0, 1 << 20]))
def test_as_many_passes_are_rehearsed_as_with_a_dense_matrix(spill_dir, pairs, tile_edges, room):
    nodes = np.random.default_rng(len(pairs)).permutation(NODES).astype(np.uint32)
    receivers = neighbours_of(pairs, NODES, spill_dir, outgoing=True)
    senders = neighbours_of(pairs, NODES, spill_dir, outgoing=False, room=room, order=nodes)
    found = rehearsed_passes(senders, receivers.degree(), nodes, tile_edges)
    senders.close()
    assert found == pytest.approx(rehearsed(pairs, nodes, tile_edges), abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "share"),
    [("debian-bookworm-deps.txt.gz", 0.6), ("linux61-calls.txt.xz", 0.65), ("cit-HepTh.mtx.gz", 0.7)],
)
def test_dependencies_calls_and_citations_take_fewer_bytes_to_an_answer(tmp_path, graphs, name, share):
    taken = {}
    for order in ("keep", "degree", "bfs", "dfs"):
        graph = oocpr.import_graph(graphs / name, tmp_path / f"{order}.zarr", order=order)
        assert graph.info()["order"] == order
        passes = oocpr.pagerank(graph, method="mixed").run.passes
        taken[order] = passes * graph.store.attributes.column_bytes
    assert taken["dfs"] <= share * taken["keep"]
    assert taken["dfs"] == min(taken.values())
