"""Ranks of reproducible runs are the same bits for any memory and any number of threads."""

from __future__ import annotations

import itertools

import pytest

from oocpr.api import pagerank
from oocpr.api import plan as plan_of
from oocpr.api.graphs import Graph
from oocpr.api.ranking import check_reproducible
from oocpr.engine.planning import asked_settings
from oocpr.engine.run import rank_graph
from oocpr.errors import DoesNotFitError, UsageError
from oocpr.plan import partition
from oocpr.plan.partition import default_stripes

from .digraphs import random_digraph
from .running import planned_run

GRAPH = random_digraph(20_000, 100_000, seed=7)
SETTINGS = asked_settings("auto", None, damping=0.85, tol=1e-10, stop="certified")


@pytest.fixture
def opened(stored):
    return Graph(stored(GRAPH, 8000))


def ranks_of(opened, memory, *, threads=2, auto=False, reproducible=True):
    settings, plan, store = planned_run(
        opened.store, SETTINGS, auto=auto, memory=memory, reproducible=reproducible
    )
    plan.validate()
    solution = rank_graph(store, plan, settings, path=opened.store.path, threads=threads)
    assert solution.converged
    return solution.ranks.tobytes()


def needs(opened, *, auto):
    """Bytes that a run with ample memory needs, and that it takes with all that it keeps beside."""
    plan = planned_run(opened.store, SETTINGS, auto=auto, memory=2**40)[1]
    return plan.need.total, plan.need.total + plan.cache_bytes


@pytest.mark.long
def test_the_same_bits_for_any_memory_and_threads_of_passes_over_tiles(opened):
    least, most = needs(opened, auto=False)
    assert least < most
    cases = itertools.product((least, (least + most) // 2, most, 2**36), (1, 2))
    assert len({ranks_of(opened, memory, threads=threads) for memory, threads in cases}) == 1
    # With less the plan would be another, and so would the ranks.
    assert ranks_of(opened, least - 1, reproducible=False) != ranks_of(opened, least)
    with pytest.raises(
        DoesNotFitError, match=f"Give {-(-least // 2**20)}MiB or more.*leave reproducible out"
    ):
        ranks_of(opened, least - 1)


def test_a_process_takes_one_stripe_unless_their_number_follows_from_the_graph(opened, monkeypatch):
    monkeypatch.setattr(partition, "EDGES_PER_STRIPE", 20_000)
    asked = [{}, {"reproducible": True}, {"alone": False}, {"stripes": 2}]
    plans = [planned_run(opened.store, SETTINGS, memory=2**40, **how).plan for how in asked]
    by_size = default_stripes(opened.store.edges, opened.store.tiles)
    assert [len(plan.stripes) for plan in plans] == [1, by_size, by_size, 2]
    assert by_size > 2


def test_the_same_bits_for_any_memory_of_components(opened):
    least, _ = needs(opened, auto=True)
    assert len({ranks_of(opened, memory, auto=True) for memory in (least, 2**36)}) == 1
    other = ranks_of(opened, least - 1, auto=True, reproducible=False)
    assert other != ranks_of(opened, least, auto=True)
    with pytest.raises(DoesNotFitError, match="leave reproducible out"):
        ranks_of(opened, least - 1, auto=True)


@pytest.mark.parametrize(("device", "count"), [("cuda", 1), ("cuda:0,cuda:1,cuda:2", 3)])
def test_plans_of_devices_sweep_alike_for_any_memory_that_holds_them(opened, device, count):
    def planned(device_memory, memory="8GiB"):
        return planned_run(
            opened.store, SETTINGS, device=device, device_memory=device_memory, memory=memory,
            reproducible=True,
        )  # fmt: skip

    def how(made, store):
        # Whatever the groups are, stripes have the same rows.
        rows = [int(store.tile_rows[first]) for first, _ in made.stripes]
        inside = {(tiers.pairs, tiers.inside) for tiers in made.devices}
        return made.mixing, made.sweeps, rows, made.partitions, made.proposals, inside

    _, ample, tiled = planned(2**36)
    assert ample.fits
    assert len(ample.devices) == count
    fits = []
    for mebibytes in range(1, 64):
        _, made, store = planned(mebibytes * 2**20, "8GiB")
        fits.append(made.fits)
        assert how(made, store) == how(ample, tiled)
    assert set(fits) == {False, True}
    assert fits == sorted(fits)


def test_calls_take_it(opened):
    runs = [
        pagerank(opened, memory=memory, threads=threads, reproducible=True).to_numpy().tobytes()
        for memory, threads in (("8GiB", 1), ("16GiB", 2), (None, None))
    ]
    assert len(set(runs)) == 1
    assert plan_of(opened, memory="8GiB", reproducible=True).reproducible
    with pytest.raises(DoesNotFitError, match="leave reproducible out"):
        pagerank(opened, memory="1MiB", reproducible=True)


@pytest.mark.parametrize("device", ["auto", "cuda:all"])
def test_devices_that_the_machine_decides_on_are_refused(opened, device):
    with pytest.raises(UsageError, match=r"means another on another machine.*Name the devices"):
        pagerank(opened, device=device, reproducible=True)
    with pytest.raises(UsageError, match="means another on another machine"):
        plan_of(opened, device=device, reproducible=True)


def test_devices_of_workers_are_refused():
    with pytest.raises(UsageError, match="planned by how many there are"):
        check_reproducible("cuda", client=object())
    check_reproducible("cpu", client=object())
