"""The products of other systems, each with its own layout of the matrix, to be compared with the default.

A product takes what was pushed, one narrow number a node as rows gather it, and sums for each row the numbers
of the nodes that link to it. Where pairs are gathered, the second numbers, proposals, are summed as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from oocpr.engine.cuda.papers.layouts import (
    blocks_of_four,
    bounds_of_bins,
    by_size,
    chunks,
    row_numbers,
    slices,
)
from oocpr.engine.cuda.spmv import EVERYTHING, FORMATS, window_word
from oocpr.engine.number_formats import READS

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.engine.cuda.device import Device, Kernels
    from oocpr.engine.cuda.spmv import Window

BLOCK = 256
"""Threads of a block."""

PADDING = 4
"""Numbers, all zero, that have to lie behind those of the last node."""


@dataclass(frozen=True)
class Matrix:
    """Rows and the nodes that link to them, decoded, on the device.

    Parameters
    ----------
    offsets
        First edge of each row, and the number of edges; uint32, or uint64 for 2**32 edges and more,
        shape (rows + 1,).
    columns
        Ascending in each row; uint32, shape (edges,).
    nodes
        Number of nodes, which bounds the columns.
    degrees
        Out-degree of each node, which one of the products divides by; uint32, shape (nodes,).
    """

    offsets: Any
    columns: Any
    nodes: int
    degrees: Any = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.offsets.size) - 1

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(self.columns.size)


@dataclass(frozen=True)
class Gather:
    """What is gathered.

    Parameters
    ----------
    reads
        Format of the numbers.
    paired
        Whether a node has two of them, push and proposal.
    striped
        Whether proposals of nodes outside the `window` of a call are left out.
    """

    reads: str
    paired: bool = False
    striped: bool = False


class Product(Protocol):
    """A matrix laid out for one kernel."""

    nbytes: int
    """Bytes of the layout."""

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """Launch the product; allocates nothing.

        Parameters
        ----------
        reads
            Numbers of all nodes and PADDING zeros; the format's dtype, shape (nodes + PADDING,), or
            (nodes + PADDING, 2) where paired.
        pushes, proposals
            Receive the sums, those of ``bits8`` without the scale; float64 and float32, shape (rows,).
        window
            See Window; where striped.
        """


class _Base:
    """Compiled kernels, and the arrays that they are launched with."""

    file: str

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, **parameters: int | str) -> None:
        self._xp = device.xp
        self._matrix = matrix
        self._load = partial(
            device.load,
            self.file,
            READS=FORMATS[gather.reads],
            PAIRED=int(gather.paired),
            STRIPED=int(gather.striped),
            INDEX="u64" if matrix.offsets.dtype.itemsize == 8 else "u32",
        )
        self._kernels: Kernels = self._load(**parameters)
        self.nbytes = 0

    def _hold(self, *arrays: Any) -> tuple[Any, ...]:
        self.nbytes += sum(int(array.nbytes) for array in arrays)
        return arrays

    def _launch(self, name: str, threads: int, arguments: tuple[Any, ...], block: int = BLOCK) -> None:
        if threads:
            self._kernels.get_function(name)((-(-threads // block),), (block,), arguments)


class RowLanes(_Base):
    """As many lanes a row as one is told: ``kernels/rows.cu``."""

    file = "rows.cu"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, *, lanes: int) -> None:
        self._lanes = lanes or device.warp
        super().__init__(device, matrix, gather, ROW_LANES=self._lanes)
        self._arrays = self._hold(matrix.offsets, matrix.columns)

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """See Product."""
        rows = self._matrix.rows
        arguments = (*self._arrays, reads, window_word(window), np.uint32(rows), pushes, proposals)
        self._launch("rows", rows * self._lanes, arguments)


@dataclass(frozen=True)
class Cut:
    """How rows are divided into bins; changes the speed, never the result.

    Parameters
    ----------
    tiny
        Most edges of a row that one thread takes.
    small
        Most edges of a row that 16 lanes take; longer ones have 32.
    block
        Threads of a block.
    """

    tiny: int = 6
    small: int = 96
    block: int = BLOCK


MOST_THREADS = (256, 512, 1024)
"""Threads of a block for which the row-binned kernel is compiled."""


class Binned(_Base):
    """A thread, 16 or 32 lanes a row, by its size: ``kernels/binned.cu``."""

    file = "binned.cu"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, *, cut: Cut | None = None) -> None:
        super().__init__(device, matrix, gather)
        self._rows = by_size(self._xp, matrix.offsets)
        self._hold(*self._rows, matrix.columns)
        cut = cut or Cut()
        bounds = bounds_of_bins(self._xp, self._rows.sizes, (cut.tiny, cut.small))
        names, lanes = ("tiny_rows", "small_rows", "normal_rows"), (1, 16, 32)
        self._bins = [
            (name, count, np.uint32(first), np.uint32(last))
            for name, count, (first, last) in zip(names, lanes, pairwise(bounds), strict=True)
        ]
        self._block = cut.block
        # Threads of larger blocks have to do with fewer registers.
        self._kernels = self._load(MOST_THREADS=next(most for most in MOST_THREADS if most >= cut.block))

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """See Product."""
        for name, lanes, first, last in self._bins:
            arguments = (
                *self._rows,
                first,
                last,
                self._matrix.columns,
                reads,
                window_word(window),
                pushes,
                proposals,
            )
            self._launch(name, int(last - first) * lanes, arguments, self._block)


class Sell(_Base):
    """One thread a row, rows side by side: ``kernels/sell.cu``."""

    file = "sell.cu"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, *, window: int = 1 << 14) -> None:
        super().__init__(device, matrix, gather, SLICE=device.warp)
        self._arrays = self._hold(*slices(self._xp, matrix.offsets, matrix.columns, device.warp, window))

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """See Product."""
        rows = self._matrix.rows
        arguments = (*self._arrays, reads, window_word(window), np.uint32(rows), pushes, proposals)
        self._launch("sell", rows, arguments)


class Edges(_Base):
    """One thread an edge, atomic sums: ``kernels/edges.cu``; the bits of the sums change from run to run."""

    file = "edges.cu"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather) -> None:
        super().__init__(device, matrix, gather)
        numbers = row_numbers(self._xp, matrix.offsets, matrix.edges)
        self._arrays = self._hold(numbers, matrix.columns)

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """See Product."""
        edges = self._matrix.edges
        pushes.fill(0)
        if proposals is not None:
            proposals.fill(0)
        arguments = (*self._arrays, reads, window_word(window), np.uint64(edges), pushes, proposals)
        self._launch("add_edges", edges, arguments)


class DividingEdges(Edges):
    """The same, but each edge divides: `reads` are float64 and not yet divided by out-degrees."""

    def __init__(self, device: Device, matrix: Matrix, gather: Gather) -> None:
        if gather != Gather("float64") or matrix.degrees is None:
            raise ValueError("edges that divide gather single float64 numbers, and need out-degrees")
        super().__init__(device, matrix, gather)
        self._hold(matrix.degrees)

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:  # noqa: ARG002
        """See Product."""
        edges = self._matrix.edges
        pushes.fill(0)
        arguments = (*self._arrays, reads, self._matrix.degrees, np.uint64(edges), pushes)
        self._launch("divide_and_add", edges, arguments)


class Chunked(_Base):
    """Gathers from chunks in shared memory: ``kernels/chunked.cu``."""

    file = "chunked.cu"
    threads = 1024

    def __init__(
        self, device: Device, matrix: Matrix, gather: Gather, *, lanes: int = 4, size: int | None = None
    ) -> None:
        super().__init__(device, matrix, gather, ROW_LANES=lanes)
        word = READS[gather.reads].bytes * (1 + gather.paired)
        self._size = size or min(1 << 16, device.shared_bytes // word)
        self._shared = self._size * word
        *arrays, self._bounds = chunks(self._xp, matrix.offsets, matrix.columns, matrix.nodes, self._size)
        self._offsets, self._numbers, self._columns = self._hold(*arrays)
        self._lanes = lanes
        self._most = device.multiprocessors * (2 if 2 * self._shared <= device.shared_bytes else 1)
        self._kernel = self._kernels.get_function("add_chunk")
        self._kernel.max_dynamic_shared_size_bytes = self._shared

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """See Product."""
        pushes.fill(0)
        if proposals is not None:
            proposals.fill(0)
        for k, (first, last) in enumerate(pairwise(self._bounds)):
            begin = k * self._size
            size = min(self._size, self._matrix.nodes - begin)
            grid = min(self._most, -(-(last - first) * self._lanes // self.threads))
            arguments = (
                self._offsets, self._numbers, np.uint64(first), np.uint64(last), self._columns, reads,
                np.uint32(begin), np.uint32(size), window_word(window), pushes, proposals,
            )  # fmt: skip
            if grid:
                self._kernel((grid,), (self.threads,), arguments, shared_mem=self._shared)


class Bcsr(_Base):
    """Blocks of one row and four columns: ``kernels/bcsr.cu``."""

    file = "bcsr.cu"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, *, lanes: int = 16) -> None:
        super().__init__(device, matrix, gather, ROW_LANES=lanes)
        self._arrays = self._hold(*blocks_of_four(self._xp, matrix.offsets, matrix.columns))
        self._lanes = lanes

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """See Product."""
        rows = self._matrix.rows
        arguments = (*self._arrays, reads, window_word(window), np.uint32(rows), pushes, proposals)
        self._launch("bcsr", rows * self._lanes, arguments)


class Baseline(NamedTuple):
    """One product that can be asked for.

    Attributes
    ----------
    words
        What it does, in a few words.
    make
        Lays a matrix out: ``make(device, matrix, gather, **options)``.
    fixed_bits
        Whether the bits of its sums are the same in every run.
    divides
        Whether it gathers float64 numbers that are not yet divided by out-degrees.
    """

    words: str
    make: Callable[..., Product]
    fixed_bits: bool = True
    divides: bool = False


def _lanes(count: int) -> Callable[..., Product]:
    def make(device: Device, matrix: Matrix, gather: Gather) -> Product:
        return RowLanes(device, matrix, gather, lanes=count)

    return make


BASELINES = {
    "csr-scalar": Baseline("one thread a row", _lanes(1)),
    "csr-16": Baseline("16 threads a row", _lanes(16)),
    "csr-vector": Baseline("one warp a row", _lanes(0)),
    "binned": Baseline("a thread, 16 or 32 lanes a row, by its size (Wu 2010)", Binned),
    "ell": Baseline("one thread a row, columns side by side (SELL-C-sigma)", Sell),
    "edges-divide": Baseline(
        "one thread an edge, dividing, atomic sums (Jiang 2014, A)", DividingEdges, False, True
    ),
    "edges": Baseline("one thread an edge, atomic sums (Jiang 2014, exchange)", Edges, False),
    "chunked": Baseline("chunks of columns in shared memory (contest report, step 2)", Chunked),
    "bcsr": Baseline("blocks of one row and four columns (Shan 2010)", Bcsr),
}
"""By the name that `--kernel` takes."""
