"""Sizes are read as people write them and printed so that they can be read back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import UsageError
from oocpr.units import format_bytes, format_count, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1048576", 1 << 20),
        ("8GiB", 8 << 30),
        ("8 GiB", 8 << 30),
        (" 8gib ", 8 << 30),
        ("8G", 8 << 30),
        ("8g", 8 << 30),
        ("8GB", 8 * 10**9),
        ("512MB", 512 * 10**6),
        ("10kB", 10_000),
        ("10KiB", 10_240),
        ("1.5TiB", 3 << 39),
        (".5k", 512),
        ("12B", 12),
        ("9007199254740993", 2**53 + 1),
        ("2PiB", 2 << 50),
        (4096, 4096),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "8 apples",
        "-8GiB",
        "8iB",
        "8i",
        "1e9",
        "8 GiB B",
        "nan",
        "inf",
        "0x10",
        "8GiB/s",
        "1,5GiB",
        True,
    ],
)
def test_what_is_no_size_is_refused_with_the_value_and_a_way_out(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert repr(text) in caught.value.cause
    assert "GiB" in caught.value.remedy


@pytest.mark.parametrize("text", ["0", "0GiB", "0.2", 0, -5])
def test_less_than_a_byte_is_refused(text: str | int) -> None:
    with pytest.raises(UsageError, match="less than one byte"):
        parse_bytes(text)


@given(st.integers(1, 2**62))
def test_whole_bytes_round_trip(size: int) -> None:
    assert parse_bytes(str(size)) == size


@given(st.integers(1, 2**59))
def test_printed_sizes_read_back_to_three_digits(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=5e-3, abs=0.5)


@given(st.integers(0, 10**20), st.sampled_from([format_bytes, format_count]))
def test_printed_numbers_never_reach_the_next_unit(value: int, printed: Callable[[float], str]) -> None:
    text = printed(value)
    number = float(text.split()[0].replace(",", ""))
    if " " in text and text[-1] not in "E" and not text.endswith("EiB"):
        assert number < 1024


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1023, "1023 B"), (1024, "1 KiB"), (1 << 20, "1 MiB"),
     (1536 << 20, "1.5 GiB"), (1 << 60, "1 EiB"), ((1 << 40) - 1, "1 TiB"), (0.25, "0.25 B")],
)  # fmt: skip
def test_sizes_are_printed(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (99_999, "99,999"), (100_000, "100 k"), (325_557, "326 k"), (999_600, "1 M"),
     (67_108_864, "67.1 M"), (3_216_152, "3.22 M"), (2**32 - 1, "4.29 G"), (0.5, "0.5")],
)  # fmt: skip
def test_counts_are_printed(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (1e-6, "0.001 ms"), (0.0123, "12.3 ms"), (0.9996, "1 s"), (59.4, "59.4 s"),
     (59.96, "1 min 0 s"), (200, "3 min 20 s"), (3599.7, "1 h 0 min"),
     (7260, "2 h 1 min"), (200_000, "2 d 8 h")],
)  # fmt: skip
def test_times_are_printed(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(5e-324, 1e12, exclude_max=True))
def test_a_number_is_a_time_in_seconds(seconds: float) -> None:
    assert parse_seconds(seconds) == seconds
    assert parse_seconds(f"{seconds}s") == seconds


@pytest.mark.parametrize(
    "time", [0.0, -5e-05, "0e-5", "1e-400", "1e-9999", "5e-", "e-5", "5e-05 weeks", True]
)
def test_what_is_no_time_is_refused(time: str | float) -> None:
    with pytest.raises(UsageError, match=r" is no time\. Write a number and a unit"):
        parse_seconds(time)
