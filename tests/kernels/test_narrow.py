"""Narrow numbers on the device are those of oocpr.engine.number_formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from oocpr.engine.cuda.device import download
from oocpr.engine.number_formats import READS, narrow, widen

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

PROBE = """#include "narrow.cuh"
extern "C" __global__ void store(const double* values, READS::Stored* stored, double scale, u64 count) {
  for (u64 k = thread_number(); k < count; k += thread_count()) stored[k] = READS::narrow(values[k], scale);
}
extern "C" __global__ void load(const READS::Stored* stored, double* values, double scale, u64 count) {
  for (u64 k = thread_number(); k < count; k += thread_count()) {
    values[k] = READS::widen(stored[k]) * (READS::SCALED ? scale : 1.0);
  }
}
"""
FORMATS = {"float64": "Float64", "float32": "Float32", "bits16": "Bits16", "bits8": "Bits8"}
HEADS = {"Head16": np.uint16, "Head32": np.uint32}


def numbers() -> np.ndarray:
    """Numbers of all sizes from 2^-120 to 2^3, ties of rounding, levels and the middles between them."""
    rng = np.random.default_rng(5)
    spread = rng.standard_normal(4000) * np.exp2(rng.uniform(-120, 3, 4000))
    halves = (np.arange(1 << 15, 1 << 15 | 4096, dtype=np.uint32) << 15).view(np.float32).astype(np.float64)
    levels = widen(np.arange(256, dtype=np.uint8), "bits8")
    middles = (levels[1:127] + levels[2:128]) / 2
    around = np.concatenate([np.nextafter(middles, 0), middles, np.nextafter(middles, 9)])
    return np.concatenate(
        [spread, np.abs(halves), levels, around, -around, [0.0, -0.0, 1e-46, 2.0**-126, 1e300]]
    )


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-40])
def test_numbers_are_stored_and_read_as_the_reference_does(device: Device, reads: str, scale: float) -> None:
    xp = device.xp
    values = numbers() * scale
    values = values[np.abs(values) < 3e38] if reads != "float64" else values
    kernels = device.compile(PROBE, READS=FORMATS[reads])
    stored = xp.zeros(values.size, READS[reads].dtype)
    count = np.uint64(values.size)
    kernels.get_function("store")((3,), (128,), (xp.asarray(values), stored, np.float64(scale), count))
    back = xp.zeros(values.size)
    kernels.get_function("load")((3,), (128,), (stored, back, np.float64(scale), count))
    device.synchronize()
    expected = narrow(values, reads, scale)
    small = (np.abs(values) < 2.0**-126) & (reads in ("float32", "bits16"))
    expected[small] = narrow(np.copysign(0.0, values[small]), reads)
    raw = f"u{expected.itemsize}"
    assert np.array_equal(download(stored).view(raw), expected.view(raw))
    assert np.array_equal(download(back), widen(expected, reads, scale))


@pytest.mark.parametrize("head", HEADS)
def test_heads_are_the_first_bits_of_a_float64(device: Device, head: str) -> None:
    xp = device.xp
    values = numbers()
    kernels = device.compile(PROBE, READS=head)
    stored = xp.zeros(values.size, HEADS[head])
    arguments = np.float64(1), np.uint64(values.size)
    kernels.get_function("store")((3,), (128,), (xp.asarray(values), stored, *arguments))
    back = xp.zeros(values.size)
    kernels.get_function("load")((3,), (128,), (stored, back, *arguments))
    cut = np.uint64(64 - 8 * stored.itemsize)
    bits = values.view(np.uint64) >> cut
    assert np.array_equal(download(stored), bits.astype(stored.dtype))
    assert np.array_equal(download(back).view(np.uint64), bits << cut)
