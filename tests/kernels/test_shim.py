"""The host shim finds the faults that kernels have, and nothing in kernels that have none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .probes import hosts, run
from .shim.host import SANITIZE, HostDevice, HostError, libasan

ROOT = Path(__file__).parents[2]
WARPS = pytest.mark.parametrize("warp", [32, 64])


# Each thread reads what its neighbour wrote to shared memory; the body decides what is between.
PASS_ON = "__shared__ i32 room[128]; room[t] = in[k]; {between} out[k] = room[(t + {by}) % 128];"


@WARPS
@pytest.mark.parametrize("by", [1, 33, 127])
def test_a_barrier_lets_threads_read_what_others_wrote(shim_folder: Path, warp: int, by: int) -> None:
    for device in hosts(shim_folder, warp):
        out = run(device, PASS_ON.format(between="__syncthreads();", by=by))
        assert np.array_equal(out.reshape(2, 128), np.roll(np.arange(256).reshape(2, 128), -by, axis=1))


@pytest.mark.parametrize("by", [127, 1])
def test_a_missing_barrier_shows_in_one_of_the_orders(shim_folder: Path, by: int) -> None:
    # Reading the thread before is right by luck when threads run forward, reading the one behind in reverse.
    right = np.roll(np.arange(256).reshape(2, 128), -by, axis=1)
    wrong = [
        int(np.sum(run(device, PASS_ON.format(between="", by=by)).reshape(2, 128) != right))
        for device in hosts(shim_folder)
    ]
    assert min(wrong) <= 2 < 100 < max(wrong)


def test_a_missing_barrier_between_warps_shows(shim_folder: Path) -> None:
    out = [run(device, PASS_ON.format(between="sync_group();", by=32)) for device in hosts(shim_folder)]
    right = np.roll(np.arange(256).reshape(2, 128), -32, axis=1).ravel()
    assert not np.array_equal(out[0], right)


def test_shared_memory_begins_with_a_pattern(shim_folder: Path) -> None:
    out = run(HostDevice(shim_folder), "__shared__ i32 room[128]; out[k] = room[t]; room[t] = 7;")
    assert set(out.tolist()) == {int(np.uint32(0xA5A5A5A5).astype(np.int32))}


@WARPS
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("if (t != 3) out[k] = shuffle(k, 0);", "wait"),
        (
            "out[k] = t < 16 ? __shfl_sync(LaneMask(0xFFFF), k, 16) : 0;",
            "asks at text:4 lane 16, which takes no part",
        ),
        ("out[k] = __shfl_sync(LaneMask(0xFFFF), k, 0);", "at text:4 is not in its own mask"),
        ("if (t == 3) return; sync_group();", "which is not there|wait"),
        ("if (t < 64) __syncthreads();", "waits at text:4, thread .* has returned"),
        (
            "if (t < 64)\n__syncthreads();\nelse\n__syncthreads();",
            "thread 0 waits at text:5, thread .* at text:7",
        ),
        ("for (int i = 0; i <= t / 64; ++i) __syncthreads();", "has returned"),
        (
            "if (t % 2)\nout[k] = shuffle(k, 1);\nelse\nout[k] = shuffle(k, 0);",
            "which is at common.cuh:[0-9]+ in text:",
        ),
        ("if (t % 2) __syncthreads(); else sync_group();", "wait"),
        ("if (t == 5) __trap();", "thread 5 trapped"),
    ],
)
def test_threads_that_wait_for_others_in_vain(shim_folder: Path, warp: int, body: str, words: str) -> None:
    for device in hosts(shim_folder, warp):
        with pytest.raises(HostError, match=words):
            run(device, body)
        # What is left of the failed launch does not trouble the next.
        assert run(device, "out[k] = shuffle_xor(in[k], 1);").tolist() == (np.arange(256) ^ 1).tolist()


def test_atomics(shim_folder: Path) -> None:
    text = """#include "common.cuh"
    extern "C" __global__ void probe(double* sum, u32* most, u64* count) {
      atomicAdd(sum, 0.5);
      atomicMax(most, u32(thread_number()));
      if (atomicCAS(count, u64(7), u64(9)) == 7) atomicAdd(count, 1ull);
    }"""
    sums, most, count = np.zeros(1), np.zeros(1, np.uint32), np.full(1, 7, np.uint64)
    HostDevice(shim_folder).compile(text).get_function("probe")((3,), (64,), (sums, most, count))
    assert (sums[0], most[0], count[0]) == (96.0, 191, 10)


def test_dynamic_shared_memory_has_to_be_asked_for(shim_folder: Path) -> None:
    text = """#include "common.cuh"
    extern "C" __global__ void probe(u64* out) {
      DYNAMIC_SHARED(bytes);
      u64* const room = reinterpret_cast<u64*>(bytes);
      for (u32 k = threadIdx.x; k < 8000; k += blockDim.x) room[k] = k;
      __syncthreads();
      out[threadIdx.x] = room[7999 - threadIdx.x];
    }"""
    kernel = HostDevice(shim_folder).compile(text).get_function("probe")
    out = np.zeros(64, np.uint64)
    with pytest.raises(HostError, match="not asked for"):
        kernel((1,), (64,), (out,), shared_mem=64000)
    kernel.max_dynamic_shared_size_bytes = 64000
    kernel((1,), (64,), (out,), shared_mem=64000)
    assert out.tolist() == list(range(7999, 7935, -1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.zeros(4), np.uint32(4)), "array of f8, not pu4"),
        ((np.zeros(4, np.int32), np.uint32(4)), "array of i4, not pu4"),
        ((np.zeros(4, np.uint32), 4), "is a int, not u4"),
        ((np.zeros(4, np.uint32), np.uint64(4)), "is u8, not u4"),
        ((np.zeros(8, np.uint32)[::2], np.uint32(4)), "not contiguous"),
        ((np.frombuffer(bytes(16), np.uint32), np.uint32(4)), "may not"),
        ((np.zeros(4, np.uint32),), "takes 2 arguments"),
    ],
)
def test_arguments_are_of_the_types_that_the_kernel_takes(
    shim_folder: Path, arguments: tuple[object, ...], words: str
) -> None:
    text = '#include "common.cuh"\nextern "C" __global__ void probe(u32* out, u32 n) { out[n - 1] = n; }'
    kernel = HostDevice(shim_folder).compile(text).get_function("probe")
    with pytest.raises(HostError, match=words):
        kernel((1,), (1,), arguments)


def test_a_structure_is_passed_by_value(shim_folder: Path) -> None:
    text = """#include "common.cuh"
    struct Pair { double a; i32 b; };
    extern "C" __global__ void probe(Pair pair, double* out) { out[0] = pair.a * pair.b; }"""
    pair = np.array([(2.5, 3)], np.dtype([("a", "f8"), ("b", "i4")], align=True))[0]
    out = np.zeros(1)
    HostDevice(shim_folder).compile(text).get_function("probe")((1,), (1,), (pair, out))
    assert out[0] == 7.5


def test_what_the_compiler_says_names_the_line(shim_folder: Path) -> None:
    with pytest.raises(HostError, match=r"kernels/text:3:.*nonsense"):
        HostDevice(shim_folder).compile('#include "common.cuh"\n\nnonsense;')


FAULTY = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import numpy as np
from shim.host import HostDevice
text = '#include "common.cuh"\\n'
text += 'extern "C" __global__ void probe(? const u32* in, ? u32* out, ? u32 n) {{ {body} }}'
text = text.replace("?", "[[maybe_unused]]")
given, out = np.arange(64, dtype=np.uint32)[:48], np.zeros(64, np.uint32)
HostDevice(Path({folder!r})).compile(text).get_function("probe")((1,), (64,), (given, out, np.uint32(48)))
print("done", out[47])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("if (threadIdx.x < n) out[threadIdx.x] = in[threadIdx.x];", ""),
        ("if (threadIdx.x <= n) out[threadIdx.x] = in[threadIdx.x];", "heap-buffer-overflow"),
        ("if (threadIdx.x == 0) out[-1] = 1;", "heap-buffer-overflow"),
        ("__shared__ u32 room[63]; room[threadIdx.x] = 1; out[0] = room[0];", "index 63 out of bounds"),
        (
            "__shared__ u32 room[63]; u32* end = room + n + 14; *++end = 1; out[0] = *end;",
            "insufficient space",
        ),
        ("out[0] = in[0] << n;", "shift exponent 48 is too large"),
        ("u64 wide = *reinterpret_cast<const u64*>(in + 1); out[0] = u32(wide);", "misaligned address"),
        ("out[0] = u32(i32(in[0]) / i32(n - 48));", "division by zero"),
    ],
)
def test_sanitizers_see_what_leaves_its_bounds(shim_folder: Path, body: str, words: str) -> None:
    if SANITIZE:
        pytest.skip("the sanitizers are on already")
    script = FAULTY.format(tests=str(Path(__file__).parent), folder=str(shim_folder), body=body)
    done = subprocess.run(
        [sys.executable, "-c", script], env=sanitized(), capture_output=True, text=True, check=False
    )
    if words:
        assert done.returncode != 0
        assert words in done.stderr
    else:
        assert (done.returncode, done.stdout) == (0, "done 47\n"), done.stderr


@pytest.mark.slow
def test_all_kernels_stay_within_their_bounds() -> None:
    """The tests of this folder once more, with the sanitizers on."""
    if SANITIZE:
        pytest.skip("this is that run")
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(Path(__file__).parent)]
    done = subprocess.run(command, cwd=ROOT, env=sanitized(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def sanitized() -> dict[str, str]:
    """Environment of a process whose kernels are compiled with the sanitizers."""
    return {
        **os.environ,
        "OOCPR_SHIM_SANITIZE": "1",
        "LD_PRELOAD": libasan(),
        "ASAN_OPTIONS": "detect_leaks=0",
        # Python's own pools would hide where an array ends.
        "PYTHONMALLOC": "malloc",
    }
