"""Sums over rows on the CPU: eight interleaved lanes, joined in order, the same on every processor.

Compilers may not reorder floating-point additions, so a plain loop adds one number at a time; here the order
is fixed to be one that vector units can follow.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import float64, types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from oocpr.jit import inner

LANES = 8
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_F64 = ir.DoubleType()
_VEC = ir.VectorType(_F64, LANES)
_ZERO = ir.Constant(_VEC, [0.0] * LANES)


def _load(b: Any, array: Any, element: Any, index: Any) -> Any:
    """Eight elements from `index` on as float64."""
    llvm = ir.FloatType() if element == types.float32 else _F64
    vector = ir.VectorType(llvm, LANES)
    value = b.load(b.bitcast(b.gep(array.data, [index]), vector.as_pointer()))
    value.align = 4
    return b.fpext(value, _VEC) if element == types.float32 else value


def _join(b: Any, lanes: Any) -> Any:
    kind = ir.FunctionType(_F64, [_F64, _VEC])
    reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f64")
    return b.call(reduce, [ir.Constant(_F64, -0.0), lanes])


def _accumulate(b: Any, vectors: Any, term: Any) -> Any:
    """Sum ``term(index)`` over the vectors at 0, 8, 16, ..."""
    total = cgutils.alloca_once_value(b, _ZERO)
    with cgutils.for_range(b, vectors) as loop:
        at = b.mul(loop.index, ir.Constant(_I64, LANES))
        b.store(b.fadd(b.load(total), term(at)), total)
    return _join(b, b.load(total))


@intrinsic
def _dot_lanes(typingctx: Any, a: Any, c: Any, vectors: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        first = context.make_array(signature.args[0])(context, b, args[0])
        second = context.make_array(signature.args[1])(context, b, args[1])
        kinds = signature.args[0].dtype, signature.args[1].dtype
        return _accumulate(
            b,
            args[2],
            lambda at: b.fmul(_load(b, first, kinds[0], at), _load(b, second, kinds[1], at)),
        )

    return types.float64(a, c, types.uint64), codegen


@intrinsic
def _sum_lanes(typingctx: Any, a: Any, vectors: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, b, args[0])
        return _accumulate(b, args[1], lambda at: _load(b, array, signature.args[0].dtype, at))

    return types.float64(a, types.uint64), codegen


@intrinsic
def _norm_lanes(typingctx: Any, a: Any, vectors: Any) -> Any:  # noqa: ARG001
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, b, args[0])
        kind = ir.FunctionType(_VEC, [_VEC])
        size = cgutils.get_or_insert_function(b.module, kind, f"llvm.fabs.v{LANES}f64")
        return _accumulate(
            b, args[1], lambda at: b.call(size, [_load(b, array, signature.args[0].dtype, at)])
        )

    return types.float64(a, types.uint64), codegen


@inner()
def dot(a, c, count):
    """Scalar product of ``a[:count]`` and ``c[:count]``, float32 or float64, contiguous."""
    vectors = uint64(count) // uint64(LANES)
    total = _dot_lanes(a, c, vectors)
    for i in range(vectors * uint64(LANES), uint64(count)):
        total += float64(a[i]) * float64(c[i])
    return total


@inner()
def add_up(a, count):
    """Sum of ``a[:count]``."""
    vectors = uint64(count) // uint64(LANES)
    total = _sum_lanes(a, vectors)
    for i in range(vectors * uint64(LANES), uint64(count)):
        total += float64(a[i])
    return total


@inner()
def norm(a, count):
    """L1 norm of ``a[:count]``."""
    vectors = uint64(count) // uint64(LANES)
    total = _norm_lanes(a, vectors)
    for i in range(vectors * uint64(LANES), uint64(count)):
        total += abs(float64(a[i]))
    return total
