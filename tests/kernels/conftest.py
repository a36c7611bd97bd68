"""The devices that every test of kernels runs on."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from oocpr.engine.cuda.device import Device

from .pooled import PooledMachine
from .shim.host import SANITIZE, HostDevice

HOSTS = {
    "host": {"warp": 32},
    "reverse": {"warp": 32, "reverse": True},
    "wide": {"warp": 64},
    "wide-reverse": {"warp": 64, "reverse": True},
}


# Whole runs, so in two of the host's four ways only, and in one of them as a rule.
RUNS = pytest.mark.parametrize(
    "device",
    [
        "host",
        pytest.param("wide-reverse", marks=pytest.mark.slow),
        pytest.param("cuda", marks=pytest.mark.device),
    ],
    indirect=True,
)


@pytest.fixture
def tiles_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tiles read one by one, by `read_into`, which a test can replace."""
    monkeypatch.setattr("oocpr.store.tile_reader.SUPPORTED", False)


@cache
def _device(name: str, folder: Path) -> Device:
    return Device() if name == "cuda" else HostDevice(folder, **HOSTS[name])


@pytest.fixture(scope="session")
def shim_folder(pytestconfig: pytest.Config) -> Path:
    """Where compiled libraries are kept from run to run."""
    return pytestconfig.cache.mkdir("kernels-sanitized" if SANITIZE else "kernels")


@pytest.fixture(
    scope="session",
    params=[
        "host",
        "reverse",
        # Both orders of threads and both widths of warps come without it.
        pytest.param("wide", marks=pytest.mark.slow),
        "wide-reverse",
        pytest.param("cuda", marks=pytest.mark.device),
    ],
)
def device(request: pytest.FixtureRequest, shim_folder: Path) -> Device:
    """A device: the host in both orders, for warps of 32 and of 64 lanes, and a real one."""
    return _device(request.param, shim_folder)


@pytest.fixture(
    params=[
        "host",
        pytest.param("wide-reverse", marks=pytest.mark.slow),
        pytest.param("cuda", marks=pytest.mark.device),
    ]
)
def devices(request: pytest.FixtureRequest, shim_folder: Path) -> list[Device]:
    """Three devices, of real ones as many as there are."""
    if request.param != "cuda":
        # The third reads nothing of the others where it is.
        return [HostDevice(shim_folder, **HOSTS[request.param], linked=index < 2) for index in range(3)]
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip("the machine has one device")
    return [Device(index) for index in range(min(3, count))]


@pytest.fixture
def machine(shim_folder: Path, monkeypatch: pytest.MonkeyPatch) -> PooledMachine:
    """Two devices whose pools count."""
    made = PooledMachine(shim_folder)
    for place in ("oocpr.engine.devices", "oocpr.engine.cuda.device", "oocpr.engine.cpms.run"):
        monkeypatch.setattr(f"{place}.open_device", made.open_device)
    monkeypatch.setattr(import_module("oocpr.plan.device_memory"), "UNCOUNTED_BYTES", 2**14)
    return made
