"""Finding the device that a run asks for, and saying in plain words why it cannot be had."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from oocpr.errors import UsageError, install_remedy

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import CudaDevice

ALL = "cuda:all"
"""Name of all devices of the machine."""

MIN_CAPABILITY = (7, 5)
"""Oldest compute capability that the kernels are compiled for."""

_NAME = re.compile(r"cuda(?::(\d+))?")


def is_cuda(name: str) -> bool:
    """Whether a name is ``cuda`` or ``cuda:`` and a number.

    >>> is_cuda("cuda:1"), is_cuda("cuda:"), is_cuda("cpu")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None


def named_devices(name: str) -> tuple[str, ...]:
    """Tell several CUDA devices apart, none of them named twice; empty for any other name.

    Raises UsageError if a device is named twice.

    >>> named_devices("cuda:0,cuda:2"), named_devices("cuda"), named_devices("cpu")
    (('cuda:0', 'cuda:2'), ('cuda:0',), ())
    """
    names = []
    for part in name.split(","):
        found = _NAME.fullmatch(part)
        if not found:
            return ()
        names.append(f"cuda:{int(found[1] or 0)}")
    for known in names:
        if names.count(known) > 1:
            raise UsageError(
                f"device {known} is named twice.", f"Name each device once, or all of them as {ALL}."
            )
    return tuple(names)


def all_devices() -> str:
    """Name all CUDA devices of the machine."""
    open_device("cuda")
    import cupy

    return ",".join(f"cuda:{index}" for index in range(cupy.cuda.runtime.getDeviceCount()))


def open_device(name: str) -> CudaDevice:
    """Open a CUDA device.

    `name`: ``cuda`` for the first one, or ``cuda:`` and its number.
    Raises UsageError if CuPy or the driver is missing, there is no such device, or it is too old.
    """
    found = _NAME.fullmatch(name)
    assert found, f"{name} is no name of a CUDA device"
    index = int(found[1] or 0)
    try:
        import cupy
    except ImportError as error:
        cause = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not load ({error})"
        raise UsageError(
            f"device {name} needs CuPy, which {cause}.",
            f"{install_remedy('cuda13')} CUDA 12 wants cupy-cuda12x. Or use device cpu.",
        ) from error
    check_device(cupy, name, index)
    from oocpr.engine.cuda.device import CudaDevice

    return CudaDevice(index)


def free_memory(name: str) -> int:
    """Bytes of a CUDA device that a run may take: most of what is free."""
    return open_device(name).free_bytes * 19 // 20


def check_device(cupy: Any, name: str, index: int) -> None:
    """Refuse a device that is not there or too old."""
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise UsageError(
            f"device {name} cannot be used: {error}.", "Install or update NVIDIA's driver, or use device cpu."
        ) from error
    if index >= count:
        raise UsageError(
            f"device {name} does not exist: this machine has {count}.",
            "Use cuda:0 for the first, or device cpu.",
        )
    properties = runtime.getDeviceProperties(index)
    has = int(properties["major"]), int(properties["minor"])
    if has < MIN_CAPABILITY:
        raise UsageError(
            f"device {name} ({properties['name'].decode()}) has compute capability {has[0]}.{has[1]}; "
            f"the kernels need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}.",
            "Use a newer device, or device cpu.",
        )
