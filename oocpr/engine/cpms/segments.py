"""Float64 numbers in segments that are read apart: where they are, and functions for processors.

Blocks of 128 bytes hold one segment of neighbouring numbers each: the first segments of 32 numbers (in two
segments, uint32) or of 64 (in four, uint16), then their second ones, and so on. Reading fewer takes the
missing bits as zeros, and writing fewer leaves what was there (Gruetzmacher et al. 2018, section 3.1). Plain
float64 is one segment, uint64, so that all functions take it as well.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types, uint64
from numpy.typing import NDArray

from oocpr.engine.cpu.numbers import bits_of_double, double_of
from oocpr.jit import BORROWING, entry, inner
from oocpr.store.codec.bitpacking import intrinsic

BLOCK_BYTES = 128

KINDS: dict[int, Any] = {1: np.dtype(np.uint64), 2: np.dtype(np.uint32), 4: np.dtype(np.uint16)}
"""Type of a segment, by how many a number has."""


def segments_size(segments: int, count: int) -> int:
    """How many segments `count` numbers have, with what fills up their blocks."""
    group = 16 * segments
    return -(-count // group) * group * segments


def allocate_segments(segments: int, count: int) -> NDArray[Any]:
    """Make room for `count` numbers."""
    made: NDArray[Any] = np.zeros(segments_size(segments, count), KINDS[segments])
    return made


@intrinsic
def _bits(typingctx, array):  # noqa: ARG001
    """Bits of a segment, by the type of an array: known when it is compiled, so that nothing is divided."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return context.get_constant(types.uint64, array.dtype.bitwidth)

    return types.uint64(array), codegen


@inner(inline="always", **BORROWING)
def _place(array, number, segment):
    """Where a segment of a number is."""
    group, segments = uint64(8 * BLOCK_BYTES) // _bits(array), uint64(64) // _bits(array)
    return (number // group * segments + segment) * group + number % group


@inner(inline="always", **BORROWING)
def read_number(array, number, read):
    """Read the first segments of a number."""
    word = uint64(0)
    for segment in range(uint64(read)):
        part = uint64(array[_place(array, number, segment)])
        word |= part << (uint64(64) - _bits(array) * (segment + uint64(1)))
    return double_of(word)


@inner(inline="always", **BORROWING)
def write_number(array, number, written, value):
    """Write the first segments of a number, cut and not rounded."""
    word = bits_of_double(value)
    for segment in range(uint64(written)):
        array[_place(array, number, segment)] = word >> (uint64(64) - _bits(array) * (segment + uint64(1)))


@entry()
def write_numbers(values, first, written, array):
    """Write numbers from number `first` on."""
    for k in range(uint64(values.size)):
        write_number(array, uint64(first) + k, written, values[k])


@entry()
def read_numbers(array, first, read, values):
    """Read numbers from number `first` on."""
    for k in range(uint64(values.size)):
        values[k] = read_number(array, uint64(first) + k, read)


@entry()
def _to_plain(array, numbers):
    group, segments = uint64(8 * BLOCK_BYTES) // _bits(array), uint64(64) // _bits(array)
    held = np.empty(group, np.uint64)
    for begin in range(uint64(0), uint64(numbers.size), group):
        for k in range(group):
            held[k] = bits_of_double(read_number(array, begin + k, segments))
        for k in range(group):
            numbers[begin + k] = held[k]


def to_plain(array: NDArray[Any]) -> NDArray[np.uint64]:
    """Turn all numbers into plain float64 where they are; returns their words."""
    numbers = array.view(np.uint64)
    _to_plain(array, numbers)
    return numbers


@entry()
def copy_segments(source, chosen, read, out):
    """Copy the first segments of the numbers that `chosen` says, uint32, to neighbouring numbers."""
    for k in range(uint64(chosen.size)):
        for segment in range(uint64(read)):
            out[_place(out, k, segment)] = source[_place(source, uint64(chosen[k]), segment)]


@entry()
def add_up(array, chosen, read):
    """Sum of the absolute values of the numbers that `chosen` says, uint32."""
    total = 0.0
    for k in range(uint64(chosen.size)):
        total += abs(read_number(array, uint64(chosen[k]), read))
    return total


@entry()
def norm(array, low, high, read):
    """Sum of the absolute values of numbers `low` to `high` - 1."""
    total = 0.0
    for k in range(uint64(low), uint64(high)):
        total += abs(read_number(array, k, read))
    return total


@entry()
def distance(one, other, low, high, read):
    """Sum of the absolute differences of numbers `low` to `high` - 1."""
    total = 0.0
    for k in range(uint64(low), uint64(high)):
        total += abs(read_number(one, k, read) - read_number(other, k, read))
    return total


@entry()
def scale(array, low, high, read, divisor):
    """Divide numbers `low` to `high` - 1, of their first segments."""
    for k in range(uint64(low), uint64(high)):
        write_number(array, k, read, read_number(array, k, read) / divisor)


@inner(**BORROWING)
def _sum_row(columns, values, vector, first, end, read, total):
    """Add what a row gathers to `total`: a loop for each number of segments, as the paper has kernels."""
    if read == 1:
        for e in range(first, end):
            total += read_number(values, e, 1) * read_number(vector, uint64(columns[e]), 1)
    elif read == 2:
        for e in range(first, end):
            total += read_number(values, e, 2) * read_number(vector, uint64(columns[e]), 2)
    elif read == 3:
        for e in range(first, end):
            total += read_number(values, e, 3) * read_number(vector, uint64(columns[e]), 3)
    else:
        for e in range(first, end):
            total += read_number(values, e, 4) * read_number(vector, uint64(columns[e]), 4)
    return total


@entry()
def sweep_rows(
    positions, segments, columns, values, vector, low, high, owned, read, written, damping, constant, carry,
    first, out,
):  # fmt: skip
    """Sweep over rows `low` to `high` - 1 of a tile, which owns so many from row `first` on.

    Row `segments[k]` of the tile has the edges from ``positions[k]`` on. The sum of its first row begins with
    `carry`; if `high` is `owned`, that of the row behind is returned, which the next tile goes on with.
    """
    k = uint64(np.searchsorted(segments, np.uint32(low)))
    count = uint64(positions.size - 1)
    for row in range(uint64(low), uint64(high)):
        total = carry if row == 0 else 0.0
        if k < count and segments[k] == row:
            total = _sum_row(
                columns, values, vector, uint64(positions[k]), uint64(positions[k + uint64(1)]), read, total
            )
            k += uint64(1)
        write_number(out, uint64(first) + row, written, damping * total + constant)
    total = carry if high == 0 else 0.0
    if high == owned and k < count and segments[k] == high:
        total = _sum_row(
            columns, values, vector, uint64(positions[k]), uint64(positions[k + uint64(1)]), read, total
        )
    return total
