import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.ingest import budget
from oocpr.ingest.append import append_store
from oocpr.ingest.budget import LOCAL_NEEDS
from oocpr.ingest.build import build_store
from oocpr.ingest.rows import NO_RANKS, EdgeCounter
from oocpr.ingest.spill.files import SpillFile
from oocpr.ingest.spill.partition import KeyRun
from oocpr.ingest.tiles import LocalSortEncode, Sorter, TileWriter
from oocpr.plan.memory import Needs
from oocpr.store.graph import open_store
from tests.store import reference_codec as reference


@st.composite
def sorted_edges(draw):
    """Rows and columns of a graph with empty rows anywhere and, often, hubs over many tiles."""
    nodes = draw(st.integers(1, 12))
    lengths = draw(st.lists(st.sampled_from([0, 0, 1, 2, nodes]), min_size=nodes, max_size=nodes))
    rows = np.repeat(np.arange(nodes), np.minimum(lengths, nodes))
    columns = [c for length in lengths for c in range(min(length, nodes))]
    shift = draw(st.integers(0, nodes - 1))
    edges = sorted({(int(r), (c + shift) % nodes) for r, c in zip(rows, columns, strict=True)})
    return nodes, np.array(edges, np.int64).reshape(-1, 2)


def cut(nodes, edges, tile_edges, pieces):
    tiles = []

    class Service:
        needs = LOCAL_NEEDS

        def encode(self, columns, lengths):
            tiles.append((columns.copy(), lengths))
            return np.empty(0, np.uint8)

    store = Mock()
    writer = TileWriter(Service(), store, None, 0, nodes, tile_edges, nodes + 1, 0)
    keys = edges[:, 0].astype(np.uint64) << np.uint64(32) | edges[:, 1].astype(np.uint64)
    for piece in np.split(keys, pieces):
        rows, starts = np.empty(piece.size, np.uint32), np.empty(piece.size + 1, np.uint32)
        writer.add(EdgeCounter(nodes).to_rows(piece.copy(), piece.size, NO_RANKS, rows, starts))
    writer.finish()
    assert [call.args[0] for call in store.put_tile.call_args_list] == list(range(len(tiles)))
    assert [call.args[1] for call in store.enter_tile.call_args_list] == [tile[0].size for tile in tiles]
    return tiles, writer.local_edges


def tiles_by_definition(nodes, edges, tile_edges):
    """The tiles, from row offsets and the text of the format alone."""
    m = len(edges)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(edges[:, 0], minlength=nodes))))
    starts = list(range(0, m, tile_edges)) or [0]
    first_rows = [0]
    first_rows += [next(v for v in range(nodes) if indptr[v] <= e < indptr[v + 1]) for e in starts[1:]]
    first_rows.append(nodes)
    tiles, local = [], 0
    for t, start in enumerate(starts):
        end = min(m, start + tile_edges)
        lo, hi = first_rows[t], first_rows[t + 1]

        def held(v, start=start, end=end):
            return max(0, min(end, indptr[v + 1]) - max(start, indptr[v]))

        lengths = [held(v) for v in range(lo, hi)] + [held(hi) if hi < nodes else 0]
        tiles.append((edges[start:end, 1], lengths))
        local += sum(lo <= c < hi for c in edges[start:end, 1])
    return tiles, local


@given(sorted_edges(), st.integers(1, 7), st.data())
def test_tiles_are_those_of_the_definition(graph, tile_edges, data):
    nodes, edges = graph
    pieces = sorted(data.draw(st.lists(st.integers(0, len(edges)), max_size=4)))
    tiles, local = cut(nodes, edges, tile_edges, pieces)
    expected, expected_local = tiles_by_definition(nodes, edges, tile_edges)
    assert len(tiles) == len(expected)
    for (columns, lengths), (wanted_columns, wanted_lengths) in zip(tiles, expected, strict=True):
        assert columns.dtype == lengths.dtype == np.uint32
        assert columns.tolist() == wanted_columns.tolist()
        assert lengths.tolist() == wanted_lengths
    assert local == expected_local


def test_a_hub_row_is_cut_into_tiles_that_own_no_row():
    edges = np.array([[2, c] for c in range(10)] + [[4, 0]])
    tiles, local = cut(6, edges, 3, [])
    assert [lengths.tolist() for _, lengths in tiles] == [[0, 0, 3], [3], [3], [1, 0, 1, 0, 0]]
    assert local == 2  # columns 0 and 1 are owned by the first tile, row 2 by the last


def test_the_last_tile_may_be_full():
    tiles, _ = cut(3, np.array([[0, 0], [0, 1], [1, 0], [1, 1]]), 2, [])
    assert [lengths.tolist() for _, lengths in tiles] == [[2, 0], [2, 0, 0]]


@pytest.mark.parametrize("nodes", [1, 5])
def test_no_edges_make_one_empty_tile(nodes):
    tiles, local = cut(nodes, np.empty((0, 2), np.int64), 4, [])
    [(columns, lengths)] = tiles
    assert columns.size == 0
    assert lengths.tolist() == [0] * (nodes + 1)
    assert local == 0


PLENTY = 3 * 2**30


