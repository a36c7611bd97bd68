"""What every foreign format becomes: bounded blocks of edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

MAX_NODES = 2**32 - 1
"""Most nodes a graph may have: rows are numbered in 32 bits."""


@dataclass(frozen=True)
class Strings:
    """Names as pieces of one text, so that no Python object is made for any of them.

    Parameters
    ----------
    text
        UTF-8, uint8, shape (bytes,).
    starts, ends
        Name k is ``text[starts[k]:ends[k]]``; int64, shape (k,).
    """

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, text: NDArray[np.uint8], lengths: NDArray[np.integer[Any]]) -> Strings:
        """Take names that lie end to end by their lengths."""
        ends = lengths.cumsum(dtype="int64")
        return cls(text, ends - lengths, ends)


@dataclass(frozen=True)
class EdgeBlock:
    """A bounded piece of a graph's edge list, between numbered nodes.

    Parameters
    ----------
    src, dst
        Edge k runs from ``src[k]`` to ``dst[k]``; shape (k,), both uint32 below `MAX_NODES`, or both int64.
    weight
        float64, finite and not negative, shape (k,); None where the source has no weights.
    """

    src: NDArray[np.uint32 | np.int64]
    dst: NDArray[np.uint32 | np.int64]
    weight: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class NameBlock:
    """A bounded piece of a graph's edge list, between named nodes.

    Parameters
    ----------
    src, dst
        Edge k runs from name k of `src` to name k of `dst`.
    weight
        As for `EdgeBlock`.
    """

    src: Strings
    dst: Strings
    weight: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class NodeBlock:
    """Nodes that a graph has whether a link names them or not.

    Parameters
    ----------
    nodes
        Their ids, int64, shape (k,), or their names.
    """

    nodes: NDArray[np.int64] | Strings


Block = EdgeBlock | NameBlock | NodeBlock


class Labels(Protocol):
    """Labels of all nodes in order, to be gone through more than once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...


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
        Number of nodes where the ids are 0 .. nodes - 1 already; None where the ids or names that occur are
        the nodes. Settled when the first block comes.
    labels
        Label of each node 0 .. nodes - 1, or None; settled with `nodes`. Named nodes need none.
    notices
        Sentences a person should read after the import, such as what was ignored.
    closed
        What lists all nodes, as words for a message, where its `NodeBlock` come before all links and no link
        may name another node; else None.
    weighted
        Whether links have weights; then all of them have.
    """

    name: str
    size: int | None
    position: int
    nodes: int | None
    labels: Labels | None
    notices: list[str]
    closed: str | None
    weighted: bool

    def blocks(self, max_edges: int) -> Iterator[Block]:
        """Yield the edges in blocks of at most `max_edges`; raises InputError with file and line."""
        ...

    def place(self, edge: int) -> str:
        """Say where the edge that came as number `edge`, counted from 0, stands."""
        ...


@runtime_checkable
class ResumableSource(Source, Protocol):
    """A source of which another process can read what one has not read.

    Attributes
    ----------
    mark
        What leads behind the block that came last, as JSON; None where reading cannot begin there.
    """

    mark: dict[str, Any] | None

    def identity(self) -> dict[str, Any] | None:
        """Tell what the blocks depend on, as JSON that changes when they may; None where nobody can tell."""
        ...

    def skip_to(self, mark: dict[str, Any]) -> None:
        """Let ``blocks`` begin behind a mark that a source of the same identity gave."""
        ...
