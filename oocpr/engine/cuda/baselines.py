"""The products of other systems, each with its own layout of the matrix, to be compared with the default.

A product takes what was pushed, one narrow number a node as rows gather it, and sums for each row the numbers
of the nodes with edges to it. If pairs are gathered, the second numbers, proposals, are summed as well.

Layouts are array code that runs on the device with CuPy and on the host with NumPy (`xp`). Orders are found
by sorting whole numbers that hold what is sorted by and what is sorted, so equals have one order too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine.cuda.device import THREADS
from oocpr.engine.cuda.spmv import EVERYTHING, READ_STRUCTS, Gather, window_word
from oocpr.errors import UsageError

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device, Kernels
    from oocpr.engine.cuda.spmv import Window

_LOW = 2**32 - 1
_PIECE = 1 << 26
"""Edges worked on at a time, so that what is between takes less memory than the edges do."""


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


class Product:
    """A matrix laid out for one kernel, in `nbytes` bytes."""

    file: str

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, **parameters: int | str) -> None:
        self._xp = device.xp
        self._matrix = matrix
        self._load = partial(
            device.load,
            self.file,
            READS=READ_STRUCTS[gather.reads],
            PAIRED=int(gather.paired),
            STRIPED=int(gather.striped),
            INDEX="u64" if matrix.offsets.dtype.itemsize == 8 else "u32",
        )
        self._kernels: Kernels = self._load(**parameters)
        self.nbytes = 0

    def __call__(self, reads: Any, pushes: Any, proposals: Any = None, window: Window = EVERYTHING) -> None:
        """Launch the product; allocates nothing.

        `reads`: numbers of all nodes and zeros behind them; the format's dtype, shape (nodes + 4,), or
            (nodes + 4, 2) if paired.
        `pushes`, `proposals`: receive the sums, those of ``bits8`` without the scale; float64 and float32,
            shape (rows,).
        """
        self._run(reads, pushes, proposals, window)

    def _run(self, reads: Any, pushes: Any, proposals: Any, window: Window) -> None:
        raise NotImplementedError

    def _hold(self, *arrays: Any) -> tuple[Any, ...]:
        self.nbytes += sum(int(array.nbytes) for array in arrays)
        return arrays

    def _launch(self, name: str, threads: int, arguments: tuple[Any, ...], block: int = THREADS) -> None:
        if threads:
            self._kernels.get_function(name)((-(-threads // block),), (block,), arguments)


class RowProduct(Product):
    """One kernel, so many lanes per row."""

    kernel: str
    _lanes = 1
    _arrays: tuple[Any, ...]

    def _run(self, reads: Any, pushes: Any, proposals: Any, window: Window) -> None:
        rows = self._matrix.rows
        arguments = (*self._arrays, reads, window_word(window), np.uint32(rows), pushes, proposals)
        self._launch(self.kernel, rows * self._lanes, arguments)


class RowLanes(RowProduct):
    """So many lanes a row, 0 for a warp: ``kernels/papers/rows.cu``."""

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
    block: int = THREADS  # threads of a block


BINNED_THREADS = (256, 512, 1024)
"""Threads of a block for which the row-binned kernel is compiled."""


class Binned(Product):
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
            MOST_THREADS=next(threads for threads in BINNED_THREADS if threads >= thresholds.block)
        )

    def _run(self, reads: Any, pushes: Any, proposals: Any, window: Window) -> None:
        for name, lanes, first, last in self._bins:
            arguments = (
                *self._rows, first, last, self._matrix.columns, reads, window_word(window), pushes, proposals,
            )  # fmt: skip
            self._launch(name, int(last - first) * lanes, arguments, self._block)


class Sell(RowProduct):
    """One thread a row, rows side by side: ``kernels/papers/sell.cu``."""

    file, kernel = "papers/sell.cu", "sell"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather, *, window: int = 1 << 14) -> None:
        super().__init__(device, matrix, gather, SLICE=device.warp)
        self._arrays = self._hold(*slices(self._xp, matrix.offsets, matrix.columns, device.warp, window))


class AtomicEdges(Product):
    """One thread an edge, atomic sums, whose bits change from run to run: ``kernels/papers/edges.cu``."""

    file = "papers/edges.cu"

    def __init__(self, device: Device, matrix: Matrix, gather: Gather) -> None:
        super().__init__(device, matrix, gather)
        numbers = row_numbers(self._xp, matrix.offsets, matrix.edges)
        self._arrays = self._hold(numbers, matrix.columns)

    def _run(self, reads: Any, pushes: Any, proposals: Any, window: Window) -> None:
        edges = self._matrix.edges
        pushes.fill(0)
        if proposals is not None:
            proposals.fill(0)
        arguments = (*self._arrays, reads, window_word(window), np.uint64(edges), pushes, proposals)
        self._launch("add_edges", edges, arguments)


class DividingEdges(AtomicEdges):
    """The same, but each edge divides: `reads` are float64 and not yet divided by out-degrees."""

    def __init__(self, device: Device, matrix: Matrix, gather: Gather) -> None:
        if gather != Gather("float64") or matrix.degrees is None:
            raise ValueError("edges that divide gather single float64 numbers, and need out-degrees")
        super().__init__(device, matrix, gather)
        self._hold(matrix.degrees)

    def _run(self, reads: Any, pushes: Any, proposals: Any, window: Window) -> None:  # noqa: ARG002
        edges = self._matrix.edges
        pushes.fill(0)
        arguments = (*self._arrays, reads, self._matrix.degrees, np.uint64(edges), pushes)
        self._launch("divide_and_add", edges, arguments)


class Chunked(Product):
    """Gathers from chunks in shared memory: ``kernels/papers/chunked.cu``."""

    file = "papers/chunked.cu"
    threads = 1024

    def __init__(
        self, device: Device, matrix: Matrix, gather: Gather, *, lanes: int = 4, size: int | None = None
    ) -> None:
        super().__init__(device, matrix, gather, ROW_LANES=lanes)
        self._size = size or min(1 << 16, device.shared_bytes // gather.bytes)
        self._shared = self._size * gather.bytes
        *arrays, self._bounds = chunks(self._xp, matrix.offsets, matrix.columns, matrix.nodes, self._size)
        self._offsets, self._numbers, self._columns = self._hold(*arrays)
        self._lanes = lanes
        self._max_blocks = device.multiprocessors * (2 if 2 * self._shared <= device.shared_bytes else 1)
        self._kernel = self._kernels.get_function("add_chunk")
        self._kernel.max_dynamic_shared_size_bytes = self._shared

    def _run(self, reads: Any, pushes: Any, proposals: Any, window: Window) -> None:
        pushes.fill(0)
        if proposals is not None:
            proposals.fill(0)
        for k, (first, last) in enumerate(pairwise(self._bounds)):
            begin = k * self._size
            size = min(self._size, self._matrix.nodes - begin)
            grid = min(self._max_blocks, -(-(last - first) * self._lanes // self.threads))
            arguments = (
                self._offsets, self._numbers, np.uint64(first), np.uint64(last), self._columns, reads,
                np.uint32(begin), np.uint32(size), window_word(window), pushes, proposals,
            )  # fmt: skip
            if grid:
                self._kernel((grid,), (self.threads,), arguments, shared_mem=self._shared)


class Bcsr(RowProduct):
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


BASELINES = {
    "csr-scalar": Baseline("one thread a row", partial(RowLanes, lanes=1)),
    "csr-16": Baseline("16 threads a row", partial(RowLanes, lanes=16)),
    "csr-vector": Baseline("one warp a row", partial(RowLanes, lanes=0)),
    "binned": Baseline("a thread, 16 or 32 lanes a row, by its size (Wu 2010)", Binned),
    "ell": Baseline("one thread a row, columns side by side (SELL-C-sigma)", Sell),
    "edges-divide": Baseline(
        "one thread an edge, dividing, atomic sums (Jiang 2014, A)", DividingEdges, False, True
    ),
    "edges": Baseline("one thread an edge, atomic sums (Jiang 2014, exchange)", AtomicEdges, False),
    "chunked": Baseline("chunks of columns in shared memory (contest report, step 2)", Chunked),
    "bcsr": Baseline("blocks of one row and four columns (Shan 2010)", Bcsr),
}

KERNELS = {
    "balanced": "packed columns, equal pieces of edges",
    **{name: baseline.words for name, baseline in BASELINES.items() if not baseline.divides},
}
"""What each product does, by the name that `--kernel` takes; all but the first are for comparison."""

_THRESHOLDS = re.compile(r"binned:(\d{1,9}):(\d{1,9})(?::(\d{1,4}))?", re.ASCII)


def parse_kernel(text: str | None) -> tuple[str, BinThresholds | None]:
    """Name of a kernel, and how rows are divided into bins if that is said.

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
            "Name the most edges of a row for one thread and for 16, the first no larger, as in binned:6:96; "
            "the threads of a block, 32 to 1024 in steps of 32, may follow: binned:6:96:256.",
        )
    return text.partition(":")[0], BinThresholds(tiny, small, block)


