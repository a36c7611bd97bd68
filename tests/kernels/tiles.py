"""Tiles to try kernels with, and what a plain program makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from oocpr.engine.cuda.tile import raise_faults, upload_tile
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tiles import encode_tile

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.tile import DeviceTile


@st.composite
def tiles(draw: st.DrawFn, nodes: int = 2**32) -> tuple[np.ndarray, np.ndarray]:
    """Columns below `nodes`, and lengths: empty rows, short and long ones, gaps of all sizes."""
    longest = draw(st.sampled_from([1, 3, 40, 5000]))
    skew = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = []
    for _ in range(draw(st.sampled_from([0, 1, 4, 70]))):
        length = rng.integers(0, longest + 1) * (rng.random() < 0.8)
        rows.append(np.unique((rng.random(length) ** skew * nodes).astype(np.uint32)))
    columns = np.concatenate([*rows, np.empty(0, np.uint32)])
    return columns, np.array([row.size for row in rows], np.uint32)


def random_tile(
    rows: int, degree: float, nodes: int, *, skew: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A larger tile; some rows are empty and a few are thousands of links long."""
    rng = np.random.default_rng(seed)
    lengths = rng.poisson(degree * rng.exponential(size=rows))
    lengths[rng.integers(0, rows, 2)] = [4000, 9000]
    lists = [np.unique((rng.random(n) ** skew * nodes).astype(np.uint32)) for n in lengths]
    return np.concatenate(lists), np.array([x.size for x in lists], np.uint32)


def placed(device: Device, columns: np.ndarray, lengths: np.ndarray) -> DeviceTile:
    """A tile on a device, found sound."""
    faults = device.xp.zeros(1, np.uint32)
    packed = parse_tile(np.frombuffer(encode_tile(columns, lengths), np.uint8))
    tile = upload_tile(device, packed, faults)
    raise_faults(int(faults[0]))
    return tile
