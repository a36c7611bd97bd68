"""The compiled functions of an import, each called once.

They are compiled, or loaded, when they are first called, and that takes memory, which has to be taken before
the rest is shared out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.order.permutation import make_order, order_by_degree
from oocpr.ingest.order.sample import EdgeScan, count_degrees
from oocpr.ingest.sort.rows import NO_RANKS, EdgeCounter, unique_sorted
from oocpr.ingest.sort.tiles import Tile
from oocpr.ingest.sort.weights import OutWeights, sort_pairs, weighted_pieces
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.keys import KeyRun
from oocpr.ingest.spill.partition import Edges, Partitioner, partition_run
from oocpr.store.codec.mantissa_segments import encode_segments
from oocpr.store.codec.tile_encoder import TileEncoder
from oocpr.store.codec.zarr_codecs import encode_chunk

if TYPE_CHECKING:
    from oocpr.ingest.spill.files import SpillDir


def warm_up(workspace: SpillDir) -> None:
    """Import a graph of one edge from node 1 to node 0, but for reading and writing it."""
    edge = Edges.of(np.ones(1), np.zeros(1))
    ids = IdBitmap()
    ids.reach(1)
    ids.add(edge.src, edge.dst)
    partitioner = Partitioner(workspace.file(), 1, None)
    partitioner.plan(edge.dst)
    partitioner.add(edge)
    runs = list(partitioner.runs())
    [keys] = runs[0].blocks(np.empty(1, np.uint64))
    words = workspace.file()
    words.write(0, np.arange(5, dtype=np.uint64))
    # Blocks of two keys and of one, whose halves are contiguous and have a type of their own.
    partition_run(KeyRun.of_words(words, 0, 5, 0, 5), workspace.file(), np.empty(4, np.uint64))
    out_degree, _ = count_degrees(EdgeScan(runs, ids, lambda _: None), 2, sources=True)
    relabel = make_order("degree", order_by_degree(out_degree), ids).relabel
    assert relabel is not None
    relabel(keys)
    keys = keys[: unique_sorted(keys)]
    counter, rows, starts = EdgeCounter(2), np.empty(1, np.uint32), np.empty(2, np.uint32)
    for ranks in (ids.ranks, NO_RANKS):
        edges = counter.to_rows(keys.copy(), 1, ranks, rows, starts)
    tile = Tile(1)
    tile.take(edges, 0)
    tile.next_row = 2
    TileEncoder().encode(tile.columns, tile.lengths())
    tile.local_edges()
    encode_chunk(np.zeros(1, np.int64))


def warm_up_weights(workspace: SpillDir, how: str) -> None:
    """Weigh an edge that comes four times, with memory for all of them and without."""
    weighted = how != "count"
    if weighted:
        sort_pairs(*np.zeros((2, 1 << 17), np.uint64))
    edge = Edges.of(np.ones(4), np.zeros(4), np.ones(4) if weighted else None)
    partitioner = Partitioner(workspace.file(), 1, None, weighted=weighted)
    partitioner.plan(edge.dst)
    partitioner.add(edge)
    [run] = partitioner.runs()
    sums = OutWeights(2)
    for space in (3, 4):
        for _, weights, _ in weighted_pieces(run, np.empty(space, np.uint64), np.empty(space), how):
            sums.add(np.ones(1, np.uint32), weights)
            encode_segments(weights)
