"""A stored graph as it is read to be appended to: its nodes, and its tiles, of which some are copied."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import DamagedError, InputError
from oocpr.ingest.append.merge import last_key
from oocpr.ingest.sort.rows import Rows
from oocpr.sources.base import BaseSource
from oocpr.sources.block import NameBlock, NodeBlock, Strings
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tile_decoder import decode_columns, expand_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.append.merge import NewEdges
    from oocpr.ingest.nodes.dictionary import Dictionary
    from oocpr.ingest.sort.weights import OutWeights
    from oocpr.sources.block import Block, Source
    from oocpr.store.graph import GraphStore, GraphWriter

_CHUNK = 1 << 18


def is_unchanged(first: int | None, next_row: int, *, last: bool, grown: bool) -> bool:
    """Whether a tile without new edges stays what it is.

    A tile says how many edges each of its rows has, up to the row of the edge that follows it, `next_row`:
    the next new edge, of key `first`, may change which row that is. If it is the last, the tile goes to the
    end of the rows, of which there may be new ones (`grown`).

    Examples
    --------
    >>> is_unchanged(5 << 32, 5, last=False, grown=True), is_unchanged(4 << 32 | 9, 5, last=False, grown=True)
    (True, False)
    >>> is_unchanged(None, 9, last=True, grown=False), is_unchanged(None, 9, last=True, grown=True)
    (True, False)
    """
    if last:
        return first is None and not grown
    return first is None or first >> 32 >= next_row


class StoredTiles:
    """The tiles of a store; `rows` are the new row of each of its rows, ascending, uint32, None if they stay.

    Attributes
    ----------
    local_edges
        Edges that `edges` has given whose column is among the owned rows of their tile; 0 if rows change.
    """

    def __init__(self, store: GraphStore, rows: NDArray[np.uint32] | None) -> None:
        self.local_edges = 0
        self._store = store
        self._rows = rows
        self._buffer = np.empty(store.encoded.max_bytes, np.uint8)
        self._segments = np.empty(0 if store.weights is None else store.weights.max_bytes, np.uint8)

    def copy(self, writer: GraphWriter, new: NewEdges, *, grown: bool, sums: OutWeights | None) -> int:
        """Copy tiles up to the first that changes; returns how many.

        New edges that are in these tiles are dropped, unless edges have weights, which `sums` adds up.
        `grown` tells whether there are new rows.
        """
        store = self._store
        for tile in range(store.tiles):
            first_row, next_row = int(store.tile_rows[tile]), int(store.tile_rows[tile + 1])
            size = store.encoded.read_into(tile, self._buffer)
            last = tile == store.tiles - 1
            nearest = new.next
            if nearest is not None and (last or nearest >> 32 <= next_row):
                edges = self._decoded(tile, size, first_row)
                if sums is None:
                    new.drop_stored(edges)
                nearest = new.next
                if nearest is not None and edges.columns.size and nearest <= last_key(edges):
                    return tile
            if not is_unchanged(nearest, next_row, last=last, grown=grown):
                return tile
            count = self._count(tile)
            ends = store.indptr(first_row + 1, next_row + 1)
            data = None
            if sums is not None and store.weights is not None:
                sums.take(self._decoded(tile, size, first_row))
                data = self._segments[: store.weights.read_into(tile, self._segments)]
            writer.copy_tile(self._buffer[:size], count, ends, data)
        return store.tiles

    def edges(self, first: int) -> Iterator[Rows]:
        """Yield the edges of each tile from tile `first` on, with their new rows and columns."""
        store, before = self._store, -1
        for tile in range(first, store.tiles):
            size = store.encoded.read_into(tile, self._buffer)
            first_row, next_row = int(store.tile_rows[tile]), int(store.tile_rows[tile + 1])
            edges = self._decoded(tile, size, first_row)
            if edges.columns.size:
                if int(edges.rows[0]) << 32 | int(edges.columns[0]) <= before:
                    raise self._damaged(tile, "begins before the one before it ends")
                before = last_key(edges)
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
        """Decode the tile that lies in the buffer, and its weights."""
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
        edges = Rows(columns, segments[:-1] + np.uint32(first_row), positions, tile.edges, weights)
        self._check_order(number, edges)
        return edges

    def _check_order(self, number: int, edges: Rows) -> None:
        """Refuse edges of nodes that are not there, and columns that do not ascend."""
        columns, rows = edges.columns, edges.rows
        if max(columns.max(initial=0), rows.max(initial=0)) >= self._store.nodes:
            raise self._damaged(number, f"has an edge of no node of the {self._store.nodes}")
        ascends = columns[1:] > columns[:-1]
        ascends[edges.starts[1:-1].astype(np.int64) - 1] = True
        if not ascends.all():
            raise self._damaged(number, "has columns that do not ascend")

    def _damaged(self, number: int, what: str) -> DamagedError:
        return DamagedError(f"{self._store.path}: tile {number} {what}.")


def new_rows(store: GraphStore, dictionary: Dictionary) -> NDArray[np.uint32]:
    """Find the row of each node of a store among the nodes of a dictionary of ids: uint32, shape (nodes,)."""
    rows = np.empty(store.nodes, np.uint32)
    held, first, after = np.empty(0, np.int64), 0, 0
    for lo in range(0, store.nodes, _CHUNK):
        ids = store.ids(lo, min(lo + _CHUNK, store.nodes))
        while not held.size or held[-1] < ids[-1]:
            more = dictionary.ids(after, min(_CHUNK, dictionary.nodes - after))
            held, after = np.concatenate([held, more]), after + more.size
        found = np.searchsorted(held, ids)
        rows[lo : lo + ids.size] = first + found
        done = int(found[-1])
        held, first = held[done:], first + done
    return rows


def joined_name(old: str, new: str) -> str:
    """Name a graph made of an older one and a source, as if all files had been given at once.

    Examples
    --------
    >>> joined_name("web", "monday"), joined_name("web and 2 more", "monday and 1 more")
    ('web and 1 more', 'web and 4 more')
    """
    first, before = _first_and_more(old)
    _, after = _first_and_more(new)
    return f"{first} and {before + after + 1:,} more"


def _first_and_more(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*) and ([\d,]+) more", name, re.DOTALL)
    return (match[1], int(match[2].replace(",", ""))) if match else (name, 0)


class StoredPlusNew(BaseSource):
    """All nodes of a stored graph in their order, then the edges of a source, as one source.

    Nodes are the same if they have the same id or, if the stored graph has labels, the same name. The stored
    nodes are in the order of their ids, or in any order if they have labels; InputError for numbers where
    there are names, or the reverse.
    """

    def __init__(self, store: GraphStore, source: Source) -> None:
        super().__init__(joined_name(store.attributes.source, source.name), source.name)
        self.notices = source.notices
        self.size = source.size
        self.weighted = source.weighted
        self._store = store
        self._source = source

    def locate(self, edge: int) -> str:
        """Say where the edge stands that came as number `edge`, counted from 0."""
        return self._source.locate(edge)

    def _read(self, max_edges: int) -> Iterator[Block]:
        if isinstance(self._source, BaseSource):
            self._source.reserve = self.reserve
        for first in range(0, self._store.nodes, 2 * max_edges):
            for nodes in self._nodes(first, min(first + 2 * max_edges, self._store.nodes)):
                yield NodeBlock(nodes)
        stated = False
        for block in self._source.blocks(max_edges):
            self.position = self._source.position
            if self._source.labels is not None or _named(block) != self._store.has_labels:
                raise self._mixed()
            if self._source.nodes is not None and not stated:
                stated = True
                for first in range(0, self._source.nodes, 2 * max_edges):
                    yield NodeBlock(np.arange(first, min(first + 2 * max_edges, self._source.nodes)))
            yield block

    def _nodes(self, first: int, stop: int) -> Iterator[NDArray[np.int64] | Strings]:
        """Yield the ids of some rows, or their names."""
        if not self._store.has_labels:
            before = max(0, first - 1)
            ids = self._store.ids(before, stop)
            # Rows are looked for by their ids.
            if (ids[1:] <= ids[:-1]).any():
                raise DamagedError(f"{self._store.path}: its ids do not ascend.")
            yield ids[first - before :]
            return
        for text, lengths in self._store.label_pieces(first, stop):
            yield Strings.of(text, lengths)

    def _mixed(self) -> InputError:
        ours, theirs = ("name", "number") if self._store.has_labels else ("number", "name")
        if self._store.has_labels and self._source.labels is not None:
            theirs = "number and name"
        return InputError(
            f"{self._store.path} knows its nodes by {ours}, {self._source.name} by {theirs}.",
            "Import all sources together.",
        )


def _named(block: Block) -> bool:
    return isinstance(block, NameBlock) or (isinstance(block, NodeBlock) and isinstance(block.nodes, Strings))
