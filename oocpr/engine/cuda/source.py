"""The CUDA sources as strings that a compiler takes whole.

A source is a file of ``kernels/`` with its ``#include "x.cuh"`` replaced by those files, each once, because
caches of compiled kernels look at the string alone. Parameters become macros in front.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")
_PARAMETER = re.compile(r"[A-Z][A-Z0-9_]*")
_VALUE = re.compile(r"[A-Za-z_]\w*(::\w+)*")
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')


@cache
def sources() -> tuple[str, ...]:
    """Names of the files that have kernels, sorted.

    >>> all(name.endswith(".cu") for name in sources())
    True
    """
    folder = files("oocpr.kernels")
    found = [f.name for f in folder.iterdir()] + [
        f"papers/{f.name}" for f in folder.joinpath("papers").iterdir()
    ]
    return tuple(sorted(name for name in found if name.endswith(".cu")))


def source(file: str, parameters: Mapping[str, int | str] | None = None) -> str:
    """One string with a file of ``kernels/`` and all that it includes.

    Raises FileNotFoundError if there is no such file, or none of an included name.

    >>> text = source("narrow.cuh", {"WARP_SIZE": 64})
    >>> text.splitlines()[0], text.count("struct Bits16"), text.count("int WARP =")
    ('#define WARP_SIZE 64', 1, 1)
    """
    return inline(f'#include "{file}"', parameters)


def inline(text: str, parameters: Mapping[str, int | str] | None = None) -> str:
    """Put the files of ``kernels/`` that a text includes in their places, and its parameters in front.

    `parameters`: macros by name, in capitals: a whole number, or the name of a type.
    Returns the same without includes; a compiler's messages name the files and lines of ``kernels/``.
    Raises FileNotFoundError if there is no file of an included name.
    Raises ValueError if a parameter is neither.
    """
    lines = []
    for name, value in sorted((parameters or {}).items()):
        if not _PARAMETER.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a parameter: capitals, digits and underscores")
        if not (isinstance(value, int) or _VALUE.fullmatch(value)):
            raise ValueError(f"parameter {name} is {value!r}, neither a whole number nor a name")
        lines.append(f"#define {name} {int(value) if isinstance(value, int) else value}")
    lines += _expand("text", text, set())
    return "\n".join(lines) + "\n"


def kernel_names(text: str) -> tuple[str, ...]:
    """Names of the kernels that a source defines, in its order.

    >>> kernel_names('extern "C" __global__ void __launch_bounds__(256) scale(double* x) {}')
    ('scale',)
    """
    return tuple(_KERNEL.findall(text))


def _expand(name: str, text: str, seen: set[str]) -> Iterator[str]:
    seen.add(name)
    yield f'#line 1 "kernels/{name}"'
    for number, line in enumerate(text.splitlines(), 1):
        include = _INCLUDE.match(line)
        if include:
            if include[1] not in seen:
                yield from _expand(include[1], _read(include[1]), seen)
            yield f'#line {number + 1} "kernels/{name}"'
        else:
            yield "" if _ONCE.match(line) else line


@cache
def _read(file: str) -> str:
    return files("oocpr.kernels").joinpath(file).read_text(encoding="utf-8")
