"""The balanced product against sums of plain NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.spmv import (
    EVERYTHING,
    MAX_IN_EDGE_ORDER,
    READ_STRUCTS,
    SCRATCH_BYTES,
    WIDE_CONFIG,
    Gather,
    LaunchConfig,
    SegmentSums,
    SpMV,
    launch_config,
)
from oocpr.engine.number_formats import READS, narrow, widen
from oocpr.errors import DamagedError
from oocpr.store.codec.layout import BLOCK, GROUP

from .conftest import HOSTS
from .shim.host import HostDevice
from .tiles import cut_rows, encoded, groups, joined, open_group, placed, random_tile, tiles

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.spmv import Window

    from .tiles import Tile

NODES = 40_000


def gathered(reads: str, seed: int, pairs: int) -> np.ndarray:
    """Stored numbers of many magnitudes and both signs, zeros behind the last node."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(NODES + 1, pairs)) * 2.0 ** rng.uniform(-30, 0, (NODES + 1, pairs))
    values[-1] = 0
    return narrow(values, reads, 4.0)


def run(
    device: Device,
    of: list[Tile],
    stored: np.ndarray,
    reads: str,
    window: Window = EVERYTHING,
    config: LaunchConfig | None = None,
    **parameters: bool,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Sums of pushes and proposals of the segments of a group that are not empty, and the faults."""
    there = placed(device, *of)
    nonempty, blocks = there.sizes.nonempty, there.sizes.blocks
    sums = SegmentSums.allocate(device, nonempty, blocks, paired=stored.shape[1] > 1)
    faults = device.xp.zeros(1, np.uint32)
    for array in (sums.pushes, sums.heads):
        array[:] = np.nan
    gather = Gather(reads, paired=stored.shape[1] > 1, **parameters)
    if gather.decoded:
        there.fours = device.xp.empty(blocks * BLOCK, np.uint32)
        there.check_columns(device, NODES, faults)
    product = SpMV(device, gather, config)
    product(there, device.xp.array(stored), NODES, window, sums, faults)
    device.synchronize()
    kept = slice(0, nonempty)
    return download(sums.pushes)[kept], download(sums.proposals)[kept], int(download(faults)[0])


def expected(tile: Tile, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of each segment that is not empty, and of magnitudes, which bound what rounding may do."""
    columns, lengths = tile
    full = lengths[lengths > 0]
    begins = np.cumsum(full, dtype=np.int64) - full
    if not len(full):
        return np.zeros(0), np.zeros(0)
    return np.add.reduceat(values[columns], begins), np.add.reduceat(np.abs(values[columns]), begins)


def check(device: Device, of: list[Tile], reads: str, pairs: int, **parameters: object) -> None:
    stored = gathered(reads, 5, pairs)
    first, past = window = (NODES // 3, NODES // 2) if parameters.get("striped") else EVERYTHING
    pushes, proposals, faults = run(device, of, stored, reads, window, **parameters)  # type: ignore[arg-type]
    assert not faults
    # The scale is left to the caller.
    values, tile = widen(stored, reads), joined(of)
    sums, sizes = expected(tile, values[:, 0])
    assert np.all(np.abs(pushes - sums) <= 1e-14 * sizes)
    if pairs > 1:
        nodes = np.arange(NODES + 1)
        seen = np.where((nodes >= first) & (nodes < past), values[:, 1], 0)
        sums, sizes = expected(tile, seen)
        assert np.all(np.abs(proposals - sums) <= 2e-5 * sizes)


VARIANTS = {
    "float64": ("float64", 1, {}),
    "float32": ("float32", 1, {}),
    "bits16": ("bits16", 1, {}),
    "bits8": ("bits8", 1, {}),
    "float32, lanes apart": ("float32", 1, {"config": WIDE_CONFIG}),
    "bits8, hubs": ("bits8", 1, {"config": LaunchConfig(teams=3, resident=1, hubs=1 << 16)}),
    "float64 pairs, hubs": ("float64", 2, {"config": replace(WIDE_CONFIG, hubs=96)}),
    "float64 pairs": ("float64", 2, {}),
    "bits16 pairs of a stripe": ("bits16", 2, {"striped": True}),
    "float32 pairs": ("float32", 2, {}),
    "bits16 pairs, checked": ("bits16", 2, {"checked": True}),
    "bits16 pairs, lanes apart, checked": ("bits16", 2, {"config": WIDE_CONFIG, "checked": True}),
    "bits8 pairs of a stripe, checked": ("bits8", 2, {"striped": True, "checked": True}),
    "bits16, decoded": ("bits16", 1, {"decoded": True}),
    "float64, decoded": ("float64", 1, {"decoded": True}),
    "bits8 pairs of a stripe, decoded": ("bits8", 2, {"striped": True, "decoded": True}),
    "bits16, decoded, hubs": ("bits16", 1, {"decoded": True, "config": replace(WIDE_CONFIG, hubs=1 << 14)}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_sums(device: Device, name: str) -> None:
    reads, pairs, parameters = VARIANTS[name]
    tile = random_tile(1500, 9, NODES, skew=2)
    check(device, [tile], reads, pairs, **parameters)
    # Rows go on where tiles do, whose last blocks are not full.
    check(device, cut_rows(*tile, 5000), reads, pairs, **parameters)


@settings(max_examples=15)
@given(of=groups(NODES), reads=st.sampled_from(list(READS)))
def test_decoding_columns_before_changes_no_bit(device: Device, of: list[Tile], reads: str) -> None:
    stored = gathered(reads, 7, 1)
    assert (
        run(device, of, stored, reads, decoded=True)[0].tobytes()
        == run(device, of, stored, reads)[0].tobytes()
    )


@settings(max_examples=25)
@given(of=groups(NODES))
def test_sums_of_any_group(device: Device, of: list[Tile]) -> None:
    check(device, of, "bits16", 2)


@settings(max_examples=15)
@given(
    tile=tiles(NODES), tile_edges=st.sampled_from([100, 1000, 1024, 1500]), reads=st.sampled_from(list(READS))
)
def test_segments_have_the_same_bits_in_any_group(
    device: Device, tile: Tile, tile_edges: int, reads: str
) -> None:
    of = cut_rows(*tile, max(tile_edges, len(tile[0]) // 40))
    stored = gathered(reads, 4, 2)
    alone = [run(device, [one], stored, reads) for one in of]
    for each in (2, 7, len(of)):
        found = [run(device, of[first : first + each], stored, reads) for first in range(0, len(of), each)]
        for kind in (0, 1):
            ours, theirs = (np.concatenate([part[kind] for part in parts]) for parts in (found, alone))
            assert ours.tobytes() == theirs.tobytes()


@settings(max_examples=15)
@given(tile=tiles(2000), tile_edges=st.sampled_from([100, 1000, 1024]), first=st.integers(0, 900))
def test_what_is_inside_a_tile_is_gathered_from_its_own_rows(
    device: Device, tile: Tile, tile_edges: int, first: int
) -> None:
    of = cut_rows(*tile, max(tile_edges, len(tile[0]) // 20))
    owned = [lengths.size - 1 for _, lengths in of]
    there = placed(device, *of)
    rng = np.random.default_rng(first)
    # Few bits each: sums are exact. Behind the rows of the group is a zero.
    values = np.append(rng.integers(1, 2**10, sum(owned)), 0).astype(np.float32)
    sums = SegmentSums.allocate(device, there.sizes.nonempty, there.sizes.blocks, paired=False)
    faults = device.xp.zeros(1, np.uint32)
    product = SpMV(device, Gather("float32", inside=True))
    product(there, device.xp.asarray(values), 2000, (first, first + sum(owned)), sums, faults)
    device.synchronize()
    wanted, row = [], 0
    for (columns, lengths), rows in zip(of, owned, strict=True):
        ends = np.cumsum(lengths, dtype=np.int64)
        for size, end in zip(lengths.tolist(), ends.tolist(), strict=True):
            own = columns[end - size : end].astype(np.int64) - first
            if size:
                wanted.append(values[own[(own >= row) & (own < row + rows)]].sum())
        row += rows
    assert np.array_equal(download(sums.pushes)[: there.sizes.nonempty], wanted)


ROWS = {
    "no edges": [0, 0],
    "one row over many blocks": [0, 3, 39_999],
    "two long rows that meet inside a block": [30_000, 30_001],
    "rows that end with blocks": [1024, 2048, 0, 1024],
    "single edges": [1] * 5000,
    "one edge too many": [1025],
    "rows of 32 edges": [32] * 70,
    "long rows over long rows": [35_000] * 40,
}


@pytest.mark.parametrize("name", ROWS)
def test_odd_rows(device: Device, name: str) -> None:
    rng = np.random.default_rng(3)
    lengths = np.array(ROWS[name], np.uint32)
    columns = [np.sort(rng.choice(NODES, n, replace=False)) for n in lengths]
    tile = (np.concatenate([*columns, np.empty(0)]).astype(np.uint32), lengths)
    check(device, [tile], "bits16", 2)
    check(device, cut_rows(*tile, max(3000, len(columns[0]) // 9)), "bits16", 2)


@pytest.mark.long
def test_no_schedule_changes_a_bit(device: Device) -> None:
    of = cut_rows(*random_tile(1000, 12, NODES), 6000)
    stored = gathered("bits16", 2, 2)
    shapes = [LaunchConfig(), LaunchConfig(each=1), WIDE_CONFIG, LaunchConfig(teams=2, resident=2, each=9)]
    shapes += [LaunchConfig(hubs=64), launch_config(Gather("bits16", paired=True), device.shared_bytes)]
    results = [run(device, of, stored, "bits16", config=config)[:2] for config in shapes]
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


@st.composite
def shapes(draw: st.DrawFn, word: int, shared_bytes: int) -> LaunchConfig:
    """Draw any constants that can be compiled for so many bytes gathered of a node."""
    teams, resident = draw(st.sampled_from([(2, 8), (2, 16), (4, 5), (8, 2), (8, 4), (14, 1), (7, 2)]))
    room = shared_bytes - teams * SCRATCH_BYTES
    hubs = min(draw(st.sampled_from([0, 0, 40 << 10, 80 << 10, 120 << 10])), room) // word // GROUP * GROUP
    order = draw(st.booleans()) and word <= MAX_IN_EDGE_ORDER
    return LaunchConfig(teams, resident, 1 if hubs else draw(st.integers(1, 40)), order, hubs)


@pytest.mark.long
@pytest.mark.parametrize(("reads", "pairs"), [("bits16", 1), ("bits16", 2), ("bits8", 2), ("float64", 1)])
@settings(max_examples=20)
@given(data=st.data(), of=groups(NODES), seed=st.integers(0, 9))
def test_no_launch_config_changes_a_bit(
    shim_folder: Path,
    reads: str,
    pairs: int,
    data: st.DataObject,
    of: list[Tile],
    seed: int,
) -> None:
    device = HostDevice(shim_folder)
    stored = gathered(reads, seed, pairs)
    usual = run(device, of, stored, reads)
    config = data.draw(shapes(READS[reads].bytes * pairs, device.shared_bytes))
    found = run(device, of, stored, reads, config=config)
    # Without pairs there are no proposals.
    for a, b in zip(usual[:pairs], found[:pairs], strict=True):
        assert a.tobytes() == b.tobytes()


def test_launch_configs_of_one_kernel_leave_each_other_their_shared_memory(device: Device) -> None:
    tile, reads = placed(device, random_tile(100, 9, NODES)), device.xp.array(gathered("bits16", 2, 1))
    sums = SegmentSums.allocate(device, tile.sizes.nonempty, tile.sizes.blocks, paired=False)
    faults = device.xp.zeros(1, np.uint32)
    products = [
        SpMV(device, Gather("bits16"), LaunchConfig(teams=3, resident=1, hubs=hubs)) for hubs in (1 << 15, 32)
    ]
    found = []
    for product in products:
        product(tile, reads, NODES, EVERYTHING, sums, faults)
        device.synchronize()
        found.append(download(sums.pushes)[: tile.sizes.nonempty].copy())
    assert np.array_equal(*found)


def test_orders_of_threads_and_widths_of_warps_do_not_change_a_bit(shim_folder: Path) -> None:
    of = cut_rows(*random_tile(1000, 12, NODES), 6000)
    stored = gathered("bits16", 2, 2)
    results = [run(HostDevice(shim_folder, **host), of, stored, "bits16")[:2] for host in HOSTS.values()]
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_columns_that_are_no_nodes_are_found_and_not_followed(device: Device) -> None:
    tile = (np.array([5, NODES, NODES + 7, 9], np.uint32), np.array([3, 1], np.uint32))
    stored = gathered("bits16", 1, 1)
    pushes, _, faults = run(device, [tile], stored, "bits16", checked=True)
    assert faults == 8
    np.testing.assert_array_equal(pushes, widen(stored[[5, 9], 0], "bits16"))


def test_all_formats_are_known() -> None:
    assert list(READ_STRUCTS) == list(READS)


@pytest.mark.parametrize("seed", range(60))
def test_no_byte_leads_astray(shim_folder: Path, seed: int) -> None:
    """Whatever passes the check of the host is harmless on a device; the sanitized run finds over-reads."""
    rng = np.random.default_rng(seed)
    columns, lengths = random_tile(1100, 2, NODES, seed=seed % 3)
    if seed % 2:
        columns, lengths = columns[: lengths[:40].sum()], lengths[:40]
    coded = encoded(columns, lengths).copy()
    for at in rng.integers(0, coded.size, rng.integers(1, 5)):
        coded[at] ^= 1 << rng.integers(0, 8)
    device = HostDevice(shim_folder, reverse=bool(seed % 4 == 1))
    faults = np.zeros(1, np.uint32)
    # By itself, and among others that are sound.
    others = [encoded(*random_tile(90, 2, NODES, seed=k)) for k in range(2)]
    of = [coded] if seed % 3 else [others[0], coded, others[1]]
    try:
        there, faults[0] = open_group(device, of)
    except DamagedError:
        return
    sums = SegmentSums.allocate(device, there.sizes.nonempty, there.sizes.blocks, paired=False)
    reads = gathered("bits16", 1, 1)
    gather = Gather("bits16", checked=True)
    SpMV(device, gather)(there, reads, NODES, EVERYTHING, sums, faults)
    there.check_columns(device, NODES, faults)
    assert faults[0] & ~np.uint32(15) == 0
