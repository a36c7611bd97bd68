"""Names of nodes that are held in memory, as tests give them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.result.names import MAX_BLOCK_ROWS, Name
from oocpr.sources.block import Strings
from oocpr.store.node_data import text_pieces

if TYPE_CHECKING:
    from oocpr.result.names import Block


class ListedNames:
    """Names held in memory: integers, shape (n,), or a sequence of n strings."""

    def __init__(self, names: NDArray[np.integer[Any]] | Sequence[str]) -> None:
        self._names = names
        self.textual = not isinstance(names, np.ndarray)

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Look the rows up."""
        if isinstance(self._names, np.ndarray):
            numbers: list[int] = self._names[rows].tolist()
            return numbers
        return [self._names[row] for row in rows.tolist()]

    def blocks(self, nodes: int) -> Iterator[Block]:  # noqa: ARG002
        """Yield the names as they are."""
        if isinstance(self._names, np.ndarray):
            for first in range(0, len(self._names), MAX_BLOCK_ROWS):
                yield self._names[first : first + MAX_BLOCK_ROWS].astype(np.int64)
        else:
            yield from (Strings.of(*piece) for piece in text_pieces(self._names))
