"""Matrices saved by ``scipy.sparse.save_npz``, read piece by piece: no array is in memory as a whole."""

from __future__ import annotations

import errno
import math
import struct
import zipfile
import zlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.formats.npy import read_header
from oocpr.sources.formats.weighted import MatrixFile
from oocpr.sources.memory.sparse_matrix import MatrixParts, matrix_blocks, square

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.sources.block import EdgeBlock

_LAYOUTS = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}


_PIECE_BYTES = 1 << 20
_MAX_FACT_BYTES = 1 << 10
"""Most that the layout and the shape of a matrix may take."""


class _Archive:
    """A file of which one piece is read at a time, so that no archive's directory takes all memory.

    Parameters
    ----------
    file
        Opened for reading.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size > _PIECE_BYTES:
            raise zipfile.BadZipFile(f"its directory has {size:,} bytes")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _ArrayStream:
    """An array inside an archive, read from front to end by slices.

    Parameters
    ----------
    archive
        The archive.
    name
        What the array is called there.
    opened
        Closes what is opened.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str, opened: ExitStack) -> None:
        about = archive.getinfo(f"{name}.npy")
        # Others, which save_npz does not write, are unpacked without a limit on the bytes that come out.
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
        values = np.empty(max(0, min(self._count, place.stop) - place.start), self.dtype)
        view = values.view(np.uint8).data
        done = 0
        while done < len(view):
            got = self._member.readinto(view[done : done + _PIECE_BYTES])  # type: ignore[attr-defined]
            if not got:
                raise EOFError
            done += got
        return values

    def facts(self) -> NDArray[Any]:
        """Give the whole array, which has to be a small one of at most one dimension."""
        if len(self.shape) > 1 or self._count * self.dtype.itemsize > _MAX_FACT_BYTES:
            raise ValueError(f"an array of the shape {self.shape} cannot tell what the matrix is")
        return self[0 : self._count]


class NpzFile(MatrixFile):
    """A SciPy sparse matrix on disk: an entry (i, j) that is not zero is the edge i -> j.

    Parameters
    ----------
    path
        A file of ``scipy.sparse.save_npz`` in CSR, CSC or COO. Entries that are stored but zero are no edges.
    labels
        A file with one label a row, or None.
    weight
        ``"values"`` where these are weights, those that are zero among them; else None.

    Raises
    ------
    InputError
        While blocks are read: not such a file, damaged or cut, another layout, not square, or a value that is
        no weight.
    UsageError
        Weights that are called otherwise.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from scipy.sparse import csr_array, save_npz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "graph.npz")
    ...     save_npz(path, csr_array([[0, 1], [0, 0]]))
    ...     [(block.src.tolist(), block.dst.tolist()) for block in NpzFile(path).blocks(10)]
    [([0], [1])]
    """

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        with ExitStack() as opened:
            file = opened.enter_context(self.places[0].open())
            try:
                archive = opened.enter_context(zipfile.ZipFile(cast("BinaryIO", _Archive(file))))
                parts = self._parts(archive, opened)
                self._read_labels()
                blocks = matrix_blocks(parts, max_edges, self.title, self.notices, weighted=self.weighted)
                for block in self._unread(blocks):
                    yield block
                    done = 0 if self.mark is None else int(self.mark["edges"])
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
        if "_is_array.npy" in archive.namelist():  # SciPy refuses the file where this is damaged
            stream("_is_array").facts()
        sizes = stream("shape").facts()
        if sizes.dtype.kind not in "iu":
            raise ValueError(f"its shape is of the type {sizes.dtype}")
        self.nodes = square(tuple(sizes.tolist()), self.title)
        major, minor = (stream(name) for name in _LAYOUTS[layout])
        entries = minor.shape[0] if minor.shape else 1
        return MatrixParts(layout, self.nodes, entries, major, minor, stream("data"))
