"""Findings from plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oocpr.diagnosis import Machine, diagnose

GIB = 1 << 30
GOOD = Machine(
    system="Linux 6.1",
    python="3.11.7",
    processor="x86_64, a processor",
    cores=8,
    usable_cores=8,
    load=0.5,
    simd=("avx", "avx2"),
    compiled=True,
    cache="/home/me/.cache",
    memory=32 * GIB,
    usable_memory=30 * GIB,
    folder="/data",
    file_system="ext4",
    free=500 * GIB,
    read_rate=3.0 * GIB,
    direct=True,
    temporary="/tmp",
    temporary_file_system="ext4",
    shared_memory=16 * GIB,
    open_files=1024,
    address_space=None,
    file_size=None,
    driver="",
    devices=(),
    device_problem=("device cuda needs CuPy, which is not installed.", "Install it."),
    packages={"numpy": "2.4.6"},
    unmet=(),
)
DEVICE = {"name": "H100", "capability": "9.0", "memory": 80 * GIB, "free": 79 * GIB}


def test_nothing_is_found_on_a_good_machine() -> None:
    assert diagnose(GOOD) == []


STOPPING: list[tuple[dict[str, Any], str]] = [
    ({"unmet": ("zarr>=3.1",)}, "oocpr requires zarr>=3.1"),
    ({"compiled": False, "cache": ""}, "functions are not compiled"),
    ({"usable_memory": 300 << 20}, "300 MiB of memory may be used; a run needs 512 MiB"),
    ({"read_rate": None}, "/data cannot be written to"),
    ({"free": 100 << 20}, "/data has 100 MiB free"),
    ({"file_size": 1 << 20}, "no file may be larger than 1 MiB"),
]


def test_what_stops_runs() -> None:
    # In one test: all of them, whichever variants of tests are run.
    for fact, cause in STOPPING:
        (found,) = diagnose(replace(GOOD, **fact))
        assert found.stops, cause
        assert found.cause.startswith(cause)
        assert found.remedy


SLOWING: list[tuple[dict[str, Any], str]] = [
    ({"usable_cores": 2}, "2 of 8 cores may be used"),
    ({"cache": ""}, "compiled functions are kept nowhere"),
    ({"simd": ("sse4.2",)}, "functions are compiled without vector instructions"),
    ({"load": 6.0}, "other processes keep 6.0 of the machine's 8 cores busy"),
    ({"usable_memory": 2 * GIB}, "2 GiB of 32 GiB of memory may be used"),
    ({"address_space": 4 * GIB}, "the address space is limited to 4 GiB"),
    ({"direct": False, "file_system": "nfs4"}, "/data (nfs4) takes no direct reads"),
    ({"file_system": "tmpfs", "direct": False}, "/data is in memory (tmpfs)"),
    ({"read_rate": 100.0 * (1 << 20)}, "/data reads 100 MiB/s, and 8 cores take 1.95 GiB/s of tiles"),
    ({"temporary_file_system": "tmpfs"}, "temporary files are in memory"),
    ({"driver": "580.1"}, "device cuda needs CuPy"),
    (
        {"devices": (DEVICE, DEVICE), "device_problem": None, "shared_memory": 64 << 20},
        "/dev/shm has 64 MiB",
    ),
]


def test_what_makes_runs_slower() -> None:
    # In one test: all of them, whichever variants of tests are run.
    for fact, cause in SLOWING:
        (found,) = diagnose(replace(GOOD, **fact))
        assert not found.stops, cause
        assert found.cause.startswith(cause)
        assert found.remedy


def test_what_stops_runs_comes_first() -> None:
    found = diagnose(replace(GOOD, cache="", unmet=("zarr>=3.1",)))
    assert [each.stops for each in found] == [True, False]
