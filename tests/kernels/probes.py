"""Small kernels made of a few lines, run on the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .shim.host import HostDevice


def run(device: HostDevice, body: str, *, block: int = 128, grid: int = 2) -> np.ndarray:
    """What a kernel of this body leaves in `out`, one number a thread; `in` counts from 0."""
    text = (
        '#include "common.cuh"\n'
        'extern "C" __global__ void probe([[maybe_unused]] const i32* in, [[maybe_unused]] i32* out) {\n'
        f"[[maybe_unused]] const int t = int(threadIdx.x), k = int(thread_number());\n{body}\n}}"
    )
    given = np.arange(grid * block, dtype=np.int32)
    out = np.full(grid * block, -1, np.int32)
    device.compile(text).get_function("probe")((grid,), (block,), (given, out))
    return out


def hosts(folder: Path, warp: int = 32) -> list[HostDevice]:
    """The host in both orders."""
    return [HostDevice(folder, warp=warp, reverse=reverse) for reverse in (False, True)]