class SortedRows(NamedTuple):
    """Rows by rising size."""

    begins: Any  # begins, sizes, numbers: first edge, number of edges and number of each row
    sizes: Any
    numbers: Any


class SellSlices(NamedTuple):
    """Rows in slices, each as wide as its longest row; see ``kernels/papers/sell.cu``."""

    begins: Any  # uint64: first entry of each slice, and the number of entries
    sizes: Any  # sizes, numbers: uint32: edges and number of the row in each slot
    numbers: Any
    columns: Any  # uint32: entries, slot after slot within each step of a slice; 0 where a row has no more


class Chunks(NamedTuple):
    """Edges by chunk of columns, then by row; see ``kernels/papers/chunked.cu``."""

    offsets: Any  # first edge of each part, and the number of edges
    numbers: Any  # uint32: row of each part
    columns: Any  # uint16: columns, counted from the first of their chunk
    bounds: tuple[int, ...]  # first part of each chunk, and the number of parts


class Blocks(NamedTuple):
    """Blocks of one row and four columns; see ``kernels/papers/bcsr.cu``."""

    offsets: Any  # first block of each row, and the number of blocks
    numbers: Any  # uint32: first column of each block, divided by four
    bits: Any  # uint8: bit i where the block's column i is there


def row_numbers(xp: ModuleType, offsets: Any, edges: int) -> Any:
    """Row of each edge; uint32, shape (edges,).

    >>> import numpy as np
    >>> row_numbers(np, np.array([0, 2, 2, 3]), 3).tolist()
    [0, 0, 2]
    """
    numbers = xp.empty(edges, xp.uint32)
    for first in range(0, edges, _PIECE):
        last = min(edges, first + _PIECE)
        there = xp.arange(first, last, dtype=offsets.dtype)
        numbers[first:last] = xp.searchsorted(offsets, there, side="right") - 1
    return numbers


