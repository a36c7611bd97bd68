"""What the rows of a store are called: ids of the source, or names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.ingest.nodes.strings import permute_strings, write_strings
from oocpr.sources.block import MAX_NODES
from oocpr.system import resident, spans

if TYPE_CHECKING:
    from oocpr.ingest.nodes.strings import Piece, StringList
    from oocpr.ingest.spill.files import SpillDir

_CHUNK = 1 << 18
_MIN_SPACE = 1 << 20


class NodeList(Protocol):
    """Nodes that were numbered: their `names`, or their ids in ascending order if these are None."""

    @property
    def nodes(self) -> int: ...  # noqa: D102 - how many there are

    @property
    def names(self) -> StringList | None: ...  # noqa: D102 - see above

    def ids(self, first: int, count: int) -> NDArray[np.int64]:
        """Give the ids of `count` nodes from node `first` on."""


def ids_of_rows(
    found: NodeList | None, node_of_row: NDArray[np.uint32] | None, memory: int
) -> NDArray[np.uint32] | Iterator[NDArray[np.integer]] | None:
    """Give the source's id of each row, whole or in pieces; None if rows are ids, or have names.

    `found` says what nodes are called; None if the nodes are ids. `node_of_row` is None if the nodes are the
    rows.
    """
    if found is None:
        return node_of_row
    if found.names is not None:
        return None
    nodes = found.nodes
    lowest, highest = int(found.ids(0, 1)[0]), int(found.ids(nodes - 1, 1)[0])
    if node_of_row is None and lowest == 0 and highest == nodes - 1:
        return None
    # As where a bitmap holds the ids, so that the same graph makes the same store.
    kind = np.uint32 if lowest >= 0 and highest < MAX_NODES else np.int64
    if node_of_row is None:
        return (found.ids(first, stop - first).astype(kind) for first, stop in spans(nodes, _CHUNK))
    require(resident() + 8 * nodes + SLACK_BYTES, memory, "Putting ids in order")
    ids = found.ids(0, nodes)
    return (ids[node_of_row[first:stop]].astype(kind) for first, stop in spans(nodes, _CHUNK))


def names_of_rows(
    labels: Iterable[str] | Iterable[Piece] | None,
    found: NodeList | None,
    node_of_row: NDArray[np.uint32] | None,
    spill_dir: SpillDir,
    memory: int,
) -> Iterable[str] | Iterable[Piece] | None:
    """Give the name of each row, or None if it has an id only.

    `labels` are those of the source, of nodes that were not numbered; the others are as for `ids_of_rows`.
    """
    names = None if found is None else found.names
    if names is None:
        if labels is None or node_of_row is None:
            return labels
        names = write_strings(labels, spill_dir)
    if node_of_row is not None:
        nodes = node_of_row.size
        require(resident() + 4 * nodes + SLACK_BYTES + _MIN_SPACE, memory, "Putting names in order")
        rows = np.empty(nodes, np.uint32)
        rows[node_of_row] = np.arange(nodes, dtype=np.uint32)
        return permute_strings(names, rows, spill_dir, memory - resident() - SLACK_BYTES)
    return names.pieces()
