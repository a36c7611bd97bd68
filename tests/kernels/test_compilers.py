"""The sources compile for the devices of both makers, where neither device nor driver is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from oocpr.engine.cuda.device import OPTIONS, OPTIONS_OF_CUPY, inline

from . import nvrtc
from .shim.host import SANITIZE, kernel_names

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


@pytest.mark.parametrize("architecture", ["gfx90a", pytest.param("gfx1030", marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", SOURCES)
def test_sources_compile_as_hip(architecture: str, file: str, tmp_path: Path) -> None:
    """gfx90a has wavefronts of 64 lanes, gfx1030 of 32."""
    if shutil.which("hipcc") is None:
        pytest.skip("hipcc is not installed")
    text = tmp_path / "kernels.hip"
    text.write_text(source(file))
    command = [
        "hipcc", "-x", "hip", "-std=c++17", "-Werror", "--cuda-device-only", f"--offload-arch={architecture}",
        "-c", str(text), "-o", str(tmp_path / "kernels.o"),
    ]  # fmt: skip
    environment = {**os.environ, "HIP_PLATFORM": "amd"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