def by_size(xp: ModuleType, offsets: Any) -> SortedRows:
    """Sort rows by size.

    >>> import numpy as np
    >>> found = by_size(np, np.array([0, 9, 9, 11, 16], np.uint32))
    >>> found.numbers.tolist(), found.sizes.tolist(), found.begins.tolist()
    ([1, 2, 3, 0], [0, 2, 5, 9], [9, 9, 11, 0])
    """
    rows = offsets.size - 1
    key = (offsets[1:] - offsets[:-1]).astype(xp.uint64) << 32 | xp.arange(rows, dtype=xp.uint64)
    key.sort()
    numbers, sizes = (key & _LOW).astype(xp.uint32), (key >> 32).astype(xp.uint32)
    return SortedRows(offsets[numbers], sizes, numbers)


def bounds_of_bins(xp: ModuleType, sizes: Any, thresholds: tuple[int, ...]) -> tuple[int, ...]:
    """First row of each bin, and the number of rows; `sizes` rise.

    Bin k has the rows of at most ``thresholds[k]`` edges that no bin before has, the last bin all others.

    >>> import numpy as np
    >>> bounds_of_bins(np, np.array([0, 2, 5, 9], np.uint32), (2, 6))
    (0, 2, 3, 4)
    """
    ends = xp.searchsorted(sizes, xp.asarray(thresholds, xp.uint32), side="right")
    return 0, *(int(n) for n in ends), int(sizes.size)


