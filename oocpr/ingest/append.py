"""A stored graph and a source of more edges to a new store, without sorting the stored edges again.

Tiles hold equally many edges in the order of their rows, so those before the first new edge are what they
were, and are copied. Later ones are decoded, merged with the new edges, and cut anew.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numba import uint32, uint64
from numpy.typing import NDArray

from oocpr.errors import DamagedError, InputError, UsageError
from oocpr.ingest import budget
from oocpr.ingest.budget import require
from oocpr.ingest.build import Pipeline, Resources
from oocpr.ingest.orders import make_order
from oocpr.ingest.resume import OneShotImport
from oocpr.ingest.rows import EdgeCounter, Rows, check_finite, duplicate_policy
from oocpr.ingest.spill.partition import NO_WEIGHTS
from oocpr.jit import entry, inner
from oocpr.progress import Progress, silent
from oocpr.sources.base import BaseSource
from oocpr.sources.block import Block, NameBlock, NodeBlock, Source, Strings
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tiles import decode_columns, expand_segments
from oocpr.store.integrity import check_degree_sum
from oocpr.system import resident_after_trim

if TYPE_CHECKING:
    import os

    from oocpr.ingest.read import SpilledEdges
    from oocpr.store.format import Attributes
    from oocpr.store.graph import GraphStore
    from oocpr.store.writer import GraphWriter

_CHUNK = 1 << 18


@inner()
def _copy(source, first, end, out, at):
    for i in range(uint64(end - first)):
        out[at + i] = source[first + i]
    return at + end - first


@inner()
def _copy_rows(i, end, old, old_weights, edges, found, columns, weights, rows, starts):
    """Copy whole rows i to end - 1; returns the numbers of edges and of rows so far."""
    first, stop = uint64(old.starts[i]), uint64(old.starts[end])
    for k in range(i, end):
        rows[found] = old.rows[k]
        starts[found] = uint32(edges + uint64(old.starts[k]) - first)
        found += uint64(1)
    if weights.size:
        _copy(old_weights, first, stop, weights, edges)
    return _copy(old.columns, first, stop, columns, edges), found


@entry()
def _merge(old, new, old_weights, new_weights, greatest, columns, weights, rows, starts, both):
    """Merge rows; returns the numbers of edges, of rows, and of edges on both sides, whose keys go to `both`.

    Of weights, empty if there are none, an edge on both sides gets the greatest or the sum.
    """
    weighted = weights.size > 0
    edges, found, twice = uint64(0), uint64(0), uint64(0)
    i = uint64(0)
    size = uint64(old.rows.size)
    for j in range(uint64(new.rows.size)):
        row = new.rows[j]
        end = i
        while end < size and old.rows[end] < row:
            end += uint64(1)
        edges, found = _copy_rows(i, end, old, old_weights, edges, found, columns, weights, rows, starts)
        i = end
        rows[found] = row
        starts[found] = uint32(edges)
        found += uint64(1)
        y, y_end = uint64(new.starts[j]), uint64(new.starts[j + uint64(1)])
        if i < size and old.rows[i] == row:
            x, x_end = uint64(old.starts[i]), uint64(old.starts[i + uint64(1)])
            i += uint64(1)
            while x < x_end and y < y_end:
                a, b = old.columns[x], new.columns[y]
                columns[edges] = min(a, b)
                if weighted:
                    one, other = old_weights[x], new_weights[y]
                    together = max(one, other) if greatest else one + other
                    weights[edges] = together if a == b else one if a < b else other
                edges += uint64(1)
                both[twice] = uint64(row) << uint64(32) | uint64(b)
                twice += uint64(a == b)
                x += uint64(a <= b)
                y += uint64(b <= a)
            if weighted:
                _copy(old_weights, x, x_end, weights, edges)
            edges = _copy(old.columns, x, x_end, columns, edges)
        if weighted:
            _copy(new_weights, y, y_end, weights, edges)
        edges = _copy(new.columns, y, y_end, columns, edges)
    edges, found = _copy_rows(i, size, old, old_weights, edges, found, columns, weights, rows, starts)
    starts[found] = uint32(edges)
    return edges, found, twice


def keys_of_rows(edges: Rows) -> NDArray[np.uint64]:
    """Give the keys of edges, uint64."""
    keys = np.repeat(edges.rows.astype(np.uint64) << np.uint64(32), np.diff(edges.starts))
    keys |= edges.columns
    return keys


def rows_of_keys(keys: NDArray[np.uint64]) -> Rows:
    """Take ascending unique keys apart."""
    rows = (keys >> np.uint64(32)).astype(np.uint32)
    firsts = np.flatnonzero(np.diff(rows, prepend=~rows[:1]))
    starts = np.append(firsts, rows.size).astype(np.uint32)
    return Rows(keys.astype(np.uint32), rows[firsts], starts, keys.size)


def merge(old: Rows, new: Rows, how: str | None = None) -> tuple[Rows, NDArray[np.uint64]]:
    """Merge edges, unique on each side; returns all, and the ascending keys of those on both sides, uint64.

    `how` says what the weight of an edge on both sides becomes, see `duplicate_policy`; None without weights.
    """
    columns = np.empty(old.columns.size + new.columns.size, np.uint32)
    rows = np.empty(old.rows.size + new.rows.size, np.uint32)
    starts = np.empty(rows.size + 1, np.uint32)
    both = np.empty(min(old.columns.size, new.columns.size) + 1, np.uint64)
    bare = (side._replace(weights=None) for side in (old, new))
    given = (NO_WEIGHTS if how is None or side.weights is None else side.weights for side in (old, new))
    weights = np.empty(columns.size if how is not None else 0)
    edges, found, twice = _merge(*bare, *given, how == "merge", columns, weights, rows, starts, both)
    sums = None if how is None else check_finite(weights[:edges])
    return Rows(columns[:edges], rows[:found], starts[: found + 1], int(edges), sums), both[:twice]


class NewEdges:
    """New edges in their order; the counter, which has counted them, uncounts those that are stored already.

    `how` is that of `merge`.
    """

    def __init__(self, pieces: Iterable[Rows], counter: EdgeCounter, how: str | None = None) -> None:
        self._how = how
        self._pieces = iter(pieces)
        self._counter = counter
        self._held: Rows | None = None

    @property
    def next(self) -> int | None:
        """Key of the next edge; None at the end."""
        while self._held is None or not self._held.columns.size:
            self._held = next(self._pieces, None)
            if self._held is None:
                return None
        return self._held.first_key

    def drop_stored(self, old: Rows) -> None:
        """Drop edges that are among `old`, up to the first that is not."""
        if not old.columns.size:
            return
        known, last = keys_of_rows(old), old.last_key
        while (nearest := self.next) is not None and nearest <= last and self._held is not None:
            held = self._held
            keys = keys_of_rows(held.part(0, held.place_after(last)))
            found = known[np.searchsorted(known, keys)] == keys
            count = keys.size if found.all() else int(found.argmin())
            self._counter.uncount(held.part(0, count))
            self._held = held.part(count, held.columns.size)
            if count < keys.size:
                break

    def merged(self, old: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the `old` edges and all that are left in one order, each once."""
        for edges in old:
            if not edges.columns.size:
                continue
            last = edges.last_key
            while (nearest := self.next) is not None and nearest <= last and self._held is not None:
                held, place = self._held, self._held.place_after(last)
                edges, both = merge(edges, held.part(0, place), self._how)
                self._held = held.part(place, held.columns.size)
                if both.size:
                    self._counter.uncount(rows_of_keys(both))
            yield edges
        while self.next is not None and self._held is not None:
            yield self._held
            self._held = None


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

    def edges(self, first: int) -> Iterator[Rows]:
        """Yield the edges of each tile from tile `first` on, with their new rows and columns."""
        store, before = self._store, -1
        for tile in range(first, store.tiles):
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


