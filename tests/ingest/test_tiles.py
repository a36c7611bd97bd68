from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.budget import LOCAL_NEEDS
from oocpr.ingest.sort.rows import NO_RANKS, EdgeCounter
from oocpr.ingest.sort.tiles import TileWriter


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
