"""Tiles joined by threads of the processor: the bytes of one tile, in the memory that is promised."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oocpr.engine.planning import stats_of
from oocpr.engine.tiles.merged import HostJoins, MergedStore
from oocpr.errors import DamagedError
from oocpr.plan.tile_merge import max_merged_bytes, merge_bounds, merge_memory, merged_stats
from oocpr.store.codec.tiles import decode_tile, encode_tile

from .digraphs import Digraph, digraphs, fewer, random_digraph
from .running import Stored
from .weighted import WeightedGraph, weights_of

if TYPE_CHECKING:
    from oocpr.store.graph import GraphStore


class MergeMemory:
    """Joins a store's tiles in threads, of which each has read a tile before any reads its second."""

    def __init__(self, store: GraphStore, edges: int) -> None:
        tile_edges = store.attributes.tile_edges
        self.store, self.cuts = store, merge_bounds(store.tiles, tile_edges, edges)
        self.rows: NDArray[np.int64] = store.tile_rows[np.asarray(self.cuts)]
        self.max_bytes = store.encoded.max_bytes
        self.joins = HostJoins(self, store.edges, tile_edges)
        self._met = Barrier(1)
        most = max_merged_bytes(edges + tile_edges, int(np.diff(self.rows).max()) + 1)
        self._outs = [np.empty(most, np.uint8) for _ in self.cuts[1:]]

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        if tile in self.cuts[: self._met.parties]:
            self._met.wait()
        return self.store.encoded.read_into(tile, out, direct=direct)

    def tile(self, number: int) -> NDArray[np.uint8]:
        first, last = self.cuts[number : number + 2]
        out = self._outs[number]
        rows = self.store.tile_rows[first : last + 1]
        return out[: self.joins.join(range(first, last), rows, out)]

    def all(self, threads: int) -> list[NDArray[np.uint8]]:
        tiles = len(self.cuts) - 1
        threads = min(threads, tiles)
        self._met = Barrier(threads, timeout=60)
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(self.tile, range(tiles)))
        assert len(self.joins._rooms) >= threads
        return found

    def expected(self) -> list[bytes]:
        """What encoding the columns and lengths of several tiles as those of one gives."""
        buffer = np.empty(self.store.encoded.max_bytes, np.uint8)
        coded = []
        for first, last in pairwise(self.cuts):
            begin = int(self.store.tile_rows[first])
            lengths = np.zeros(int(self.store.tile_rows[last]) - begin + 1, np.int64)
            columns = []
            for tile in range(first, last):
                found = decode_tile(buffer[: self.store.encoded.read_into(tile, buffer)])
                columns.append(found[0])
                at = int(self.store.tile_rows[tile]) - begin
                lengths[at : at + len(found[1])] += found[1]
            coded.append(encode_tile(np.concatenate(columns), lengths))
        return coded


def assert_same(found: list[NDArray[np.uint8]], expected: list[bytes]) -> None:
    assert [tile.tobytes() for tile in found] == expected


@fewer(2)
@given(digraphs(), st.integers(1, 20), st.integers(1, 200), st.integers(1, 6))
def test_threads_join_tiles_to_what_one_tile_of_their_links_is(
    graph: Digraph, tile_edges: int, edges: int, threads: int
) -> None:
    with Stored(graph, tile_edges) as store:
        joining = MergeMemory(store, edges)
        expected = joining.expected()
        assert_same(joining.all(threads), expected)
        # In rooms that other tiles were joined in, and in new ones.
        assert_same(joining.all(threads), expected)
        joining.joins.close()
        assert_same(joining.all(1), expected)


