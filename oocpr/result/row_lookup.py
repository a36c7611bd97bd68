"""The row of each node, looked up by its id or name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from oocpr.errors import InputError
from oocpr.ingest.nodes.hashing import Fingerprints
from oocpr.sources.block import Strings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from oocpr.store.labels import TextPiece

UNKNOWN = -1

BYTES_PER_ID = 20
"""An id, and its row as ids are sorted, in 8 bytes and in 4."""

BYTES_PER_NAME = 28
"""Two words of a fingerprint, and the row as names are sorted, in 8 bytes and in 4."""


class RowIndex(Protocol):
    """Finds rows."""

    def rows(self, nodes: NDArray[np.int64] | Strings) -> NDArray[np.int64]:
        """Row of each node, `UNKNOWN` where the graph has no such node."""
        ...


class SameRows:
    """Nodes whose ids are their rows.

    Examples
    --------
    >>> SameRows(3).rows(np.array([2, 3, -7])).tolist()
    [2, -1, -1]
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def rows(self, nodes: NDArray[np.int64] | Strings) -> NDArray[np.int64]:
        """Give the ids themselves."""
        assert not isinstance(nodes, Strings)
        return np.where((nodes >= 0) & (nodes < self._nodes), nodes, UNKNOWN)


class IdRows:
    """Nodes with ids.

    Parameters
    ----------
    ids
        Id of each row, in pieces.
    nodes
        How many there are.

    Examples
    --------
    >>> IdRows([np.array([7, 5]), np.array([-2])], 3).rows(np.array([5, 6, -2])).tolist()
    [1, -1, 2]
    """

    def __init__(self, ids: Iterable[NDArray[np.integer]], nodes: int) -> None:
        self._ids = np.empty(nodes, np.int64)
        first = 0
        for piece in ids:
            self._ids[first : first + piece.size] = piece
            first += piece.size
        self._order = np.argsort(self._ids).astype(np.uint32)
        self._ids.sort()

    def rows(self, nodes: NDArray[np.int64] | Strings) -> NDArray[np.int64]:
        """Look the ids up."""
        assert not isinstance(nodes, Strings)
        places = np.minimum(np.searchsorted(self._ids, nodes), self._ids.size - 1)
        return np.where(self._ids[places] == nodes, self._order[places].astype(np.int64), UNKNOWN)


class NameRows:
    """Nodes with names, told apart by fingerprints of 122 bits.

    Parameters
    ----------
    names
        Name of each row, in pieces, as their UTF-8 end to end with their lengths.
    nodes
        How many there are.

    Examples
    --------
    >>> names = [(np.frombuffer(b"homeabout", np.uint8), np.array([4, 5], np.uint32))]
    >>> text = np.frombuffer(b"aboutx", np.uint8)
    >>> NameRows(names, 2).rows(Strings(text, np.array([0, 5]), np.array([5, 6]))).tolist()
    [1, -1]
    """

    def __init__(self, names: Iterable[TextPiece], nodes: int) -> None:
        self._prints = Fingerprints()
        words, checks = np.empty(nodes, np.uint64), np.empty(nodes, np.uint64)
        first = 0
        for text, lengths in names:
            here = slice(first, first + lengths.size)
            self._prints.of(Strings.of(text, lengths), words[here], checks[here])
            first += lengths.size
        self._order = np.argsort(words).astype(np.uint32)
        words.sort()
        self._words, self._checks = words, checks

    def rows(self, nodes: NDArray[np.int64] | Strings) -> NDArray[np.int64]:
        """Look the names up.

        Raises
        ------
        InputError
            Where several nodes have one of them.
        """
        assert isinstance(nodes, Strings)
        words, checks = (np.empty(nodes.starts.size, np.uint64) for _ in range(2))
        self._prints.of(nodes, words, checks)
        found = np.full(words.size, UNKNOWN)
        left = np.arange(words.size)
        places = np.searchsorted(self._words, words)
        # More than once only where two names share a word.
        while left.size:
            there = places < self._words.size
            left, places = left[there], places[there]
            same = self._words[places] == words[left]
            left, places = left[same], places[same]
            rows = self._order[places]
            known = self._checks[rows] == checks[left]
            twice = left[known & (found[left] != UNKNOWN)]
            if twice.size:
                k = twice[0]
                name = nodes.text[nodes.starts[k] : nodes.ends[k]].tobytes().decode(errors="replace")
                raise InputError(
                    f"{name!r} is the name of several nodes of the graph.",
                    "Names must tell nodes apart: import the graph with other labels, or use ids.",
                )
            found[left[known]] = rows[known]
            places = places + 1
        return found
