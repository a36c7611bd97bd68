"""Instructions that numba does not find by itself, as LLVM intermediate code; no bound is checked.

Those on vectors have sixteen 32-bit lanes; LLVM splits or joins them for the processor at hand.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic

# The decorated function is called with one argument less than it is declared with.
intrinsic: Any = _intrinsic

_LANES = 16
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VEC = ir.VectorType(_I32, _LANES)
_ZERO = ir.Constant(_VEC, [0] * _LANES)
_LAST = ir.Constant(_VEC, [_LANES - 1] * _LANES)
_UNDEFINED = ir.Constant(_VEC, ir.Undefined)
_ONE = ir.Constant(_VEC, [1] * _LANES)


def _splat(b: Any, value: Any) -> Any:
    first = b.insert_element(_UNDEFINED, value, ir.Constant(_I32, 0))
    return b.shuffle_vector(first, _UNDEFINED, _ZERO)


def _address(b: Any, array: Any, index: Any) -> Any:
    return b.bitcast(b.gep(array.data, [index]), _VEC.as_pointer())


def _load(b: Any, array: Any, index: Any) -> Any:
    value = b.load(_address(b, array, index))
    value.align = 4
    return value


def _store(b: Any, value: Any, array: Any, index: Any) -> None:
    b.store(value, _address(b, array, index)).align = 4


def _running_sum(b: Any, v: Any) -> Any:
    for step in (1, 2, 4, 8):
        lanes = [_LANES + j - step if j >= step else j for j in range(_LANES)]
        v = b.add(v, b.shuffle_vector(_ZERO, v, ir.Constant(_VEC, lanes)))
    return v


@intrinsic
def bit_length(typingctx, value):  # noqa: ARG001
    """Number of bits of a uint32 without its leading zeros."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return b.sub(ir.Constant(_I32, 32), b.ctlz(args[0], ir.Constant(ir.IntType(1), 0)))

    return types.uint32(types.uint32), codegen


@intrinsic
def count_ones(typingctx, word):  # noqa: ARG001
    """Number of bits of a uint64 that are set."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return b.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def lowest_one(typingctx, word):  # noqa: ARG001
    """Number of zeros below the lowest set bit of a uint64 that is not 0."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return b.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic
def lanes_above(typingctx, values, at, limit):  # noqa: ARG001
    """Which of the 32 values at ``values[at:at+32]`` are above `limit`: bit k for value k."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(signature.args[0])(context, b, args[0])
        limits = _splat(b, args[2])
        halves = []
        for half in (0, _LANES):
            value = _load(b, source, b.add(args[1], ir.Constant(_I64, half)))
            above = b.bitcast(b.icmp_unsigned(">", value, limits), ir.IntType(_LANES))
            halves.append(b.zext(above, _I32))
        return b.or_(halves[0], b.shl(halves[1], ir.Constant(_I32, _LANES)))

    return types.uint32(values, types.uint64, types.uint32), codegen


@intrinsic
def unpack_group(typingctx, words, row, next_row, shift, width, plus, out, at):  # noqa: ARG001
    """Write 32 values of `width` bits plus `plus` to ``out[at:at+32]``.

    The bits start at bit `shift` (0..31) of word `row` of each lane and run on into word `next_row`.
    """
    u32, u64 = types.uint32, types.uint64

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(signature.args[0])(context, b, args[0])
        target = context.make_array(signature.args[6])(context, b, args[6])
        _, row, next_row, shift, width, plus, _, at = args
        one = ir.Constant(_I64, 1)
        mask = b.trunc(b.sub(b.shl(one, b.zext(width, _I64)), one), _I32)
        down, up = _splat(b, shift), _splat(b, b.sub(ir.Constant(_I32, 31), shift))
        masks, more = _splat(b, mask), _splat(b, plus)
        for half in (0, _LANES):
            offset = ir.Constant(_I64, half)
            low = _load(b, source, b.add(b.shl(row, ir.Constant(_I64, 5)), offset))
            high = _load(b, source, b.add(b.shl(next_row, ir.Constant(_I64, 5)), offset))
            # Shifting left by one and then by 31 - shift is defined for shift 0 too.
            joined = b.or_(b.lshr(low, down), b.shl(b.shl(high, _ONE), up))
            _store(b, b.add(b.and_(joined, masks), more), target, b.add(at, offset))
        return context.get_dummy_value()

    return types.void(words, u64, u64, u32, u32, u32, out, u64), codegen


@intrinsic
def running_sums(typingctx, source, source_at, target, target_at, vectors, before):  # noqa: ARG001
    """Write the running sums of 16 * `vectors` values, begun with `before`, to `target`.

    Both arrays are taken from an index on; they may be the same. Sums are modulo 2^32. Returns the largest.
    """
    u32, u64 = types.uint32, types.uint64

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        src = context.make_array(signature.args[0])(context, b, args[0])
        dst = context.make_array(signature.args[2])(context, b, args[2])
        _, source_at, _, target_at, vectors, before = args
        carry = cgutils.alloca_once_value(b, _splat(b, before))
        top = cgutils.alloca_once_value(b, _ZERO)
        with cgutils.for_range(b, vectors) as loop:
            step = b.shl(loop.index, ir.Constant(_I64, 4))
            sums = _running_sum(b, _load(b, src, b.add(source_at, step)))
            # Only one addition waits for the vector before: the last sum is spread before the carry is known.
            old = b.load(carry)
            b.store(b.add(old, b.shuffle_vector(sums, _UNDEFINED, _LAST)), carry)
            sums = b.add(sums, old)
            _store(b, sums, dst, b.add(target_at, step))
            best = b.load(top)
            b.store(b.select(b.icmp_unsigned(">", sums, best), sums, best), top)
        kind = ir.FunctionType(_I32, [_VEC])
        reduce = cgutils.get_or_insert_function(b.module, kind, f"llvm.vector.reduce.umax.v{_LANES}i32")
        return b.call(reduce, [b.load(top)])

    return u32(source, u64, target, u64, u64, u32), codegen
