"""What is measured before a run: rates of what the run will do, and nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from oocpr.engine.exchange import _exchanges
from oocpr.engine.picked import SAMPLED, edges_of, spread
from oocpr.engine.probe import measure_rates, measure_whole
from oocpr.engine.run import solve
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError

from .digraphs import random_digraph
from .running import KEPT, Stored, plan_of, rank_whole

GRAPH = random_digraph(2000, 12_000, seed=12)


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("method", ["mixed", "residual"])
def test_tiles_that_stay_and_tiles_that_pass_are_measured_where_there_are_any(stored, kept, method):
    store = stored(GRAPH, 700)
    settings = Settings(method=method)
    plan = plan_of(store, settings, stripes=2, kept=kept)
    rates = measure_rates(store, plan, settings, threads=1)
    assert math.isinf(rates.kept) == (kept == "none")
    assert math.isinf(rates.passing) == (kept in ("decoded", "packed"))
    timing = plan.timed(rates).forecast
    for seconds in (timing.first, timing.each, timing.ends):
        # A minute for 12,000 edges would be none of a computer.
        assert 0 < seconds < 60
    assert rates.loading >= 0
    assert not _exchanges


def test_a_graph_without_links_is_measured(stored):
    store = stored(type(GRAPH).of(3, []), 700)
    plan = plan_of(store, Settings())
    timing = plan.timed(measure_rates(store, plan, Settings(), threads=1)).forecast
    assert 0 < timing.each < 60


def test_a_plan_is_run_with_or_without_its_forecast(stored):
    store = stored(GRAPH, 700)
    settings = Settings()
    plan = plan_of(store, settings)
    timed = plan.timed(measure_rates(store, plan, settings, threads=1))
    one, other = (solve(store, which, settings, threads=1) for which in (plan, timed))
    assert one.ranks.tobytes() == other.ranks.tobytes()


def test_bytes_and_tiles_of_the_sample_are_those_of_the_store(stored):
    store = stored(GRAPH, 700)
    plan = plan_of(store, Settings())
    tiles = plan.facts.tiles
    assert spread(tiles, tiles) == list(range(tiles))
    assert sum(edges_of(plan.facts, tile) for tile in range(tiles)) == plan.facts.edges
    assert len(set(spread(1000, SAMPLED))) == SAMPLED


def test_bytes_predicted_are_the_bytes_read(stored):
    store = stored(GRAPH, 700)
    settings = Settings(tol=1e-6)
    for kept in ("decoded", "none"):
        plan = plan_of(store, settings, kept=kept)
        done = solve(store, plan, settings, threads=1)
        found = [record.bytes_read for record in done.history]
        assert found[0] == plan.facts.column_bytes
        assert set(found[1:]) == {plan.streamed_bytes}


def test_a_graph_in_memory_is_ranked_to_be_timed(stored):
    store = stored(GRAPH, 700)
    settings = Settings(method="components", reads="float32")
    timing, passes = measure_whole(store, settings, 1)
    assert passes == rank_whole(store, threads=1).passes
    assert 0 < timing.each < timing.seconds(passes) < 60


def test_a_damaged_tile_is_found_by_the_probe():
    with Stored(GRAPH, 700) as store:
        file = next(file for file in Path(store.path).rglob("indices/c/5"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises(DamagedError, match="c/5"):
            measure_rates(store, plan_of(store, Settings()), Settings(), threads=1)
