"""Every edge in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oocpr.sources.block import EdgeBlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oocpr.sources.block import Source


def both_ways(blocks: Iterable[EdgeBlock]) -> Iterator[EdgeBlock]:
    """Follow each block by its edges reversed; self-loops, which are their own reverse, are not repeated.

    Examples
    --------
    >>> import numpy as np
    >>> block = EdgeBlock(np.array([0, 2], np.uint32), np.array([1, 2], np.uint32))
    >>> [(both.src.tolist(), both.dst.tolist()) for both in both_ways([block])]
    [([0, 2], [1, 2]), ([1], [0])]
    """
    for block in blocks:
        yield block
        turn = np.flatnonzero(block.src != block.dst)
        if len(turn):
            weight = None if block.weight is None else block.weight[turn]
            yield EdgeBlock(block.dst[turn], block.src[turn], weight)


class Undirected:
    """A source whose edges count in both directions.

    Parameters
    ----------
    source
        Any source; it is read through this one only.

    Examples
    --------
    >>> from oocpr.sources.memory import EdgeArrays
    >>> source = Undirected(EdgeArrays([0, 1], [1, 2]))
    >>> sum(len(block.src) for block in source.blocks(10))
    4
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.name = source.name
        self.size = source.size
        self._follow()

    def _follow(self) -> None:
        self.position = self._source.position
        self.nodes = self._source.nodes
        self.labels = self._source.labels
        self.notices = self._source.notices

    def blocks(self, max_edges: int) -> Iterator[EdgeBlock]:
        """Yield the edges in blocks of at most `max_edges`; raises what the source raises."""
        for block in both_ways(self._source.blocks(max_edges)):
            self._follow()
            yield block
        self._follow()
