"""Processors and memory near a device, on hosts where some are nearer than others.

Memory belongs to the node of the thread that touches it first, and what a device takes from a far node passes
through the processors' own link, which all devices share.
"""

from __future__ import annotations

import os
from pathlib import Path

_SYSTEM = Path("/sys")


def cores_near(bus: str, system: Path = _SYSTEM) -> frozenset[int]:
    """Processors of the node that a PCI device is attached to; empty where the system does not tell.

    Parameters
    ----------
    bus
        Address of the device, such as ``"0000:1B:00.0"``.
    system
        Where the system tells.
    """
    try:
        node = int((system / "bus/pci/devices" / bus.lower() / "numa_node").read_text())
        if node < 0:
            return frozenset()
        return parse_cores((system / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return frozenset()


def parse_cores(text: str) -> frozenset[int]:
    """Read a list of processors as Linux writes it.

    Examples
    --------
    >>> sorted(parse_cores("0-2,8,10-11"))
    [0, 1, 2, 8, 10, 11]
    """
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def stay_near(cores: frozenset[int]) -> None:
    """Keep the calling thread, and those that it starts, on processors that it may use anyway.

    Where none of them is among these, it stays as it is.
    """
    allowed = cores & os.sched_getaffinity(0)
    if allowed:
        os.sched_setaffinity(0, allowed)
