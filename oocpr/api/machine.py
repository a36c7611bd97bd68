"""Facts of the machine that this process runs on, for `oocpr.diagnosis`."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import numpy as np

from oocpr.diagnosis import MIN_DISK, Machine
from oocpr.errors import OocprError
from oocpr.system import usable_cores, whole_memory

READ_BYTES = 64 << 20
"""Bytes that are written to a folder, and read again, to measure it."""

_SIMD = ("sse4.2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "neon", "sve")
_NAMED = ("oocpr", "cupy-cuda12x", "cupy-cuda13x", "fsspec", "s3fs", "networkx", "matplotlib")
"""Packages to tell the versions of, beside those that are required."""


def read_machine(folder: str = ".") -> Machine:
    """Read the facts; writes and reads READ_BYTES in `folder`, in a file that is gone afterwards."""
    compiled = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
    names, unmet = _requirements()
    rate, direct = _read_rate(Path(folder))
    devices, problem = _devices()
    temporary = tempfile.gettempdir()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        processor=f"{platform.machine()}, {_processor_name()}",
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        load=os.getloadavg()[0],
        simd=_simd(),
        compiled=compiled,
        cache=_cache_folder() if compiled else "",
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        usable_memory=whole_memory(),
        folder=folder,
        file_system=_file_system(folder),
        free=shutil.disk_usage(folder).free,
        read_rate=rate,
        direct=direct,
        temporary=temporary,
        temporary_file_system=_file_system(temporary),
        shared_memory=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
        open_files=_limit(resource.RLIMIT_NOFILE),
        address_space=_limit(resource.RLIMIT_AS),
        file_size=_limit(resource.RLIMIT_FSIZE),
        driver=_driver(),
        devices=devices,
        device_problem=problem,
        packages={name: found for name in names if (found := _version(name))},
        unmet=unmet,
    )


def _cache_folder() -> str:
    from oocpr.jit import cache_folder

    return cache_folder()


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or "of an unknown model"


def _simd() -> tuple[str, ...]:
    """Vector instructions that numba compiles for; its settings may name fewer than the processor has."""
    from numba.core import config
    from numba.core.registry import cpu_target

    features = str(getattr(config, "CPU_FEATURES", None) or cpu_target.target_context.codegen()._tm_features)
    taken = {each[1:] for each in features.split(",") if each.startswith("+")}
    return tuple(name for name in _SIMD if name in taken)


def _file_system(folder: str) -> str:
    """Kind of the file system of a folder."""
    import psutil

    path = Path(folder).resolve()
    # Of several at one point the last one is seen.
    around = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    return max(reversed(around), key=lambda mount: len(mount.mountpoint)).fstype if around else "unknown"


def _read_rate(folder: Path) -> tuple[float | None, bool]:
    """Bytes per second of a folder's disk, None if nothing can be written; whether it is read directly."""
    from oocpr.store.direct_io import aligned, open_file, read_file, takes_direct_reads

    piece = np.random.default_rng(1).bytes(1 << 20)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".oocpr-doctor-") as file:
            # A limit of file sizes is a finding of its own.
            room = READ_BYTES if shutil.disk_usage(folder).free > MIN_DISK else len(piece)
            for _ in range(min(room, _limit(resource.RLIMIT_FSIZE) or room) // len(piece)):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            direct = takes_direct_reads(file.name)
            size = file.tell()
            out = aligned(size)
            out[:] = 0
            descriptor = open_file(file.name, direct=direct)
            try:
                began = time.perf_counter()
                read_file(descriptor, out, 0, direct=direct)
                return size / (time.perf_counter() - began), direct
            finally:
                os.close(descriptor)
    except OSError:
        return None, False


def _driver() -> str:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return ""
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), "unknown")


def _devices() -> tuple[tuple[dict[str, str | int], ...], tuple[str, str] | None]:
    """CUDA devices that can be used; if there are none, why, and the remedy."""
    from oocpr.engine.cuda.device import all_devices, open_device

    try:
        opened = [open_device(name) for name in all_devices().split(",")]
    except OocprError as error:
        return (), (error.cause, error.remedy)
    found = []
    for device in opened:
        with device:
            free, total = device.xp.cuda.runtime.memGetInfo()
            properties = device.xp.cuda.runtime.getDeviceProperties(device.index)
        capability = f"{properties['major']}.{properties['minor']}"
        about: dict[str, str | int] = {"name": device.name, "capability": capability}
        found.append(about | {"memory": int(total), "free": int(free)})
    return tuple(found), None


def _requirements() -> tuple[list[str], tuple[str, ...]]:
    """Names of packages to tell of, and the requirements that are not met."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(text) for text in requires("oocpr") or ()]
    except PackageNotFoundError:
        wanted = []
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]

    def unmet() -> Iterator[str]:
        for each in needed:
            found = _version(each.name)
            if found is None or not each.specifier.contains(found, prereleases=True):
                yield f"{each.name}{each.specifier}"

    return [_NAMED[0], *(each.name for each in needed), *_NAMED[1:]], tuple(unmet())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
