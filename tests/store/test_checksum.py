from __future__ import annotations

import google_crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oocpr.store.codec.crc32c import crc32c


@given(st.integers(0, 5000), st.integers(0, 9), st.integers(0, 2**32))
def test_checksums_are_those_of_the_library_that_zarr_uses(size, skip, seed):
    data = np.random.default_rng(seed).integers(0, 256, size + skip, np.uint8)[skip:]
    assert crc32c(data) == google_crc32c.value(data)


def test_long_stretches_are_joined_rightly():
    data = np.random.default_rng(1).integers(0, 256, 10_000_001, np.uint8)
    assert crc32c(data) == google_crc32c.value(data)
