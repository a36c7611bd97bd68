"""Tiles of a graph that was made on a device, encoded as a store has them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np

from oocpr.store.codec.tile_encoder import encode_tile

if TYPE_CHECKING:
    import device_graphs as graphs
    from numpy.typing import NDArray

STORED_EDGES = 1 << 20
"""Edges of the tiles of a store, which know the share of edges inside them."""


def encoded_tiles(
    graph: graphs.DeviceGraph, tile_edges: int, threads: int, encode_one: Any = encode_tile
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Tiles as a store has them, or coded in another way, and their first owned rows."""
    return tiles_cut_at(graph, np.arange(0, graph.edges, tile_edges), threads, encode_one)


def tiles_cut_at(
    graph: graphs.DeviceGraph, begins: NDArray[np.int64], threads: int, encode_one: Any = encode_tile
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Tiles that begin at these edges, and their first owned rows."""
    offsets, columns = cp.asnumpy(graph.offsets), cp.asnumpy(graph.columns)
    ends = np.append(begins[1:], graph.edges)
    owners = np.searchsorted(offsets, begins, side="right") - 1
    owners[0] = 0
    tile_rows = np.append(owners, graph.nodes).astype(np.int64)
    # The row behind the last one has no edges.
    closed = np.append(offsets, graph.edges)

    def encode(t: int) -> bytes:
        lo, hi = int(begins[t]), int(ends[t])
        rows = closed[tile_rows[t] : tile_rows[t + 1] + 2]
        return bytes(encode_one(columns[lo:hi], np.diff(np.clip(rows, lo, hi))))

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(encode, range(len(begins)))), tile_rows


def local_share(graph: graphs.DeviceGraph, tile_edges: int = STORED_EDGES) -> float:
    """Share of the edges that begin and end inside a tile, for tiles as a store has them."""
    first_edges = cp.arange(0, graph.edges, tile_edges)
    first_rows = cp.searchsorted(graph.offsets, first_edges, side="right") - 1
    bounds = [*first_rows.tolist(), graph.nodes]
    inside = 0
    for t, (first, last) in enumerate(pairwise(bounds)):
        columns = graph.columns[t * tile_edges : (t + 1) * tile_edges]
        inside += int(((columns >= first) & (columns < last)).sum())
    return inside / graph.edges