def slices(xp: ModuleType, offsets: Any, columns: Any, width: int, window: int) -> SellSlices:
    """Lay rows side by side, `width` at a time, those of each `window` rows by falling size.

    >>> import numpy as np
    >>> found = slices(np, np.array([0, 1, 4, 4]), np.array([7, 1, 2, 3], np.uint32), 2, 4)
    >>> found.numbers.tolist(), found.begins.tolist(), found.columns.tolist()
    ([1, 0, 2], [0, 6, 6], [1, 7, 2, 0, 3, 0])
    """
    rows, edges = offsets.size - 1, int(columns.size)
    bits = (window - 1).bit_length()
    number = xp.arange(rows, dtype=xp.uint64)
    key = (_LOW - (offsets[1:] - offsets[:-1]).astype(xp.uint64)) << bits | number % window
    key |= number // window << (32 + bits)
    key.sort()
    sizes = (_LOW - (key >> bits & _LOW)).astype(xp.uint32)
    numbers = ((key >> (32 + bits)) * window + (key & (2**bits - 1))).astype(xp.uint32)
    count = -(-rows // width)
    padded = xp.zeros(count * width, xp.uint64)
    padded[:rows] = sizes
    begins = xp.zeros(count + 1, xp.uint64)
    xp.cumsum(padded.reshape(count, width).max(axis=1) * xp.uint64(width), out=begins[1:])
    slots = xp.empty(rows, xp.uint64)
    slots[numbers] = number
    laid = xp.zeros(int(begins[-1]), xp.uint32)
    row_of = row_numbers(xp, offsets, edges)
    for first in range(0, edges, _PIECE):
        piece = slice(first, min(edges, first + _PIECE))
        row = row_of[piece]
        slot = slots[row]
        step = xp.arange(first, piece.stop, dtype=xp.uint64) - offsets[row].astype(xp.uint64)
        laid[begins[slot // width] + step * width + slot % width] = columns[piece]
    return SellSlices(begins, sizes, numbers, laid)


def chunks(xp: ModuleType, offsets: Any, columns: Any, nodes: int, size: int) -> Chunks:
    """Group edges by chunks of `size` columns, at most 65,536.

    >>> import numpy as np
    >>> found = chunks(np, np.array([0, 3, 4], np.uint32), np.array([0, 1, 5, 4], np.uint32), 6, 4)
    >>> found.offsets.tolist(), found.numbers.tolist(), found.columns.tolist(), found.bounds
    ([0, 2, 3, 4], [0, 0, 1], [0, 1, 1, 0], (0, 1, 3))
    """
    edges, count = int(columns.size), -(-nodes // size)
    key = (columns // size).astype(xp.uint64) << 32 | xp.arange(edges, dtype=xp.uint64)
    key.sort()
    order = (key & _LOW).astype(xp.uint32)
    # What parts are told apart by: the chunk, and the row.
    part = key >> 32 << 32 | row_numbers(xp, offsets, edges)[order]
    del key
    first = xp.ones(edges, xp.bool_)
    first[1:] = part[1:] != part[:-1]
    begins = xp.flatnonzero(first).astype(offsets.dtype)
    part = part[first]
    bounds = xp.searchsorted(part >> 32, xp.arange(count + 1, dtype=xp.uint64), side="left")
    ends = xp.concatenate([begins, xp.full(1, edges, offsets.dtype)])
    within = (columns[order] % size).astype(xp.uint16)
    return Chunks(ends, (part & _LOW).astype(xp.uint32), within, tuple(bounds.tolist()))


def blocks_of_four(xp: ModuleType, offsets: Any, columns: Any) -> Blocks:
    """Merge neighbouring columns of a row into blocks of four.

    >>> import numpy as np
    >>> found = blocks_of_four(np, np.array([0, 3, 4], np.uint32), np.array([0, 2, 5, 7], np.uint32))
    >>> found.offsets.tolist(), found.numbers.tolist(), found.bits.tolist()
    ([0, 2, 3], [0, 1, 1], [5, 2, 8])
    """
    edges = int(columns.size)
    number = columns // 4
    first = xp.ones(edges, xp.bool_)
    first[1:] = number[1:] != number[:-1]
    # A block ends with its row; rows without edges begin where another does, or behind the last edge.
    begins = offsets[:-1]
    first[begins[begins < edges]] = True
    at = xp.flatnonzero(first)
    before = xp.zeros(edges + 1, offsets.dtype)
    xp.cumsum(first, out=before[1:], dtype=offsets.dtype)
    # Columns of a block are different, so their bits add up to at most 15: sums modulo 256 tell them apart.
    sums = xp.zeros(edges + 1, xp.uint8)
    xp.cumsum(xp.uint8(1) << (columns % 4).astype(xp.uint8), out=sums[1:], dtype=xp.uint8)
    ends = xp.concatenate([at[1:], xp.full(1, edges, at.dtype)])
    return Blocks(before[offsets], number[at], sums[ends] - sums[at])
