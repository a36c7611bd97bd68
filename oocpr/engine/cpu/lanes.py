"""Vectors of numbers in compiled code, which stay in registers from one operation to the next.

A loop over a few neighbouring numbers becomes vector instructions too, but it writes its sums to memory and
reads them again at each turn, and compares at each turn whether two arrays overlap: sweeps over rows of
sixteen numbers took three times as long.

Arithmetic is that of each number alone, in the order in which it is written.
"""

# Numba carries no types.
# mypy: allow-untyped-calls=True, allow-untyped-defs=True

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model


class Lanes(types.Type):
    """Type of a vector: numbers of one kind, and how many."""

    def __init__(self, kind: Any, width: int) -> None:
        self.kind, self.width = kind, width
        super().__init__(f"Lanes({kind}, {width})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Lanes) -> None:
        kind = manager.lookup(fe_type.kind).get_value_type()
        super().__init__(manager, fe_type, ir.VectorType(kind, fe_type.width))


def _pointer(context: Any, b: Any, array: Any, value: Any, at: Any, kind: Any) -> Any:
    data = context.make_array(array)(context, b, value).data
    return b.bitcast(b.gep(data, [at]), context.get_value_type(kind).as_pointer())


@intrinsic
def load(typingctx: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Read ``array[at : at + len(lanes)]`` of an array in one piece, `lanes` being a tuple of that length."""
    kind = Lanes(array.dtype, len(lanes))

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, b, array, args[0], args[1], kind)
        return b.load(pointer, align=array.dtype.bitwidth // 8)

    return kind(array, types.uint64, lanes), codegen


@intrinsic
def store(typingctx: Any, array: Any, at: Any, vector: Any) -> Any:
    """Write a vector to ``array[at : at + its width]``."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, b, array, args[0], args[1], vector)
        b.store(args[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.uint64, vector), codegen


@intrinsic
def prefetch(typingctx: Any, array: Any, at: Any) -> Any:
    """Have the cache line of ``array[at]`` fetched, which will be read soon."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, b, array, args[0], args[1], types.int8)
        words = [ir.IntType(32)] * 3
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *words])
        function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
        # For reading, into all caches, of data.
        b.call(function, [pointer, *(ir.Constant(words[0], how) for how in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), codegen


@intrinsic
def full(typingctx: Any, number: Any, lanes: Any) -> Any:
    """Make a vector of a number that is the same in all lanes."""
    kind = Lanes(number, len(lanes))

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(ir.VectorType(args[0].type, kind.width), ir.Undefined)
        first = b.insert_element(one, args[0], ir.IntType(32)(0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), kind.width), [0] * kind.width)
        return b.shuffle_vector(first, one, places)

    return kind(number, lanes), codegen


def _conversion(of: Any, to: Any, name: str) -> Any:
    def convert(typingctx: Any, vector: Any) -> Any:
        if vector.kind != of:
            return None
        kind = Lanes(to, vector.width)

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return getattr(b, name)(args[0], context.get_value_type(kind))

        return kind(vector), codegen

    return intrinsic(convert)


widen = _conversion(types.float32, types.float64, "fpext")
narrow = _conversion(types.float64, types.float32, "fptrunc")


@intrinsic
def magnitude(typingctx: Any, vector: Any) -> Any:
    """Absolute values."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        name = f"llvm.fabs.v{vector.width}f{vector.kind.bitwidth}"
        kind = ir.FunctionType(args[0].type, [args[0].type])
        return b.call(cgutils.get_or_insert_function(b.module, kind, name), args)

    return vector(vector), codegen


@intrinsic
def select(typingctx: Any, chosen: Any, one: Any, other: Any) -> Any:
    """Take `one` in the lanes in which the whole number of `chosen` is not 0, and `other` elsewhere."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        nothing = ir.Constant(args[0].type, [0] * chosen.width)
        return b.select(b.icmp_unsigned("!=", args[0], nothing), args[1], args[2])

    return one(chosen, one, other), codegen


def _operation(functions: tuple[Any, ...], name: str) -> None:
    @intrinsic
    def operate(typingctx: Any, one: Any, other: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return getattr(b, name)(*args)

        return one(one, other), codegen

    def choose(one, other):
        if isinstance(one, Lanes) and one == other:
            return lambda one, other: operate(one, other)
        return None

    for function in functions:
        overload(function)(choose)


_operation((operator.add, operator.iadd), "fadd")
_operation((operator.sub,), "fsub")
_operation((operator.mul,), "fmul")
