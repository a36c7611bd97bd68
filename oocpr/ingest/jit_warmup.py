"""What an import may call of what is compiled, called once before memory is divided.

Functions are compiled, or loaded, when they are first called, and that takes memory: 80 MiB more than were
given on a machine that had compiled none of those that find an order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.merge import NewEdges
from oocpr.ingest.orders.permutation import EdgeScan, count_degrees, host_keys, make_order, order_by_degree
from oocpr.ingest.read import SpilledEdges
from oocpr.ingest.rows import NO_RANKS, EdgeCounter, sort_pairs, unique_sorted, weighted_pieces
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.partition import Edges, KeyRun, Partitioner, partition_run
from oocpr.ingest.tiles import Tile
from oocpr.progress import silent
from oocpr.store.codec.mantissa_segments import encode_segments, join_segments
from oocpr.store.codec.tiles import TileEncoder, decode_tile
from oocpr.store.codec.zarr_codecs import encode_chunk

if TYPE_CHECKING:
    from oocpr.ingest.spill.files import SpillDir

_PLENTY = 1 << 33
"""Bytes with which an order of two nodes is found."""

_warm: set[tuple[str | None, str, bool]] = set()


def warm_up(
    spill_dir: SpillDir, how: str | None = None, order: str = "keep", *, stored: bool = False
) -> None:
    """Call each compiled function of an import once in a process.

    `how` is what duplicate edges become, see `duplicate_policy`, and `order` the one of the nodes; `stored`
    says whether tiles that are stored are read.
    """
    asked = how, order, stored
    if asked in _warm:
        return
    edge = Edges.of(np.ones(1), np.zeros(1))
    ids = IdBitmap()
    ids.reach(1)
    ids.add(edge.src, edge.dst)
    partitioner = Partitioner(spill_dir.file(), 1, None)
    partitioner.plan(edge.dst)
    partitioner.add(edge)
    runs = list(partitioner.runs())
    [(keys, _)] = runs[0].records(np.empty(1, np.uint64))
    words = spill_dir.file()
    words.write(0, np.arange(5, dtype=np.uint64))
    # Blocks of two keys and of one, whose halves are contiguous and have a type of their own.
    partition_run(KeyRun.of_words(words, 0, 5, 0, 5), spill_dir.file(), np.empty(4, np.uint64))
    out_degree, _ = count_degrees(EdgeScan(runs, ids, lambda _: None), 2)
    relabel = make_order("degree", order_by_degree(out_degree), ids).relabel
    assert relabel is not None
    relabel(keys)
    keys = keys[: unique_sorted(keys)]
    counter, rows, starts = EdgeCounter(2), np.empty(1, np.uint32), np.empty(2, np.uint32)
    for ranks in (ids.ranks, NO_RANKS):
        edges = counter.to_rows(keys.copy(), 1, ranks, rows, starts)
    tile = Tile(1)
    tile.fill(edges, 0)
    tile.next_row = 2
    coded = TileEncoder().encode(tile.columns, tile.lengths())
    tile.local_edges()
    encode_chunk(np.zeros(1, np.int64))
    if how is not None:
        _warm_up_weights(spill_dir, how)
    if stored:
        decode_tile(coded)
        if how is not None:
            edges = edges._replace(weights=np.ones(1))
            join_segments(encode_segments(np.ones(1)), np.empty(1))
        # The new edge is stored already.
        assert list(NewEdges([edges], counter, how).merged([edges]))
    if order != "keep":
        _find_order(spill_dir, SpilledEdges(words, 1, 2, None, None, runs, partitioner), order)
    _warm.add(asked)


def _find_order(spill_dir: SpillDir, edges: SpilledEdges, order: str) -> None:
    from oocpr.ingest.orders.choice import Ordering
    from oocpr.sources.rmat import Rmat

    if order in ("host", "auto"):
        host_keys(np.zeros(1, np.uint8), np.ones(1, np.uint32))
    if order != "host":
        # What is chosen may have been found by a search.
        for found in dict.fromkeys(("dfs" if order == "auto" else order, order)):
            Ordering(edges, Rmat(1), spill_dir, _PLENTY, silent).find(found)


def _warm_up_weights(spill_dir: SpillDir, how: str) -> None:
    # An edge that comes four times, with memory for all of them and without.
    weighted = how != "count"
    if weighted:
        sort_pairs(*np.zeros((2, 1 << 17), np.uint64))
    edge = Edges.of(np.ones(4), np.zeros(4), np.ones(4) if weighted else None)
    partitioner = Partitioner(spill_dir.file(), 1, None, weighted=weighted)
    partitioner.plan(edge.dst)
    partitioner.add(edge)
    [run] = partitioner.runs()
    counter = EdgeCounter(2, weighted=True)
    for space in (3, 4):
        for _, weights, _ in weighted_pieces(run, np.empty(space, np.uint64), np.empty(space), how):
            counter.add_weights(np.ones(1, np.uint32), weights)
            encode_segments(weights)
