"""Compiled kernels are kept on disk, and nothing that can be wrong with the disk is in a run's way."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oocpr.engine.cuda.device import Device
from oocpr.engine.cuda.kernel_cache import cache_folder, cached_binary


class Compiler:
    """Something that makes binaries, and counts them."""

    def __init__(self, binary: bytes = b"\x7fELF code") -> None:
        self.binary = binary
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return self.binary


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OOCPR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def test_the_folder_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OOCPR_CACHE_DIR", "/somewhere")
    assert cache_folder() == Path("/somewhere/kernels")
    monkeypatch.delenv("OOCPR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/oocpr/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/oocpr/kernels")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user whom the system does not know
    assert cache_folder() is None
    assert cached_binary("text", Compiler()) is None


def test_what_is_compiled_once_is_found(folder: Path) -> None:
    compiler = Compiler()
    path = cached_binary("text", compiler)
    assert path is not None
    assert path.read_bytes() == compiler.binary
    assert path.suffix == ".cubin"
    assert cached_binary("text", compiler) == path
    assert compiler.calls == 1
    assert list(folder.iterdir()) == [path]


def test_other_texts_have_other_files(folder: Path) -> None:
    compiler = Compiler()
    assert cached_binary("sm_90 text", compiler) != cached_binary("sm_80 text", compiler)
    assert compiler.calls == len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"\x7fELF cod", b"\x7fELF codf", b"\x7fELF code and more"])
def test_a_damaged_file_is_made_anew(folder: Path, damage: bytes) -> None:
    path = cached_binary("text", Compiler())
    assert path is not None
    path.write_bytes(damage)
    other = Compiler(b"\x7fELF other code")  # compilers need not give the same bytes twice
    made = cached_binary("text", other)
    assert made is not None
    assert made.read_bytes() == other.binary
    assert list(folder.iterdir()) == [made]


def test_a_folder_that_cannot_be_made_is_no_error(folder: Path) -> None:
    folder.parent.write_text("a file")
    compiler = Compiler()
    assert cached_binary("text", compiler) is None
    assert compiler.calls == 0


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    path = cached_binary("text", compiler)
    # Whoever runs the tests may be allowed everything.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cached_binary("text", compiler) == path
    assert cached_binary("other", compiler) is None
    assert compiler.calls == 1


def test_a_full_disk_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert cached_binary("text", Compiler()) is None
    assert list(folder.iterdir()) == []


class Cupy(SimpleNamespace):
    """What a device needs of CuPy to compile; it counts what is compiled, and how modules are loaded."""

    def __init__(self, capability: str = "90", version: str = "14.0.0", driver: int = 12080) -> None:
        properties = {"name": b"Card", "warpSize": 32, "multiProcessorCount": 1, "sharedMemPerBlockOptin": 1}
        runtime = SimpleNamespace(
            getDeviceProperties=lambda _: properties,
            runtimeGetVersion=lambda: 12090,
            driverGetVersion=lambda: driver,
        )
        super().__init__(
            __version__=version,
            cuda=SimpleNamespace(
                Device=lambda _: SimpleNamespace(compute_capability=capability),
                compiler=SimpleNamespace(compile_using_nvrtc=self._compile),
                runtime=runtime,
            ),
        )
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.loaded: list[dict[str, Any]] = []

    def _compile(self, source: str, options: tuple[str, ...]) -> tuple[bytes, None]:
        self.compiled.append((source, options))
        return b"\x7fELF " + source.encode(), None

    def RawModule(self, **given: Any) -> object:  # noqa: N802
        self.loaded.append(given)
        return object()


def compile_on(cupy: Cupy, monkeypatch: pytest.MonkeyPatch, text: str = "void nothing() {}") -> Cupy:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    Device().compile(text)
    return cupy


@pytest.mark.usefixtures("folder")
def test_a_device_compiles_once_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_on(Cupy(), monkeypatch)
    [(source, options)] = first.compiled
    assert "void nothing() {}" in source
    assert "-ftz=true" in options
    second = compile_on(Cupy(), monkeypatch)
    assert not second.compiled
    assert second.loaded == first.loaded
    assert Path(first.loaded[0]["path"]).read_bytes() == b"\x7fELF " + source.encode()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("other", [{"capability": "80"}, {"version": "13.0.0"}, {"driver": 13000}], ids=str)
def test_what_another_device_or_version_compiled_is_not_taken(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_on(Cupy(), monkeypatch)
    assert len(compile_on(Cupy(**other), monkeypatch).compiled) == 1


def test_without_a_folder_cupy_compiles_as_it_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.write_text("a file")
    cupy = compile_on(Cupy(), monkeypatch)
    assert not cupy.compiled
    assert "void nothing() {}" in cupy.loaded[0]["code"]


@pytest.mark.device
@pytest.mark.usefixtures("folder")
def test_kernels_from_a_file_compute() -> None:
    text = 'extern "C" __global__ void set(int* out) { *out = 7; }'
    for _ in range(2):
        device = Device()
        with device:
            out = device.xp.zeros(1, "i4")
            device.compile(text).get_function("set")((1,), (1,), (out,))
            assert int(out.get()[0]) == 7
