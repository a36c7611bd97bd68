"""A source, readable once, becomes a file of edges that can be read again.

Ids below 2^32 are partitioned into buckets, and a bitmap of them says in the end which occur. Other ids, and
names, are written as numbers of records; once a source has shown one of them, or the bitmap would outgrow the
memory, so are all ids that follow, and in the end those that came before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError, UsageError
from oocpr.ingest.budget import NUMBERED_BYTES, SLACK_BYTES, require, spill_memory
from oocpr.ingest.nodes.dictionary import (
    BlockDictionary,
    Dictionary,
    Segment,
    list_given,
    pack_keys,
    resolve_edges,
    too_many_nodes,
)
from oocpr.ingest.spill.files import SpillDir, SpillFile, free_bytes, require_disk
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.partition import (
    NO_WEIGHTS,
    BoundedExecutor,
    Edges,
    KeyRun,
    Partitioner,
    record_bytes,
    to_words,
)
from oocpr.sources.base import BaseSource
from oocpr.sources.block import MAX_NODES, Block, NameBlock, NodeBlock, Source, Strings
from oocpr.system import resident, spans
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from oocpr.progress import Progress

    T = TypeVar("T")

EDGES, KEYS = "edges", "keys"
"""Names of the files of edges: as they came, and those that came before the first with records, in words."""

_FORESEEING = 8
"""From this block on, and whenever their number has doubled, blocks tell how large the graph is."""

_WORTH_SAYING = 1 << 28
"""Bytes of temporary files from which on they are announced."""

_PARTS = 64
_BLOCK_KEYS = 1 << 16
_END: Any = object()
_LOG = logging.getLogger(__name__)


@contextmanager
def prefetch(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Take items from an iterator, in a thread of its own, one ahead of who uses them.

    What the iterator raises, whoever uses the items gets. Leaving the context closes the iterator, if that
    can be closed, and ends the thread.
    """
    with ThreadPoolExecutor(1) as pool:

        def fetched() -> Iterator[T]:
            ahead = [pool.submit(next, items, _END)]
            # A future whose error comes through here must not be held here, or the error holds itself, and
            # all that was read with it, until somebody looks for cycles.
            while (ready := ahead.pop().result()) is not _END:
                ahead.append(pool.submit(next, items, _END))
                yield ready

        try:
            yield fetched()
        finally:
            pool.submit(getattr(items, "close", lambda: None)).result()


@dataclass(frozen=True)
class SpilledEdges:
    """What is known of a source that was read to its end.

    Its `edges`, duplicates included, are in `file` as keys, destination << 32 | source. `ids` are those of
    the keys if they have gaps, else None: they are 0 .. nodes - 1. `dictionary` has what the nodes are called
    if the source does not number them in 32 bits. `runs` are ascending ranges of keys, written by
    `partitioner`; or, if there is a dictionary or no edge, parts of the file, and it is None.
    """

    file: SpillFile
    edges: int
    nodes: int
    ids: IdBitmap | None
    dictionary: Dictionary | None
    runs: list[KeyRun]
    partitioner: Partitioner | None


