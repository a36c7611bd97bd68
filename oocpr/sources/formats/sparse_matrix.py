"""Sparse matrices of SciPy, in memory or saved by ``save_npz``, and of Matrix Market files.

Entry (i, j) is the edge i -> j. Values are weights on request; else an entry stored as zero is no edge.
"""

from __future__ import annotations

import errno
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import InputError, UsageError
from oocpr.sources.base import BaseSource, FileSource, both_ways
from oocpr.sources.block import MAX_NODES, EdgeBlock, weights_of
from oocpr.sources.files import ByteStream
from oocpr.sources.formats.numpy_networkx import read_entries, read_header
from oocpr.sources.lines import EdgeLines, LineReader, whole_numbers
from oocpr.system import spans

if TYPE_CHECKING:
    from oocpr.sources.base import SourceOptions
    from oocpr.sources.block import Block
    from oocpr.sources.files import InputFile


_MAX_STARTS = 1 << 16  # row starts that are in memory at once
_VALUES = "values"  # what the weights of a matrix are called
_UNREAD = (
    "The values of the matrix were not used: it is ranked as an unweighted graph; "
    f'weight="{_VALUES}" takes them as weights.'
)


def _check_weight(weight: str | int | None, title: str) -> None:
    if weight is not None and weight != _VALUES:
        raise UsageError(
            f"{title} has values and no column {str(weight)!r}.", f'Call them {_VALUES}: weight="{_VALUES}".'
        )


@dataclass(frozen=True)
class MatrixParts:
    """The arrays of a sparse matrix, as somebody else says that they are.

    Of a compressed `layout`, ``"csr"`` or ``"csc"``, `major` is ``indptr``, shape (nodes + 1,), and `minor`
    ``indices``; of ``"coo"`` they are the rows and the columns, shape (entries,), as `values` have. All are
    asked for slices, each beginning where the last one ended.
    """

    layout: str
    nodes: int
    entries: int
    major: Any
    minor: Any
    values: Any

    def check(self, title: str) -> None:
        """Raise InputError unless there is a row, a column and a value for each entry, of fitting types."""
        compressed = self.layout != "coo"
        for name, array, count, kinds in (
            ("row starts" if compressed else "rows", self.major, self.nodes + 1, "iu"),
            ("columns", self.minor, self.entries, "iu"),
            ("values", self.values, self.entries, "biufc"),
        ):
            length = count if compressed else self.entries
            if tuple(array.shape) != (length,):
                raise InputError(
                    f"{title} has {name} of the shape {tuple(array.shape)}, where {length:,} are needed.",
                    "Build the matrix again.",
                )
            if array.dtype.kind not in kinds:
                raise InputError(
                    f"{title} has {name} of the type {array.dtype}.",
                    "Give rows and columns as integers, and values as numbers.",
                )


