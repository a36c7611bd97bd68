"""First stage: a source, readable once, becomes a file that can be read again.

Ids below 2^32 are written as they are, and a bitmap of them says in the end which occur. Other ids, and
names, are written as numbers of records; once a source has shown one of them, or the bitmap would outgrow the
memory, so are all ids that follow, and in the end those that came before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.ingest.ahead import ahead
from oocpr.ingest.budget import KEY_BYTES, MOST_BUCKET_EDGES, SLACK_BYTES, require, resident
from oocpr.ingest.deal import Dealer
from oocpr.ingest.ids import IdSet
from oocpr.ingest.records import Records
from oocpr.ingest.scratch import require_disk
from oocpr.ingest.settle import Segment, keys_of, settle
from oocpr.sources.block import MAX_NODES, NameBlock, NodeBlock, Strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.dictionary import Dictionary
    from oocpr.ingest.finished import Checkpoint
    from oocpr.ingest.scratch import Scratch, Workspace
    from oocpr.progress import Progress
    from oocpr.sources.block import Block, Source

_FORESEEING = 8
"""From this block on, and whenever their number has doubled, blocks tell how large the graph is."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Spilled:
    """What is known of a source that was read to its end.

    Parameters
    ----------
    file
        Its edges as keys, head << 32 | tail, uint64.
    edges
        Edges read, repeats included.
    nodes
        Nodes of the graph.
    ids
        The ids of the keys where these have gaps, else None: they are 0 .. nodes - 1.
    dictionary
        What the nodes are called, where the source does not number them in 32 bits.
    dealer
        Dealt the keys to buckets; None where these have been changed since.
    """

    file: Scratch
    edges: int
    nodes: int
    ids: IdSet | None
    dictionary: Dictionary | None
    dealer: Dealer | None


class Keeper(Protocol):
    """Keeps how far reading is, for another process to go on from there."""

    def begin(self, source: Source, reader: Reader) -> bool:
        """Take up what was read before; returns whether there is more to read."""
        ...

    def took(self, reader: Reader, mark: dict[str, Any] | None) -> None:
        """Take note of a block, behind which `mark` leads."""
        ...

    def read(self, source: Source, reader: Reader) -> None:
        """Take note that there is no more to read."""
        ...

    def numbered(self, spilled: Spilled) -> None:
        """Take note that keys have numbers of nodes."""
        ...


def spill(
    source: Source,
    workspace: Workspace,
    block_edges: int,
    memory: int,
    progress: Progress,
    keeper: Keeper,
    passes: int = 1,
) -> Spilled:
    """Write every edge of `source` to a file as a key, head << 32 | tail.

    Where ids are numbers below 2^32, each block is dealt to buckets; else edges stay in the order they come.

    Parameters
    ----------
    source
        What to read.
    workspace
        Gives temporary files: 8 bytes an edge, and for ids and names that are no numbers below 2^32 those
        that each block meets.
    block_edges
        Most edges of a block.
    memory
        Most bytes that the process may hold.
    progress
        Told the stage "reading", and "looking up" and "numbering" where there are records.
    keeper
        Knows what was read before, and is told of every block.
    passes
        How often all edges will be written to temporary files, at least.

    Raises
    ------
    DoesNotFitError
        Where the source outgrows `memory`, or the disk is full.
    InputError
        Where the source has no nodes, too many, or one that it cannot have.
    UsageError
        Where the source has weights.
    """
    reader = Reader(source, workspace, block_edges, memory)
    if keeper.begin(source, reader):
        with ahead(_marked(source, block_edges)) as blocks:
            for number, (block, mark) in enumerate(blocks, 1):
                reader.take(block)
                keeper.took(reader, mark)
                if number >= _FORESEEING and number & (number - 1) == 0:
                    _foresee(source, reader, workspace, passes)
                if source.size is None:
                    progress("reading", reader.edges, None, "edges")
                else:
                    progress("reading", source.position, source.size, "B")
        keeper.read(source, reader)
    if reader.records is None:
        return _numbered(source, reader)
    reader.file.shed()
    dictionary = settle(
        source, reader.file, reader.segments, reader.records, reader.listed, workspace, memory, progress
    )
    spilled = Spilled(reader.file, reader.edges, dictionary.nodes, None, dictionary, None)
    keeper.numbered(spilled)
    return spilled


def _marked(source: Source, block_edges: int) -> Iterator[tuple[Block, dict[str, Any] | None]]:
    """Yield the blocks, each with what leads behind it."""
    blocks = source.blocks(block_edges)
    try:
        for block in blocks:
            yield block, getattr(source, "mark", None)
    finally:
        if hasattr(blocks, "close"):
            blocks.close()


def _foresee(source: Source, reader: Reader, workspace: Workspace, passes: int) -> None:
    """Refuse a disk that will be too small, as far as the part that was read tells; log what is needed."""
    if not source.size or not source.position:
        return
    edges = reader.edges * source.size // source.position
    needed = max(0, KEY_BYTES * (edges - reader.edges) - reader.file.room)
    if edges > MOST_BUCKET_EDGES:
        needed += (passes - 1) * KEY_BYTES * edges
    _LOG.info("%s: about %d edges, %d more bytes of temporary files", source.name, edges, needed)
    require_disk(workspace.folder, needed, "about ")


