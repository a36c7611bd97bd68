"""NVIDIA's run-time compiler without a driver: the library of the package nvidia-cuda-nvrtc, by ctypes."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from typing import Any

PACKAGE = "nvidia-cuda-nvrtc"


class CompileError(Exception):
    """What the compiler says."""


@cache
def library() -> Any:
    """The compiler; None where its package is not installed."""
    try:
        paths = files(PACKAGE) or []
    except PackageNotFoundError:
        return None
    (path,) = (p.locate() for p in paths if p.name.startswith("libnvrtc.so") or p.name.startswith("nvrtc64_"))
    return ctypes.CDLL(str(path))


def compile_for(architecture: str, text: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Compile a source.

    `architecture`: such as ``sm_90``.
    Returns machine code, and what the compilers say of registers and stack.
    Raises CompileError if it does not compile, or with warnings.
    """
    nvrtc = library()
    program = ctypes.c_void_p()
    given = [
        *options,
        f"--gpu-architecture={architecture}",
        "--warning-as-error=all-warnings",
        "--ptxas-options=-v",
    ]
    encoded = [option.encode() for option in given]
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        log = _take(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)[:-1].decode()
        if failed:
            raise CompileError(log)
        return _take(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _take(program: ctypes.c_void_p, size_of: Any, get: Any) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw
