"""Bytes of tiles as plans count them, beside those that tiles have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.planning import stats_of
from oocpr.engine.tiles.merged import JoinedStore
from oocpr.engine.tiles.source import tiles_of
from oocpr.plan.memory import MERGE_SLACK, EncodedSizes, guessed_sizes, merged_sizes, stored_sizes
from oocpr.plan.tile_merge import merge_bounds, merged_stats
from oocpr.store.direct_io import aligned

from ..engine.digraphs import random_digraph
from ..engine.running import Stored
from ..engine.weighted import WeightedGraph, weights_of

if TYPE_CHECKING:
    from pathlib import Path

    from oocpr.engine.tiles.source import RankedStore
    from oocpr.store.graph import GraphStore

TILE_EDGES = 4096


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
    found = np.array(read_bytes(JoinedStore(weighted, TILE_EDGES, cuts)))
    assert (found <= counted.limits).all()
    assert found / counted.typical == pytest.approx(1, rel=0.15)


@given(st.integers(0, 2**32 - 1), st.sampled_from([60, 900, 100_000]), st.integers(2, 9))
def test_joined_tiles_have_no_more_bytes_than_are_counted(seed: int, nodes: int, each: int) -> None:
    with Stored(random_digraph(nodes, 40_000, seed=seed), TILE_EDGES) as store:
        stats = stats_of(store)
        cuts = merge_bounds(store.tiles, TILE_EDGES, each * TILE_EDGES)
        larger = merged_stats(stats, store.tile_rows, cuts)
        counted = merged_sizes(larger, store.tile_rows[list(cuts)], store.tile_sizes(), cuts)
        assert counted is not None
        found = np.array(read_bytes(JoinedStore(store, TILE_EDGES, cuts)))
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
