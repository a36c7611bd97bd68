"""Narrow numbers in compiled code: one pair of functions, chosen by the element type of the array.

The bits are those of :mod:`oocpr.engine.number_formats`, which says what they mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import float32, float64, int64, types, uint8, uint16, uint32, uint64
from numba.extending import intrinsic, overload

from oocpr.engine.number_formats import LEVELS_PER_OCTAVE, level_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LEVELS = level_table()[:128]
_FRACTIONS = tuple(float(x) for x in _LEVELS[127 - LEVELS_PER_OCTAVE : 127] * 2)
_MIDDLES = tuple((a + b) / 2 for a, b in zip(_FRACTIONS, (*_FRACTIONS[1:], 2.0), strict=True))
_M0, _M1, _M2, _M3, _M4 = _MIDDLES
_MIN = float(_LEVELS[1] / 2)


def _bitcast(result: Any, source: Any, llvm: Any) -> Any:
    def cast(typingctx: Any, value: Any) -> Any:  # noqa: ARG001
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            return b.bitcast(args[0], llvm)

        return result(source), codegen

    return intrinsic(cast)


_float_of = _bitcast(types.float32, types.uint32, ir.FloatType())
_bits_of = _bitcast(types.uint32, types.float32, ir.IntType(32))
_bits_of_double = _bitcast(types.uint64, types.float64, ir.IntType(64))
double_of = _bitcast(types.float64, types.uint64, ir.DoubleType())


def widen(stored: Any, table: Any) -> float:
    """Return a stored number as float64; `table` holds the 256 scaled levels of ``bits8``."""
    raise NotImplementedError


def narrowed(reads: Any, value: float, scale: float) -> Any:
    """Return `value` rounded to the element type of `reads`."""
    raise NotImplementedError


@overload(widen, inline="always")
def _widen(stored, table):  # noqa: ARG001
    if stored == types.uint16:
        return lambda stored, table: float64(_float_of(uint32(uint32(stored) << uint32(16))))  # noqa: ARG005
    if stored == types.uint8:
        return lambda stored, table: table[stored]
    return lambda stored, table: float64(stored)  # noqa: ARG005


@overload(narrowed)
def _narrowed(reads, value, scale):  # noqa: ARG001
    if reads.dtype == types.uint16:
        return _to_bits16
    if reads.dtype == types.uint8:
        return _to_bits8
    if reads.dtype == types.float32:
        return lambda reads, value, scale: float32(value)  # noqa: ARG005
    return lambda reads, value, scale: value  # noqa: ARG005


def _to_bits16(reads, value, scale):  # noqa: ARG001
    bits = _bits_of(float32(value))
    return uint16(uint32(bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16))


def _to_bits8(reads, value, scale):  # noqa: ARG001
    size = abs(value) / scale
    if size < _MIN:
        return uint8(0)
    bits = _bits_of_double(size)
    octave = int64(bits >> uint64(52)) - int64(1023)
    mantissa = double_of((bits & uint64(0xFFFFFFFFFFFFF)) | uint64(0x3FF0000000000000))
    step = int64(mantissa >= _M0)
    step += int64(mantissa >= _M1)
    step += int64(mantissa >= _M2)
    step += int64(mantissa >= _M3)
    step += int64(mantissa >= _M4)
    level = min(int64(127), max(int64(1), int64(127) + LEVELS_PER_OCTAVE * octave + step))
    return uint8(level + int64(128) * int64(value < 0.0))


def scaled_table(scale: float) -> NDArray[np.float64]:
    """Magnitude of each byte of ``bits8`` at a scale; float64, shape (256,)."""
    return level_table() * scale
