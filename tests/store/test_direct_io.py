"""Files come whole, and with the same bytes and complaints, through the page cache and past it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import DamagedError, UsageError
from oocpr.store import direct_io as files
from oocpr.store.direct_io import PAGE, aligned, open_file, read_file, takes_direct_reads
from oocpr.store.graph import open_store


def read(path: Path, size: int, rest: int, *, direct: bool) -> tuple[int, bytes, bytes]:
    """How many bytes there were, the first `size` and the others; memory beside that is left alone."""
    room = aligned(size + PAGE)
    room[:] = 7
    descriptor = open_file(str(path), direct=direct)
    try:
        done, end = read_file(descriptor, room[:size], rest, direct=direct)
    finally:
        os.close(descriptor)
    assert (room[size:] == 7).all()
    return done, room[:size].tobytes(), end


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose files can be read directly."""
    folder = tmp_path_factory.mktemp("direct")
    probe = folder / "probe"
    probe.write_bytes(bytes(PAGE))
    if not takes_direct_reads(str(probe)):
        pytest.skip("the file system of temporary files takes no direct reads")
    return folder


NEAR_PAGES = st.builds(lambda pages, more: max(0, pages * PAGE + more), st.integers(0, 5), st.integers(-9, 9))


@given(size=NEAR_PAGES | st.integers(0, 6 * PAGE), rest=st.integers(0, 8), direct=st.booleans())
def test_a_file_is_read_as_it_was_written(disk, size, rest, direct):
    data = np.random.default_rng(size).bytes(size + rest)
    (disk / "whole").write_bytes(data)
    assert read(disk / "whole", size, rest, direct=direct) == (size + rest, data[:size], data[size:])


@given(size=NEAR_PAGES, missing=NEAR_PAGES | st.integers(1, 9), direct=st.booleans())
def test_a_file_that_has_become_shorter_is_told_from_a_whole_one(disk, size, missing, direct):
    left = max(0, size + 4 - missing)
    data = np.random.default_rng(size).bytes(left)
    (disk / "short").write_bytes(data)
    done, start, _ = read(disk / "short", size, 4, direct=direct)
    assert done == left
    assert start[: min(left, size)] == data[:size]


@pytest.mark.parametrize("nbytes", [1, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE + 3])
def test_memory_begins_with_a_page(nbytes):
    memory = aligned(nbytes)
    assert (memory.size, memory.ctypes.data % PAGE, memory.dtype) == (nbytes, 0, np.uint8)


@pytest.mark.parametrize("tile_edges", [64, 1024])
def test_tiles_are_the_same_read_directly(disk, make_store, random_graph, tile_edges):
    store = open_store(make_store(random_graph(300, 5000, hub=3), tile_edges))
    assert store.takes_direct_reads()
    for tile in range(store.tiles):
        buffered, direct = aligned(store.encoded.max_bytes), aligned(store.encoded.max_bytes)
        sizes = [
            store.encoded.read_into(tile, buffered),
            store.encoded.read_into(tile, direct, direct=True),
        ]
        assert sizes[0] == sizes[1]
        assert buffered[: sizes[0]].tobytes() == direct[: sizes[1]].tobytes()


def spoil(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
        return
    if how == "empty":
        data.clear()
    elif how == "shorter":
        del data[-PAGE:]
    elif how == "longer":
        data += bytes(2 * PAGE)
    elif how == "a page longer":
        data[:0] = bytes(PAGE)
    elif how == "a bit of the last page":
        data[-9] ^= 1
    elif how == "a bit of the first page":
        data[17] ^= 1
    else:
        data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "how",
    [
        "missing", "empty", "shorter", "longer", "a page longer", "a bit of the first page",
        "a bit of the last page", "a bit of the checksum",
    ],
)  # fmt: skip
def test_damage_is_told_in_the_same_words(disk, make_store, random_graph, how):
    path = make_store(random_graph(3000, 20_000), 8192)
    store = open_store(path)
    spoil(next(path.rglob("indices/c/1")), how)
    told = []
    for direct in (False, True):
        with pytest.raises(DamagedError) as caught:
            store.encoded.read_into(1, aligned(store.encoded.max_bytes), direct=direct)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "tile 1" in told[0]


@pytest.mark.parametrize("cut", [0, 3, PAGE, PAGE + 5])
def test_a_tile_that_is_cut_while_it_is_read_is_damaged(disk, make_store, random_graph, monkeypatch, cut):
    path = make_store(random_graph(3000, 20_000), 8192)
    store = open_store(path)
    file = next(path.rglob("indices/c/0"))
    whole = file.stat()
    os.truncate(file, cut)
    monkeypatch.setattr(os, "fstat", lambda _: whole)
    for direct in (False, True):
        with pytest.raises(DamagedError, match=f"ends after {cut} bytes"):
            store.encoded.read_into(0, aligned(store.encoded.max_bytes), direct=direct)


def test_what_cannot_be_read_directly_says_so(tmp_path):
    assert not takes_direct_reads(str(tmp_path / "nothing"))
    # Of this file no kernel has a disk.
    assert not takes_direct_reads("/proc/self/status")
    with pytest.raises(UsageError, match=r"/proc/self/status.*Use io buffered"):
        open_file("/proc/self/status", direct=True)


def test_systems_without_direct_reads_have_none(disk, monkeypatch):
    (disk / "file").write_bytes(bytes(PAGE))
    assert takes_direct_reads(str(disk / "file"))
    monkeypatch.setattr(files, "_FLAG", 0)
    assert not takes_direct_reads(str(disk / "file"))
