"""The kept residual is that of a fresh product after every pass, whatever was pushed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.number_formats import READS
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job

from .digraphs import digraphs, fewer, product, random_digraph, teleports
from .running import TILED, Stored, passes, plan_of


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@fewer(2)
@given(
    graph=digraphs(), name=st.sampled_from(list(TILED)), reads=st.sampled_from(list(READS)), data=st.data()
)
def test_the_kept_residual_is_the_residual(backend, graph, name, reads, data):
    damping = data.draw(st.sampled_from([0.5, 0.85]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    teleport = data.draw(teleports(graph.nodes))
    with Stored(graph, data.draw(st.integers(1, 20))) as store:
        stripes = data.draw(st.integers(1, min(4, store.tiles)))
        settings = Settings(damping=damping, method=name, reads=reads, dangling=dangling)
        plan = plan_of(store, settings, stripes=stripes, sweeps=3, personalized=teleport is not None)
        job = Job("", settings, plan, backend, threads=1, teleport=teleport)
        for passed in passes(job, store, 8):
            fresh = product(graph, passed.p, damping, teleport, dangling)
            mass = abs(passed.p.sum())
            assert np.abs(passed.after - fresh).sum() <= 3e-14 * mass
            assert abs(passed.residual - np.abs(fresh - passed.p).sum() / mass) <= 3e-14
            if passed.residual < 1e-13:
                break


@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("reads", READS)
def test_it_is_still_exact_at_the_end_of_a_run(stored, name, reads):
    graph = random_digraph(1000, 6000, seed=3)
    store = stored(graph, 512)
    settings = Settings(method=name, reads=reads, tol=1e-12)
    job = Job("", settings, plan_of(store, settings, stripes=3, sweeps=4), threads=1)
    *_, last = passes(job, store, 60)
    fresh = product(graph, last.p, settings.damping)
    assert np.abs(last.after - fresh).sum() <= 3e-14 * last.p.sum()


# A byte spans 25 octaves below the largest number; what is flushed below is lost to the push, per link.
FLUSH = 2.0**-26


@pytest.mark.long
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@fewer(2)
@given(graph=digraphs(), reads=st.sampled_from(list(READS)), data=st.data())
def test_a_pass_shrinks_the_residual_by_what_the_format_promises(backend, graph, reads, data):
    damping = data.draw(st.sampled_from([0.3, 0.85, 0.86]))
    teleport = data.draw(teleports(graph.nodes))
    settings = Settings(damping=damping, method="residual", reads=reads)
    unit = READS[reads].unit_rounding
    if reads == "bits8":
        unit += 2 * FLUSH * (len(graph.src) + graph.nodes)
    factor = damping + (1 + damping) * unit
    with Stored(graph, data.draw(st.integers(1, 20))) as store:
        stripes = data.draw(st.integers(1, min(4, store.tiles)))
        plan = plan_of(store, settings, stripes=stripes, personalized=teleport is not None)
        job = Job("", settings, plan, backend, threads=1, teleport=teleport)
        before = None
        for passed in passes(job, store, 25):
            if before is not None:
                assert passed.residual <= factor * (1 + 1e-9) * before + 1e-14
            before = passed.residual
