"""First stage: a source, readable once, becomes a file that can be read again.

Ids below 2^32 are dealt to buckets, and a bitmap of them says in the end which occur. Other ids, and names,
are written as numbers of records; once a source has shown one of them, or the bitmap would outgrow the
memory, so are all ids that follow, and in the end those that came before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from oocpr.errors import InputError
from oocpr.ingest.budget import SLACK_BYTES, require, spill_memory
from oocpr.ingest.nodes.resolve import resolve_edges
from oocpr.ingest.read.prefetch import prefetch
from oocpr.ingest.read.spiller import EdgeSpiller, beyond
from oocpr.ingest.spill.bounded_pool import BoundedExecutor
from oocpr.ingest.spill.files import free_bytes, require_disk
from oocpr.ingest.spill.keys import KeyRun
from oocpr.sources.base import BaseSource
from oocpr.sources.block import MAX_NODES
from oocpr.system import resident
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from oocpr.ingest.nodes.dictionary import Dictionary
    from oocpr.ingest.spill.files import SpillDir, SpillFile
    from oocpr.ingest.spill.id_bitmap import IdBitmap
    from oocpr.progress import Progress
    from oocpr.sources.block import Block, Source

_FORESEEING = 8
"""From this block on, and whenever their number has doubled, blocks tell how large the graph is."""

_WORTH_SAYING = 1 << 28
"""Bytes of temporary files from which on people are told of them before they are written."""

_PARTS = 64

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpilledEdges:
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

    file: SpillFile
    edges: int
    nodes: int
    ids: IdBitmap | None
    dictionary: Dictionary | None
    runs: list[KeyRun]


class Keeper(Protocol):
    """Keeps how far reading is, for another process to go on from there."""

    def begin(self, source: Source, reader: EdgeSpiller) -> bool:
        """Take up what was read before; returns whether there is more to read."""
        ...

    def took(self, reader: EdgeSpiller, mark: dict[str, Any] | None) -> None:
        """Take note of a block, behind which `mark` leads."""
        ...

    def read(self, source: Source, reader: EdgeSpiller) -> None:
        """Take note that there is no more to read."""
        ...

    def numbered(self, spilled: SpilledEdges) -> None:
        """Take note that keys have numbers of nodes."""
        ...


def spill(
    source: Source,
    workspace: SpillDir,
    block_edges: int,
    memory: int,
    progress: Progress,
    keeper: Keeper,
    passes: int = 1,
    pool: Executor | None = None,
    workers: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> SpilledEdges:
    """Write every edge of `source` to a file as a key, head << 32 | tail.

    Where ids are numbers below 2^32, each block is dealt to buckets; else edges stay in the order they come.

    Parameters
    ----------
    source
        What to read.
    workspace
        Gives temporary files: 8 bytes an edge or less, 8 for its weight, and for ids and names that are no
        numbers below 2^32 those that each block meets.
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
    pool, workers
        Threads that deal edges, beside one that reads, and how many; None for the caller's own.
    tell
        Told once how much the temporary files will take, where that is much.

    Raises
    ------
    DoesNotFitError
        Where the source outgrows `memory`, or the disk is full.
    InputError
        Where the source has no nodes, too many, or one that it cannot have.
    """
    kept = spill_memory(memory - resident(), block_edges, workers, weighted=source.weighted)
    reader = EdgeSpiller(source, workspace, block_edges, memory, BoundedExecutor(pool, workers), kept)
    if isinstance(source, BaseSource):
        source.reserve = lambda needed, what: require(resident() + needed + SLACK_BYTES // 2, memory, what)
    announced = False
    if keeper.begin(source, reader):
        with prefetch(_marked(source, block_edges)) as blocks:
            for number, (block, mark) in enumerate(blocks, 1):
                reader.take(block)
                keeper.took(reader, mark)
                if number >= _FORESEEING and number & (number - 1) == 0:
                    needed = _foresee(source, reader, workspace, passes)
                    if needed >= _WORTH_SAYING and not announced:
                        announced = True
                        tell(
                            f"Temporary files will take about {format_bytes(needed)} in {workspace.folder}, "
                            f"where {format_bytes(free_bytes(workspace.folder))} are free."
                        )
                if source.size is None:
                    progress("reading", reader.edges, None, "edges")
                else:
                    progress("reading", source.position, source.size, "B")
        reader.finish()
        keeper.read(source, reader)
    if reader.records is None:
        return _check_ids(source, reader)
    reader.file.shed()
    dictionary = resolve_edges(
        source,
        reader.file,
        reader.segments,
        reader.records,
        reader.listed,
        workspace,
        memory,
        progress,
        weighted=source.weighted,
    )
    runs = split_runs(reader.file, reader.edges, dictionary.nodes, weighted=source.weighted)
    spilled = SpilledEdges(reader.file, reader.edges, dictionary.nodes, None, dictionary, runs)
    keeper.numbered(spilled)
    return spilled


def split_runs(file: SpillFile, edges: int, nodes: int, *, weighted: bool) -> list[KeyRun]:
    """Divide the keys of a file, uint64, each with a weight behind it or not, into runs of like sizes."""
    step = max(1, -(-edges // _PARTS))
    starts = range(0, edges, step)
    return [
        KeyRun.of_words(file, start, min(step, edges - start), 0, nodes << 32, weighted=weighted)
        for start in starts
    ]


def _marked(source: Source, block_edges: int) -> Iterator[tuple[Block, dict[str, Any] | None]]:
    """Yield the blocks, each with what leads behind it."""
    blocks = source.blocks(block_edges)
    try:
        for block in blocks:
            yield block, getattr(source, "mark", None)
    finally:
        if hasattr(blocks, "close"):
            blocks.close()


def _foresee(source: Source, reader: EdgeSpiller, workspace: SpillDir, passes: int) -> int:
    """Refuse a disk that will be too small, as far as what was read tells; returns the bytes needed."""
    if not source.size or not source.position or not reader.edges:
        return 0
    edges = reader.edges * source.size // source.position
    written, kept = reader.file.size, reader.file.kept
    needed = passes * (written * edges // reader.edges) - (written - kept) - kept - reader.file.room
    _LOG.info("%s: about %d edges, %d more bytes of temporary files", source.name, edges, max(0, needed))
    require_disk(workspace.folder, max(0, needed), "about ")
    return max(0, needed)


def _check_ids(source: Source, reader: EdgeSpiller) -> SpilledEdges:
    """Check a source whose ids are below 2^32."""
    if source.nodes is not None:
        if reader.largest >= source.nodes:
            raise beyond(source, reader.largest)
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
    return SpilledEdges(reader.file, reader.edges, nodes, ids, None, runs)
