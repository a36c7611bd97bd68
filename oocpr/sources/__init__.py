"""Anything that holds edges, as an iterator of bounded blocks: one foreign format, one small file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from oocpr.errors import UsageError
from oocpr.sources.formats import FORMATS, open_file

if TYPE_CHECKING:
    from oocpr.sources.block import Source

__all__ = ["FORMATS", "open_source"]


def open_source(
    spec: Any,
    *,
    format: str | None = None,  # noqa: A002
    labels: str | os.PathLike[str] | None = None,
    undirected: bool = False,
) -> Source:
    """Open a graph wherever it is.

    Parameters
    ----------
    spec
        A path; a square SciPy sparse matrix (an entry (i, j) that is not zero is the edge i -> j); a pair of
        integer arrays, shape (m,) each, from and to; or a source already.
    format
        A key of `FORMATS`, for paths; None guesses from the suffix and the first lines.
    labels
        A file whose n-th line labels node n - 1. None takes ``NAME.labels.txt`` or ``.tsv``, packed or not,
        where it lies beside the graph ``NAME.txt`` (or ``.mtx``, ``.npz``).
    undirected
        Whether every edge counts in both directions.

    Raises
    ------
    UsageError
        An unknown format, something that is no graph, or labels where there can be none.
    InputError
        A file that cannot be opened; what is wrong inside it comes up while its blocks are read.

    Examples
    --------
    >>> import numpy as np
    >>> source = open_source((np.array([0, 1]), np.array([1, 2])), undirected=True)
    >>> [(block.src.tolist(), block.dst.tolist()) for block in source.blocks(100)]
    [([0, 1], [1, 2]), ([1, 2], [0, 1])]
    """
    if isinstance(spec, str | os.PathLike):
        source = open_file(Path(spec), format, None if labels is None else Path(labels))
    elif format is not None:
        raise UsageError(
            f"The format {format!r} is given for something that is no file.", "Leave the format out."
        )
    else:
        source = _in_memory(spec, labels)
    if undirected:
        from oocpr.sources.undirected import Undirected

        return Undirected(source)
    return source


def _in_memory(spec: Any, labels: str | os.PathLike[str] | None) -> Source:
    if hasattr(spec, "blocks"):
        if labels is not None:
            raise UsageError(
                "A labels file is given for a source that is open.", "Give it where the source is made."
            )
        return cast("Source", spec)
    if hasattr(spec, "tocoo") and hasattr(spec, "shape"):
        from oocpr.sources.memory import SparseMatrix

        return SparseMatrix(spec, labels)
    if isinstance(spec, tuple | list) and len(spec) == 2:
        from oocpr.sources.memory import EdgeArrays

        return EdgeArrays(spec[0], spec[1], labels)
    raise UsageError(
        f"A {type(spec).__name__} is no graph.",
        "Give a path, a SciPy sparse matrix, or a pair (src, dst) of arrays.",
    )
