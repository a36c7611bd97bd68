"""Joined tiles hold the links of the stored ones, in the same order, in the space that is promised."""

from __future__ import annotations

import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.api.graphs import Graph
from oocpr.engine.planning import asked_settings, stats_of
from oocpr.engine.run import rank_graph
from oocpr.engine.scc.run import load_scc_graph
from oocpr.engine.tiles.merged import MergedStore
from oocpr.engine.tiles.source import split_tile, tiles_of
from oocpr.errors import DamagedError, DoesNotFitError, UsageError
from oocpr.plan.tile_merge import (
    max_merged_bytes,
    merge_bounds,
    merge_memory,
    merged_stats,
    unweighted,
    weight_merge_bytes,
)
from oocpr.store.codec.mantissa_segments import encode_segments
from oocpr.store.codec.tiles import decode_tile, encode_tile
from oocpr.store.direct_io import PAGE, aligned
from oocpr.store.graph import open_store

from .digraphs import digraphs, exact_ranks, fewer, random_digraph
from .running import Stored, planned_run
from .weighted import KINDS, WeightedGraph, weighted_graphs, weights_of

GRAPH = random_digraph(3000, 20_000, seed=4)


def joined(store, edges: int) -> MergedStore:
    tile_edges = store.attributes.tile_edges
    return MergedStore(store, tile_edges, merge_bounds(store.tiles, tile_edges, edges))


@fewer(2)
@given(digraphs(), st.integers(1, 20), st.integers(1, 200))
def test_joined_tiles_are_the_tiles_of_the_same_rows(graph, tile_edges, edges):
    with Stored(graph, tile_edges) as store:
        fewer_tiles = joined(store, edges)
        tiles = len(fewer_tiles.tile_rows) - 1
        into, at = graph.into, 0
        for tile in range(tiles):
            buffer = np.empty(fewer_tiles.encoded.max_bytes, np.uint8)
            columns, lengths = decode_tile(buffer[: fewer_tiles.encoded.read_into(tile, buffer)])
            first, last = fewer_tiles.tile_rows[tile : tile + 2]
            assert len(lengths) == last - first + 1
            assert columns.tolist() == into.indices[at : at + len(columns)].tolist()
            # The next tile goes on with the row after those that the tile owns.
            ends = np.clip(into.indptr[first : last + 2], at, at + len(columns))
            assert lengths[: len(ends) - 1].tolist() == np.diff(ends).tolist()
            at += len(columns)
        assert at == into.nnz


def test_a_graph_is_the_same_from_joined_tiles(stored):
    store = stored(GRAPH, 1000)
    one, other = load_scc_graph(store), load_scc_graph(joined(store, 4000))
    assert all((a == b).all() for a, b in zip(one.schedule, other.schedule, strict=True))
    assert (one.degree == other.degree).all()


