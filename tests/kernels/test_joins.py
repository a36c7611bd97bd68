"""Tiles joined on a device, against those that the processor joins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.api.choices import stats_of
from oocpr.engine.cuda.arena import Slab
from oocpr.engine.cuda.merge import DeviceJoins
from oocpr.engine.tiles.host_merge import HostJoins
from oocpr.engine.tiles.merged import JoinedStore, Joins
from oocpr.errors import DamagedError
from oocpr.plan.merge_memory import device_joining
from oocpr.plan.merge_size import joined_cuts, joined_facts

from ..engine.digraphs import random_digraph
from ..engine.running import Stored
from ..engine.weighted import WeightedGraph

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import DTypeLike

    from oocpr.engine.cuda.device import Device
    from oocpr.store.graph import GraphStore


def on(device: Device, store: GraphStore, edges: int) -> DeviceJoins:
    stats = stats_of(store)
    cuts = joined_cuts(store.tiles, store.attributes.tile_edges, edges)
    return DeviceJoins(
        lambda: device,
        store.encoded,
        nodes=store.nodes,
        edges=store.edges,
        tile_edges=store.attributes.tile_edges,
        segments=int(np.diff(store.tile_rows).max()) + 1,
        slab_bytes=device_joining(stats, joined_facts(stats, store.tile_rows, cuts)).slab,
    )


def on_host(store: GraphStore) -> HostJoins:
    return HostJoins(store.encoded, store.edges, store.attributes.tile_edges)


@pytest.fixture(autouse=True)
def nothing_beyond_the_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds the plan to its word: what it counts for joining a tile is enough."""
    empty = Slab.empty

    def within(slab: Slab, shape: int | tuple[int, ...], dtype: DTypeLike) -> Any:
        array, memory = empty(slab, shape, dtype), slab._memory
        if isinstance(array, np.ndarray) and array.size:
            assert np.shares_memory(array, memory)
        return array

    monkeypatch.setattr(Slab, "empty", within)


def joined_bytes(store: GraphStore, joins: Joins, edges: int) -> list[bytes]:
    tile_edges = store.attributes.tile_edges
    cuts = joined_cuts(store.tiles, tile_edges, edges)
    tiles = JoinedStore(store, tile_edges, cuts, joins).encoded
    buffer = np.empty(tiles.max_bytes, np.uint8)
    return [buffer[: tiles.read_into(tile, buffer)].tobytes() for tile in range(len(cuts) - 1)]


@settings(max_examples=4)
@given(seed=st.integers(0, 100), tile_edges=st.sampled_from([1, 30, 700, 1024]), edges=st.integers(1, 3000))
def test_the_bytes_are_those_of_the_processor(device: Device, seed: int, tile_edges: int, edges: int) -> None:
    graph = random_digraph(60, 30 * tile_edges % 1900 + 20, seed=seed)
    with Stored(graph, tile_edges) as store:
        expected = joined_bytes(store, on_host(store), edges)
        assert joined_bytes(store, on(device, store, edges), edges) == expected


def test_tiles_of_many_rows_without_links(device: Device) -> None:
    graph = random_digraph(9000, 3000, seed=3)
    with Stored(graph, 500) as store:
        assert store.tiles > 4
        expected = joined_bytes(store, on_host(store), 2100)
        assert joined_bytes(store, on(device, store, 2100), 2100) == expected


def test_columns_of_weighted_graphs_are_joined_as_those_of_others(device: Device, tmp_path: Path) -> None:
    graph = random_digraph(60, 1500, seed=5)
    bare, weighted = (WeightedGraph.of(graph, weight) for weight in (1.0, 0.1))
    store = weighted.write(tmp_path / "weighted", 100)
    expected = joined_bytes(store, on_host(store), 400)
    assert joined_bytes(store, on(device, store, 400), 400) == expected
    other = bare.write(tmp_path / "bare", 100)
    assert joined_bytes(other, on(device, other, 400), 400) == expected


def test_a_damaged_tile_is_found_and_the_next_ones_are_joined(device: Device) -> None:
    with Stored(random_digraph(300, 6000, seed=8), 250) as store:
        read_into = store.encoded.read_into
        damaged = {5}

        def read(tile: int, out: np.ndarray, *, direct: bool = False) -> int:
            size = read_into(tile, out, direct=direct)
            if tile in damaged:
                # A column that is no node, in the directory of the gaps.
                out[size // 2 : size] = 0xFF
            return size

        store.encoded.read_into = read  # type: ignore[method-assign]
        joins = on(device, store, 2000)
        with pytest.raises(DamagedError):
            joined_bytes(store, joins, 2000)
        damaged.clear()
        assert joined_bytes(store, joins, 2000) == joined_bytes(store, on_host(store), 2000)


def test_columns_that_are_no_nodes_are_found(device: Device) -> None:
    with Stored(random_digraph(300, 6000, seed=8), 250) as store:
        joins = on(device, store, 2000)
        joins._nodes = 200
        with pytest.raises(DamagedError, match="no node"):
            joined_bytes(store, joins, 2000)
