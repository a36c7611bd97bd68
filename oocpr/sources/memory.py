"""Graphs that are in memory already: SciPy sparse matrices and pairs of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.errors import InputError
from oocpr.sources.base import BaseSource
from oocpr.sources.block import MAX_NODES, EdgeBlock
from oocpr.sources.matrix import MatrixParts, matrix_blocks, square

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray


class SparseMatrix(BaseSource):
    """A SciPy sparse matrix or array: an entry (i, j) that is not zero is the edge i -> j.

    Parameters
    ----------
    matrix
        Square, of any SciPy sparse format; CSR, CSC and COO are read in place, others are converted. Entries
        that are stored but zero are no edges.
    labels
        A file with one label a row, or None.

    Raises
    ------
    InputError
        Not square, or more than 2^32 - 1 rows.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> source = SparseMatrix(csr_array([[0, 1], [0, 0]]))
    >>> [(block.src.tolist(), block.dst.tolist()) for block in source.blocks(10)], source.nodes
    ([([0], [1])], 2)
    """

    def __init__(self, matrix: Any, labels: str | os.PathLike[str] | None = None) -> None:
        super().__init__("matrix", "the matrix", labels)
        self.nodes = square(matrix.shape, self.title)
        self._matrix = matrix if matrix.format in ("csr", "csc", "coo") else matrix.tocoo()

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        matrix = self._matrix
        if matrix.format == "coo":
            parts = MatrixParts("coo", matrix.shape[0], len(matrix.row), matrix.row, matrix.col, matrix.data)
        else:
            entries = int(matrix.indptr[-1])
            parts = MatrixParts(
                matrix.format, matrix.shape[0], entries, matrix.indptr, matrix.indices, matrix.data
            )
        yield from matrix_blocks(parts, max_edges, self.title, self.notices)


class EdgeArrays(BaseSource):
    """Two arrays of node ids: edge k runs from ``src[k]`` to ``dst[k]``.

    Without labels the ids that occur are the nodes.

    Parameters
    ----------
    src, dst
        Integers of any width, shape (m,).
    labels
        A file whose line i (from 0) labels node i, or None.

    Raises
    ------
    InputError
        No integers, two shapes, or (while reading) an id that is negative or too large.

    Examples
    --------
    >>> [(block.src.tolist(), block.dst.tolist()) for block in EdgeArrays([4, 5], [5, 4]).blocks(10)]
    [([4, 5], [5, 4])]
    """

    def __init__(self, src: ArrayLike, dst: ArrayLike, labels: str | os.PathLike[str] | None = None) -> None:
        super().__init__("arrays", "the pair of arrays", labels)
        self._src, self._dst = np.asarray(src), np.asarray(dst)
        if self._src.ndim != 1 or self._src.shape != self._dst.shape:
            raise InputError(
                f"The arrays have the shapes {self._src.shape} and {self._dst.shape}.",
                "Give two arrays of one dimension and the same length.",
            )
        for ids in (self._src, self._dst):
            if ids.dtype.kind not in "iu":
                raise InputError(
                    f"The arrays hold {ids.dtype}, no integers.", "Give the ids of nodes as integers."
                )

    def _read(self, max_edges: int) -> Iterator[EdgeBlock]:
        self._read_labels()
        nodes = MAX_NODES if self.nodes is None else self.nodes
        for start in range(0, len(self._src), max_edges):
            piece = slice(start, start + max_edges)
            yield EdgeBlock(
                self._ids(self._src[piece], start, nodes), self._ids(self._dst[piece], start, nodes)
            )

    def _ids(self, ids: NDArray[Any], start: int, nodes: int) -> NDArray[np.uint32]:
        wrong = np.flatnonzero((ids < 0) | (ids >= nodes))
        if len(wrong):
            raise InputError(
                f"The arrays hold the node id {ids[wrong[0]]} at place {start + wrong[0]:,}.",
                f"Give each node an id from 0 to {nodes - 1:,}.",
            )
        return ids.astype(np.uint32)
