import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.ingest.sort.rows import sorted_pieces
from oocpr.ingest.spill.files import SpillFile
from oocpr.ingest.spill.partition import BIN_BITS, KeyRun, bin_shift, partition_run, plan_buckets

key_lists = st.one_of(
    st.lists(st.integers(0, 20), max_size=60),
    st.lists(st.integers(0, 2**40), max_size=60),
    st.lists(st.sampled_from([3 << 32, 3 << 32 | 1, 2**63, 2**64 - 2]), max_size=60),
)


@given(st.integers(1, 2**64))
def test_bins_cover_the_span_and_are_no_coarser_than_needed(span):
    shift = bin_shift(span)
    assert ((span - 1) >> shift) + 1 <= 2**BIN_BITS
    assert shift == 0 or ((span - 1) >> (shift - 1)) + 1 > 2**BIN_BITS


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 20))
def test_buckets_hold_their_capacity_and_are_as_few_as_can_be(counts, capacity):
    starts = plan_buckets(counts, capacity)
    sizes = [sum(counts[a:b]) for a, b in zip(starts, [*starts[1:], len(counts)], strict=True)]
    assert starts[0] == 0
    assert sum(sizes) == sum(counts)
    for start, end, size in zip(starts, [*starts[1:], len(counts)], sizes, strict=True):
        assert size <= capacity or np.count_nonzero(counts[start:end]) == 1
    # None could take in the first bin of the next one: then no contiguous choice has fewer.
    for size, start in zip(sizes, starts[1:], strict=False):
        assert size + counts[start] > capacity


def run_of(scratch, keys):
    scratch.write(0, keys)
    return KeyRun.of_words(scratch, 0, keys.size, 0, 2**64)


@given(key_lists, st.integers(2, 40))
def test_buckets_together_are_the_run(tmp_path_factory, keys, capacity):
    folder = tmp_path_factory.getbasetemp()
    keys = np.array(keys, np.uint64)
    with SpillFile(folder) as scratch, SpillFile(folder) as out:
        buckets = partition_run(run_of(scratch, keys), out, np.empty(capacity, np.uint64))
        held = [
            np.concatenate([np.copy(b) for b in bucket.blocks(np.empty(5, np.uint64))]) for bucket in buckets
        ]
    for bucket, part in zip(buckets, held, strict=True):
        assert part.size == bucket.count
        assert bucket.low <= part.min() <= part.max() < bucket.high
    assert all(a.high <= b.low for a, b in itertools.pairwise(buckets))
    np.testing.assert_array_equal(np.sort(np.concatenate([*held, keys[:0]])), np.sort(keys))


@given(key_lists, st.integers(2, 40))
@settings(max_examples=200)
def test_any_run_is_sorted_in_little_space(tmp_path_factory, keys, capacity):
    keys = np.array(keys, np.uint64)
    with SpillFile(tmp_path_factory.getbasetemp()) as scratch:
        space = np.empty(capacity, np.uint64)
        pieces = [(np.unique(k), count) for k, count in sorted_pieces(run_of(scratch, keys), space)]
    assert sum(count for _, count in pieces) == keys.size
    np.testing.assert_array_equal(np.concatenate([keys[:0], *(k for k, _ in pieces)]), np.unique(keys))


def test_one_key_repeated_beyond_all_space_is_never_loaded(tmp_path):
    keys = np.full(1000, 5 << 32 | 7, np.uint64)
    with SpillFile(tmp_path) as scratch:
        [(piece, count)] = sorted_pieces(run_of(scratch, keys), np.empty(4, np.uint64))
        assert piece.tolist() == [5 << 32 | 7]
        assert count == 1000


def test_a_row_larger_than_the_space_is_split_by_column(tmp_path):
    keys = np.uint64(9 << 32) | np.random.default_rng(1).permutation(5000).astype(np.uint64)
    with SpillFile(tmp_path) as scratch, SpillFile(tmp_path) as out:
        run = KeyRun.of_words(scratch, 0, keys.size, 0, 16 << 32)
        scratch.write(0, keys)
        [row] = partition_run(run, out, np.empty(1000, np.uint64))
        pieces = [np.copy(k) for k, _ in sorted_pieces(row, np.empty(1000, np.uint64))]
    assert row.count == 5000
    assert len(pieces) >= 5
    np.testing.assert_array_equal(np.concatenate(pieces), np.sort(keys))


def test_a_file_that_ends_early_is_no_silent_zero(tmp_path):
    with SpillFile(tmp_path) as scratch:
        scratch.write(0, np.arange(3))
        with pytest.raises(EOFError, match="ends at byte 24"):
            scratch.read(8, np.empty(5, np.int64))
