"""How much memory there is to plan with: of the machine, of the groups of this process, of Dask's workers."""

from __future__ import annotations

import resource
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from oocpr.ingest.budget import resident

if TYPE_CHECKING:
    from collections.abc import Iterable

KERNEL_BYTES = 80 << 20
"""What numba's compiled functions take once a run has loaded them; 68 to 76 MiB were measured."""

LIMITS = {"cgroup2": ("memory.max", "memory.high"), "cgroup": ("memory.limit_in_bytes",)}
"""Files with a group's limits, by the type of the file system. Past memory.high, a group crawls."""

WORKER_SHARE = 3 / 4
"""Share of its memory limit that is planned for a Dask worker: at four fifths it takes no more tasks."""


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
    held = resident()
    return min([held + free, *_own_limits(), *_address_limits(held)])


def _own_limits() -> list[int]:
    own = Path("/proc/self")
    try:
        groups, mounts = (own / "cgroup").read_text(), (own / "mountinfo").read_text()
    except OSError:
        return []
    return memory_limits(_texts(limit_files(groups, mounts)))


def _address_limits(held: int) -> list[int]:
    """What an address space that is limited, as by ``ulimit -v``, has room for beside what is mapped now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    pages = Path("/proc/self/statm").read_bytes().split()[0]
    return [held + max(0, limit - int(pages) * resource.getpagesize())]


def _texts(files: Iterable[PurePosixPath]) -> list[str]:
    texts = []
    for file in files:
        try:
            texts.append(Path(file).read_text())
        except OSError:  # the root of the groups has no limits, and others may be hidden
            continue
    return texts


def memory_limits(texts: Iterable[str]) -> list[int]:
    """Limits in bytes that files of groups hold; those without one say ``max``.

    Parameters
    ----------
    texts
        What is in the files.

    Examples
    --------
    >>> memory_limits(["max", "1073741824"])
    [1073741824]
    """
    return [int(text) for text in map(str.strip, texts) if text.isdecimal()]


def limit_files(groups: str, mounts: str) -> list[PurePosixPath]:
    """Files with the memory limits that hold for a process: those of its group, and of all groups around it.

    Parameters
    ----------
    groups
        /proc/PID/cgroup: ``0::/user.slice/job.scope`` of version 2, ``4:memory:/job`` of version 1.
    mounts
        /proc/PID/mountinfo.

    Examples
    --------
    >>> mount = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw"
    >>> [str(file) for file in limit_files("0::/job", mount) if file.name == "memory.max"]
    ['/sys/fs/cgroup/job/memory.max', '/sys/fs/cgroup/memory.max']
    """
    return [
        PurePosixPath(folder, name)
        for mount in map(_mount, mounts.splitlines())
        if mount is not None
        for group in map(_Group.of, groups.splitlines())
        if group.held_by(mount)
        for folder in _around(group.path, mount)
        for name in LIMITS[mount.kind]
    ]


class _Mount(NamedTuple):
    """Where groups are visible as folders: `root` is the group that lies at `point`."""

    kind: str
    root: str
    point: str
    options: str


class _Group(NamedTuple):
    hierarchy: str
    controllers: str
    path: str

    @classmethod
    def of(cls, line: str) -> _Group:
        hierarchy, controllers, path = line.split(":", 2)
        return cls(hierarchy, controllers, path)

    def held_by(self, mount: _Mount) -> bool:
        if mount.kind == "cgroup2":
            return self.hierarchy == "0"
        return "memory" in self.controllers.split(",") and "memory" in mount.options.split(",")


def _mount(line: str) -> _Mount | None:
    left, _, right = line.partition(" - ")
    if not right:
        return None
    kind, _, options = right.split(" ", 2)
    _, _, _, root, point = left.split(" ")[:5]
    return _Mount(kind, _unescaped(root), _unescaped(point), options) if kind in LIMITS else None


def _unescaped(path: str) -> str:
    """Path of a table of mounts, in which blanks are written as octal numbers."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _around(path: str, mount: _Mount) -> list[PurePosixPath]:
    """Folders of a group and of all around it, as far as the mount shows them."""
    group, root, point = (PurePosixPath(text) for text in (path, mount.root, mount.point))
    # A container's own group may be named from outside, and be all that is shown inside.
    inside = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    if ".." in inside.parts:
        inside = PurePosixPath()
    folder = point / inside
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(point))]