class Reader:
    """Writes blocks as keys.

    Attributes
    ----------
    edges
        Edges so far.
    file
        Their keys.
    dealer
        Writes keys of ids.
    largest
        The largest id, where the source has said how many nodes there are.
    ids
        The ids that occur, where it has not; None once there are records.
    records, listed
        What keys stand for, and how many nodes were given as such; None while keys are of ids.
    segments
        How the keys are to be taken.
    sizes
        Edges of each block whose keys are of ids.
    block_edges
        Most edges of a block, which the dealer goes by.
    """

    def __init__(self, source: Source, workspace: Workspace, block_edges: int, memory: int) -> None:
        self.edges = 0
        self.block_edges = block_edges
        # The other half is for the blocks, and for what tells the nodes.
        self.file = workspace.file(max(0, memory - resident() - SLACK_BYTES) // 2, "keys")
        self.dealer: Dealer | None = None
        self.largest = -1
        self.ids: IdSet | None = IdSet()
        self.records: Records | None = None
        self.listed = 0
        self.segments: list[Segment] = []
        self.sizes: list[int] = []
        self._source = source
        self._workspace = workspace
        self._memory = memory

    @property
    def nodes(self) -> int | None:
        """How many nodes the source says there are, None where it does not."""
        return self._source.nodes

    def restore(self, at: Checkpoint, sizes: Iterable[int], segments: Iterable[Segment]) -> None:
        """Take up where another process left off, with the files that it kept.

        Parameters
        ----------
        at
            How far it was.
        sizes, segments
            Of all blocks until then.
        """
        self.edges, self.listed, self.largest = at.edges, at.listed, at.largest
        self.block_edges = at.block_edges
        self.segments = list(segments)
        if at.records is not None:
            names = at.files.get("names-text", (1, 0, 0))
            self.records = Records(
                self._workspace,
                named=at.points is not None,
                count=at.records,
                name_bytes=names[1],
                points=at.points,
            )
            self.ids = None
            return
        assert self.ids is not None
        if at.nodes is None and not self._fits(self.ids, at.largest):
            self._recording(named=False)
            return
        self.edges = 0
        for size in sizes:
            keys = np.empty(size, np.uint64)
            self.file.read(self.edges * KEY_BYTES, keys)
            if at.nodes is None:
                self.ids.add(keys, at.largest)
            # The keys lie there as they are dealt, and come to lie there again.
            self._deal(keys)

    def take(self, block: Block) -> None:
        """Write a block of any kind."""
        if resident() + SLACK_BYTES // 2 > self._memory:
            self.file.shed()
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
            for start in range(0, len(block.src), self.block_edges):
                piece = slice(start, start + self.block_edges)
                self._take_edges(block.src[piece], block.dst[piece])

    def _take_nodes(self, block: NodeBlock) -> None:
        nodes = block.nodes
        records = self._recording(named=isinstance(nodes, Strings))
        first = records.count
        numbers = records.number_names(nodes) if isinstance(nodes, Strings) else records.number_ids(nodes)
        self.listed += numbers.size
        self.segments.append(Segment(self.edges, 0, first, records.count - first))

    def _take_edges(self, src: NDArray[Any], dst: NDArray[Any]) -> None:
        largest = max(int(src.max()), int(dst.max()))
        small = src.dtype == np.uint32 or (min(src.min(), dst.min()) >= 0 and largest < MAX_NODES)
        if self._source.nodes is not None:
            if not small:
                raise _beyond(self._source, largest if largest >= MAX_NODES else min(src.min(), dst.min()))
            self.largest = max(self.largest, largest)
            self._deal(keys_of(src, dst))
        elif small and self.ids is not None and self._fits(self.ids, largest):
            keys = keys_of(src, dst)
            self.ids.add(keys, largest)
            self._deal(keys)
        else:
            ends = np.empty(2 * len(src), np.int64)
            ends[0::2], ends[1::2] = src, dst
            records = self._recording(named=False)
            first = records.count
            self._write_numbers(records.number_ids(ends), first)

    def _fits(self, ids: IdSet, largest: int) -> bool:
        if resident() + ids.growth(largest) + SLACK_BYTES > self._memory:
            self.file.shed()
        return resident() + ids.growth(largest) + SLACK_BYTES <= self._memory

    def _recording(self, *, named: bool) -> Records:
        """Records of one kind, all of them; begins them where edges have been kept with ids so far."""
        if self.records is None and not (named and self.edges) and self._source.nodes is None:
            self.records = Records(self._workspace, named=named)
            self.ids = None
            if self.edges:
                self.segments.append(Segment(0, self.edges, 0, 0))
        if self.records is None or self.records.named != named:
            raise InputError(
                f"{self._source.name} has nodes with numbers and nodes with names.",
                "Write all of them in the same way.",
            )
        return self.records

    def _deal(self, keys: NDArray[np.uint64]) -> None:
        """Write keys of ids."""
        if self.dealer is None:
            self.dealer = Dealer(self.file, self.block_edges, self._source.nodes)
        self.dealer.add(keys)
        self.edges += keys.size
        self.sizes.append(keys.size)

    def _write_numbers(self, numbers: NDArray[np.uint32], first: int) -> None:
        """Write a block of edges with numbers of the records from `first` on."""
        assert self.records is not None
        edge = self.edges
        keys = keys_of(numbers[0::2], numbers[1::2])
        self.file.write(edge * KEY_BYTES, keys)
        self.edges += keys.size
        self.segments.append(Segment(edge, self.edges - edge, first, self.records.count - first))


def _beyond(source: Source, node: int) -> InputError:
    last = (source.nodes or 0) - 1
    return InputError(
        f"{source.name} has a link with node {node}, but says it has nodes 0 to {last} only.",
        "Correct the number of nodes in its header, or the link.",
    )


def _numbered(source: Source, reader: Reader) -> Spilled:
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
    return Spilled(reader.file, reader.edges, nodes, ids, None, reader.dealer)
