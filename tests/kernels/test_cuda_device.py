"""Devices that cannot be used are refused in words that say what to do."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import oocpr
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.baselines import BinThresholds
from oocpr.engine.cuda.device import check_device, open_device
from oocpr.engine.cuda.names import begin_contexts, is_cuda, named_devices
from oocpr.engine.devices import chosen_device, make_backend
from oocpr.errors import SetupError, UsageError

from ..engine.digraphs import random_digraph
from .shim.host import HostDevice


class DriverError(RuntimeError):
    """What CuPy raises where the driver fails."""


def machine(*capabilities: tuple[int, int]) -> SimpleNamespace:
    """CuPy as it would be on a machine with such devices; none at all is one without a driver."""

    def count() -> int:
        if not capabilities:
            raise DriverError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
        return len(capabilities)

    def properties(index: int) -> dict[str, object]:
        major, minor = capabilities[index]
        return {"name": b"Some Card", "major": major, "minor": minor}

    runtime = SimpleNamespace(
        CUDARuntimeError=DriverError, getDeviceCount=count, getDeviceProperties=properties
    )
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


@pytest.mark.parametrize(
    ("capabilities", "index", "words"),
    [
        ([], 0, "driver version is insufficient. Install or update NVIDIA's driver"),
        ([(9, 0)], 1, "cuda:1 does not exist: this machine has 1"),
        ([(7, 0)], 0, r"Some Card.* has compute capability 7.0; the kernels need 7.5"),
    ],
)
def test_a_device_that_cannot_be_used(capabilities: list[tuple[int, int]], index: int, words: str) -> None:
    with pytest.raises(UsageError if capabilities else SetupError, match=words):
        check_device(machine(*capabilities), f"cuda:{index}", index)


def test_devices_that_can() -> None:
    check_device(machine((7, 5), (10, 0)), "cuda", 0)
    check_device(machine((7, 5), (10, 0)), "cuda:1", 1)


def test_names() -> None:
    assert [name for name in ("cuda", "cuda:0", "cuda:12", "cuda:x", "gpu", "cuda0") if is_cuda(name)] == [
        "cuda", "cuda:0", "cuda:12",
    ]  # fmt: skip


def test_names_of_several() -> None:
    assert named_devices("cuda,cuda:3,cuda:12") == ("cuda:0", "cuda:3", "cuda:12")
    assert [named_devices(name) for name in ("cpu", "auto", "cuda:0,cpu", "cuda:0,", "cuda:all")] == [()] * 5
    for name in ("cuda:1,cuda:1", "cuda,cuda:2,cuda:0"):
        with pytest.raises(
            UsageError, match=r"named twice\. Name each device once, or all of them as cuda:all"
        ):
            named_devices(name)
    with pytest.raises(UsageError, match=r"'cuda:0,cpu' is not known.*cuda:0,cuda:1"):
        make_backend("cuda:0,cpu", 1)


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy() -> None:
    for several in ("cuda:0,cuda:1", "cuda:all"):
        with pytest.raises(SetupError, match="needs CuPy, which is not installed"):
            chosen_device(several, None)
    with pytest.raises(SetupError, match="needs CuPy, which is not installed"):
        open_device("cuda")
    with pytest.raises(SetupError, match="needs CuPy"):
        make_backend("auto", 1, "balanced")
    assert make_backend("auto", 1).name == "cpu"


@pytest.mark.device
def test_a_device_is_opened_once_and_keeps_its_kernels() -> None:
    device = open_device("cuda")
    assert open_device("cuda:0") is device
    loaded = device.load("papers/vectors.cu", NUMBER="float")
    assert open_device("cuda").load("papers/vectors.cu", NUMBER="float") is loaded


def test_kernels_are_for_devices_and_known() -> None:
    with pytest.raises(UsageError, match="is for CUDA devices and the device is cpu"):
        make_backend("cpu", 1, "balanced")
    with pytest.raises(UsageError, match=r"abacus.*balanced, csr-scalar"):
        make_backend("cuda", 1, "abacus")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("binned:6", "divides no rows"),
        ("binned:", "divides no rows"),
        ("binned:96:6", "divides no rows"),
        ("binned:6:96:100", "divides no rows"),
        ("binned:6:96:2048", "divides no rows"),
        ("binned:6:96:0", "divides no rows"),
        ("binned:-1:6", "divides no rows"),
        ("binned:٣:96", "divides no rows"),
        ("balanced:6:96", "is not known"),
        ("", "is not known"),
    ],
)
def test_kernels_that_cannot_be(kernel: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_backend("cuda", 1, kernel)


def test_bins_that_are_named_are_taken(
    shim_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostDevice(shim_folder)
    for place in ("oocpr.engine.devices.open_device", "oocpr.engine.cuda.device.open_device"):
        monkeypatch.setattr(place, lambda _: host)
    graph = oocpr.import_graph(random_digraph(300, 2000, seed=3).entries, tmp_path / "graph.zarr")
    backend = make_backend("cuda", None, "binned:1:20:32")
    assert isinstance(backend, CudaBackend)
    assert backend._decoded is not None
    assert backend._decoded._make.keywords == {"thresholds": BinThresholds(1, 20, 32)}
    ranks = [
        oocpr.pagerank(graph, device="cuda", kernel=kernel, max_passes=2).to_numpy()
        for kernel in ("binned:1:20:32", "binned")
    ]
    assert np.array_equal(*ranks)


def test_contexts_are_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = [], threading.Event()

    def find(found: Any, index: int) -> int:
        assert asked.wait(60)
        found._obj.value = 70 + index
        return 101 if index == 1 else 0

    driver = SimpleNamespace(
        cuInit=lambda _: 0,
        cuDeviceGet=find,
        cuDevicePrimaryCtxRetain=lambda _, device: made.append(device.value),
    )
    monkeypatch.setattr("oocpr.engine.cuda.names.ctypes.CDLL", lambda _: driver)
    monkeypatch.setattr("oocpr.engine.cuda.names._BEGUN", set[int]())
    before = set(threading.enumerate())
    begin_contexts(("cuda:0", "cuda:1", "cuda:3"))
    assert made == []
    asked.set()
    _wait_for_others(before)
    assert made == [70, 73]
    for names in ((), ("cuda:0", "cuda:3")):
        begin_contexts(names)
        assert set(threading.enumerate()) <= before


def _wait_for_others(before: set[threading.Thread]) -> None:
    for thread in set(threading.enumerate()) - before:
        thread.join()


def test_no_driver_and_one_that_fails_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    before = set(threading.enumerate())
    for library in ("libcuda.so.1.none", "libc.so.6"):
        monkeypatch.setattr("oocpr.engine.cuda.names.LIBRARY", library)
        monkeypatch.setattr("oocpr.engine.cuda.names._BEGUN", set[int]())
        begin_contexts(("cuda:0",))
        _wait_for_others(before)
    assert raised == []


@pytest.mark.device
def test_the_context_is_there_before_cupy_is_loaded() -> None:
    program = """
import ctypes, sys, threading
from oocpr.engine.cuda.names import begin_contexts

begin_contexts(["cuda:0"])
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
assert "cupy" not in sys.modules
driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
assert active.value == 1
import cupy
assert int(cupy.arange(5).sum()) == 10
"""
    subprocess.run([sys.executable, "-c", program], check=True)
