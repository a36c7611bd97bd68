"""The formats of files, what a file's name and first bytes say of its format, and how sources are opened."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from oocpr.errors import InputError, UsageError
from oocpr.sources.base import DIRECTIONS, Redirected, SourceOptions
from oocpr.sources.block import no_weights
from oocpr.sources.dialect import (
    are_words,
    is_comment,
    is_header,
    is_quoted,
    raw_rows,
    rows_of,
    separator_named,
    separators_of,
    usual_ends,
)
from oocpr.sources.files import (
    ByteStream,
    LocalFile,
    PeekableStream,
    StandardInput,
    input_file,
    input_files,
    uncompressed_name,
)

if TYPE_CHECKING:
    from oocpr.sources.block import Source
    from oocpr.sources.files import InputFile


@dataclass(frozen=True)
class Format:
    """A format of files, and what its files can have."""

    reader: str  # "module:class" inside `oocpr.sources.formats`, loaded on first use
    own_labels: bool = False  # inside, so that a labels file makes no sense
    own_nodes: bool = False  # names, so that a labels file beside the graph is used only if it is asked for
    many: bool = False  # several files can be read as one graph
    streamed: bool = True  # from front to end, so that standard input can be one
    folders: bool = False  # a folder can be a graph
    columns: bool = False  # with names
    weights: bool = False
    header: bool = False  # the first line may name the columns
    delimiter: bool = False  # which one separates columns can be said


FORMATS = {
    "text": Format("edge_list:TextFile", many=True, weights=True, header=True),
    "csv": Format("csv_json:CsvFiles", many=True, columns=True, weights=True, header=True, delimiter=True),
    "csv_names": Format(
        "csv_json:CsvNames", many=True, columns=True, weights=True, header=True, delimiter=True
    ),
    "jsonl": Format("csv_json:JsonLines", many=True, columns=True, weights=True),
    "matrixmarket": Format("sparse_matrix:MatrixMarketFile", weights=True),
    "npz": Format("sparse_matrix:NpzFile", streamed=False, weights=True),
    "npy": Format("numpy_networkx:NpyFiles", many=True, streamed=False),
    "parquet": Format(
        "arrow:ParquetFiles", many=True, streamed=False, folders=True, columns=True, weights=True
    ),
    "bvgraph": Format("bvgraph:BVGraphFile", streamed=False),
    "gr0": Format("edge_list:Gr0File", own_labels=True),
    "hollins": Format("edge_list:HollinsFile", own_labels=True),
    "names": Format("edge_list:NamesFile", own_nodes=True, many=True, weights=True, header=True),
}


def open_source(spec: Any, **options: Unpack[SourceOptions]) -> Source:
    """Open a graph wherever it is.

    Parameters
    ----------
    spec
        A path, a pattern such as ``part-*.txt.gz``, a URL, ``"-"`` for standard input, or a list of these,
        which are read as one; a square SciPy sparse matrix (an entry (i, j) that is not zero is the edge
        i -> j); a pair of arrays of integers or text, shape (m,) each, from and to, or one of integers, shape
        (2, m) or (m, 2), of NumPy, Dask or anything that is sliced like these; a list of edges (from, to); a
        table of Arrow, pandas, Polars, DuckDB, cuDF or Dask, or anything else with ``__arrow_c_stream__``; a
        graph of NetworkX; or a source already.
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
    known = SourceOptions.__annotations__
    for name in options:
        if name not in known:
            raise UsageError(f"There is no option {name!r}.", f"Options of a source are {', '.join(known)}.")
    paths = [spec] if isinstance(spec, str | os.PathLike) else spec
    named = isinstance(paths, list | tuple) and all(isinstance(path, str | os.PathLike) for path in paths)
    if named and paths:
        source = open_files(paths, options)
    elif options.get("format") is not None:
        raise UsageError(
            f"The format {options['format']!r} is given for something that is no file.",
            "Leave the format out.",
        )
    elif options.get("header") is not None or options.get("delimiter") is not None:
        raise UsageError(
            "A header line or a delimiter is spoken of for something that is no file.", "Leave them out."
        )
    else:
        source = _in_memory(spec, options)
    directions = [name for name in DIRECTIONS if options.get(name)]
    if len(directions) > 1:
        raise UsageError(
            "Edges are to be taken in both directions, and in the other one.",
            "Leave out reverse: both directions are the same in reverse.",
        )
    return Redirected(source, directions[0]) if directions else source


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
    if hasattr(spec, "collect_schema") and not hasattr(spec, "__arrow_c_stream__"):  # a lazy frame
        spec = spec.collect()
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
    from oocpr.sources.formats.numpy_networkx import EdgeArrays, NetworkGraph, are_texts, ends_of

    if hasattr(spec, "is_directed") and hasattr(spec, "edges"):
        return NetworkGraph(spec, **options)
    if weighted and hasattr(spec, "__len__"):
        raise no_weights("Arrays of the ends of edges")
    spec = ends_of(spec)
    pair = isinstance(spec, tuple | list) and len(spec) == 2
    if pair and are_texts(spec):
        from oocpr.sources.formats.arrow import ArrowTable, text_table

        return ArrowTable(text_table(spec), **options)
    if pair or (hasattr(spec, "shape") and hasattr(spec, "dtype")):
        return EdgeArrays(spec, **options)
    raise UsageError(
        f"A {type(spec).__name__} is no graph.",
        "Give a path, a SciPy sparse matrix, a pair (src, dst) of arrays, a table, or a graph of NetworkX.",
    )


