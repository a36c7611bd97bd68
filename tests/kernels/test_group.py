"""Groups of packed tiles opened and decoded on a device, against what was packed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.engine.cuda.baselines import allocated, decode
from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.group import HUBS, TILE, raise_faults
from oocpr.errors import DamagedError
from oocpr.plan.products import decoded_arrays
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tiles import encode_tile

from .tiles import (
    BLOCK,
    cut_rows,
    encoded,
    groups,
    joined,
    map_tile,
    open_group,
    placed,
    random_tile,
    single_edges,
    tiles,
)

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.group import DeviceGroup

    from .tiles import Tile

ODD: dict[str, tuple[Any, Any]] = {
    "an empty segment": ([], [0]),
    "empty segments": ([], [0, 0, 0]),
    "one edge": ([2**32 - 1], [0, 1, 0]),
    "a block of single edges": (np.arange(1024)[::-1], np.ones(1024)),
    "a segment that ends with its block": (np.arange(2048), [1024, 0, 1024]),
    "a long segment": (np.arange(0, 5000 * 9, 9), [1, 4999]),
    "only ends": ([0, 2**32 - 1, 0, 2**32 - 1], [2, 2]),
    "1024 empty segments": ([5], [0] * 1024 + [1]),
    "segments of all of a block but one": (np.arange(1023), [1000, 23]),
    "segments that begin with words": (np.arange(96), [32, 32, 32]),
    "no row of its own": (np.arange(700), [700]),
}


def odd(name: str) -> Tile:
    columns, lengths = ODD[name]
    return np.array(columns, np.uint32), np.array(lengths, np.uint32)


def bits_of(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(download(words).view(np.uint8), bitorder="little")


def check(device: Device, *of: Tile) -> None:
    """Compare all that is known of a group that has been opened, and its columns, with what was packed."""
    group = placed(device, *of)
    check_segments(group, of)
    columns, lengths = joined(of)
    faults, out = device.xp.zeros(1, np.uint32), device.xp.zeros(max(1, len(columns)), np.uint32)
    hub_edges = group.check_columns(device, 2**32 - 1, faults)
    group.decode_columns(device, 2**32 - 1, faults, out)
    assert int(download(hub_edges)[0]) == np.count_nonzero(columns < HUBS)
    assert int(download(faults)[0]) == (8 if columns.max(initial=0) == 2**32 - 1 else 0)
    np.testing.assert_array_equal(download(out)[: len(columns)], columns)
    check_listed(device, group, lengths)


def check_segments(group: DeviceGroup, of: tuple[Tile, ...]) -> None:
    """Compare where segments begin, which are empty, and their first columns."""
    arrays, sizes = group.arrays, group.sizes
    begins, starts, filled, filled_before, of_blocks = [], [], [], [], []
    blocks = words = nonempty = 0
    for columns, lengths in of:
        firsts = (np.cumsum(lengths, dtype=np.int64) - lengths)[lengths > 0]
        own = -(-len(columns) // BLOCK)
        begins.append(BLOCK * blocks + firsts)
        of_blocks.append(nonempty + np.searchsorted(firsts, BLOCK * np.arange(own)))
        verbatim = parse_tile(encoded(columns, lengths)).verbatim
        starts.append((nonempty, columns[firsts].tolist(), verbatim))
        filled.append(32 * words + np.flatnonzero(lengths))
        filled_before.append(nonempty + np.append(0, np.cumsum(lengths > 0))[:-1][::32])
        blocks, words, nonempty = blocks + own, words + -(-lengths.size // 32), nonempty + len(firsts)
    assert (sizes.tiles, sizes.blocks, sizes.words, sizes.nonempty) == (len(of), blocks, words, nonempty)
    assert sizes.edges == sum(len(columns) for columns, _ in of)
    assert sizes.rows == sum(lengths.size - 1 for _, lengths in of)
    np.testing.assert_array_equal(np.flatnonzero(bits_of(arrays.begins)), np.concatenate(begins))
    ranks = download(arrays.ranks)
    np.testing.assert_array_equal(ranks[:blocks], np.concatenate(of_blocks))
    assert ranks[blocks] == nonempty
    np.testing.assert_array_equal(np.flatnonzero(bits_of(arrays.filled)), np.concatenate(filled))
    np.testing.assert_array_equal(download(arrays.filled_before)[:words], np.concatenate(filled_before))
    for first, columns_of, verbatim in starts:
        if not verbatim:
            assert download(arrays.starts)[first : first + len(columns_of)].tolist() == columns_of


def check_listed(device: Device, group: DeviceGroup, lengths: np.ndarray) -> None:
    """Compare the first edge of each segment, with and without those that are empty."""
    sizes = group.sizes
    firsts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    xp, faults = device.xp, device.xp.zeros(1, np.uint32)
    found = allocated(device, decoded_arrays(lengths.size, sizes.edges))
    decode(device, group, 2**32 - 1, (0, 2**32 - 1), found, faults)
    if not int(download(faults)[0]):
        np.testing.assert_array_equal(download(found["begins"])[: sizes.nonempty], firsts[:-1][lengths > 0])
        np.testing.assert_array_equal(download(found["offsets"]), firsts)
    decode(device, group, 2**32 - 1, (0, 2**32 - 1), found, xp.asarray(np.array([8], np.uint32)))
    assert not download(found["offsets"]).any()


@pytest.mark.parametrize("name", ODD)
def test_odd_tiles(device: Device, name: str) -> None:
    check(device, odd(name))


def test_odd_tiles_in_one_group(device: Device) -> None:
    check(device, *map(odd, ODD))
    check(device, *map(odd, reversed(ODD)))
    check(device, *map(odd, sorted(ODD)), *map(odd, ODD))


@settings(max_examples=15)
@given(tile=tiles().filter(lambda tile: tile[1].size))
def test_any_tile(device: Device, tile: Tile) -> None:
    check(device, tile)


@settings(max_examples=25)
@given(of=groups())
def test_any_group(device: Device, of: list[Tile]) -> None:
    check(device, *of)


@settings(max_examples=15)
@given(
    tile=st.one_of(tiles(), single_edges()).filter(lambda tile: tile[1].size),
    tile_edges=st.sampled_from([1, 7, 700, 1000, 1024, 2048]),
    data=st.data(),
)
def test_rows_that_are_cut_at_the_borders_of_tiles(
    device: Device, tile: Tile, tile_edges: int, data: st.DataObject
) -> None:
    if len(tile[0]) > 60 * tile_edges:
        tile_edges = -(-len(tile[0]) // 60)
    cut = cut_rows(*tile, tile_edges)
    assert sum(lengths.size - 1 for _, lengths in cut) == tile[1].size
    assert np.array_equal(np.concatenate([columns for columns, _ in cut]), tile[0])
    first = data.draw(st.integers(0, len(cut) - 1))
    check(device, *cut[first : first + data.draw(st.integers(1, 12))])


def test_a_row_of_many_tiles(device: Device) -> None:
    columns = np.concatenate([np.arange(30), np.arange(0, 50_000, 5), np.arange(9)]).astype(np.uint32)
    cut = cut_rows(columns, np.array([30, 0, 10_000, 0, 9], np.uint32), 1000)
    # Most of them own no row.
    assert [lengths.size - 1 for _, lengths in cut] == [2, *[0] * 9, 3]
    check(device, *cut)


def test_a_larger_tile_with_exceptions(device: Device) -> None:
    rng = np.random.default_rng(2)
    gaps = np.where(rng.random(6000) < 0.02, 2.0 ** rng.uniform(4, 22, 6000), rng.integers(1, 4, 6000))
    columns, lengths = np.cumsum(gaps).astype(np.uint32), np.array([2000, 0, 4000], np.uint32)
    packed = parse_tile(np.frombuffer(encode_tile(columns, lengths), np.uint8))
    assert packed.gaps.narrow.size > 10
    assert packed.gaps.wide.size > 10
    check(device, (columns, lengths))
    check(device, odd("one edge"), (columns, lengths), odd("a long segment"), (columns, lengths))


def test_verbatim_columns(device: Device) -> None:
    rng = np.random.default_rng(1)
    columns = (rng.random(5000) ** 2 * (2**32 - 1)).astype(np.uint32)
    tile = columns, np.ones(5000, np.uint32)
    packed = parse_tile(encoded(*tile))
    assert packed.verbatim
    check(device, tile)
    # Beside tiles that are coded, before and behind.
    coded = random_tile(300, 4, 2**20)
    assert not parse_tile(encoded(*coded)).verbatim
    check(device, coded, tile, coded, tile)


def test_entries_know_where_their_tiles_are(device: Device) -> None:
    of = [odd("one edge"), random_tile(300, 4, 2**20), odd("an empty segment"), random_tile(40, 4, 2**20)]
    group = placed(device, *of)
    table = download(group.arrays.table).view(TILE)
    assert table.size == len(of)
    before = [0] * 3
    for entry, (columns, lengths) in zip(table, of, strict=True):
        assert (entry["edges"], entry["segments"]) == (len(columns), lengths.size)
        assert [entry["edge"], entry["row"], entry["rank"]] == before
        # Words of all streams begin with lines of 128 bytes.
        for name in ("lengths", "gaps") if entry["verbatim"] else ("lengths", "starts", "gaps"):
            assert (entry["base"] + entry[name]["words"]) % 128 == 0
        before = [
            before[0] + len(columns),
            before[1] + lengths.size - 1,
            before[2] + np.count_nonzero(lengths),
        ]


Change = Callable[[np.ndarray], Any]


def damaged(coded: np.ndarray, **changes: Change) -> np.ndarray:
    """The bytes of a tile with arrays exchanged for ones of other content."""
    coded = coded.copy()
    packed = parse_tile(coded)
    for path, change in changes.items():
        name, _, part = path.partition("_")
        array = getattr(getattr(packed, name), part) if part else getattr(packed, name)
        begin = array.ctypes.data - coded.ctypes.data
        changed = coded[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        change(changed)
    return coded


def set_last(value: int) -> Change:
    return lambda array: array.ravel().__setitem__(-1, value)


def set_at(index: tuple[int, int], value: int) -> Change:
    return lambda array: array.__setitem__(index, value)


FAULTY: dict[str, tuple[dict[str, Change], str]] = {
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


@pytest.mark.parametrize("place", [None, 0, 2])
@pytest.mark.parametrize("name", FAULTY)
def test_a_tile_that_contradicts_itself_is_refused(device: Device, name: str, place: int | None) -> None:
    columns, lengths = random_tile(1500, 3, 2**20)
    changes, message = FAULTY[name]
    if message == "columns":
        columns, lengths = np.arange(1500, dtype=np.uint32) * 5, np.array([1500], np.uint32)
    coded = [damaged(encoded(columns, lengths), **changes)]
    if place is not None:
        # Among others that are sound.
        sound = [encoded(*random_tile(200, 3, 2**20, seed=seed)) for seed in range(2)]
        coded = [*sound[:place], *coded, *sound[place:]]
    group, found = open_group(device, coded)
    if message == "columns":
        raise_faults(found)
        faults = device.xp.zeros(1, np.uint32)
        group.check_columns(device, 2**20, faults)
        found = int(download(faults)[0])
    with pytest.raises(DamagedError, match=message):
        raise_faults(found)


def test_bytes_that_are_no_tile_are_refused_as_they_are_parsed() -> None:
    good = encoded(*random_tile(1500, 3, 2**20))
    for at in (0, 5, 9, 20):
        bad = good.copy()
        bad[at] ^= 64
        with pytest.raises(DamagedError) as parsed:
            parse_tile(bad)
        with pytest.raises(DamagedError) as mapped:
            map_tile(bad)
        assert str(mapped.value) == str(parsed.value)
    with pytest.raises(DamagedError):
        map_tile(good[:-4])
    with pytest.raises(DamagedError):
        map_tile(good[:40])


def test_weights_of_another_number_are_refused() -> None:
    columns, lengths = np.arange(4, dtype=np.uint32), np.array([4], np.uint32)
    assert map_tile(encoded(columns, lengths, np.ones(4)), weighted=True).view(TILE)["weighed"] == 4
    with pytest.raises(DamagedError, match="5 weights where 4 belong"):
        map_tile(encoded(columns, lengths, np.ones(5)), weighted=True)


def test_a_column_that_is_no_node_is_refused(device: Device) -> None:
    tile = np.array([3, 8, 1], np.uint32), np.array([2, 1], np.uint32)
    other = np.array([2], np.uint32), np.array([1], np.uint32)
    for of in ([tile], [other, tile], [tile, other]):
        group = placed(device, *of)
        for nodes, bad in ((9, False), (8, True)):
            faults = device.xp.zeros(1, np.uint32)
            group.check_columns(device, nodes, faults)
            assert bool(download(faults)[0]) == bad
