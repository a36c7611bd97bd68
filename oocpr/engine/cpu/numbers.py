"""Numbers of edges and rows in compiled code: narrow ones that rows gather, weights, and divisors of ranks.

Every kernel is written once, for all number formats, for graphs with weights and without: these functions
have a version for each type. Without weights the argument is None and out-degrees are integers, and what only
weights need compiles to nothing. With weights the divisor of a row is the weight that leaves it, with a sign
that says whether any does. The bits of narrow numbers are those of :mod:`oocpr.engine.number_formats`.

Compilers may not reorder floating-point additions, so a plain loop adds one number at a time; sums over rows
are taken in eight interleaved lanes, joined in order, which vector units can follow: the same on every
processor.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import float32, float64, int64, types, uint8, uint16, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from oocpr.engine.number_formats import LEVELS_PER_OCTAVE, level_table
from oocpr.jit import entry, inner
from oocpr.store.codec.mantissa_segments import join_parts

if TYPE_CHECKING:
    from oocpr.store.codec.mantissa_segments import Segments

_LEVELS = level_table()[:128]
_FRACTIONS = tuple(float(x) for x in _LEVELS[127 - LEVELS_PER_OCTAVE : 127] * 2)
_MIDDLES = tuple((a + b) / 2 for a, b in zip(_FRACTIONS, (*_FRACTIONS[1:], 2.0), strict=True))
_M0, _M1, _M2, _M3, _M4 = _MIDDLES
_MIN = float(_LEVELS[1] / 2)


def by_types(**options: Any) -> Any:
    """Make a function of compiled code whose body is chosen, by what this decorates, from numba's types.

    `options` are those of ``numba.extending.overload``.
    """

    def decorate(choose: Any) -> Any:
        @wraps(choose)
        def function(*args: Any) -> Any:
            raise NotImplementedError("only compiled functions call this.")

        overload(function, **options)(choose)
        return function

    return decorate


def _bitcast(result: Any, source: Any, llvm: Any) -> Any:
    def cast(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return b.bitcast(args[0], llvm)

        return result(source), codegen

    return intrinsic(cast)


_float_of = _bitcast(types.float32, types.uint32, ir.FloatType())
_bits_of = _bitcast(types.uint32, types.float32, ir.IntType(32))
bits_of_double = _bitcast(types.uint64, types.float64, ir.IntType(64))
double_of = _bitcast(types.float64, types.uint64, ir.DoubleType())


@by_types(inline="always")
def widened(stored, table):
    """Return a stored number as float64; `table` holds the 256 scaled levels of ``bits8``."""
    if stored == types.uint16:
        return lambda stored, table: float64(_float_of(uint32(uint32(stored) << uint32(16))))
    if stored == types.uint8:
        return lambda stored, table: table[stored]
    return lambda stored, table: float64(stored)


@by_types()
def narrowed(reads, value, scale):
    """Return `value` rounded to the element type of `reads`."""
    if reads.dtype == types.uint16:
        return _to_bits16
    if reads.dtype == types.uint8:
        return _to_bits8
    if reads.dtype == types.float32:
        return lambda reads, value, scale: float32(value)
    return lambda reads, value, scale: value


def _to_bits16(reads, value, scale):
    bits = _bits_of(float32(value))
    return uint16(uint32(bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16))


def _to_bits8(reads, value, scale):
    size = abs(value) / scale
    if size < _MIN:
        return uint8(0)
    bits = bits_of_double(size)
    octave = int64(bits >> uint64(52)) - int64(1023)
    mantissa = double_of((bits & uint64(0xFFFFFFFFFFFFF)) | uint64(0x3FF0000000000000))
    step = int64(mantissa >= _M0)
    step += int64(mantissa >= _M1)
    step += int64(mantissa >= _M2)
    step += int64(mantissa >= _M3)
    step += int64(mantissa >= _M4)
    level = min(int64(127), max(int64(1), int64(127) + LEVELS_PER_OCTAVE * octave + step))
    return uint8(level + int64(128) * int64(value < 0.0))


class Weights(NamedTuple):
    """Weights of a tile's edges as they are stored, to be multiplied by `factor`.

    The parts have shape (edges,), or (0,) if all are zero; see `mantissa_segments.Segments`.
    """

    head: NDArray[np.uint16]
    second: NDArray[np.uint16]
    third: NDArray[np.uint16]
    fourth: NDArray[np.uint16]
    factor: float


def without_data(weights: Weights) -> Weights:
    """Make what has the same types and none of the memory."""
    head, second, third, fourth = map(_empty_like, weights[:4])
    return Weights(head, second, third, fourth, weights.factor)


def _empty_like(part: NDArray[np.uint16]) -> NDArray[np.uint16]:
    empty = np.empty(0, np.uint16)
    # Compiled functions have a version for each of both.
    empty.flags.writeable = part.flags.writeable
    return empty


def stored_weights(segments: Segments, edges: int, factor: float) -> Weights:
    """Take the weights of a tile of so many edges as they are stored."""
    missing = edges - segments.size
    # Zarr's chunks end before weights of zero.
    if missing == 0:
        return Weights(*segments.parts, factor)
    head, second, third, fourth = (
        np.append(part, np.zeros(missing, np.uint16)) if part.size else part for part in segments.parts
    )
    return Weights(head, second, third, fourth, factor)


@entry()
def decode_weights(weights, out):
    """Write the weights of a tile's edges to `out`, float64, shape (edges,)."""
    decode_piece_weights(weights, uint64(0), uint64(out.size), out)


