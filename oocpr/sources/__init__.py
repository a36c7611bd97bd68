"""Anything that holds edges, as an iterator of bounded blocks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack, cast

from oocpr.errors import UsageError
from oocpr.sources.base import SourceOptions, Undirected, check_names
from oocpr.sources.block import no_weights
from oocpr.sources.registry import FORMATS, open_files

if TYPE_CHECKING:
    from oocpr.sources.block import Source

__all__ = ["FORMATS", "SourceOptions", "open_source"]


def open_source(spec: Any, **options: Unpack[SourceOptions]) -> Source:
    """Open a graph wherever it is.

    Parameters
    ----------
    spec
        A path, a pattern such as ``part-*.txt.gz``, a URL, ``"-"`` for standard input, or a list of these,
        which are read as one; a square SciPy sparse matrix (an entry (i, j) that is not zero is the edge
        i -> j); a pair of integer arrays, shape (m,) each, from and to, or one array, shape (2, m) or (m, 2),
        of NumPy, Dask or anything that is sliced like these; a table of Arrow, pandas, Polars, cuDF or Dask;
        a graph of NetworkX; or a source already.
    **options
        See `SourceOptions`. Without ``labels``, ``NAME.labels.txt`` or ``.tsv``, compressed or not, is taken
        where it lies beside the graph ``NAME.txt`` (or ``.mtx``, ``.npz``, ``.parquet``, ...); without
        columns, the usual names, or the first and the second of two.

    Raises
    ------
    UsageError
        An unknown format, something that is no graph, or labels, columns or weights where there can be none.
    InputError
        A file that cannot be opened; what is wrong inside it comes up while its blocks are read.

    Examples
    --------
    >>> import numpy as np
    >>> source = open_source((np.array([0, 1]), np.array([1, 2])), undirected=True)
    >>> [(block.src.tolist(), block.dst.tolist()) for block in source.blocks(100)]
    [([0, 1], [1, 2]), ([1, 2], [0, 1])]
    """
    check_names(options, SourceOptions)
    paths = [spec] if isinstance(spec, str | os.PathLike) else spec
    named = isinstance(paths, list | tuple) and all(isinstance(path, str | os.PathLike) for path in paths)
    if named and paths:
        source = open_files(paths, options)
    elif options.get("format") is not None:
        raise UsageError(
            f"The format {options['format']!r} is given for something that is no file.",
            "Leave the format out.",
        )
    elif options.get("header") is not None:
        raise UsageError("A header line is spoken of for something that is no file.", "Leave the header out.")
    else:
        source = _in_memory(spec, options)
    return Undirected(source) if options.get("undirected") else source


def _in_memory(spec: Any, options: SourceOptions) -> Source:
    weighted = options.get("weight") is not None
    if hasattr(spec, "blocks") and hasattr(spec, "position"):
        if options.get("labels") is not None:
            raise UsageError(
                "A labels file is given for a source that is open.", "Give it where the source is made."
            )
        if weighted:
            raise UsageError(
                "Weights are asked for of a source that is open.", "Ask for them where the source is made."
            )
        return cast("Source", spec)
    if hasattr(spec, "__arrow_c_stream__") or hasattr(spec, "to_arrow"):
        from oocpr.sources.formats.arrow import ArrowTable

        return ArrowTable(spec, **options)
    if hasattr(spec, "npartitions") and hasattr(spec, "columns"):
        from oocpr.sources.formats.arrow import DaskTable

        return DaskTable(spec, **options)
    if (options.get("source_column"), options.get("target_column")) != (None, None):
        raise UsageError(f"A {type(spec).__name__} has no names of columns.", "Leave the columns out.")
    if hasattr(spec, "tocoo") and hasattr(spec, "shape"):
        from oocpr.sources.formats.sparse_matrix import SparseMatrix

        return SparseMatrix(spec, **options)
    from oocpr.sources.formats.numpy_networkx import EdgeArrays, NetworkGraph

    if hasattr(spec, "is_directed") and hasattr(spec, "edges"):
        return NetworkGraph(spec, **options)
    if weighted and hasattr(spec, "__len__"):
        raise no_weights("Arrays of the ends of edges")
    pair = isinstance(spec, tuple | list) and len(spec) == 2
    if pair or (hasattr(spec, "shape") and hasattr(spec, "dtype")):
        return EdgeArrays(spec, **options)
    raise UsageError(
        f"A {type(spec).__name__} is no graph.",
        "Give a path, a SciPy sparse matrix, a pair (src, dst) of arrays, a table, or a graph of NetworkX.",
    )
