"""Which formats there are, and how a file shows its own."""

from __future__ import annotations

import importlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from oocpr.errors import InputError, UsageError
from oocpr.sources.compressed import ByteStream, unpacked_name
from oocpr.sources.places import LocalFile, StandardInput, place_of, places_of
from oocpr.sources.weights import no_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from oocpr.sources.block import Source
    from oocpr.sources.places import Place

_HEAD_BYTES = 1 << 16
_PACKED_HEAD_BYTES = 1 << 20
"""Enough of any packing to unpack some lines: the blocks of .bz2 have up to 900 kB."""


@dataclass(frozen=True)
class Format:
    """One format of files.

    Parameters
    ----------
    summary
        One line for the help text.
    reader
        ``module:class`` inside `oocpr.sources`; loaded on first use.
    own_labels
        Whether the files hold their labels themselves, so that a labels file makes no sense.
    labels_beside
        Whether a labels file that lies beside the graph is used without being asked for.
    many
        Whether several files can be read as one graph.
    streamed
        Whether files are read from front to end, so that standard input can be one.
    columns
        Whether the files have columns with names.
    folders
        Whether a folder can be a graph.
    weights
        Whether links can have weights.
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

    def open(
        self,
        places: Sequence[Place],
        labels: Place | None,
        columns: tuple[str | None, str | None],
        weight: str | int | None,
    ) -> Source:
        """Source of files of this format."""
        module, name = self.reader.split(":")
        reader = getattr(importlib.import_module(f"oocpr.sources.{module}"), name)
        if self.own_labels:
            return cast("Source", reader(places))
        weights = {"weight": weight} if self.weights else {}
        return cast("Source", reader(places, labels, *(columns if self.columns else ()), **weights))


FORMATS = {
    "text": Format(
        "SNAP text: a line `from to` an edge, # and % comments",
        "text:TextFile",
        labels_beside=True,
        many=True,
        weights=True,
    ),
    "matrixmarket": Format(
        "Matrix Market coordinates (.mtx), ids from 1",
        "matrixmarket:MatrixMarketFile",
        labels_beside=True,
        weights=True,
    ),
    "npz": Format(
        "SciPy sparse matrix of save_npz (.npz)",
        "npz:NpzFile",
        labels_beside=True,
        streamed=False,
        weights=True,
    ),
    "npy": Format(
        "NumPy arrays (.npy): two of one dimension, from and to, or one or more of shape (2, m) or (m, 2)",
        "npy:NpyFiles",
        labels_beside=True,
        many=True,
        streamed=False,
    ),
    "parquet": Format(
        "Parquet files (.parquet), or a folder of them, with a column of ids or names for each end",
        "parquet:ParquetFiles",
        labels_beside=True,
        many=True,
        streamed=False,
        columns=True,
        folders=True,
        weights=True,
    ),
    "bvgraph": Format(
        "WebGraph's BVGraph: .graph with .properties beside it",
        "bvgraph:BVGraphFile",
        labels_beside=True,
        streamed=False,
    ),
    "graphar": Format(
        "GraphAr's description of links (.edge.yml), which are in Parquet files",
        "graphar:GraphAr",
        streamed=False,
    ),
    "gr0": Format("lines `n id label`, then lines `e from to`", "gr0:Gr0File", own_labels=True),
    "hollins": Format(
        "`nodes edges`, then `id label`, then `from to`", "hollins:HollinsFile", own_labels=True
    ),
    "names": Format("two names a line, apart by a tab (.tsv)", "names:NamesFile", many=True, weights=True),
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
    ".yml": "graphar",
    ".yaml": "graphar",
}


def guess_format(path: str | os.PathLike[str] | Place, *, weighted: bool = False) -> str:
    r"""Name of the format of a file, from its suffix and its first lines.

    Text that looks like nothing else counts as SNAP text, whose reader then names the line it cannot read.

    Parameters
    ----------
    path
        The file.
    weighted
        Whether there are weights, so that lines may have more than two columns.

    Raises
    ------
    InputError
        A file that cannot be opened or unpacked.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "pages")
    ...     _ = path.write_text("n 0 a.org\nn 1 b.org\ne 1 0\n")
    ...     guess_format(path)
    'gr0'
    """
    place = place_of(path)
    first = _head(place)
    suffix = Path(unpacked_name(place)).suffix.lower()
    for magic, name in _MAGIC.items():
        if first.startswith(magic):
            return name
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if first[:14].lower() == b"%%matrixmarket":
        return "matrixmarket"
    # Lines beginning with % are left in: such a line may be a percent-encoded name.
    lines = [line for line in first.decode(errors="replace").splitlines() if line.strip() and line[0] != "#"]
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
    names = lines[0].split("\t")
    columns = len(names) > 2 if weighted else len(names) == 2
    if suffix == ".tsv" and columns and not any(re.fullmatch(r"\s*-?\d+\s*", name) for name in names[:2]):
        return "names"
    return "text"


def _head(place: Place) -> bytes:
    """First bytes of a file, unpacked, which are still to be read afterwards."""
    view = memoryview(bytearray(_HEAD_BYTES))
    if not isinstance(place, StandardInput):
        with ByteStream(place) as stream:
            return bytes(view[: stream.readinto(view)])
    with ByteStream(_Copy(place.head(_PACKED_HEAD_BYTES))) as stream:
        read = 0
        try:
            while read < len(view) and (more := stream.readinto(view[read : read + 1024])):
                read += more
        except InputError:
            pass  # the copy of an archive ends in its middle
        return bytes(view[:read])


class _Copy:
    """Bytes in memory as a place."""

    name = ""
    again = True

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._data)

    def beside(self, name: str) -> None: ...


def open_files(
    paths: Sequence[str | os.PathLike[str]],
    format: str | None,  # noqa: A002
    labels: str | os.PathLike[str] | None,
    columns: tuple[str | None, str | None] = (None, None),
    weight: str | int | None = None,
) -> Source:
    """Source of one or more files, of the named format or of the one that the first shows.

    Raises
    ------
    UsageError
        No such format, or something that the format does not know: a labels file, columns, several files,
        weights.
    InputError
        A file that cannot be opened or unpacked.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"There is no format {format!r}.", f"Give one of: {', '.join(FORMATS)}.")
    places = places_of(paths)
    name = format or _guess(places[0], weighted=weight is not None)
    chosen = FORMATS[name]
    for place in places:
        _check(place, name)
    if len(places) > 1 and not chosen.many:
        raise UsageError(
            f"A graph of the format {name} is one file, {len(places)} are given.", "Name one of them."
        )
    if chosen.own_labels and labels is not None:
        raise UsageError(f"Files of the format {name} hold their own labels.", "Leave the labels file out.")
    if not chosen.columns and columns != (None, None):
        raise UsageError(f"Files of the format {name} have no names of columns.", "Leave the columns out.")
    if not chosen.weights and weight is not None:
        raise no_weights(f"Files of the format {name}")
    labels_place = None if labels is None else place_of(labels)
    if chosen.labels_beside and labels is None and len(places) == 1:
        from oocpr.sources.labels import find_labels

        labels_place = find_labels(places[0])
    return chosen.open(places, labels_place, columns, weight)


def _guess(place: Place, *, weighted: bool) -> str:
    if isinstance(place, LocalFile):
        if place.path.is_dir():
            return "parquet"
        _check(place, "text")
    return guess_format(place, weighted=weighted)


def _check(place: Place, name: str) -> None:
    """Refuse what cannot be a file of a format."""
    chosen = FORMATS[name]
    if not place.again and not chosen.streamed:
        raise UsageError(
            f"The format {name} cannot be read from standard input.", "Write it to a file and name that."
        )
    if isinstance(place, LocalFile) and not place.path.is_file():
        if place.path.is_dir() and chosen.folders:
            return
        found = "is a folder" if place.path.is_dir() else "does not exist"
        raise InputError(f"{place} {found}.", "Give the path of a graph's file.")
