"""The lock of a job, with processes that live and that do not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import oocpr
from oocpr.errors import RunningError
from oocpr.jobs.lock import LOCK, hold_lock, read_owner, runs, started_at, this_process

CONTEND = """
import sys, time
from pathlib import Path
from oocpr.errors import RunningError
from oocpr.jobs.lock import hold_lock
while not Path(sys.argv[1], "go").exists():
    pass
try:
    with hold_lock(Path(sys.argv[1])) as dead:
        print("held", dead is not None, flush=True)
        time.sleep(3)
except RunningError:
    print("refused")
"""


def leave_lock(folder: Path, **changes: Any) -> None:
    """Leave the lock of this process, but for what is changed."""
    (folder / LOCK).write_text(json.dumps(this_process()._asdict() | changes))


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_a_lock_says_who_holds_it_and_goes_with_the_block(tmp_path: Path) -> None:
    with hold_lock(tmp_path) as dead:
        owner = read_owner(tmp_path)
        assert owner is not None
        assert (owner.host, owner.pid, dead) == (socket.gethostname(), os.getpid(), None)
        assert owner.started == started_at(os.getpid())
        assert abs(owner.since - time.time()) < 60
        assert runs(owner)
        with pytest.raises(RunningError, match=rf"run by process {os.getpid()} on \S+, for ") as caught:
            hold_lock(tmp_path).__enter__()
        assert caught.value.exit_code == 9
    assert list(tmp_path.iterdir()) == []


def test_it_goes_with_an_error_as_well(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), hold_lock(tmp_path):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    pid = dead_pid()
    leave_lock(tmp_path, pid=pid)
    with hold_lock(tmp_path) as dead:
        assert dead is not None
        assert dead.pid == pid
        owner = read_owner(tmp_path)
        assert owner is not None
        assert owner.pid == os.getpid()


def test_a_later_process_of_the_same_number_is_not_the_owner(tmp_path: Path) -> None:
    leave_lock(tmp_path, started="another boot:5")
    with hold_lock(tmp_path) as dead:
        assert dead is not None


def test_a_process_of_another_host_may_live(tmp_path: Path) -> None:
    leave_lock(tmp_path, host="elsewhere", pid=dead_pid())
    with pytest.raises(RunningError, match="on elsewhere") as caught:
        hold_lock(tmp_path).__enter__()
    assert str(tmp_path / LOCK) in caught.value.remedy


def test_a_lock_that_nobody_can_read_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("{")
    with pytest.raises(RunningError, match="does not say who runs the job"):
        hold_lock(tmp_path).__enter__()


def test_a_stopped_process_still_holds_it_and_a_zombie_does_not(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        leave_lock(tmp_path, pid=child.pid, started=started_at(child.pid))
        with pytest.raises(RunningError):
            hold_lock(tmp_path).__enter__()
        child.kill()
        # Not waited for yet: the kernel still knows it.
        end = time.monotonic() + 30
        while started_at(child.pid) is not None:
            assert time.monotonic() < end
            time.sleep(0.01)
        with hold_lock(tmp_path) as dead:
            assert dead is not None
    finally:
        child.kill()
        child.wait()


@pytest.mark.long
def test_of_processes_that_find_a_dead_owner_at_once_one_takes_over(tmp_path: Path) -> None:
    leave_lock(tmp_path, pid=dead_pid())
    environment = os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])}
    command = [sys.executable, "-c", CONTEND, str(tmp_path)]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)
    ]
    time.sleep(1)
    (tmp_path / "go").touch()
    said = sorted(child.communicate(timeout=60)[0].strip() for child in children)
    assert said == ["held True", "refused", "refused", "refused"]
    assert [path.name for path in tmp_path.iterdir()] == ["go"]
