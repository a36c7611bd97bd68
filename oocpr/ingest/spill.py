"""First stage: a source, readable once, becomes a file that can be read again.

Ids below 2^32 are dealt to buckets, and a bitmap of them says in the end which occur. Other ids, and names,
are written as numbers of records; once a source has shown one of them, or the bitmap would outgrow the
memory, so are all ids that follow, and in the end those that came before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.ingest.ahead import ahead
from oocpr.ingest.budget import SLACK_BYTES, kept_bytes, require, resident
from oocpr.ingest.crew import Crew
from oocpr.ingest.deal import Dealer, Edges
from oocpr.ingest.ids import IdSet
from oocpr.ingest.records import Records
from oocpr.ingest.run import KEY_BYTES, Run
from oocpr.ingest.scratch import require_disk
from oocpr.ingest.settle import Segment, keys_of, settle
from oocpr.sources.block import MAX_NODES, NameBlock, NodeBlock, Strings

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from typing import Any

    from numpy.typing import NDArray

    from oocpr.ingest.dictionary import Dictionary
    from oocpr.ingest.scratch import Scratch, Workspace
    from oocpr.progress import Progress
    from oocpr.sources.block import Block, Source

_FORESEEING = 8
"""From this block on, and whenever their number has doubled, blocks tell how large the graph is."""

_BLOCK_KEYS = 1 << 16
_PARTS = 64

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Spilled:
    """What is known of a source that was read to its end.

    Parameters
    ----------
    file
        Its edges as keys, head << 32 | tail.
    edges
        Edges read, repeats included.
    nodes
        Nodes of the graph.
    ids
        The ids of the keys where these have gaps, else None: they are 0 .. nodes - 1.
    dictionary
        What the nodes are called, where the source does not number them in 32 bits.
    runs
        The keys: ascending ranges of them, or, where there is a dictionary, parts of the file.
    """

    file: Scratch
    edges: int
    nodes: int
    ids: IdSet | None
    dictionary: Dictionary | None
    runs: list[Run]


def spill(
    source: Source,
    workspace: Workspace,
    block_edges: int,
    memory: int,
    progress: Progress,
    passes: int = 1,
    pool: Executor | None = None,
    workers: int = 1,
) -> Spilled:
    """Write every edge of `source` to a file as a key, head << 32 | tail.

    Where ids are numbers below 2^32, each block is dealt to buckets; else edges stay in the order they come.

    Parameters
    ----------
    source
        What to read.
    workspace
        Gives temporary files: 8 bytes an edge or less, and for ids and names that are no numbers below 2^32
        those that each block meets.
    block_edges
        Most edges of a block.
    memory
        Most bytes that the process may hold.
    progress
        Told the stage "reading", and "looking up" and "numbering" where there are records.
    passes
        How often all edges will be written to temporary files, at least.
    pool, workers
        Threads that deal edges, beside one that reads, and how many; None for the caller's own.

    Raises
    ------
    DoesNotFitError
        Where the source outgrows `memory`, or the disk is full.
    InputError
        Where the source has no nodes, too many, or one that it cannot have.
    UsageError
        Where the source has weights.
    """
    kept = kept_bytes(memory - resident(), block_edges, workers)
    reader = _Reader(source, workspace, block_edges, memory, Crew(pool, workers), kept)
    with ahead(source.blocks(block_edges)) as blocks:
        for number, block in enumerate(blocks, 1):
            reader.take(block)
            if number >= _FORESEEING and number & (number - 1) == 0:
                _foresee(source, reader, workspace, passes)
            if source.size is None:
                progress("reading", reader.edges, None, "edges")
            else:
                progress("reading", source.position, source.size, "B")
    reader.finish()
    if reader.records is None:
        return _numbered(source, reader)
    reader.file.shed()
    dictionary = settle(
        source, reader.file, reader.segments, reader.records, reader.listed, workspace, memory, progress
    )
    step = max(1, -(-reader.edges // _PARTS))
    runs = [
        Run.of_words(reader.file, start, min(step, reader.edges - start), 0, dictionary.nodes << 32)
        for start in range(0, reader.edges, step)
    ]
    return Spilled(reader.file, reader.edges, dictionary.nodes, None, dictionary, runs)


def _foresee(source: Source, reader: _Reader, workspace: Workspace, passes: int) -> None:
    """Refuse a disk that will be too small, as far as the part that was read tells; log what is needed."""
    if not source.size or not source.position or not reader.edges:
        return
    edges = reader.edges * source.size // source.position
    written, kept = reader.file.size, reader.file.kept
    needed = passes * (written * edges // reader.edges) - (written - kept) - kept - reader.file.room
    _LOG.info("%s: about %d edges, %d more bytes of temporary files", source.name, edges, max(0, needed))
    require_disk(workspace.folder, max(0, needed), "about ")


class _Reader:
    """Writes blocks as keys.

    Attributes
    ----------
    edges
        Edges so far.
    file
        Their keys.
    dealer
        Writes keys of ids; None where there are none, and once there are records.
    largest
        The largest id, where the source has said how many nodes there are.
    ids
        The ids that occur, where it has not; None once there are records.
    records, listed
        What keys stand for, and how many nodes were given as such; None while keys are of ids.
    segments
        How the keys are to be taken.
    """

    def __init__(
        self, source: Source, workspace: Workspace, block_edges: int, memory: int, crew: Crew, kept: int
    ) -> None:
        self.edges = 0
        self.file = workspace.file(kept)
        self.dealer: Dealer | None = None
        self.largest = -1
        self.ids: IdSet | None = IdSet()
        self.records: Records | None = None
        self.listed = 0
        self.segments: list[Segment] = []
        self._source = source
        self._workspace = workspace
        self._memory = memory
        self._block_edges = block_edges
        self._crew = crew

    def finish(self) -> None:
        """Wait until all blocks are written."""
        self._crew.finish()

    def take(self, block: Block) -> None:
        """Write a block of any kind."""
        if resident() + SLACK_BYTES // 2 > self._memory:
            self._shed(resident() + SLACK_BYTES - self._memory)
            require(resident() + SLACK_BYTES // 2, self._memory, f"Reading {self._source.name}")
        if isinstance(block, NodeBlock):
            self._take_nodes(block)
        elif block.weight is not None:
            raise UsageError(
                f"{self._source.name} has weights, which the store cannot hold yet.", "Leave the weights out."
            )
        elif isinstance(block, NameBlock):
            records = self._recording(named=True)
            first = records.count
            self._write_numbers(records.number_names(block.src, block.dst), first)
        else:
            # A source may not know how to cut what it holds.
            for start in range(0, len(block.src), self._block_edges):
                piece = slice(start, start + self._block_edges)
                self._take_edges(block.src[piece], block.dst[piece])

    def _take_nodes(self, block: NodeBlock) -> None:
        nodes = block.nodes
        records = self._recording(named=isinstance(nodes, Strings))
        first = records.count
        numbers = records.number_names(nodes) if isinstance(nodes, Strings) else records.number_ids(nodes)
        self.listed += numbers.size
        self.segments.append(Segment(self.edges, 0, first, records.count - first))

    def _take_edges(self, src: NDArray[Any], dst: NDArray[Any]) -> None:
        small = src.dtype == np.uint32
        if not small:
            least, most = min(int(src.min()), int(dst.min())), max(int(src.max()), int(dst.max()))
            small = least >= 0 and most < MAX_NODES
            if not small and self._source.nodes is not None:
                raise _beyond(self._source, most if most >= MAX_NODES else least)
        edges = Edges.of(src, dst) if small else None
        largest = max(edges.largest_src, edges.largest_dst) if edges else 0
        if edges and self._source.nodes is not None:
            self.largest = max(self.largest, largest)
            self._deal(edges, None)
        elif edges and self.ids is not None and self._fits(self.ids, largest):
            self.ids.reach(largest)
            self._deal(edges, self.ids)
        else:
            ends = np.empty(2 * len(src), np.int64)
            ends[0::2], ends[1::2] = src, dst
            records = self._recording(named=False)
            first = records.count
            self._write_numbers(records.number_ids(ends), first)

    def _fits(self, ids: IdSet, largest: int) -> bool:
        if resident() + ids.growth(largest) + SLACK_BYTES > self._memory:
            self._shed(resident() + ids.growth(largest) + SLACK_BYTES - self._memory)
        return resident() + ids.growth(largest) + SLACK_BYTES <= self._memory

    def _shed(self, least: int) -> None:
        """Give memory back that the file takes."""
        self._crew.finish()
        self.file.shed(least)

    def _recording(self, *, named: bool) -> Records:
        """Records of one kind, all of them; begins them where edges have been kept with ids so far."""
        if self.records is None and not (named and self.edges) and self._source.nodes is None:
            self.records = Records(self._workspace, named=named)
            self.ids = None
            if self.dealer is not None:
                self._write_dealt(self.dealer)
                self.segments.append(Segment(0, self.edges, 0, 0))
        if self.records is None or self.records.named != named:
            raise InputError(
                f"{self._source.name} has nodes with numbers and nodes with names.",
                "Write all of them in the same way.",
            )
        return self.records

    def _deal(self, edges: Edges, ids: IdSet | None) -> None:
        """Write keys of ids, and add them to `ids`."""
        if self.dealer is None:
            self.dealer = Dealer(self.file, self._block_edges, self._source.nodes)
            self.dealer.plan(edges.dst)
        self._crew.do(_deal, self.dealer, edges, ids)
        self.edges += edges.src.size

    def _write_dealt(self, dealer: Dealer) -> None:
        """Write the keys that were dealt so far to a file of their own, each in a whole word."""
        self._crew.finish()
        self.file.shed()
        words, buffer, done = self._workspace.file(), np.empty(_BLOCK_KEYS, np.uint64), 0
        for run in dealer.runs():
            for keys in run.blocks(buffer):
                words.write(done * KEY_BYTES, keys)
                done += keys.size
        self.file.close()
        self.file, self.dealer = words, None

    def _write_numbers(self, numbers: NDArray[np.uint32], first: int) -> None:
        """Write a block of edges with numbers of the records from `first` on."""
        assert self.records is not None
        edge = self.edges
        keys = keys_of(numbers[0::2], numbers[1::2])
        self.file.write(edge * KEY_BYTES, keys)
        self.edges += keys.size
        self.segments.append(Segment(edge, self.edges - edge, first, self.records.count - first))


def _deal(dealer: Dealer, edges: Edges, ids: IdSet | None) -> None:
    if ids is not None:
        ids.add(edges.src, edges.dst)
    dealer.add(edges)


def _beyond(source: Source, node: int) -> InputError:
    last = (source.nodes or 0) - 1
    return InputError(
        f"{source.name} has a link with node {node}, but says it has nodes 0 to {last} only.",
        "Correct the number of nodes in its header, or the link.",
    )


def _numbered(source: Source, reader: _Reader) -> Spilled:
    """Check a source whose ids are below 2^32."""
    if source.nodes is not None:
        if reader.largest >= source.nodes:
            raise _beyond(source, reader.largest)
        nodes, ids = source.nodes, None
    else:
        assert reader.ids is not None
        nodes = len(reader.ids)
        ids = reader.ids if reader.ids.largest >= nodes else None
    if nodes == 0:
        raise InputError(f"{source.name} has no nodes.", "Give a graph with at least one link.")
    if nodes > MAX_NODES:
        raise InputError(
            f"{source.name} has {nodes} nodes, more than {MAX_NODES}.",
            "Split the graph, or drop nodes without links.",
        )
    runs = list(reader.dealer.runs()) if reader.dealer else []
    return Spilled(reader.file, reader.edges, nodes, ids, None, runs)
