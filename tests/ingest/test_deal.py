"""Reading ahead, dealing while reading, temporary files that begin in memory, and sorting in threads."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.errors import DoesNotFitError
from oocpr.ingest.ahead import ahead
from oocpr.ingest.budget import resident
from oocpr.ingest.build import build_store
from oocpr.ingest.deal import Dealer
from oocpr.ingest.merge import drop_repeats
from oocpr.ingest.scratch import Scratch
from oocpr.ingest.sort import Sorter
from oocpr.sources.block import EdgeBlock
from oocpr.sources.rmat import Rmat

PLENTY = 3 * 2**30

keys_of_blocks = st.lists(
    st.lists(st.one_of(st.integers(0, 50), st.integers(0, 2**40), st.just(2**64 - 1)), max_size=40),
    max_size=6,
)


@given(keys_of_blocks, st.sampled_from([1, 4096, 1 << 20]), st.booleans())
@settings(max_examples=100)
def test_buckets_are_ascending_ranges_of_all_keys(tmp_path_factory, blocks, block_keys, known):
    blocks = [np.array(block, np.uint64) for block in blocks]
    with Scratch(tmp_path_factory.getbasetemp(), memory=200) as scratch:
        dealer = Dealer(scratch, block_keys, 2**32 - 1 if known else None)
        for block in blocks:
            dealer.add(block)
        runs = list(dealer.runs())
        held = [np.concatenate([np.copy(k) for k in run.blocks(np.empty(7, np.uint64))]) for run in runs]
    for run, keys in zip(runs, held, strict=True):
        assert run.count == keys.size > 0
        assert run.low <= int(keys.min()) <= int(keys.max()) < run.high
    assert all(a.high <= b.low for a, b in itertools.pairwise(runs))
    everything = np.concatenate([*blocks, np.empty(0, np.uint64)])
    np.testing.assert_array_equal(np.sort(np.concatenate([*held, everything[:0]])), np.sort(everything))
    assert dealer.count == everything.size


@given(keys_of_blocks, st.integers(0, 3), st.integers(4, 60))
@settings(max_examples=100)
def test_any_runs_are_sorted_in_any_number_of_threads(tmp_path_factory, blocks, workers, space):
    with Scratch(tmp_path_factory.getbasetemp()) as scratch, ThreadPoolExecutor(workers or 1) as pool:
        dealer = Dealer(scratch, 1 << 20, None)
        for block in blocks:
            dealer.add(np.array(block, np.uint64))
        sorter = Sorter(pool if workers else None, workers, space, None)
        pieces = [(keys.copy(), count) for keys, count in sorter.pieces(dealer.runs())]
    everything = np.array([key for block in blocks for key in block], np.uint64)
    np.testing.assert_array_equal(
        np.concatenate([everything[:0], *(keys for keys, _ in pieces)]), np.unique(everything)
    )
    assert sum(count for _, count in pieces) == everything.size


@given(st.lists(st.integers(0, 5)))
def test_repeats_are_dropped(values):
    keys = np.sort(np.array(values, np.uint64))
    np.testing.assert_array_equal(keys[: drop_repeats(keys.copy())].size, np.unique(keys).size)
    kept = keys.copy()
    np.testing.assert_array_equal(kept[: drop_repeats(kept)], np.unique(keys))


@given(
    st.integers(0, 100),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.booleans(),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_a_file_that_begins_in_memory_is_a_file(tmp_path_factory, memory, sizes, shed, at, count):
    data = np.random.default_rng(1).integers(0, 256, sum(sizes)).astype(np.uint8)
    ends = np.cumsum(sizes)
    with Scratch(tmp_path_factory.getbasetemp(), memory) as scratch:
        for start, end in zip(ends - sizes, ends, strict=True):
            scratch.write(int(start), data[start:end])
        if shed:
            scratch.shed()
        at = min(at, data.size)
        changed = np.arange(min(count, data.size - at), dtype=np.uint8)
        scratch.write(at, changed)
        data[at : at + changed.size] = changed
        out = np.empty(data.size - at // 2, np.uint8)
        scratch.read(at // 2, out)
    np.testing.assert_array_equal(out, data[at // 2 :])


def test_reading_ahead_is_one_ahead_and_in_a_thread_of_its_own():
    taken, threads = [], set()

    def items():
        for k in range(5):
            threads.add(threading.get_ident())
            taken.append(k)
            yield k

    with ahead(items()) as some:
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
    with pytest.raises(error), ahead(items()) as some:
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
    with ahead(items()) as some:
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


def test_a_disk_that_will_be_too_small_is_found_early(tmp_path, monkeypatch):
    from oocpr.ingest import scratch

    usage = scratch.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    told = []

    def listen(_, done, total, __):
        told.append(done / total)

    with pytest.raises(DoesNotFitError, match=r"needs about 1\d\d MiB for temporary files, 1 MiB are free"):
        build_store(
            Rmat(20),
            tmp_path / "g.zarr",
            memory=resident() + 2**30,
            order="degree",
            block_edges=1 << 16,
            progress=listen,
        )
    assert max(told) < 0.5
    assert list(tmp_path.iterdir()) == []
