"""What is measured before a run: rates of what the run will do, and nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from oocpr.engine.cpu.threads import Team
from oocpr.engine.probe import pass_times
from oocpr.engine.probe.measure import load_compiled, measure_rates, measure_whole
from oocpr.engine.probe.pass_times import SAMPLED, spread
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError
from oocpr.plan.memory import tile_edges
from oocpr.plan.residency import RING_SLOTS

from ..store.damage import flip_bits
from .digraphs import random_digraph
from .running import KEPT, Stored, plan_of, rank_whole, stripes_held

GRAPH = random_digraph(2000, 12_000, seed=12)


@pytest.mark.long
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("method", ["mixed", "residual"])
def test_tiles_that_stay_and_tiles_that_pass_are_measured_where_there_are_any(stored, kept, method):
    store = stored(GRAPH, 700)
    settings = Settings(method=method)
    plan = plan_of(store, settings, stripes=2, kept=kept)
    rates = measure_rates(store, plan, settings, threads=1)
    assert math.isinf(rates.resident) == (kept == "none")
    assert math.isinf(rates.streamed) == (kept in ("decoded", "packed"))
    timing = plan.timing(rates)
    for seconds in (timing.first, timing.each, timing.ends):
        # A minute for 12,000 edges would be none of a computer.
        assert 0 < seconds < 60
    assert rates.loading >= 0
    assert not stripes_held()


EXCHANGING = ("show_open", "take_proposals", "put_proposals", "reread")


@pytest.mark.parametrize(("stripes", "calls"), [(1, set()), (2, set(EXCHANGING))])
def test_what_stripes_exchange_with_is_compiled_before_a_run(stored, monkeypatch, stripes, calls):
    store, called = stored(GRAPH, 700), set()
    whole = Team.run

    def noting(team, function, *given):
        called.add(function.__name__)
        return whole(team, function, *given)

    monkeypatch.setattr(Team, "run", noting)
    load_compiled(store, plan_of(store, Settings(), stripes=stripes, sweeps=4), Settings())
    assert called & set(EXCHANGING) == calls


@pytest.mark.long
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("most", [SAMPLED, 1000])
def test_tiles_are_told_as_they_are_read(stored, monkeypatch, kept, most):
    store = stored(GRAPH, 700)
    monkeypatch.setattr(pass_times, "SAMPLED_EDGES", most * store.attributes.tile_edges)
    most = min(most, store.tiles)
    assert store.tiles * 2 // 3 > SAMPLED
    plan = plan_of(store, Settings(), stripes=2, kept=kept)
    read_into, read, told = store.encoded.read_into, [], []

    def reading(tile, out, *, direct=False):
        size = read_into(tile, out, direct=direct)
        read.append(tile)
        return size

    store.encoded.read_into = reading
    measure_rates(store, plan, Settings(), threads=1, progress=lambda *facts: told.append((len(read), facts)))
    total = told[0][1][2]
    assert {(stage, among, unit) for _, (stage, _, among, unit, _) in told} == {("measuring", total, "tiles")}
    # None before it is read, and each by itself.
    assert all(done <= so_far for so_far, (_, done, *_) in told)
    assert sorted({done for _, (_, done, *_) in told}) == list(range(total + 1))
    of_step = {}
    for so_far, (_, done, _, _, step) in told:
        of_step.setdefault(step, []).append((so_far, done))
    # A step is told, and then its tiles; those that pass are read in four rounds at least.
    staying = {"decoded": most, "packed": most, "some": store.tiles // 3}
    passing = {"some": 4 * most, "none": 4 * most}
    tiles = {"tiles that stay": staying.get(kept), "tiles that pass": passing.get(kept)}
    assert list(of_step)[:2] == ["loading", "reading"]
    assert {step: len(of_step[step]) for step in list(of_step)[2:]} == {
        step: 1 + count for step, count in tiles.items() if count
    }
    for step in ("loading", *list(of_step)[2:]):
        (before, begun), *later = of_step[step]
        # No more than the buffers hold is read before it is told.
        assert all(so_far - before <= done - begun + RING_SLOTS for so_far, done in later)


def test_a_graph_without_links_is_measured(stored):
    store = stored(type(GRAPH).of(3, []), 700)
    plan = plan_of(store, Settings())
    timing = plan.timing(measure_rates(store, plan, Settings(), threads=1))
    assert 0 < timing.each < 60


def test_a_plan_is_run_with_or_without_its_forecast(stored):
    store = stored(GRAPH, 700)
    settings = Settings()
    plan = plan_of(store, settings)
    timed = replace(plan, forecast=plan.timing(measure_rates(store, plan, settings, threads=1)))
    one, other = (rank_graph(store, which, settings, threads=1) for which in (plan, timed))
    assert one.ranks.tobytes() == other.ranks.tobytes()


def test_bytes_and_tiles_of_the_sample_are_those_of_the_store(stored):
    store = stored(GRAPH, 700)
    plan = plan_of(store, Settings())
    tiles = plan.stats.tiles
    assert spread(tiles, tiles) == list(range(tiles))
    assert tile_edges(plan.stats, store.tile_rows).sum() == plan.stats.edges
    assert len(set(spread(1000, SAMPLED))) == SAMPLED


def test_bytes_predicted_are_the_bytes_read(stored):
    store = stored(GRAPH, 700)
    settings = Settings(tol=1e-6)
    for kept in ("decoded", "none"):
        plan = plan_of(store, settings, kept=kept)
        done = rank_graph(store, plan, settings, threads=1)
        found = [record.bytes_read for record in done.history]
        assert found[0] == plan.stats.column_bytes
        assert set(found[1:]) == {plan.streamed_bytes}


def test_a_graph_in_memory_is_ranked_to_be_timed(stored):
    store = stored(GRAPH, 700)
    settings = Settings(method="components", reads="float32")
    told = []
    timing, passes = measure_whole(store, settings, 1, lambda *facts: told.append(facts))
    assert passes == rank_whole(store, threads=1).passes
    assert 0 < timing.each < timing.seconds(passes) < 60
    # Once to load, once to be timed.
    assert [facts[:4] for facts in told] == [
        ("measuring", number, None, "passes") for number in range(2 * passes + 1)
    ]


def test_a_damaged_tile_is_found_by_the_probe():
    with Stored(GRAPH, 700) as store:
        flip_bits(next(Path(store.path).rglob("indices/c/5")))
        with pytest.raises(DamagedError, match="c/5"):
            measure_rates(store, plan_of(store, Settings()), Settings(), threads=1)
