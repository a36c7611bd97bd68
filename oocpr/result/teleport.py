"""The teleport vector of a personalized run, from what the caller calls the nodes."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, OocprError, UsageError
from oocpr.result.names import index_of, rows_named
from oocpr.result.node_weights import node_weights
from oocpr.sources.detection import BLANKS, is_comment
from oocpr.sources.lines import LONGEST_LINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.result.names import Name, Names

_LINES = 1 << 12


def teleport_vector(wanted: Any, names: Names, nodes: int, memory: int | None = None) -> NDArray[np.float64]:
    """Spread one unit of mass over the nodes as the caller wants it.

    Parameters
    ----------
    wanted
        Weights as `node_weights` takes them, nodes that are not named getting none; or a file of lines
        ``node`` or ``node<TAB>weight``. Weights need not sum to one. A line is a comment if it begins with
        ``# `` or, if nodes have numbers, with ``#`` or ``%``.
    names
        What the caller calls the nodes.
    nodes
        How many there are.
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
        For a file that cannot be read, and nodes that the graph does not have.
    UsageError
        For weights that are negative, not finite, or all zero, and arrays of another length.

    Examples
    --------
    >>> from oocpr.result.names import ListedNames
    >>> teleport_vector({"b": 3, "c": 1}, ListedNames(["a", "b", "c"]), 3).tolist()
    [0.0, 0.75, 0.25]
    """
    origin = "personalization"
    named: Iterator[tuple[list[Name], Sequence[float] | NDArray[np.float64]]] | None
    if isinstance(wanted, str | os.PathLike):
        origin = os.fspath(wanted)
        named = _read_weights(Path(wanted), textual=names.textual)
    else:
        listed, weights = node_weights(wanted, origin)
        named = None if listed is None else _listed(listed, weights)
    if named is not None:
        index = index_of(names, nodes, memory)
        weights = np.zeros(nodes)
        for some, of_them in named:
            np.add.at(weights, rows_named(index, names.textual, some, origin), of_them)
        del index
    if weights.shape != (nodes,):
        raise UsageError(
            f"{origin} has the shape {weights.shape}.",
            f"Give one weight for each of the {nodes:,} nodes, or weights by name.",
        )
    total = math.fsum(weights)
    if not total > 0:
        raise UsageError(
            f"{origin} has no number above 0.", "Give one node a number above 0, or leave it out."
        )
    return weights / total


def _listed(
    names: list[Name], weights: NDArray[np.float64]
) -> Iterator[tuple[list[Name], Sequence[float] | NDArray[np.float64]]]:
    for first in range(0, len(names), _LINES):
        yield names[first : first + _LINES], weights[first : first + _LINES]


def _read_weights(
    path: Path, *, textual: bool
) -> Iterator[tuple[list[Name], Sequence[float] | NDArray[np.float64]]]:
    """Yield the nodes of a file and their weights, some at a time."""
    names: list[Name] = []
    weights: list[float] = []
    size = 0
    for number, line in _lines(path):
        if not line.strip() or (is_comment(line) if textual else line.startswith(("#", "%"))):
            continue
        text, _, weight = line.partition("\t")
        try:
            # Labels may hold spaces; ids cannot, so there any white space separates.
            if not textual:
                text, weight = [*line.split(maxsplit=1), ""][:2]
            names.append(text.strip(BLANKS) if textual else int(text))
            weights.append(float(weight) if weight.strip() else 1.0)
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: {line.strip()!r} is no node and weight.",
                "Write a node, or a node, a tab and a number, on each line.",
            ) from error
        if not 0 <= weights[-1] < math.inf:
            raise InputError(
                f"{path}, line {number}: {weights[-1]} is no weight.", "Give finite numbers of at least 0."
            )
        size += len(line)
        if len(names) == _LINES or size >= LONGEST_LINE:
            yield names, weights
            names, weights, size = [], [], 0
    yield names, weights


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), ""), 1):
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"{path}, line {number} has more than {LONGEST_LINE:,} letters.",
                        "Write one node on each line.",
                    )
                yield number, line.rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OocprError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} cannot be read: {reason}.", "Name a text file of nodes and weights."
        ) from error