def square(shape: tuple[int, ...], title: str) -> int:
    """Nodes of a matrix of this shape; InputError if it is not the matrix of a graph."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(f"{title} has the shape {shape}.", "Give a square matrix, one row a node.")
    if shape[0] > MAX_NODES:
        raise InputError(f"{title} has {shape[0]:,} nodes.", f"A graph has at most {MAX_NODES:,} nodes.")
    return shape[0]


def matrix_blocks(
    parts: MatrixParts, max_edges: int, title: str, notices: list[str], *, weighted: bool
) -> Iterator[EdgeBlock]:
    """Yield the entries as edges; `notices` receives what a person should know.

    Raises InputError for arrays that contradict each other, or a value that is no weight.
    """
    parts.check(title)
    rows = None if parts.layout == "coo" else _EntryRows(parts, title)
    zeros, unread = 0, False
    for start, stop in spans(parts.entries, max_edges):
        major = parts.major[start:stop] if rows is None else rows.of(start, stop)
        minor, values = parts.minor[start:stop], parts.values[start:stop]
        for ids in (major, minor):
            wrong = np.flatnonzero((ids < 0) | (ids >= parts.nodes))
            if len(wrong):
                raise InputError(
                    f"{title}: entry {start + wrong[0]:,} is in row or column {ids[wrong[0]]:,}.",
                    f"Rows and columns go from 0 to {parts.nodes - 1:,}: build the matrix again.",
                )
        weights = weights_of(values, title, "entry", start) if weighted else None
        keep = np.arange(len(values)) if weighted else np.flatnonzero(values)
        zeros += len(values) - len(keep)
        unread = unread or (not weighted and bool((values[keep] != 1).any()))
        if len(keep) < len(values):
            major, minor = major[keep], minor[keep]
        if parts.layout == "csc":
            major, minor = minor, major
        if len(keep):
            yield EdgeBlock(major.astype(np.uint32), minor.astype(np.uint32), weights)
    if rows is not None:
        rows.finish()
    if unread:
        notices.append(_UNREAD)
    if zeros:
        notices.append(f"{zeros:,} entries are stored as zero and were left out.")


class _EntryRows:
    """Rows of the entries of a compressed layout, out of its row starts, which are read once."""

    def __init__(self, parts: MatrixParts, title: str) -> None:
        self._parts = parts
        self._title = title
        self._first = 0  # the row of the first start in memory
        self._starts = parts.major[0:1].astype(np.int64)
        if self._starts[0] != 0:
            raise self._wrong()

    def of(self, start: int, stop: int) -> NDArray[np.uint32]:
        """Give the rows of the entries `start` .. `stop` - 1; entries are asked for in order."""
        pieces = []
        while True:
            first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
            last = int(np.searchsorted(self._starts, stop, side="left"))
            bounds = np.clip(self._starts[first : last + 1], start, stop)
            rows = np.arange(self._first + first, self._first + first + len(bounds) - 1, dtype=np.uint32)
            pieces.append(np.repeat(rows, np.diff(bounds)))
            if self._starts[-1] >= stop:
                return np.concatenate(pieces)
            self._read()

    def finish(self) -> None:
        """Read the starts of the rows behind the last entry."""
        while self._first + len(self._starts) <= self._parts.nodes:
            self._read()
        if self._starts[-1] != self._parts.entries:
            raise self._wrong()

    def _read(self) -> None:
        """Go on to the next starts; the last one before them stays."""
        read = self._first + len(self._starts)
        more = self._parts.major[read : min(read + _MAX_STARTS, self._parts.nodes + 1)]
        # Of unsigned integers beyond 2^63 this makes negative ones, which fall.
        starts = np.concatenate([self._starts[-1:], more.astype(np.int64)])
        if not len(more) or (starts[1:] < starts[:-1]).any() or starts[-1] > self._parts.entries:
            raise self._wrong()
        self._first, self._starts = read - 1, starts

    def _wrong(self) -> InputError:
        return InputError(
            f"{self._title} has row starts that do not fit its entries.", "Build the matrix again."
        )


_LAYOUTS = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}


_MAX_DIRECTORY_BYTES = 1 << 20
_MAX_FACT_BYTES = 1 << 10  # of the layout and the shape of a matrix


class _Archive:
    """An open file of which little is read at once, so that no archive's directory takes all memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its directory has {size:,} bytes")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _ArrayStream:
    """An array inside an archive, read from front to end by slices."""

    def __init__(self, archive: zipfile.ZipFile, name: str, opened: ExitStack) -> None:
        about = archive.getinfo(f"{name}.npy")
        # Others, which save_npz does not write, are decompressed without a limit on the bytes that come out.
        if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{about.filename} is compressed by method {about.compress_type} of ZIP")
        self._member = opened.enter_context(archive.open(about))
        header = read_header(self._member)
        self.shape, _, self.dtype, _ = header
        if self.dtype.hasobject:
            raise ValueError(f"{about.filename} holds Python objects")
        self._count = math.prod(self.shape)
        if header.end != about.file_size or not self.dtype.itemsize:
            raise ValueError(f"{about.filename} has {about.file_size:,} bytes for an array of {header.end:,}")

    def __getitem__(self, place: slice) -> NDArray[Any]:
        count = max(0, min(self._count, place.stop) - place.start)
        return read_entries(self._member, count, self.dtype)

    def facts(self) -> NDArray[Any]:
        """Read the whole array, which has to be small."""
        if len(self.shape) > 1 or self._count * self.dtype.itemsize > _MAX_FACT_BYTES:
            raise ValueError(f"an array of the shape {self.shape} cannot tell what the matrix is")
        return self[0 : self._count]


