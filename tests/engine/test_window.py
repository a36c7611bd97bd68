"""Tiles that are swept together: which, how often, and what comes of it if they are swept very often."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.cpu.scratch import Scratch
from oocpr.engine.cpu.window import SweepWindow
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import Job
from oocpr.plan.partition import section_tiles
from oocpr.plan.request import SWEPT_TILES

from .digraphs import Digraph
from .running import passes, plan_of

DAMPING = 0.85
ROWS, DEGREE = 10, 8


def room() -> list[Scratch]:
    return [Scratch() for _ in range(SWEPT_TILES)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 100), st.integers(2, 30))
def test_each_tile_is_swept_as_often_as_asked_and_then_proposes(owned, begin, sweeps):
    bounds = begin + np.cumsum([0, *owned])
    window = SweepWindow(bounds, sweeps)
    firsts = [int(bounds[tile]) for tile, rows in enumerate(owned) if rows]
    swept, proposed = dict.fromkeys(firsts, 0), []

    def step(later):
        turns, ends = window.turns(later)
        for tile, count in zip(window.tiles, turns, strict=True):
            swept[tile.place.first] += count
        if ends:
            proposed.append(window.tiles.pop(0).place.first)
        assert len(window.tiles) < SWEPT_TILES

    for first, rows in zip(bounds, owned, strict=False):
        if rows:
            window.make_room(room)
            place, _ = window.come(int(first), rows)
            window.tiles.append(SimpleNamespace(place=place))
            step(0)
    if window.tiles:
        for later in range(1, SWEPT_TILES):
            step(later)
    assert proposed == firsts
    assert set(swept.values()) <= {sweeps - 1}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=15), st.integers(0, 100))
def test_a_tile_reads_what_those_beside_it_send_and_zero_of_others(owned, begin):
    bounds = begin + np.cumsum([0, *owned])
    window = SweepWindow(bounds, sweeps=2)
    sent = {}
    for first, rows in zip(bounds.tolist(), owned, strict=False):
        window.make_room(room)
        place, _ = window.come(first, rows)
        window.tiles.append(SimpleNamespace(place=place))
        for row in range(first, first + rows):
            window.sends[(place.ring + row - first) % place.ring_rows] = sent[row] = row + 1
        for tile in window.tiles:
            near = tile.place
            for row in range(near.near, near.near + near.near_rows):
                at = (near.near_ring + row - near.near) % near.ring_rows
                assert window.sends[at] == sent.get(row, 0)
        if window.turns()[1]:
            window.tiles.pop(0)


def regular_digraph(tiles: int, seed: int) -> Digraph:
    """Each node has DEGREE edges that enter it, from anywhere, and as many that leave it."""
    rng = np.random.default_rng(seed)
    nodes = tiles * ROWS
    steps = rng.choice(nodes, DEGREE, replace=False)
    sources = rng.permutation(nodes)[(rng.permutation(nodes)[:, None] + steps) % nodes]
    return Digraph.of(nodes, [(int(s), row) for row in range(nodes) for s in sources[row]])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kept", ["decoded", "none"])
@pytest.mark.parametrize("tiles", [1, 3, 6])
def test_tiles_that_are_swept_very_often_are_solved_three_at_a_time(stored, backend, kept, tiles):
    graph = regular_digraph(tiles, seed=tiles)
    store = stored(graph, ROWS * DEGREE)
    assert store.tile_rows.tolist() == list(range(0, ROWS * tiles + 1, ROWS))
    settings = Settings(reads="float64", mixing=0, sweeps=200)
    teleport = np.arange(1.0, store.nodes + 1)
    teleport /= teleport.sum()
    plan = plan_of(store, settings, sweeps=200, kept=kept, personalized=True)
    one, two, three = passes(
        Job("", plan=plan, settings=settings, backend=backend, teleport=teleport), store, 3
    )
    # Every node has as many edges as any other.
    links = np.zeros((store.nodes, store.nodes))
    links[graph.dst, graph.src] = DAMPING / DEGREE
    residual = one.after - one.p
    proposal = np.zeros(store.nodes)
    for tile in range(tiles):
        open_rows = slice(ROWS * tile, ROWS * (tile + 3))
        known = residual[open_rows] + links[open_rows, : ROWS * tile] @ proposal[: ROWS * tile]
        inside = links[open_rows, open_rows]
        solved = np.linalg.solve(np.eye(len(inside)) - inside, known)
        proposal[ROWS * tile : ROWS * (tile + 1)] = solved[:ROWS]
    assert np.abs(two.pushed - proposal).sum() <= 1e-5 * np.abs(proposal).sum()
    if tiles <= SWEPT_TILES:
        # Nothing is left over but what float32 rounds.
        assert two.residual <= 1e-6 * one.residual
    else:
        assert three.residual < two.residual


def proposals_of(residual, links, bounds, plan):
    """What rows propose if open tiles of a stripe are solved exactly whenever they are swept."""
    stripes, values, known = plan.stripes, np.zeros(len(residual)), np.zeros(len(residual))
    opened: list[list[int]] = [[] for _ in stripes]

    def rows(tiles):
        return np.concatenate([np.arange(bounds[tile], bounds[tile + 1]) for tile in tiles])

    def solve(stripe):
        first, last = stripes[stripe]
        own = np.arange(bounds[first], bounds[last])
        now = rows(opened[stripe])
        closed = np.setdiff1d(np.arange(own[0], now[0]), now)
        outside = np.setdiff1d(np.arange(len(residual)), own)
        given = residual[now] + links[np.ix_(now, closed)] @ values[closed]
        given += links[np.ix_(now, outside)] @ known[outside]
        values[now] = np.linalg.solve(np.eye(len(now)) - links[np.ix_(now, now)], given)

    for section in range(plan.sections):
        for stripe, bounds_of in enumerate(stripes):
            for tile in section_tiles(bounds_of, plan.sections, section):
                opened[stripe].append(tile)
                solve(stripe)
                if len(opened[stripe]) == SWEPT_TILES:
                    opened[stripe].pop(0)
        known = values.copy()
    for stripe in range(len(stripes)):
        solve(stripe)
    return values


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kept", ["decoded", "none"])
@pytest.mark.parametrize(("tiles", "stripes"), [(2, 2), (5, 2), (9, 2), (7, 3)])
def test_open_tiles_read_what_other_stripes_propose(stored, backend, kept, tiles, stripes):
    graph = regular_digraph(tiles, seed=tiles)
    store = stored(graph, ROWS * DEGREE)
    settings = Settings(reads="float64", mixing=0, sweeps=200)
    teleport = np.arange(1.0, store.nodes + 1)
    teleport /= teleport.sum()
    plan = plan_of(store, settings, sweeps=200, kept=kept, personalized=True, stripes=stripes)
    assert plan.exchanges == plan.sections
    job = Job("", plan=plan, settings=settings, backend=backend, teleport=teleport)
    one, two = passes(job, store, 2)
    links = np.zeros((store.nodes, store.nodes))
    links[graph.dst, graph.src] = DAMPING / DEGREE
    proposal = proposals_of(one.after - one.p, links, store.tile_rows, plan)
    assert np.abs(two.pushed - proposal).sum() <= 1e-5 * np.abs(proposal).sum()