class Others:
    """Processes in which Python's own sort works, and the coder in plain Python."""

    workers = 3

    def __init__(self, processes, typical_keys=1):
        self._processes = processes
        self.needs = Needs(key_bytes=100, edge_bytes=100, row_bytes=100, typical_keys=typical_keys)

    def sort(self, keys):
        keys[:] = self._processes.submit(sorted, keys.tolist()).result()

    def encode(self, columns, lengths):
        return np.frombuffer(reference.encode_tile(columns.copy(), lengths), np.uint8)


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


pairs_of_ids = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=200)


@pytest.mark.long
@given(
    pairs=pairs_of_ids,
    order=st.sampled_from(["keep", "degree"]),
    tile_edges=st.sampled_from([1, 3, 40, 1024]),
    bucket_edges=st.sampled_from([2, 30, 1000]),
    typical_keys=st.sampled_from([1, 20, 2000]),
)
@settings(max_examples=20)
def test_any_service_makes_the_bytes_of_this_process(
    tmp_path_factory, arrays, contents, processes, pairs, order, tile_edges, bucket_edges, typical_keys
):
    src, dst = np.array(pairs).T
    folder = tmp_path_factory.mktemp("service")
    ways = {"memory": PLENTY, "order": order, "tile_edges": tile_edges, "bucket_edges": bucket_edges}
    for path, service in (("own", None), ("others", Others(processes, typical_keys))):
        build_store(arrays(src, dst), folder / path, block_edges=50, service=service, **ways)
    assert contents(folder / "others") == contents(folder / "own")


def test_other_services_add_edges(tmp_path, arrays, contents, processes):
    ids = np.random.default_rng(5).integers(0, 60, (2, 400))
    old, new = (arrays(*ids[:, part]) for part in (slice(300), slice(300, None)))
    build_store(old, tmp_path / "old", memory=PLENTY, tile_edges=64)
    for path, service in (("own", None), ("others", Others(processes))):
        append_store(open_store(tmp_path / "old"), new, tmp_path / path, memory=PLENTY, service=service)
    assert contents(tmp_path / "others") == contents(tmp_path / "own")


class Counted(LocalSortEncode):
    """Counts the calls that are under way at once, and the keys of each."""

    def __init__(self, workers, typical_keys=1):
        super().__init__(workers)
        self.needs = Needs(key_bytes=0, edge_bytes=24, row_bytes=20, typical_keys=typical_keys)
        self.most = self._now = 0
        self.sizes = []
        self._lock = threading.Lock()
        self._meet = threading.Barrier(workers)

    def sort(self, keys):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.sizes.append(keys.size)
        if len(self.sizes) <= self.workers:
            self._meet.wait(20)
        super().sort(keys)
        with self._lock:
            self._now -= 1


def test_as_many_calls_are_under_way_as_the_service_wants(tmp_path, arrays):
    ids = np.random.default_rng(2).integers(0, 3000, (2, 20_000))
    service = Counted(5)
    build_store(arrays(*ids), tmp_path / "g", memory=PLENTY, bucket_edges=6000, service=service)
    assert service.most == 5


@pytest.mark.parametrize(("usual", "sizes"), [(1, [10] * 9), (25, [30] * 3), (40, [40, 40, 10]), (999, [90])])
def test_neighbouring_buckets_are_sorted_in_calls_of_the_usual_size(tmp_path, usual, sizes):
    keys = np.random.default_rng(1).permutation(90).astype(np.uint64)
    keys = np.concatenate([part[np.argsort(part % 7)] for part in np.sort(keys).reshape(9, 10)])
    service, tally = Counted(1, usual), EdgeCounter(90)
    with SpillFile(tmp_path) as scratch, ThreadPoolExecutor(1) as pool:
        scratch.write(0, keys)
        runs = [KeyRun.of_words(scratch, 10 * k, 10, 10 * k, 10 * k + 10) for k in range(9)]
        [edges] = Sorter(service, pool, 1, 200, NO_RANKS, tally).pieces(runs)
        assert edges.columns.tolist() == list(range(90))
    assert service.sizes == sizes


def test_what_a_service_raises_ends_the_import_and_leaves_nothing(tmp_path, arrays):
    class Broken(LocalSortEncode):
        def encode(self, *tile):
            raise RuntimeError(f"no service for {len(tile)}")

    with pytest.raises(RuntimeError, match="no service"):
        build_store(arrays([0, 1], [1, 0]), tmp_path / "g", memory=PLENTY, service=Broken())
    assert list(tmp_path.iterdir()) == []


@given(
    st.integers(0, 2**36),
    st.integers(1, 2**40),
    st.integers(1, 64),
    st.builds(
        Needs,
        key_bytes=st.integers(0, 64),
        edge_bytes=st.integers(0, 64),
        row_bytes=st.integers(0, 64),
        typical_keys=st.integers(1, 2**24),
    ),
)
def test_what_a_service_needs_is_in_the_budget(spare, edges, workers, needs):
    share = budget.SortBudget(1000, edges, 1 << 20, needs)
    got = share.workers(spare, workers)
    if share.min_bytes() <= spare:
        tiles = max(1, got) * min(edges, 1 << 20) * (12 + needs.edge_bytes)
        assert tiles + share.bucket_edges(spare, got, 1) * (16 + needs.key_bytes) <= spare
    more = Needs(needs.key_bytes + 1, needs.edge_bytes, needs.row_bytes, needs.typical_keys)
    assert budget.SortBudget(1000, edges, 1 << 20, more).min_bytes() > share.min_bytes()
