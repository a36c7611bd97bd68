"""The sources compile for the devices of both makers, where neither device nor driver is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from oocpr.engine.cuda.device import OPTIONS, OPTIONS_OF_CUPY, inline

from . import nvrtc
from .shim.host import SANITIZE, kernel_names

WAVEFRONTS = {"gfx90a": "64", "gfx942": "64", "gfx1030": "32"}
READS = ("Float64", "Float32", "Bits16", "Bits8")

KERNELS = files("oocpr.kernels")
SOURCES = sorted(
    f"{folder}{file.name}"
    for folder in ("", "papers/")
    for file in KERNELS.joinpath(folder).iterdir()
    if file.name.endswith(".cu")
)


def source(file: str, parameters: dict[str, int | str] | None = None) -> str:
    """One string with a file of ``kernels/`` and all that it includes."""
    return inline(f'#include "{file}"', parameters)


def variants() -> list[tuple[str, dict[str, int | str]]]:
    """Sources with each format of gathered numbers, where they gather, and each switch of 0 or 1 turned."""
    found: list[tuple[str, dict[str, int | str]]] = []
    for file in SOURCES:
        defaults = dict(re.findall(r"#ifndef (\w+)\n#define \1 (\w+)", source(file)))
        found += [(file, {"READS": reads}) for reads in READS if "READS" in defaults]
        found += [(file, {name: 1 - int(value)}) for name, value in defaults.items() if value in ("0", "1")]
    return found


def compiled(architecture: str, file: str, parameters: dict[str, int | str]) -> tuple[bytes, str]:
    if nvrtc.library() is None:
        pytest.skip(f"the package {nvrtc.PACKAGE} is not installed")
    if SANITIZE:
        pytest.skip("the compiler itself is not what the sanitizers are for")
    return nvrtc.compile_for(architecture, source(file, parameters), OPTIONS + OPTIONS_OF_CUPY)


@pytest.mark.parametrize(
    "architecture", ["sm_90", *(pytest.param(other, marks=pytest.mark.slow) for other in ("sm_75", "sm_100"))]
)
@pytest.mark.parametrize("file", SOURCES)
def test_sources_compile_without_warnings(architecture: str, file: str) -> None:
    code, log = compiled(architecture, file, {})
    names = kernel_names(source(file))
    assert names
    assert all(name.encode() in code for name in names)
    # An array that is indexed at run time would lie in slow memory.
    frames = [int(n) for n in re.findall(r"(\d+) bytes stack frame", log)]
    assert len(frames) == len(names)
    assert max(frames) <= 64, log


@pytest.mark.parametrize(("file", "parameters"), variants(), ids=str)
def test_variants_compile(file: str, parameters: dict[str, int | str]) -> None:
    _, log = compiled("sm_90", file, parameters)
    assert max(int(n) for n in re.findall(r"(\d+) bytes stack frame", log)) <= 64, log


def test_warnings_are_errors() -> None:
    if nvrtc.library() is None:
        pytest.skip(f"the package {nvrtc.PACKAGE} is not installed")
    with pytest.raises(nvrtc.CompileError, match="never referenced"):
        nvrtc.compile_for("sm_90", 'extern "C" __global__ void probe() { int unused; }', OPTIONS)


@cache
def hip_compiler() -> tuple[str, ...] | None:
    """Clang with HIP's headers and device functions as Debian has them, or hipcc; None for neither."""
    headers = Path("/usr/include/hip/hip_runtime.h")
    functions = Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")
    # gfx942 came with version 17.
    clang = next(filter(None, (shutil.which(f"clang-{version}") for version in range(30, 16, -1))), None)
    if clang is not None and headers.exists() and functions.exists():
        # The driver takes no device functions older than itself, so that all it would find is named.
        found = [
            clang, "-nogpulib", "-nogpuinc", "-D__HIP_PLATFORM_AMD__",
            "-include", "__clang_hip_runtime_wrapper.h",
        ]  # fmt: skip
        for library in ("hip", "ockl", "oclc_abi_version_500"):
            found += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(functions / f"{library}.bc")]
        return tuple(found)
    return ("hipcc",) if shutil.which("hipcc") else None


def compile_as_hip(architecture: str, text: str, folder: Path) -> None:
    """Compile for an AMD device, and check what the compiler says of each kernel."""
    compiler = hip_compiler()
    if compiler is None:
        pytest.skip("neither clang 17 or newer with HIP's headers nor hipcc is installed")
    (folder / "kernels.hip").write_text(text)
    command = [
        *compiler, "-x", "hip", "-std=c++17", "-O3", "-Werror", "--cuda-device-only",
        f"--offload-arch={architecture}", "-S", str(folder / "kernels.hip"), "-o", str(folder / "kernels.s"),
    ]  # fmt: skip
    environment = {**os.environ, "HIP_PLATFORM": "amd"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "unsupported HIP gpu architecture" in done.stderr:
        pytest.skip(f"{compiler[0]} does not know {architecture}")
    assert done.returncode == 0, done.stderr
    code = (folder / "kernels.s").read_text()

    def facts(name: str) -> list[str]:
        return re.findall(rf"^ +\.{name}: +(\w+)", code, re.MULTILINE)

    assert set(facts("name")) >= set(kernel_names(text)) != set()
    assert set(facts("wavefront_size")) == {WAVEFRONTS[architecture]}
    # A kernel with a function that is defined nowhere would have one.
    assert set(facts("uses_dynamic_stack")) == {"false"}
    # An array that is indexed at run time would lie in slow memory, beside spilled registers and a spare one.
    frames, spilled = facts("private_segment_fixed_size"), facts("vgpr_spill_count")
    assert all(int(frame) <= 4 * (int(n) + 1) for frame, n in zip(frames, spilled, strict=True)), (
        frames,
        spilled,
    )


@pytest.mark.parametrize(
    "architecture", ["gfx90a", "gfx942", pytest.param("gfx1030", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("file", SOURCES)
def test_sources_compile_as_hip(architecture: str, file: str, tmp_path: Path) -> None:
    compile_as_hip(architecture, source(file), tmp_path)


@pytest.mark.parametrize(("file", "parameters"), variants(), ids=str)
def test_variants_compile_as_hip(file: str, parameters: dict[str, int | str], tmp_path: Path) -> None:
    compile_as_hip("gfx942", source(file, parameters), tmp_path)
