"""How a source is to be read: the keyword options that every call which takes a source shares."""

from __future__ import annotations

import os  # noqa: TC003  (the types below are read at run time)
from typing import TYPE_CHECKING, Any, TypedDict

from oocpr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


class SourceOptions(TypedDict, total=False):
    """How a source is to be read.

    Parameters
    ----------
    format
        A key of `oocpr.sources.FORMATS`, for files; None to find it by the file's name and first bytes.
    labels
        A file with the name of node i in line i.
    undirected
        Whether every edge counts in both directions.
    source_column, target_column
        Columns that edges run from and to, if columns have names; None for the usual names.
    weight
        Where the weights of edges are: the name of a column (Parquet, CSV, tables) or of an attribute of
        edges (NetworkX), the number of a column counted from 1 (text), or ``"values"`` (matrices); None for
        none.
    header
        Whether the first line of a text, names or CSV file names its columns; None to tell by the lines.
    """

    format: str | None
    labels: str | os.PathLike[str] | None
    undirected: bool
    source_column: str | None
    target_column: str | None
    weight: str | int | None
    header: bool | None


def check_names(options: Mapping[str, Any], kind: type) -> None:
    """Raise UsageError for keyword options that are no members of `kind`, a typed dictionary."""
    known = kind.__annotations__
    for name in options:
        if name not in known:
            raise UsageError(f"There is no option {name!r}.", f"Options of a source are {', '.join(known)}.")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that ask for something.

    Examples
    --------
    >>> given({"weight": 3, "labels": None, "undirected": False, "header": False})
    {'weight': 3, 'header': False}
    """
    return {
        name: value for name, value in options.items() if value is not None and (name, value) != _DIRECTED
    }


_DIRECTED = ("undirected", False)