def spill(
    source: Source,
    spill_dir: SpillDir,
    block_edges: int,
    memory: int,
    progress: Progress,
    passes: int,
    executor: BoundedExecutor,
    on_message: Callable[[str], None],
) -> SpilledEdges:
    """Write every edge of `source`, in blocks, to a file as a key, destination << 32 | source.

    If ids are numbers below 2^32, each block is partitioned; else edges stay in their order. Temporary
    files take 8 bytes an edge or less, 8 for its weight, and what each block meets of other ids and names;
    all edges will be written to them `passes` times at least. Raises DoesNotFitError if the source outgrows
    `memory` or the disk is full, InputError if it has no nodes, too many, or one that it cannot have.
    """
    in_memory = spill_memory(memory - resident(), block_edges, executor.limit, weighted=source.weighted)
    spiller = EdgeSpiller(source, spill_dir, block_edges, memory, executor, in_memory)
    if isinstance(source, BaseSource):
        source.reserve = lambda needed, what: require(resident() + needed + SLACK_BYTES // 2, memory, what)
    announced = False
    with prefetch(source.blocks(block_edges)) as blocks:
        for number, block in enumerate(blocks, 1):
            spiller.add(block)
            if number >= _FORESEEING and number & (number - 1) == 0:
                needed = _foresee(source, spiller, spill_dir, passes)
                if needed >= _WORTH_SAYING and not announced:
                    announced = True
                    on_message(
                        f"Temporary files will take about {format_bytes(needed)} in {spill_dir.folder}, "
                        f"where {format_bytes(free_bytes(spill_dir.folder))} are free."
                    )
            if source.size is None:
                progress("reading", spiller.edges, None, "edges")
            else:
                progress("reading", source.position, source.size, "B")
    executor.finish()
    if spiller.records is None:
        return _check_ids(source, spiller)
    spiller.file.shed()
    found = (spiller.file, spiller.segments, spiller.records, spiller.listed)
    dictionary = resolve_edges(source, *found, spill_dir, memory, progress)
    runs = split_runs(spiller.file, spiller.edges, dictionary.nodes, weighted=source.weighted)
    return SpilledEdges(spiller.file, spiller.edges, dictionary.nodes, None, dictionary, runs, None)


def split_runs(file: SpillFile, edges: int, nodes: int, *, weighted: bool) -> list[KeyRun]:
    """Divide the keys of a file, uint64, each with a weight behind it or not, into runs of like sizes."""
    step = max(1, -(-edges // _PARTS))
    return [
        KeyRun.of_words(file, first, stop - first, 0, nodes << 32, weighted=weighted)
        for first, stop in spans(edges, step)
    ]


def _foresee(source: Source, spiller: EdgeSpiller, spill_dir: SpillDir, passes: int) -> int:
    """Refuse a disk that will be too small, as far as what was read tells; returns the bytes needed."""
    if not source.size or not source.position or not spiller.edges:
        return 0
    edges, written = spiller.edges * source.size // source.position, spiller.file.size
    needed = max(0, passes * (written * edges // spiller.edges) - written - spiller.file.room)
    _LOG.info("%s: about %d edges, %d more bytes of temporary files", source.name, edges, needed)
    require_disk(spill_dir.folder, needed, "about ")
    return needed


def _check_ids(source: Source, spiller: EdgeSpiller) -> SpilledEdges:
    """Check a source whose ids are below 2^32."""
    ids = None
    if source.nodes is not None:
        if spiller.largest >= source.nodes:
            raise out_of_range(source, spiller.largest)
        nodes = source.nodes
    elif spiller.ids is None:
        nodes = 0
    else:
        nodes = len(spiller.ids)
        ids = spiller.ids if spiller.ids.largest >= nodes else None
    if nodes == 0:
        raise InputError(f"{source.name} has no nodes.", "Give a graph with at least one edge.")
    if nodes > MAX_NODES:
        raise too_many_nodes(source.name, nodes)
    runs = list(spiller.partitioner.runs()) if spiller.partitioner else []
    return SpilledEdges(spiller.file, spiller.edges, nodes, ids, None, runs, spiller.partitioner)


@dataclass
class EdgeSpiller:
    """Writes blocks as keys to `file`.

    Keys are of ids, written by `partitioner`, until there are `records`; then they are of these, by segments.
    `listed` nodes were given as such; `given` are those of them, uint32, that were before there were records.
    `ids` are those that occur; None without any, once there are records, and if the source has said how many
    nodes there are: then `largest` is the largest id. Buckets follow from `sample`, rows of some edges,
    uint32; None for those of the first block. `words` is what `ids` are noted in, see `IdBitmap`; `points`
    are those of the fingerprints of names, see `Fingerprints`.
    """

    source: Source
    spill_dir: SpillDir
    block_edges: int
    memory: int
    executor: BoundedExecutor
    in_memory: InitVar[int]
    sample: NDArray[np.uint32] | None = None
    words: NDArray[np.uint64] | None = None
    points: tuple[int, int] | None = None

    def __post_init__(self, in_memory: int) -> None:
        self.edges = 0
        self.file = self.spill_dir.file(in_memory, EDGES)
        self.partitioner: Partitioner | None = None
        self.largest = -1
        self.ids: IdBitmap | None = None
        self.records: BlockDictionary | None = None
        self.listed = 0
        self.given: SpillFile | None = None
        self.segments: list[Segment] = []
        self._weighted = self.source.weighted
        self._record_bytes = record_bytes(weighted=self._weighted)

    def add(self, block: Block) -> None:
        """Write a block of any kind."""
        room = SLACK_BYTES // 2
        if isinstance(block, NameBlock):
            room += 2 * NUMBERED_BYTES * block.src.size
        if resident() + room > self.memory:
            self._shed(resident() + room + SLACK_BYTES // 2 - self.memory)
            require(resident() + room, self.memory, f"Reading {self.source.name}")
        if isinstance(block, NodeBlock):
            self._list_nodes(block.nodes)
            return
        if (block.weight is not None) != self._weighted:
            raise UsageError(
                f"{self.source.name} has weights where it says that it has none, or none where it has.",
                "Give every edge a weight, or none.",
            )
        weight = NO_WEIGHTS if block.weight is None else block.weight
        if isinstance(block, NameBlock):
            records = self._recording(named=True)
            first = records.count
            self._write_numbers(records.number_names(block.src, block.dst), first, weight)
        else:
            # A source may not know how to cut what it holds.
            for start in range(0, len(block.src), self.block_edges):
                piece = slice(start, start + self.block_edges)
                self._spill_edges(block.src[piece], block.dst[piece], weight[piece])

    def _list_nodes(self, nodes: NDArray[np.int64] | Strings) -> None:
        self.listed += nodes.size
        if not isinstance(nodes, Strings) and self.records is None and self.source.nodes is None:
            lowest, highest = int(nodes.min()), int(nodes.max())
            if lowest >= 0 and highest < MAX_NODES and self._fits(highest):
                assert self.ids is not None
                ids = nodes.astype(np.uint32)
                self.ids.reach(highest)
                self.executor.submit(self.ids.add, ids, ids)
                self.given = self.given or self.spill_dir.file()
                self.given.write(self.given.size, ids)
                return
        records = self._recording(named=isinstance(nodes, Strings))
        first = records.count
        if isinstance(nodes, Strings):
            records.number_names(nodes)
        else:
            records.number_ids(nodes)
        self.segments.append(Segment(self.edges, 0, first, records.count - first))

    def _spill_edges(self, src: NDArray[Any], dst: NDArray[Any], weight: NDArray[np.float64]) -> None:
        small = src.dtype == np.uint32
        if not small:
            lowest, highest = min(int(src.min()), int(dst.min())), max(int(src.max()), int(dst.max()))
            small = lowest >= 0 and highest < MAX_NODES
            if not small and self.source.nodes is not None:
                raise out_of_range(self.source, highest if highest >= MAX_NODES else lowest)
        edges = Edges.of(src, dst, weight) if small else None
        largest = max(edges.largest_src, edges.largest_dst) if edges else 0
        if edges and self.source.nodes is not None:
            self.largest = max(self.largest, largest)
            self._partition(edges, None)
        elif edges and self.records is None and self._fits(largest):
            assert self.ids is not None
            self.ids.reach(largest)
            self._partition(edges, self.ids)
        else:
            ends = np.empty(2 * len(src), np.int64)
            ends[0::2], ends[1::2] = src, dst
            records = self._recording(named=False)
            first = records.count
            self._write_numbers(records.number_ids(ends), first, weight)

    def _fits(self, largest: int) -> bool:
        """Whether there is memory to note ids up to `largest`."""
        if self.ids is None:
            self.ids = IdBitmap(self.words)
        needed = self.ids.growth(largest) + SLACK_BYTES
        if resident() + needed > self.memory:
            self._shed(resident() + needed - self.memory)
        return resident() + needed <= self.memory

    def _shed(self, min_bytes: int) -> None:
        """Give memory back that the file takes."""
        self.executor.finish()
        self.file.shed(min_bytes)

    def _recording(self, *, named: bool) -> BlockDictionary:
        """Records of one kind, all of them; begins them if edges had ids so far."""
        numbers = self.edges or self.given is not None
        if self.records is None and not (named and numbers) and self.source.nodes is None:
            self.records = BlockDictionary(self.spill_dir, named=named, points=self.points)
            self.ids = None
            if self.partitioner is not None:
                self._write_words(self.partitioner)
                self.segments.append(Segment(0, self.edges, 0, 0))
            if self.given is not None:
                self.segments += list_given(self.given, self.records, self.edges)
        if self.records is None or self.records.named != named:
            raise InputError(
                f"{self.source.name} has nodes with numbers and nodes with names.",
                "Write all of them in the same way.",
            )
        return self.records

    def _partition(self, edges: Edges, ids: IdBitmap | None) -> None:
        """Write keys of ids, and add them to `ids`."""
        if self.partitioner is None:
            self.partitioner = Partitioner(
                self.file, self.block_edges, self.source.nodes, weighted=self._weighted
            )
            self.partitioner.plan(edges.dst if self.sample is None else self.sample)
        if ids is None:
            self.executor.submit(self.partitioner.add, edges)
        else:
            self.executor.submit(_add_with_ids, self.partitioner, edges, ids)
        self.edges += edges.src.size

    def _write_words(self, partitioner: Partitioner) -> None:
        """Write the keys that were partitioned so far to a file of their own, each in a whole word."""
        self.executor.finish()
        self.file.shed()
        words = self.spill_dir.file(name=KEYS)
        write_words(partitioner.runs(), words, weighted=self._weighted)
        self.spill_dir.drop(self.file)
        self.file, self.partitioner = words, None

    def _write_numbers(self, numbers: NDArray[np.uint32], first: int, weight: NDArray[np.float64]) -> None:
        """Write a block of edges with numbers of the records from `first` on."""
        assert self.records is not None
        edge = self.edges
        keys = pack_keys(numbers[0::2], numbers[1::2])
        self.file.write(edge * self._record_bytes, to_words(keys, weight))
        self.edges += keys.size
        self.segments.append(Segment(edge, self.edges - edge, first, self.records.count - first))


def write_words(runs: Iterable[KeyRun], out: SpillFile, *, weighted: bool) -> None:
    """Write keys that were partitioned to a file of whole words, each with its weight behind it."""
    buffer, size, done = np.empty(_BLOCK_KEYS, np.uint64), record_bytes(weighted=weighted), 0
    weight_buffer = np.empty(_BLOCK_KEYS) if weighted else NO_WEIGHTS
    for run in runs:
        for keys, weights in run.records(buffer, weight_buffer):
            out.write(done * size, to_words(keys, weights))
            done += keys.size


def _add_with_ids(partitioner: Partitioner, edges: Edges, ids: IdBitmap) -> None:
    ids.add(edges.src, edges.dst)
    partitioner.add(edges)


def out_of_range(source: Source, node: int) -> InputError:
    """Build the error for a node that a source cannot have."""
    last = (source.nodes or 0) - 1
    return InputError(
        f"{source.name} has an edge with node {node}, but says it has nodes 0 to {last} only.",
        "Correct the number of nodes in its header, or the edge.",
    )
