"""Blocks of a source become keys in a file, as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.block_dictionary import BlockDictionary
from oocpr.ingest.nodes.resolve import Segment, pack_keys
from oocpr.ingest.spill.id_bitmap import IdBitmap
from oocpr.ingest.spill.keys import record_bytes, to_words
from oocpr.ingest.spill.partitioner import Edges, Partitioner
from oocpr.sources.block import MAX_NODES, NameBlock, NodeBlock, Strings
from oocpr.system import resident

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from oocpr.ingest.resume.state import Checkpoint
    from oocpr.ingest.spill.bounded_pool import BoundedExecutor
    from oocpr.ingest.spill.files import SpillDir
    from oocpr.sources.block import Block, Source

EDGES, KEYS = "edges", "keys"
"""Names of the files of edges: as they came, and those that came before the first with records, in words."""

_BLOCK_KEYS = 1 << 16


class EdgeSpiller:
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
    block_edges
        Most edges of a block, which the dealer goes by.
    """

    def __init__(
        self,
        source: Source,
        workspace: SpillDir,
        block_edges: int,
        memory: int,
        crew: BoundedExecutor,
        kept: int,
    ) -> None:
        self.edges = 0
        self.block_edges = block_edges
        self.file = workspace.file(kept, EDGES)
        self.dealer: Partitioner | None = None
        self.largest = -1
        self.ids: IdBitmap | None = IdBitmap()
        self.records: BlockDictionary | None = None
        self.listed = 0
        self.segments: list[Segment] = []
        self._source = source
        self._weighted = source.weighted
        self._record_bytes = record_bytes(weighted=source.weighted)
        self._workspace = workspace
        self._memory = memory
        self._crew = crew

    @property
    def nodes(self) -> int | None:
        """How many nodes the source says there are, None where it does not."""
        return self._source.nodes

    def restore(self, at: Checkpoint, blocks: Iterable[list[int]], segments: Iterable[Segment]) -> None:
        """Take up where another process left off, with the files that it kept.

        Parameters
        ----------
        at
            How far it was.
        blocks, segments
            All until then.
        """
        self.edges, self.listed, self.largest = at.edges, at.listed, at.largest
        self.block_edges = at.block_edges
        self.segments = list(segments)
        if KEYS in at.files:
            self.file.close()
            self.file = self._workspace.file(name=KEYS)
        if at.dealt is not None:
            self.dealer = Partitioner(self.file, at.block_edges, at.nodes, weighted=self._weighted)
            self.dealer.restore(at.dealt, blocks)
        if at.records is not None:
            self.records = BlockDictionary(
                self._workspace,
                named=at.points is not None,
                count=at.records,
                name_bytes=at.files.get("names-text", (1, 0))[1],
                points=at.points,
            )
            self.ids = None
        elif at.nodes is None and self.ids is not None and self.dealer is not None:
            self._find_ids(self.ids, self.dealer, at.largest)

    def _find_ids(self, ids: IdBitmap, dealer: Partitioner, largest: int) -> None:
        """Find the ids of edges that were dealt before; where they do not fit, look them up."""
        if not self._fits(ids, largest):
            self._recording(named=False)
            return
        ids.reach(largest)
        buffer = np.empty(_BLOCK_KEYS, np.uint64)
        for run in dealer.runs():
            for keys in run.blocks(buffer):
                ids.add(keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32))

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
            return
        if (block.weight is not None) != self._weighted:
            raise UsageError(
                f"{self._source.name} has weights where it says that it has none, or none where it has.",
                "Give every link a weight, or none.",
            )
        if isinstance(block, NameBlock):
            records = self._recording(named=True)
            first = records.count
            self._write_numbers(records.number_names(block.src, block.dst), first, block.weight)
        else:
            # A source may not know how to cut what it holds.
            for start in range(0, len(block.src), self.block_edges):
                piece = slice(start, start + self.block_edges)
                weight = None if block.weight is None else block.weight[piece]
                self._take_edges(block.src[piece], block.dst[piece], weight)

    def _take_nodes(self, block: NodeBlock) -> None:
        nodes = block.nodes
        records = self._recording(named=isinstance(nodes, Strings))
        first = records.count
        numbers = records.number_names(nodes) if isinstance(nodes, Strings) else records.number_ids(nodes)
        self.listed += numbers.size
        self.segments.append(Segment(self.edges, 0, first, records.count - first))

    def _take_edges(self, src: NDArray[Any], dst: NDArray[Any], weight: NDArray[np.float64] | None) -> None:
        small = src.dtype == np.uint32
        if not small:
            least, most = min(int(src.min()), int(dst.min())), max(int(src.max()), int(dst.max()))
            small = least >= 0 and most < MAX_NODES
            if not small and self._source.nodes is not None:
                raise beyond(self._source, most if most >= MAX_NODES else least)
        edges = Edges.of(src, dst, weight) if small else None
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
            self._write_numbers(records.number_ids(ends), first, weight)

    def _fits(self, ids: IdBitmap, largest: int) -> bool:
        if resident() + ids.growth(largest) + SLACK_BYTES > self._memory:
            self._shed(resident() + ids.growth(largest) + SLACK_BYTES - self._memory)
        return resident() + ids.growth(largest) + SLACK_BYTES <= self._memory

    def _shed(self, least: int) -> None:
        """Give memory back that the file takes."""
        self._crew.finish()
        self.file.shed(least)

    def _recording(self, *, named: bool) -> BlockDictionary:
        """Records of one kind, all of them; begins them where edges have been kept with ids so far."""
        if self.records is None and not (named and self.edges) and self._source.nodes is None:
            self.records = BlockDictionary(self._workspace, named=named)
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

    def _deal(self, edges: Edges, ids: IdBitmap | None) -> None:
        """Write keys of ids, and add them to `ids`."""
        if self.dealer is None:
            self.dealer = Partitioner(
                self.file, self.block_edges, self._source.nodes, weighted=self._weighted
            )
            self.dealer.plan(edges.dst)
        self._crew.do(_deal, self.dealer, edges, ids)
        self.edges += edges.src.size

    def _write_dealt(self, dealer: Partitioner) -> None:
        """Write the keys that were dealt so far to a file of their own, each in a whole word."""
        self._crew.finish()
        self.file.shed()
        words, buffer, done = self._workspace.file(name=KEYS), np.empty(_BLOCK_KEYS, np.uint64), 0
        beside = np.empty(_BLOCK_KEYS) if self._weighted else None
        for run in dealer.runs():
            for keys, weights in run.records(buffer, beside):
                words.write(done * self._record_bytes, to_words(keys, weights))
                done += keys.size
        self.file.close()
        self.file, self.dealer = words, None

    def _write_numbers(
        self, numbers: NDArray[np.uint32], first: int, weight: NDArray[np.float64] | None
    ) -> None:
        """Write a block of edges with numbers of the records from `first` on."""
        assert self.records is not None
        edge = self.edges
        keys = pack_keys(numbers[0::2], numbers[1::2])
        self.file.write(edge * self._record_bytes, to_words(keys, weight))
        self.edges += keys.size
        self.segments.append(Segment(edge, self.edges - edge, first, self.records.count - first))


def _deal(dealer: Partitioner, edges: Edges, ids: IdBitmap | None) -> None:
    if ids is not None:
        ids.add(edges.src, edges.dst)
    dealer.add(edges)


def beyond(source: Source, node: int) -> InputError:
    """Build the error for a node that a source cannot have."""
    last = (source.nodes or 0) - 1
    return InputError(
        f"{source.name} has a link with node {node}, but says it has nodes 0 to {last} only.",
        "Correct the number of nodes in its header, or the link.",
    )
