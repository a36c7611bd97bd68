"""What is around this process: processors, memory, disks, and the servers of files and stores."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from traceback import clear_frames
from typing import Any, TypeVar

from oocpr.errors import LostError, OocprError, SetupError

_LIMIT_FILES = {"cgroup2": ("memory.max", "memory.high"), "cgroup": ("memory.limit_in_bytes",)}
"""Files with a group's limits, by the type of the file system. Past memory.high, a group crawls."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals by which people and systems end a process."""

SERVER_TIMEOUT = 60
"""Seconds after which a server that says nothing is lost."""

PIECE_ITEMS, MAX_THREADS = 1 << 20, 8
"""Items of an array that a thread takes at a time, and threads that do: more of them wait for memory."""

Result = TypeVar("Result")

_LOST = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "ConnectionError", "TimeoutError"}
_DENIED = {"PermissionError", "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}


def is_disk_full(error: OSError) -> bool:
    """Whether a disk, a quota or a limit of file sizes has no room for what was written."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def resident() -> int:
    """Bytes of this process that are in memory now."""
    pages = Path("/proc/self/statm").read_bytes().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def resident_after_trim() -> int:
    """Bytes of this process that are in memory once what it has freed is given back to the system.

    C libraries and Arrow keep freed memory, tens of megabytes after blocks of varied sizes, which a stage
    that plans with the rest would lack.
    """
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError):  # a function of the GNU library only
        ctypes.CDLL(None).malloc_trim(0)
    return resident()


def in_threads(work: Callable[[int, int], Result], size: int) -> list[Result]:
    """Call ``work(lo, hi)`` for pieces of so many items, in as many threads as there are processors.

    Returns what it gave, in the order of the pieces, whose bounds depend on the size alone.
    """
    bounds = range(0, size, PIECE_ITEMS)
    ends = [min(size, lo + PIECE_ITEMS) for lo in bounds]
    if len(ends) < 2:
        return [work(lo, hi) for lo, hi in zip(bounds, ends, strict=True)]
    with ThreadPoolExecutor(min(len(ends), usable_cores(), MAX_THREADS)) as pool:
        return list(pool.map(work, bounds, ends))


def peak_resident() -> int:
    """Most bytes of this process that were in memory so far."""
    # Not ``getrusage``, which keeps the peak of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def available_memory() -> int:
    """Four fifths of `whole_memory`; the rest is for what the system reads ahead."""
    return whole_memory() * 4 // 5


def whole_memory() -> int:
    """Bytes that this process and the cache of the files that it reads may come to hold together."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    held = resident()
    return min([held + free, *_group_limits(), *_address_limits(held)])


def _group_limits() -> list[int]:
    own = Path("/proc/self")
    try:
        groups, mounts = (own / "cgroup").read_text(), (own / "mountinfo").read_text()
    except OSError:
        return []
    texts = []
    for file in limit_files(groups, mounts):
        # The root of the groups has no limits, and others may be hidden.
        with contextlib.suppress(OSError):
            texts.append(Path(file).read_text())
    return memory_limits(texts)


def _address_limits(held: int) -> list[int]:
    """Room in a limited address space, as by ``ulimit -v``, beside what is mapped now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    pages = Path("/proc/self/statm").read_bytes().split()[0]
    return [held + max(0, limit - int(pages) * resource.getpagesize())]


def memory_limits(texts: Iterable[str]) -> list[int]:
    """Limits in bytes in the files of groups; those without a limit say ``max``."""
    return [int(text) for text in map(str.strip, texts) if text.isdecimal()]


def limit_files(groups: str, mounts: str) -> list[PurePosixPath]:
    """Files with the memory limits of a process's group and of all groups around it.

    `groups` is the text of /proc/PID/cgroup (``0::/user.slice/job.scope`` of version 2, ``4:memory:/job`` of
    version 1), `mounts` that of /proc/PID/mountinfo.

    >>> mount = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw"
    >>> [str(file) for file in limit_files("0::/job", mount) if file.name == "memory.max"]
    ['/sys/fs/cgroup/job/memory.max', '/sys/fs/cgroup/memory.max']
    """
    files: list[PurePosixPath] = []
    for mount in mounts.splitlines():
        left, _, right = mount.partition(" - ")
        kind, _, options = right.split(" ", 2) if right else ("", "", "")
        if kind not in _LIMIT_FILES:
            continue
        # Groups are visible as folders: `root` is the group that lies at `point`.
        root, point = (_unescaped(field) for field in left.split(" ")[3:5])
        for group in groups.splitlines():
            hierarchy, controllers, path = group.split(":", 2)
            mounted = hierarchy == "0"
            if kind == "cgroup":
                mounted = "memory" in controllers.split(",") and "memory" in options.split(",")
            folders = _around(path, root, point) if mounted else []
            files += [folder / name for folder in folders for name in _LIMIT_FILES[kind]]
    return files


def _unescaped(path: str) -> str:
    """Path of a table of mounts, in which blanks are written as octal numbers."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _around(path: str, root: str, point: str) -> list[PurePosixPath]:
    """Folders of a group and of all around it, as far as the mount shows them."""
    group, top = PurePosixPath(path), PurePosixPath(point)
    # A container's own group may be named from outside, and be all that is shown inside.
    inside = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
    folder = top if ".." in inside.parts else top / inside
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(top))]