def open_files(paths: Sequence[str | os.PathLike[str]], options: SourceOptions) -> Source:
    """Open files of the format that is named, or of that of the first; UsageError for unfit options."""
    format, labels, weight = options.get("format"), options.get("labels"), options.get("weight")  # noqa: A001
    columns = options.get("source_column"), options.get("target_column")
    if format is not None and format not in FORMATS:
        raise UsageError(f"There is no format {format!r}.", f"Give one of: {', '.join(FORMATS)}.")
    files = input_files(paths)
    delimiter = options.get("delimiter")
    if delimiter is not None:
        separator_named(delimiter)
    name = format or _format_of_all(
        files,
        weighted=weight is not None,
        by_name=any(name is not None and not str(name).isdecimal() for name in (*columns, weight)),
        by_number=columns != (None, None) and all(str(name).isdecimal() for name in columns if name),
    )
    if format is None and delimiter is not None and name in ("text", "names"):
        name = "csv"
    chosen = FORMATS[name]
    for file in files:
        if not (file.reopenable or chosen.streamed):
            raise UsageError(
                f"The format {name} cannot be read from standard input.", "Write it to a file and name that."
            )
        if isinstance(file, LocalFile):
            file.check(folder=chosen.folders)
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
    if not chosen.delimiter and delimiter is not None:
        raise UsageError(f"Files of the format {name} have no delimiter.", "Leave the delimiter out.")
    if not chosen.header and options.get("header") is not None:
        raise UsageError(f"Files of the format {name} have no header line.", "Leave the header out.")
    found = None if labels is None else input_file(labels)
    if found is None and len(files) == 1 and not (chosen.own_labels or chosen.own_nodes):
        from oocpr.sources.names import find_labels

        found = find_labels(files[0])
    module, _, reader = chosen.reader.partition(":")
    opened = getattr(importlib.import_module(f"oocpr.sources.formats.{module}"), reader)
    return cast("Source", opened(files, **{**options, "labels": found}))


def _format_of_all(files: Sequence[InputFile], **how: bool) -> str:
    """Name of the format of the first file with something in it; InputError if another has another format.

    Lines of edges may look like another format of lines from file to file, and are not looked at.
    """
    found, first = "", None
    for file in files:
        if not found:
            found, first = guess_format(file, **how), file
        elif isinstance(file, LocalFile) and (name := _known_format(file)[0]) not in ("", found):
            raise InputError(
                f"{file} has the format {name}, and {first} the format {found}.",
                "Give files of one format at a time: import the first, and append the others.",
            )
    return found or "text"


_SHEET = "Save the sheet as CSV and give that."
_TABLE = "Write it as Parquet or CSV, with a row for each edge."
_UNPACK = "Unpack it and name the file of edges inside."
_TEXT = "Give the edges as text, CSV or Parquet."
_NETWORKX = "Read it with NetworkX and give the graph to oocpr.pagerank, or write its edges as CSV."
_LINES = "Write the two ends of an edge on each line, with a tab or a comma between them."