@given(st.integers(1, 3000), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_no_tile_takes_more_than_the_most(rows, seed, share):
    random = np.random.default_rng(seed)
    lengths = (random.random(rows) < share) * random.integers(1, 4, rows)
    columns = np.concatenate(
        [np.zeros(0, np.uint32), *(np.sort(random.choice(2**31, n, replace=False)) for n in lengths)]
    ).astype(np.uint32)
    assert len(encode_tile(columns, lengths)) <= max_merged_bytes(len(columns), rows)


@pytest.fixture
def opened(stored):
    return Graph(stored(GRAPH, 1000))


HOW = {"memory": "8GiB"}
DEVICE = {"device": "cuda", "device_memory": "8GiB"}
SETTINGS = asked_settings("mixed", None, damping=0.85, tol=1e-10, stop="certified")


def test_a_device_gets_joined_tiles_in_one_stripe(opened):
    _, plan, store = planned_run(opened.store, SETTINGS, **DEVICE, **HOW)
    assert (plan.stats.tiles, plan.stripes, len(store.tile_rows) - 1) == (1, ((0, 1),), 1)
    run = rank_graph(store, plan, SETTINGS, path=opened.store.path)
    assert run.converged
    assert np.abs(run.ranks - exact_ranks(GRAPH, 0.85)).sum() <= run.error_bound <= 1e-10


def test_tiles_that_do_not_stay_are_not_joined(opened):
    large = planned_run(opened.store, SETTINGS, **DEVICE, **HOW)[1]
    stats = stats_of(opened.store)
    rows = np.diff(opened.store.tile_rows[[0, stats.tiles]])
    assert merge_memory(stats, large.stats, rows, 2, 1).host > 0
    # With less than joining takes, the stored tiles still fit.
    tight = HOW | {"memory": large.need.total - 1}
    _, plan, store = planned_run(opened.store, SETTINGS, **DEVICE, **tight)
    assert plan.fits
    assert store is opened.store
    assert len(plan.stripes) == 1


def test_a_device_too_small_for_one_tile_gets_smaller_ones(opened):
    most = planned_run(opened.store, SETTINGS, **DEVICE, **HOW)[1].device
    given = most.need.total + most.resident_bytes - 1
    _, plan, store = planned_run(opened.store, SETTINGS, **DEVICE | {"device_memory": given}, **HOW)
    assert plan.stats.tiles == opened.store.tiles
    assert plan.device.need.total + plan.device.resident_bytes <= given
    assert len(plan.stripes) == 1
    assert store is opened.store


SEVERAL = {"device": "cuda:0,cuda:1,cuda:2", "device_memory": "8GiB"}


def test_several_devices_get_a_stripe_of_joined_tiles_each(opened):
    _, plan, store = planned_run(opened.store, SETTINGS, **SEVERAL, **HOW)
    assert plan.stripes == ((0, 1), (1, 2), (2, 3))
    assert len(plan.devices) == len(store.tile_rows) - 1 == plan.stats.tiles == 3
    tiles = opened.store.tiles
    first_rows = [int(opened.store.tile_rows[tiles * k // 3]) for k in range(3)]
    assert store.tile_rows[:3].tolist() == first_rows
    run = rank_graph(store, plan, SETTINGS, path=opened.store.path)
    assert np.abs(run.ranks - exact_ranks(GRAPH, 0.85)).sum() <= run.error_bound <= 1e-10


def test_several_devices_with_little_memory_take_the_stored_tiles(opened):
    most = planned_run(opened.store, SETTINGS, **SEVERAL, **HOW)[1].devices
    given = min(tiers.need.total for tiers in most)
    _, plan, store = planned_run(opened.store, SETTINGS, **SEVERAL | {"device_memory": given}, **HOW)
    assert store is opened.store
    assert plan.stripes[-1][1] == opened.store.tiles
    assert len(plan.stripes) == 3


def test_no_more_devices_than_tiles_are_planned_with(stored):
    small = Graph(stored(GRAPH, 10**6))
    assert small.store.tiles == 1
    assert len(planned_run(small.store, SETTINGS, **SEVERAL, **HOW)[1].devices) == 1


def test_several_devices_do_not_go_with_other_stripes_or_a_cluster(opened):
    with pytest.raises(UsageError, match=r"2 stripes were asked for on 3 devices\. Leave the stripes out"):
        planned_run(opened.store, SETTINGS, **SEVERAL, **HOW | {"stripes": 2})
    with pytest.raises(UsageError, match=r"of one process and a Dask client was given\. Use device cuda"):
        planned_run(opened.store, SETTINGS, alone=False, **SEVERAL, **HOW)


def test_stripes_that_share_a_device_share_its_memory(opened):
    def planned(device_memory, **how):
        how = {"device": "cuda", "stripes": 4} | how
        return planned_run(opened.store, SETTINGS, device_memory=device_memory, **HOW | how)

    small = planned("1KiB").plan
    assert not small.fits
    with pytest.raises(DoesNotFitError, match=r"was given 1 KiB\. Give \d+MiB or more of it, leave str"):
        small.validate()
    settings, ample, store = planned("8GiB")
    assert store is opened.store
    assert [(tiers.device, tiers.sharing) for tiers in ample.devices] == [(0, 4)] * 4
    assert sum(tiers.on_device for tiers in ample.devices) == store.tiles
    run = rank_graph(store, ample, settings, path=store.path)
    assert np.abs(run.ranks - exact_ranks(GRAPH, 0.85)).sum() <= run.error_bound <= 1e-10
    of_workers = planned(None, device="cuda", alone=False, free=[2**30, 2**31]).plan
    assert [(tiers.device, tiers.memory) for tiers in of_workers.devices] == [
        (0, 2**29), (0, 2**29), (1, 2**30), (1, 2**30),
    ]  # fmt: skip


@pytest.mark.parametrize("alone", [True, False])
def test_processors_get_the_stored_tiles(opened, alone):
    _, plan, store = planned_run(opened.store, SETTINGS, device="cpu", alone=alone, **HOW)
    assert plan.stats.tiles == opened.store.tiles > 10
    assert store is opened.store


def test_a_damaged_tile_is_found(opened, tmp_path):
    copy = tmp_path / "graph.zarr"
    shutil.copytree(opened.store.path, copy)
    chunk = next(file for file in sorted(copy.rglob("indices/c/*")) if file.is_file())
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    chunk.write_bytes(damaged)
    tiles = joined(open_store(copy), 10**6).encoded
    with pytest.raises(DamagedError):
        tiles.read_into(0, np.empty(tiles.max_bytes, np.uint8))


def read_all(tiles, count: int, *, direct: bool = False) -> list[bytes]:
    buffer = aligned(tiles.max_bytes)
    return [buffer[: tiles.read_into(tile, buffer, direct=direct)].tobytes() for tile in range(count)]


@fewer(2)
@given(weighted_graphs(), st.integers(1, 20), st.integers(1, 200))
def test_joined_weights_are_those_of_all_their_links(graph, tile_edges, edges):
    with TemporaryDirectory() as folder:
        store = graph.write(Path(folder) / "graph.zarr", tile_edges)
        each = max(1, edges // tile_edges) * tile_edges
        parts = [graph.weight[at : at + each] for at in range(0, max(1, len(graph.weight)), each)]
        found = read_all(joined(store, edges).weights, len(parts))
    assert found == [encode_segments(part).tobytes() for part in parts]


def weighted(kind: str) -> WeightedGraph:
    bare = WeightedGraph.of(GRAPH)
    return replace(bare, weight=weights_of(np.random.default_rng(6), len(bare.src), kind))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_joined_weights_lie_behind_joined_columns_within_what_is_promised(tmp_path, kind, direct):
    graph = weighted(kind)
    # Weights of one tile need parts that those of the others do not.
    graph.weight[4500:4503] = 0.1
    store = graph.write(tmp_path / "graph.zarr", 1000)
    if direct and not store.takes_direct_reads():
        pytest.skip("the file system of temporary files takes no direct reads")
    stats, larger = stats_of(store), joined(store, 4000)
    planned = merged_stats(stats, store.tile_rows, larger.cuts)
    tiles = tiles_of(larger)
    assert tiles.max_bytes == planned.max_tile_bytes
    assert larger.encoded.max_bytes <= unweighted(planned).max_tile_bytes < larger.encoded.max_bytes + PAGE
    encoded = [np.frombuffer(tile, np.uint8) for tile in read_all(tiles, planned.tiles, direct=direct)]
    columns, weights = zip(*map(split_tile, encoded), strict=True)
    assert np.concatenate([decode_tile(tile)[0] for tile in columns]).tolist() == graph.src.tolist()
    cuts = range(0, len(graph.weight), 4000)
    assert [tile.tobytes() for tile in weights] == [
        encode_segments(graph.weight[at : at + 4000]).tobytes() for at in cuts
    ]
    # Predicted are as many bytes as come, with what stands between the two.
    come = sum(map(len, encoded))
    assert come <= planned.column_bytes * 1.25 + planned.tiles * 2 * PAGE
    assert sum(map(len, weights)) <= planned.weight_bytes + 16 * 8 * planned.tiles


def test_weights_that_are_alike_are_predicted_to_the_byte(tmp_path):
    graph = weighted("reals")
    store = graph.write(tmp_path / "graph.zarr", 1024)
    larger = joined(store, 4096)
    planned = merged_stats(stats_of(store), store.tile_rows, larger.cuts)
    come = sum(map(len, read_all(larger.weights, planned.tiles)))
    # A header of 16 bytes a stored tile is left out.
    assert 0 <= planned.weight_bytes - come <= 32 * store.tiles


def test_weights_are_joined_in_the_memory_that_is_planned(tmp_path):
    store = weighted("reals").write(tmp_path / "graph.zarr", 1000)
    larger, stats = joined(store, 10_000), stats_of(store)
    planned = weight_merge_bytes(stats, merged_stats(stats, store.tile_rows, larger.cuts))
    buffer = np.empty(larger.weights.max_bytes, np.uint8)
    larger.weights.read_into(0, buffer)
    tracemalloc.start()
    try:
        larger.weights.read_into(0, buffer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # What Python's own objects take is none of the plan's.
    assert 0.9 * planned < peak < planned + PAGE + 8000


def test_threads_join_weights_at_once(tmp_path):
    store = weighted("reals").write(tmp_path / "graph.zarr", 100)
    larger = joined(store, 400)
    count = len(larger.cuts) - 1
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: read_all(larger.weights, count), range(8)))
    assert all(one == read_all(larger.weights, count) for one in found)


@pytest.mark.long
@pytest.mark.parametrize(("how", "stripes"), [(DEVICE, 1), (SEVERAL, 3)])
def test_ranks_of_joined_weights_are_exact(tmp_path, how, stripes):
    graph = weighted("counts")
    opened = Graph(graph.write(tmp_path / "graph.zarr", 1000))
    _, plan, store = planned_run(opened.store, SETTINGS, **how, **HOW)
    assert (len(plan.stripes), plan.stats.tiles) == (stripes, stripes)
    here = MergedStore(opened.store, 1000, store.cuts)
    run = rank_graph(here, plan, SETTINGS, path=opened.store.path)
    assert np.abs(run.ranks - graph.exact_ranks(0.85)).sum() <= run.error_bound <= 1e-10


def test_damaged_weights_are_found_when_they_are_joined(tmp_path):
    path = tmp_path / "graph.zarr"
    weighted("reals").write(path, 1000)
    chunk = path / "in_edges/data/c/3"
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    chunk.write_bytes(damaged)
    weights = joined(open_store(path), 10**6).weights
    with pytest.raises(DamagedError, match="in_edges/data/c/3"):
        weights.read_into(0, np.empty(weights.max_bytes, np.uint8))
