"""Bytes of tiles as plans count them, beside those that tiles have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.planning.run import stats_of
from oocpr.engine.tiles.merged import JoinedStore
from oocpr.engine.tiles.source import tiles_of
from oocpr.plan.merge_size import joined_cuts, joined_facts
from oocpr.plan.tile_bytes import JOINED_SPARE, Encoded, guessed, joined, stored
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
        counted = stored(stats_of(store), store.tile_sizes())
        assert counted is not None
        assert counted.most.tolist() == counted.usual.tolist()
        # And four of a checksum.
        assert (counted.most - read_bytes(store)).tolist() == [4] * store.tiles


def test_weighted_tiles_have_no_more_bytes_than_are_counted(weighted: GraphStore) -> None:
    counted = stored(stats_of(weighted), weighted.tile_sizes())
    assert counted is not None
    over = counted.most - read_bytes(weighted)
    assert over.min() >= 0
    assert over.max() <= 2 * 4096 + 8


@pytest.mark.parametrize("each", [2, 5, 8])
def test_joined_weights_have_no_more_bytes_than_are_counted(weighted: GraphStore, each: int) -> None:
    stats, cuts = stats_of(weighted), joined_cuts(weighted.tiles, TILE_EDGES, each * TILE_EDGES)
    larger, rows = joined_facts(stats, weighted.tile_rows, cuts), weighted.tile_rows[list(cuts)]
    counted = joined(larger, rows, weighted.tile_sizes(), cuts)
    assert counted is not None
    found = np.array(read_bytes(JoinedStore(weighted, TILE_EDGES, cuts)))
    assert (found <= counted.most).all()
    assert found / counted.usual == pytest.approx(1, rel=0.15)


@given(st.integers(0, 2**32 - 1), st.sampled_from([60, 900, 100_000]), st.integers(2, 9))
def test_joined_tiles_have_no_more_bytes_than_are_counted(seed: int, nodes: int, each: int) -> None:
    with Stored(random_digraph(nodes, 40_000, seed=seed), TILE_EDGES) as store:
        stats = stats_of(store)
        cuts = joined_cuts(store.tiles, TILE_EDGES, each * TILE_EDGES)
        larger = joined_facts(stats, store.tile_rows, cuts)
        counted = joined(larger, store.tile_rows[list(cuts)], store.tile_sizes(), cuts)
        assert counted is not None
        found = np.array(read_bytes(JoinedStore(store, TILE_EDGES, cuts)))
    assert (found <= counted.most).all()
    # Without the bytes that any tile is given, too.
    assert (found < JOINED_SPARE * counted.usual).all()
    assert (found > 0.75 * counted.usual).all()


def test_what_is_not_known_is_guessed_from_all(weighted: GraphStore) -> None:
    stats = stats_of(weighted)
    assert stored(stats, None) is None
    assert joined(stats, weighted.tile_rows, None, (0, 1)) is None
    by_guess, known = guessed(stats, weighted.tile_rows), stored(stats, weighted.tile_sizes())
    assert known is not None
    assert (known.most <= by_guess.most).all()
    assert by_guess.usual.sum() == pytest.approx(stats.column_bytes, rel=0.01)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(-5, 3000))
def test_whichever_tiles_are_chosen_fit(sizes: list[int], room: int) -> None:
    encoded = Encoded(np.array(sizes), np.array(sizes))
    fit = encoded.room_for(np.arange(len(sizes)), room)
    largest = sorted(sizes, reverse=True)
    assert sum(largest[:fit]) <= max(0, room)
    assert fit == len(sizes) or sum(largest[: fit + 1]) > room
