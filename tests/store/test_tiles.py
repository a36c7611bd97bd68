from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.errors import UsageError
from oocpr.store.codec.bitpacking import encode_offsets
from oocpr.store.codec.layout import parse_offsets, parse_tile
from oocpr.store.codec.tiles import (
    SCRATCH,
    TileEncoder,
    decode_block,
    decode_tile,
    encode_runs,
    encode_tile,
    expand_segments,
)
from tests.store import reference_codec as reference


@st.composite
def tiles(draw):
    """Columns and lengths of a tile: empty rows, long ones, and gaps of all sizes up to 32 bits."""
    bits = draw(st.sampled_from([1, 3, 8, 17, 24, 32]))
    longest = draw(st.sampled_from([1, 3, 40, 3000]))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(draw(st.integers(0, 60))):
        length = rng.integers(0, longest + 1) * (rng.random() < 0.8)
        gaps = (rng.random(length) ** rng.integers(1, 12) * 2**bits).astype(np.int64)
        row = np.cumsum(gaps + 1) - 1 + rng.integers(0, 2**bits)
        rows.append(row[row < 2**32])
    columns = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.uint32)
    return columns, np.array([row.size for row in rows], np.uint32)


def as_array(coded: bytes) -> np.ndarray:
    return np.frombuffer(coded, np.uint8)


def test_the_worked_number_of_the_format():
    values = np.repeat([7, 31], 32)
    values[0], values[37] = 0, 300
    _, steps = parse_offsets(as_array(encode_offsets(np.cumsum(values))))
    assert steps.widths.tolist() == [3, 5]
    assert (int(steps.words[5]) >> 3 & 31, steps.narrow.tolist()) == (12, [9253])
    assert steps.directory.tolist() == [[0, 0, 0, 0], [8, 1, 0, 0]]


@given(tiles())
def test_decoding_gives_back_what_was_encoded(tile):
    columns, lengths = tile
    decoded = decode_tile(as_array(encode_tile(columns, lengths)))
    np.testing.assert_array_equal(decoded[0], columns)
    np.testing.assert_array_equal(decoded[1], lengths)


@given(tiles())
def test_no_tile_is_much_longer_than_raw_columns_and_its_lengths(tile):
    columns, lengths = tile
    alone = len(encode_tile(columns[:0], np.zeros_like(lengths)))
    longest = max(int(lengths.max(initial=0)).bit_length(), 1)
    assert (
        len(encode_tile(columns, lengths))
        <= 4.05 * columns.size + alone + 4 * longest * (lengths.size / 32 + 1) + 300
    )


