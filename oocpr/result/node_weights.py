"""Weights of nodes, however a caller holds them: by name, in the order of the store, in a table."""

from __future__ import annotations

from collections.abc import Mapping, Set
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.result.names import Name

NODES = ("node", "name", "id", "label")
"""What a table calls its column of nodes."""

_MANY = 1e290  # sums of larger numbers may be beyond float64

NodeWeights = tuple[list["Name"] | None, "NDArray[np.float64]"]


def node_weights(wanted: Any, origin: str) -> NodeWeights:
    """Take weights of nodes as they come.

    Parameters
    ----------
    wanted
        Numbers by node: a dict, a Series of pandas, whose index has the nodes, or a table with a column
        ``node`` and one of numbers, or none; the nodes themselves, which count alike: a set, or a list,
        tuple, array or Series of text; or a number for each node in store order: an array, shape (nodes,), or
        a list of floats.
    origin
        The parameter, for messages.

    Returns
    -------
    names : list of int or str, or None
        The nodes, each once; None where `values` are in store order.
    values : float64, shape (len(names),) or as given
        Finite, at least 0 and not all of them 0.

    Raises
    ------
    UsageError
        Something else, or a number that is no weight.

    Examples
    --------
    >>> node_weights({"a": 2}, "start"), node_weights({"b"}, "start")
    ((['a'], array([2.])), (['b'], array([1.])))
    """
    names: list[Name] | None
    if isinstance(wanted, Mapping):
        names, values = list(wanted), list(wanted.values())
    elif isinstance(wanted, Set):
        names, values = list(wanted), [1.0] * len(wanted)
    elif hasattr(wanted, "__arrow_c_stream__") and hasattr(wanted, "columns"):
        names, values = _of_table(wanted, origin)
    elif hasattr(wanted, "index") and hasattr(wanted, "to_dict"):
        names, values = wanted.index.tolist(), wanted.tolist()
        if any(isinstance(value, str) for value in values):
            names, values = values, [1.0] * len(values)
    else:
        names, values = _of_sequence(wanted, origin)
    weights = _weights(names, values, origin)
    if names is None:
        return None, weights
    total: dict[Name, float] = {}
    for name, weight in zip(names, weights.tolist(), strict=True):
        total[name] = total.get(name, 0.0) + weight
    return list(total), np.fromiter(total.values(), np.float64, len(total))


def _of_sequence(wanted: Any, origin: str) -> tuple[list[Name] | None, Any]:
    if isinstance(wanted, str | bytes) or not (
        isinstance(wanted, list | tuple) or hasattr(wanted, "__array__") or hasattr(wanted, "to_list")
    ):
        raise UsageError(
            f"{origin} is a {type(wanted).__name__}.",
            "Give numbers by node, such as {node: weight}, a set of nodes, or an array with one for each.",
        )
    items = wanted.tolist() if hasattr(wanted, "tolist") else list(wanted)
    if not isinstance(items, list):
        items = [items]
    if items and all(isinstance(item, str) for item in items):
        return items, [1.0] * len(items)
    if not isinstance(wanted, np.ndarray) and any(
        isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items
    ):
        raise UsageError(
            f"{origin} is a {type(wanted).__name__} of whole numbers, which may be nodes or weights.",
            "Give nodes as a set, or weights as an array of floats or by node: {node: weight}.",
        )
    if isinstance(wanted, np.ndarray) and wanted.dtype.kind in "biuf":
        items = wanted
    return None, items


def _of_table(table: Any, origin: str) -> tuple[list[Name], list[Any]]:
    import pyarrow as pa

    read = pa.table(table)
    columns = read.column_names
    texts = [field.name for field in read.schema if "string" in str(field.type)]
    nodes = [name for name in columns if name in NODES] or texts
    others = [name for name in columns if name not in nodes]
    if len(nodes) != 1 or len(others) > 1:
        raise UsageError(
            f"{origin} is a table with the columns {', '.join(map(repr, columns)) or 'none'}.",
            "Give a table with the columns node and weight.",
        )
    names = read[nodes[0]].to_pylist()
    return names, read[others[0]].to_pylist() if others else [1.0] * len(names)


def _weights(names: list[Name] | None, values: Any, origin: str) -> NDArray[np.float64]:
    """Take values as weights, and name the first that is none."""
    if isinstance(values, np.ndarray):
        weights = values.astype(np.float64)
    else:
        weights = np.array([_float(value) for value in values], np.float64)
    wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)).reshape(-1))
    if wrong.size:
        place = int(wrong[0])
        whose = f"row {place}" if names is None else f"the node {names[place]!r}"
        value = values.reshape(-1)[place].item() if isinstance(values, np.ndarray) else values[place]
        raise UsageError(
            f"{origin} gives {whose} {_short(value)}.",
            "Give finite numbers of at least 0, one of them above.",
        )
    if not weights.any():
        raise UsageError(
            f"{origin} has no number above 0.", "Give one node a number above 0, or leave it out."
        )
    return weights / weights.max() if weights.max() > _MANY else weights


def _float(value: Any) -> float:
    """Take a number as a float; NaN where it is none."""
    try:
        return float(value) if isinstance(value, Real) else np.nan
    except OverflowError:
        return np.inf


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
