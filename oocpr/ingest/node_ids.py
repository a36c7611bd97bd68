"""What the rows of a store are called: the ids or names of the source, in the order of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.strings import permute_strings, write_strings
from oocpr.sources.block import MAX_NODES
from oocpr.system import resident

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from oocpr.ingest.nodes.dictionary import Dictionary
    from oocpr.ingest.nodes.strings import Piece
    from oocpr.ingest.order.permutation import Order
    from oocpr.ingest.spill.files import SpillDir
    from oocpr.sources.block import Source

_CHUNK = 1 << 18
_MIN_SPACE = 1 << 20


def ids_of_rows(
    dictionary: Dictionary | None, order: Order, memory: int
) -> NDArray[np.uint32] | Iterator[NDArray[np.integer]] | None:
    """Give the source's id of each row, whole or in pieces; None if rows are ids, or have names.

    The dictionary says what the nodes that were ordered stand for; None if these are the ids.
    """
    if dictionary is None:
        return order.node_ids
    if dictionary.words is None:
        return None
    nodes = dictionary.nodes
    lowest, highest = int(dictionary.ids(0, 1)[0]), int(dictionary.ids(nodes - 1, 1)[0])
    if order.node_ids is None and lowest == 0 and highest == nodes - 1:
        return None
    # As where a bitmap holds the ids, so that the same graph makes the same store.
    kind = np.uint32 if lowest >= 0 and highest < MAX_NODES else np.int64
    if order.node_ids is None:
        return (
            dictionary.ids(first, min(_CHUNK, nodes - first)).astype(kind)
            for first in range(0, nodes, _CHUNK)
        )
    require(resident() + 8 * nodes + SLACK_BYTES, memory, "Putting ids in order")
    ids, rows = dictionary.ids(0, nodes), order.node_ids
    return (ids[rows[first : first + _CHUNK]].astype(kind) for first in range(0, nodes, _CHUNK))


def names_of_rows(
    source: Source, dictionary: Dictionary | None, order: Order, spill_dir: SpillDir, memory: int
) -> Iterable[str] | Iterator[Piece] | None:
    """Give the name of each row, or None if it has an id only; labels are the source's."""
    names = None if dictionary is None else dictionary.names
    if names is None:
        if source.labels is None or order.node_ids is None:
            return source.labels
        names = write_strings(source.labels, spill_dir)
    if order.node_ids is not None:
        nodes = order.node_ids.size
        require(resident() + 4 * nodes + SLACK_BYTES + _MIN_SPACE, memory, "Putting names in order")
        rows = np.empty(nodes, np.uint32)
        rows[order.node_ids] = np.arange(nodes, dtype=np.uint32)
        return permute_strings(names, rows, spill_dir, memory - resident() - SLACK_BYTES)
    return names.pieces()
