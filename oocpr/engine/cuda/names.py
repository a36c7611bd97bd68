"""CUDA devices by name, and their contexts: all that is asked for before CuPy is loaded."""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from collections.abc import Iterable

from oocpr.errors import UsageError

ALL = "cuda:all"
"""Name of all devices of the machine."""

LIBRARY = "libcuda.so.1"
"""The driver; there is none on a machine without devices."""

_NAME = re.compile(r"cuda(?::(\d+))?")

_BEGUN: set[int] = set()
"""Numbers of the devices of which contexts were begun."""


def is_cuda(name: str) -> bool:
    """Whether a name is ``cuda`` or ``cuda:`` and a number.

    >>> is_cuda("cuda:1"), is_cuda("cuda:"), is_cuda("cpu")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None


def device_index(name: str) -> int:
    """Number of a device, as CUDA counts, of which `is_cuda` is true.

    >>> device_index("cuda"), device_index("cuda:3")
    (0, 3)
    """
    found = _NAME.fullmatch(name)
    assert found, f"{name} is no name of a CUDA device"
    return int(found[1] or 0)


def check_kernel_device(kernel: str | None, name: str) -> None:
    """Refuse a kernel for devices, named by `name`, that have none."""
    if kernel is not None and not named_devices(name):
        raise UsageError(
            f"kernel {kernel!r} is for CUDA devices and the device is {name}.",
            "Use device cuda, or leave the kernel out.",
        )


def named_devices(name: str) -> tuple[str, ...]:
    """Split the names of CUDA devices; empty if anything else is named.

    Raises UsageError if a device is named twice.

    >>> named_devices("cuda:0,cuda:2"), named_devices("cuda"), named_devices("cpu")
    (('cuda:0', 'cuda:2'), ('cuda:0',), ())
    """
    parts = name.split(",")
    if not all(map(is_cuda, parts)):
        return ()
    names = [f"cuda:{device_index(part)}" for part in parts]
    for known in names:
        if names.count(known) > 1:
            raise UsageError(
                f"device {known} is named twice.", f"Name each device once, or all of them as {ALL}."
            )
    return tuple(names)


def begin_contexts(names: Iterable[str]) -> None:
    """Have devices make their contexts, a third of a second for the first, while the caller does else.

    CuPy takes as long to load, and lets no other thread run while it makes one. A device that cannot be used
    is refused when it is. A process begins each once.
    """
    indices = {device_index(name) for name in names} - _BEGUN
    _BEGUN.update(indices)

    def make() -> None:
        with contextlib.suppress(OSError, AttributeError):
            driver = ctypes.CDLL(LIBRARY)
            device, context = ctypes.c_int(), ctypes.c_void_p()
            if driver.cuInit(0):
                return
            for index in indices:
                if not driver.cuDeviceGet(ctypes.byref(device), index):
                    # The context that CUDA's runtime, and so CuPy, finds.
                    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

    if indices:
        threading.Thread(target=make).start()
