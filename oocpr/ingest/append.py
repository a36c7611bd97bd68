"""A stored graph and a source of more edges to a new store, without sorting the stored edges again.

Tiles hold equally many edges in the order of their rows, so those before the first new edge are what they
were, and are copied. Later ones are decoded, merged with the new edges, and cut anew.

Workers read ranges of tiles beside parts of the source, and import the edges of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import DamagedError, InputError, UsageError
from oocpr.ingest import budget
from oocpr.ingest.budget import require
from oocpr.ingest.build import Pipeline, Resources
from oocpr.ingest.cluster import ClusterImport, OneProcessError
from oocpr.ingest.merge import NewEdges
from oocpr.ingest.orders.permutation import make_order
from oocpr.ingest.resume import OneShotImport
from oocpr.ingest.rows import EdgeCounter, Rows, duplicate_policy
from oocpr.progress import Progress, silent
from oocpr.sources.base import BaseSource
from oocpr.sources.block import Block, EdgeBlock, NameBlock, NodeBlock, Source, Strings
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tiles import decode_columns, expand_segments
from oocpr.store.graph import open_same
from oocpr.store.integrity import check_degree_sum
from oocpr.system import resident_after_trim, shares, spans

if TYPE_CHECKING:
    import os

    from oocpr.ingest.cluster import Workers
    from oocpr.ingest.read import SpilledEdges
    from oocpr.ingest.spill.id_bitmap import IdBitmap
    from oocpr.store.format import Attributes
    from oocpr.store.graph import GraphStore
    from oocpr.store.writer import GraphWriter

_CHUNK = 1 << 18


def is_unchanged(first: int | None, next_row: int, *, last: bool, grown: bool) -> bool:
    """Whether a tile without new edges stays what it is.

    A tile says how many edges each of its rows has, up to the row of the edge that follows it, `next_row`:
    the next new edge, of key `first`, may change which row that is. If it is the last, the tile goes to the
    end of the rows, of which there may be new ones (`grown`).
    """
    if last:
        return first is None and not grown
    return first is None or first >> 32 >= next_row


class StoredTiles:
    """The tiles of a store; `rows` are the new row of each of its rows, ascending, None if they stay.

    Of what `edges` has given, `local_edges` have their column among the owned rows of their tile; 0 if rows
    change.
    """

    def __init__(self, store: GraphStore, rows: NDArray[np.uint32] | None) -> None:
        self.local_edges = 0
        self._store = store
        self._rows = rows
        self._buffer = np.empty(store.encoded.max_bytes, np.uint8)
        self._segments = np.empty(0 if store.weights is None else store.weights.max_bytes, np.uint8)

    def copy(self, writer: GraphWriter, new: NewEdges, counter: EdgeCounter, *, grown: bool) -> int:
        """Copy tiles up to the first that changes; returns how many.

        New edges that are in these tiles are dropped, unless edges have weights, which `counter` adds up.
        `grown` says whether there are new rows.
        """
        store = self._store
        for tile in range(store.tiles):
            first_row, next_row = int(store.tile_rows[tile]), int(store.tile_rows[tile + 1])
            size = store.encoded.read_into(tile, self._buffer)
            last = tile == store.tiles - 1
            nearest = new.next
            if nearest is not None and (last or nearest >> 32 <= next_row):
                edges = self._decoded(tile, size, first_row)
                if store.weights is None:
                    new.drop_stored(edges)
                nearest = new.next
                if nearest is not None and edges.columns.size and nearest <= edges.last_key:
                    return tile
            if not is_unchanged(nearest, next_row, last=last, grown=grown):
                return tile
            ends = store.indptr(first_row + 1, next_row + 1)
            data = None
            if store.weights is not None:
                edges = self._decoded(tile, size, first_row)
                counter.add_weights(edges.columns, edges.weights)
                data = self._segments[: store.weights.read_into(tile, self._segments)]
            writer.copy_tile(self._buffer[:size], self._count(tile), ends, data)
        return store.tiles

    def edges(self, tiles: range) -> Iterator[Rows]:
        """Yield the edges of each of some neighbouring tiles, with their new rows and columns."""
        store, before = self._store, -1
        for tile in tiles:
            size = store.encoded.read_into(tile, self._buffer)
            first_row, next_row = int(store.tile_rows[tile]), int(store.tile_rows[tile + 1])
            edges = self._decoded(tile, size, first_row)
            if edges.columns.size:
                if edges.first_key <= before:
                    raise self._damaged(tile, "begins before the one before it ends")
                before = edges.last_key
            if self._rows is None:
                inside = edges.columns - np.uint32(first_row) < next_row - first_row
                self.local_edges += int(np.count_nonzero(inside))
            else:
                edges = edges._replace(columns=self._rows[edges.columns], rows=self._rows[edges.rows])
            yield edges

    def _count(self, tile: int) -> int:
        """Edges that belong in a tile."""
        tile_edges = self._store.attributes.tile_edges
        return min(tile_edges, self._store.edges - tile * tile_edges)

    def _decoded(self, number: int, size: int, first_row: int) -> Rows:
        """Decode and check the tile that lies in the buffer, and its weights."""
        store = self._store
        weights = None if store.weights is None else store.weights.read(number)
        tile = parse_tile(self._buffer[:size])
        belong = self._count(number), int(store.tile_rows[number + 1]) - first_row + 1
        found = tile.edges, tile.segments
        if found != belong or (weights is not None and weights.size != tile.edges):
            raise self._damaged(
                number, f"has {found[0]} edges in {found[1]} rows, not {belong[0]} in {belong[1]}"
            )
        positions, segments = np.empty(tile.nonempty + 1, np.uint32), np.empty(tile.nonempty + 1, np.uint32)
        starts, columns = np.empty(tile.nonempty, np.uint32), np.empty(tile.edges, np.uint32)
        expand_segments(tile, positions, starts, segments)
        decode_columns(tile, positions, starts, columns)
        rows = segments[:-1] + np.uint32(first_row)
        if max(columns.max(initial=0), rows.max(initial=0)) >= self._store.nodes:
            raise self._damaged(number, f"has an edge of no node of the {self._store.nodes}")
        ascends = columns[1:] > columns[:-1]
        ascends[positions[1:-1].astype(np.int64) - 1] = True
        if not ascends.all():
            raise self._damaged(number, "has columns that do not ascend")
        return Rows(columns, rows, positions, tile.edges, weights)

    def _damaged(self, number: int, what: str) -> DamagedError:
        return DamagedError(f"{self._store.path}: tile {number} {what}.")


def merged_name(old: str, new: str) -> str:
    """Name a graph made of an older one and a source, as if all files had been given at once."""
    first, before = _first_and_more(old)
    _, after = _first_and_more(new)
    return f"{first} and {before + after + 1:,} more"


def _first_and_more(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*) and ([\d,]+) more", name, re.DOTALL)
    return (match[1], int(match[2].replace(",", ""))) if match else (name, 0)


def stored_nodes(store: GraphStore, first: int, stop: int, count: int) -> Iterator[NodeBlock]:
    """Yield the ids of rows `first` to `stop` - 1, or their names, about `count` at a time.

    DamagedError if ids are in another order than rows.
    """
    for lo, hi in spans(stop, count, first):
        if store.has_labels:
            for text, lengths in store.label_pieces(lo, hi):
                yield NodeBlock(Strings.of(text, lengths))
            continue
        before = max(0, lo - 1)
        ids = store.ids(before, hi)
        # Rows are looked for by their ids.
        if (ids[1:] <= ids[:-1]).any():
            raise DamagedError(f"{store.path}: its ids do not ascend.")
        yield NodeBlock(ids[lo - before :])


class StoredPart(BaseSource):
    """Tiles of a stored graph without names: their edges, from id to id, and the ids of the rows they own.

    It is read by any process that finds the store, see `open_same`.
    """

    def __init__(self, store: GraphStore, tiles: range) -> None:
        facts = store.attributes
        super().__init__(facts.source, store.path)
        self.size = (facts.encoded_bytes + facts.data_bytes) * len(tiles) // store.tiles
        self.weighted = facts.weighted
        self.is_part = True
        self._path, self._identity = store.shared_path, store.identity
        self._tiles = tiles

    def _open(self) -> GraphStore:
        return open_same(self._path, self._identity, self.reader)

    def sample(self, max_edges: int) -> EdgeBlock:
        """See BaseSource: rows between those that tiles begin with, as tiles have equally many edges."""
        store = self._open()
        places = np.linspace(self._tiles.start, self._tiles.stop, max_edges, endpoint=False)
        rows = np.interp(places, np.arange(store.tiles + 1), store.tile_rows)
        ids = store.take_ids(rows.astype(np.int64))
        return EdgeBlock(ids, ids)

    def _read(self, max_edges: int) -> Iterator[Block]:
        store, tiles = self._open(), self._tiles
        facts, rows = store.attributes, store.tile_rows
        max_rows = int(np.diff(rows).max())
        needed = budget.stored_tile_bytes(facts.tile_edges, max_rows, weighted=facts.weighted)
        self.reserve(needed + 8 * store.nodes * store.has_ids, f"Reading {self._path}")
        with store.unchanged():
            ids = store.node_ids()
            for edges in StoredTiles(store, None).edges(tiles):
                src, dst = edges.columns, np.repeat(edges.rows, np.diff(edges.starts))
                for first in range(0, src.size, max_edges):
                    part = slice(first, first + max_edges)
                    ends: list[NDArray[Any]] = [src[part], dst[part]]
                    if ids is not None:
                        ends = [ids[end] for end in ends]
                    weight = None if edges.weights is None else edges.weights[part]
                    yield EdgeBlock(ends[0], ends[1], weight)
            yield from stored_nodes(store, int(rows[tiles.start]), int(rows[tiles.stop]), 2 * max_edges)


class AddedEdges(BaseSource):
    """The edges of a source, or of a part of the one called `title`, as they are added to a stored graph.

    InputError for numbers where the graph has names, or the reverse. If edges are `weighted`, but not those
    of the source, each has the weight 1. Nodes that the source says it has are given if it is the `first`.
    """

    def __init__(
        self, source: Source, title: str, store: GraphStore, *, weighted: bool, first: bool = True
    ) -> None:
        super().__init__(source.name, title)
        self.size, self.notices = source.size, source.notices
        self.unused_columns = getattr(source, "unused_columns", [])
        self.weighted = weighted
        self.is_part = True
        self._path, self._named = store.path, store.has_labels
        self._source, self._first = source, first

    def _read(self, max_edges: int) -> Iterator[Block]:
        source = self._source
        if isinstance(source, BaseSource):
            source.reserve = self.reserve
        for block in source.blocks(max_edges):
            self.position = source.position
            nodes = block.nodes if isinstance(block, NodeBlock) else None
            named = isinstance(block, NameBlock) or isinstance(nodes, Strings)
            if source.labels is not None or named != self._named:
                ours, theirs = ("name", "number") if self._named else ("number", "name")
                if self._named and source.labels is not None:
                    theirs = "number and name"
                raise InputError(
                    f"{self._path} knows its nodes by {ours}, {self.title} by {theirs}.",
                    "Import all sources together.",
                )
            if self.weighted and not source.weighted and not isinstance(block, NodeBlock):
                block = replace(block, weight=np.ones(block.src.size))
            yield block
        for lo in range(0, (source.nodes or 0) if self._first else 0, 2 * max_edges):
            yield NodeBlock(np.arange(lo, min(lo + 2 * max_edges, source.nodes or 0)))


class StoredPlusNew(BaseSource):
    """All nodes of a stored graph in their order, then the edges of a source, as one source.

    Nodes are the same if they have the same id or, if the stored graph has labels, the same name. The stored
    nodes are in the order of their ids, or in any order if they have labels; InputError for numbers where
    there are names, or the reverse.

    Its parts have the stored edges as well. They are `weighted` if these are: a weight is the number of equal
    edges if the source has none.
    """

    def __init__(self, store: GraphStore, source: Source, *, weighted: bool) -> None:
        super().__init__(merged_name(store.attributes.source, source.name), source.name)
        self.notices = source.notices
        self.unused_columns = getattr(source, "unused_columns", [])
        self.size = source.size
        self.weighted = weighted
        self.direction = store.attributes.direction
        self._store = store
        self._source = source

    def parts(self, count: int) -> list[BaseSource]:
        """See BaseSource: ranges of tiles of the store, and parts of the source."""
        source, store = self._source, self._store
        parts = source.parts(count) if isinstance(source, BaseSource) else []
        bounds = shares(store.tiles, min(count, store.tiles))
        added = (
            AddedEdges(part, source.name, store, weighted=self.weighted, first=not number)
            for number, part in enumerate(parts)
        )
        return [*(StoredPart(store, range(*bound)) for bound in bounds), *added] if parts else []

    def locate(self, edge: int) -> str:
        """Say where the edge stands that came as number `edge`, counted from 0."""
        return self._source.locate(edge)

    def _read(self, max_edges: int) -> Iterator[Block]:
        yield from stored_nodes(self._store, 0, self._store.nodes, 2 * max_edges)
        added = AddedEdges(self._source, self._source.name, self._store, weighted=self.weighted)
        added.reserve = self.reserve
        for block in added.blocks(max_edges):
            self.position = added.position
            yield block


def append_store(
    store: GraphStore,
    source: Source,
    path: str | os.PathLike[str],
    *,
    memory: int,
    tmp: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    duplicates: str | None = None,
    progress: Progress = silent,
    on_message: Callable[[str], None] = lambda _: None,
    workers: Workers | None = None,
    block_edges: int | None = None,
    bucket_edges: int | None = None,
) -> tuple[Attributes, int | None]:
    """Write a stored graph of order "keep" with the edges of `source` added as a new store.

    Its bytes are those of an import of all sources together: edges that are stored already count once, nodes
    are in the order of their ids or, if they have names, new ones after the old ones. Only sums of weights
    may differ, by rounding: what the stored ones are sums of is not known any more. Returns what the new
    store says about itself, and how many tiles are those of `store`; None if workers have made all anew.

    Parameters are as for `build_store`; `duplicates` is None for what the store was made with. DamagedError
    if the bytes of `store` are not what was written, ReplacedError if it was replaced meanwhile.
    """
    facts = store.attributes
    duplicates = _as_before(store, duplicates, weighted=source.weighted)
    how = duplicate_policy(duplicates, weighted=source.weighted)
    if (how is not None) != facts.weighted:
        have = ("has weights", "has none") if facts.weighted else ("has no weights", "has some")
        raise UsageError(
            f"{store.path} {have[0]}, and what is to be added {have[1]}.",
            "Say where weights are, or that edges are to be counted."
            if facts.weighted
            else "Leave the weights out, or import all sources together.",
        )
    if facts.direction not in (None, getattr(source, "direction", None)):
        raise UsageError(
            f"{store.path} was imported with {facts.direction}, and what is to be added is not.",
            f"Add it with {facts.direction} as well.",
        )
    if facts.order != "keep":
        raise UsageError(
            f"{store.path} has its nodes in the order {facts.order!r}, in which new ones have no place.",
            "Import all sources together, or the first ones with order keep.",
        )
    # Degrees that do not add up are refused before all nodes are gone through for hours.
    degrees = sum(int(store.out_degree(lo, hi).sum(dtype=np.uint64)) for lo, hi in spans(store.nodes, _CHUNK))
    check_degree_sum(store.path, degrees, store.edges)
    given, tile_edges = facts.edges + facts.duplicates, None
    if facts.tile_edges != budget.tile_edges_for(given):  # else as an import of all would choose
        tile_edges = facts.tile_edges

    def check() -> None:
        if Path(path).resolve() == Path(store.path).resolve():
            # What somebody else has made of the graph meanwhile is not to be lost.
            store.check_current()
        store.check_unchanged()

    if workers is not None:
        try:
            if store.has_labels:
                raise OneProcessError("is added to nodes with names")
            parts = StoredPlusNew(store, source, weighted=facts.weighted)
            ways = (how, facts.order, tile_edges, overwrite, progress, facts.duplicates, check)
            return ClusterImport(parts, Path(path), workers, *ways).run(), None
        except OneProcessError as reason:
            on_message(f"This process adds the edges alone, without workers: {source.name} {reason}.")
    with ExitStack() as stack:
        resources = Resources(memory, progress, block_edges, bucket_edges)
        job = OneShotImport(Path(path), tmp, overwrite=overwrite)
        joint = StoredPlusNew(store, source, weighted=source.weighted)
        pipeline = Pipeline(
            joint, job, stack, "Adding edges", how, facts.tile_edges, resources, reads_store=True
        )
        passes = 2 if store.has_labels else 1
        edges, order = pipeline.read(lambda edges: make_order("keep", None, edges.ids), passes)
        rows = _rows(store, edges, memory)

        tile_edges = tile_edges or budget.tile_edges_for(given + edges.edges)
        max_rows = int(np.diff(store.tile_rows).max())
        reserved = budget.stored_tile_bytes(facts.tile_edges, max_rows, weighted=facts.weighted)
        pipeline.plan_tiles(edges, order, tile_edges, stored_edges=facts.edges, reserved=reserved)
        counter = pipeline.counter
        new = NewEdges(pipeline.sorter.pieces(edges.runs), counter, how)
        old = StoredTiles(store, rows)
        copied, local_edges, total = 0, 0, given + edges.edges
        if rows is None and tile_edges == facts.tile_edges:
            copied = old.copy(pipeline.writer, new, counter, grown=edges.nodes > store.nodes)
        if copied < store.tiles:
            pieces = new.merged(old.edges(range(copied, store.tiles)))
            local_edges = pipeline.write_tiles(pieces, copied, int(store.tile_rows[copied]), total)
        degree = counter.out_degree()
        for lo, hi in spans(store.nodes, _CHUNK):
            degree[slice(lo, hi) if rows is None else rows[lo:hi]] += store.out_degree(lo, hi)
        check()
        if copied:
            local_edges += facts.local_edges - old.local_edges
        self_loops = facts.self_loops + counter.self_loops
        return pipeline.finish(total, self_loops, local_edges, degree), copied


def _as_before(store: GraphStore, duplicates: str | None, *, weighted: bool) -> str | None:
    """Say what duplicate edges become, as they did when the store was made."""
    facts = store.attributes
    before = facts.duplicate_weights
    if before is None and facts.weighted and weighted and duplicates is None:
        raise UsageError(
            f"{store.path} is of an earlier version, which did not write down what duplicate edges became.",
            'Give duplicates as it was given to the import; the default was duplicates="merge".',
        )
    if before is not None and duplicates not in (None, before):
        raise UsageError(
            f"{store.path} was imported with duplicates {before}, and duplicates is now {duplicates!r}.",
            "Leave duplicates out, or import all sources together.",
        )
    # Edges without weights, and none counted, are refused for that.
    return before if weighted or before == "count" else duplicates


def _rows(store: GraphStore, edges: SpilledEdges, memory: int) -> NDArray[np.uint32] | None:
    """New row of each stored one; None if they are the same."""
    dictionary, last = edges.dictionary, store.nodes - 1
    if dictionary is None:
        if _row_of(edges.ids, store.ids(last, last + 1))[0] == last:
            return None
    elif dictionary.names is not None:
        if dictionary.given < store.nodes:
            raise InputError(
                f"{store.path} has {store.nodes - dictionary.given:,} names more than once, so names do not "
                "tell its nodes apart.",
                "Import all sources together.",
            )
        return None
    elif dictionary.ids(last, 1)[0] == store.ids(last, last + 1)[0]:
        return None
    require(resident_after_trim() + 4 * store.nodes + budget.SLACK_BYTES, memory, "Giving old nodes new rows")
    rows = np.empty(store.nodes, np.uint32)
    held, first, after = np.empty(0, np.int64), 0, 0
    for lo, hi in spans(store.nodes, _CHUNK):
        ids = store.ids(lo, hi)
        if dictionary is None:
            rows[lo:hi] = _row_of(edges.ids, ids)
            continue
        while not held.size or held[-1] < ids[-1]:
            more = dictionary.ids(after, min(_CHUNK, dictionary.nodes - after))
            held, after = np.concatenate([held, more]), after + more.size
        found = np.searchsorted(held, ids)
        rows[lo:hi] = first + found
        done = int(found[-1])
        held, first = held[done:], first + done
    return rows


def _row_of(known: IdBitmap | None, ids: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Row of each id; `known` are those that occur, None for all up to the largest."""
    keys = ids.astype(np.uint64)
    if known is not None:
        known.relabel(keys)
    return keys.astype(np.uint32)
