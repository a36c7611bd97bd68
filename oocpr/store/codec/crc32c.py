"""CRC-32C of many bytes without holding the GIL.

Tiles pass through here each time they are read, in reader threads that must not stop the others; the
library that Zarr uses keeps the GIL. Three stretches of the bytes go through the processor's own CRC
instruction at once, as one stretch would wait three cycles for each word, and are joined by multiplying with
x^(8 * length) modulo the polynomial.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import google_crc32c
import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types, uint32, uint64
from numba.core import cgutils

from oocpr.jit import entry, inner
from oocpr.store.codec.simd import intrinsic

if TYPE_CHECKING:
    from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
"""The Castagnoli polynomial, lowest power in the highest bit."""

_HAS_INSTRUCTION = platform.machine() in {"x86_64", "AMD64"} and bool(
    llvmlite.binding.get_host_cpu_features().get("sse4.2")
)


@intrinsic
def _crc_word(typingctx, crc, word):  # noqa: ARG001
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        i64 = ir.IntType(64)
        name = "llvm.x86.sse42.crc32.64.64"
        return b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(i64, [i64, i64]), name), args)

    return types.uint64(types.uint64, types.uint64), codegen


@inner()
def _times(a, b):
    """Product of two polynomials modulo the polynomial."""
    product = uint32(0)
    for bit in range(31, -1, -1):
        if (a >> uint32(bit)) & uint32(1):
            product = uint32(product ^ b)
        b = uint32((b >> uint32(1)) ^ (uint32(_POLYNOMIAL) if b & uint32(1) else uint32(0)))
    return product


@inner()
def _shift(power):
    """X to the `power`, modulo the polynomial."""
    result = uint32(1 << 31)
    square = uint32(1 << 30)
    while power:
        if power & 1:
            result = _times(result, square)
        square = _times(square, square)
        power >>= 1
    return result


@entry()
def _crc_words(words, crc):
    third = uint64(words.size // 3)
    a = uint64(crc)
    b = uint64(0)
    c = uint64(0)
    for i in range(third):
        a = _crc_word(a, words[i])
        b = _crc_word(b, words[third + i])
        c = _crc_word(c, words[third + third + i])
    jump = _shift(64 * np.int64(third))
    a = uint64(_times(uint32(a), jump)) ^ b
    a = uint64(_times(uint32(a), jump)) ^ c
    for i in range(uint64(3) * third, uint64(words.size)):
        a = _crc_word(a, words[i])
    return uint32(a)


def crc32c(data: NDArray[np.uint8]) -> int:
    """CRC-32C of bytes, as RFC 3720 defines it.

    Parameters
    ----------
    data
        uint8, shape (k,), contiguous.

    Examples
    --------
    >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)))
    '0xe3069283'
    """
    whole = data.size // 8 * 8
    if not _HAS_INSTRUCTION or data.ctypes.data % 8:
        return int(google_crc32c.value(data))
    crc = int(_crc_words(data[:whole].view("<u8"), 0xFFFFFFFF)) ^ 0xFFFFFFFF
    return int(google_crc32c.extend(crc, data[whole:].tobytes()))
