"""First stage: a source, readable once, becomes a file that can be read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.ingest.budget import KEY_BYTES, SLACK_BYTES, require, resident
from oocpr.ingest.ids import IdSet
from oocpr.sources.block import MAX_NODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.scratch import Scratch
    from oocpr.progress import Progress
    from oocpr.sources.block import EdgeBlock, Source


@dataclass(frozen=True)
class Spilled:
    """What is known of a source that was read to its end.

    Parameters
    ----------
    edges
        Edges read, repeats included.
    nodes
        Nodes of the graph.
    ids
        The ids that occur where these have gaps, else None: the ids are 0 .. nodes - 1.
    """

    edges: int
    nodes: int
    ids: IdSet | None


def spill(source: Source, scratch: Scratch, block_edges: int, memory: int, progress: Progress) -> Spilled:
    """Write every edge of `source` to `scratch` as a key, head << 32 | tail, in the order they come.

    Parameters
    ----------
    source
        What to read.
    scratch
        Receives 8 bytes an edge from byte 0 on.
    block_edges
        Most edges of a block.
    memory
        Most bytes that the process may hold.
    progress
        Told the stage "reading".

    Raises
    ------
    DoesNotFitError
        Where the source or its set of ids outgrows `memory`, or the disk is full.
    InputError
        Where the source has no nodes, too many, or an id outside the range it names itself.
    UsageError
        Where the source has weights.
    """
    ids = IdSet()
    buffer = np.empty(block_edges, np.uint64)
    edges = 0
    for block in source.blocks(block_edges):
        if block.weight is not None:
            raise UsageError(
                f"{source.name} has weights, which the store cannot hold yet.", "Leave the weights out."
            )
        for keys in _packed(block, buffer):
            largest = max(int(keys.max()) >> 32, int(block.src.max()))
            needed = resident() + ids.growth(largest) + SLACK_BYTES // 2
            require(needed, memory, f"Reading {source.name}")
            ids.add(keys, largest)
            scratch.write(edges * KEY_BYTES, keys)
            edges += keys.size
        if source.size is None:
            progress("reading", edges, None, "edges")
        else:
            progress("reading", source.position, source.size, "B")
    return _checked(source, edges, ids)


def _packed(block: EdgeBlock, buffer: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    for start in range(0, block.src.size, buffer.size):
        src, dst = (ids[start : start + buffer.size] for ids in (block.src, block.dst))
        keys = buffer[: src.size]
        np.left_shift(dst, np.uint64(32), out=keys, dtype=np.uint64)
        np.bitwise_or(keys, src, out=keys, dtype=np.uint64)
        yield keys


def _checked(source: Source, edges: int, ids: IdSet) -> Spilled:
    nodes = len(ids) if source.nodes is None else source.nodes
    if nodes == 0:
        raise InputError(f"{source.name} has no nodes.", "Give a graph with at least one link.")
    if nodes > MAX_NODES:
        raise InputError(
            f"{source.name} has {nodes} nodes, more than {MAX_NODES}.",
            "Split the graph, or drop nodes without links.",
        )
    if source.nodes is None:
        return Spilled(edges, nodes, ids if ids.largest >= nodes else None)
    if ids.largest >= nodes:
        raise InputError(
            f"{source.name} has a link with node {ids.largest}, but says it has nodes 0 to {nodes - 1} only.",
            "Correct the number of nodes in its header, or the link.",
        )
    return Spilled(edges, nodes, None)
