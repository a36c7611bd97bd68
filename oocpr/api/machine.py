"""How much memory there is to plan with."""

from __future__ import annotations

from pathlib import Path

from oocpr.ingest.budget import resident

KERNEL_BYTES = 80 << 20
"""What numba's compiled functions take once a run has loaded them; 68 to 76 MiB were measured."""


def available_memory() -> int:
    """Four fifths of what this process may come to hold; the rest is for what the system reads ahead.

    Examples
    --------
    >>> 2**20 < available_memory() < 2**50
    True
    """
    return whole_memory() * 4 // 5


def whole_memory() -> int:
    """What this process and the cache of the files that it reads may come to hold together.

    Examples
    --------
    >>> whole_memory() > available_memory()
    True
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    most = resident() + free
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup", name)
        text = limit.read_text().strip() if limit.is_file() else "max"
        if text != "max":
            most = min(most, int(text))
    return most
