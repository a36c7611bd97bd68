"""Memory limits of groups, from tables and trees of files as Linux has them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from oocpr.system import limit_files, memory_limits, release_frames


def found(groups: str, mounts: str) -> list[int]:
    files = [Path(file) for file in limit_files(groups, mounts)]
    return sorted(memory_limits(file.read_text() for file in files if file.is_file()))


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
