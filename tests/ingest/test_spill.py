"""Reading ahead, partitioning while reading, temporary files that begin in memory, and sorting in threads."""

import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.errors import DoesNotFitError
from oocpr.ingest.build import build_store
from oocpr.ingest.read import prefetch
from oocpr.ingest.rows import NO_RANKS, EdgeCounter, sorted_pieces, unique_sorted
from oocpr.ingest.spill.files import SpillFile
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.partition import (
    BIN_BITS,
    BoundedExecutor,
    Edges,
    KeyRun,
    Partitioner,
    bin_shift,
    partition_run,
    plan_buckets,
)
from oocpr.ingest.tiles import Sorter
from oocpr.sources.block import EdgeBlock
from oocpr.sources.rmat import Rmat
from oocpr.system import resident

MAX_ID = 2**32 - 1
ids_with_gaps = st.one_of(st.integers(0, 70), st.integers(500, 1100), st.integers(2**20, 2**20 + 600))


def packed(rows, columns):
    return np.array(rows, np.uint64) << np.uint64(32) | np.array(columns, np.uint64)


@given(st.lists(st.tuples(ids_with_gaps, ids_with_gaps), min_size=1))
def test_ranks_are_positions_among_the_sorted_ids(pairs):
    rows, columns = np.array(pairs).T
    keys = packed(rows, columns)
    ids = IdBitmap()
    for row, column in pairs:
        ids.reach(max(row, column))
        ids.add(np.array([column], np.uint32), np.array([row], np.uint32))
    expected = np.unique(pairs)
    np.testing.assert_array_equal(ids.to_numpy(), expected)
    assert len(ids) == expected.size
    assert ids.largest == expected[-1]
    ids.relabel(keys)
    np.testing.assert_array_equal(
        keys, packed(np.searchsorted(expected, rows), np.searchsorted(expected, columns))
    )


def test_the_largest_id_of_all_has_its_rank():
    keys = packed([MAX_ID, 0], [2**31, MAX_ID])
    ids = IdBitmap()
    ids.reach(MAX_ID)
    ids.add(np.array([2**31, MAX_ID], np.uint32), np.array([MAX_ID, 0], np.uint32))
    ids.relabel(keys)
    np.testing.assert_array_equal(keys, packed([2, 0], [1, 2]))
    assert ids.to_numpy().tolist() == [0, 2**31, MAX_ID]


def test_growth_covers_what_a_larger_id_takes():
    ids = IdBitmap()
    assert ids.growth(2**32 - 1) > 2**29
    ids.reach(1000)
    assert ids.growth(1000) == ids.growth(7) == 0


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
            np.concatenate([np.copy(b) for b, _ in bucket.records(np.empty(5, np.uint64))])
            for bucket in buckets
        ]
    for bucket, part in zip(buckets, held, strict=True):
        assert part.size == bucket.count
        assert bucket.low <= part.min() <= part.max() < bucket.high
    assert all(a.high <= b.low for a, b in itertools.pairwise(buckets))
    np.testing.assert_array_equal(np.sort(np.concatenate([*held, keys[:0]])), np.sort(keys))


@pytest.mark.long
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


PLENTY = 3 * 2**30
LAST = 2**32 - 2

any_id = st.one_of(st.integers(0, 50), st.integers(0, 2**20), st.just(LAST))
blocks_of_edges = st.lists(st.lists(st.tuples(any_id, any_id), max_size=40), max_size=6)


def ends_of(block):
    src, dst = np.array(block, np.uint32).reshape(-1, 2).T
    return Edges.of(src, dst)


def keys_of(src, dst):
    return dst.astype(np.uint64) << np.uint64(32) | src


def partitioned(scratch, block_edges, blocks, rows=None):
    """Partition blocks whose buckets follow from the first of them."""
    partitioner = Partitioner(scratch, block_edges, rows)
    partitioner.plan(blocks[0].dst if blocks else np.empty(0, np.uint32))
    for edges in blocks:
        partitioner.add(edges)
    return partitioner


