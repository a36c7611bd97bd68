"""Which formats there are, and how a file shows its own."""

from __future__ import annotations

import importlib
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from oocpr.errors import InputError, UsageError
from oocpr.sources.compression import ByteStream, uncompressed_name
from oocpr.sources.detection import (
    are_words,
    is_comment,
    is_header,
    names_ends,
    refuse_unsupported,
    separator_of,
)
from oocpr.sources.locations import LocalFile, StandardInput, input_file, input_files
from oocpr.sources.weights import no_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.sources.block import Source
    from oocpr.sources.locations import InputFile
    from oocpr.sources.read_options import SourceOptions

_HEAD_BYTES = 1 << 16
_COMPRESSED_HEAD_BYTES = 1 << 20
"""Enough of any compressed file to give some lines: the blocks of .bz2 have up to 900 kB."""


@dataclass(frozen=True)
class Format:
    """One format of files.

    Parameters
    ----------
    summary
        One line for the help text.
    reader
        ``module:class`` inside `oocpr.sources`; loaded on first use.
    own_labels, labels_beside
        Whether the files hold their labels themselves, so that a labels file makes no sense; whether a labels
        file that lies beside the graph is used without being asked for.
    many, streamed, folders
        Whether several files can be read as one graph; whether files are read from front to end, so that
        standard input can be one; whether a folder can be a graph.
    columns, weights, header
        Whether columns have names; whether edges can have weights; whether the first line may name the
        columns.
    """

    summary: str
    reader: str
    own_labels: bool = False
    labels_beside: bool = False
    many: bool = False
    streamed: bool = True
    columns: bool = False
    folders: bool = False
    weights: bool = False
    header: bool = False

    def open(self, files: Sequence[InputFile], options: SourceOptions) -> Source:
        """Source of files of this format."""
        module, name = self.reader.split(":")
        reader = getattr(importlib.import_module(f"oocpr.sources.{module}"), name)
        return cast("Source", reader(files, **options))


FORMATS = {
    "text": Format(
        "SNAP text: a line `from to` per edge, # and % comments",
        "formats.edge_list:TextFile",
        labels_beside=True,
        many=True,
        weights=True,
        header=True,
    ),
    "csv": Format(
        "CSV: columns separated by commas, semicolons, tabs or bars, quoted or not, with a header or without",
        "formats.csv_json:CsvFiles",
        labels_beside=True,
        many=True,
        columns=True,
        weights=True,
        header=True,
    ),
    "csv_names": Format(
        "CSV whose nodes are names even if they look like numbers",
        "formats.csv_json:CsvNames",
        labels_beside=True,
        many=True,
        columns=True,
        weights=True,
        header=True,
    ),
    "jsonl": Format(
        "JSON lines (.jsonl, .ndjson): an object an edge",
        "formats.csv_json:JsonLines",
        labels_beside=True,
        many=True,
        columns=True,
        weights=True,
    ),
    "matrixmarket": Format(
        "Matrix Market coordinates (.mtx), ids from 1",
        "formats.sparse_matrix:MatrixMarketFile",
        labels_beside=True,
        weights=True,
    ),
    "npz": Format(
        "SciPy sparse matrix of save_npz (.npz)",
        "formats.sparse_matrix:NpzFile",
        labels_beside=True,
        streamed=False,
        weights=True,
    ),
    "npy": Format(
        "NumPy arrays (.npy): two of one dimension, from and to, or one or more of shape (2, m) or (m, 2)",
        "formats.arrays:NpyFiles",
        labels_beside=True,
        many=True,
        streamed=False,
    ),
    "parquet": Format(
        "Parquet files (.parquet), or a folder of them, with a column of ids or names for each end",
        "formats.parquet:ParquetFiles",
        labels_beside=True,
        many=True,
        streamed=False,
        columns=True,
        folders=True,
        weights=True,
    ),
    "bvgraph": Format(
        "WebGraph's BVGraph: .graph with .properties beside it",
        "formats.bvgraph:BVGraphFile",
        labels_beside=True,
        streamed=False,
    ),
    "gr0": Format("lines `n id label`, then lines `e from to`", "formats.edge_list:Gr0File", own_labels=True),
    "hollins": Format(
        "`nodes edges`, then `id label`, then `from to`", "formats.edge_list:HollinsFile", own_labels=True
    ),
    "names": Format(
        "two names a line, separated by a tab (.tsv)",
        "formats.edge_list:NamesFile",
        many=True,
        weights=True,
        header=True,
    ),
}
"""Formats by name; each file is guessed to be one of them where the caller names none."""


