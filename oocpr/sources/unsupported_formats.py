"""Files that no format reads, known by their first bytes, and the way out for each."""

from __future__ import annotations

import re

from oocpr.errors import InputError

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
    r"""Refuse a file that no format reads.

    Parameters
    ----------
    title
        What messages call it.
    first
        Its first bytes, uncompressed; some tens of thousands.

    Raises
    ------
    InputError
        Says what the file is, and what to do.

    Examples
    --------
    >>> refuse_unsupported("web.txt", b"1 2\n")
    """
    for pattern, what, remedy in _KINDS:
        if re.match(pattern, first.removeprefix(b"\xef\xbb\xbf"), re.DOTALL):
            raise InputError(f"{title} is {what}.", remedy)
