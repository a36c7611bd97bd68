"""What the caller calls the nodes: labels, ids of the source file, or plain row numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oocpr.errors import InputError
from oocpr.ingest.budget import SLACK_BYTES, require
from oocpr.result.columns import ROWS, cut, equal, ids_of, size_of, text_of
from oocpr.sources.block import Strings
from oocpr.system import resident_after_trim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.result.columns import Block
    from oocpr.result.row_lookup import RowIndex
    from oocpr.store.graph import GraphStore

Name = int | str


class Names(Protocol):
    """The names of a graph's nodes, in store order."""

    textual: bool
    """True where the names are strings, False where they are integers."""

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Names of these rows, Python ints or strings, in the order asked for."""
        ...

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Yield the names of all nodes in order, int64 or texts, in bounded blocks."""
        ...


class RowNames:
    """Nodes that are their own row numbers.

    Examples
    --------
    >>> RowNames().take(np.array([3, 1]))
    [3, 1]
    """

    textual = False

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Give the rows themselves."""
        numbers: list[int] = rows.tolist()
        return numbers

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Count."""
        return (np.arange(first, min(first + ROWS, nodes)) for first in range(0, nodes, ROWS))


class ListedNames:
    """Names held in memory.

    Parameters
    ----------
    names
        Name of each row: integers, shape (n,), or a sequence of n strings.

    Examples
    --------
    >>> ListedNames(["libc6", "perl-base"]).take(np.array([1]))
    ['perl-base']
    """

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
        """Give the names as they are."""
        if isinstance(self._names, np.ndarray):
            for first in range(0, len(self._names), ROWS):
                yield self._names[first : first + ROWS].astype(np.int64)
        else:
            from oocpr.store.labels import text_pieces

            yield from (Strings.of(*piece) for piece in text_pieces(self._names))


class LabelNames:
    """Labels that stay in the store until they are asked for.

    Parameters
    ----------
    store
        An open graph store that has labels.
    """

    textual = True

    def __init__(self, store: GraphStore) -> None:
        self._store = store

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Read the labels of the rows."""
        return self._store.labels(rows) or []

    def blocks(self, nodes: int) -> Iterator[Block]:
        """Read all labels."""
        return (Strings.of(*piece) for piece in self._store.label_pieces(0, nodes))


def names_of(store: GraphStore) -> Names:
    """Names by which a graph's source knew its nodes.

    Parameters
    ----------
    store
        An open graph store.

    Returns
    -------
    Names
        Labels where the store has them, else the ids of the source, else row numbers.
    """
    if store.has_labels:
        return LabelNames(store)
    ids = store.node_ids()
    return RowNames() if ids is None else ListedNames(ids)


def index_of(names: Names, nodes: int, memory: int | None = None) -> RowIndex:
    """Make an index of all nodes by their names, outside Python's objects.

    Parameters
    ----------
    names
        The names of all nodes, in store order.
    nodes
        How many nodes there are.
    memory
        Most bytes that the process may hold, of which the index takes 28 a node; None for any number.

    Raises
    ------
    DoesNotFitError
        Where `memory` is too small.
    """
    from oocpr.result import row_lookup

    if isinstance(names, RowNames):
        return row_lookup.SameRows(nodes)
    each = row_lookup.BYTES_PER_NAME if names.textual else row_lookup.BYTES_PER_ID
    if memory is not None:
        needed = resident_after_trim() + each * nodes + SLACK_BYTES
        require(needed, memory, f"Looking up {nodes:,} nodes by their names")
    if names.textual:
        return row_lookup.NameRows((text_of(block) for block in names.blocks(nodes)), nodes)
    return row_lookup.IdRows((ids_of(block) for block in names.blocks(nodes)), nodes)


def rows_named(index: RowIndex, textual: bool, wanted: Sequence[Name], origin: str) -> NDArray[np.int64]:
    """Rows of the nodes that carry these names.

    Parameters
    ----------
    index, textual
        The nodes of the graph, and whether they have names rather than ids.
    wanted
        Names to look for.
    origin
        Where `wanted` comes from, for the message.

    Returns
    -------
    int64, shape (len(wanted),)

    Raises
    ------
    InputError
        Where a name is not one of the graph's, or is that of several nodes.

    Examples
    --------
    >>> index = index_of(ListedNames(np.array([7, 5, 9])), 3)
    >>> rows_named(index, False, [9, 7], "seeds.txt").tolist()
    [2, 0]
    """
    rows = np.full(len(wanted), -1)
    fits = sorts_of(wanted, textual)
    rows[fits] = index.rows(block_of([wanted[k] for k in np.flatnonzero(fits).tolist()], textual))
    strangers = np.flatnonzero(rows < 0)
    if strangers.size:
        stranger = wanted[int(strangers[0])]
        raise InputError(
            f"{origin}: the graph has no node {stranger!r}.",
            "Use the names of the source: the top of the ranks shows some.",
        )
    return rows


def block_of(names: Sequence[Name], textual: bool) -> Block:
    """Make a block of names of one kind."""
    if textual:
        coded = [str(name).encode(errors="surrogatepass") for name in names]
        text = np.frombuffer(b"".join(coded), np.uint8)
        return Strings.of(text, np.array([len(name) for name in coded], np.uint32))
    return np.array([int(name) for name in names], np.int64)


def sorts_of(names: Iterable[Any], textual: bool) -> NDArray[np.bool]:
    """Tell which names can be those of nodes that have names, or ids; bool, shape (names,).

    Examples
    --------
    >>> sorts_of(["a", 7, 2**63], False).tolist()
    [False, True, False]
    """
    return np.array([_may_name(name, textual) for name in names], bool)


def _may_name(name: object, textual: bool) -> bool:
    if textual:
        return isinstance(name, str)
    if isinstance(name, float | np.floating):
        return bool(name.is_integer() and -(2.0**63) <= name < 2.0**63)
    return isinstance(name, int | np.integer) and -(2**63) <= int(name) < 2**63


def matched_rows(
    names: Names, nodes: int, theirs: Iterator[tuple[Block, NDArray[np.float64]]], memory: int | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Find the rows that values of named nodes belong to.

    As a rule, nodes have the place that they had. Only where they have not is an index made.

    Parameters
    ----------
    names, nodes, memory
        Of the graph; see `index_of`.
    theirs
        Blocks of names, and a value for each.

    Yields
    ------
    rows, values
        int64, negative where the graph has no such node, and float64.

    Raises
    ------
    DoesNotFitError
        Where `memory` is too small.
    InputError
        Where several nodes have a name that is looked up.

    Examples
    --------
    >>> theirs = iter([(np.array([7, 5, 4]), np.array([0.5, 0.2, 0.3]))])
    >>> [rows.tolist() for rows, _ in matched_rows(ListedNames(np.array([7, 9, 5])), 3, theirs)]
    [[0, 2, -1]]
    """
    index: RowIndex | None = None
    ours, held, first = names.blocks(nodes), None, 0
    for their, values in theirs:
        done = 0
        while done < values.size:
            if held is None or not size_of(held):
                held = next(ours, None)
            step = values.size - done if held is None else min(values.size - done, size_of(held))
            part = cut(their, done, done + step)
            if held is not None and equal(part, cut(held, 0, step)):
                rows = np.arange(first, first + step)
            elif isinstance(part, Strings) is not names.textual:
                rows = np.full(step, -1)
            else:
                index = index or index_of(names, nodes, memory)
                rows = index.rows(part)
            yield rows, values[done : done + step]
            held = None if held is None else cut(held, step, size_of(held))
            done, first = done + step, first + step