@pytest.mark.parametrize("degree", [1, 2, 4, 16])
@pytest.mark.parametrize("bits", [20, 32])
def test_random_columns_cost_their_bits(degree, bits):
    rng = np.random.default_rng(degree)
    lists = [np.unique(rng.integers(0, 2**bits, rng.poisson(degree))) for _ in range(60_000 // degree)]
    columns, lengths = np.concatenate(lists).astype(np.uint32), np.array([x.size for x in lists])
    # 0.05 for widths and directory, 5 bits and 0.05 for the length of a row.
    assert len(encode_tile(columns, lengths)) < (bits / 8 + 0.05) * columns.size + 0.7 * lengths.size + 600


@settings(max_examples=25)
@given(tiles())
def test_compiled_coder_writes_the_bytes_of_the_reference(tile):
    columns, lengths = tile
    columns = columns[: int(lengths[:12].sum())]
    lengths = lengths[:12]
    coded = encode_tile(columns, lengths)
    assert coded == reference.encode_tile(columns, lengths)
    decoded = reference.decode_tile(as_array(coded))
    np.testing.assert_array_equal(decoded[0], columns)
    np.testing.assert_array_equal(decoded[1], lengths)


@pytest.mark.parametrize("lengths", [[2**32 + 1, 2], [-1, 4], [1, 1], [2**33, 3]])
def test_lengths_of_more_bits_than_are_stored_are_checked_first(lengths):
    with pytest.raises(UsageError, match=r"add up to|negative"):
        encode_tile(np.arange(3, dtype=np.uint32), np.array(lengths))


def ascending(columns, lengths):
    rows = np.split(columns.astype(np.int64), np.cumsum(lengths)[:-1])
    return [(np.diff(row) > 0).all() for row in rows]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(0, 2**32), st.integers(1, 9))
def test_the_first_segment_that_does_not_ascend_is_named(lengths, seed, nodes):
    columns = np.random.default_rng(seed).integers(0, nodes, sum(lengths)).astype(np.uint32)
    right = ascending(columns, lengths)
    if all(right):
        encode_tile(columns, np.array(lengths, np.int64))
        return
    with pytest.raises(UsageError, match=f"segment {right.index(False)} are not strictly"):
        encode_tile(columns, np.array(lengths, np.int64))


@settings(max_examples=25)
@given(st.lists(tiles(), min_size=2, max_size=4))
def test_what_a_coder_encoded_before_leaves_no_trace(several):
    coder = TileEncoder()
    for columns, lengths in several:
        assert coder.encode(columns, lengths).tobytes() == encode_tile(columns, lengths)


def random_rows(rng: np.random.Generator, rows: int, nodes: int, degree: int):
    lists = [np.unique(rng.integers(0, nodes, rng.integers(0, 2 * degree))) for _ in range(rows)]
    return np.concatenate(lists).astype(np.uint32), np.array([x.size for x in lists], np.uint32)


@pytest.mark.parametrize("degree", [2, 30, 3000])
def test_any_block_decodes_without_the_blocks_before_it(degree):
    rng = np.random.default_rng(degree)
    columns, lengths = random_rows(rng, 20_000 // degree + 3, 100_000, degree)
    tile = parse_tile(as_array(encode_tile(columns, lengths)))
    assert tile.verbatim == (degree == 2)
    positions, segments = (np.empty(tile.nonempty + 1, np.uint32) for _ in range(2))
    starts = np.empty(tile.nonempty, np.uint32)
    expand_segments(tile, positions, starts, segments)
    out, scratch = (np.empty(SCRATCH, np.uint32) for _ in range(2))
    for b in rng.permutation(-(-columns.size // 1024)):
        k = np.uint64(np.searchsorted(positions[:-1], 1024 * b))
        column = np.uint32(tile.gaps.directory[b, 3])
        k, last, top = decode_block(tile, np.uint64(b), positions, starts, k, column, out, scratch)
        expected = columns[1024 * b : 1024 * (b + 1)]
        np.testing.assert_array_equal(out[: expected.size], expected)
        assert last == expected[-1]
        assert expected.max() <= top
        assert k == np.searchsorted(positions[:-1], min(columns.size, 1024 * (b + 1)))


def test_segments_are_where_the_lengths_say():
    columns, lengths = random_rows(np.random.default_rng(5), 3000, 5000, 30)
    tile = parse_tile(as_array(encode_tile(columns, lengths)))
    assert not tile.verbatim
    positions, segments = (np.empty(tile.nonempty + 1, np.uint32) for _ in range(2))
    starts = np.empty(tile.nonempty, np.uint32)
    expand_segments(tile, positions, starts, segments)
    begins = np.cumsum(lengths) - lengths
    np.testing.assert_array_equal(positions, [*begins[lengths > 0], columns.size])
    np.testing.assert_array_equal(segments[:-1], np.flatnonzero(lengths))
    np.testing.assert_array_equal(starts, columns[begins[lengths > 0]])


def test_carries_of_the_directory_are_the_running_totals():
    columns, lengths = random_rows(np.random.default_rng(6), 3000, 5000, 3)
    tile = parse_tile(as_array(encode_tile(columns, lengths)))
    begins = np.append(np.cumsum(lengths) - lengths, columns.size)
    ends = np.minimum(np.arange(tile.ranks.size) * 1024, lengths.size)
    np.testing.assert_array_equal(tile.lengths.directory[:, 3], begins[ends])
    np.testing.assert_array_equal(tile.ranks, [np.count_nonzero(lengths[:e]) for e in ends])


def test_runs_are_the_longest_ascending_ones():
    columns = np.array([3, 4, 9, 9, 1, 0, 5], np.uint32)
    decoded, lengths = decode_tile(as_array(encode_runs(columns)))
    assert decoded.tolist() == columns.tolist()
    assert lengths.tolist() == [3, 1, 1, 2]


@pytest.mark.parametrize(
    ("columns", "lengths", "message"),
    [
        ([1, 2, 3], [2], "add up to 2, not to the 3"),
        ([1, 2, 3], [5, -2], "negative"),
        ([1, 2, 2], [1, 0, 2], "segment 2 are not strictly ascending"),
        ([5, 4], [2], "segment 0 are not strictly ascending"),
    ],
)
def test_columns_and_lengths_that_do_not_fit_each_other_are_refused(columns, lengths, message):
    with pytest.raises(UsageError, match=message):
        encode_tile(np.array(columns, np.uint32), np.array(lengths))
