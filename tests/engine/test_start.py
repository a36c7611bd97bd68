"""Runs that begin from given ranks: as exact as ever, and the nearer the start the fewer the passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine import method
from oocpr.engine.number_formats import READS, narrow, widen
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job

from .digraphs import Digraph, digraphs, exact_ranks, fewer, product, random_digraph, teleports
from .running import CONVERGENT, TILED, Stored, passes, plan_of, rank, rank_whole


def starts(nodes):
    """Vectors to begin from, most of them nowhere near the ranks; many numbers are zero or tiny."""
    numbers = st.one_of(st.just(0.0), st.floats(0, 1), st.sampled_from([1e-30, 1e-9]))
    vectors = st.lists(numbers, min_size=nodes, max_size=nodes).map(np.array)
    return vectors.filter(lambda v: v.sum() > 0).map(lambda v: v / v.sum())


@fewer(2)
@given(graph=digraphs(), data=st.data())
def test_the_true_error_is_below_the_certified_bound_from_any_start(graph, data):
    damping = data.draw(st.sampled_from([0.2, 0.85]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    teleport = data.draw(teleports(graph.nodes))
    exact = exact_ranks(graph, damping, teleport, dangling)
    start = data.draw(st.one_of(starts(graph.nodes), st.just(exact)))
    same = {"damping": damping, "dangling": dangling, "teleport": teleport, "start": start}
    tol = data.draw(st.sampled_from([1e-3, 1e-7, 1e-12]))
    with Stored(graph, data.draw(st.integers(1, 20))) as store:
        stripes = data.draw(st.integers(1, min(4, store.tiles)))
        name, reads = data.draw(st.sampled_from(CONVERGENT))
        if reads == "float32" and name == "power":
            tol = 1e-3
        runs = [rank(store, method=name, reads=reads, stripes=stripes, sweeps=3, tol=tol, **same)]
        runs.append(rank_whole(store, tol=tol, **same))
    for run in runs:
        assert run.converged
        assert np.abs(run.ranks - exact).sum() <= run.error_bound <= run.tol
        assert abs(run.ranks.sum() - 1) <= 1e-14


@pytest.mark.long
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@fewer(2)
@given(
    graph=digraphs(), name=st.sampled_from(list(TILED)), reads=st.sampled_from(list(READS)), data=st.data()
)
def test_the_kept_residual_is_the_residual_from_any_start(backend, graph, name, reads, data):
    teleport = data.draw(teleports(graph.nodes))
    start = data.draw(st.one_of(starts(graph.nodes), st.just(exact_ranks(graph, 0.85, teleport))))
    with Stored(graph, data.draw(st.integers(1, 20))) as store:
        stripes = data.draw(st.integers(1, min(4, store.tiles)))
        settings = Settings(method=name, reads=reads)
        plan = plan_of(store, settings, stripes=stripes, sweeps=3, personalized=teleport is not None)
        job = Job("", settings, plan, backend, threads=1, teleport=teleport, start=start)
        for passed in passes(job, store, 8):
            fresh = product(graph, passed.p, 0.85, teleport)
            mass = abs(passed.p.sum())
            if mass == 0:  # all of the start is too small for the format
                break
            assert np.abs(passed.after - fresh).sum() <= 3e-14 * mass
            if passed.residual < 1e-13:
                break


@pytest.mark.parametrize("name", ["mixed", "residual"])
@pytest.mark.parametrize("reads", ["bits16", "float32", "float64"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_answer_is_pushed_digit_by_digit(stored, name, reads, backend):
    graph = random_digraph(500, 3000, seed=6)
    exact = exact_ranks(graph, 0.85)
    store = stored(graph, 256)
    settings = Settings(method=name, reads=reads, tol=1e-12)
    job = Job("", settings, plan_of(store, settings, stripes=2), backend, threads=1, start=exact)
    degree = np.maximum(store.out_degree(0, store.nodes), 1)
    left = exact.copy()
    count = {"bits16": 4, "float32": 2, "float64": 1}[reads]
    for passed in passes(job, store, count):
        pushed = widen(narrow(left / degree, reads, 1.0), reads, 1.0) * degree
        np.testing.assert_array_equal(passed.pushed, pushed)
        left = exact - passed.p
        assert np.abs(left).sum() <= READS[reads].unit_rounding
    run = rank(store, method=name, reads=reads, tol=1e-12, start=exact, stripes=2, backend=backend)
    assert run.passes <= count + 1


def test_a_poor_start_is_pushed_once(stored):
    graph = random_digraph(500, 3000, seed=6)
    store = stored(graph, 256)
    start = np.arange(1.0, 501) / np.arange(1.0, 501).sum()
    for reads in READS:
        run = rank(store, reads=reads, start=start)
        assert run.converged
        cold = rank(store, reads=reads)
        assert abs(run.passes - cold.passes) <= 2


class TestDecision:
    settings = Settings(reads="bits16")

    def after(self, residual, earlier=(), starting=True, **changes):
        begun = method.begin(replace(self.settings, **changes), 1, 0.5)
        before = begun._replace(number=len(earlier), residuals=earlier, starting=starting)
        after = before._replace(number=len(earlier) + 1, residuals=(*earlier, residual), starting=False)
        return method.start_again(replace(self.settings, **changes), before, after)

    def test_a_residual_of_rounding_has_the_rest_of_the_start_pushed(self):
        usual = READS["bits16"].mean_rounding
        assert self.after(usual).starting
        assert self.after(usual).scale == 2.0**-9
        assert not self.after(2 * usual).starting
        assert self.after(usual**2, (usual,)).starting
        assert not self.after(2 * usual**2, (usual,)).starting

    def test_power_begins_anew_in_each_pass(self):
        assert not self.after(1e-9, method="power", reads="float64").starting

    def test_a_run_that_has_gone_on_does_not_come_back(self):
        assert not self.after(1e-9, (1e-3,), starting=False).starting


@pytest.mark.parametrize("reads", READS)
def test_threads_and_tiles_in_memory_change_no_bit(stored, reads):
    graph = random_digraph(3000, 40_000, seed=2)
    store = stored(graph, 9000)
    start = rank(store, reads=reads, tol=1e-5).ranks
    one = rank(store, reads=reads, stripes=2, start=start)
    for threads, kept in ((2, "decoded"), (3, "none")):
        other = rank(store, reads=reads, threads=threads, kept=kept, stripes=2, start=start)
        assert np.array_equal(one.ranks, other.ranks)


@pytest.mark.parametrize(("name", "reads"), CONVERGENT)
def test_from_the_ranks_of_a_graph_with_fewer_links_there_are_fewer_passes(stored, name, reads):
    graph = random_digraph(3000, 30_000, seed=4)
    rng = np.random.default_rng(1)
    keep = rng.random(len(graph.src)) >= 0.001
    tol = 1e-6 if (name, reads) == ("power", "float32") else 1e-10
    before = rank(stored(Digraph(3000, graph.src[keep], graph.dst[keep]), 4000), reads=reads, tol=tol)
    store = stored(graph, 4000)
    cold = rank(store, method=name, reads=reads, tol=tol)
    warm = rank(store, method=name, reads=reads, tol=tol, start=before.ranks)
    assert warm.converged
    assert warm.passes < cold.passes
    assert np.abs(warm.ranks - cold.ranks).sum() <= warm.error_bound + cold.error_bound


@pytest.mark.parametrize("reads", ["float32", "bits16", "bits8"])
def test_the_mean_rounding_is_that_of_numbers_of_all_sizes(reads):
    values = 2.0 ** np.random.default_rng(0).uniform(-8, 0, 100_000)
    errors = np.abs(widen(narrow(values, reads, 1.0), reads, 1.0) - values) / values
    assert errors.mean() == pytest.approx(READS[reads].mean_rounding, rel=0.02)
