"""What is around this process: processors, memory, disks, and the servers of files and stores."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, TypeVar

from oocpr.errors import LostError, OocprError, SetupError

if TYPE_CHECKING:
    import psutil

LINUX: bool = sys.platform == "linux"
"""Whether the system says in /proc what processes have; others are asked through psutil."""

_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
"""Files with a group's limits, of versions 2 and 1. Past memory.high, a group crawls."""

_UNLIMITED = 1 << 62
"""Version 1 writes the largest multiple of a page for no limit."""

_MEMORY_USED = ("memory.current", "memory.usage_in_bytes")
_RECLAIMED = (
    *("active_file", "inactive_file", "slab_reclaimable"),
    *("total_active_file", "total_inactive_file"),
)
"""Lines of memory.stat, of versions 2 and 1, with what a group gives back when it is asked for memory."""

SERVER_TIMEOUT = 60
"""Seconds after which a server that says nothing is lost."""

PIECE_ITEMS, MAX_THREADS = 1 << 20, 16
"""Items of an array that a thread takes at a time, and threads that do: 268 M ranks are scaled by sixteen in
100 ms, by eight in 174, on a host with 32 cores."""

MAX_AHEAD = 4
"""Pieces of a file that threads have read, or are at, before they are asked for."""

Result = TypeVar("Result")

