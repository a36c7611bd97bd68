"""The lock of a job: a file that says which process runs it, and whether that process still lives."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from oocpr.errors import RunningError
from oocpr.store.atomic import Partial, naming_failures
from oocpr.system import LINUX
from oocpr.units import format_seconds

LOCK = "lock"


class Owner(NamedTuple):
    """The process that runs a job: where it is, when it began, and when it took the lock, in Unix time.

    `started` tells it from a later process of the same number: the boot of its machine, and clock ticks
    since; or the time, where the system has no /proc.
    """

    host: str
    pid: int
    started: str
    since: float

    def describe(self, now: float) -> str:
        """Name it, with the age of its lock."""
        return f"process {self.pid} on {self.host}, for {format_seconds(max(0.0, now - self.since))}"


def started_at(pid: int) -> str | None:
    """When a process of this machine began, as `Owner.started` has it; None if there is none."""
    if not LINUX:
        import psutil

        try:
            process = psutil.Process(pid)
            ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            return None if ended else repr(process.create_time())
        except psutil.Error:
            return None
    try:
        # The name of the program, in brackets, may hold blanks.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else f"{boot}:{fields[19]}"


def this_process() -> Owner:
    """Describe the process that asks."""
    pid = os.getpid()
    return Owner(socket.gethostname(), pid, started_at(pid) or "", time.time())


def is_dead(owner: Owner, host: str, started: str | None) -> bool:
    """Whether an owner lives no more, as is known on its own host alone.

    `started`: that of the process of its number, None if there is none.

    Examples
    --------
    >>> owner = Owner("night", 7, "boot:100", 0.0)
    >>> is_dead(owner, "night", None), is_dead(owner, "night", "boot:100"), is_dead(owner, "other", None)
    (True, False, False)
    """
    return owner.host == host and started != owner.started


def read_owner(folder: Path) -> Owner | None:
    """Say who has the lock of a job's folder; None if nobody has.

    Raises RunningError if the file does not say it.
    """
    try:
        return Owner(**json.loads((folder / LOCK).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise RunningError(
            f"{folder / LOCK} does not say who runs the job.", "Remove it if no process does."
        ) from error


def runs(owner: Owner | None) -> bool:
    """Whether an owner lives, or may live on another machine."""
    return owner is not None and not is_dead(owner, socket.gethostname(), started_at(owner.pid))


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[Owner | None]:
    """Hold the lock of a job's folder meanwhile; gives the dead owner from whom it was taken, if one was.

    Raises RunningError if another process has it, or may have it.
    """
    path, own = folder / LOCK, this_process()
    with naming_failures(path):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Two processes of one machine may find the same dead owner; those of several have the link below.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = read_owner(folder)
            if before is not None:
                if runs(before):
                    raise _running(path, before, own)
                path.unlink()
            _write(path, own)
        finally:
            os.close(descriptor)
    try:
        yield before
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _write(path: Path, own: Owner) -> None:
    """Give a file that is whole the name `path`, unless there is one."""
    partial = Partial(path)
    try:
        partial.path.write_text(json.dumps(own._asdict()) + "\n")
        partial.flush()
        # A link is made by one process only, also on file systems over a network.
        path.hardlink_to(partial.path)
    except FileExistsError as error:
        raise _running(path, read_owner(path.parent) or own, own) from error
    finally:
        partial.remove()


def _running(path: Path, owner: Owner, own: Owner) -> RunningError:
    remedy = "Wait until it is done; `oocpr status` says how far it is."
    if owner.host != own.host:
        remedy = f"Wait until it is done, or remove {path} if that machine runs it no more."
    return RunningError(f"the job is run by {owner.describe(own.since)}.", remedy)
