"""Bytes that runs and their tiles take as plans count them, by pencil and beside those that tiles have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.planning import stats_of
from oocpr.engine.tiles.source import tiles_of
from oocpr.plan.memory import (
    BLOCK_WIDTHS,
    SHARED,
    SLICE_PADDING,
    WRITING,
    block_need,
    block_shape,
    decoded_bytes,
    run_need,
    scc_need,
    typical_bytes,
    weighted_tile_bytes,
    writing_bytes,
)
from oocpr.plan.request import GraphStats, PlanRequest
from oocpr.plan.tile_groups import layout_of
from oocpr.store.direct_io import aligned
from oocpr.store.format import CHECKSUM_KEY, DATA, INDICES
from oocpr.store.graph import open_store

from ..engine.digraphs import random_digraph
from ..engine.running import Stored
from ..engine.weighted import weigh

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
    # Of a tile, of three that are swept together, and what rows send of seven side by side, twice.
    assert need.scratch == 64 * (4 + 3 * 4) + 10 * (24 + 12 + 3 * 24) + 7 * 10 * 8 + SLICE_PADDING
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
    # Proposals of several stripes go from one to the others.
    need = run_need(GRAPH, asked(reads=reads), mixing=0, sweeps=2, ring_slots=4, stripes=2)
    assert need.reads == 1000 * 4 * size


@given(st.integers(0, 10**10), st.integers(0, 10**12), st.integers(1, 10**6), st.booleans())
def test_decoded_tiles_hold_each_column(nodes, edges, tiles, inside):
    stats = replace(GRAPH, nodes=nodes, edges=edges, tiles=tiles)
    assert decoded_bytes(stats, inside) >= 4 * edges + 8 * nodes
    assert decoded_bytes(stats, False) <= decoded_bytes(stats, True)


def test_other_needs_by_pencil():
    need = scc_need(replace(GRAPH, edges=10_000), asked())
    assert (need.vectors, need.reads, need.scratch - SLICE_PADDING) == (20_000, 4000, 312_000)
    stats = replace(GRAPH, nodes=10, edges=100, tiles=1)
    assert [decoded_bytes(stats, swept) - SLICE_PADDING for swept in (True, False)] == [1480, 680]
    assert [writing_bytes(base=0, nodes=10, ordered=of) - WRITING for of in (False, True)] == [80, 280]


def test_what_a_run_should_hold_by_number():
    stats = GraphStats(10**6, 10**7, 10, 10**6, 2 * 10**7, 2 * 10**6, 10**5, 0.1)
    need = run_need(stats, asked(base=10**8), mixing=5, sweeps=2, ring_slots=4)
    held = typical_bytes(need, stats, cached_tiles=0, decoded=False, sweeps=2)
    assert held == 212_788_772


def read_bytes(store: RankedStore) -> list[int]:
    """Bytes that each tile has as it is read."""
    tiles = tiles_of(store)
    buffer = aligned(tiles.max_bytes)
    return [tiles.read_into(tile, buffer) for tile in range(len(store.tile_rows) - 1)]


@pytest.fixture
def weighted(tmp_path: Path) -> GraphStore:
    graph = weigh(random_digraph(900, 30_000, seed=2), 6, "reals")
    return graph.write(tmp_path / "g.zarr", TILE_EDGES)


def limits_of(store: GraphStore, sizes: np.ndarray | None) -> np.ndarray:
    """Bytes that are counted of each tile, of which so many are known."""
    limits: np.ndarray = layout_of(stats_of(store), store.tile_rows, sizes, np.array([0, store.tiles])).limits
    return limits


def test_stored_tiles_have_the_bytes_that_are_counted() -> None:
    with Stored(random_digraph(900, 30_000, seed=2), TILE_EDGES) as store:
        sizes = store.tile_sizes()
        assert sizes is not None
        limits = limits_of(store, sizes)
        # And four of a checksum, but no more than the largest tile has.
        most = stats_of(store).max_tile_bytes
        assert limits.tolist() == np.minimum(sizes, most).tolist()
        over = limits - read_bytes(store)
        assert over.tolist() == np.where(sizes > most, over.min(), 4).tolist()
        assert over.min() >= 0


def test_weighted_tiles_have_no_more_bytes_than_are_counted(weighted: GraphStore) -> None:
    assert weighted.tile_sizes() is not None
    over = limits_of(weighted, weighted.tile_sizes()) - read_bytes(weighted)
    assert over.min() >= 0
    assert over.max() <= 2 * 4096 + 8


def test_of_tiles_that_are_not_known_the_most_is_counted(weighted: GraphStore) -> None:
    limits, known = limits_of(weighted, None), limits_of(weighted, weighted.tile_sizes())
    assert (limits == stats_of(weighted).max_tile_bytes).all()
    assert (known <= limits).all()
    assert (limits >= read_bytes(weighted)).all()


def written_through_zarr(path: str, array: str, **told: int) -> GraphStore:
    """The store with an array that Zarr has written with no codec of ours, and what it may then say of it."""
    group = zarr.open_group(path, mode="r+")
    values = group[array][:]
    del group[array]
    group.create_array(array, shape=values.shape, chunks=(TILE_EDGES,), dtype=values.dtype)[:] = values
    known = {name: value for name, value in group.attrs["oocpr"].items() if name != CHECKSUM_KEY}
    group.attrs["oocpr"] = known | told
    return open_store(path)


def test_of_tiles_that_are_encoded_as_they_are_read_the_most_is_counted(weighted: GraphStore) -> None:
    with Stored(random_digraph(900, 30_000, seed=2), TILE_EDGES) as bare:
        others = [
            written_through_zarr(bare.path, INDICES, max_tile_bytes=40, column_bytes=40),
            written_through_zarr(weighted.path, DATA, max_data_bytes=40, data_bytes=40),
        ]
        for store in others:
            assert store.tile_sizes() is None
            known, found = store.attributes, read_bytes(store)
            told = known.max_tile_bytes
            told = weighted_tile_bytes(told, known.max_data_bytes) if known.weighted else told
            assert max(found) > told
            assert (limits_of(store, None) >= found).all()
            assert stats_of(store).max_tile_bytes == tiles_of(store).max_bytes


def test_blocks_of_vectors_by_pencil():
    need = block_need(GRAPH, base=5, threads=3, width=16, answers=7)
    graph = 6400 * 8 + 1000 * 152
    blocks = 3 * 1000 * (16 * (8 + 8 + 4 + 4 + 4) + 8 * 8 + 8 + 1)
    assert need == 5 + 7 + SLICE_PADDING + graph + blocks + SHARED
    # A graph of many edges takes most while it is read.
    many = replace(GRAPH, edges=10**6)
    assert block_need(many, base=5, threads=1, width=8, answers=7) == (
        5 + 7 + SLICE_PADDING + 10**6 * 16 + 1000 * 176 + 100 + SHARED
    )


@pytest.mark.parametrize(
    ("seeds", "threads", "shape"),
    [(1, 4, (1, 8)), (8, 4, (1, 8)), (9, 4, (2, 8)), (31, 2, (2, 8)), (32, 2, (2, 16)), (1000, 2, (2, 16))],
)
def test_blocks_are_as_wide_as_keeps_threads_busy(seeds, threads, shape):
    assert block_shape(GRAPH, base=0, memory=2**40, threads=threads, seeds=seeds, answers=0) == shape


@given(st.integers(1, 64), st.integers(1, 5000), st.integers(0, 10**9))
def test_blocks_fit_in_memory_if_any_do(threads, seeds, memory):
    def needed(count: int, width: int) -> int:
        return block_need(GRAPH, base=0, threads=count, width=width, answers=0)

    count, width = block_shape(GRAPH, base=0, memory=memory, threads=threads, seeds=seeds, answers=0)
    assert width in BLOCK_WIDTHS
    assert 1 <= count <= threads
    assert needed(count, width) <= memory or (count, width) == (1, BLOCK_WIDTHS[0])
    more, _ = block_shape(GRAPH, base=0, memory=memory + 10**6, threads=threads, seeds=seeds, answers=0)
    assert more >= count
