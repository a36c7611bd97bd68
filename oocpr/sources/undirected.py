"""Every edge in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np

from oocpr.sources.base import BaseSource
from oocpr.sources.block import EdgeBlock, NameBlock, NodeBlock, ResumableSource, Strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from oocpr.sources.block import Block, Source

    AnyBlock = TypeVar("AnyBlock", EdgeBlock, NameBlock, Block)


def both_ways(blocks: Iterable[AnyBlock]) -> Iterator[AnyBlock]:
    """Follow each block by its edges reversed; self-loops, which are their own reverse, are not repeated."""
    for block in blocks:
        yield block
        if isinstance(block, NodeBlock):
            continue
        reverse = np.flatnonzero(_differ(block))
        if not reverse.size:
            continue
        weight = None if block.weight is None else block.weight[reverse]
        if isinstance(block, NameBlock):
            yield NameBlock(_selected(block.dst, reverse), _selected(block.src, reverse), weight)
        else:
            yield EdgeBlock(block.dst[reverse], block.src[reverse], weight)


def _differ(block: EdgeBlock | NameBlock) -> NDArray[np.bool_]:
    """Tell edges from self-loops; bool, shape (edges,)."""
    if isinstance(block, EdgeBlock):
        return np.not_equal(block.src, block.dst)
    one, two = block.src, block.dst
    differ = np.empty(one.starts.size, np.bool_)
    _compare(one.text, one.starts, one.ends, two.text, two.starts, two.ends, differ)
    return differ


@numba.njit(cache=True, nogil=True)
def _compare(one, starts, ends, two, other_starts, other_ends, differ):  # type: ignore[no-untyped-def]
    for k in range(starts.size):
        length = ends[k] - starts[k]
        differ[k] = other_ends[k] - other_starts[k] != length
        i = 0
        while not differ[k] and i < length:
            differ[k] = one[starts[k] + i] != two[other_starts[k] + i]
            i += 1


def _selected(names: Strings, which: NDArray[np.intp]) -> Strings:
    return Strings(names.text, names.starts[which], names.ends[which])


class Undirected(BaseSource):
    """A source whose edges count in both directions; it is read through this one only."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.name, source.name)
        self._source = source
        self._counts: list[tuple[int, int]] = []  # edges of each block, and how many of them were reversed
        self._follow()

    def _follow(self) -> None:
        for name in ("size", "position", "nodes", "labels", "notices", "closed", "weighted"):
            setattr(self, name, getattr(self._source, name))
        self.unused_columns = getattr(self._source, "unused_columns", [])

    def identity(self) -> dict[str, Any] | None:
        """Tell what the source depends on; None if nobody can tell."""
        known = self._source.identity() if isinstance(self._source, ResumableSource) else None
        return None if known is None else {"undirected": known}

    def locate(self, edge: int) -> str:
        """Say where edge number `edge`, from 0, stands in the source; of a reversed one, one near it."""
        read = 0
        for forward, backward in self._counts:
            if edge < forward + backward:
                return self._source.locate(read + edge % max(forward, 1))
            edge -= forward + backward
            read += forward
        return self._source.locate(read)

    def _read(self, max_edges: int) -> Iterator[Block]:
        if isinstance(self._source, BaseSource):
            self._source.reserve = self.reserve
        for block in self._source.blocks(max_edges):
            both = list(both_ways([block]))
            self._follow()
            if not isinstance(block, NodeBlock):
                forward, *backward = map(_edges, both)
                self._counts.append((forward, sum(backward)))
            yield from both
        self._follow()


def _edges(block: Block) -> int:
    return block.src.starts.size if isinstance(block, NameBlock) else len(getattr(block, "src", ()))
