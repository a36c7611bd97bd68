"""Where other kernels want the edges: rows sorted by size, slices, chunks of columns, blocks of four.

Everything here is array code that runs on the device with CuPy and on the host with NumPy (`xp`). Orders are
found by sorting whole numbers that hold what is sorted by and what is sorted, so equals have one order too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

_LOW = 2**32 - 1
_PIECE = 1 << 26
"""Edges worked on at a time, so that what is between takes less memory than the edges do."""


class SortedRows(NamedTuple):
    """Rows by rising size."""

    begins: Any  # begins, sizes, numbers: first edge, number of edges and number of each row
    sizes: Any
    numbers: Any


class Slices(NamedTuple):
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


def slices(xp: ModuleType, offsets: Any, columns: Any, width: int, window: int) -> Slices:
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
    return Slices(begins, sizes, numbers, laid)


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
    """Join neighbouring columns of a row into blocks of four.

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
