"""Weights of edges: any numbers that are finite and not negative, as float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

VALUES = "values"
"""What the weights of a matrix are called."""

UNREAD = (
    "The values of the matrix were not used: it is ranked as an unweighted graph; "
    f'weight="{VALUES}" takes them as weights.'
)

USUAL = ("weight", "weights", "w", "value", "values", "amount", "count", "n", "strength", "probability")
"""What columns of weights are often called."""

_MOST_NAMED = 5

WEIGHT_REMEDY = "Give each link a finite weight of 0 or more."


def first_wrong(weights: NDArray[np.float64]) -> tuple[int, str] | None:
    """Find the first weight that cannot be, and say what it is; None if all can."""
    fine = (weights >= 0) & (weights < np.inf)
    if fine.all():
        return None
    place = int(np.argmin(fine))
    return place, "negative" if -np.inf < weights[place] < 0 else "not finite"


def weights_of(values: NDArray[Any], title: str, unit: str, first: int) -> NDArray[np.float64]:
    """Take integers, truth values or floats of any width as weights, float64; none of them is -0.0.

    Messages say that `unit`, such as "row", number `first` + k of `title` has the value k that is no weight.
    """
    if values.dtype.kind not in "biuf":
        raise InputError(f"{title}: values of the type {values.dtype} are no weights.", WEIGHT_REMEDY)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
        weights = values.astype(np.float64)
    wrong = first_wrong(weights)
    if wrong is not None:
        place, why = wrong
        raise InputError(
            f"{title}: {unit} {first + place:,} has the weight {values[place]}, which is {why}.",
            WEIGHT_REMEDY,
        )
    weights += 0.0  # -0.0 + 0.0 is 0.0
    return weights


def column_number(weight: str | int) -> int:
    """Take what a caller calls the column of weights of a text as its number, from 1; or UsageError."""
    text = str(weight)
    if not text.isdecimal() or int(text) < 3:
        raise UsageError(
            f"{text!r} is no column of weights in lines of text, whose first two have the ends.",
            "Give the number of the column, counted from 1: 3 as a rule.",
        )
    return int(text)


def check_values(weight: str | int | None, title: str) -> None:
    """Raise UsageError if the weights of a matrix are called anything but `VALUES`."""
    if weight is not None and weight != VALUES:
        raise UsageError(
            f"{title} has values and no column {str(weight)!r}.", f'Call them {VALUES}: weight="{VALUES}".'
        )


def unused_columns(columns: Iterable[str]) -> list[str]:
    """Say that columns were read over which may be weights, and how to take one; no sentence without columns.

    Examples
    --------
    >>> unused_columns(["weight"])
    ['"weight" was not used: all edges count the same; weight="weight" takes it as weights.']
    """
    names = list(columns)
    if not names:
        return []
    best = next((name for name in names if name.lower() in USUAL), names[0])
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    shown = ", ".join(f'"{name}"' for name in names[:_MOST_NAMED]) + more
    were, it = ("were", f'"{best}"') if len(names) > 1 else ("was", "it")
    return [f'{shown} {were} not used: all edges count the same; weight="{best}" takes {it} as weights.']


def no_weights(title: str) -> UsageError:
    """Build the error for weights that are asked for if there are none."""
    return UsageError(
        f"{title} have no weights.",
        "Leave the weight out, or give a source with a value beside each link: text, a table or a matrix.",
    )
