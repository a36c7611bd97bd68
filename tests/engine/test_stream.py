"""The stream brings the real bytes of every tile in order, however the reads finish."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oocpr.engine.tiles.stream import PassTraffic, TileBytes, TileStream
from oocpr.errors import DamagedError
from oocpr.sources import open_source
from oocpr.store.graph import GraphStore, open_store

from ..store.damage import flip_bits
from .digraphs import random_digraph
from .running import build


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    graph = random_digraph(200, 900, seed=1)
    return build(open_source(graph.entries), tmp_path_factory.mktemp("stream") / "graph.zarr", 64)


class Late:
    """Tiles whose reads take times of their own, so that they end in another order than they began."""

    def __init__(self, tiles: TileBytes, seed: int) -> None:
        self._tiles = tiles
        self._random = random.Random(seed)
        self.reads: Counter[int] = Counter()
        self.ended: list[int] = []
        self.directly = 0

    @property
    def max_bytes(self) -> int:
        return self._tiles.max_bytes

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        self.reads[tile] += 1
        self.directly += direct
        time.sleep(self._random.uniform(0, 0.004))
        size = self._tiles.read_into(tile, out, direct=direct)
        self.ended.append(tile)
        return size


def encoded(store: GraphStore, tile: int) -> bytes:
    out = np.empty(store.encoded.max_bytes, np.uint8)
    return out[: store.encoded.read_into(tile, out)].tobytes()


def keep_bytes(_: int, buffer: NDArray[np.uint8], stays: bool) -> tuple[NDArray[np.uint8], bool]:
    return buffer.copy() if stays else buffer, stays


def run(stream: TileStream) -> tuple[list[tuple[int, bytes, bool]], PassTraffic]:
    """One pass; returns tile, bytes as they were when the tile was computed, and whether it stays."""
    seen: list[tuple[int, bytes, bool]] = []

    def compute(tile: int, prepared: tuple[NDArray[np.uint8], bool]) -> None:
        buffer, stays = prepared
        before = buffer.tobytes()
        # Reads that may write to the same buffer too early get the time to do so.
        time.sleep(0.001)
        assert buffer.tobytes() == before
        seen.append((tile, before, stays))

    return seen, stream.run(compute)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("slots", "readers"), [(1, 1), (2, 2), (4, 4), (50, 3)])
def test_tiles_come_in_order_with_their_bytes_and_resident_ones_are_read_once(store, seed, slots, readers):
    tiles = range(3, store.tiles)
    resident = frozenset(random.Random(seed).sample(tiles, len(tiles) // 3))
    late = Late(store.encoded, seed)
    stream = TileStream(late, tiles, resident, slots, readers, keep_bytes)
    sizes = {tile: len(encoded(store, tile)) for tile in tiles}
    shuffled = False
    for number in range(3):
        late.ended.clear()
        seen, traffic = run(stream)
        assert [tile for tile, _, _ in seen] == list(tiles)
        assert all(data == encoded(store, tile) for tile, data, _ in seen)
        assert {tile for tile, _, stays in seen if stays} == resident
        read = [tile for tile in tiles if number == 0 or tile not in resident]
        assert sorted(late.ended) == read
        assert traffic.bytes_read == sum(sizes[tile] for tile in read)
        assert traffic.wait_seconds >= 0
        shuffled |= late.ended != read
    assert shuffled or min(slots, readers) < 3, "the reads ended in order, so nothing was tried"
    assert late.reads == {tile: 1 if tile in resident else 3 for tile in tiles}


class Watched:
    """Tiles of one byte, their numbers, which say in which buffer each read began."""

    max_bytes = 1

    def __init__(self) -> None:
        self.buffers: list[tuple[int, int]] = []
        self.changed = threading.Condition()

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:  # noqa: ARG002
        with self.changed:
            self.buffers.append((tile, out.ctypes.data))
            self.changed.notify_all()
        out[0] = tile
        return 1


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)), st.integers(1, 6))
def test_each_buffer_is_filled_as_soon_as_the_tile_in_it_is_computed_and_not_before(order, resident, slots):
    source = Watched()
    stream = TileStream(source, order, frozenset(resident), slots, readers=slots, prepare=keep_bytes)
    for to_read in (order, [tile for tile in order if tile not in resident]):
        source.buffers.clear()
        computed: list[int] = []

        def compute(
            tile: int, prepared: Any, to_read: list[int] = to_read, computed: list[int] = computed
        ) -> None:
            assert prepared[0].tolist() == [tile]
            computed.append(tile)
            # Buffers of the tiles that were computed before this one.
            free = sum(done in to_read for done in computed[:-1])
            with source.changed:
                wanted = min(free + slots, len(to_read))
                assert source.changed.wait_for(lambda: len(source.buffers) >= wanted, timeout=10)
                assert len(source.buffers) == wanted
            assert prepared[0].tolist() == [tile]

        stream.run(compute)
        assert computed == list(order)
        assert sorted(tile for tile, _ in source.buffers) == sorted(to_read)
        assert len({buffer for _, buffer in source.buffers}) <= slots


def test_a_stripe_that_is_resident_reads_nothing_after_its_first_pass(store):
    tiles = range(store.tiles)
    late = Late(store.encoded, 0)
    stream = TileStream(late, tiles, frozenset(tiles), 4, 2, keep_bytes)
    first, _ = run(stream)
    again, traffic = run(stream)
    assert first == again
    assert traffic == PassTraffic(0, 0.0)
    assert set(late.reads.values()) == {1}


def test_a_tile_that_stays_is_prepared_once(store):
    prepared: Counter[tuple[int, bool]] = Counter()

    def prepare(tile: int, buffer: NDArray[np.uint8], stays: bool) -> Any:
        prepared[tile, stays] += 1
        return keep_bytes(tile, buffer, stays)

    stream = TileStream(store.encoded, range(4), frozenset({1, 2}), 2, 1, prepare)
    for _ in range(3):
        run(stream)
    assert prepared == {(0, False): 3, (1, True): 1, (2, True): 1, (3, False): 3}


@pytest.mark.parametrize("direct", [False, True])
def test_a_stream_reads_as_it_is_told_to(store, direct):
    if direct and not store.takes_direct_reads():
        pytest.skip("the file system of temporary files takes no direct reads")
    late = Late(store.encoded, 0)
    seen, _ = run(TileStream(late, range(9), frozenset({2}), 3, 2, keep_bytes, direct=direct))
    assert [data for _, data, _ in seen] == [encoded(store, tile) for tile in range(9)]
    assert late.directly == (9 if direct else 0)


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[tuple[GraphStore, int]]:
    """A store with one flipped bit in one tile."""
    graph = random_digraph(200, 900, seed=1)
    build(open_source(graph.entries), tmp_path / "graph.zarr", 64)
    tile = 9
    flip_bits(next((tmp_path / "graph.zarr").rglob(f"indices/c/{tile}")), bits=4)
    return open_store(tmp_path / "graph.zarr"), tile


def outcome(work: Callable[[], Any]) -> Any:
    """What `work` returns or raises; fails where it does neither."""
    result: list[Any] = []

    def call() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 handed to the caller
            result.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert result, "the stream hangs"
    return result[0]


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("resident", [frozenset(), frozenset(range(20))])
def test_a_damaged_tile_ends_the_pass_and_leaves_no_thread(damaged, slots, resident):
    store, tile = damaged
    computed: list[int] = []
    stream = TileStream(Late(store.encoded, 0), range(store.tiles), resident, slots, 2, keep_bytes)
    error = outcome(lambda: stream.run(lambda number, _: computed.append(number)))
    assert isinstance(error, DamagedError)
    assert str(tile) in error.cause
    assert computed == list(range(len(computed)))
    assert len(computed) <= tile
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("oocpr-read")]


def test_an_error_of_the_computation_ends_the_pass(store):
    def fail(tile: int, prepared: Any) -> None:
        raise ZeroDivisionError

    stream = TileStream(Late(store.encoded, 0), range(store.tiles), frozenset(), 3, 2, keep_bytes)
    assert isinstance(outcome(lambda: stream.run(fail)), ZeroDivisionError)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("oocpr-read")]