class SparseMatrix(BaseSource):
    """A SciPy sparse matrix or array in memory: CSR, CSC and COO are read in place, others are converted."""

    def __init__(self, matrix: Any, **options: Unpack[SourceOptions]) -> None:
        super().__init__("matrix", "the matrix", **options)
        _check_weight(options.get("weight"), self.title)
        self.nodes = square(matrix.shape, self.title)
        self._matrix = matrix if matrix.format in ("csr", "csc", "coo") else self._converted(matrix)

    def _converted(self, matrix: Any) -> Any:
        try:
            if hasattr(matrix, "check_format"):  # SciPy's compiled code does not look
                matrix.check_format(full_check=True)
            return matrix.tocoo()
        except (ValueError, IndexError, TypeError) as error:
            raise InputError(
                f"{self.title} contradicts itself: {' '.join(str(error).split())[:200]}.",
                "Build the matrix again.",
            ) from error

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        matrix = self._matrix
        if matrix.format == "coo":
            entries, arrays = len(matrix.row), (matrix.row, matrix.col, matrix.data)
        else:
            # There may be room for more entries behind the last one.
            entries = max(0, int(matrix.indptr[-1])) if len(matrix.indptr) else 0
            arrays = (matrix.indptr, matrix.indices[:entries], matrix.data[:entries])
        parts = MatrixParts(matrix.format, matrix.shape[0], entries, *map(np.asarray, arrays))
        yield from matrix_blocks(parts, max_edges, self.title, self.notices, weighted=self.weighted)


class MatrixFile(FileSource):
    """A matrix in a file."""

    def __init__(self, files: Sequence[InputFile], **options: Unpack[SourceOptions]) -> None:
        super().__init__(files, **options)
        _check_weight(options.get("weight"), self.title)


class NpzFile(MatrixFile):
    """A matrix of ``scipy.sparse.save_npz``, of which no array is in memory as a whole."""

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        with ExitStack() as opened:
            file = opened.enter_context(self.files[0].open())
            try:
                archive = opened.enter_context(zipfile.ZipFile(cast("BinaryIO", _Archive(file))))
                parts = self._parts(archive, opened)
                self._read_labels()
                blocks = matrix_blocks(parts, max_edges, self.title, self.notices, weighted=self.weighted)
                done = 0
                for block in blocks:
                    yield block
                    done += len(block.src)
                    self.position = (self.size or 0) * done // max(1, parts.entries)
            except (
                zipfile.BadZipFile, EOFError, zlib.error, struct.error, KeyError, ValueError, OverflowError,
                RuntimeError, OSError,
            ) as error:  # fmt: skip
                # Damaged archives have places before the file, which the system calls invalid.
                if isinstance(error, InputError) or getattr(error, "errno", None) not in (None, errno.EINVAL):
                    raise
                raise InputError(
                    f"{self.title} is no whole matrix of scipy.sparse.save_npz: "
                    f"{' '.join(str(error).split())[:200] or 'it ends in the middle'}.",
                    "Fetch the file again, or save the matrix again.",
                ) from error

    def _parts(self, archive: zipfile.ZipFile, opened: ExitStack) -> MatrixParts:
        def stream(name: str) -> _ArrayStream:
            return _ArrayStream(archive, name, opened)

        name = stream("format").facts().item()
        layout = name.decode() if isinstance(name, bytes) else str(name)
        if layout not in _LAYOUTS:
            raise InputError(
                f"{self.title} holds a matrix in the layout {layout[:40]!r}.",
                "Save it as CSR: save_npz(path, A.tocsr()).",
            )
        if "_is_array.npy" in archive.namelist():  # SciPy refuses the file if this is damaged
            stream("_is_array").facts()
        sizes = stream("shape").facts()
        if sizes.dtype.kind not in "iu":
            raise ValueError(f"its shape is of the type {sizes.dtype}")
        self.nodes = square(tuple(sizes.tolist()), self.title)
        major, minor = (stream(name) for name in _LAYOUTS[layout])
        entries = minor.shape[0] if minor.shape else 1
        return MatrixParts(layout, self.nodes, entries, major, minor, stream("data"))


