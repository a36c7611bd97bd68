"""What the first bytes of a file say: that no format reads it, or how its lines of text are laid out."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from itertools import islice
from typing import TYPE_CHECKING

from oocpr.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

BLANKS = " \t\r"
"""What does not count around a name."""

SEPARATORS = ("\t", ";", "|", ",")
"""What may separate the columns of CSV, the least likely in names first."""

_SHOWN_ROWS = 20
_SUFFIX = r"[ _.-]?((node|vertex|page|user|article)s?)?[ _.-]?(id|name|title|url|label)?"
_FROM = re.compile(f"(from|src|source){_SUFFIX}")
_TO = re.compile(f"(to|dst|dest|target|destination){_SUFFIX}")
_WORD = re.compile(r"[#\"']?\s*[^\W\d]")
_NUMBER = re.compile(r"[+-]?(\d[\d.,]*|\.\d+)([eE][+-]?\d+)?")


def is_comment(line: str) -> bool:
    """Tell whether a line of names is a comment: ``#`` alone, or followed by a space.

    Examples
    --------
    >>> is_comment("# who links to whom"), is_comment("#"), is_comment("#cats")
    (True, True, False)
    """
    return line.startswith("# ") or line.rstrip(" \r\n") == "#"


def names_ends(fields: Sequence[str]) -> bool:
    """Tell whether the words of a line are what the ends of edges are usually called.

    Examples
    --------
    >>> names_ends(["Source", "Target"]), names_ends(["#from_id", "to_id", "kg"]), names_ends(["a", "to"])
    (True, True, False)
    """
    words = [field.strip(BLANKS + "#\"'").casefold() for field in fields]
    return any(map(_FROM.fullmatch, words)) and any(map(_TO.fullmatch, words))


def are_words(fields: Sequence[str]) -> bool:
    """Tell whether all fields begin with letters, as no whole number does."""
    return all(map(_WORD.match, fields))


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first of some rows names the columns.

    It does if two of its words are usual names of ends, or if none of them is a number and some column of all
    other rows is.

    Examples
    --------
    >>> is_header([["citing", "cited"], ["7", "9"]]), is_header([["ann", "bob"], ["bob", "eve"]])
    (True, False)
    """
    if not rows or _number_in(rows[0]):
        return False
    columns = zip(*rows[1:], strict=False)
    return names_ends(rows[0]) or any(all(_number_in([field]) for field in column) for column in columns)


def _number_in(fields: Sequence[str]) -> bool:
    return any(_NUMBER.fullmatch(field.strip()) for field in fields)


def rows_of(text: str, separator: str, most: int = _SHOWN_ROWS) -> list[list[str]]:
    """Split the first lines of a text into columns, without blank lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # of longer fields than Python takes
        rows.extend(islice((row for row in reader if row), most))
    return rows


def separator_of(text: str) -> str | None:
    r"""Find what separates the columns of a text: what splits all of its first lines into as many columns.

    If none of `SEPARATORS` splits all lines alike, it is the one that gives the first line most columns; None
    if there is one column only.

    Examples
    --------
    >>> separator_of("a;b;1,5\nb;c;2,5\n"), separator_of("1,2\n3,4\n"), separator_of("1 2\n")
    (';', ',', None)
    """
    widths: dict[str, int] = {}
    for separator in SEPARATORS:
        rows = rows_of(text, separator)
        if rows and len(rows[0]) > 1:
            if all(len(row) == len(rows[0]) for row in rows):
                return separator
            widths[separator] = len(rows[0])
    return max(widths, key=lambda separator: widths[separator], default=None)


_SHEET = "Save the sheet as CSV and give that."
_TABLE = "Write it as Parquet or CSV, with a row for each edge."
_UNPACK = "Unpack it and name the file of edges inside."
_TEXT = "Give the edges as text, CSV or Parquet."
_NETWORKX = "Read it with NetworkX and give the graph to oocpr.pagerank, or write its edges as CSV."

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
    (
        rb"(.*\n)?adj_lists:\s",
        "a description of a GraphAr archive",
        "Give its Parquet files, and _graphArSrcIndex and _graphArDstIndex as columns.",
    ),
    (rb"(?i:\s*<(!doctype\s+html|html))", "an HTML page", "Check the address, or give the edges as text."),
    (rb"(?i:\s*<(\?xml|graphml|gexf))", "an XML document, such as GraphML or GEXF", _NETWORKX),
)


def refuse_unsupported(title: str, first: bytes) -> None:
    """Raise InputError for a file whose `first` bytes, decompressed, show that no format reads it."""
    for pattern, what, remedy in _KINDS:
        if re.match(pattern, first.removeprefix(b"\xef\xbb\xbf"), re.DOTALL):
            raise InputError(f"{title} is {what}.", remedy)
