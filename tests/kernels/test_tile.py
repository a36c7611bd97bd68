"""Packed tiles decoded on a device, against what was packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.tile import HUBS, check_columns, raise_faults, upload_tile
from oocpr.errors import DamagedError
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tiles import encode_tile

from .tiles import placed, random_tile, tiles

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

ODD = {
    "no segment": ([], []),
    "empty segments": ([], [0, 0, 0]),
    "one edge": ([2**32 - 1], [0, 1, 0]),
    "a block of single edges": (np.arange(1024)[::-1], np.ones(1024)),
    "a segment that ends with its block": (np.arange(2048), [1024, 0, 1024]),
    "a long segment": (np.arange(0, 5000 * 9, 9), [1, 4999]),
    "only ends": ([0, 2**32 - 1, 0, 2**32 - 1], [2, 2]),
    "1024 empty segments": ([5], [0] * 1024 + [1]),
}


def check(device: Device, columns: np.ndarray, lengths: np.ndarray) -> None:
    """Compare all that is known of a decoded tile."""
    tile = placed(device, columns, lengths)
    faults, out = device.xp.zeros(1, np.uint32), device.xp.zeros(len(columns), np.uint32)
    hub_edges = check_columns(device, tile, 2**32 - 1, faults, out)
    assert int(download(hub_edges)[0]) == np.count_nonzero(columns < HUBS)
    if columns.max(initial=0) < 2**32 - 1:
        raise_faults(int(faults[0]))
    np.testing.assert_array_equal(download(out), columns)
    firsts = (np.cumsum(lengths, dtype=np.int64) - lengths)[lengths > 0]
    np.testing.assert_array_equal(np.flatnonzero(bits_of(tile.begins)), firsts)
    blocks = np.minimum(1024 * np.arange(len(tile.ranks)), len(columns))
    np.testing.assert_array_equal(download(tile.ranks), np.searchsorted(firsts, blocks))
    np.testing.assert_array_equal(np.flatnonzero(bits_of(tile.filled)), np.flatnonzero(lengths))
    full = np.append(0, np.cumsum(lengths > 0))
    np.testing.assert_array_equal(download(tile.filled_before), full[:-1][::32])
    if tile.starts is not None:
        np.testing.assert_array_equal(download(tile.starts), columns[firsts])


def bits_of(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(download(words).view(np.uint8), bitorder="little")


@pytest.mark.parametrize("name", ODD)
def test_odd_tiles(device: Device, name: str) -> None:
    columns, lengths = ODD[name]
    check(device, np.array(columns, np.uint32), np.array(lengths, np.uint32))


@settings(max_examples=15)
@given(tile=tiles())
def test_any_tile(device: Device, tile: tuple[np.ndarray, np.ndarray]) -> None:
    check(device, *tile)


def test_a_larger_tile_with_exceptions(device: Device) -> None:
    rng = np.random.default_rng(2)
    gaps = np.where(rng.random(6000) < 0.02, 2.0 ** rng.uniform(4, 22, 6000), rng.integers(1, 4, 6000))
    columns, lengths = np.cumsum(gaps).astype(np.uint32), np.array([2000, 0, 4000], np.uint32)
    packed = parse_tile(np.frombuffer(encode_tile(columns, lengths), np.uint8))
    assert packed.gaps.narrow.size > 10
    assert packed.gaps.wide.size > 10
    check(device, columns, lengths)


def test_verbatim_columns(device: Device) -> None:
    rng = np.random.default_rng(1)
    columns = (rng.random(5000) ** 2 * (2**32 - 1)).astype(np.uint32)
    packed = parse_tile(np.frombuffer(encode_tile(columns, np.ones(5000, np.uint32)), np.uint8))
    assert packed.verbatim
    check(device, columns, np.ones(5000, np.uint32))


def damaged(packed, **changes):  # type: ignore[no-untyped-def]
    """A tile with arrays exchanged for ones of other content."""
    for path, change in changes.items():
        stream, _, part = path.partition("_")
        if part:
            inner = getattr(packed, stream)
            array = getattr(inner, part).copy()
            change(array)
            packed = packed._replace(**{stream: inner._replace(**{part: array})})
        else:
            array = getattr(packed, stream).copy()
            change(array)
            packed = packed._replace(**{stream: array})
    return packed


def set_last(value: int):  # type: ignore[no-untyped-def]
    return lambda array: array.ravel().__setitem__(-1, value)


def set_at(index: tuple[int, int], value: int):  # type: ignore[no-untyped-def]
    return lambda array: array.__setitem__(index, value)


FAULTY = {
    "a length": ({"lengths_words": lambda w: w.__setitem__(0, w[0] ^ 1)}, "lengths"),
    "lengths that run over": ({"lengths_words": lambda w: w.fill(2**32 - 1)}, "lengths"),
    "edges before a block of lengths": ({"lengths_directory": set_at((1, 3), 5)}, "lengths"),
    "edges before the first": ({"lengths_directory": set_at((0, 3), 2**31)}, "lengths"),
    "segments before a block": ({"ranks": set_last(7)}, "lengths"),
    "a start": ({"starts_words": lambda w: w.__setitem__(3, w[3] ^ 6)}, "starts"),
    "the start before the first": ({"starts_directory": set_at((0, 3), 9)}, "starts"),
    "a gap": ({"gaps_words": lambda w: w.__setitem__(31, w[31] ^ 2)}, "columns"),
    "a carry": ({"gaps_directory": set_at((1, 3), 3)}, "columns"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_tile_that_contradicts_itself_is_refused(device: Device, name: str) -> None:
    columns, lengths = random_tile(1500, 3, 2**20)
    changes, message = FAULTY[name]
    if message == "columns":
        columns, lengths = np.arange(1500, dtype=np.uint32) * 5, np.array([1500], np.uint32)
    packed = damaged(parse_tile(np.frombuffer(encode_tile(columns, lengths), np.uint8)), **changes)
    faults = device.xp.zeros(1, np.uint32)
    tile = upload_tile(device, packed, faults)
    if message == "columns":
        raise_faults(int(faults[0]))
        check_columns(device, tile, 2**20, faults)
    with pytest.raises(DamagedError, match=message):
        raise_faults(int(faults[0]))


def test_a_column_that_is_no_node_is_refused(device: Device) -> None:
    tile = placed(device, np.array([3, 8, 1], np.uint32), np.array([2, 1], np.uint32))
    for nodes, bad in ((9, False), (8, True)):
        faults = device.xp.zeros(1, np.uint32)
        check_columns(device, tile, nodes, faults)
        assert bool(download(faults)[0]) == bad
