"""What kernels share: lanes that talk, and sums in a fixed order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .probes import hosts, run
from .shim.host import HostError

WARPS = pytest.mark.parametrize("warp", [32, 64])


@WARPS
def test_shuffles_and_votes(shim_folder: Path, warp: int) -> None:
    k = np.arange(256)
    lane, first = k % warp, k - k % warp
    eight, bits = k - k % 8, k.reshape(-1, 8) % 29
    cases = {
        "shuffle(k, 5)": first + 5,
        "shuffle<8>(k, t + 3)": eight + (k + 3) % 8,
        "shuffle_up(k, 3)": np.where(lane >= 3, k - 3, k),
        "shuffle_up<8>(k, 3)": np.where(k % 8 >= 3, k - 3, k),
        "shuffle_down(k, 3)": np.where(lane < warp - 3, k + 3, k),
        "shuffle_down<8>(k, 3)": np.where(k % 8 < 5, k + 3, k),
        "shuffle_xor(k, 9)": k ^ 9,
        "count_bits(ballot(k % 3 == 0))": np.array([np.sum((f + np.arange(warp)) % 3 == 0) for f in first]),
        "lowest_bit(ballot<8>(lane<8>() > 4))": np.full(256, 5),
        "highest_bit(ballot<8>(lane<8>() < 4))": np.full(256, 3),
        "count_bits(lanes_before<8>())": k % 8,
        "group_sum(k)": np.repeat(k.reshape(-1, warp).sum(1), warp),
        "group_sum<4>(k)": np.repeat(k.reshape(-1, 4).sum(1), 4),
        "group_max<16>(-k)": -(k - k % 16),
        "i32(group_or(u32(k) * 37))": np.repeat(np.bitwise_or.reduce(37 * k.reshape(-1, warp), axis=1), warp),
        "i32(group_or<8>(1u << k % 29))": np.repeat(np.bitwise_or.reduce(1 << bits, axis=1), 8),
        "group_scan(k)": k.reshape(-1, warp).cumsum(1).ravel(),
        "group_scan<8>(k)": k.reshape(-1, 8).cumsum(1).ravel(),
    }
    body = "".join(f"out[{i} * 256 + k] = i32({text});\n" for i, text in enumerate(cases))
    text = '#include "common.cuh"\nextern "C" __global__ void probe(i32* out) {\n'
    text += f"[[maybe_unused]] const int t = int(threadIdx.x), k = int(thread_number());\n{body}\n}}"
    for device in hosts(shim_folder, warp):
        out = np.zeros((len(cases), 256), np.int32)
        device.compile(text).get_function("probe")((2,), (128,), (out,))
        for name, row in zip(cases, out, strict=True):
            assert np.array_equal(row, cases[name]), name


@WARPS
@pytest.mark.parametrize("block", [32, 96, 1000])
def test_block_sum(shim_folder: Path, warp: int, block: int) -> None:
    body = "__shared__ i32 room[WARP]; const i32 s = block_sum(in[k], room); out[k] = s + block_sum(1, room);"
    for device in hosts(shim_folder, warp):
        if block % warp:
            with pytest.raises(HostError, match="which is not there"):
                run(device, body, block=block)
            continue
        out = run(device, body, block=block)
        sums = np.arange(2 * block).reshape(2, block).sum(1) + block
        assert np.array_equal(out, np.repeat(sums, block))