@inner()
def decode_piece_weights(weights, first, count, out):
    """Write weights first .. first + count - 1 to the front of `out`, if there are weights."""
    if weights is None:
        return
    end = first + count
    join_parts(
        weights.head[first:end], weights.second[first:end], weights.third[first:end],
        weights.fourth[first:end], out[:count].view(np.uint64),
    )  # fmt: skip
    for i in range(count):
        out[i] *= weights.factor


@inner()
def _weight_at(weights, i):
    bits = uint64(0)
    if weights.head.size:
        bits |= uint64(weights.head[i]) << uint64(48)
    if weights.second.size:
        bits |= uint64(weights.second[i]) << uint64(32)
    if weights.third.size:
        bits |= uint64(weights.third[i]) << uint64(16)
    if weights.fourth.size:
        bits |= uint64(weights.fourth[i])
    return double_of(bits) * weights.factor


def _none(kind: Any) -> bool:
    return isinstance(kind, types.NoneType)


@by_types(inline="always")
def piece_buffer(weights, items):
    """Return memory for the weights of a piece; None if there are none."""
    if _none(weights):
        return lambda weights, items: None
    return lambda weights, items: np.empty(items, np.float64)


@by_types(inline="always")
def times_weight(value, weights, i):
    """Return `value` times weight i, if there are weights."""
    if _none(weights):
        return lambda value, weights, i: value
    return lambda value, weights, i: value * weights[i]


@by_types(inline="always")
def copy_weight(to, place, weights, i):
    """Write weight i to a place, if there are weights."""
    if _none(weights):
        return lambda to, place, weights, i: None

    def copy(to, place, weights, i):
        to[place] = weights[i]

    return copy


@by_types(inline="always")
def pad_weight(to, place):
    """Write a weight of zero to a place, if there are weights."""
    if _none(to):
        return lambda to, place: None

    def pad(to, place):
        to[place] = 0.0

    return pad


@by_types(inline="always")
def store_share(to, place, weights, i, degree, damping):
    """Write the share of a row's rank that edge i passes on, if there are weights."""
    if _none(weights):
        return lambda to, place, weights, i, degree, damping: None

    def store(to, place, weights, i, degree, damping):
        to[place] = float32(damping * _weight_at(weights, i) / abs(degree))

    return store


@inner()
def edge_factor(weights, degree, damping):
    """Return what a row sends along each edge, as a share of its rank; 1 if its edges have shares."""
    if weights is None:
        return float32(damping) / float32(max(degree, uint32(1)))
    return float32(1.0)


@inner()
def loop_share(weights, columns, begin, end, row, degree, damping):
    """Return the share of a row's rank that its edge to itself, one of begin .. end - 1, returns."""
    if weights is None:
        return float32(damping) / float32(max(degree, uint32(1)))
    for i in range(begin, end):
        if columns[i] == row:
            return float32(damping * _weight_at(weights, i) / abs(degree))
    return float32(0.0)


