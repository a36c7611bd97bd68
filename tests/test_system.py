"""Memory limits of groups, from tables and trees of files as Linux has them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from oocpr.system import (
    group_cores,
    group_folders,
    group_memory,
    job_limits,
    own_groups,
    release_frames,
    resident_after_trim,
)


def found(groups: str, mounts: str) -> list[int]:
    return sorted(group_memory(group_folders("memory", groups, mounts), lambda: 0))


def write(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text + "\n")


def test_all_groups_around_a_process_limit_it_in_version_2(tmp_path):
    write(tmp_path / "user.slice" / "job.scope", "memory.max", "max")
    write(tmp_path / "user.slice" / "job.scope", "memory.high", "3000000")
    write(tmp_path / "user.slice", "memory.max", "2000000")
    write(tmp_path / "user.slice" / "other.scope", "memory.max", "1")
    mounts = f"31 23 0:28 / {tmp_path} rw,nosuid shared:4 - cgroup2 cgroup2 rw"
    groups = "0::/user.slice/job.scope"
    assert found(groups, mounts) == [2_000_000, 3_000_000]
    # Other processes hold 800 kB of the outer group, and 300 kB of it are cached files.
    write(tmp_path / "user.slice", "memory.current", "1200000")
    stat = "anon 800000\ninactive_file 250000\nactive_file 40000\nslab_reclaimable 10000"
    write(tmp_path / "user.slice", "memory.stat", stat)
    folders = group_folders("memory", groups, mounts)
    assert group_memory(folders, lambda: 100_000) == [3_000_000, 2_000_000 - 800_000]
    assert group_memory(folders, lambda: 900_000) == [3_000_000, 2_000_000]
    # Without the process's own group, only the root's would count, which has none.
    assert found("0::/", mounts) == []


def test_all_groups_around_a_process_limit_it_in_version_1(tmp_path):
    memory, cpu = tmp_path / "memory", tmp_path / "cpu"
    write(memory / "a" / "b", "memory.limit_in_bytes", "7000")
    write(memory / "a", "memory.limit_in_bytes", "5000")
    write(memory, "memory.limit_in_bytes", "9223372036854771712")
    write(cpu / "a" / "b", "memory.limit_in_bytes", "1")
    mounts = (
        f"35 31 0:32 / {memory} rw,relatime - cgroup cgroup rw,memory\n"
        f"32 31 0:29 / {cpu} rw,relatime - cgroup cgroup rw,cpu"
    )
    groups = "4:memory:/a/b\n1:cpu:/a/b\n0::/"
    assert found(groups, mounts) == [5000, 7000, 9223372036854771712]


@pytest.mark.parametrize("named", ["/docker/4f", "/docker/4f/job", "/../../elsewhere"])
def test_a_container_sees_its_own_group_as_the_root(tmp_path, named):
    write(tmp_path, "memory.limit_in_bytes", "4096")
    write(tmp_path / "job", "memory.limit_in_bytes", "1024")
    mounts = f"35 31 0:32 /docker/4f {tmp_path} rw - cgroup cgroup rw,memory"
    assert found(f"4:memory:{named}", mounts) == ([1024, 4096] if named.endswith("job") else [4096])


def test_a_quota_of_processor_time_limits_cores(tmp_path):
    write(tmp_path / "two" / "pod", "cpu.max", "150000 100000")
    write(tmp_path / "two", "cpu.max", "max 100000")
    write(tmp_path / "one" / "job", "cpu.cfs_quota_us", "400000")
    write(tmp_path / "one" / "job", "cpu.cfs_period_us", "100000")
    write(tmp_path / "one", "cpu.cfs_quota_us", "-1")
    write(tmp_path / "one", "cpu.cfs_period_us", "100000")
    mounts = (
        f"31 23 0:28 / {tmp_path / 'two'} rw - cgroup2 cgroup2 rw\n"
        f"32 31 0:29 / {tmp_path / 'one'} rw - cgroup cgroup rw,cpu,cpuacct"
    )
    assert group_cores(group_folders("cpu", "3:cpu,cpuacct:/job\n0::/pod", mounts)) == [2, 4]


def test_an_allocation_of_slurm_is_what_its_variables_say():
    job = {"SLURM_JOB_ID": "3", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "2048"}
    assert job_limits(job) == ([8], [2 << 30])
    assert job_limits(job | {"SLURM_CPUS_PER_TASK": "2", "SLURM_MEM_PER_NODE": "0"}) == ([2], [])
    assert job_limits({"SLURM_MEM_PER_NODE": "2048"}) == ([], [])


GIB = 1 << 30


def made_group(controller: str, limits: dict[str, str]) -> Path:
    """A new group inside that of this process, with those limits that it has; skips if none can be made."""
    for folder in own_groups(controller):
        group = Path(folder) / f"oocpr-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        taken = [name for name in limits if (group / name).exists()]
        if taken:
            for name in taken:
                (group / name).write_text(limits[name])
            return group
        group.rmdir()
    pytest.skip(f"no group with the {controller} controller can be made here")


def run_within(group: Path, *words: str, **options: Any) -> subprocess.Popen[str]:
    """Start a Python in a group."""
    enter = f"echo $$ >{group}/cgroup.procs && exec {sys.executable} "
    command = ["sh", "-c", enter + '"$@"', "sh", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    limit = str(2 * GIB)
    group = made_group("memory", {"memory.max": limit, "memory.limit_in_bytes": limit})
    yield group
    # A group whose processes have just ended may still be busy.
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)


@pytest.mark.long
def test_a_plan_sees_the_memory_of_a_real_group(memory_group: Path, data: Path) -> None:
    program = (
        "import sys, oocpr; from oocpr.system import whole_memory; whole = whole_memory()\n"
        "from oocpr.api import as_graph\nprint(whole, oocpr.plan(as_graph(sys.argv[1])).memory)"
    )
    site = str(data / "tiny" / "site.txt")
    out, _ = run_within(memory_group, "-c", program, site).communicate(timeout=120)
    whole, given = map(int, out.split())
    # The group counts what the system keeps for the process, too.
    assert 2 * GIB - (8 << 20) <= whole <= 2 * GIB
    assert 2 * GIB - (8 << 20) <= given * 5 / 4 <= 2 * GIB
    hold = "import sys; held = b'x' * (1 << 30); print('held', flush=True); sys.stdin.read()"
    with run_within(memory_group, "-c", hold, stdin=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        program = "from oocpr.system import whole_memory; print(whole_memory())"
        out, _ = run_within(memory_group, "-c", program).communicate(timeout=60)
        other.communicate()
    # The other one's Python takes some megabytes, too.
    assert int(out) == pytest.approx(GIB, abs=64 << 20)


def test_cores_follow_the_quota_of_a_real_group() -> None:
    group = made_group("cpu", {"cpu.max": "100000 100000", "cpu.cfs_quota_us": "100000"})
    try:
        program = "from oocpr.system import usable_cores; print(usable_cores())"
        out, _ = run_within(group, "-c", program).communicate(timeout=60)
        assert out == "1\n"
    finally:
        time.sleep(0.1)
        group.rmdir()


Made = list[weakref.ref[np.ndarray]]


def fail(made: Made) -> None:
    large = np.zeros(1000)
    made.append(weakref.ref(large))
    raise KeyError("within")


def fail_because(made: Made) -> None:
    large = np.zeros(1000)
    made.append(weakref.ref(large))
    try:
        fail(made)
    except KeyError as error:
        raise ValueError("because of it") from error


def fail_meanwhile(made: Made) -> None:
    large = np.zeros(1000)
    made.append(weakref.ref(large))
    try:
        fail(made)
    finally:
        fail(made)


@pytest.mark.parametrize("work", [fail, fail_because, fail_meanwhile])
@pytest.mark.parametrize("guarded", [True, False])
def test_what_functions_worked_with_goes_with_them(work: Callable[[Made], None], guarded: bool) -> None:
    made: Made = []
    gc.disable()
    try:
        with (
            pytest.raises((KeyError, ValueError)) as raised,
            release_frames() if guarded else nullcontext(),
        ):
            work(made)
        assert raised.value.__traceback__ is not None
        assert [there() is None for there in made] == [guarded] * len(made)
    finally:
        gc.enable()


def test_a_library_that_another_thread_is_importing_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    assert resident_after_trim() > 0


def test_what_the_caller_was_dealing_with_stays() -> None:
    made: Made = []
    within: Made = []
    try:
        fail(made)
    except KeyError:
        with pytest.raises(KeyError) as raised, release_frames():
            fail(within)
    assert raised.value.__context__ is not None
    assert within[0]() is None
    assert made[0]() is not None
