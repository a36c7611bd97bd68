"""What the caller calls the nodes: labels, ids of the source file, or plain row numbers."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from oocpr.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from oocpr.store.graph import GraphStore

Name = int | str
Value = int | float | bool | str | None


class Names(Protocol):
    """The names of a graph's nodes, in store order."""

    textual: bool
    """True where the names are strings, False where they are integers."""

    def take(self, rows: NDArray[np.integer[Any]]) -> Sequence[Name]:
        """Names of these rows, Python ints or strings, in the order asked for."""
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


class Attributes(Protocol):
    """What is known of a graph's nodes beside their names, in store order."""

    kinds: Mapping[str, str]
    """What each attribute holds: "text", "bool", or a type of numbers."""

    def take(self, name: str, rows: NDArray[np.integer[Any]]) -> Sequence[Value]:
        """Values of these rows, in the order asked for; None where a number or truth value lacks."""
        ...


class NoAttributes:
    """Nodes of which nothing is known.

    Examples
    --------
    >>> chosen_attributes(NoAttributes(), "all")
    []
    """

    kinds: Mapping[str, str] = MappingProxyType({})

    def take(self, name: str, rows: NDArray[np.integer[Any]]) -> Sequence[Value]:  # noqa: ARG002
        """There is none."""
        raise KeyError(name)


def chosen_attributes(attributes: Attributes, asked: Sequence[str] | str) -> list[str]:
    """Names of the attributes that are asked for: of some, or of ``"all"``.

    Raises
    ------
    UsageError
        Where there is no such attribute.

    Examples
    --------
    >>> chosen_attributes(NoAttributes(), [])
    []
    """
    if isinstance(asked, str):
        if asked != "all":
            raise UsageError(f"{asked!r} says not which attributes.", "Give their names, or all.")
        return list(attributes.kinds)
    for name in asked:
        if name not in attributes.kinds:
            known = ", ".join(attributes.kinds) or "none"
            raise UsageError(
                f"The nodes have no attribute {name!r}; there is {known}.",
                "Keep attributes with `oocpr import --nodes`, and write them with `oocpr rank --attributes`.",
            )
    return list(asked)


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


def rows_named(names: Names, nodes: int, wanted: Sequence[Name], origin: str) -> NDArray[np.int64]:
    """Rows of the nodes that carry these names.

    Parameters
    ----------
    names
        The names of all nodes, in store order.
    nodes
        How many nodes there are.
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
    >>> rows_named(ListedNames(np.array([7, 5, 9])), 3, [9, 7], "seeds.txt").tolist()
    [2, 0]
    """
    asked = set(wanted)
    found: dict[Name, int] = {}
    for start in range(0, nodes, _CHUNK):
        block = np.arange(start, min(start + _CHUNK, nodes))
        for row, name in zip(block.tolist(), names.take(block), strict=True):
            if name not in asked:
                continue
            if name in found:
                raise InputError(
                    f"{origin}: {name!r} is the name of node {found[name]} and of node {row}.",
                    "Names must tell nodes apart: import the graph without labels, or with other ones.",
                )
            found[name] = row
    for name in wanted:
        if name not in found:
            raise InputError(
                f"{origin}: the graph has no node {name!r}.", "Use the names that `oocpr top` prints."
            )
    return np.array([found[name] for name in wanted], np.int64)


_CHUNK = 1 << 18
