"""The largest numbers on the device are those that the host finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from oocpr.engine.cuda.topk import largest_on
from oocpr.result.topk import largest

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device

RNG = np.random.default_rng(2)
VECTORS = {
    "ranks": RNG.random(3000) ** 9,
    "ties": RNG.integers(0, 4, 3000).astype(np.float64),
    "one value": np.full(700, 0.25),
    "signs": np.concatenate([RNG.standard_normal(500), [0.0, -0.0, 0.0, -np.inf, np.inf, 5e-324, -5e-324]]),
    "one": np.ones(1),
    "none": np.empty(0),
}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("k", [0, 1, 10, 256, 1000, 5000])
def test_the_largest_and_their_places(device: Device, name: str, k: int) -> None:
    vector = VECTORS[name]
    rows, values = largest_on(device, device.xp.asarray(vector), k)
    expected_rows, expected = largest([vector], k)
    assert np.array_equal(values, expected)
    assert np.array_equal(rows, expected_rows)