@contextmanager
def server_errors(url: str, done: str = "read") -> Iterator[None]:
    """Raise LostError and SetupError for what a server, or the way to it, does wrong; others as they are."""
    try:
        yield
    except OocprError:
        raise
    except Exception as error:
        known = remote_error(url, error, done)
        if known is None:
            raise
        raise known from error


def remote_error(url: str, error: BaseException, done: str = "read") -> LostError | SetupError | None:
    """Translate an error of aiohttp, botocore, fsspec or Python that a URL to be read, or `done`, raised.

    None for an error of another kind.

    >>> remote_error("http://host/g.txt", ConnectionResetError("reset")).exit_code
    7
    >>> remote_error("s3://bucket/g.txt", PermissionError("Access Denied")).exit_code
    8
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status", 0)
    why = f"its server said nothing for {SERVER_TIMEOUT} s" if "TimeoutError" in names else str(error)
    cause = f"{url} cannot be {done}: {' '.join(why.split()) or type(error).__name__}."
    if names & _DENIED or status in (401, 403):
        return SetupError(cause, "Give credentials with which it can be.")
    if names & _LOST or (isinstance(status, int) and status >= 500):
        return LostError(cause, "Run it again once its server answers; check the address if it never did.")
    # fsspec says of servers without an answer that they have no such file.
    behind = error.__cause__ or error.__context__
    return None if behind is None else remote_error(url, behind, done)


def server_options(url: str) -> dict[str, Any]:
    """Options of fsspec with which a server is waited for as long as it goes on answering.

    Raises ImportError if the library for its protocol is not installed.
    """
    if not url.startswith(("http://", "https://")):
        return {}
    from aiohttp import ClientTimeout

    return {
        "client_kwargs": {"timeout": ClientTimeout(sock_connect=SERVER_TIMEOUT, sock_read=SERVER_TIMEOUT)}
    }


@contextmanager
def release_frames() -> Iterator[None]:
    """Let an error that leaves the block hold nothing of the functions that were called inside.

    An error has the functions that it has left, and they what they worked with, gigabytes of a device or of
    the host. A notebook keeps its last error, so a run that has failed would hold its memory while the next
    one wants it.
    """
    # What the caller was dealing with already is the caller's.
    before = sys.exception()
    try:
        yield
    except BaseException as error:
        left: BaseException | None = error
        while left is not None and left is not before:
            clear_frames(left.__traceback__)
            left = left.__cause__ or left.__context__
        raise
