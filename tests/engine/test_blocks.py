"""Blocks of vectors: ranks that are right, and bits that depend neither on the block nor on the company."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from oocpr.engine.cpu import lanes as vectors
from oocpr.engine.scc.block import order_rows
from oocpr.engine.scc.personal import SeedVectors, filled_width, rank_seeds
from oocpr.engine.scc.run import load_scc_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError
from oocpr.jit import entry
from oocpr.plan.memory import BLOCK_WIDTHS
from oocpr.sources import open_source

from .digraphs import digraphs, exact_ranks, fewer, product
from .running import Stored, build
from .test_scc import knotted
from .weighted import KINDS, WeightedGraph, weigh, weighted_graphs


def settings_of(**how):
    return Settings(method="components", reads="float32", **how)


def seeds_of(dense):
    """Teleport vectors, one of each row of an array."""
    rows, columns = np.nonzero(dense)
    ptr = np.searchsorted(rows, np.arange(len(dense) + 1))
    return SeedVectors(ptr, columns, dense[rows, columns])


def ranks_of(graph, seeds, *, threads=1, width=8, **how):
    """Outcomes, and the ranks of each vector."""
    found = [None] * len(seeds)

    def take(number, ranks):
        found[number] = ranks.copy()

    outcomes = rank_seeds(graph, settings_of(**how), seeds, take, threads=threads, width=width)
    return outcomes, np.array(found)


@st.composite
def several_teleports(draw, nodes):
    weights = st.lists(st.integers(0, 5), min_size=nodes, max_size=nodes).filter(any)
    dense = np.array(draw(st.lists(weights, min_size=1, max_size=11)), float)
    return dense / dense.sum(1, keepdims=True)


@fewer(2)
@given(graph=digraphs(), data=st.data())
def test_the_true_error_of_each_vector_is_below_its_bound(graph, data):
    damping = data.draw(st.sampled_from([0.2, 0.85, 0.97]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    tol = data.draw(st.sampled_from([1e-3, 1e-7, 1e-10]))
    dense = data.draw(several_teleports(graph.nodes))
    with Stored(graph, data.draw(st.integers(1, 20))) as store:
        outcomes, ranks = ranks_of(
            load_scc_graph(store), seeds_of(dense), damping=damping, dangling=dangling, tol=tol
        )
    assert outcomes.converged.all()
    assert (outcomes.error_bound <= tol).all()
    assert np.abs(ranks.sum(1) - 1).max() <= 1e-14
    for teleport, mine, bound in zip(dense, ranks, outcomes.error_bound, strict=True):
        assert np.abs(mine - exact_ranks(graph, damping, teleport, dangling)).sum() <= bound


@fewer(2)
@given(graph=weighted_graphs(), data=st.data())
def test_the_true_error_is_below_its_bound_where_edges_have_weights(graph, data):
    damping = data.draw(st.sampled_from([0.2, 0.85, 0.97]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    dense = data.draw(several_teleports(graph.nodes))
    with TemporaryDirectory() as folder:
        loaded = load_scc_graph(graph.write(Path(folder) / "w.zarr", data.draw(st.integers(1, 20))))
        outcomes, ranks = ranks_of(loaded, seeds_of(dense), damping=damping, dangling=dangling)
        _, last = ranks_of(loaded, seeds_of(dense[-1:]), damping=damping, dangling=dangling, width=16)
    assert outcomes.converged.all()
    assert (last[0] == ranks[-1]).all()
    for teleport, mine, bound in zip(dense, ranks, outcomes.error_bound, strict=True):
        assert np.abs(mine - graph.exact_ranks(damping, teleport, dangling)).sum() <= bound


@pytest.mark.parametrize("kind", KINDS)
def test_components_with_weights_are_right_with_the_same_bits_in_any_block(tmp_path, dense, kind):
    weighted = weigh(knotted(), 4, kind)
    loaded = load_scc_graph(weighted.write(tmp_path / "w.zarr", 50_000))
    outcomes, ranks = ranks_of(loaded, seeds_of(dense))
    assert outcomes.converged.all()
    others, same = ranks_of(loaded, seeds_of(dense), threads=2, width=16)
    assert (same == ranks).all()
    assert (others.error_bound == outcomes.error_bound).all()
    sums = weighted.out_weight
    share = csr_array(
        (weighted.weight / np.where(sums > 0, sums, 1)[weighted.src], (weighted.dst, weighted.src)),
        shape=(weighted.nodes, weighted.nodes),
    )
    for teleport, mine, bound in zip(dense, ranks, outcomes.error_bound, strict=True):
        moved = 0.85 * (share @ mine) + (0.85 * mine[sums == 0].sum() + 0.15) * teleport - mine
        assert np.abs(moved).sum() <= bound


def test_weights_that_contradict_the_sums_are_found(tmp_path):
    weighted = WeightedGraph.of(knotted(), 2.0)
    store = weighted.write(tmp_path / "w.zarr", 50_000)
    true = store.out_weight
    store.out_weight = lambda first, end: true(first, end) * 1.001
    with pytest.raises(DamagedError, match="out-weights are not those of the edges"):
        load_scc_graph(store)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return load_scc_graph(build(open_source(knotted().entries), tmp_path_factory.mktemp("blocks") / "g.zarr"))


@pytest.fixture(scope="module")
def dense():
    """Seeds that reach much and little, of one node and of many."""
    random = np.random.default_rng(7)
    dense = np.zeros((21, knotted().nodes))
    for number, row in enumerate([0, 100, 8100, 9500, 30_000, 49_999, 55_000, 60_200, 60_540, 60_999]):
        dense[number, row] = 1
    for teleport in dense[10:20]:
        teleport[random.integers(0, 61_000, random.integers(2, 40))] = 1
    dense[20] = 1
    return dense / dense.sum(1, keepdims=True)


@pytest.mark.parametrize("dangling", ["strongly", "weakly"])
def test_every_kind_of_component_is_right(graph, dense, dangling):
    outcomes, ranks = ranks_of(graph, seeds_of(dense), dangling=dangling)
    assert outcomes.converged.all()
    assert outcomes.passes.max() <= 3
    if dangling == "strongly":
        # Vectors that are done leave before the others.
        assert outcomes.passes.min() < outcomes.passes.max()
    for teleport, mine, bound in zip(dense, ranks, outcomes.error_bound, strict=True):
        # One more product moves the exact ranks by nothing, and these by what is certified.
        moved = product(knotted(), mine, 0.85, teleport, dangling) - mine
        assert np.abs(moved).sum() <= bound


def test_no_bit_depends_on_the_block_the_threads_or_the_company(graph, dense):
    outcomes, ranks = ranks_of(graph, seeds_of(dense))
    for width in BLOCK_WIDTHS:
        for threads in (1, 2, 3):
            others, same = ranks_of(graph, seeds_of(dense), threads=threads, width=width)
            assert (same == ranks).all()
            assert all((mine == theirs).all() for mine, theirs in zip(outcomes, others, strict=True))
    order = np.random.default_rng(1).permutation(len(dense))
    assert (ranks_of(graph, seeds_of(dense[order]))[1] == ranks[order]).all()
    for number in range(0, len(dense), 3):
        assert (ranks_of(graph, seeds_of(dense[number : number + 1]))[1] == ranks[number]).all()


@fewer(4)
@given(graph=digraphs(), data=st.data())
def test_no_bit_depends_on_the_company_in_any_graph(graph, data):
    dense = data.draw(several_teleports(graph.nodes))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    chosen = data.draw(st.lists(st.integers(0, len(dense) - 1), min_size=1))
    with Stored(graph, 20) as store:
        loaded = load_scc_graph(store)
        _, ranks = ranks_of(loaded, seeds_of(dense), dangling=dangling)
        _, some = ranks_of(loaded, seeds_of(dense[chosen]), dangling=dangling, width=16)
    assert (some == ranks[chosen]).all()


def test_rows_are_ordered_after_all_that_they_need(graph):
    schedule, order = graph.schedule, order_rows(graph.schedule)
    assert (np.sort(order.rows) == np.arange(len(order.rows))).all()
    assert order.repeats.sum() > 400
    place = np.empty(len(order.rows), np.int64)
    place[order.rows] = np.arange(len(order.rows))
    group = np.searchsorted(order.groups, place, side="right") - 1
    first = schedule.offsets[:-1].astype(np.int64)
    for row in range(len(first)):
        outer = schedule.columns[first[row] : first[row] + schedule.outer[row]]
        inner = schedule.columns[first[row] + schedule.outer[row] :][: schedule.inner[row]]
        assert (place[outer] < place[row]).all()
        assert (group[inner] == group[row]).all()


def test_blocks_are_narrow_where_few_vectors_begin_before_the_largest_component_ends(tmp_path):
    # A cycle, its nodes from 50 on, and a path behind it.
    source = np.concatenate([np.arange(50, 149), [149, 149], np.arange(49)])
    target = np.concatenate([np.arange(51, 150), [50, 0], np.arange(1, 50)])
    graph = load_scc_graph(build(open_source((source, target)), tmp_path / "g.zarr"))

    def width(in_front: int, behind: int, threads: int) -> int:
        rows = np.concatenate([50 + np.arange(in_front), np.arange(behind)])
        seeds = SeedVectors(np.arange(rows.size + 1), rows, np.ones(rows.size))
        return filled_width(graph, seeds, threads, 16)

    assert [width(16, 0, 1), width(15, 40, 1), width(32, 5, 2), width(31, 40, 2)] == [16, 8, 16, 8]
    path = load_scc_graph(build(open_source((np.arange(9), np.arange(1, 10))), tmp_path / "path.zarr"))
    assert filled_width(path, SeedVectors(np.arange(17), np.zeros(16, int), np.ones(16)), 1, 16) == 8


def test_passes_may_run_out(graph, dense):
    outcomes, ranks = ranks_of(graph, seeds_of(dense), max_passes=1)
    assert 0 < outcomes.converged.sum() < len(dense)
    assert (outcomes.converged == (outcomes.error_bound <= 1e-10)).all()
    _, exact = ranks_of(graph, seeds_of(dense))
    assert (np.abs(ranks - exact).sum(1) <= outcomes.error_bound + 1e-10).all()


def test_an_error_of_who_takes_the_ranks_ends_the_run(graph, dense):
    def take(number, ranks):
        raise DamagedError("no room.")

    with pytest.raises(DamagedError, match="no room"):
        rank_seeds(graph, settings_of(), seeds_of(dense), take, threads=2, width=8)


def test_progress_counts_seeds(graph, dense):
    seen = []

    def note(stage, done, total, unit, _=""):
        seen.append((stage, done, total, unit))

    rank_seeds(graph, settings_of(), seeds_of(dense), lambda *_: None, threads=2, width=8, progress=note)
    assert seen == [("personal ranks", done, 21, "seeds") for done in range(1, 22)]


@entry(cache=False)
def _compute(one, other, factor, chosen, exact, narrowed, lanes):
    a, b = vectors.load(one, np.uint64(3), lanes), vectors.load(other, np.uint64(5), lanes)
    c = vectors.select(vectors.load(chosen, np.uint64(0), lanes), a - b, a)
    c += a * vectors.full(factor, lanes)
    vectors.store(exact, np.uint64(1), vectors.widen(vectors.magnitude(c)) + vectors.full(0.1, lanes))
    vectors.store(narrowed, np.uint64(0), vectors.narrow(vectors.load(exact, np.uint64(1), lanes)))


@pytest.mark.parametrize("width", BLOCK_WIDTHS)
def test_vectors_compute_what_their_numbers_would(width):
    random = np.random.default_rng(width)
    one, other = random.standard_normal((2, 64)).astype(np.float32)
    chosen = random.integers(0, 3, width).astype(np.uint32)
    exact, narrowed = np.zeros(width + 2), np.zeros(width, np.float32)
    factor = np.float32(0.3)
    _compute(one, other, factor, chosen, exact, narrowed, (0,) * width)
    a, b = one[3 : 3 + width], other[5 : 5 + width]
    expected = np.abs(np.where(chosen, a - b, a) + a * factor).astype(np.float64) + 0.1
    assert (exact == np.concatenate([[0], expected, [0]])).all()
    assert (narrowed == expected.astype(np.float32)).all()
