"""Which formats there are, and how files of them are opened."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from oocpr.errors import UsageError
from oocpr.sources.detection import guess_format
from oocpr.sources.locations import LocalFile, input_file, input_files
from oocpr.sources.weights import no_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Source
    from oocpr.sources.locations import InputFile


@dataclass(frozen=True)
class Format:
    """One format of files.

    Parameters
    ----------
    reader
        ``module:class`` inside `oocpr.sources.formats`; loaded on first use.
    own_labels, own_nodes
        Whether the files hold their labels themselves, so that a labels file makes no sense; or nodes have
        names, so that a labels file beside the graph is used only if it is asked for.
    many, streamed, folders
        Whether several files can be read as one graph; whether files are read from front to end, so that
        standard input can be one; whether a folder can be a graph.
    columns, weights, header
        Whether columns have names; whether edges can have weights; whether the first line may name the
        columns.
    """

    reader: str
    own_labels: bool = False
    own_nodes: bool = False
    many: bool = False
    streamed: bool = True
    folders: bool = False
    columns: bool = False
    weights: bool = False
    header: bool = False


FORMATS = {
    "text": Format("edge_list:TextFile", many=True, weights=True, header=True),
    "csv": Format("csv_json:CsvFiles", many=True, columns=True, weights=True, header=True),
    "csv_names": Format("csv_json:CsvNames", many=True, columns=True, weights=True, header=True),
    "jsonl": Format("csv_json:JsonLines", many=True, columns=True, weights=True),
    "matrixmarket": Format("sparse_matrix:MatrixMarketFile", weights=True),
    "npz": Format("sparse_matrix:NpzFile", streamed=False, weights=True),
    "npy": Format("arrays:NpyFiles", many=True, streamed=False),
    "parquet": Format(
        "parquet:ParquetFiles", many=True, streamed=False, folders=True, columns=True, weights=True
    ),
    "bvgraph": Format("bvgraph:BVGraphFile", streamed=False),
    "gr0": Format("edge_list:Gr0File", own_labels=True),
    "hollins": Format("edge_list:HollinsFile", own_labels=True),
    "names": Format("edge_list:NamesFile", own_nodes=True, many=True, weights=True, header=True),
}
"""Formats by name; each file is guessed to be one of them if the caller names none."""


def open_files(paths: Sequence[str | os.PathLike[str]], options: SourceOptions) -> Source:
    """Source of one or more files, of the named format or of the one that the first shows.

    Raises UsageError for no such format, or something that the format does not know: a labels file, columns,
    several files, weights, a header; and InputError for a file that cannot be opened or decompressed.
    """
    format, labels, weight = options.get("format"), options.get("labels"), options.get("weight")  # noqa: A001
    columns = options.get("source_column"), options.get("target_column")
    if format is not None and format not in FORMATS:
        raise UsageError(f"There is no format {format!r}.", f"Give one of: {', '.join(FORMATS)}.")
    files = input_files(paths)
    by_name = any(name is not None and not str(name).isdecimal() for name in (*columns, weight))
    name = format or _guess(files[0], weighted=weight is not None, by_name=by_name)
    chosen = FORMATS[name]
    for file in files:
        _check(file, name)
    if len(files) > 1 and not chosen.many:
        raise UsageError(
            f"A graph of the format {name} is one file, {len(files)} are given.", "Name one of them."
        )
    if chosen.own_labels and labels is not None:
        raise UsageError(f"Files of the format {name} hold their own labels.", "Leave the labels file out.")
    if not chosen.columns and columns != (None, None):
        raise UsageError(f"Files of the format {name} have no names of columns.", "Leave the columns out.")
    if not chosen.weights and weight is not None:
        raise no_weights(f"Files of the format {name}")
    if not chosen.header and options.get("header") is not None:
        raise UsageError(f"Files of the format {name} have no header line.", "Leave the header out.")
    found = None if labels is None else input_file(labels)
    if found is None and len(files) == 1 and not (chosen.own_labels or chosen.own_nodes):
        from oocpr.sources.names import find_labels

        found = find_labels(files[0])
    module, _, reader = chosen.reader.partition(":")
    opened = getattr(importlib.import_module(f"oocpr.sources.formats.{module}"), reader)
    return cast("Source", opened(files, **{**options, "labels": found}))


def _guess(file: InputFile, *, weighted: bool, by_name: bool) -> str:
    if isinstance(file, LocalFile):
        if os.path.isdir(file.path):  # noqa: PTH112 - Path.is_dir has errors for names that are too long
            return "parquet"
        _check(file, "text")
    return guess_format(file, weighted=weighted, by_name=by_name)


def _check(file: InputFile, name: str) -> None:
    """Refuse what cannot be a file of a format."""
    chosen = FORMATS[name]
    if not file.reopenable and not chosen.streamed:
        raise UsageError(
            f"The format {name} cannot be read from standard input.", "Write it to a file and name that."
        )
    if isinstance(file, LocalFile):
        file.check(folder=chosen.folders)
