"""Graphs that are in memory already: SciPy sparse matrices and arrays of node ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.base import BaseSource
from oocpr.sources.memory.id_columns import id_block, two_ends
from oocpr.sources.memory.sparse_matrix import MatrixParts, matrix_blocks, square
from oocpr.sources.weights import check_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oocpr.sources.block import EdgeBlock
    from oocpr.sources.io.locations import AnyPath


class SparseMatrix(BaseSource):
    """A SciPy sparse matrix or array: an entry (i, j) that is not zero is the edge i -> j.

    Parameters
    ----------
    matrix
        Square, of any SciPy sparse format; CSR, CSC and COO are read in place, others are converted. Entries
        that are stored but zero are no edges.
    labels
        A file with one label a row, or None.
    weight
        ``"values"`` where these are weights, those that are zero among them; else None.

    Raises
    ------
    InputError
        Not square, or more than 2^32 - 1 rows; arrays that contradict each other; while blocks are read, rows
        or columns that the matrix does not have, or a value that is no weight.
    UsageError
        Weights that are called otherwise.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> source = SparseMatrix(csr_array([[0, 1], [0, 0]]))
    >>> [(block.src.tolist(), block.dst.tolist()) for block in source.blocks(10)], source.nodes
    ([([0], [1])], 2)
    """

    def __init__(
        self, matrix: Any, labels: AnyPath | None = None, *, weight: str | int | None = None
    ) -> None:
        super().__init__("matrix", "the matrix", labels)
        check_values(weight, self.title)
        self.weighted = weight is not None
        self.nodes = square(matrix.shape, self.title)
        self._matrix = matrix if matrix.format in ("csr", "csc", "coo") else self._converted(matrix)

    def _converted(self, matrix: Any) -> Any:
        """Take a matrix of another format as COO, by compiled code of SciPy."""
        try:
            if hasattr(matrix, "check_format"):
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


class EdgeArrays(BaseSource):
    """Two arrays of node ids: edge k runs from ``src[k]`` to ``dst[k]``.

    Without labels the ids that occur are the nodes, and may be any of 64 bits with a sign.

    Parameters
    ----------
    src, dst
        Integers of any width, shape (m,). Arrays of Dask, Zarr and the like are asked for slices.
    labels
        A file whose line i (from 0) labels node i, or None.

    Raises
    ------
    InputError
        No integers, two shapes, or (while reading) an id that cannot be.

    Examples
    --------
    >>> [(block.src.tolist(), block.dst.tolist()) for block in EdgeArrays([4, 5], [5, 4]).blocks(10)]
    [([4, 5], [5, 4])]
    """

    def __init__(self, src: Any, dst: Any, labels: AnyPath | None = None) -> None:
        super().__init__("arrays", "the pair of arrays", labels)
        self._src, self._dst = _sliceable(src), _sliceable(dst)
        if len(self._src.shape) != 1 or self._src.shape != self._dst.shape:
            raise InputError(
                f"The arrays have the shapes {self._src.shape} and {self._dst.shape}.",
                "Give two arrays of one dimension and the same length.",
            )
        _whole_numbers(self._src, self._dst)

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        for start in range(0, self._src.shape[0], max_edges):
            piece = slice(start, start + max_edges)
            src, dst = np.asarray(self._src[piece]), np.asarray(self._dst[piece])
            yield id_block(src, dst, self.nodes, self.title, start)


class EdgeArray(BaseSource):
    """One array of node ids with both ends of each edge, as rows or as columns.

    Parameters
    ----------
    ends
        Integers of any width, shape (2, m) or (m, 2).
    labels
        A file whose line i (from 0) labels node i, or None.

    Raises
    ------
    InputError
        No integers, another shape, or (while reading) an id that cannot be.

    Examples
    --------
    >>> ends = np.array([[4, 5], [5, 4], [4, 4]])
    >>> [(block.src.tolist(), block.dst.tolist()) for block in EdgeArray(ends).blocks(10)]
    [([4, 5, 4], [5, 4, 4])]
    """

    def __init__(self, ends: Any, labels: AnyPath | None = None) -> None:
        super().__init__("array", "the array", labels)
        self._by_rows = two_ends(tuple(ends.shape), self.title)
        self._ends = ends
        _whole_numbers(ends)

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        for start in range(0, max(self._ends.shape), max_edges):
            piece = slice(start, start + max_edges)
            src, dst = np.asarray(self._ends[:, piece] if self._by_rows else self._ends[piece].T)
            yield id_block(src, dst, self.nodes, self.title, start)


def _sliceable(ids: Any) -> Any:
    return ids if hasattr(ids, "shape") and hasattr(ids, "dtype") else np.asarray(ids)


def _whole_numbers(*arrays: Any) -> None:
    for ids in arrays:
        if np.dtype(ids.dtype).kind not in "iu":
            raise InputError(
                f"The arrays hold {ids.dtype}, no integers.", "Give the ids of nodes as integers."
            )
