"""The products of other systems, each with its own layout of the matrix, to be compared with the default.

A product takes what was pushed, one narrow number a node as rows gather it, and sums for each row the numbers
of the nodes with edges to it. If pairs are gathered, the second numbers, proposals, are summed as well.
"""

from __future__ import annotations

import re
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
from oocpr.engine.cuda.spmv import EVERYTHING, FORMATS, Gather, window_word
from oocpr.engine.number_formats import READS
from oocpr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.engine.cuda.device import Device, Kernels
    from oocpr.engine.cuda.spmv import Window

BLOCK = 256
"""Threads of a block."""


@dataclass(frozen=True)
class Matrix:
    """Rows and the nodes with edges to them, decoded, on the device."""

    # first edge of each row, and the number of edges; uint32, or uint64 for 2**32 edges and more, shape (rows
    # + 1,)
    offsets: Any
    columns: Any  # ascending in each row; uint32, shape (edges,)
    nodes: int  # number of nodes, which bounds the columns
    # out-degree of each node, which one of the products divides by; uint32, shape (nodes,)
    degrees: Any = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.offsets.size) - 1

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(self.columns.size)


class Product(Protocol):
    """A matrix laid out for one kernel."""

    nbytes: int
    """Bytes of the layout."""

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """Launch the product; allocates nothing.

        `reads`: numbers of all nodes and PADDING zeros; the format's dtype, shape (nodes + PADDING,), or
            (nodes + PADDING, 2) if paired.
        `pushes`, `proposals`: receive the sums, those of ``bits8`` without the scale; float64 and float32,
            shape (rows,).
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


class _RowProduct(_Base):
    """One kernel, so many lanes per row."""

    kernel: str
    _lanes = 1
    _arrays: tuple[Any, ...]

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """See Product."""
        rows = self._matrix.rows
        arguments = (*self._arrays, reads, window_word(window), np.uint32(rows), pushes, proposals)
        self._launch(self.kernel, rows * self._lanes, arguments)


class RowLanes(_RowProduct):
    """As many lanes a row as one is told: ``kernels/papers/rows.cu``."""

    file, kernel = "papers/rows.cu", "rows"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, *, lanes: int) -> None:
        self._lanes = lanes or device.warp
        super().__init__(device, matrix, gather, ROW_LANES=self._lanes)
        self._arrays = self._hold(matrix.offsets, matrix.columns)


@dataclass(frozen=True)
class BinThresholds:
    """How rows are divided into bins; changes the speed, never the result."""

    tiny: int = 6  # most edges of a row that one thread takes
    small: int = 96  # most edges of a row that 16 lanes take; longer ones have 32
    block: int = BLOCK  # threads of a block


MOST_THREADS = (256, 512, 1024)
"""Threads of a block for which the row-binned kernel is compiled."""


class Binned(_Base):
    """A thread, 16 or 32 lanes a row, by its size: ``kernels/papers/binned.cu``."""

    file = "papers/binned.cu"

    def __init__(
        self, device: Device, matrix: Matrix, gather: Gather, *, thresholds: BinThresholds | None = None
    ) -> None:
        super().__init__(device, matrix, gather)
        self._rows = by_size(self._xp, matrix.offsets)
        self._hold(*self._rows, matrix.columns)
        thresholds = thresholds or BinThresholds()
        bounds = bounds_of_bins(self._xp, self._rows.sizes, (thresholds.tiny, thresholds.small))
        names, lanes = ("tiny_rows", "small_rows", "normal_rows"), (1, 16, 32)
        self._bins = [
            (name, count, np.uint32(first), np.uint32(last))
            for name, count, (first, last) in zip(names, lanes, pairwise(bounds), strict=True)
        ]
        self._block = thresholds.block
        # Threads of larger blocks have to do with fewer registers.
        self._kernels = self._load(
            MOST_THREADS=next(most for most in MOST_THREADS if most >= thresholds.block)
        )

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


class Sell(_RowProduct):
    """One thread a row, rows side by side: ``kernels/papers/sell.cu``."""

    file, kernel = "papers/sell.cu", "sell"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, *, window: int = 1 << 14) -> None:
        super().__init__(device, matrix, gather, SLICE=device.warp)
        self._arrays = self._hold(*slices(self._xp, matrix.offsets, matrix.columns, device.warp, window))


class Edges(_Base):
    """One thread an edge, atomic sums, whose bits change from run to run: ``kernels/papers/edges.cu``."""

    file = "papers/edges.cu"

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
    """Gathers from chunks in shared memory: ``kernels/papers/chunked.cu``."""

    file = "papers/chunked.cu"
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


class Bcsr(_RowProduct):
    """Blocks of one row and four columns: ``kernels/papers/bcsr.cu``."""

    file, kernel = "papers/bcsr.cu", "bcsr"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, *, lanes: int = 16) -> None:
        super().__init__(device, matrix, gather, ROW_LANES=lanes)
        self._arrays = self._hold(*blocks_of_four(self._xp, matrix.offsets, matrix.columns))
        self._lanes = lanes


class Baseline(NamedTuple):
    """One product that can be asked for."""

    words: str  # what it does, in a few words
    make: Callable[..., Product]  # lays a matrix out: ``make(device, matrix, gather, **options)``
    fixed_bits: bool = True  # whether the bits of its sums are the same in every run
    divides: bool = False  # whether it gathers float64 numbers that are not yet divided by out-degrees


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

KERNELS = {
    "balanced": "packed columns, equal pieces of edges",
    **{name: baseline.words for name, baseline in BASELINES.items() if not baseline.divides},
}
"""What each product does, by the name that `--kernel` takes; all but the first are for comparison."""

_THRESHOLDS = re.compile(r"binned:(\d{1,9}):(\d{1,9})(?::(\d{1,4}))?", re.ASCII)


def parse_kernel(text: str | None) -> tuple[str, BinThresholds | None]:
    """Tell the name of a kernel, and how rows are divided into bins if that is said.

    `text`: one of KERNELS, or ``binned:6:96`` or ``binned:6:96:256`` (BinThresholds); None for the default.
    Raises UsageError for what names no kernel, or divides no rows.

    >>> parse_kernel("binned:4:64")
    ('binned', BinThresholds(tiny=4, small=64, block=256))
    """
    if text is None:
        return next(iter(KERNELS)), None
    if text in KERNELS:
        return text, None
    if not text.startswith("binned:"):
        raise UsageError(f"kernel {text!r} is not known.", f"Use one of {', '.join(KERNELS)}.")
    found = _THRESHOLDS.fullmatch(text)
    tiny, small, block = (
        (int(number or BinThresholds.block) for number in found.groups()) if found else (1, 0, 0)
    )
    if tiny > small or block % 32 or not 32 <= block <= 1024:
        raise UsageError(
            f"kernel {text!r} divides no rows.",
            "Name the most links of a row for one thread and for 16, the first no larger, as in binned:6:96; "
            "the threads of a block, 32 to 1024 in steps of 32, may follow: binned:6:96:256.",
        )
    return text.partition(":")[0], BinThresholds(tiny, small, block)
