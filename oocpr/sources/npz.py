"""Matrices saved by ``scipy.sparse.save_npz``, read piece by piece.

Of a compressed layout the row starts are held in memory (8 bytes a node); columns and values pass in blocks.
"""

from __future__ import annotations

import zipfile
import zlib
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from oocpr.errors import InputError
from oocpr.sources.matrix import MatrixParts, matrix_blocks, square
from oocpr.sources.weighted import MatrixFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from oocpr.sources.block import EdgeBlock

_LAYOUTS = {"csr": ("indptr", "indices"), "csc": ("indptr", "indices"), "coo": ("row", "col")}


class _ArrayStream:
    """An array inside an archive, read from front to end by slices."""

    def __init__(self, member: IO[bytes]) -> None:
        version = npy.read_magic(member)
        head = npy.read_array_header_1_0(member) if version == (1, 0) else npy.read_array_header_2_0(member)
        self.shape, _, self._dtype = head
        if self._dtype.hasobject:
            raise ValueError("holds Python objects")
        self._member = member

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def __getitem__(self, place: slice) -> NDArray[Any]:
        count = min(len(self), place.stop) - place.start
        data = self._member.read(count * self._dtype.itemsize)
        if len(data) < count * self._dtype.itemsize:
            raise EOFError
        return np.frombuffer(data, self._dtype)


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
                archive = opened.enter_context(zipfile.ZipFile(file))
                parts = self._parts(archive, opened)
                self._read_labels()
                blocks = matrix_blocks(parts, max_edges, self.title, self.notices, weighted=self.weighted)
                for block in self._unread(blocks):
                    yield block
                    done = 0 if self.mark is None else int(self.mark["edges"])
                    self.position = (self.size or 0) * done // parts.entries
            except (zipfile.BadZipFile, EOFError, zlib.error, KeyError, ValueError) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(
                    f"{self.title} is no whole matrix of scipy.sparse.save_npz: {error}.",
                    "Fetch the file again, or save the matrix again.",
                ) from error

    def _parts(self, archive: zipfile.ZipFile, opened: ExitStack) -> MatrixParts:
        def stream(name: str) -> _ArrayStream:
            return _ArrayStream(opened.enter_context(archive.open(f"{name}.npy")))

        def whole(name: str) -> NDArray[Any]:
            array = stream(name)
            return array[0 : len(array)]

        layout = whole("format")[0]
        layout = layout.decode() if isinstance(layout, bytes) else str(layout)
        if layout not in _LAYOUTS:
            raise InputError(
                f"{self.title} holds a matrix in the layout {layout!r}.",
                "Save it as CSR: save_npz(path, A.tocsr()).",
            )
        self.nodes = square(tuple(map(int, whole("shape"))), self.title)
        names = _LAYOUTS[layout]
        major = stream(names[0]) if layout == "coo" else whole(names[0])
        minor, values = stream(names[1]), stream("data")
        return MatrixParts(layout, self.nodes, len(minor), major, minor, values)