def test_a_room_is_given_back_by_whom_a_damaged_tile_stops() -> None:
    with Stored(random_digraph(300, 6000, seed=8), 250) as store:
        joining = MergeMemory(store, 2000)
        expected, read_into = joining.expected(), store.encoded.read_into

        def damaged(tile: int, out: np.ndarray, **how: Any) -> int:
            size = read_into(tile, out, **how)
            out[size // 2 : size] = 0xFF
            return size

        assert joining.tile(0).tobytes() == expected[0]
        (room,) = joining.joins._rooms
        store.encoded.read_into = damaged  # type: ignore[method-assign]
        with pytest.raises(DamagedError):
            joining.tile(1)
        store.encoded.read_into = read_into  # type: ignore[method-assign]
        assert joining.joins._rooms == [room]
        assert_same(joining.all(1), expected)


@pytest.mark.parametrize(("edges", "rows", "what"), [(1, 0, "249 edges"), (0, 1, "[0-9]+ segments")])
def test_a_tile_of_another_size_is_found(edges: int, rows: int, what: str) -> None:
    with Stored(random_digraph(300, 6000, seed=8), 250) as store:
        joining, read_into = MergeMemory(store, 2000), store.encoded.read_into

        def other(tile: int, out: np.ndarray, **how: Any) -> int:
            size = read_into(tile, out, **how)
            if tile != 5:
                return size
            columns, lengths = decode_tile(out[:size].copy())
            lengths[np.flatnonzero(lengths)[-1]] -= edges
            coded = encode_tile(columns[: 250 - edges], np.append(lengths, np.zeros(rows, np.uint32)))
            out[: len(coded)] = np.frombuffer(coded, np.uint8)
            return len(coded)

        store.encoded.read_into = other  # type: ignore[method-assign]
        with pytest.raises(DamagedError, match=rf"tile 5 has {what} where [0-9]+ belong"):
            joining.tile(0)


LINKS, TILE_EDGES = 500_000, 14_000

SMALL = 100_000
"""Bytes of threads, frames and whatever else Python keeps of joining."""


def spread(nodes: int, seed: int, power: float = 1.0) -> Digraph:
    """Links from any node, to nodes of which the first have more the higher the power is."""
    random = np.random.default_rng(seed)
    to = (random.random(LINKS) ** power * nodes).astype(np.int64)
    return Digraph(nodes, random.integers(0, nodes, LINKS), to)


GRAPHS = {
    "few rows": spread(4000, 1),
    "as many rows as links": spread(LINKS, 2),
    "many empty rows": spread(6 * LINKS, 3, power=4),
    "rows that grow in number": spread(LINKS, 4, power=2.5),
}


def most_taken(joining: MergeMemory, threads: int) -> int:
    """Bytes of arrays, and some of Python's own, that joining all tiles takes at most."""
    joining.all(threads)
    joining.joins.close()
    tracemalloc.start()
    try:
        joining.all(threads)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("kind", GRAPHS)
def test_joining_takes_no_more_than_is_promised_and_what_is_usual(kind: str, threads: int) -> None:
    with Stored(GRAPHS[kind], TILE_EDGES) as store:
        stats, joining = stats_of(store), MergeMemory(store, 5 * TILE_EDGES)
        larger = merged_stats(stats, store.tile_rows, joining.cuts)
        planned = merge_memory(stats, larger, np.diff(joining.rows), threads, 1)
        taken = most_taken(joining, threads)
    assert taken < planned.host + SMALL
    assert 0.6 * planned.host < planned.typical_host < planned.host
    assert 0.75 * planned.typical_host < taken < 1.25 * planned.typical_host + SMALL


def test_weights_are_joined_beside_rooms(tmp_path: Path) -> None:
    bare = WeightedGraph.of(GRAPHS["as many rows as links"])
    weight = weights_of(np.random.default_rng(6), len(bare.src), "reals")
    store = WeightedGraph(bare.nodes, bare.src, bare.dst, weight).write(tmp_path / "g.zarr", TILE_EDGES)
    stats, threads = stats_of(store), 2
    larger = MergedStore(store, TILE_EDGES, merge_bounds(store.tiles, TILE_EDGES, 5 * TILE_EDGES))
    planned = merge_memory(
        stats, merged_stats(stats, store.tile_rows, larger.cuts), np.diff(larger.tile_rows), threads, 1
    )
    assert larger.weights is not None
    outs = [[np.empty(tiles.max_bytes, np.uint8) for tiles in (larger.encoded, larger.weights)] for _ in "12"]

    def both(thread: int) -> None:
        for tile in range(thread, len(larger.cuts) - 1, threads):
            for tiles, out in zip((larger.encoded, larger.weights), outs[thread], strict=True):
                tiles.read_into(tile, out)

    def peak() -> int:
        tracemalloc.start()
        try:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(both, range(threads)))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak()
    larger.close()
    assert 0.6 * planned.host < peak() < planned.host + SMALL
