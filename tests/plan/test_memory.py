"""Bytes that runs and their tiles take as plans count them, by pencil and beside those that tiles have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.planning import stats_of
from oocpr.engine.tiles.merged import MergedStore
from oocpr.engine.tiles.source import tiles_of
from oocpr.plan.memory import (
    MERGE_SLACK,
    SHARED,
    SLICE_PADDING,
    WRITING,
    EncodedSizes,
    decoded_bytes,
    guessed_sizes,
    merged_sizes,
    run_need,
    scc_need,
    stored_sizes,
    typical_bytes,
    writing_bytes,
)
from oocpr.plan.partition import GraphStats
from oocpr.plan.plan import PlanRequest
from oocpr.plan.tile_merge import merge_bounds, merged_stats
from oocpr.store.direct_io import aligned

from ..engine.digraphs import random_digraph
from ..engine.running import Stored
from ..engine.weighted import WeightedGraph, weights_of

if TYPE_CHECKING:
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.store.graph import GraphStore

GRAPH = GraphStats(
    nodes=1000, edges=6400, tiles=100, tile_edges=64, column_bytes=10_000, max_tile_bytes=100,
    max_tile_rows=9, local_share=0.5,
)  # fmt: skip
TILE_EDGES = 4096


def asked(**how: Any) -> PlanRequest:
    return PlanRequest(**{"method": "mixed", "reads": "bits16", "memory": 0} | how)


def test_the_default_method_by_pencil():
    need = run_need(GRAPH, asked(base=5), mixing=3, sweeps=2, ring_slots=4)
    assert need.base == 5
    assert need.vectors == 1000 * (8 + 8 + 4 + 4)
    assert need.history == 1000 * 3 * (4 + 4)
    assert need.reads == 1000 * 3 * 2
    assert need.scratch == 64 * 12 + 10 * (20 + 12 + 40) + SLICE_PADDING
    assert need.ring == 4 * 100
    assert need.total == 5 + 24_000 + 24_000 + 6_000 + need.scratch + 400 + SHARED


def test_plain_residual_by_pencil():
    need = run_need(GRAPH, asked(reads="bits8", personalized=True), mixing=0, sweeps=1, ring_slots=4)
    assert need.vectors == 1000 * (8 + 8 + 4 + 8)
    assert need.history == 0
    assert need.reads == 1000 * 2
    assert need.scratch == 64 * 4 + 10 * (8 + 12)


def test_rows_without_edges_take_their_sums_only():
    need = run_need(replace(GRAPH, max_tile_rows=999), asked(), mixing=0, sweeps=1, ring_slots=4)
    assert need.scratch == 64 * 4 + 1000 * 8 + 64 * 12


@pytest.mark.parametrize(("reads", "size"), [("float64", 8), ("float32", 4), ("bits16", 2), ("bits8", 1)])
def test_narrow_reads_take_what_their_name_says(reads, size):
    need = run_need(GRAPH, asked(reads=reads), mixing=0, sweeps=2, ring_slots=4)
    assert need.reads == 1000 * 3 * size


@given(st.integers(0, 10**10), st.integers(0, 10**12), st.integers(1, 10**6), st.booleans())
def test_decoded_tiles_hold_each_column(nodes, edges, tiles, inside):
    stats = replace(GRAPH, nodes=nodes, edges=edges, tiles=tiles)
    assert decoded_bytes(stats, inside) >= 4 * edges + 8 * nodes
    assert decoded_bytes(stats, False) <= decoded_bytes(stats, True)


def test_other_needs_by_pencil():
    need = scc_need(replace(GRAPH, edges=10_000), asked())
    assert (need.vectors, need.reads, need.scratch - SLICE_PADDING) == (20_000, 4000, 312_000)
    stats = replace(GRAPH, nodes=10, edges=100, tiles=1)
    assert [decoded_bytes(stats, swept) - SLICE_PADDING for swept in (True, False)] == [1520, 720]
    assert [writing_bytes(base=0, nodes=10, ordered=of) - WRITING for of in (False, True)] == [80, 280]


def test_what_a_run_should_hold_by_number():
    stats = GraphStats(10**6, 10**7, 10, 10**6, 2 * 10**7, 2 * 10**6, 10**5, 0.1)
    need = run_need(stats, asked(base=10**8), mixing=5, sweeps=2, ring_slots=4)
    held = typical_bytes(need, stats, cached_tiles=0, decoded=False, sweeps=2)
    assert held == 198_388_680


def read_bytes(store: RankedStore) -> list[int]:
    """Bytes that each tile has as it is read."""
    tiles = tiles_of(store)
    buffer = aligned(tiles.max_bytes)
    return [tiles.read_into(tile, buffer) for tile in range(len(store.tile_rows) - 1)]


@pytest.fixture
def weighted(tmp_path: Path) -> GraphStore:
    bare = WeightedGraph.of(random_digraph(900, 30_000, seed=2))
    weight = weights_of(np.random.default_rng(6), len(bare.src), "reals")
    return WeightedGraph(bare.nodes, bare.src, bare.dst, weight).write(tmp_path / "g.zarr", TILE_EDGES)


def test_stored_tiles_have_the_bytes_that_are_counted() -> None:
    with Stored(random_digraph(900, 30_000, seed=2), TILE_EDGES) as store:
        counted = stored_sizes(stats_of(store), store.tile_sizes())
        assert counted is not None
        assert counted.limits.tolist() == counted.typical.tolist()
        # And four of a checksum.
        assert (counted.limits - read_bytes(store)).tolist() == [4] * store.tiles


def test_weighted_tiles_have_no_more_bytes_than_are_counted(weighted: GraphStore) -> None:
    counted = stored_sizes(stats_of(weighted), weighted.tile_sizes())
    assert counted is not None
    over = counted.limits - read_bytes(weighted)
    assert over.min() >= 0
    assert over.max() <= 2 * 4096 + 8


@pytest.mark.parametrize("each", [2, 5, 8])
def test_joined_weights_have_no_more_bytes_than_are_counted(weighted: GraphStore, each: int) -> None:
    stats, cuts = stats_of(weighted), merge_bounds(weighted.tiles, TILE_EDGES, each * TILE_EDGES)
    larger, rows = merged_stats(stats, weighted.tile_rows, cuts), weighted.tile_rows[list(cuts)]
    counted = merged_sizes(larger, rows, weighted.tile_sizes(), cuts)
    assert counted is not None
    found = np.array(read_bytes(MergedStore(weighted, TILE_EDGES, cuts)))
    assert (found <= counted.limits).all()
    assert found / counted.typical == pytest.approx(1, rel=0.15)


@pytest.mark.long
@given(st.integers(0, 2**32 - 1), st.sampled_from([60, 900, 100_000]), st.integers(2, 9))
def test_joined_tiles_have_no_more_bytes_than_are_counted(seed: int, nodes: int, each: int) -> None:
    with Stored(random_digraph(nodes, 40_000, seed=seed), TILE_EDGES) as store:
        stats = stats_of(store)
        cuts = merge_bounds(store.tiles, TILE_EDGES, each * TILE_EDGES)
        larger = merged_stats(stats, store.tile_rows, cuts)
        counted = merged_sizes(larger, store.tile_rows[list(cuts)], store.tile_sizes(), cuts)
        assert counted is not None
        found = np.array(read_bytes(MergedStore(store, TILE_EDGES, cuts)))
    assert (found <= counted.limits).all()
    # Without the bytes that any tile is given, too.
    assert (found < MERGE_SLACK * counted.typical).all()
    assert (found > 0.75 * counted.typical).all()


def test_what_is_not_known_is_guessed_from_all(weighted: GraphStore) -> None:
    stats = stats_of(weighted)
    assert stored_sizes(stats, None) is None
    assert merged_sizes(stats, weighted.tile_rows, None, (0, 1)) is None
    by_guess, known = (
        guessed_sizes(stats, weighted.tile_rows),
        stored_sizes(stats, weighted.tile_sizes()),
    )
    assert known is not None
    assert (known.limits <= by_guess.limits).all()
    assert by_guess.typical.sum() == pytest.approx(stats.column_bytes, rel=0.01)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(-5, 3000))
def test_whichever_tiles_are_chosen_fit(sizes: list[int], room: int) -> None:
    encoded = EncodedSizes(np.array(sizes), np.array(sizes))
    fit = encoded.room_for(np.arange(len(sizes)), room)
    largest = sorted(sizes, reverse=True)
    assert sum(largest[:fit]) <= max(0, room)
    assert fit == len(sizes) or sum(largest[: fit + 1]) > room
