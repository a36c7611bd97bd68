"""What workers do of an import together; the store is that of one process, byte for byte.

Each worker reads parts of the source, and partitions the edges of each, as one process does, into a file of
its own. The counts of all buckets are divided into ranges of rows. A worker gets the edges of a range from
all files, sorts them and keeps them on its disk. How many there are without duplicates says which tiles begin
in a range; its worker encodes and writes these, and gets edges that they share with the next range from
there. One worker at last writes the arrays that have an entry per row::

    read_part --edges--> sort_range --edges--> write_range --row lengths--> write_rows
         |                    |                     |
      counts               counts                 sizes            to the process that asks

For an order by out-degree each worker counts the edges of its parts (`count_out_degrees`), takes the counts
of all together, and partitions its parts once more, by the new rows (`order_part`).

What a worker has is lost with it: its parts are read, its ranges sorted and written again by others. A range
stays with its worker as long as that lives, for its edges are counted there, and must be counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.ingest import budget
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.row_names import ids_of_rows, names_of_rows
from oocpr.ingest.numbering import Held, NodeHoldings, RecordedPart, number_nodes, recorded_name
from oocpr.ingest.orders.permutation import (
    EdgeScan,
    Order,
    add_degree_keys,
    count_degrees,
    degree_keys,
    make_order,
    order_by_degree,
)
from oocpr.ingest.read import EdgeSpiller, prefetch
from oocpr.ingest.rows import NO_RANKS, EdgeCounter, Rows
from oocpr.ingest.spill.files import SpillDir, SpillFile
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.partition import (
    KEY_BYTES,
    BoundedExecutor,
    KeyExtents,
    KeyRun,
    record_bytes,
    repartition,
)
from oocpr.ingest.tiles import Sorter, TileWriter
from oocpr.ingest.worker import Holder, KeptArray, part_name, row_spans, sent_pieces
from oocpr.sources.block import MAX_NODES, EdgeBlock
from oocpr.store.integrity import check_degree_sum
from oocpr.store.writer import GraphWriter, WrittenTile, write_tile
from oocpr.system import resident, resident_after_trim

if TYPE_CHECKING:
    from pathlib import Path

    from oocpr.ingest.worker import Worker
    from oocpr.sources.base import BaseSource
    from oocpr.store.format import Attributes
    from oocpr.store.writer import Chunk

_SAMPLED_EDGES = 1 << 14
_SAMPLED_WORDS = 1 << 8
"""Records of a part that are shown."""


def describe(here: Worker) -> tuple[int, int]:
    """Give the bytes that each thread of this worker may take, and how many there are."""
    return (here.memory - resident_after_trim() - SLACK_BYTES) // here.threads, here.threads


def sample_part(here: Worker, source: BaseSource, count: int) -> NDArray[np.uint32]:
    """Give about `count` rows of some edges, uint32; none if nodes have names, or other ids."""
    source.reader = here.name
    block = source.sample(_SAMPLED_EDGES)
    if not isinstance(block, EdgeBlock):
        return np.empty(0, np.uint32)
    rows = block.dst[(block.dst >= 0) & (block.dst < MAX_NODES)].astype(np.uint32)
    return rows[:: max(1, rows.size // count)]


class Bucket(NamedTuple):
    """Edges of one bucket as they are in some bytes, see `KeyExtents`; their keys are in [low, high)."""

    low: int
    high: int
    extents: KeyExtents


class Buckets(NamedTuple):
    """Of each bucket that has edges of a part its lowest key, uint64, and its edges, int64."""

    lows: NDArray[np.uint64]
    counts: NDArray[np.int64]


class PartFile:
    """The edges of a part, in buckets; and nodes of it that were `given` as such, see `EdgeSpiller`."""

    def __init__(self, runs: Sequence[KeyRun], given: SpillFile | None = None) -> None:
        self.runs, self.given = runs, given

    def buckets(self) -> Buckets:
        """Describe the buckets."""
        lows = np.array([run.low for run in self.runs], np.uint64)
        return Buckets(lows, np.array([run.count for run in self.runs], np.int64))

    def edges_of(self, low: int, high: int, start: int, stop: int) -> tuple[list[Bucket], NDArray[np.uint8]]:
        """Give edges `start` to `stop` - 1 of the buckets that begin from key `low` to below `high`."""
        found, before = [], 0
        for run in self.runs:
            if low <= run.low < high:
                first, end = max(0, start - before), min(run.count, stop - before)
                if first < end:
                    found.append(Bucket(run.low, run.high, run.extents.between(first, end)))
                before += run.count
        places = np.concatenate([bucket.extents.places for bucket in found])
        ends = places + np.concatenate([bucket.extents.sizes for bucket in found])
        order = np.argsort(places)
        # Neighbouring buckets of a block, between which whole words may end, are read at once.
        begins = np.append(0, np.flatnonzero(places[order][1:] > ends[order][:-1] + KEY_BYTES) + 1)
        firsts, behind = places[order][begins], ends[order][np.append(begins[1:], places.size) - 1]
        targets = np.cumsum(behind - firsts)
        data = np.empty(int(targets[-1]), np.uint8)
        targets -= behind - firsts
        for first, end, target in zip(firsts.tolist(), behind.tolist(), targets.tolist(), strict=True):
            self.runs[0].file.read(first, data[target : target + end - first])
        moved = targets - firsts
        made = []
        for bucket in found:
            places = bucket.extents.places
            places = places + moved[np.searchsorted(firsts, places, side="right") - 1]
            made.append(bucket._replace(extents=replace(bucket.extents, places=places)))
        return made, data


@dataclass(frozen=True)
class ReadPart:
    """What is known of a part that was read; `largest` is the largest id, `listed` nodes were given.

    If it has records, edges are in no buckets yet; it is said whether these are `named`, and some `words`.
    """

    edges: int
    largest: int
    buckets: Buckets
    notices: list[str]
    unused_columns: list[str]
    named: bool | None = None
    words: NDArray[np.uint64] | None = None
    listed: int = 0


def read_part(
    here: Worker,
    number: int,
    source: BaseSource,
    sample: NDArray[np.uint32],
    block_edges: int,
    points: tuple[int, int],
) -> ReadPart:
    """Read a part, and keep its edges in buckets, or with records of their nodes, see `EdgeSpiller`.

    `points` are those of the fingerprints of names.
    """
    words = here.shared("ids", IdBitmap).words
    source.reader = here.name
    source.reserve = lambda needed, what: require(resident() + needed + SLACK_BYTES // 2, here.memory, what)
    with ThreadPoolExecutor(1) as pool:
        executor = BoundedExecutor(pool, 2)
        limits = (block_edges, here.memory, executor, 0)
        spiller = EdgeSpiller(source, SpillDir(here.folder), *limits, sample, words, points)
        with prefetch(source.blocks(block_edges)) as blocks:
            for block in blocks:
                spiller.add(block)
        executor.finish()
    runs = [] if spiller.partitioner is None else list(spiller.partitioner.runs())
    here.kept[_part(number)] = part = PartFile(runs, spiller.given)
    largest = spiller.largest if spiller.ids is None else spiller.ids.largest
    said = source.notices, source.unused_columns
    read = ReadPart(spiller.edges, largest, part.buckets(), *said, listed=spiller.listed)
    records = spiller.records
    if records is None:
        return read
    found = RecordedPart(spiller.file, spiller.edges, spiller.segments, records, weighted=source.weighted)
    here.kept[recorded_name(number)] = found
    return replace(read, named=records.named, words=found.words(_SAMPLED_WORDS))


def number_part(
    here: Worker, number: int, ranges: Sequence[Held], nodes: int, sampled: int
) -> NDArray[np.uint32]:
    """Have the edges of a part run from and to nodes that were numbered; returns about `sampled` rows."""
    runs, sample = number_nodes(here, number, ranges, nodes, sampled)
    here.kept[_part(number)] = PartFile(runs)
    return sample


def _part(number: int, *, relabelled: bool = False) -> str:
    return f"{'ordered ' * relabelled}{part_name(number)}"


def _range(number: int) -> str:
    return f"range {number}"


def _tiles(number: int) -> str:
    return f"tiles {number}"


@dataclass(frozen=True)
class NodeIds:
    """Which ids occur: `holders` have noted them between them. The largest is `largest`."""

    holders: tuple[Holder, ...]
    largest: int

    def gather(self, here: Worker) -> IdBitmap:
        """Give the ids of all workers, which this one keeps then."""

        def make() -> IdBitmap:
            require(resident() + self.largest // 5 + SLACK_BYTES, here.memory, "Noting which ids occur")
            ids = IdBitmap()
            for holder in self.holders:
                for part in row_spans(self.largest // 64 + 1):
                    ids.words[part] |= here.fetch(holder, "ids", "part", part.start, part.stop)
            ids.reach(self.largest)
            len(ids)
            return ids

        return here.shared("all ids", make)


def count_ids(here: Worker, ids: NodeIds) -> int:
    """Count the ids that occur."""
    return len(ids.gather(here))


@dataclass(frozen=True)
class RowRange:
    """The buckets that begin from key `low` to below `high`, of `given` edges."""

    number: int
    low: int
    high: int
    given: int


@dataclass(frozen=True)
class Graph:
    """What all steps after the reading know: nodes, what duplicate edges become, whether edges come weighted.

    `ids` are those of the nodes, None if they are 0 .. nodes - 1, or were `numbered`. `space` edges are
    sorted at a time. Edges were counted by `counted` if the order is "degree"; if they are `relabelled`, keys
    are of rows.
    """

    nodes: int
    how: str | None
    weighted: bool
    ids: NodeIds | None
    space: int
    order: str
    numbered: NodeHoldings | None = None
    counted: tuple[Holder, ...] = ()
    relabelled: bool = False

    def ordering(self, here: Worker) -> Order:
        """Give the order of the rows, which this worker keeps then."""

        def make() -> Order:
            ids = None if self.ids is None else self.ids.gather(here)
            if self.order == "keep":
                return make_order("keep", None, ids)
            require(resident() + 12 * self.nodes + SLACK_BYTES, here.memory, "Ordering nodes by out-degree")
            keys = np.zeros(self.nodes, np.uint32)
            for holder in self.counted:
                for part in row_spans(self.nodes):
                    more = here.fetch(holder, "degrees", "part", part.start, part.stop)
                    add_degree_keys(keys[part], more)
            return make_order(self.order, order_by_degree(keys), ids)

        return here.shared("order", make)


def count_out_degrees(here: Worker, graph: Graph, parts: Sequence[int]) -> None:
    """Count the edges that leave each node in all parts that this worker has, and see which they reach."""
    require(resident() + 8 * graph.nodes + SLACK_BYTES, here.memory, "Ordering nodes by out-degree")
    ids = None if graph.ids is None else graph.ids.gather(here)
    runs = [run for number in parts for run in here.kept[_part(number)].runs]
    scan = EdgeScan(runs, ids, lambda _: None)
    degrees = count_degrees(scan, graph.nodes, destinations=True)
    here.kept["degrees"] = KeptArray(degree_keys(*degrees))


def order_part(
    here: Worker, graph: Graph, number: int, sample: NDArray[np.uint32], block_edges: int
) -> Buckets | None:
    """Partition a part by its rows in an order; None if that changes no row, and it is partitioned.

    The rows of the ids in `sample` say what the buckets are, on all workers the same.
    """
    relabel = graph.ordering(here).relabel
    if relabel is None and graph.numbered is None:
        return None
    keys = sample.astype(np.uint64) << np.uint64(32) | sample
    if relabel is not None:
        relabel(keys)
    rows = (keys >> np.uint64(32)).astype(np.uint32)
    runs, file = here.kept[_part(number)].runs, SpillFile(here.folder)
    with ThreadPoolExecutor(1) as pool:
        limits = (file, block_edges, BoundedExecutor(pool, 2))
        made = repartition(runs, relabel, graph.nodes, *limits, lambda _: None, rows)
    here.kept[_part(number, relabelled=True)] = part = PartFile(list(made.runs()))
    return part.buckets()


class SortedRange:
    """Edges of a range in their order, in pieces in a file."""

    def __init__(self, folder: Path) -> None:
        self._file = SpillFile(folder)
        self._pieces: list[tuple[int, int, int, int]] = []  # first edge, edges, rows, place in the file
        self.edges, self.weighted = 0, False

    def add(self, edges: Rows) -> None:
        """Add edges behind all others."""
        place = at = self._file.size
        self.weighted = edges.weights is not None
        for array in (edges.columns, edges.rows, edges.starts, edges.weights):
            if array is not None:
                self._file.write(at, array)
                at += array.nbytes
        self._pieces.append((self.edges, edges.columns.size, edges.rows.size, place))
        self.edges += edges.columns.size

    def pieces(self, start: int, stop: int) -> Iterator[Rows]:
        """Yield edges `start` to `stop` - 1."""
        for first, count, rows, place in self._pieces:
            if first + count <= start or first >= stop:
                continue
            arrays = [np.empty(size, np.uint32) for size in (count, rows, rows + 1)]
            weights = np.empty(count) if self.weighted else None
            for array in (*arrays, weights):
                if array is not None:
                    self._file.read(place, array)
                    place += array.nbytes
            columns, of, starts = arrays
            edges = Rows(columns, of, starts, count, weights)
            yield edges.part(max(0, start - first), min(count, stop - first))

    def edges_between(self, start: int, stop: int) -> list[Rows]:
        """Give edges `start` to `stop` - 1."""
        return list(self.pieces(start, stop))


Holdings = Sequence[tuple[Holder, int, int]]
"""Who has which part, and how many of its edges are in a range."""


def sort_range(here: Worker, graph: Graph, rows: RowRange, parts: Holdings) -> int:
    """Get the edges of a range, sort and keep them; returns how many there are without duplicates."""
    return here.shared(_range(rows.number), lambda: _sort_range(here, graph, rows, parts)).edges


def _sort_range(here: Worker, graph: Graph, rows: RowRange, parts: Holdings) -> SortedRange:
    by_id = graph.ids is not None and not graph.relabelled
    ranks = graph.ids.gather(here).ranks if graph.ids is not None and by_id else NO_RANKS
    counter = here.shared("counter", lambda: EdgeCounter(graph.nodes))
    size = rows.given * record_bytes(weighted=graph.weighted) + KEY_BYTES
    with SpillFile(here.folder, size if rows.given <= graph.space else 0) as file:
        # All are here before the first is counted: what is lost until then can be done again.
        runs = _fetch_runs(here, graph, rows, parts, file)
        # Edges that come with weights where these are numbers of edges have been counted before.
        how = "sum" if graph.weighted and graph.how == "count" else graph.how
        sorter = Sorter(None, 0, graph.space, ranks, counter, how)
        found = SortedRange(here.folder)
        for edges in sorter.pieces(runs):
            found.add(edges)
        return found


def _fetch_runs(here: Worker, graph: Graph, rows: RowRange, parts: Holdings, file: SpillFile) -> list[KeyRun]:
    """Write the edges of a range to a file; returns its buckets in their order."""

    def pieces() -> Iterator[tuple[list[Bucket], NDArray[np.uint8]]]:
        for holder, number, count in parts:
            name = _part(number, relabelled=graph.relabelled)
            for start, stop in sent_pieces(0, count):
                yield here.fetch(holder, name, "edges_of", rows.low, rows.high, start, stop)

    buckets: dict[int, list[Bucket]] = {}
    at = 0
    with prefetch(pieces()) as fetched:
        for found, data in fetched:
            file.write(at, data)
            for bucket in found:
                moved = replace(bucket.extents, places=bucket.extents.places + at)
                buckets.setdefault(bucket.low, []).append(bucket._replace(extents=moved))
            at += data.size
    # Keys are read as whole words.
    file.write(at, np.zeros(KEY_BYTES, np.uint8))
    joined = [(KeyExtents.joined([each.extents for each in of]), of) for _, of in sorted(buckets.items())]
    return [
        KeyRun(file, int(extents.counts.sum()), of[0].low, max(each.high for each in of), extents)
        for extents, of in joined
    ]


class Span(NamedTuple):
    """Edges `start` to `stop` - 1 of a sorted range that a worker has."""

    number: int
    holder: Holder
    start: int
    stop: int


@dataclass(frozen=True)
class Cut:
    """The `tiles` whose first edge is in the range `number`, of `total` edges in tiles of `tile_edges`.

    `spans` are their edges, in this range and those behind it, and one more, in whose row the last tile ends.
    """

    number: int
    tiles: range
    spans: tuple[Span, ...]
    tile_edges: int
    total: int

    @classmethod
    def of(cls, ranges: Sequence[Span], number: int, tile_edges: int) -> Cut:
        """Cut a range; `ranges` has all, with the numbers of their edges among all edges."""
        total, begin, behind = ranges[-1].stop, ranges[number].start, ranges[number].stop
        tiles = range(-(-begin // tile_edges), -(-behind // tile_edges))
        first, end = tiles.start * tile_edges, min(total, tiles.stop * tile_edges + 1) if tiles else 0
        spans = (
            Span(k, holder, max(first, start) - start, min(end, stop) - start)
            for k, holder, start, stop in ranges[number:]
            if start < end
        )
        return cls(number, tiles, tuple(span for span in spans if span.start < span.stop), tile_edges, total)

    def edges(self, here: Worker) -> Iterator[Rows]:
        """Yield the edges of all spans."""
        for number, holder, start, stop in self.spans:
            if number == self.number:
                yield from here.kept[_range(number)].pieces(start, stop)
                continue
            for wanted in sent_pieces(start, stop):
                yield from here.fetch(holder, _range(number), "edges_between", *wanted)


@dataclass
class TileFolder:
    """Takes tiles as a `GraphWriter` does, writes them into a `folder`, and keeps their row lengths."""

    folder: Path
    file: SpillFile
    tiles: list[WrittenTile] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    local_edges: int = 0

    def put_tile(self, tile: int, coded: NDArray[np.uint8], data: NDArray[np.uint8] | None = None) -> None:
        """See GraphWriter; `enter_tile` follows before the next."""
        self._chunks: tuple[Chunk, Chunk | None] = write_tile(self.folder, tile, coded, data)

    def enter_tile(self, size: int, edges: int, lengths: NDArray[np.uint32]) -> None:  # noqa: ARG002
        """See GraphWriter."""
        self.tiles.append(WrittenTile(edges, *self._chunks))
        self.file.write(self.file.size, lengths)
        self.sizes.append(lengths.size)

    def lengths_of(self, k: int) -> NDArray[np.uint32]:
        """Give the edges of each owned row of tile number `k` of these, and of the row behind them."""
        return self.file.read_array(np.uint32, sum(self.sizes[:k]), self.sizes[k])


def write_range(here: Worker, graph: Graph, cut: Cut, folder: Path) -> tuple[list[WrittenTile], int]:
    """Encode and write the tiles whose first edge is in a range; keeps their row lengths.

    Returns the tiles, and how many of their edges have their column among the owned rows of their tile.
    """
    target = here.shared(_tiles(cut.number), lambda: _write_range(here, graph, cut, folder))
    return target.tiles, target.local_edges


def _write_range(here: Worker, graph: Graph, cut: Cut, folder: Path) -> TileFolder:
    numbers, weighted = cut.tiles, graph.how is not None
    target = TileFolder(folder, SpillFile(here.folder))
    if not numbers:
        return target
    share = budget.SortBudget(graph.nodes, cut.total, cut.tile_edges, weighted=weighted)
    require(resident() + share.tile, here.memory, "Encoding a tile")
    edges = cut.edges(here)
    first = next(edges)
    writer = TileWriter(
        target,
        None,
        0,
        graph.nodes,
        cut.tile_edges,
        budget.planned_rows(graph.nodes, cut.total, cut.tile_edges),
        here.memory,
        numbers.start,
        int(first.rows[0]) if numbers.start else 0,
        weighted=weighted,
    )
    writer.add(first)
    for piece in edges:
        writer.add(piece)
    if numbers.stop * cut.tile_edges >= cut.total:
        writer.finish()
    target.local_edges = writer.local_edges
    return target


def add_weights(here: Worker, graph: Graph, numbers: Sequence[int], before: Holder | None) -> None:
    """Add the weights of ranges to those of all ranges before them, which another worker has added up.

    Sums depend on the order of what is added, so it is that of the edges.
    """
    require(resident() + 8 * graph.nodes + SLACK_BYTES, here.memory, "Adding up weights")
    counter = EdgeCounter(graph.nodes, weighted=True)
    if before is not None:
        for part in row_spans(graph.nodes):
            counter.sums[part] = here.fetch(before, "weights", "part", part.start, part.stop)
    for number in numbers:
        ordered: SortedRange = here.kept[_range(number)]
        for edges in ordered.pieces(0, ordered.edges):
            counter.add_weights(edges.columns, edges.weights)
    counter.out_weight()
    here.kept["weights"] = KeptArray(counter.sums)


def write_rows(
    here: Worker,
    graph: Graph,
    place: tuple[Path, Path, bool],
    ranges: Sequence[tuple[Holder, Sequence[WrittenTile]]],
    sums: Holder | None,
    facts: dict[str, Any],
) -> Attributes:
    """Write what belongs to the rows; the store has everything then but its name.

    `place`: the store's path, the folder where it is made, and whether another one is replaced. `ranges` say
    who has written which tiles, and has counted out-degrees; `sums` who has added up weights. `facts` are
    what else `GraphWriter.finish` takes.
    """

    def all_of(holder: Holder, name: str, method: str) -> Iterator[Any]:
        for part in row_spans(graph.nodes):
            yield here.fetch(holder, name, method, part.start, part.stop)

    def degrees(edges: int) -> Iterator[NDArray[np.uint32]]:
        for parts in zip(*(all_of(holder, "counter", "totals") for holder in counters), strict=True):
            degree = sum((some for some, _ in parts[1:]), parts[0][0].copy())
            edges -= int(degree.sum(dtype=np.int64))
            yield degree
        check_degree_sum(str(place[0]), writer.edges - edges, writer.edges)

    counters = dict.fromkeys(holder for holder, _ in ranges)
    order, found = graph.ordering(here), None if graph.numbered is None else graph.numbered.opened(here)
    path, folder, overwrite = place
    writer = GraphWriter(path, overwrite=overwrite, resumable=folder)
    for number, (holder, tiles) in enumerate(ranges):
        for k, tile in enumerate(tiles):
            writer.take_over(tile, here.fetch(holder, _tiles(number), "lengths_of", k))
    return writer.finish(
        **facts,
        order=graph.order,
        duplicate_weights=graph.how,
        self_loops=sum(here.fetch(holder, "counter", "totals", 0, 0)[1] for holder in counters),
        out_degree=degrees(writer.edges),
        out_weight=None if sums is None else all_of(sums, "weights", "part"),
        node_ids=ids_of_rows(found, order.node_ids, here.memory),
        labels=names_of_rows(None, found, order.node_ids, SpillDir(here.folder), here.memory),
        publish=False,
    )
