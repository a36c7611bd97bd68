"""Rows that the border of two stripes cuts in two, and what stripes propose to each other."""

from __future__ import annotations

import importlib
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.cpu.backend import CpuBackend
from oocpr.engine.number_formats import READS
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job, StripeGroup

from .digraphs import Digraph, digraphs, exact_ranks, fewer, random_digraph
from .running import Stored, passes, plan_of, rank


def cut_hub() -> Digraph:
    """Node 1 is linked to by all but a few; with tiles of 58 edges, its row ends in the second of three."""
    followers = range(3, 63)
    links = [(follower, 1) for follower in followers] + [(2, follower) for follower in followers]
    return Digraph.of(63, [*links, (1, 2), *((0, follower) for follower in range(3, 40))])


def test_the_graph_is_what_these_tests_need(stored):
    store = stored(cut_hub(), 58)
    assert store.tile_rows.tolist() == [0, 1, 30, 63]
    assert plan_of(store, Settings(), stripes=2).stripes == ((0, 1), (1, 3))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("tile_edges", [58, 7, 2])
def test_cut_rows_have_the_residual_of_whole_ones(stored, backend, tile_edges):
    settings = Settings(method="residual", reads="float64", tol=1e-12)
    store = stored(cut_hub(), tile_edges)
    runs = []
    for stripes in (1, 2, min(4, store.tiles), min(20, store.tiles)):
        job = Job("", settings, plan_of(store, settings, stripes=stripes), backend, threads=1)
        runs.append(list(passes(job, store, 12)))
    for other in runs[1:]:
        for whole, cut in zip(runs[0], other, strict=True):
            # The sums are taken in other orders.
            assert np.abs(whole.p - cut.p).sum() <= 1e-14
            assert np.abs(whole.after - cut.after).sum() <= 1e-14
            assert abs(whole.residual - cut.residual) <= 1e-14


@fewer(5)
@given(graph=digraphs(), data=st.data())
def test_stripes_make_no_difference_to_plain_residual_on_any_graph(graph, data):
    settings = Settings(method="residual", reads="float64")
    with Stored(graph, data.draw(st.integers(1, 10))) as store:
        runs = []
        for stripes in (1, data.draw(st.integers(1, store.tiles))):
            plan = plan_of(store, settings, stripes=stripes)
            runs.append(list(passes(Job("", settings, plan, threads=1), store, 10)))
        for whole, cut in zip(*runs, strict=True):
            assert np.abs(whole.after - cut.after).sum() <= 1e-14
            assert abs(whole.residual - cut.residual) <= 1e-14


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_byte_has_room_for_what_a_cut_row_is_owed(stored, backend):
    settings = Settings(method="residual", reads="bits8")
    limit = 0.85 + 1.85 * READS["bits8"].unit_rounding
    store = stored(cut_hub(), 58)
    job = Job("", settings, plan_of(store, settings, stripes=2), backend, threads=1)
    residuals = np.array([passed.residual for passed in passes(job, store, 40)])
    assert np.all(residuals[1:] <= limit * 1.0001 * residuals[:-1])


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("tile_edges", [58, 7])
def test_mixed_runs_with_cut_rows_are_right(stored, reads, tile_edges):
    graph = cut_hub()
    exact = exact_ranks(graph, 0.85)
    store = stored(graph, tile_edges)
    for stripes in {2, 3, min(20, store.tiles)}:
        run = rank(store, reads=reads, stripes=stripes, sweeps=4)
        assert run.converged
        assert np.abs(run.ranks - exact).sum() <= run.error_bound


def bits_and_those_of_a_backend_each(store, stripes, kept="decoded", **how):
    """A run of several stripes on one backend, and whether it has the bits of one backend per stripe."""
    alone = rank(store, stripes=stripes, sweeps=3, **how)
    each = tuple(CpuBackend(1) for _ in range(stripes))
    run = rank(store, stripes=stripes, sweeps=3, backend=each, kept=kept, **how)
    return alone, np.array_equal(run.ranks, alone.ranks)


@pytest.mark.parametrize("kept", ["decoded", "none"])
@pytest.mark.parametrize("stripes", [2, 3, 5])
def test_stripes_have_the_same_bits_on_one_backend_and_on_one_each(stored, stripes, kept):
    store = stored(random_digraph(600, 1800, seed=2), 100)
    assert plan_of(store, Settings(), stripes=stripes, sweeps=3).sections > 1
    assert bits_and_those_of_a_backend_each(store, stripes, kept)[1]


@fewer(5)
@given(graph=digraphs(), data=st.data())
def test_stripes_that_exchange_proposals_are_right_on_any_graph(graph, data):
    reads, exact = data.draw(st.sampled_from(list(READS))), exact_ranks(graph, 0.85)
    with Stored(graph, data.draw(st.integers(1, 6))) as store:
        stripes = data.draw(st.integers(1, max(1, store.tiles // 2)))
        run, alike = bits_and_those_of_a_backend_each(store, stripes, reads=reads)
    assert alike
    assert run.converged
    assert np.abs(run.ranks - exact).sum() <= run.error_bound


def test_what_stripes_propose_to_each_other_saves_passes(stored, monkeypatch):
    store = stored(random_digraph(600, 1800, seed=2), 100)
    together, apart = [], []
    for stripes in (2, 4):
        together.append(rank(store, stripes=stripes, sweeps=4).passes)
        with monkeypatch.context() as context:
            context.setattr(importlib.import_module("oocpr.plan.plan"), "MAX_SECTIONS", 1)
            apart.append(rank(store, stripes=stripes, sweeps=4).passes)
    assert all(fewer < more for fewer, more in zip(together, apart, strict=True))


class FailingBackend(CpuBackend):
    """A backend that fails at its second tile."""

    def sweep_tile(self, *given):
        """See Backend."""
        if given[-1] is not None:
            raise ZeroDivisionError
        return super().sweep_tile(*given)


def test_an_error_in_one_stripe_ends_the_reading_of_others(stored, monkeypatch):
    store, reading = stored(random_digraph(600, 1800, seed=2), 100), []
    whole = StripeGroup.close

    def closing(group):
        reading.extend(one.name for one in threading.enumerate() if one.name.startswith("oocpr-read"))
        whole(group)

    monkeypatch.setattr(StripeGroup, "close", closing)
    with pytest.raises(ZeroDivisionError):
        rank(store, stripes=2, sweeps=3, kept="none", backend=(CpuBackend(1), FailingBackend(1)))
    assert not reading
