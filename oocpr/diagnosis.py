"""What would stop runs on a machine or make them slower, and what to do about it: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oocpr.units import format_bytes

MIN_MEMORY = 512 << 20
"""Bytes below which hardly a graph fits: the process itself takes half of them."""

MIN_DISK = 1 << 30
MIN_FILE = 1 << 30

MIN_SHARED = 256 << 20
"""Bytes of /dev/shm that NCCL may want for the devices of Dask workers; containers have 64 MiB by default."""

TILE_RATE = 250 << 20
"""Bytes of tiles that a core takes in a second: 170 M edges of 1.5 bytes, as measured on two cores."""

_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class Machine:
    """Facts of a machine, of what this process may use of it, and of a folder; sizes in bytes."""

    system: str
    python: str
    processor: str
    cores: int
    usable_cores: int
    load: float
    """Processes that computed or waited for a disk, over the last minute."""
    simd: tuple[str, ...]
    """Vector instructions for which functions are compiled."""
    compiled: bool
    """Whether functions are compiled at all."""
    cache: str
    """Folder of compiled functions; empty if they are kept nowhere."""
    memory: int
    usable_memory: int
    folder: str
    file_system: str
    free: int
    read_rate: float | None
    """Bytes per second; None if no file could be written there."""
    direct: bool
    """Whether the folder's files can be read past the page cache."""
    temporary: str
    temporary_file_system: str
    shared_memory: int
    """Free bytes of /dev/shm."""
    open_files: int | None
    address_space: int | None
    file_size: int | None
    """Limits of the process; None for none."""
    driver: str
    """Version of NVIDIA's driver; empty without one."""
    devices: tuple[dict[str, str | int], ...]
    """``name``, ``capability``, ``memory`` and ``free`` of each CUDA device that can be used."""
    device_problem: tuple[str, str] | None
    """Why there is none, and the remedy."""
    packages: dict[str, str]
    unmet: tuple[str, ...]
    """Requirements of oocpr that no installed package meets."""


@dataclass(frozen=True)
class Finding:
    """One line of cause and one of remedy; `stops`: whether runs end because of it, or are slower only."""

    stops: bool
    cause: str
    remedy: str


def diagnose(machine: Machine) -> list[Finding]:
    """Say what is wrong with a machine, what stops runs first."""
    stopping = [*_packages(machine), *_room(machine)]
    slowing = [*_processors(machine), *_memory(machine), *_disk(machine), *_devices(machine)]
    return [
        *(Finding(True, cause, remedy) for cause, remedy in stopping),
        *(Finding(False, cause, remedy) for cause, remedy in slowing),
    ]


Lines = Iterator[tuple[str, str]]


def _packages(machine: Machine) -> Lines:
    if not machine.compiled:
        yield "functions are not compiled: NUMBA_DISABLE_JIT is set.", "Unset it."
    for each in machine.unmet:
        yield f"oocpr requires {each}, which is not installed.", f"Install it: pip install '{each}'."


def _room(machine: Machine) -> Lines:
    if machine.usable_memory < MIN_MEMORY:
        yield (
            f"{format_bytes(machine.usable_memory)} of memory may be used; a run needs "
            f"{format_bytes(MIN_MEMORY)} at least.",
            "Raise the limit of the group, job or shell, or end other processes.",
        )
    if machine.read_rate is None:
        yield f"{machine.folder} cannot be written to.", "Name another folder, or change its rights."
    elif machine.free < MIN_DISK:
        yield f"{machine.folder} has {format_bytes(machine.free)} free.", "Make room, or name another folder."
    if machine.file_size is not None and machine.file_size < MIN_FILE:
        yield (
            f"no file may be larger than {format_bytes(machine.file_size)}.",
            "Lift it: ulimit -f unlimited.",
        )


def _processors(machine: Machine) -> Lines:
    if machine.usable_cores < machine.cores:
        yield (
            f"{machine.usable_cores} of {machine.cores} cores may be used, by affinity, quota or job.",
            "Ask for more, such as by --cpus-per-task of SLURM or limits.cpu of Kubernetes.",
        )
    if machine.compiled and not machine.cache:
        yield (
            "compiled functions are kept nowhere, so that each run compiles for half a minute.",
            "Set OOCPR_CACHE_DIR to a folder that can be written.",
        )
    if machine.processor.startswith("x86") and not {"avx2", "avx512f"} & set(machine.simd):
        yield (
            "functions are compiled without vector instructions (AVX2 or AVX-512).",
            "Unset NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, or use a newer processor.",
        )
    if machine.load > machine.cores / 2:
        yield (
            f"other processes keep {machine.load:.1f} of the machine's {machine.cores} cores busy.",
            "End them, or wait; a plan's times hold for a machine that is free.",
        )


def _memory(machine: Machine) -> Lines:
    if MIN_MEMORY <= machine.usable_memory < machine.memory // 2:
        yield (
            f"{format_bytes(machine.usable_memory)} of {format_bytes(machine.memory)} of memory may be "
            "used: a group, a job or a shell limits it, or others hold the rest.",
            "Raise the limit; what does not fit is read in every pass.",
        )
    if machine.address_space is not None:
        yield (
            f"the address space is limited to {format_bytes(machine.address_space)}.",
            "Lift it: ulimit -v unlimited. It counts what is reserved, not what is used.",
        )


def _disk(machine: Machine) -> Lines:
    if machine.read_rate is None:
        return
    if machine.file_system in _IN_MEMORY:
        yield (
            f"{machine.folder} is in memory ({machine.file_system}).",
            "Put stores on a disk, or count them.",
        )
    elif not machine.direct:
        yield (
            f"{machine.folder} ({machine.file_system}) takes no direct reads.",
            "Put a store that is larger than memory on a local disk.",
        )
    wanted = TILE_RATE * min(machine.usable_cores, 16)
    if machine.read_rate < wanted:
        yield (
            f"{machine.folder} reads {format_bytes(machine.read_rate)}/s, and "
            f"{machine.usable_cores} cores take {format_bytes(wanted)}/s of tiles.",
            "Give memory for the whole store, so that it is read once, or use a faster disk.",
        )
    if machine.temporary_file_system in _IN_MEMORY:
        yield (
            f"temporary files are in memory: {machine.temporary} is {machine.temporary_file_system}.",
            "Set TMPDIR, or DASK_TEMPORARY_DIRECTORY of Dask workers, to a folder on a disk.",
        )


def _devices(machine: Machine) -> Lines:
    # A machine without a driver is one for processors, and nothing is wrong with it.
    if machine.device_problem is not None and machine.driver:
        yield machine.device_problem
    if len(machine.devices) > 1 and machine.shared_memory < MIN_SHARED:
        yield (
            f"/dev/shm has {format_bytes(machine.shared_memory)} free, less than NCCL may want.",
            "Give the container more (--shm-size=1g), or set OOCPR_NCCL=off.",
        )
