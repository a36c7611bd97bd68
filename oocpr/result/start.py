"""What a run begins from: earlier ranks, matched with the nodes of the graph by their names."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.result.columns import aligned
from oocpr.result.names import block_of, matched_rows, sorts_of
from oocpr.result.node_weights import node_weights
from oocpr.result.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.result.columns import Block
    from oocpr.result.names import Names

_CHUNK = 1 << 12


def start_vector(
    wanted: Any,
    names: Names,
    nodes: int,
    least: NDArray[np.float64] | float,
    memory: int | None = None,
) -> NDArray[np.float64]:
    """Spread one unit of mass over the nodes as earlier ranks do.

    Parameters
    ----------
    wanted
        Ranks, a file of them, or numbers as `node_weights` takes them, of this graph or of one that shares
        nodes with it. They need not sum to one.
    names
        What the caller calls the nodes.
    nodes
        How many there are.
    least
        What nodes get that have no earlier rank, where these sum to one: shape (nodes,), or the same for all.
    memory
        Most bytes that the process may hold while names are looked up; None for any number.

    Returns
    -------
    float64, shape (nodes,)
        Sums to one.

    Raises
    ------
    DoesNotFitError
        Where `memory` is too small.
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
    theirs: Iterator[tuple[Block, NDArray[np.float64]]] | None
    if isinstance(wanted, Ranks):
        total, smallest = _summed(wanted.chunks())
        theirs = aligned(wanted.names.blocks(len(wanted)), wanted.chunks())
    else:
        named, values = node_weights(wanted, origin)
        theirs = None if named is None else _blocks_of(named, values, names)
        if named is None and values.shape != (nodes,):
            raise UsageError(
                f"{origin} has the shape {values.shape}.",
                f"Give a number for each of the {nodes} nodes, or ranks with their names.",
            )
        total, smallest = _summed(iter([values]))
    if not (math.isfinite(total) and total > 0 and smallest >= 0):
        raise UsageError(
            f"The numbers of {origin} sum to {total} and the least is {smallest}.",
            "Give finite numbers of at least 0, one of them above.",
        )
    if theirs is None:
        return values / total
    start = np.full(nodes, np.nan)
    for rows, found in matched_rows(names, nodes, theirs, memory):
        known = rows >= 0
        start[rows[known]] = found[known] / total
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


def start_identity(wanted: object) -> str | None:
    """Identity of the graph that ranks, or a file of them, are of; None where that is not said.

    Parameters
    ----------
    wanted
        As for `start_vector`.

    Raises
    ------
    InputError
        For a file that cannot be read.
    """
    # A CSV file says nothing of its run, and would be read whole.
    if isinstance(wanted, str | os.PathLike) and not os.fspath(wanted).endswith(".csv"):
        from oocpr.result.files import read_ranks

        wanted = read_ranks(wanted)
    return wanted.identity if isinstance(wanted, Ranks) else None


def _summed(chunks: Iterator[NDArray[np.float64]]) -> tuple[float, float]:
    """Sum and least of values, in one pass."""
    smallest = math.inf

    def each() -> Iterator[float]:
        nonlocal smallest
        for chunk in chunks:
            smallest = float(np.minimum(smallest, chunk.min(initial=math.inf)))
            yield from chunk

    return math.fsum(each()), smallest


def _blocks_of(
    theirs: Sequence[Any], values: NDArray[np.float64], names: Names
) -> Iterator[tuple[Block, NDArray[np.float64]]]:
    """Yield those names that the graph's nodes may have, and the values that belong to them."""
    for first in range(0, len(theirs), _CHUNK):
        some = theirs[first : first + _CHUNK]
        fits = sorts_of(some, names.textual)
        block = block_of([name for name, fit in zip(some, fits, strict=True) if fit], names.textual)
        yield block, values[first : first + _CHUNK][fits]
