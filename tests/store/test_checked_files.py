"""Tiles that are read several at once, against the same read one by one; and their checksum."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import DamagedError, ReplacedError
from oocpr.sources import open_source
from oocpr.store.checked_files import SUPPORTED, checksum, read_files
from oocpr.store.direct_io import aligned
from oocpr.store.graph import GraphStore, open_store

from ..engine.digraphs import random_digraph
from ..engine.running import build
from .damage import flip_bits

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the processor has no instruction for CRC-32C")

FIRST, LAST = 3, 8
"""Tiles that are read at once, the last excluded."""


def test_the_checksum_is_that_of_the_catalogue_of_crcs() -> None:
    assert checksum(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283


# The vectors of RFC 3720, B.4.
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_checksum_is_that_of_the_standard(data: bytes, crc: int) -> None:
    assert checksum(np.frombuffer(data, np.uint8)) == crc


@given(st.integers(0, 2000), st.integers(0, 2**32))
def test_the_checksum_is_that_of_the_library(size: int, seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    assert checksum(data) == crc32c(data.data)


@pytest.fixture
def store(tmp_path: Path) -> GraphStore:
    return build(open_source(random_digraph(200, 900, seed=1).entries), tmp_path / "graph.zarr", 64)


def file_of(store: GraphStore, tile: int) -> Path:
    return next(Path(store.path).rglob(f"indices/c/{tile}"))


def alone(store: GraphStore, tile: int) -> bytes:
    out = aligned(store.encoded.max_bytes)
    return out[: store.encoded.read_into(tile, out)].tobytes()


def together(store: GraphStore, tiles: range, limits: np.ndarray) -> list[bytes]:
    """What is read of tiles at once, each behind the most that the one before may have."""
    rooms = (limits + 5 + 7) // 8 * 8
    begins = rooms.cumsum() - rooms
    out = aligned(int(rooms.sum()))
    sizes = store.encoded.read_run(tiles, out, begins, limits)
    return [out[at : at + size].tobytes() for at, size in zip(begins, sizes, strict=True)]


def limits_of(store: GraphStore, tiles: range) -> np.ndarray:
    sizes = store.tile_sizes()
    assert sizes is not None
    return sizes[tiles.start : tiles.stop]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """A store that nobody damages."""
    graph = random_digraph(200, 900, seed=1)
    return build(open_source(graph.entries), tmp_path_factory.mktemp("runs") / "graph.zarr", 64)


@given(st.integers(0, 13), st.integers(1, 14))
def test_runs_cut_anywhere_have_the_bytes_of_their_tiles(sound: GraphStore, first: int, count: int) -> None:
    tiles = range(first, min(first + count, sound.tiles))
    assert together(sound, tiles, limits_of(sound, tiles)) == [alone(sound, tile) for tile in tiles]


def test_a_file_that_is_sound_is_read_at_once(store: GraphStore) -> None:
    paths = [str(file_of(store, tile)) for tile in range(FIRST, LAST)]
    out, begins = aligned(5 * 4096), np.arange(5) * 4096
    sizes, checksums = read_files(paths, out, begins, np.full(5, 4000))
    assert sizes.tolist() == [Path(path).stat().st_size - 4 for path in paths]
    for path, crc in zip(paths, checksums, strict=True):
        assert Path(path).read_bytes()[-4:] == int(crc).to_bytes(4, "little")


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(40))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [flip_bits, cut, emptied, Path.unlink, folder, pipe, longer])
@pytest.mark.parametrize("tile", [FIRST, 5, LAST - 1])
def test_a_damaged_file_is_named_as_if_it_were_read_alone(
    store: GraphStore, spoil: Callable[[Path], None], tile: int
) -> None:
    tiles = range(FIRST, LAST)
    limits = limits_of(store, tiles) + 50
    spoil(file_of(store, tile))
    with pytest.raises(DamagedError) as expected:
        alone(store, tile)
    with pytest.raises(DamagedError) as found:
        together(store, tiles, limits)
    assert str(found.value) == str(expected.value)
    assert f"tile {tile} " in found.value.cause


def test_a_tile_that_was_replaced_is_refused(store: GraphStore) -> None:
    tiles = range(FIRST, LAST)
    limits = limits_of(store, tiles)
    together(store, tiles, limits)
    path = file_of(store, 5)
    data = bytearray(path.read_bytes()[:-4])
    data[-1] ^= 1
    path.write_bytes(data + crc32c(bytes(data)).to_bytes(4, "little"))
    with pytest.raises(ReplacedError, match="tile 5 is another one"):
        together(store, tiles, limits)


def test_a_tile_of_more_bytes_than_there_is_room_for_is_refused(store: GraphStore) -> None:
    tiles = range(FIRST, LAST)
    limits = limits_of(store, tiles)
    limits[2] -= 9
    with pytest.raises(ReplacedError, match=r"tile 5 has \d+ bytes and had at most"):
        together(store, tiles, limits)


def test_a_sound_file_of_another_tile_is_refused(store: GraphStore) -> None:
    tiles = range(FIRST, LAST)
    limits = np.full(len(tiles), store.encoded.max_bytes)
    file_of(store, 5).write_bytes(file_of(store, store.tiles - 1).read_bytes())
    with pytest.raises(DamagedError, match=r"tile 5 .* has \d+ edges in"):
        together(open_store(store.path), tiles, limits)
