"""Files that end with the CRC-32C of what is before: several are read and checked in one compiled call.

Python is not held meanwhile. A thread that reads them one by one lets go of it five times per file, and takes
it again as often, which others hold.
"""

# numba compiles by the types of the arguments, not by annotations.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True, allow-untyped-calls=True

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import int64, types, uint32, uint64
from numba.core import cgutils
from numpy.typing import NDArray

from oocpr.jit import entry, inner
from oocpr.store.codec.bitpacking import intrinsic
from oocpr.store.format import CRC_BYTES

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FEATURES = binding.get_host_cpu_features()
_X86, _ARM = bool(_FEATURES.get("sse4.2")), bool(_FEATURES.get("crc"))

SUPPORTED = sys.platform == "linux" and (_X86 or _ARM)
"""Whether this processor has an instruction for CRC-32C, and the system the calls below."""

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_open: Any = types.ExternalFunction("open", types.int32(types.uintp, types.int32))
_pread: Any = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.intp))
_close: Any = types.ExternalFunction("close", types.int32(types.int32))


@intrinsic
def _add_word(typingctx, crc, word):  # noqa: ARG001
    """CRC-32C, without its inversions, of one more word of eight bytes."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        if _X86:
            kind, name = ir.FunctionType(_I64, [_I64, _I64]), "llvm.x86.sse42.crc32.64.64"
            return b.call(cgutils.get_or_insert_function(b.module, kind, name), args)
        kind, name = ir.FunctionType(_I32, [_I32, _I64]), "llvm.aarch64.crc32cx"
        found = b.call(
            cgutils.get_or_insert_function(b.module, kind, name), [b.trunc(args[0], _I32), args[1]]
        )
        return b.zext(found, _I64)

    return types.uint64(types.uint64, types.uint64), codegen


_POLYNOMIAL = 0x82F63B78  # of CRC-32C: bit 31 is that of x^0


@inner()
def _times(a, b):
    """Product of two polynomials modulo that of CRC-32C."""
    product = uint32(0)
    for bit in range(31, -1, -1):
        if a >> uint32(bit) & uint32(1):
            product ^= b
        b = (b >> uint32(1)) ^ (uint32(_POLYNOMIAL) if b & uint32(1) else uint32(0))
    return product


@inner()
def _behind(crc, nbytes):
    """CRC-32C, without its inversions, of what has `crc` with so many zero bytes behind."""
    power = uint32(1 << 23)  # x^8
    while nbytes:
        if nbytes & 1:
            crc = _times(power, crc)
        power = _times(power, power)
        nbytes >>= 1
    return crc


@entry(shared=True)
def checksum(data):
    """CRC-32C of bytes that begin at a multiple of eight."""
    # Three parts at once, since the instruction takes as long as three of them.
    words = data[: data.size // 24 * 24].view(np.uint64)
    third = words.size // 3
    a, b, c = uint64(0xFFFFFFFF), uint64(0), uint64(0)
    for k in range(third):
        a = _add_word(a, words[k])
        b = _add_word(b, words[third + k])
        c = _add_word(c, words[2 * third + k])
    crc = _behind(_behind(uint32(a), 8 * third) ^ uint32(b), 8 * third) ^ uint32(c)
    for k in range(24 * third, data.size):
        crc ^= uint32(data[k])
        for _ in range(8):
            crc = (crc >> uint32(1)) ^ (uint32(_POLYNOMIAL) if crc & uint32(1) else uint32(0))
    return uint32(crc) ^ uint32(0xFFFFFFFF)


@inner()
def _read_whole(path, out):
    """Read at most ``out.size`` bytes of a file; returns how many, -1 if it cannot be read."""
    descriptor = _open(path.ctypes.data, _FLAGS)
    if descriptor < 0:
        return int64(-1)
    done = int64(0)
    while done < out.size:
        rest = out[done:]
        got = _pread(descriptor, rest.ctypes.data, rest.size, done)
        if got <= 0:
            done = done if got == 0 else int64(-1)
            break
        done += got
    _close(descriptor)
    return done


@entry()
def _read_files(paths, names, out, begins, limits, sizes, stored):
    for k in range(sizes.size):
        end = begins[k] + limits[k] + CRC_BYTES + 1
        if end > out.size:
            return k
        room = out[begins[k] : end]
        size = _read_whole(paths[names[k] :], room) - CRC_BYTES
        if not 0 <= size <= limits[k]:
            return k
        sizes[k] = size
        stored[k] = 0
        for byte in range(CRC_BYTES):
            stored[k] |= uint32(room[size + byte]) << uint32(8 * byte)
        if checksum(room[:size]) != stored[k]:
            return k
    return sizes.size


def read_files(
    paths: list[str], out: NDArray[np.uint8], begins: NDArray[np.int64], limits: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Read files of at most so many bytes, without checksum, to where each begins in `out`.

    All begin at a multiple of eight bytes of memory; behind each are five more bytes that nobody needs.
    Returns sizes and checksums of the files before the first that is missing, of more bytes, or of another
    checksum than it ends with.
    """
    names = [os.fsencode(path) + b"\0" for path in paths]
    firsts = np.array([0, *map(len, names[:-1])]).cumsum()
    sizes, stored = np.empty(len(paths), np.int64), np.empty(len(paths), np.uint32)
    text = np.frombuffer(bytearray().join(names), np.uint8)
    done = _read_files(text, firsts, out, begins, limits, sizes, stored)
    return sizes[:done], stored[:done]