@given(blocks_of_edges, st.sampled_from([1, 4096, 1 << 20]), st.booleans(), st.sampled_from([0, 9, 200]))
@settings(max_examples=100)
def test_buckets_are_ascending_ranges_of_all_keys(tmp_path_factory, blocks, block_edges, known, memory):
    blocks = [ends_of(block) for block in blocks]
    with SpillFile(tmp_path_factory.getbasetemp(), memory) as scratch:
        partitioner = partitioned(scratch, block_edges, blocks, LAST + 1 if known else None)
        runs = list(partitioner.runs())
        held = [np.concatenate([np.copy(k) for k, _ in run.records(np.empty(7, np.uint64))]) for run in runs]
        scratch.shed(memory // 2)
        again = [np.copy(next(run.records(np.empty(run.count, np.uint64)))[0]) for run in runs]
    for run, keys, others in zip(runs, held, again, strict=True):
        assert run.count == keys.size > 0
        assert run.low <= int(keys.min()) <= int(keys.max()) < run.high
        np.testing.assert_array_equal(np.sort(keys), np.sort(others))
    assert all(a.high <= b.low for a, b in itertools.pairwise(runs))
    everything = np.concatenate(
        [np.empty(0, np.uint64), *(keys_of(block.src, block.dst) for block in blocks)]
    )
    np.testing.assert_array_equal(np.sort(np.concatenate([everything[:0], *held])), np.sort(everything))
    assert partitioner.count == everything.size


def test_keys_take_as_few_bytes_as_they_need(tmp_path):
    rng = np.random.default_rng(1)
    sizes = {}
    for nodes in (2**8, 2**16, 2**23, 2**32 - 1):
        with SpillFile(tmp_path) as scratch:
            edges = Edges.of(*rng.integers(0, nodes, (2, 1 << 18)))
            partitioned(scratch, 1 << 18, [edges])
            sizes[nodes] = scratch.size / (1 << 18)
    # 256 buckets take 7 bits or more off the rows; the bytes between buckets count as well.
    assert sizes == pytest.approx({2**8: 2, 2**16: 4, 2**23: 5, 2**32 - 1: 8}, abs=0.01)


@pytest.mark.long
def test_threads_that_partition_at_once_lose_nothing(tmp_path):
    rng = np.random.default_rng(2)
    blocks = [Edges.of(*(rng.integers(0, 2**22, (2, 50_000)) ** 2 >> 22)) for _ in range(40)]
    ids = IdBitmap()
    ids.reach(2**22)
    with SpillFile(tmp_path, 1 << 20) as scratch, ThreadPoolExecutor(8) as pool:
        partitioner = Partitioner(scratch, 50_000, None)
        partitioner.plan(blocks[0].dst)
        executor = BoundedExecutor(pool, 8)
        for edges in blocks:
            executor.submit(ids.add, edges.src, edges.dst)
            executor.submit(partitioner.add, edges)
        executor.finish()
        keys = np.concatenate(
            [next(run.records(np.empty(run.count, np.uint64)))[0] for run in partitioner.runs()]
        )
    everything = np.concatenate([keys_of(block.src, block.dst) for block in blocks])
    np.testing.assert_array_equal(np.sort(keys), np.sort(everything))
    np.testing.assert_array_equal(ids.to_numpy(), np.unique([ends for block in blocks for ends in block[:2]]))


def test_work_that_fails_is_told_to_who_asked_for_it():
    def fail():
        raise ValueError("no")

    with ThreadPoolExecutor(2) as pool:
        executor = BoundedExecutor(pool, 1)
        executor.submit(fail)
        with pytest.raises(ValueError, match="no"):
            executor.finish()
        executor.submit(fail)
        with pytest.raises(ValueError, match="no"):
            executor.submit(int)


few_ids = st.one_of(st.integers(0, 9), st.integers(2**16, 2**16 + 5))
blocks_of_few = st.lists(st.lists(st.tuples(few_ids, few_ids), max_size=40), max_size=6)


@given(blocks_of_few, st.integers(0, 3), st.integers(4, 60), st.booleans())
@settings(max_examples=100)
def test_any_runs_are_sorted_and_counted_in_any_number_of_threads(
    tmp_path_factory, blocks, workers, space, relabel
):
    blocks = [ends_of(block) for block in blocks]
    ids = IdBitmap()
    ids.reach(2**16 + 5)
    for block in blocks:
        ids.add(block.src, block.dst)
    nodes = len(ids) if relabel else 2**17
    with SpillFile(tmp_path_factory.getbasetemp()) as scratch, ThreadPoolExecutor(workers or 1) as pool:
        tally = EdgeCounter(nodes)
        ranks = ids.ranks if relabel else NO_RANKS
        sorter = Sorter(pool if workers else None, workers, space, ranks, tally)
        rows, columns, given_ = [], [], 0
        for edges in sorter.pieces(partitioned(scratch, 1 << 20, blocks).runs()):
            rows.append(np.repeat(edges.rows, np.diff(edges.starts)))
            columns.append(edges.columns.copy())
            given_ += edges.given
    rows, columns = (np.concatenate([np.empty(0, np.uint32), *parts]) for parts in (rows, columns))

    src, dst = (np.concatenate([np.empty(0, np.uint32), *(block[k] for block in blocks)]) for k in (0, 1))
    if relabel:
        src, dst = (np.searchsorted(ids.to_numpy(), ends) for ends in (src, dst))
    expected = np.unique(keys_of(src.astype(np.uint32), dst.astype(np.uint32)))
    np.testing.assert_array_equal(keys_of(columns, rows), expected)
    assert given_ == len(src)
    assert tally.self_loops == np.count_nonzero(columns == rows)
    np.testing.assert_array_equal(tally.out_degree(), np.bincount(columns, minlength=nodes))


def test_out_degrees_are_counted_past_every_width(tmp_path):
    src = np.repeat([3, 7, 8], [255, 256, 70_000])
    dst = np.concatenate([np.arange(255), np.arange(256), np.arange(70_000)])
    with SpillFile(tmp_path) as scratch, ThreadPoolExecutor(3) as pool:
        tally = EdgeCounter(70_000)
        runs = partitioned(scratch, 1 << 20, [Edges.of(src, dst)]).runs()
        for _ in Sorter(pool, 3, 4000, NO_RANKS, tally).pieces(runs):
            pass
    assert tally.out_degree()[[3, 7, 8]].tolist() == [255, 256, 70_000]
    assert tally.out_degree().sum() == 70_511


@given(st.lists(st.integers(0, 5)))
def test_repeats_are_dropped(values):
    keys = np.sort(np.array(values, np.uint64))
    kept = keys.copy()
    np.testing.assert_array_equal(kept[: unique_sorted(kept)], np.unique(keys))


@given(
    st.integers(0, 9000),
    st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    st.sampled_from([None, 0, 1, 4097, 10**6]),
    st.integers(0, 4000),
    st.integers(0, 4000),
)
def test_a_file_that_begins_in_memory_is_a_file(tmp_path_factory, memory, sizes, shed, at, count):
    data = np.random.default_rng(1).integers(0, 256, sum(sizes)).astype(np.uint8)
    ends = np.cumsum(sizes)
    with SpillFile(tmp_path_factory.getbasetemp(), memory) as scratch:
        for start, end in zip(ends - sizes, ends, strict=True):
            scratch.write(int(start), data[start:end])
        kept = scratch.in_memory
        if shed != 0:
            scratch.shed(shed)
            assert scratch.in_memory <= max(0, kept - (kept if shed is None else shed))
        at = min(at, data.size)
        changed = np.arange(min(count, data.size - at)).astype(np.uint8)
        scratch.write(at, changed)
        data[at : at + changed.size] = changed
        out = np.empty(data.size - at // 2, np.uint8)
        scratch.read(at // 2, out)
    np.testing.assert_array_equal(out, data[at // 2 :])


def test_bytes_set_aside_are_in_memory_as_long_as_they_fit(tmp_path):
    with SpillFile(tmp_path, 100) as scratch:
        at, view = scratch.reserve(60)
        view[:] = 7
        assert (at, scratch.in_memory) == (0, 60)
        assert scratch.reserve(50) == (60, None)
        assert scratch.reserve(10) == (110, None)
        assert scratch.size == 120
        scratch.write(60, np.full(60, 8, np.uint8))
        out = np.empty(120, np.uint8)
        scratch.read(0, out)
    assert out.tolist() == [7] * 60 + [8] * 60


def test_memory_that_a_file_sheds_is_given_back(tmp_path):
    with SpillFile(tmp_path, 64 << 20) as scratch:
        scratch.write(0, np.ones(64 << 20, np.uint8))
        before = resident()
        scratch.shed(24 << 20)
        assert before - resident() > 20 << 20
        scratch.shed()
        assert before - resident() > 60 << 20


def test_reading_ahead_is_one_ahead_and_in_a_thread_of_its_own():
    taken, threads = [], set()

    def items():
        for k in range(5):
            threads.add(threading.get_ident())
            taken.append(k)
            yield k

    with prefetch(items()) as some:
        for k in some:
            assert len(taken) <= k + 3
    assert taken == list(range(5))
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_goes_wrong_ahead_is_raised_where_it_is_used(error):
    def items():
        yield 1
        raise error

    seen = []
    with pytest.raises(error), prefetch(items()) as some:
        seen.extend(iter(some.__next__, None))
    assert seen == [1]


def test_leaving_early_closes_the_source_and_ends_the_thread():
    closed = threading.Event()

    def items():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    before = threading.active_count()
    with prefetch(items()) as some:
        assert list(itertools.islice(some, 3)) == [0, 1, 2]
    assert closed.is_set()
    assert threading.active_count() == before


class Growing(Rmat):
    """Ids that grow all the time, so that the first block says nothing of the others."""

    def __init__(self, scale):
        super().__init__(scale)
        self.nodes = None

    def blocks(self, max_edges):
        for k, block in enumerate(super().blocks(max_edges)):
            offset = np.uint32(k * 1000)
            yield EdgeBlock(block.src % 1000 + offset, block.dst % 1000 + offset)


class Hub(Rmat):
    """Half of all links go to one node."""

    def blocks(self, max_edges):
        for block in super().blocks(max_edges):
            half = len(block.dst) // 2
            dst = block.dst.copy()
            dst[:half] = 12345
            yield EdgeBlock(block.src, dst)


@pytest.mark.parametrize("kind", [Growing, Hub])
def test_skew_changes_no_byte(tmp_path, contents, kind):
    build_store(kind(14), tmp_path / "0.zarr", memory=PLENTY, block_edges=4096)
    build_store(kind(14), tmp_path / "1.zarr", memory=PLENTY, block_edges=4096, bucket_edges=6000)
    assert contents(tmp_path / "0.zarr") == contents(tmp_path / "1.zarr")


@pytest.mark.long
def test_temporary_files_that_take_much_are_announced(tmp_path, monkeypatch):
    from oocpr.ingest import read

    monkeypatch.setattr(read, "_WORTH_SAYING", 1 << 20)
    said = []
    build_store(
        Rmat(20),
        tmp_path / "g.zarr",
        memory=resident() + 100 * 2**20,
        order="degree",
        block_edges=1 << 16,
        on_message=said.append,
    )
    [line] = said
    found = re.fullmatch(r"Temporary files will take about ([\d.]+) MiB in (.+), where .* are free\.", line)
    assert found is not None
    assert found[2] == str(tmp_path)
    # Written once as they come and once in their order, in 4 to 8 bytes each; some stay in memory.
    assert 1 <= float(found[1]) <= 2 * 8 * Rmat(20).edges / 2**20


def test_a_disk_that_will_be_too_small_is_found_early(tmp_path, monkeypatch):
    from oocpr.ingest.spill import files

    usage = files.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    told = []

    def listen(_, done, total, __):
        told.append(done / total)

    with pytest.raises(DoesNotFitError, match="for temporary files, 1 MiB are free") as refused:
        build_store(
            Rmat(20),
            tmp_path / "g.zarr",
            memory=resident() + 100 * 2**20,
            order="degree",
            block_edges=1 << 16,
            progress=listen,
        )
    # Twice what does not stay in memory, of which there is less after other tests.
    found = re.search(r"needs about ([\d.]+) MiB", str(refused.value))
    assert found is not None
    assert 60 <= float(found[1]) <= 2 * 4 * Rmat(20).edges / 2**20
    assert max(told) < 0.5
    assert list(tmp_path.iterdir()) == []
