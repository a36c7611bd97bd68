"""The teleport vector of a personalized run, from what the caller calls the nodes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError
from oocpr.result.names import rows_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.result.names import Name, Names


def teleport_vector(
    wanted: Mapping[Any, float] | NDArray[np.float64] | str | os.PathLike[str], names: Names, nodes: int
) -> NDArray[np.float64]:
    """Spread one unit of mass over the nodes as the caller wants it.

    Parameters
    ----------
    wanted
        Weight of some nodes by name, the rest getting none; or a weight for each node in store order,
        float64, shape (nodes,); or a file of lines ``node`` or ``node<TAB>weight``, ``#`` starting a comment.
        Weights need not sum to one.
    names
        What the caller calls the nodes.
    nodes
        How many there are.

    Returns
    -------
    float64, shape (nodes,)
        Sums to one.

    Raises
    ------
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
    if isinstance(wanted, str | os.PathLike):
        origin = os.fspath(wanted)
        wanted = _read_weights(Path(wanted), textual=names.textual)
    if isinstance(wanted, Mapping):
        weights = np.zeros(nodes)
        rows = rows_named(names, nodes, list(wanted), origin)
        weights[rows] = np.fromiter(wanted.values(), np.float64, len(rows))
    else:
        weights = np.asarray(wanted, np.float64)
    if weights.shape != (nodes,):
        raise UsageError(
            f"{origin} has the shape {weights.shape}.", f"Give one weight for each of the {nodes} nodes."
        )
    total = math.fsum(weights)
    if not (np.isfinite(total) and total > 0 and weights.min() >= 0):
        raise UsageError(
            f"The weights of {origin} sum to {total} and the least is {weights.min()}.",
            "Give finite weights of at least 0, one of them above.",
        )
    return weights / total


def _read_weights(path: Path, *, textual: bool) -> dict[Name, float]:
    weights: dict[Name, float] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path} cannot be read: {reason}.", "Name a text file of nodes and weights."
        ) from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        text, _, weight = line.partition("\t")
        try:
            # Labels may hold spaces; ids cannot, so there any white space separates.
            if not textual:
                text, weight = [*line.split(maxsplit=1), ""][:2]
            name: Name = text if textual else int(text)
            weights[name] = weights.get(name, 0.0) + (float(weight) if weight.strip() else 1.0)
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: {line.strip()!r} is no node and weight.",
                "Write a node, or a node, a tab and a number, on each line.",
            ) from error
    return weights