def divisors(degree: NDArray[Any]) -> NDArray[Any]:
    """Mark, in place, the rows that no weight leaves: their ranks are divided by one.

    >>> divisors(np.array([0.25, 0.0])).tolist()
    [0.25, -1.0]
    """
    if degree.dtype == np.float64:
        degree[degree == 0] = -1.0
    return degree


@by_types(inline="always")
def divisor(degree):
    """Return what a row's rank is divided by: its out-degree or the weight that leaves it, or one."""
    if degree == types.uint32:
        return lambda degree: float64(max(degree, uint32(1)))
    return lambda degree: abs(degree)


@by_types(inline="always")
def dangles(degree):
    """Whether nothing leaves a row."""
    if degree == types.uint32:
        return lambda degree: degree == uint32(0)
    return lambda degree: degree < 0.0


ROW_BLOCK = 1024
"""Rows of one partial sum."""

SIMD_LANES = 8
_I64 = ir.IntType(64)
_F64 = ir.DoubleType()
_VEC = ir.VectorType(_F64, SIMD_LANES)


def _load_lanes(b: Any, array: Any, element: Any, index: Any) -> Any:
    """Eight elements from `index` on as float64."""
    llvm = ir.FloatType() if element == types.float32 else _F64
    vector = ir.VectorType(llvm, SIMD_LANES)
    value = b.load(b.bitcast(b.gep(array.data, [index]), vector.as_pointer()))
    value.align = 4
    return b.fpext(value, _VEC) if element == types.float32 else value


def _call(b: Any, name: str, result: Any, *args: Any) -> Any:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, f"llvm.{name}.v{SIMD_LANES}f64"), args)


def _lane_sum(term: Any) -> Any:
    """Sum ``term(builder, lanes of a, lanes of c)`` over the vectors of two arrays at 0, 8, 16, ..."""

    def lanes(typingctx: Any, a: Any, c: Any, vectors: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            kinds = signature.args[:2]
            arrays = [
                context.make_array(kind)(context, b, array) for kind, array in zip(kinds, args, strict=False)
            ]
            total = cgutils.alloca_once_value(b, ir.Constant(_VEC, [0.0] * SIMD_LANES))
            with cgutils.for_range(b, args[2]) as loop:
                at = b.mul(loop.index, ir.Constant(_I64, SIMD_LANES))
                first, second = (
                    _load_lanes(b, array, kind.dtype, at) for kind, array in zip(kinds, arrays, strict=True)
                )
                b.store(b.fadd(b.load(total), term(b, first, second)), total)
            return _call(b, "vector.reduce.fadd", _F64, ir.Constant(_F64, -0.0), b.load(total))

        return types.float64(a, c, types.uint64), codegen

    return intrinsic(lanes)


_dot_lanes = _lane_sum(lambda b, first, second: b.fmul(first, second))
_sum_lanes = _lane_sum(lambda b, first, second: first)
_norm_lanes = _lane_sum(lambda b, first, second: _call(b, "fabs", _VEC, first))


@inner()
def dot(a, c, count):
    """Scalar product of ``a[:count]`` and ``c[:count]``, float32 or float64, contiguous."""
    vectors = uint64(count) // uint64(SIMD_LANES)
    total = _dot_lanes(a, c, vectors)
    for i in range(vectors * uint64(SIMD_LANES), uint64(count)):
        total += float64(a[i]) * float64(c[i])
    return total


@inner()
def add_up(a, count):
    """Sum of ``a[:count]``."""
    vectors = uint64(count) // uint64(SIMD_LANES)
    total = _sum_lanes(a, a, vectors)
    for i in range(vectors * uint64(SIMD_LANES), uint64(count)):
        total += float64(a[i])
    return total


@inner()
def norm(a, count):
    """L1 norm of ``a[:count]``."""
    vectors = uint64(count) // uint64(SIMD_LANES)
    total = _norm_lanes(a, a, vectors)
    for i in range(vectors * uint64(SIMD_LANES), uint64(count)):
        total += abs(float64(a[i]))
    return total
