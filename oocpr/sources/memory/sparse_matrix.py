"""Edges out of the arrays of a sparse matrix, wherever these arrays are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.block import MAX_NODES, EdgeBlock
from oocpr.sources.weights import UNREAD, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


_MAX_STARTS = 1 << 16
"""Row starts that are in memory at once."""


class Slices(Protocol):
    """Array-like that is asked for slices, each beginning where the last one ended."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of its dimensions."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of its elements."""
        ...

    def __getitem__(self, place: slice, /) -> NDArray[Any]:
        """Return the elements of the slice."""
        ...


@dataclass(frozen=True)
class MatrixParts:
    """The arrays of a sparse matrix, as somebody else says that they are.

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
    major: Slices
    minor: Slices
    values: Slices

    def check(self, title: str) -> None:
        """Raise InputError unless there is a row, a column and a value for each entry, of fitting types."""
        compressed = self.layout != "coo"
        for name, array, count, kinds in (
            ("row starts" if compressed else "rows", self.major, self.nodes + 1, "iu"),
            ("columns", self.minor, self.entries, "iu"),
            ("values", self.values, self.entries, "biufc"),
        ):
            length = count if compressed else self.entries
            if tuple(array.shape) != (length,):
                raise InputError(
                    f"{title} has {name} of the shape {tuple(array.shape)}, where {length:,} are needed.",
                    "Build the matrix again.",
                )
            if array.dtype.kind not in kinds:
                raise InputError(
                    f"{title} has {name} of the type {array.dtype}.",
                    "Give rows and columns as integers, and values as numbers.",
                )


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
        Arrays of other lengths or types, row starts that fall, a row or column that is not in the matrix, or
        a value that is no weight.

    Examples
    --------
    >>> import numpy as np
    >>> parts = MatrixParts("csr", 3, 2, np.array([0, 1, 1, 2]), np.array([2, 0]), np.array([1.0, 1.0]))
    >>> [(block.src.tolist(), block.dst.tolist()) for block in matrix_blocks(parts, 9, "the matrix", [])]
    [([0, 2], [2, 0])]
    """
    parts.check(title)
    owners = None if parts.layout == "coo" else _Owners(parts, title)
    zeros, unread = 0, False
    for start in range(0, parts.entries, max_edges):
        stop = min(parts.entries, start + max_edges)
        major = parts.major[start:stop] if owners is None else owners.of(start, stop)
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
    if owners is not None:
        owners.finish()
    if unread:
        notices.append(UNREAD)
    if zeros:
        notices.append(f"{zeros:,} entries are stored as zero and were left out.")


class _Owners:
    """Rows of the entries of a compressed layout, out of its row starts, which are read once.

    Parameters
    ----------
    parts
        The matrix.
    title
        What it is called in messages.
    """

    def __init__(self, parts: MatrixParts, title: str) -> None:
        self._parts = parts
        self._title = title
        self._first = 0  # the row of the first start in memory
        self._starts = parts.major[0:1].astype(np.int64)
        if self._starts[0] != 0:
            raise self._wrong()

    def of(self, start: int, stop: int) -> NDArray[np.uint32]:
        """Give the row of each of the entries `start` .. `stop` - 1; entries are asked for in order."""
        pieces = []
        while True:
            first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
            last = int(np.searchsorted(self._starts, stop, side="left"))
            bounds = np.clip(self._starts[first : last + 1], start, stop)
            rows = np.arange(self._first + first, self._first + first + len(bounds) - 1, dtype=np.uint32)
            pieces.append(np.repeat(rows, np.diff(bounds)))
            if self._starts[-1] >= stop:
                return np.concatenate(pieces)
            self._read()

    def finish(self) -> None:
        """Read the starts of the rows behind the last entry."""
        while self._first + len(self._starts) <= self._parts.nodes:
            self._read()
        if self._starts[-1] != self._parts.entries:
            raise self._wrong()

    def _read(self) -> None:
        """Go on to the next starts; the last one before them stays."""
        read = self._first + len(self._starts)
        more = self._parts.major[read : min(read + _MAX_STARTS, self._parts.nodes + 1)]
        # Of unsigned integers beyond 2^63 this makes negative ones, which fall.
        starts = np.concatenate([self._starts[-1:], more.astype(np.int64)])
        if not len(more) or (starts[1:] < starts[:-1]).any() or starts[-1] > self._parts.entries:
            raise self._wrong()
        self._first, self._starts = read - 1, starts

    def _wrong(self) -> InputError:
        return InputError(
            f"{self._title} has row starts that do not fit its entries.", "Build the matrix again."
        )
