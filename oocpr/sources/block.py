"""What every foreign format becomes: bounded blocks of edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

MAX_NODES = 2**32 - 1
"""Most nodes a graph may have: ids are stored in 32 bits."""


@dataclass(frozen=True)
class EdgeBlock:
    """A bounded piece of a graph's edge list.

    Parameters
    ----------
    src, dst
        Edge k runs from ``src[k]`` to ``dst[k]``; uint32, shape (k,).
    weight
        float64, shape (k,), or None where the source has no weights.
    """

    src: NDArray[np.uint32]
    dst: NDArray[np.uint32]
    weight: NDArray[np.float64] | None = None


class Source(Protocol):
    """A graph in somebody else's format, readable once from front to end.

    Attributes
    ----------
    name
        What people know it by; kept in the store's attributes.
    size
        Bytes to read in all (compressed bytes where compressed), or None where nobody knows.
    position
        Bytes read so far, for progress.
    nodes
        Number of nodes when the ids are 0 .. nodes - 1 already; None when the ids that occur are the nodes.
        Valid once ``blocks`` is exhausted.
    labels
        Label of each node 0 .. nodes - 1, or None. Valid once ``blocks`` is exhausted.
    notices
        Sentences a person should read after the import, such as what was ignored.
    """

    name: str
    size: int | None
    position: int
    nodes: int | None
    labels: Sequence[str] | None
    notices: list[str]

    def blocks(self, max_edges: int) -> Iterator[EdgeBlock]:
        """Yield the edges in blocks of at most `max_edges`; raises InputError with file and line."""
        ...
