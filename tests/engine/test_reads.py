"""Laws of the formats of gathered numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.number_formats import LEVELS_PER_OCTAVE, READS, level_edges, level_table, narrow, widen

# Numbers whose float32 form is neither infinite nor denormal: below, relative precision is not promised.
MAGNITUDES = st.floats(2.0**-120, 2.0**126)
NUMBERS = st.just(0.0) | MAGNITUDES | MAGNITUDES.map(lambda x: -x)
SCALES = st.integers(-60, 60).map(lambda exponent: 2.0**exponent)


def rounded(value: float, reads: str, scale: float = 1.0) -> float:
    return float(widen(narrow(np.array([value]), reads, scale), reads, scale)[0])


@pytest.mark.parametrize("reads", READS)
@given(value=NUMBERS, scale=SCALES)
def test_what_is_stored_rounds_to_itself(reads, value, scale):
    stored = narrow(np.array([value]), reads, scale)
    assert stored.dtype == READS[reads].dtype
    assert stored.itemsize == READS[reads].bytes
    again = narrow(widen(stored, reads, scale), reads, scale)
    assert again.tobytes() == stored.tobytes()


@pytest.mark.parametrize("reads", READS)
@given(value=NUMBERS, scale=SCALES)
def test_the_sign_is_kept_and_zero_stays_zero(reads, value, scale):
    assert rounded(-value, reads, scale) == -rounded(value, reads, scale)
    assert rounded(0.0, reads, scale) == 0


@pytest.mark.parametrize("reads", READS)
@given(values=st.lists(NUMBERS, min_size=2, max_size=2).map(sorted), scale=SCALES)
def test_rounding_keeps_the_order(reads, values, scale):
    low, high = values
    assert rounded(low, reads, scale) <= rounded(high, reads, scale)


@pytest.mark.parametrize("reads", ["float64", "float32", "bits16"])
@given(value=MAGNITUDES)
def test_the_unit_rounding_of_floating_formats_is_never_passed(reads, value):
    error = abs(Fraction(rounded(value, reads)) - Fraction(value))
    assert error <= Fraction(value) * Fraction(READS[reads].unit_rounding)


# The levels have 20 bits after the point, so the steps between them differ from 2**0.2 by less than this.
LEVEL_PRECISION = 1e-5


@given(fraction=st.floats(2.0**-25, 1.0), scale=SCALES)
def test_the_unit_rounding_of_a_byte_is_never_passed_within_its_range(fraction, scale):
    value = fraction * scale
    limit = READS["bits8"].unit_rounding * (1 + LEVEL_PRECISION)
    assert abs(rounded(value, "bits8", scale) - value) <= limit * value


@pytest.mark.parametrize("reads", ["float32", "bits16"])
def test_the_unit_rounding_of_floating_formats_is_attained(reads):
    unit = READS[reads].unit_rounding
    middle = 1 + unit
    assert abs(rounded(middle, reads) - middle) == unit


def test_the_unit_rounding_of_a_byte_is_attained():
    values = np.linspace(2.0**-0.2, 1, 100_001)
    error = np.abs(widen(narrow(values, "bits8"), "bits8") / values - 1).max()
    assert error == pytest.approx(READS["bits8"].unit_rounding, rel=1e-4)


def test_a_byte_has_five_levels_an_octave_and_its_levels_rise():
    table = level_table()
    assert table[0] == table[128] == 0
    assert np.all(np.diff(table[:128]) > 0)
    assert np.all(np.diff(table[128:]) < 0)
    assert np.array_equal(table[1:123] * 2, table[1 + LEVELS_PER_OCTAVE : 123 + LEVELS_PER_OCTAVE])
    assert table[127] == 1
    np.testing.assert_allclose(table[1:128], 2.0 ** ((np.arange(1, 128) - 127) / 5), rtol=1e-6)


def test_a_number_gets_the_nearest_level():
    values = np.concatenate([np.linspace(0, 1, 20_001), level_edges(), np.nextafter(level_edges(), 0)])
    levels = level_table()[:128]
    nearest = np.abs(values[:, None] - levels).min(axis=1)
    np.testing.assert_array_equal(np.abs(widen(narrow(values, "bits8"), "bits8") - values), nearest)


@given(value=st.floats(1, 1e6), scale=SCALES)
def test_a_number_above_the_scale_is_cut_to_it(value, scale):
    assert rounded(value * scale, "bits8", scale) == scale


@given(level=st.integers(0, 255), links=st.integers(1, 2**32 - 1), scale=SCALES)
def test_a_byte_times_an_out_degree_is_exact(level, links, scale):
    stored = float(widen(np.array([level], np.uint8), "bits8", scale)[0])
    assert Fraction(stored) == Fraction(float(level_table()[level])) * Fraction(scale)
    assert Fraction(stored * float(links)) == Fraction(stored) * links


@given(value=NUMBERS, links=st.integers(1, 2**32 - 1))
def test_sixteen_bits_times_an_out_degree_are_exact(value, links):
    stored = rounded(value, "bits16")
    assert Fraction(stored * float(links)) == Fraction(stored) * links


@given(value=NUMBERS, links=st.integers(1, 2**29))
def test_a_float32_times_an_out_degree_is_exact(value, links):
    stored = rounded(value, "float32")
    assert Fraction(stored * float(links)) == Fraction(stored) * links
