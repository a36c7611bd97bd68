"""The compiled roundings give the bits of the plain ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import njit

from oocpr.engine.cpu.numbers import narrowed, widened
from oocpr.engine.number_formats import READS, level_edges, level_table, narrow, widen


@njit
def narrow_all(values, scale, out):
    for i in range(values.size):
        out[i] = narrowed(out, values[i], scale)


@njit
def widen_all(stored, table, out):
    for i in range(stored.size):
        out[i] = widened(stored[i], table)


def check(values: np.ndarray, reads: str, scale: float) -> None:
    plain = narrow(values, reads, scale)
    compiled = np.empty_like(plain)
    narrow_all(values, scale, compiled)
    np.testing.assert_array_equal(compiled.view(f"u{plain.itemsize}"), plain.view(f"u{plain.itemsize}"))
    read = np.empty(values.size)
    widen_all(compiled, level_table() * scale, read)
    np.testing.assert_array_equal(read, widen(plain, reads, scale))


# Above this, float32 has no numbers.
LARGEST = 3.38e38
ANY = st.floats(-LARGEST, LARGEST)


@pytest.mark.parametrize("reads", READS)
@given(values=st.lists(ANY, max_size=20), exponent=st.integers(-80, 80))
@example(values=[0.0, -0.0, 5e-324, -5e-324, 1e-45, -1e-38, LARGEST, -LARGEST], exponent=0)
@example(values=[1.0, -1.0, 0.5, 2.0, 1.5, -3.0], exponent=-1)
def test_any_numbers(reads, values, exponent):
    check(np.array(values), reads, 2.0**exponent)


@pytest.mark.parametrize("reads", READS)
@given(values=st.lists(st.floats(-2, 2), max_size=20), exponent=st.integers(-40, 40))
def test_numbers_of_the_size_of_the_scale(reads, values, exponent):
    check(np.array(values) * 2.0**exponent, reads, 2.0**exponent)


@pytest.mark.parametrize("exponent", [-20, 0, 7])
def test_halves_between_two_levels_and_their_neighbours(exponent):
    levels = level_table()[:128]
    points = np.concatenate([levels, level_edges(), (levels[1:] + levels[:-1]) / 2])
    points = np.concatenate([points, np.nextafter(points, 0), np.nextafter(points, 9)])
    check(np.concatenate([points, -points]) * 2.0**exponent, "bits8", 2.0**exponent)


@given(upper=st.integers(0, 0x7F7E), beyond=st.sampled_from([0x7FFF, 0x8000, 0x8001]))
def test_halves_between_two_sixteen_bit_numbers(upper, beyond):
    half = np.array([upper << 16 | beyond], np.uint32).view(np.float32).astype(np.float64)
    for values in (half, -half, np.nextafter(half, 0), np.nextafter(half, 9)):
        check(values, "bits16", 1.0)
