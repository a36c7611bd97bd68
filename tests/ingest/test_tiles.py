from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest import budget
from oocpr.ingest import tiles as tile_module
from oocpr.ingest.build import build_store
from oocpr.ingest.rows import NO_RANKS, EdgeCounter
from oocpr.ingest.spill.files import SpillFile
from oocpr.ingest.spill.partition import KeyRun
from oocpr.ingest.tiles import Sorter, TileWriter
from oocpr.store.codec.tiles import decode_tile


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

    class Target:
        def put_tile(self, number, coded, _data):
            assert number == len(tiles)
            tiles.append(decode_tile(coded.copy()))

        def enter_tile(self, _size, edges, lengths):
            assert edges == tiles[-1][0].size
            assert lengths.tolist() == tiles[-1][1].tolist()

    writer = TileWriter(Target(), None, 0, nodes, tile_edges, nodes + 1, 0)
    keys = edges[:, 0].astype(np.uint64) << np.uint64(32) | edges[:, 1].astype(np.uint64)
    for piece in np.split(keys, pieces):
        rows, starts = np.empty(piece.size, np.uint32), np.empty(piece.size + 1, np.uint32)
        writer.add(EdgeCounter(nodes).to_rows(piece.copy(), piece.size, NO_RANKS, rows, starts))
    writer.finish()
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


@pytest.mark.parametrize("workers", [0, 2])
def test_neighbouring_buckets_become_one_piece_if_there_is_memory(tmp_path, workers):
    keys = np.random.default_rng(1).permutation(90).astype(np.uint64)
    keys = np.concatenate([part[np.argsort(part % 7)] for part in np.sort(keys).reshape(9, 10)])
    with SpillFile(tmp_path) as scratch, ThreadPoolExecutor(2) as pool:
        scratch.write(0, keys)
        runs = [KeyRun.of_words(scratch, 10 * k, 10, 10 * k, 10 * k + 10) for k in range(9)]
        sorter = Sorter(pool if workers else None, workers, 30 * (workers + 1), NO_RANKS, EdgeCounter(90))
        pieces = [edges.columns.tolist() for edges in sorter.pieces(runs)]
    assert pieces == [list(range(first, first + 30)) for first in range(0, 90, 30)]


def test_what_ends_an_encoding_ends_the_import_and_leaves_nothing(tmp_path, arrays, monkeypatch):
    def broken(columns, lengths):
        raise RuntimeError(f"no tile of {columns.size}")

    monkeypatch.setattr(tile_module, "encode", broken)
    with pytest.raises(RuntimeError, match="no tile of 2"):
        build_store(arrays([0, 1], [1, 0]), tmp_path / "g", memory=PLENTY)
    assert list(tmp_path.iterdir()) == []


@given(st.integers(0, 2**36), st.integers(1, 2**40), st.integers(1, 64))
def test_tiles_and_keys_of_all_threads_are_in_the_budget(spare, edges, cores):
    share = budget.SortBudget(1000, edges, 1 << 20)
    got = share.workers(spare, cores)
    if share.min_bytes() <= spare:
        tiles = max(1, got) * min(edges, 1 << 20) * 36
        assert tiles + share.bucket_edges(spare, got, 1) * 16 <= spare
