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
from oocpr.engine.cuda.tile import check_columns, upload_tile
from oocpr.engine.number_formats import READS, narrow, widen
from oocpr.errors import DamagedError
from oocpr.store.codec.layout import GROUP, parse_tile
from oocpr.store.codec.tiles import encode_tile

from .conftest import HOSTS
from .shim.host import HostDevice
from .tiles import placed, random_tile, tiles

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.spmv import Window

NODES = 40_000


def gathered(reads: str, seed: int, pairs: int) -> np.ndarray:
    """Stored numbers of many magnitudes and both signs, zeros behind the last node."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(NODES + 1, pairs)) * 2.0 ** rng.uniform(-30, 0, (NODES + 1, pairs))
    values[-1] = 0
    return narrow(values, reads, 4.0)


def run(
    device: Device,
    tile: tuple[np.ndarray, np.ndarray],
    stored: np.ndarray,
    reads: str,
    window: Window = EVERYTHING,
    config: LaunchConfig | None = None,
    **parameters: bool,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Sums of pushes and proposals of the segments that are not empty, and the faults."""
    there = placed(device, *tile)
    sums = SegmentSums.allocate(device, there.nonempty, there.blocks, paired=stored.shape[1] > 1)
    faults = device.xp.zeros(1, np.uint32)
    for array in (sums.pushes, sums.heads):
        array[:] = np.nan
    product = SpMV(device, Gather(reads, paired=stored.shape[1] > 1, **parameters), config)
    product(there, device.xp.array(stored), NODES, window, sums, faults)
    device.synchronize()
    kept = slice(0, there.nonempty)
    return download(sums.pushes)[kept], download(sums.proposals)[kept], int(download(faults)[0])


def expected(tile: tuple[np.ndarray, np.ndarray], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of each segment that is not empty, and of magnitudes, which bound what rounding may do."""
    columns, lengths = tile
    full = lengths[lengths > 0]
    begins = np.cumsum(full, dtype=np.int64) - full
    if not len(full):
        return np.zeros(0), np.zeros(0)
    return np.add.reduceat(values[columns], begins), np.add.reduceat(np.abs(values[columns]), begins)


def check(
    device: Device, tile: tuple[np.ndarray, np.ndarray], reads: str, pairs: int, **parameters: object
) -> None:
    stored = gathered(reads, 5, pairs)
    first, past = window = (NODES // 3, NODES // 2) if parameters.get("striped") else EVERYTHING
    pushes, proposals, faults = run(device, tile, stored, reads, window, **parameters)  # type: ignore[arg-type]
    assert not faults
    # The scale is left to the caller.
    values = widen(stored, reads)
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
}


@pytest.mark.parametrize("name", VARIANTS)
def test_sums(device: Device, name: str) -> None:
    reads, pairs, parameters = VARIANTS[name]
    check(device, random_tile(1500, 9, NODES, skew=2), reads, pairs, **parameters)


@settings(max_examples=25)
@given(tile=tiles(NODES))
def test_sums_of_any_tile(device: Device, tile: tuple[np.ndarray, np.ndarray]) -> None:
    check(device, tile, "bits16", 2)


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
    check(device, tile, "bits16", 2)


@pytest.mark.long
def test_no_schedule_changes_a_bit(device: Device) -> None:
    tile = random_tile(1000, 12, NODES)
    stored = gathered("bits16", 2, 2)
    shapes = [LaunchConfig(), LaunchConfig(each=1), WIDE_CONFIG, LaunchConfig(teams=2, resident=2, each=9)]
    shapes += [LaunchConfig(hubs=64), launch_config(Gather("bits16", paired=True), device.shared_bytes)]
    results = [run(device, tile, stored, "bits16", config=config)[:2] for config in shapes]
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
@given(data=st.data(), tile=tiles(NODES), seed=st.integers(0, 9))
def test_no_launch_config_changes_a_bit(
    shim_folder: Path,
    reads: str,
    pairs: int,
    data: st.DataObject,
    tile: tuple[np.ndarray, np.ndarray],
    seed: int,
) -> None:
    device = HostDevice(shim_folder)
    stored = gathered(reads, seed, pairs)
    usual = run(device, tile, stored, reads)
    config = data.draw(shapes(READS[reads].bytes * pairs, device.shared_bytes))
    found = run(device, tile, stored, reads, config=config)
    # Without pairs there are no proposals.
    for a, b in zip(usual[:pairs], found[:pairs], strict=True):
        assert a.tobytes() == b.tobytes()


def test_launch_configs_of_one_kernel_leave_each_other_their_shared_memory(device: Device) -> None:
    tile, reads = placed(device, *random_tile(100, 9, NODES)), device.xp.array(gathered("bits16", 2, 1))
    sums = SegmentSums.allocate(device, tile.nonempty, tile.blocks, paired=False)
    faults = device.xp.zeros(1, np.uint32)
    products = [
        SpMV(device, Gather("bits16"), LaunchConfig(teams=3, resident=1, hubs=hubs)) for hubs in (1 << 15, 32)
    ]
    found = []
    for product in products:
        product(tile, reads, NODES, EVERYTHING, sums, faults)
        device.synchronize()
        found.append(download(sums.pushes)[: tile.nonempty].copy())
    assert np.array_equal(*found)


def test_orders_of_threads_and_widths_of_warps_do_not_change_a_bit(shim_folder: Path) -> None:
    tile = random_tile(1000, 12, NODES)
    stored = gathered("bits16", 2, 2)
    results = [run(HostDevice(shim_folder, **host), tile, stored, "bits16")[:2] for host in HOSTS.values()]
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_columns_that_are_no_nodes_are_found_and_not_followed(device: Device) -> None:
    tile = (np.array([5, NODES, NODES + 7, 9], np.uint32), np.array([3, 1], np.uint32))
    stored = gathered("bits16", 1, 1)
    pushes, _, faults = run(device, tile, stored, "bits16", checked=True)
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
    coded = np.frombuffer(encode_tile(columns, lengths), np.uint8).copy()
    for at in rng.integers(0, coded.size, rng.integers(1, 5)):
        coded[at] ^= 1 << rng.integers(0, 8)
    device = HostDevice(shim_folder, reverse=bool(seed % 4 == 1))
    faults = np.zeros(1, np.uint32)
    try:
        packed = parse_tile(coded)
    except DamagedError:
        return
    there = upload_tile(device, packed, faults)
    sums = SegmentSums.allocate(device, there.nonempty, there.blocks, paired=False)
    reads = gathered("bits16", 1, 1)
    SpMV(device, Gather("bits16", checked=True))(there, reads, NODES, EVERYTHING, sums, faults)
    check_columns(device, there, NODES, faults)
    assert faults[0] & ~np.uint32(15) == 0