_LOST = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "ConnectionError", "TimeoutError"}
_DENIED = {"PermissionError", "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}


def is_disk_full(error: OSError) -> bool:
    """Whether a disk, a quota or a limit of file sizes has no room for what was written."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def usable_cores() -> int:
    """Cores that this process may use, by its affinity, its groups' quotas of time and its batch job."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([own, *_given_cores()]))


@cache
def _given_cores() -> tuple[int, ...]:
    return (*group_cores(own_groups("cpu")), *job_limits(os.environ)[0])


def resident() -> int:
    """Bytes of this process that are in memory now."""
    if not LINUX:
        return int(_this_process().memory_info().rss)
    pages = _text("/proc/self/statm").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _this_process() -> psutil.Process:
    import psutil

    return psutil.Process()


def trim_memory() -> None:
    """Give what this process has freed back to the system.

    C libraries and Arrow keep freed memory, tens of megabytes after blocks of varied sizes, hundreds after
    a run of several stripes, which a stage that plans with the rest would lack.
    """
    # Another thread may be importing it.
    pool = getattr(sys.modules.get("pyarrow"), "default_memory_pool", None)
    if pool is not None:
        pool().release_unused()
    with contextlib.suppress(AttributeError):  # a function of the GNU library only
        ctypes.CDLL(None).malloc_trim(0)


def resident_after_trim() -> int:
    """Bytes of this process that are in memory once what it has freed is given back to the system."""
    trim_memory()
    return resident()


def in_background(work: Callable[[], Result], name: str) -> Future[Result]:
    """Have a thread of that name work while the caller goes on."""
    thread = ThreadPoolExecutor(1, name)
    begun = thread.submit(work)
    thread.shutdown(wait=False)
    return begun


def spans(size: int, step: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Cut the items from `first` on into pieces of `step`: the first of each, and the one behind its last.

    >>> list(spans(5, 2)), list(spans(5, 2, first=2))
    ([(0, 2), (2, 4), (4, 5)], [(2, 4), (4, 5)])
    """
    return ((low, min(low + step, size)) for low in range(first, size, step))


def shares(size: int, count: int) -> list[tuple[int, int]]:
    """Divide items into `count` pieces, as even as can be: the first of each, and the one behind its last.

    >>> shares(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return list(pairwise(size * k // count for k in range(count + 1)))


def in_threads(work: Callable[[int, int], Result], size: int) -> list[Result]:
    """Call ``work(lo, hi)`` for pieces of so many items, in as many threads as there are processors.

    Returns what it gave, in the order of the pieces, whose bounds depend on the size alone.
    """
    pieces = list(spans(size, PIECE_ITEMS))
    if len(pieces) < 2:
        return [work(*piece) for piece in pieces]
    with ThreadPoolExecutor(min(len(pieces), usable_cores(), MAX_THREADS)) as pool:
        return list(pool.map(work, *zip(*pieces, strict=True)))


def worked_ahead(work: Callable[..., Result], calls: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
    """Yield what ``work(*call)`` gives for each call, in order; threads are at most MAX_AHEAD ahead.

    >>> list(worked_ahead(pow, [(2, 3), (3, 2)]))
    [8, 9]
    """
    with ThreadPoolExecutor(min(MAX_AHEAD, usable_cores())) as pool:
        begun: deque[Future[Result]] = deque()
        for call in calls:
            begun.append(pool.submit(work, *call))
            if len(begun) == MAX_AHEAD:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def peak_resident() -> int:
    """Most bytes of this process that were in memory so far."""
    if not LINUX:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10
    # Not ``getrusage``, which keeps the peak of the process that started this one.
    return _line_bytes(_text("/proc/self/status"), "VmHWM")


def available_memory() -> int:
    """Four fifths of `whole_memory`; the rest is for what the system reads ahead."""
    return whole_memory() * 4 // 5


def whole_memory() -> int:
    """Bytes that this process and the cache of the files that it reads may come to hold together."""
    held, free = resident(), _free_memory()
    groups = group_memory(_limited_groups(), _unshared)
    return min([held + free, *groups, *job_limits(os.environ)[1], *_address_limits(held)])


def _free_memory() -> int:
    if not LINUX:
        import psutil

        return int(psutil.virtual_memory().available)
    return _line_bytes(_text("/proc/meminfo"), "MemAvailable")


@cache
def _limited_groups() -> tuple[PurePosixPath, ...]:
    """Groups around this process whose memory can be limited; where they are is looked for only once."""
    return tuple(folder for folder in own_groups("memory") if _limit_files(folder))


@cache
def _limit_files(folder: PurePosixPath) -> tuple[str, ...]:
    """Those of the files with limits that a group has, by its version."""
    return tuple(f"{folder}/{name}" for name in _MEMORY_LIMITS if Path(folder / name).exists())


def _unshared() -> int:
    """Bytes of this process in memory that are no file's."""
    if not LINUX:
        return resident()
    status = _text("/proc/self/status")
    return _line_bytes(status, "RssAnon") + _line_bytes(status, "RssShmem")


def job_limits(environment: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Cores and bytes that SLURM has given a job on this node; some clusters do not enforce them at once.

    >>> job_limits({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "512"})
    ([4], [2147483648])
    """
    if "SLURM_JOB_ID" not in environment:
        return [], []
    found = {name: int(text) for name, text in environment.items() if text.isdecimal() and int(text)}
    node = found.get("SLURM_CPUS_ON_NODE")
    cores = found.get("SLURM_CPUS_PER_TASK", node)
    mebibytes = [found["SLURM_MEM_PER_NODE"]] if "SLURM_MEM_PER_NODE" in found else []
    if node and "SLURM_MEM_PER_CPU" in found:
        mebibytes.append(node * found["SLURM_MEM_PER_CPU"])
    return [cores] if cores else [], [size << 20 for size in mebibytes]


def _address_limits(held: int) -> list[int]:
    """Room in a limited address space, as by ``ulimit -v``, beside what is mapped now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    if LINUX:
        mapped = int(_text("/proc/self/statm").split()[0]) * resource.getpagesize()
    else:
        mapped = int(_this_process().memory_info().vms)
    return [held + max(0, limit - mapped)]


def own_groups(controller: str) -> list[PurePosixPath]:
    """Folders of the groups that bound this process; see `group_folders`."""
    own = Path("/proc/self")
    try:
        return group_folders(controller, (own / "cgroup").read_text(), (own / "mountinfo").read_text())
    except OSError:
        return []


def group_memory(folders: Iterable[PurePosixPath], held: Callable[[], int]) -> list[int]:
    """Bytes that each limited group leaves to a process in it, of which `held` tells what it holds by itself.

    Those are its limit less what its other processes hold; what is cached of files counts as free.
    """
    found = []
    for folder in folders:
        limits = [size for file in _limit_files(folder) for size in _numbers(file)]
        if not limits or min(limits) >= _UNLIMITED:
            found += limits[:1]
            continue
        used = sum(size for name in _MEMORY_USED for size in _numbers(f"{folder}/{name}"))
        lines = [line.split() for line in _text(f"{folder}/memory.stat").splitlines()]
        stat = {name: int(size) for name, size in lines}
        # Version 1 counts the groups inside by lines of their own.
        names = [name for name in _RECLAIMED if name in stat]
        whole = [name for name in names if name.startswith("total_")] or names
        others = used - sum(stat[name] for name in whole) - held()
        found.append(max(0, min(limits) - max(0, others)))
    return found


def group_cores(folders: Iterable[PurePosixPath]) -> list[int]:
    """Cores that each group with a quota of processor time can keep busy, rounded up."""
    found = []
    for folder in folders:
        quota, *period = [
            *_numbers(f"{folder}/cpu.max"),
            *(size for name in ("quota", "period") for size in _numbers(f"{folder}/cpu.cfs_{name}_us")),
        ] or [0]
        # A group without a quota says max or -1 in place of it, and still has a period.
        if quota and period:
            found.append(-(-quota // period[0]))
    return found


def _text(file: str) -> str:
    """Read a file of the kernel; nothing if it is not there: the root of the groups has no limits."""
    # Not by a file object, which asks for what such a file is before it reads it.
    try:
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return b"".join(iter(lambda: os.read(opened, 1 << 16), b"")).decode()
    except OSError:
        return ""
    finally:
        os.close(opened)


def _line_bytes(text: str, name: str) -> int:
    """Bytes in a line such as ``VmHWM:  5 kB``."""
    return int(text.partition(f"{name}:")[2].split(None, 1)[0]) << 10


def _numbers(file: str) -> list[int]:
    return [int(word) for word in _text(file).split() if word.isdecimal()]


def group_folders(controller: str, groups: str, mounts: str) -> list[PurePosixPath]:
    """Folders of a process's group and of all groups around it, of both versions that a controller has.

    `controller` is ``memory`` or ``cpu``, `groups` the text of /proc/PID/cgroup (``0::/user.slice/job.scope``
    of version 2, ``4:memory:/job`` of version 1), `mounts` that of /proc/PID/mountinfo.

    >>> mount = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw"
    >>> [str(folder) for folder in group_folders("memory", "0::/job", mount)]
    ['/sys/fs/cgroup/job', '/sys/fs/cgroup']
    """
    folders: list[PurePosixPath] = []
    for mount in mounts.splitlines():
        left, _, right = mount.partition(" - ")
        kind, _, options = right.split(" ", 2) if right else ("", "", "")
        if kind not in ("cgroup", "cgroup2"):
            continue
        # Groups are visible as folders: `root` is the group that lies at `point`.
        root, point = (_unescaped(field) for field in left.split(" ")[3:5])
        for group in groups.splitlines():
            hierarchy, controllers, path = group.split(":", 2)
            mounted = hierarchy == "0"
            if kind == "cgroup":
                mounted = controller in controllers.split(",") and controller in options.split(",")
            folders += _around(path, root, point) if mounted else []
    return folders


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


def server_options(url: str, *, raw: bool = False) -> dict[str, Any]:
    """Options of fsspec with which a server is waited for as long as it goes on answering.

    With `raw`, what is compressed comes as it is, also if the server calls that an encoding of the transfer.
    Raises ImportError if the library for its protocol is not installed.
    """
    if not url.startswith(("http://", "https://")):
        return {}
    from aiohttp import ClientTimeout

    timeout = ClientTimeout(sock_connect=SERVER_TIMEOUT, sock_read=SERVER_TIMEOUT)
    # aiohttp takes the start of an archive for all of it. What the server would compress, it is to leave.
    kept = {"auto_decompress": False, "headers": {"Accept-Encoding": "identity"}} if raw else {}
    return {"client_kwargs": {"timeout": timeout, **kept}}


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