_ABOVE = rb"(#[^\n]*\n|\s)*"
_END = rb"""\s*('[^'\n]*'|"[^"\n]*"|-?\d+)\s*"""
_PAIR = rb"[\[(]" + _END + rb"," + _END
_ZIP = rb"PK\x03\x04.{26}(?!.{0,200}\.npy)"  # archives of arrays are read
_KINDS = (
    (_ZIP + rb".*xl/", "an Excel workbook", _SHEET),
    (_ZIP + rb".*opendocument\.spreadsheet", "an OpenDocument spreadsheet", _SHEET),
    (_ZIP, "a zip archive", _UNPACK),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office file, such as .xls", _SHEET),
    (rb"%PDF-", "a PDF document", _TEXT),
    (rb"SQLite format 3\x00", "an SQLite database", "Export the table of edges as CSV."),
    (rb"(ARROW1|FEA1)\x00", "an Arrow or Feather file", "Write the table as Parquet."),
    (rb"\x80[\x02-\x05]", "a Python pickle, which is not loaded as it may run anything", _TABLE),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", _TABLE),
    (rb"ORC.{0,64}?[\x00-\x06]", "an ORC file", _TABLE),
    (rb"Obj\x01", "an Avro file", _TABLE),
    (rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07", "an archive of 7-Zip or RAR", _UNPACK),
    (rb".{257}ustar", "a tar archive", _UNPACK),
    # Of a size that is not said, or below a terabyte.
    (rb"\x5d\x00\x00.{2}(\xff{8}|.{5}\x00{3})", "an .lzma archive", "Unpack it, or compress it as .xz."),
    (
        rb"(.*\n)?adj_lists:\s",
        "a description of a GraphAr archive",
        "Give its Parquet files, and _graphArSrcIndex and _graphArDstIndex as columns.",
    ),
    (_ABOVE + rb"[\[(]\s*" + _PAIR, "a list of lists or tuples", _LINES),
    (
        _ABOVE + _PAIR + rb"(,[^\n\t]*)?[\])],?\s*([\[(]|\Z)",
        "text with a list or tuple on each line",
        _LINES,
    ),
    (_ABOVE + rb"[^\s,;|]+ (--|-+>|=>) [^\s,;|]+[ ;]*\r?(\n|\Z)", "text with an arrow on each line", _LINES),
    (rb"(?i:\s*<(!doctype\s+html|html))", "an HTML page", "Check the address, or give the edges as text."),
    (rb"(?i:\s*<(\?xml|graphml|gexf))", "an XML document, such as GraphML or GEXF", _NETWORKX),
)


def refuse_unsupported(title: str, first: bytes) -> None:
    """Raise InputError for a file whose `first` bytes, decompressed, show that no format reads it."""
    for pattern, what, remedy in _KINDS:
        if re.match(pattern, first.removeprefix(b"\xef\xbb\xbf"), re.DOTALL):
            raise InputError(f"{title} is {what}.", remedy)


_HEAD_BYTES = 1 << 16
_COMPRESSED_HEAD_BYTES = 1 << 20  # gives some lines of any file: the blocks of .bz2 have up to 900 kB
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
_BINARY = ("npz", "parquet", "npy", "bvgraph")
_ID = re.compile(r"\s*-?\d+\s*")
_ENDS = re.compile(r"\s*-?\d+\s+-?\d+(\s|$)")
_MAX_WORDS = 3
"""Words of a line, of which all have as many, up to which they are names and no sentence."""


def guess_format(
    path: str | os.PathLike[str] | InputFile,
    *,
    weighted: bool = False,
    by_name: bool = False,
    by_number: bool = False,
) -> str:
    """Name of the format of a file, from its suffix and its first lines, empty if these have no edge.

    Raises InputError if no format reads it.

    Text that looks like nothing else counts as SNAP text, whose reader then names the line it cannot read. If
    `weighted`, lines may have more than two columns; if `by_name`, a column is called by its name, so that
    there is a header; if `by_number`, columns of ends are called by their numbers.
    """
    file = input_file(path)
    known, first = _known_format(file)
    if known:
        return known
    text, suffix = first.decode("utf-8-sig", "replace"), Path(uncompressed_name(file)).suffix.lower()
    return _guess_text(text, suffix, weighted=weighted, by_name=by_name, by_number=by_number)


def _known_format(file: InputFile) -> tuple[str, bytes]:
    """Name of the format that a file shows by its suffix or its first bytes, and these; empty for lines."""
    if isinstance(file, LocalFile):
        if os.path.isdir(file.path):  # noqa: PTH112 - Path.is_dir has errors for names that are too long
            return "parquet", b""
        file.check(folder=False)
    first = _head(file)
    known = _SUFFIXES.get(Path(uncompressed_name(file)).suffix.lower(), "")
    if known not in _BINARY:
        refuse_unsupported(str(file), first)
    shown = next((name for magic, name in _MAGIC.items() if first.startswith(magic)), known)
    if not shown and first[:14].lower() == b"%%matrixmarket":
        shown = "matrixmarket"
    objects = first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    return shown or "jsonl" * objects, first


def _guess_text(text: str, suffix: str, *, weighted: bool, by_name: bool, by_number: bool) -> str:
    # A line beginning with % may be a name, and so may one beginning with #, if all do.
    said = [line for line in text.split("\n") if line.strip() and not is_comment(line)]
    lines = [line for line in said if line[0] != "#"] or said
    lines = [line for line in lines if line[:2] != "% "] or lines
    if not lines:
        return ""
    if re.match(r"n\s+0\s+\S", lines[0]):
        return "gr0"
    if (
        re.fullmatch(r"\d+\s+\d+\s*", lines[0])
        and len(lines) > 1
        and re.match(r"1\s+(?!-\d+\s*$)[^\s\d]", lines[1])
    ):
        return "hollins"
    if _ENDS.match(lines[0]):
        return "csv" if by_number else "text"
    text = "\n".join(lines[: -1 if len(lines) > 2 else None]) + "\n"  # the last may be cut
    separators = separators_of(text)
    if by_name or suffix == ".csv" or separators not in ([], ["\t"], [" "]):
        return "csv"
    if not separators:
        return "text"
    return _guess_lines(text, separators[0], weighted=weighted)


def _guess_lines(text: str, separator: str, *, weighted: bool) -> str:
    """Name the format of lines with tabs or blanks between columns: CSV unless a faster reader takes it."""
    rows = raw_rows(text, separator) if separator == "\t" else rows_of(text, separator)
    ends = usual_ends(rows[0])
    in_order = ends is None or list(ends) == rows[0][:2]
    columns = len(rows[0]) > 2 if weighted else len(rows[0]) == 2
    header = len(rows) > 1 and are_words(rows[0][:2])
    if header and all(map(_ID.fullmatch, rows[1][:2])):
        return "text" if in_order and columns else "csv"
    ids = sum(all(map(_ID.fullmatch, row[:2])) for row in rows[1:])
    if any(map(_ID.fullmatch, rows[0][:2])) or 2 * ids > len(rows[1:]):
        return "text"  # which names the line that is no edge between ids
    if separator == " ":
        return "csv" if len(rows[0]) <= _MAX_WORDS or is_header(rows) else "text"
    plain = in_order and columns and not is_quoted(text, separator) and is_header(rows) is not None
    return "names" if plain else "csv"


def _head(file: InputFile) -> bytes:
    """First bytes of a file, decompressed, which are still to be read afterwards."""
    view = memoryview(bytearray(_HEAD_BYTES))
    if not isinstance(file, StandardInput):
        with ByteStream(file) as stream:
            return bytes(view[: stream.readinto(view)])
    with ByteStream(_Copy(file.head(_COMPRESSED_HEAD_BYTES))) as stream:
        read = 0
        with contextlib.suppress(InputError):  # the copy of an archive ends in its middle
            while read < len(view) and (more := stream.readinto(view[read : read + 1024])):
                read += more
        return bytes(view[:read])


class _Copy(StandardInput):
    """The first bytes of standard input as a file of their own."""

    def __init__(self, data: bytes) -> None:
        self._stream = PeekableStream(io.BytesIO(data))
