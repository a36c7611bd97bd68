"""What the coding is for: bytes an edge and columns a second, on the graphs that it was made for."""

from __future__ import annotations

import time

import numpy as np
import pytest

from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tiles import decode_columns, encode_tile, expand_segments

TILE = 1 << 20


def in_edges(source, *, by_degree: bool = False):
    """Offsets and columns of the in-edges, repeated edges merged."""
    blocks = list(source.blocks(1 << 22))
    src = np.concatenate([block.src for block in blocks]).astype(np.int64)
    dst = np.concatenate([block.dst for block in blocks]).astype(np.int64)
    nodes = source.nodes or int(max(src.max(), dst.max())) + 1
    if by_degree:
        key = np.unique(src * nodes + dst)
        place = np.empty(nodes, np.int64)
        place[np.argsort(-np.bincount(key // nodes, minlength=nodes), kind="stable")] = np.arange(nodes)
        src, dst = place[src], place[dst]
    key = np.unique(dst * nodes + src)
    return np.searchsorted(key, np.arange(nodes + 1) * nodes), (key % nodes).astype(np.uint32)


def encoded(indptr, columns):
    """The tiles, with every empty row in one of them."""
    m = columns.size
    rows = [np.searchsorted(indptr, lo, "right") - 1 for lo in range(0, m, TILE)]
    rows = [0, *rows[1:], indptr.size - 1]
    return [
        encode_tile(
            columns[lo : lo + TILE],
            np.diff(np.append(indptr[first : last + 1], m).clip(lo, min(m, lo + TILE))),
        )
        for lo, first, last in zip(range(0, m, TILE), rows, rows[1:], strict=False)
    ]


def decode_rate(tiles) -> float:
    """Columns a second of one core, everything that a tile needs included but the reading."""
    buffers = [np.frombuffer(tile, np.uint8) for tile in tiles]
    most = max(parse_tile(buffer).nonempty for buffer in buffers)
    positions, segments, starts = (np.empty(most + 1, np.uint32) for _ in range(3))
    columns = np.empty(TILE, np.uint32)
    best = 0.0
    for _ in range(6):
        edges = 0
        # The time of this thread: neighbours on the machine do not count.
        begin = time.thread_time()
        for buffer in buffers:
            tile = parse_tile(buffer)
            expand_segments(tile, positions, starts, segments)
            decode_columns(tile, positions, starts, columns)
            edges += tile.edges
        best = max(best, edges / (time.thread_time() - begin))
    return best


@pytest.mark.slow
def test_a_crawl_in_its_own_order(graphs):
    indptr, columns = in_edges(open_source(graphs / "cnr-2000.mtx.xz"))
    tiles = encoded(indptr, columns)
    assert sum(map(len, tiles)) <= 0.47 * columns.size
    assert decode_rate(tiles) >= 1e9


@pytest.mark.slow
@pytest.mark.parametrize(("by_degree", "bytes_an_edge"), [(False, 2.0), (True, 1.5)])
def test_rmat_20(by_degree, bytes_an_edge):
    indptr, columns = in_edges(Rmat(20), by_degree=by_degree)
    tiles = encoded(indptr, columns)
    assert sum(map(len, tiles)) <= bytes_an_edge * columns.size
    assert decode_rate(tiles) >= 1e9
