"""Arrays of several chunks, which threads read side by side, beside Zarr's own reading."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.zstd import compress
from zarr.core.sync import sync

from oocpr.errors import DamagedError
from oocpr.store.zarr_arrays import StoredArray, create_array, open_zarr_store, writing

SIZE, CHUNK = 1000, 96


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(6).integers(0, 2**32, SIZE, dtype=np.uint32)


@pytest.fixture
def path(tmp_path: Path, values: np.ndarray) -> Path:
    create_array(zarr.open_group(tmp_path, mode="w"), "numbers", "uint32", SIZE, CHUNK)[:] = values
    return tmp_path


def opened(path: Path) -> StoredArray:
    return StoredArray(open_zarr_store(path), "numbers", "the store")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray) -> StoredArray:
    folder = tmp_path_factory.mktemp("whole")
    create_array(zarr.open_group(folder, mode="w"), "numbers", "uint32", SIZE, CHUNK)[:] = values
    return opened(folder)


@given(bounds=st.lists(st.integers(0, SIZE), min_size=2, max_size=2))
def test_any_part_is_what_was_written(stored: StoredArray, values: np.ndarray, bounds: list[int]) -> None:
    lo, hi = sorted(bounds)
    np.testing.assert_array_equal(stored.read(lo, hi), values[lo:hi])


def with_checksum(coded: bytes) -> bytes:
    return coded + crc32c(coded).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("chunk", "what"),
    [
        (b"", "checksum"),
        (with_checksum(compress(bytes(4 * CHUNK - 4))), "380 bytes"),
        (with_checksum(compress(bytes(4 * CHUNK + 4))), "388 bytes"),
        (with_checksum(compress(bytes(4 * CHUNK))[:-3]), "numbers, entries"),
        (with_checksum(b"\x28\xb5\x2f\xfd"), "None bytes"),
        (with_checksum(b"no frame at all"), "numbers, entries"),
        (compress(bytes(4 * CHUNK)) + bytes(4), "checksum"),
        (bytes(1 << 20), "at most"),
        (None, "numbers/c/7 is missing"),
    ],
    ids=["empty", "short", "long", "cut", "header", "text", "checksum", "huge", "missing"],
)
@pytest.mark.parametrize("hi", [SIZE, 7 * CHUNK + 5])
def test_a_chunk_that_was_not_written_is_found(path: Path, chunk: bytes | None, what: str, hi: int) -> None:
    file = path / "numbers/c/7"
    if chunk is None:
        file.unlink()
    else:
        file.write_bytes(chunk)
    with pytest.raises(DamagedError, match=what):
        opened(path).read(0, hi)


def write_late(folder: Path) -> None:
    time.sleep(0.3)
    (folder / "late").mkdir(parents=True)


def test_what_zarr_still_writes_when_one_chunk_fails_is_over_with_the_block(tmp_path: Path) -> None:
    async def fail() -> None:
        raise ValueError("this chunk fails")

    async def write() -> None:
        await asyncio.gather(asyncio.to_thread(write_late, tmp_path / "g"), fail())

    with pytest.raises(ValueError, match="this chunk fails"), writing(tmp_path):
        sync(write())
    assert (tmp_path / "g" / "late").exists()


def test_what_zarr_still_writes_when_a_call_is_interrupted_is_over_with_the_block(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt), writing(tmp_path):
            sync(asyncio.to_thread(write_late, tmp_path / "g"))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (tmp_path / "g" / "late").exists()
    shutil.rmtree(tmp_path / "g")
    sync(asyncio.sleep(0.4))
    assert not (tmp_path / "g").exists()