class StoredPlusNew(BaseSource):
    """All nodes of a stored graph in their order, then the edges of a source, as one source.

    Nodes are the same if they have the same id or, if the stored graph has labels, the same name. The stored
    nodes are in the order of their ids, or in any order if they have labels; InputError for numbers where
    there are names, or the reverse.
    """

    def __init__(self, store: GraphStore, source: Source) -> None:
        super().__init__(merged_name(store.attributes.source, source.name), source.name)
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
            for some in self._nodes(first, min(first + 2 * max_edges, self._store.nodes)):
                yield NodeBlock(some)
        stated = False
        for block in self._source.blocks(max_edges):
            self.position = self._source.position
            nodes = block.nodes if isinstance(block, NodeBlock) else None
            named = isinstance(block, NameBlock) or isinstance(nodes, Strings)
            if self._source.labels is not None or named != self._store.has_labels:
                ours, theirs = ("name", "number") if self._store.has_labels else ("number", "name")
                if self._store.has_labels and self._source.labels is not None:
                    theirs = "number and name"
                raise InputError(
                    f"{self._store.path} knows its nodes by {ours}, {self._source.name} by {theirs}.",
                    "Import all sources together.",
                )
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
    block_edges: int | None = None,
    bucket_edges: int | None = None,
) -> tuple[Attributes, int]:
    """Write a stored graph of order "keep" with the edges of `source` added as a new store.

    Its bytes are those of an import of all sources together: edges that are stored already count once, nodes
    are in the order of their ids or, if they have names, new ones after the old ones. Only sums of weights
    may differ, by rounding: what the stored ones are sums of is not known any more. Returns what the new
    store says about itself, and how many tiles are those of `store`.

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
    if facts.order != "keep":
        raise UsageError(
            f"{store.path} has its nodes in the order {facts.order!r}, in which new ones have no place.",
            "Import all sources together, or the first ones with order keep.",
        )
    # Degrees that do not add up are refused before all nodes are gone through for hours.
    degrees = sum(int(store.out_degree(lo, hi).sum(dtype=np.uint64)) for lo, hi in _spans(store.nodes))
    check_degree_sum(store.path, degrees, store.edges)
    with ExitStack() as stack:
        resources = Resources(memory, progress, block_edges, bucket_edges)
        job = OneShotImport(Path(path), tmp, overwrite=overwrite)
        joint = StoredPlusNew(store, source)
        pipeline = Pipeline(joint, job, stack, "Adding edges", how, facts.tile_edges, resources)
        edges, order = pipeline.read(lambda edges: make_order("keep", None, edges.ids), 2)
        rows = _rows(store, edges, memory)

        given = facts.edges + facts.duplicates
        tile_edges = facts.tile_edges
        if tile_edges == budget.tile_edges_for(given):  # as an import of all would choose, so do that
            tile_edges = budget.tile_edges_for(given + edges.edges)
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
            pieces = new.merged(old.edges(copied))
            local_edges = pipeline.write_tiles(pieces, copied, int(store.tile_rows[copied]), total)
        degree = counter.out_degree()
        for lo, hi in _spans(store.nodes):
            degree[slice(lo, hi) if rows is None else rows[lo:hi]] += store.out_degree(lo, hi)
        if Path(path).resolve() == Path(store.path).resolve():
            # What somebody else has made of the graph meanwhile is not to be lost.
            store.check_current()
        store.check_unchanged()
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
    dictionary = edges.dictionary
    assert dictionary is not None, "the nodes of a store are given as such"
    if dictionary.names is not None:
        if dictionary.given < store.nodes:
            raise InputError(
                f"{store.path} has {store.nodes - dictionary.given:,} names more than once, so names do not "
                "tell its nodes apart.",
                "Import all sources together.",
            )
        return None
    last = store.nodes - 1
    if dictionary.ids(last, 1)[0] == store.ids(last, last + 1)[0]:
        return None
    require(resident_after_trim() + 4 * store.nodes + budget.SLACK_BYTES, memory, "Giving old nodes new rows")
    rows = np.empty(store.nodes, np.uint32)
    held, first, after = np.empty(0, np.int64), 0, 0
    for lo, hi in _spans(store.nodes):
        ids = store.ids(lo, hi)
        while not held.size or held[-1] < ids[-1]:
            more = dictionary.ids(after, min(_CHUNK, dictionary.nodes - after))
            held, after = np.concatenate([held, more]), after + more.size
        found = np.searchsorted(held, ids)
        rows[lo:hi] = first + found
        done = int(found[-1])
        held, first = held[done:], first + done
    return rows


def _spans(nodes: int) -> Iterator[tuple[int, int]]:
    return ((lo, min(lo + _CHUNK, nodes)) for lo in range(0, nodes, _CHUNK))
