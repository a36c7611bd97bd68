"""Groups of tiles: where they begin, what they count, what is expanded of them, where their tiles lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from oocpr.engine.cuda.group import GroupArrays, TileGroup, WidthRoom
from oocpr.engine.cuda.staging import CudaTileStream, Slot
from oocpr.engine.planning import plan_request, stats_of
from oocpr.engine.settings import Settings
from oocpr.engine.tiles.source import tiles_of
from oocpr.errors import ReplacedError
from oocpr.plan.device_memory import DeviceNeed, device_need
from oocpr.plan.memory import weighted_tile_bytes
from oocpr.plan.partition import stripe_tiles
from oocpr.plan.request import GraphStats
from oocpr.plan.tile_groups import (
    GROUP_EDGES,
    LAUNCHED_BYTES,
    POOL_BYTES,
    RUN_BYTES,
    SHARED_EDGES,
    STREAMED_EDGES,
    GroupLayout,
    GroupSize,
    GroupSizes,
    expanded_bytes,
    group_bounds,
    group_sizes,
    grouped_stats,
    layout_of,
    pass_bytes,
)
from oocpr.store.direct_io import PAGE, aligned

from ..engine.digraphs import random_digraph
from ..engine.running import Stored
from ..engine.weighted import weigh
from ..kernels.shim.host import HostDevice
from ..kernels.tiles import map_tile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from oocpr.store.graph import GraphStore

STATS = GraphStats(
    nodes=10**6,
    edges=40 * 2**20 - 77,
    tiles=40,
    tile_edges=2**20,
    column_bytes=2 * 40 * 2**20,
    max_tile_bytes=3 * 2**20,
    max_tile_rows=10**5,
    local_share=0.25,
)
ROWS = np.linspace(0, STATS.nodes, STATS.tiles + 1).astype(np.int64)
ALL = 10**6
"""More tiles than there are."""


@pytest.fixture
def device(tmp_path: Path) -> HostDevice:
    """The host, which compiles nothing here."""
    return HostDevice(tmp_path)


class Tile(NamedTuple):
    """What a layout knows of a tile."""

    edges: int
    rows: int
    limit: int


def tiles(most: int = 40) -> st.SearchStrategy[list[Tile]]:
    """Tiles of all sizes: of few and of many edges and rows, and without either."""

    def up_to(size: int) -> st.SearchStrategy[int]:
        return st.one_of(st.integers(0, 40), st.sampled_from([255, 256, 1023, 1024]), st.integers(0, size))

    return st.lists(
        st.builds(Tile, up_to(2**22), up_to(2**24), st.integers(1, 2**24)), min_size=1, max_size=most
    )


@st.composite
def layouts(draw: st.DrawFn) -> GroupLayout:
    """Tiles in groups of all sizes."""
    found = draw(tiles())
    inner = draw(st.sets(st.integers(1, max(1, len(found) - 1))))
    bounds = np.array(sorted({0, len(found)} | {of for of in inner if of < len(found)}))
    edges, rows, limits = (np.array(of, np.int64) for of in zip(*found, strict=True))
    return GroupLayout(bounds, edges, np.append(0, rows.cumsum()), limits, int(limits.max()))


def in_pool(sizes: Iterable[int]) -> int:
    """Bytes of pieces of memory of a device, of which each is rounded up."""
    return sum(-(-size // POOL_BYTES) * POOL_BYTES for size in sizes)


def pieces(arrays: GroupArrays) -> list[int]:
    """Bytes of each array of a group."""
    return [getattr(arrays, name).nbytes for name in arrays.__dataclass_fields__]


@given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**20 - 1), st.data())
def test_groups_are_even_and_stay_within_their_stripe(
    count: int, stripes: int, each: int, more: int, data: st.DataObject
) -> None:
    assume(stripes <= count)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, count - 1)), max_size=stripes - 1)))
    ends = [0, *(cut for cut in cuts if cut < count), count]
    for of in (stripe_tiles(count, stripes), tuple(pairwise(ends))):
        bounds, groups = group_bounds(of, 2**20, each * 2**20 + more)
        assert (bounds[0], bounds[-1]) == (0, count)
        sizes = np.diff(bounds)
        # All tiles once, and no more of them than have so many edges.
        assert 1 <= sizes.min() <= sizes.max() <= each
        assert [(bounds[first], bounds[last]) for first, last in groups] == list(of)
        assert [first for first, _ in groups] == [0, *(last for _, last in groups[:-1])]
        for first, last in groups:
            assert np.ptp(sizes[first:last]) <= 1
            # No fewer groups would do.
            assert (last - first - 1) * each < bounds[last] - bounds[first]


@given(st.integers(1, 500), st.integers(2**20, 2**30), st.integers(1, 2**20))
def test_a_tile_is_a_group_even_if_it_has_more_edges(count: int, tile_edges: int, edges: int) -> None:
    bounds, groups = group_bounds([(0, count)], tile_edges, edges)
    assert bounds.tolist() == list(range(count + 1))
    assert groups == ((0, count),)


@given(
    st.integers(1, 40),
    st.integers(10, 30),
    st.integers(0, 2**17),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (3, 2, 1, 0)]),
)
def test_sizes_of_groups_fall_without_repeats(
    count: int, bits: int, more: int, alone: bool, shared: bool, remembered: tuple[int, ...]
) -> None:
    stats = replace(STATS, tiles=count, tile_edges=2**bits + more)
    streamed = SHARED_EDGES if shared else STREAMED_EDGES
    found = list(group_sizes(stats, streamed, alone=alone, remembered=remembered))
    assert len(set(found)) == len(found)
    ways = list(dict.fromkeys(size[1:] for size in found))
    # What stays, all of it and with less history; then what streams; then rows have less; they leave the
    # device, and what they gather only if it is alone.
    every: list[tuple[bool | int | None, ...]] = [(True, False, False, None)]
    every += [(True, False, False, few) for few in remembered if few < 3]
    every += [(False, False, False, few) for few in (None, *remembered)]
    every += [(False, True, False, None), (False, True, True, None)][: 2 if alone else 1]
    assert ways == every
    for way in ways:
        edges = [size.edges for size in found if size[1:] == way]
        assert edges == sorted(set(edges), reverse=True)
        # At least a tile and no more than all: so each wanted size, or a limit in its place.
        tile, whole = stats.tile_edges, count * stats.tile_edges
        wanted = {*(GROUP_EDGES if way[0] else streamed), *(() if way[0] else (tile,))}
        assert set(edges) == {min(max(of, tile), whole) for of in wanted}
        assert way[0] or edges[-1] == tile
        # They are different groups.
        groups = [len(group_bounds([(0, count)], tile, of)[0]) for of in edges]
        assert groups == sorted(groups)


def test_the_largest_groups_come_first() -> None:
    found = list(group_sizes(replace(STATS, tiles=1000, tile_edges=2**20), STREAMED_EDGES))
    assert found[0] == GroupSize(2**28, all_resident=True, rows_in_host=False)
    assert found[3] == GroupSize(2**25, all_resident=False, rows_in_host=False)
    assert found[-1] == GroupSize(2**20, all_resident=False, rows_in_host=True, partitioned=True)


def test_the_size_is_taken_that_has_least_on_its_way() -> None:
    # Small groups leave room for more that stay; very small ones keep the host busy.
    few, more, many = (
        pass_bytes(2**31, groups, resident=groups * staying // 128)
        for groups, staying in ((32, 0), (64, 48), (1024, 64))
    )
    assert more < few < many == 1024 * LAUNCHED_BYTES
    # Devices share the links' work and not the host's.
    assert pass_bytes(2**31, 32, resident=0, devices=2) == few / 2
    assert pass_bytes(2**31, 1024, resident=64, devices=2) == many
    assert pass_bytes(2**31, 1024, resident=64, sweeps=3) == 2 * many
    assert pass_bytes(2**31, 1024, resident=64, decoded_first=True) == 2 * many


def counted(edges: int, rows: int) -> list[int]:
    """What a tile counts at most, with plain loops."""

    def parts(count: int, of: int) -> int:
        return len(range(0, count, of))

    segments = rows + 1
    nonempty = min(edges, segments)
    return [
        1, edges, nonempty, rows, parts(edges, 1024), parts(segments, 1024), parts(nonempty, 1024),
        parts(segments, 32), parts(segments, 1024), parts(rows, 255),
    ]  # fmt: skip


@given(layouts(), st.data())
def test_groups_count_what_their_tiles_count(layout: GroupLayout, data: st.DataObject) -> None:
    groups = len(layout.bounds) - 1
    expected = []
    for group in range(groups):
        sums = [0] * 10
        for tile in layout.tiles(group):
            rows = int(layout.first_rows[tile + 1]) - int(layout.first_rows[tile])
            sums = [a + b for a, b in zip(sums, counted(int(layout.edges[tile]), rows), strict=True)]
        expected.append(sums)
    assert layout.sizes.tolist() == expected
    assert layout.group_rows.tolist() == [layout.first_rows[first] for first in layout.bounds]
    some = data.draw(st.lists(st.integers(0, groups - 1)))
    most = [max((expected[group][k] for group in some), default=0) for k in range(10)]
    assert layout.largest(some) == GroupSizes(*most)


@given(layouts())
def test_tiles_lie_beside_each_other_in_the_room_of_their_group(layout: GroupLayout) -> None:
    room, places = layout.room, layout.places
    for group in range(len(room)):
        end = 0
        for tile in layout.tiles(group):
            begin = int(places[tile])
            # Words begin 64 bytes behind a tile's first, in whole lines of memory.
            assert (begin + 64) % 128 == 0
            assert begin >= end
            end = begin + int(layout.limits[tile])
        assert end <= room[group]
        assert room[group] % 128 == 0
        # No more is left than what lines take.
        assert room[group] - layout.limits[layout.tiles(group)].sum() <= 256 * len(layout.tiles(group))


@given(layouts(), st.data())
def test_a_part_has_the_same_groups(layout: GroupLayout, data: st.DataObject) -> None:
    groups = len(layout.bounds) - 1
    first = data.draw(st.integers(0, groups - 1))
    last = data.draw(st.integers(first + 1, groups))
    part = layout.part(first, last)
    assert part.sizes.tolist() == layout.sizes[first:last].tolist()
    assert part.room.tolist() == layout.room[first:last].tolist()
    assert part.group_rows.tolist() == layout.group_rows[first : last + 1].tolist()
    for group in range(last - first):
        assert part.tiles(group) == layout.tiles(first + group)
        own = part.tiles(group)
        assert part.places[own].tolist() == layout.places[own].tolist()


def counts() -> st.SearchStrategy[GroupSizes]:
    """What groups may count, for arrays that the host has room for."""
    return st.builds(GroupSizes, *([st.integers(0, 3000)] * 10))


def test_expanded_groups_take_no_more_than_is_counted(device: HostDevice) -> None:
    @given(counts())
    def check(sizes: GroupSizes) -> None:
        arrays = GroupArrays.allocate(device, sizes)
        limit = int(expanded_bytes(np.array(sizes)))
        assert arrays.nbytes <= in_pool(pieces(arrays)) <= limit
        # And not much more: each of eight arrays is rounded up.
        assert limit - arrays.nbytes <= 8 * POOL_BYTES

    check()


def test_streamed_groups_of_all_kinds_fit_into_what_is_counted(device: HostDevice) -> None:
    request = plan_request(Settings(), memory=2**40)

    def needed(layout: GroupLayout, slots: int) -> DeviceNeed:
        stats = replace(STATS, nodes=int(layout.first_rows[-1]), edges=int(layout.edges.sum()))
        return device_need(
            grouped_stats(stats, layout), layout, request, slots=slots, mixing=0, sweeps=1, pairs=False
        )

    # One group has most edges, another one most rows, a third one most tiles.
    kinds = GroupLayout(
        np.array([0, 1, 2, 12]),
        np.array([2**22, 0, *[64] * 10]),
        np.array([0, 64, 2**26, *range(2**26 + 64, 2**26 + 11 * 64, 64)]),
        np.full(12, 2**20),
        2**20,
    )

    @given(layouts(), st.integers(1, 5))
    @example(kinds, 5)
    def check(layout: GroupLayout, slots: int) -> None:
        layout = replace(
            layout, edges=layout.edges // 64, first_rows=layout.first_rows // 64, limits=layout.limits // 64
        )
        sizes = layout.largest(range(len(layout.bounds) - 1))
        streamed, stays = needed(layout, slots), needed(layout, 0)
        expanded = in_pool(pieces(GroupArrays.allocate(device, sizes)))
        assert expanded <= streamed.scratch - stays.scratch
        widths = WidthRoom(device, sizes)
        sums = 8 * (sizes.nonempty + sizes.blocks)
        assert in_pool([widths.lengths.nbytes, widths.starts.nbytes]) <= stays.scratch - sums
        most = int(layout.room.max())
        slot = Slot(device, most, sizes.tiles)
        # A room is made larger, so that it begins with a line.
        assert slot.bytes.size >= most
        assert slots * in_pool([most + 128, slot.table.nbytes]) <= streamed.ring
        assert stays.ring == 0

    check()


TILE_EDGES = 1000


def stores(tmp_path: Path) -> Iterator[GraphStore]:
    """A graph without weights, and one with weights of many bits."""
    with Stored(random_digraph(900, 20_000, seed=2), TILE_EDGES) as store:
        yield store
    graph = weigh(random_digraph(5000, 20_000, seed=3), 6, "reals")
    yield graph.write(tmp_path / "g.zarr", TILE_EDGES)


@pytest.mark.parametrize("each", [1, 3, ALL])
@pytest.mark.parametrize("known", [False, True])
def test_stored_tiles_are_no_larger_than_is_counted(
    tmp_path: Path, device: HostDevice, each: int, known: bool
) -> None:
    for store in stores(tmp_path):
        bounds, _ = group_bounds([(0, store.tiles)], 1, each)
        layout = layout_of(stats_of(store), store.tile_rows, store.tile_sizes() if known else None, bounds)
        source = tiles_of(store)
        assert layout.max_tile_bytes >= source.max_bytes
        for group, limits in enumerate(layout.sizes):
            entries = []
            for tile in layout.tiles(group):
                buffer = aligned(layout.max_tile_bytes)
                encoded = buffer[: source.read_into(tile, buffer)]
                assert encoded.size <= layout.limits[tile]
                entries.append(map_tile(encoded, weighted=store.weights is not None))
            found = TileGroup.of(entries).sizes
            assert (np.array(found) <= limits).all()
            # What is not known beforehand is how many rows have edges.
            assert (found.tiles, found.edges, found.rows) == (limits[0], limits[1], limits[3])
            expanded = in_pool(pieces(GroupArrays.allocate(device, found)))
            assert expanded <= expanded_bytes(limits)


@pytest.mark.parametrize("weighted", [False, True])
def test_known_sizes_are_taken_with_what_pages_take(weighted: bool) -> None:
    stats = replace(STATS, weighted=weighted)
    sizes = np.arange(STATS.tiles) * 2**17
    bounds = np.array([0, 7, STATS.tiles])
    guessed, known = (layout_of(stats, ROWS, of, bounds) for of in (None, sizes))
    assert guessed.limits.tolist() == [stats.max_tile_bytes] * stats.tiles
    # Weights begin with a page, and so do the columns before them.
    more = 2 * PAGE if weighted else 0
    assert known.limits.tolist() == [min(int(size) + more, stats.max_tile_bytes) for size in sizes]
    for columns in (1, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE):
        assert weighted_tile_bytes(columns, 5) <= columns + 5 + 2 * PAGE
    for layout in (guessed, known):
        assert layout.max_tile_bytes == stats.max_tile_bytes
        assert layout.edges.tolist() == [2**20] * 39 + [2**20 - 77]
        assert layout.first_rows.tolist() == ROWS.tolist()
        assert layout.tiles(1) == range(7, 40)


@given(st.lists(st.integers(1, 2 * RUN_BYTES), min_size=1, max_size=40), st.data())
def test_runs_are_the_tiles_of_a_group_and_fit_into_a_buffer(sizes: list[int], data: st.DataObject) -> None:
    inside = data.draw(st.sets(st.integers(1, max(1, len(sizes) - 1)), max_size=3))
    bounds = np.array(sorted({0, len(sizes)} | {at for at in inside if at < len(sizes)}))
    limits, each = np.array(sizes), np.ones(len(sizes), np.int64)
    layout = GroupLayout(bounds, each, np.arange(len(sizes) + 1), limits, int(limits.max()))
    for group in range(len(bounds) - 1):
        runs = layout.runs(group)
        assert [tile for run in runs for tile in run] == list(layout.tiles(group))
        assert [len(run) for run in layout.runs(group, one_by_one=True)] == [1] * len(layout.tiles(group))
        for run, later in pairwise([*runs, None]):
            first, last = int(layout.places[run[0]]), run[-1]
            end = int(layout.places[last] + limits[last]) - first
            # Five bytes more are read of a file, to know that it ends.
            assert end + 5 <= layout.run_bytes
            assert end <= RUN_BYTES or len(run) == 1
            if later is not None:
                assert layout.places[later[0]] + limits[later[0]] - first > RUN_BYTES


def test_groups_have_the_sizes_of_a_graph_of_larger_tiles() -> None:
    bounds = np.array([0, 1, 8, 39, 40])
    layout = layout_of(STATS, ROWS, None, bounds)
    found = grouped_stats(STATS, layout)
    # What all tiles have together is the same.
    same = ("nodes", "edges", "column_bytes", "local_share", "weighted", "weight_bytes")
    assert all(getattr(found, name) == getattr(STATS, name) for name in same)
    assert (found.tiles, found.tile_edges) == (4, 31 * 2**20)
    assert found.max_tile_rows == ROWS[39] - ROWS[8]
    assert found.max_tile_bytes == 31 * (3 * 2**20 + 128)


@pytest.mark.parametrize("stays", ["on_device", "in_host", "nowhere"])
def test_a_tile_of_more_bytes_than_were_counted_is_refused(device: HostDevice, stays: str) -> None:
    with Stored(random_digraph(900, 20_000, seed=2), TILE_EDGES) as store:
        sizes = store.tile_sizes()
        assert sizes is not None
        layout = layout_of(stats_of(store), store.tile_rows, sizes, np.array([0, store.tiles]))
        # As if the graph had been another one when it was planned.
        layout.limits[3] = sizes[3] - 5
        places = {name: frozenset([0] if name == stays else []) for name in ("on_device", "in_host")}
        stream = CudaTileStream(
            device, tiles_of(store), [0], layout=layout, **places, slots=1, readers=2, buffers=4,
            keep=lambda _: None, faults=np.zeros(1, np.uint32),
        )  # fmt: skip
        with pytest.raises(ReplacedError, match=r"tile 3 has \d+ bytes and had at most"):
            stream.run(lambda *_: None)
        stream.close()
