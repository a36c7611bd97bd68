"""Edges out of the arrays of a sparse matrix, wherever these arrays are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.block import MAX_NODES, EdgeBlock
from oocpr.sources.weights import weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class Slices(Protocol):
    """Array-like that is asked for slices, each beginning where the last one ended."""

    def __getitem__(self, place: slice, /) -> NDArray[Any]:
        """Return the elements of the slice."""
        ...


@dataclass(frozen=True)
class MatrixParts:
    """The arrays of a sparse matrix.

    Parameters
    ----------
    layout
        ``"csr"``, ``"csc"`` or ``"coo"``.
    nodes, entries
        Rows (and columns), and stored entries.
    major
        Of a compressed layout ``indptr``, shape (nodes + 1,); otherwise the rows, shape (entries,).
    minor
        Of a compressed layout ``indices``, otherwise the columns; shape (entries,).
    values
        Shape (entries,).
    """

    layout: str
    nodes: int
    entries: int
    major: Any
    minor: Slices
    values: Slices


def square(shape: tuple[int, ...], title: str) -> int:
    """Nodes of a matrix of this shape; InputError where it is not the matrix of a graph."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(f"{title} has the shape {shape}.", "Give a square matrix, one row a node.")
    if shape[0] > MAX_NODES:
        raise InputError(f"{title} has {shape[0]:,} nodes.", f"A graph has at most {MAX_NODES:,} nodes.")
    return shape[0]


def matrix_blocks(
    parts: MatrixParts, max_edges: int, title: str, notices: list[str], *, weighted: bool = False
) -> Iterator[EdgeBlock]:
    """Yield the entries as edges row -> column, in blocks of at most `max_edges`.

    Parameters
    ----------
    parts
        The matrix.
    max_edges
        Edges of a block.
    title
        What the matrix is called in messages.
    notices
        Receives what a person should know.
    weighted
        Whether values are weights; else entries that are stored but zero are no edges.

    Raises
    ------
    InputError
        Row starts that fall, a row or column that is not in the matrix, or a value that is no weight.

    Examples
    --------
    >>> import numpy as np
    >>> parts = MatrixParts("csr", 3, 2, np.array([0, 1, 1, 2]), np.array([2, 0]), np.array([1.0, 1.0]))
    >>> [(block.src.tolist(), block.dst.tolist()) for block in matrix_blocks(parts, 9, "the matrix", [])]
    [([0, 2], [2, 0])]
    """
    compressed = parts.layout != "coo"
    if compressed:
        _check_starts(parts, title)
    zeros, unread = 0, False
    for start in range(0, parts.entries, max_edges):
        stop = min(parts.entries, start + max_edges)
        major = _owners(parts.major, start, stop) if compressed else parts.major[start:stop]
        minor, values = parts.minor[start:stop], parts.values[start:stop]
        for ids in (major, minor):
            wrong = np.flatnonzero((ids < 0) | (ids >= parts.nodes))
            if len(wrong):
                raise InputError(
                    f"{title}: entry {start + wrong[0]:,} is in row or column {ids[wrong[0]]:,}.",
                    f"Rows and columns go from 0 to {parts.nodes - 1:,}: build the matrix again.",
                )
        weights = weights_of(values, title, "entry", start) if weighted else None
        keep = np.arange(len(values)) if weighted else np.flatnonzero(values)
        zeros += len(values) - len(keep)
        unread = unread or (not weighted and bool((values[keep] != 1).any()))
        if len(keep) < len(values):
            major, minor = major[keep], minor[keep]
        if parts.layout == "csc":
            major, minor = minor, major
        if len(keep):
            yield EdgeBlock(major.astype(np.uint32), minor.astype(np.uint32), weights)
    if unread:
        notices.append("The values of the matrix were not read: it is ranked as an unweighted graph.")
    if zeros:
        notices.append(f"{zeros:,} entries are stored as zero and were left out.")


def _check_starts(parts: MatrixParts, title: str) -> None:
    indptr = parts.major
    if (
        len(indptr) != parts.nodes + 1
        or indptr[0] != 0
        or indptr[-1] != parts.entries
        or (indptr[1:] < indptr[:-1]).any()
    ):
        raise InputError(f"{title} has row starts that do not fit its entries.", "Build the matrix again.")


def _owners(indptr: NDArray[Any], start: int, stop: int) -> NDArray[np.uint32]:
    """Row of each of the entries `start` .. `stop` - 1 of a compressed layout."""
    first = int(np.searchsorted(indptr, start, side="right")) - 1
    last = int(np.searchsorted(indptr, stop, side="left"))
    bounds = np.clip(indptr[first : last + 1], start, stop)
    return np.repeat(np.arange(first, last, dtype=np.uint32), np.diff(bounds))
