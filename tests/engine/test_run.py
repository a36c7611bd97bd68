"""Whole runs: the ranks are right, and how right is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.number_formats import READS
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError, DoesNotFitError
from oocpr.store.graph import open_store

from ..store.damage import flip_bits
from .digraphs import Digraph, digraphs, exact_ranks, fewer, product, random_digraph, teleports
from .running import KEPT, TILED, Stored, plan_of, rank, stripes_held


@fewer(2)
@given(graph=digraphs(), data=st.data())
def test_the_true_error_is_below_the_certified_bound(graph, data):
    damping = data.draw(st.sampled_from([0.2, 0.85]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    teleport = data.draw(teleports(graph.nodes))
    exact = exact_ranks(graph, damping, teleport, dangling)
    with Stored(graph, data.draw(st.integers(1, 20))) as store:
        stripes = data.draw(st.integers(1, min(4, store.tiles)))
        for reads in READS:
            run = rank(
                store,
                reads=reads,
                stripes=stripes,
                sweeps=data.draw(st.integers(1, 4)),
                method=data.draw(st.sampled_from(["mixed", "residual"])),
                tol=data.draw(st.sampled_from([1e-3, 1e-7, 1e-10, 1e-12])),
                damping=damping,
                dangling=dangling,
                teleport=teleport,
            )
            assert run.converged
            assert run.error_bound <= run.tol
            assert np.abs(run.ranks - exact).sum() <= run.error_bound
            assert abs(run.ranks.sum() - 1) <= 1e-14
            assert run.ranks.min() >= -run.error_bound


FOLLOWED = Digraph(64, np.arange(1, 64), np.zeros(63, np.int64))
"""All follow one node: a proposal takes nearly all of p back there."""

SPLIT = Digraph(
    17,
    np.array(
        [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 5, 6, 7, 7, 8, 9, 9, 9, 11, 11, 11, 12, 12, 13, 13, 13, 14, 16]
    ),
    np.array(
        [0, 10, 12, 2, 4, 2, 4, 3, 11, 1, 5, 7, 13, 8, 7, 13, 8, 3, 9, 11, 3, 9, 11, 10, 12, 5, 7, 13, 14, 16]
    ),
)
"""Islands, whose ranks rounding moves against each other."""


def tight(damping: float, times: float) -> float:
    """A tolerance so many times the least one that is taken."""
    return times * 6e-14 / (1 - damping)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("damping", [0.99, 0.999, 0.9999, 0.99999])
@pytest.mark.parametrize("graph", [FOLLOWED, SPLIT])
def test_what_rounding_leaves_is_counted_where_p_becomes_small(stored, graph, damping, backend):
    exact = exact_ranks(graph, damping)
    store = stored(graph, 1000)
    for times in (1.1, 3, 10):
        run = rank(
            store, damping=damping, reads="float64", tol=tight(damping, times), stripes=1, backend=backend,
            max_passes=300,
        )  # fmt: skip
        assert run.converged
        assert np.abs(run.ranks - exact).sum() <= run.error_bound + 3e-15 / (1 - damping)


def test_a_run_that_ends_with_a_small_p_is_no_damage(stored):
    store = stored(Digraph.of(3, [(1, 0), (2, 0), (2, 1)]), 1000)
    teleport = np.array([0.0, 0.0, 1.0])
    exact = exact_ranks(Digraph.of(3, [(1, 0), (2, 0), (2, 1)]), 0.999999, teleport)
    for how in ({"tol": 0.0093}, {"tol": 1e-3, "stop": "residual"}):
        run = rank(store, damping=0.999999, reads="float64", teleport=teleport, **how)
        assert run.converged
        assert np.abs(run.ranks - exact).sum() <= run.error_bound


@fewer(2)
@given(graph=digraphs(), data=st.data())
def test_bounds_hold_at_high_dampings(graph, data):
    damping = data.draw(st.sampled_from([0.99, 0.999, 0.9999, 0.99999]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    teleport = data.draw(teleports(graph.nodes))
    exact = exact_ranks(graph, damping, teleport, dangling)
    with Stored(graph, data.draw(st.integers(5, 20))) as store:
        tol = tight(damping, data.draw(st.sampled_from([1.05, 2, 20])))
        run = rank(
            store, reads=data.draw(st.sampled_from(["float32", "float64"])), damping=damping, tol=tol,
            dangling=dangling, teleport=teleport, max_passes=200, sweeps=data.draw(st.integers(1, 4)),
        )  # fmt: skip
    assert run.converged == (run.error_bound <= tol)
    assert np.abs(run.ranks - exact).sum() <= run.error_bound + 3e-15 / (1 - damping)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("name", ["mixed", "residual"])
def test_ranks_are_right_to_float64_where_that_is_asked_for(stored, reads, name):
    graph = random_digraph(500, 3000, seed=6)
    exact = exact_ranks(graph, 0.85)
    store = stored(graph, 256)
    run = rank(store, reads=reads, method=name, tol=1e-12, stripes=2)
    assert run.converged
    assert np.abs(run.ranks - exact).sum() <= 1e-12


@pytest.mark.parametrize("method", TILED)
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("max_passes", [1, 2, 7])
def test_a_run_that_is_cut_short_says_so_and_its_bound_holds(stored, method, reads, max_passes):
    graph = random_digraph(300, 1000, seed=7)
    exact = exact_ranks(graph, 0.85)
    store = stored(graph, 64)
    run = rank(store, method=method, reads=reads, max_passes=max_passes, stripes=2)
    assert not run.converged
    assert run.passes == max_passes
    assert run.error_bound > run.tol
    assert run.error_bound == run.history[-1].bound
    assert np.abs(run.ranks - exact).sum() <= run.error_bound
    assert abs(run.ranks.sum() - 1) <= 1e-14


def test_every_bound_on_the_way_holds(stored):
    graph = random_digraph(300, 1000, seed=7)
    exact = exact_ranks(graph, 0.85)
    store = stored(graph, 64)
    whole = rank(store)
    for passes in range(1, whole.passes):
        part = rank(store, max_passes=passes)
        assert part.history[-1].bound == whole.history[passes - 1].bound
        assert np.abs(part.ranks - exact).sum() <= part.error_bound


def test_power_takes_the_steps_of_the_textbook(stored):
    graph = random_digraph(400, 2000, seed=8)
    iterate = np.full(400, 1 / 400)
    store = stored(graph, 100)
    run = rank(store, method="power", reads="float64", stop="residual", stripes=3)
    for record in run.history:
        after = product(graph, iterate, 0.85)
        assert record.residual == pytest.approx(np.abs(after - iterate).sum(), abs=1e-15)
        iterate = after
    assert np.abs(run.ranks - iterate).sum() <= 1e-14
    assert run.history[-1].residual < 1e-10 <= run.history[-2].residual


@pytest.mark.parametrize("reads", READS)
def test_plain_residual_needs_no_more_passes_than_power_but_a_few(stored, reads):
    graph = random_digraph(2000, 10_000, seed=9)
    store = stored(graph, 1000)
    power = rank(store, method="power", reads="float64", stop="residual").passes
    narrow = rank(store, method="residual", reads=reads, stop="residual").passes
    assert narrow <= max(power + 2, power * 1.05)


SELF_LOOPS = Digraph.of(5, [(node, node) for node in range(5)])
# Links 0 -> 1 and 1 -> 0 in two tiles of one edge each, so in two stripes as well.
TWO_CYCLE = Digraph.of(2, [(0, 1), (1, 0)])
STAR = Digraph.of(9, [(leaf, 8) for leaf in range(8)])


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("name", ["mixed", "residual"])
@pytest.mark.parametrize(
    ("graph", "ranks"),
    [
        pytest.param(Digraph.of(1, []), [1.0], id="one node"),
        pytest.param(Digraph.of(1, [(0, 0)]), [1.0], id="one node with itself"),
        pytest.param(Digraph.of(6, []), [1 / 6] * 6, id="all dangling"),
        pytest.param(SELF_LOOPS, [0.2] * 5, id="only self-loops"),
        pytest.param(TWO_CYCLE, [0.5, 0.5], id="two-cycle"),
        pytest.param(STAR, [1 / 15.8] * 8 + [(1 + 0.85 * 8) / 15.8], id="star"),
    ],
)
@pytest.mark.parametrize("stripes", [1, 2])
def test_degenerate_graphs(stored, graph, ranks, name, reads, stripes):
    store = stored(graph, 1)
    run = rank(store, method=name, reads=reads, stripes=min(stripes, store.tiles), sweeps=2)
    assert run.converged
    np.testing.assert_allclose(run.ranks, ranks, rtol=0, atol=run.error_bound)


def test_a_graph_of_dangling_nodes_takes_one_pass(stored):
    store = stored(Digraph.of(6, []), 4)
    assert rank(store, reads="float64").passes == 1


def test_the_history_adds_up(stored):
    graph = random_digraph(2000, 10_000, seed=9)
    told = []
    store = stored(graph, 500)
    column_bytes = store.attributes.column_bytes
    run = rank(store, kept="none", progress=lambda *facts: told.append(facts))
    cached = rank(store)
    gathers = plan_of(store, Settings()).gathers
    assert [record.number for record in run.history] == list(range(1, run.passes + 1))
    assert [record.bytes_read for record in run.history] == [column_bytes] * run.passes
    assert [record.bytes_read for record in cached.history] == [column_bytes] + [0] * (cached.passes - 1)
    assert run.gathers == pytest.approx(run.passes * gathers)
    assert sum(record.seconds for record in run.history) <= run.seconds
    assert all(0 <= record.wait_seconds <= record.seconds for record in run.history)
    assert {stage for stage, *_ in told} == {"ranking"}
    # Of each pass its tiles but the last, one after the other, and then its end.
    parts = [tile / store.tiles for tile in range(1, store.tiles)]
    assert [done for _, done, *_ in told] == [
        done for number in range(run.passes) for done in (*(number + part for part in parts), number + 1)
    ]
    assert np.array_equal(run.ranks, cached.ranks)


def test_a_run_that_does_not_fit_is_refused_before_a_pass(stored):
    store = stored(random_digraph(200, 500, seed=1), 64)
    plan = replace(plan_of(store, Settings()), memory=2**20)
    with pytest.raises(DoesNotFitError, match="1 MiB"):
        rank_graph(store, plan, Settings())


@pytest.mark.long
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_damaged_tile_ends_the_run(backend):
    with Stored(random_digraph(200, 900, seed=1), 64) as store:
        flip_bits(next(Path(store.path).rglob("indices/c/5")))
        for kept in KEPT:
            with pytest.raises(DamagedError, match="c/5"):
                rank(open_store(store.path), backend=backend, kept=kept)
    assert not stripes_held()


def test_a_run_that_cannot_begin_leaves_nothing():
    with Stored(random_digraph(200, 900, seed=1), 64) as store:
        flip_bits(next(Path(store.path).rglob("out_degree/c/0")))
        with pytest.raises(DamagedError, match="out_degree"):
            rank(open_store(store.path))
    assert not stripes_held()
