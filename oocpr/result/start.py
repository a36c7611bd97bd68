"""What a run begins from: earlier ranks, matched with the nodes of the graph by their names."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.result.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.result.names import Name, Names

_CHUNK = 1 << 18


def start_vector(
    wanted: Ranks | Mapping[Any, float] | NDArray[np.float64] | str | os.PathLike[str],
    names: Names,
    nodes: int,
    least: NDArray[np.float64] | float,
) -> NDArray[np.float64]:
    """Spread one unit of mass over the nodes as earlier ranks do.

    Parameters
    ----------
    wanted
        Ranks, a file of them, or numbers by node name, of this graph or of one that shares nodes with it; or
        a number for each node in store order, float64, shape (nodes,). They need not sum to one.
    names
        What the caller calls the nodes.
    nodes
        How many there are.
    least
        What nodes get that have no earlier rank, where these sum to one: shape (nodes,), or the same for all.

    Returns
    -------
    float64, shape (nodes,)
        Sums to one.

    Raises
    ------
    InputError
        For a file that cannot be read, and ranks of which none is that of a node of the graph.
    UsageError
        For numbers that are negative, not finite, or all zero, and arrays of another length.

    Examples
    --------
    >>> from oocpr.result.names import ListedNames
    >>> start_vector({"b": 0.75, "gone": 0.25}, ListedNames(["a", "b"]), 2, 0.25).tolist()
    [0.25, 0.75]
    """
    origin = "start"
    if isinstance(wanted, str | os.PathLike):
        from oocpr.result.files import read_ranks

        origin = os.fspath(wanted)
        wanted = read_ranks(wanted)
    if isinstance(wanted, Ranks):
        values, theirs = wanted.to_numpy(), _taken(wanted.names, len(wanted))
    elif isinstance(wanted, Mapping):
        values, theirs = np.fromiter(wanted.values(), np.float64, len(wanted)), _listed(list(wanted))
    else:
        values, theirs = np.asarray(wanted, np.float64), None
        if values.shape != (nodes,):
            raise UsageError(
                f"{origin} has the shape {values.shape}.",
                f"Give a number for each of the {nodes} nodes, or ranks with their names.",
            )
    total = math.fsum(values)
    if not (math.isfinite(total) and total > 0 and values.min() >= 0):
        raise UsageError(
            f"The numbers of {origin} sum to {total} and the least is {values.min(initial=math.inf)}.",
            "Give finite numbers of at least 0, one of them above.",
        )
    if theirs is None:
        return values / total
    start = np.full(nodes, np.nan)
    _match(start, _taken(names, nodes), values, theirs, total)
    fresh = np.isnan(start)
    if fresh.all():
        raise InputError(
            f"{origin} has no rank of any node of the graph.", "Give ranks of nodes of the same names."
        )
    start[fresh] = least[fresh] if isinstance(least, np.ndarray) else least
    whole = math.fsum(start)
    if whole == 0:
        raise UsageError(
            f"The numbers of {origin} for nodes of the graph are all zero.", "Leave the start out."
        )
    start /= whole
    return start


def _match(
    start: NDArray[np.float64],
    ours: Iterator[Sequence[Name]],
    values: NDArray[np.float64],
    theirs: Iterator[Sequence[Name]],
    total: float,
) -> None:
    """Write the values of nodes to their rows; most nodes have the place that they had, as a rule."""
    rows: dict[Name, int] = {}
    places: dict[Name, int] = {}
    first = 0
    for our, their in _side_by_side(ours, theirs):
        for k, name in enumerate(our):
            if k < len(their) and their[k] == name:
                start[first + k] = values[first + k] / total
            else:
                rows[name] = first + k
                if k < len(their):
                    places[their[k]] = first + k
        for k in range(len(our), len(their)):
            places[their[k]] = first + k
        first += _CHUNK
        _settle(start, rows, places, values, total)
    _settle(start, rows, places, values, total)


def _settle(
    start: NDArray[np.float64],
    rows: dict[Name, int],
    places: dict[Name, int],
    values: NDArray[np.float64],
    total: float,
) -> None:
    """Write the values of names that have turned up on both sides, and forget them."""
    for name in rows.keys() & places.keys():
        start[rows.pop(name)] = values[places.pop(name)] / total


def _side_by_side(
    ours: Iterator[Sequence[Name]], theirs: Iterator[Sequence[Name]]
) -> Iterator[tuple[Sequence[Name], Sequence[Name]]]:
    while True:
        our, their = next(ours, ()), next(theirs, ())
        if not (our or their):
            return
        yield our, their


def _taken(names: Names, count: int) -> Iterator[Sequence[Name]]:
    for first in range(0, count, _CHUNK):
        yield names.take(np.arange(first, min(first + _CHUNK, count)))


def _listed(names: Sequence[Name]) -> Iterator[Sequence[Name]]:
    for first in range(0, len(names), _CHUNK):
        yield names[first : first + _CHUNK]