_MAGIC = {b"PK\x03\x04": "npz", b"PAR1": "parquet", b"\x93NUMPY": "npy"}
_SUFFIXES = {
    ".npz": "npz",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npy": "npy",
    ".graph": "bvgraph",
    ".properties": "bvgraph",
    ".mtx": "matrixmarket",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_NUMBER = re.compile(r"\s*-?\d+\s*")
_ENDS = re.compile(r"\s*-?\d+\s+-?\d+(\s|$)")


def guess_format(
    path: str | os.PathLike[str] | InputFile, *, weighted: bool = False, by_name: bool = False
) -> str:
    r"""Name of the format of a file, from its suffix and its first lines.

    Text that looks like nothing else counts as SNAP text, whose reader then names the line it cannot read. If
    `weighted`, lines may have more than two columns; if `by_name`, a column is called by its name, so that
    there is a header. Raises InputError for a file that cannot be opened or decompressed, or that no format
    reads.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "pages")
    ...     _ = path.write_text("n 0 a.org\nn 1 b.org\ne 1 0\n")
    ...     guess_format(path)
    'gr0'
    """
    file = input_file(path)
    first = _head(file)
    suffix = Path(uncompressed_name(file)).suffix.lower()
    known = _SUFFIXES.get(suffix)
    if known is None or FORMATS[known].streamed:
        refuse_unsupported(str(file), first)
    for magic, name in _MAGIC.items():
        if first.startswith(magic):
            return name
    if known is not None:
        return known
    if first[:14].lower() == b"%%matrixmarket":
        return "matrixmarket"
    return _guess_text(first.decode("utf-8-sig", "replace"), suffix, weighted=weighted, by_name=by_name)


def _guess_text(text: str, suffix: str, *, weighted: bool, by_name: bool) -> str:
    """Name of the format of a text, from its first lines."""
    # A line beginning with % may be a name, and so may one beginning with #, if all do.
    said = [line for line in text.splitlines() if line.strip() and not is_comment(line)]
    lines = [line for line in said if line[0] != "#"] or said
    if not lines:
        return "text"
    if re.match(r"n\s+0\s+\S", lines[0]):
        return "gr0"
    if (
        re.fullmatch(r"\d+\s+\d+\s*", lines[0])
        and len(lines) > 1
        and re.match(r"1\s+(?!-\d+\s*$)[^\s\d]", lines[1])
    ):
        return "hollins"
    if lines[0].startswith("{"):
        return "jsonl"
    if suffix in (".tsv", ".tab"):
        return _guess_tabs(lines, weighted=weighted, by_name=by_name)
    if not _ENDS.match(lines[0]):
        separator = separator_of("\n".join(lines[: -1 if len(lines) > 1 else None]) + "\n")
        if suffix == ".csv" or by_name or separator not in (None, "\t"):
            return "csv"
    return "text"


def _guess_tabs(lines: list[str], *, weighted: bool, by_name: bool) -> str:
    """Name of the format of a text whose columns are separated by tabs."""
    rows = [line.split("\t") for line in lines[:20]]
    if by_name or (len(rows[0]) > 2 and not weighted and is_header(rows)):
        return "csv"
    body = rows[1] if len(rows) > 1 and names_ends(rows[0][:2]) else rows[0]
    if len(rows) > 1 and are_words(rows[0][:2]) and all(map(_NUMBER.fullmatch, rows[1][:2])):
        return "text"
    columns = len(body) > 2 if weighted else len(body) == 2
    return "names" if columns and not any(map(_NUMBER.fullmatch, body[:2])) else "text"


def _head(file: InputFile) -> bytes:
    """First bytes of a file, decompressed, which are still to be read afterwards."""
    view = memoryview(bytearray(_HEAD_BYTES))
    if not isinstance(file, StandardInput):
        with ByteStream(file) as stream:
            return bytes(view[: stream.readinto(view)])
    with ByteStream(_Copy(file.head(_COMPRESSED_HEAD_BYTES))) as stream:
        read = 0
        try:
            while read < len(view) and (more := stream.readinto(view[read : read + 1024])):
                read += more
        except InputError:
            pass  # the copy of an archive ends in its middle
        return bytes(view[:read])


class _Copy:
    """Bytes in memory as a file."""

    name = ""
    reopenable = True

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._data)

    def sibling(self, name: str) -> None: ...


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
    labels_place = None if labels is None else input_file(labels)
    if chosen.labels_beside and labels is None and len(files) == 1:
        from oocpr.sources.names import find_labels

        labels_place = find_labels(files[0])
    return chosen.open(files, cast("SourceOptions", {**options, "labels": labels_place}))


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
