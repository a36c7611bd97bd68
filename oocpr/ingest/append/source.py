"""The nodes of a stored graph, and behind them what a source has, as one source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import DamagedError, InputError
from oocpr.sources.base import BaseSource
from oocpr.sources.block import NameBlock, NodeBlock, Strings
from oocpr.store.format import REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.sources.block import Block, Source
    from oocpr.store.graph import GraphStore


def joined_name(old: str, new: str) -> str:
    """Name a graph that was made of an older one and a source, as if all files had been given at once.

    Examples
    --------
    >>> joined_name("web", "monday"), joined_name("web and 2 more", "monday and 1 more")
    ('web and 1 more', 'web and 4 more')
    """
    first, before = _first_and_more(old)
    _, behind = _first_and_more(new)
    return f"{first} and {before + behind + 1:,} more"


def _first_and_more(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*) and ([\d,]+) more", name, re.DOTALL)
    return (match[1], int(match[2].replace(",", ""))) if match else (name, 0)


class Joined(BaseSource):
    """All nodes of a stored graph in their order, then the edges of a source.

    Nodes are the same where they have the same id or, if the stored graph has labels, the same name.

    Parameters
    ----------
    store
        Its nodes are in the order of their ids, or in any order if they have labels.
    source
        Has new edges; it is read through this one only.

    Raises
    ------
    InputError
        While blocks are read: nodes with numbers where there are names, or the reverse.
    """

    def __init__(self, store: GraphStore, source: Source) -> None:
        super().__init__(joined_name(store.attributes.source, source.name), source.name)
        self.notices = source.notices
        self.size = source.size
        self.weighted = source.weighted
        self._store = store
        self._source = source

    def place(self, edge: int) -> str:
        """Say where the edge stands that came as number `edge`, counted from 0."""
        return self._source.place(edge)

    def _read(self, max_edges: int) -> Iterator[Block]:
        if isinstance(self._source, BaseSource):
            self._source.reserve = self.reserve
        for first in range(0, self._store.nodes, 2 * max_edges):
            for nodes in self._nodes(first, min(first + 2 * max_edges, self._store.nodes)):
                yield NodeBlock(nodes)
        stated = False
        for block in self._source.blocks(max_edges):
            self.position = self._source.position
            if self._source.labels is not None or _named(block) != self._store.has_labels:
                raise self._mixed()
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
                raise DamagedError(f"{self._store.path}: its ids do not ascend.", REMEDY)
            yield ids[first - before :]
            return
        for text, lengths in self._store.label_pieces(first, stop):
            yield Strings.of(text, lengths)

    def _mixed(self) -> InputError:
        ours, theirs = ("name", "number") if self._store.has_labels else ("number", "name")
        if self._store.has_labels and self._source.labels is not None:
            theirs = "number and name"
        return InputError(
            f"{self._store.path} knows its nodes by {ours}, {self._source.name} by {theirs}.",
            "Import all sources together.",
        )


def _named(block: Block) -> bool:
    return isinstance(block, NameBlock) or (isinstance(block, NodeBlock) and isinstance(block.nodes, Strings))
