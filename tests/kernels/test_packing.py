"""Tiles packed on a device, against the bytes of the host."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

from oocpr.engine.cuda.import_device import DevicePacker
from oocpr.errors import UsageError
from oocpr.ingest.build import build_store
from oocpr.sources.rmat import Rmat
from oocpr.store.codec.tile_encoder import encode_tile

from .test_decode_kernels import ODD
from .tiles import random_tile, tiles

if TYPE_CHECKING:
    from pathlib import Path

    from oocpr.engine.cuda.device import Device


def check(device: Device, columns: np.ndarray, lengths: np.ndarray) -> None:
    coded = DevicePacker(device).encode(columns, lengths)
    assert coded.tobytes() == encode_tile(columns, lengths)


@pytest.mark.parametrize("name", ODD)
def test_odd_tiles(device: Device, name: str) -> None:
    columns, lengths = ODD[name]
    check(device, np.array(columns, np.uint32), np.array(lengths, np.uint32))


@settings(max_examples=25)
@given(tile=tiles())
def test_any_tile(device: Device, tile: tuple[np.ndarray, np.ndarray]) -> None:
    check(device, *tile)


@pytest.mark.parametrize("skew", [1.0, 6.0])
def test_larger_tiles(device: Device, skew: float) -> None:
    check(device, *random_tile(900, 4, 2**31, skew=skew))


def test_columns_that_take_least_as_they_are(device: Device) -> None:
    columns = np.random.default_rng(5).permutation(2**32 - 1 - np.arange(3000, dtype=np.uint32))
    check(device, columns, np.ones(3000, np.uint32))


def test_exceptions_of_both_kinds(device: Device) -> None:
    rng = np.random.default_rng(2)
    gaps = np.where(rng.random(6000) < 0.02, 2.0 ** rng.uniform(4, 22, 6000), rng.integers(1, 4, 6000))
    check(device, np.cumsum(gaps).astype(np.uint32), np.array([2000, 0, 4000], np.uint32))


def test_rows_out_of_order_are_refused(device: Device) -> None:
    with pytest.raises(UsageError, match="not strictly ascending"):
        DevicePacker(device).encode(np.array([3, 3], np.uint32), np.array([2], np.uint32))


def test_keys_are_sorted_in_their_place(device: Device) -> None:
    keys = np.random.default_rng(3).integers(0, 2**64, 5000, np.uint64)
    expected = sorted(keys.tolist())
    DevicePacker(device).sort(keys)
    assert keys.tolist() == expected


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("order", ["keep", "degree"])
def test_an_import_has_the_bytes_of_one_by_the_host(device: Device, tmp_path: Path, order: str) -> None:
    for name, hands in (("host", None), ("device", DevicePacker(device))):
        path = tmp_path / f"{name}.zarr"
        build_store(Rmat(9), path, memory=2**34, order=order, tile_edges=1 << 10, hands=hands)
    assert files(tmp_path / "device.zarr") == files(tmp_path / "host.zarr")


def test_threads_pack_and_sort_side_by_side(device: Device) -> None:
    made = [random_tile(60, 4, 5000, seed=seed) for seed in range(6)]
    packer = DevicePacker(device)
    keys = [np.random.default_rng(seed).integers(0, 2**64, 500, np.uint64) for seed in range(6)]
    expected = [np.sort(some) for some in keys]
    with ThreadPoolExecutor(6) as pool:
        coded = pool.map(lambda tile: packer.encode(*tile).tobytes(), made)
        list(pool.map(packer.sort, keys))
        assert list(coded) == [encode_tile(*tile) for tile in made]
    np.testing.assert_array_equal(keys, expected)