_FIELDS = ("pattern", "real", "integer")
_VALUE_COLUMN = 3
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")


class MatrixMarketFile(MatrixFile):
    """A square matrix of Matrix Market coordinates; of a symmetric one both halves are edges.

    Rows count from 1 in the file and, as in SciPy, from 0 as nodes.
    """

    def _read(self, max_edges: int) -> Iterator[Block]:
        with ByteStream(self.files[0]) as stream:
            lines = LineReader(stream)
            field, symmetry = self._kind(lines)
            self.nodes, stated = self._sizes(lines)
            self._read_labels()
            form = EdgeLines(
                first=1,
                nodes=self.nodes,
                valued=field != "pattern" and not self.weighted,
                weight=_VALUE_COLUMN if self.weighted else 0,
            )
            for block in lines.edges(max_edges, form):
                self.position = stream.position
                yield from [block] if symmetry == "general" else both_ways(block)
        if lines.entries != stated:
            raise InputError(
                f"{self.title} states {stated:,} entries and holds {lines.entries:,}.",
                "Fetch the file again, or correct the numbers behind its comments.",
            )
        if self.labels is None:
            self.notices.append(f"Nodes are numbered from 0, as in SciPy: node 0 is row 1 of {self.title}.")
        if form.valued:
            self.notices.append(_UNREAD)
        if lines.zeros:
            self.notices.append(f"{lines.zeros:,} entries are stored as zero and were left out.")

    def _kind(self, lines: LineReader) -> tuple[str, str]:
        words = (lines.peek() or "").lower().split()
        if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
            raise lines.error(
                "no Matrix Market header.",
                "The first line must be: %%MatrixMarket matrix coordinate pattern general",
            )
        layout, field, symmetry = words[2:]
        if layout != "coordinate":
            raise lines.error(f"the layout is {layout!r}.", "Write the matrix as coordinates.")
        if field not in _FIELDS:
            raise lines.error(f"the values are {field!r}.", f"Write them as one of: {', '.join(_FIELDS)}.")
        if symmetry not in _SYMMETRIES:
            raise lines.error(
                f"the symmetry is {symmetry!r}.", f"Write it as one of: {', '.join(_SYMMETRIES)}."
            )
        if self.weighted and field == "pattern":
            raise UsageError(f"{self.title} is a pattern without values.", "Leave the weight out.")
        if self.weighted and symmetry == "skew-symmetric":
            raise lines.error(
                "one half of a skew-symmetric matrix is negative.", "Give a matrix whose values are weights."
            )
        lines.drop()
        return field, symmetry

    @staticmethod
    def _sizes(lines: LineReader) -> tuple[int, int]:
        while (line := lines.peek()) is not None and (not line.strip() or line.lstrip().startswith("%")):
            lines.drop()
        sizes = whole_numbers(line or "", 3)
        if not sizes:
            raise lines.error(
                "the numbers of rows, columns and entries are missing.",
                "Give them as three whole numbers behind the comments.",
            )
        rows, columns, entries = sizes
        if rows != columns:
            raise lines.error(
                f"{rows:,} rows and {columns:,} columns are no graph.",
                "Give a square matrix, one row a node.",
            )
        if rows > MAX_NODES:
            raise lines.error(f"{rows:,} nodes are too many.", f"A graph has at most {MAX_NODES:,} nodes.")
        lines.drop()
        return rows, entries
