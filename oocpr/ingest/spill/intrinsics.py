"""Memory as the processor has it: words at any byte, and changes that several threads make at once.

Indices are the caller's business: nothing here checks a bound.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from oocpr.store.codec.simd import intrinsic

_I64 = ir.IntType(64)


def _place(context: Any, b: Any, signature: Any, args: Any) -> Any:
    """Address of an entry of the first argument, an array; the second one says which."""
    array = context.make_array(signature.args[0])(context, b, args[0])
    return b.gep(array.data, [args[1]])


@intrinsic
def load_word(typingctx, data, at):  # noqa: ARG001
    """Eight bytes of a uint8 array from `at` on, as a uint64."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        word = b.load(b.bitcast(_place(context, b, signature, args), _I64.as_pointer()))
        word.align = 1
        return word

    return types.uint64(data, types.uint64), codegen


@intrinsic
def store_word(typingctx, data, at, word):  # noqa: ARG001
    """Write a uint64 to eight bytes of a uint8 array from `at` on."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        place = b.bitcast(_place(context, b, signature, args), _I64.as_pointer())
        b.store(args[2], place).align = 1
        return context.get_dummy_value()

    return types.void(data, types.uint64, types.uint64), codegen


def _atomic(operation: str) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.atomic_rmw(operation, _place(context, b, signature, args), args[2], "monotonic")
        return context.get_dummy_value()

    return codegen


@intrinsic
def set_bits(typingctx, words, at, bits):  # noqa: ARG001
    """Set bits of an entry of a uint64 array, whatever other threads do to it."""
    return types.void(words, types.uint64, types.uint64), _atomic("or")


@intrinsic
def add_count(typingctx, counts, at, more):  # noqa: ARG001
    """Add to an entry of a uint32 array, whatever other threads do to it."""
    return types.void(counts, types.uint64, types.uint32), _atomic("add")
