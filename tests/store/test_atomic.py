"""Outputs are whole or not there, whatever lies in wait beside them and however a process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import oocpr
from oocpr.errors import DoesNotFitError, UsageError
from oocpr.store.atomic import NewFolder, Partial, check_writable, clear_abandoned, remove, replacing

HOLDING = """
import sys, time
from pathlib import Path
from oocpr.store.atomic import NewFolder, Partial, replacing
path = Path(sys.argv[1])
if path.suffix == ".zarr":
    new = NewFolder(path, overwrite=True, marker="m")
    (new.temporary / "half").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
with replacing(path) as temporary:
    temporary.write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def mounted(folder, options):
    """Mount a small file system, where that is allowed."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("only root of a machine that allows it can mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def writing(path):
    """Another process that has begun to write an output."""
    environment = os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])}
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["r.csv", "r.zarr"])
def test_what_a_killed_process_left_is_told_and_removed(tmp_path, name):
    path = tmp_path / name
    with writing(path) as process:
        (left,) = tmp_path.iterdir()
        assert left.name.startswith(f"{name}.partial-{process.pid}-")
        # While it is at work nothing is touched.
        assert clear_abandoned(path) == []
        assert left.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert clear_abandoned(tmp_path / "other.csv") == []
        assert clear_abandoned(path) == [f"{left}, which a process that was killed had left, was removed."]
    assert list(tmp_path.iterdir()) == []


def test_the_next_output_of_that_name_removes_it(tmp_path, caplog):
    with writing(tmp_path / "r.csv") as process:
        process.kill()
        process.wait()
    with replacing(tmp_path / "r.csv") as temporary:
        temporary.write_text("whole")
    assert [file.name for file in tmp_path.iterdir()] == ["r.csv"]
    assert "had left, was removed" in caplog.text


def test_a_process_number_used_again_protects_nothing(tmp_path):
    (tmp_path / f"r.csv.partial-{os.getpid()}-0123abcd").write_text("left")
    assert len(clear_abandoned(tmp_path / "r.csv")) == 1
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_ours_is_removed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "r.csv.partial-1-00000000").symlink_to(victim)
    os.mkfifo(tmp_path / "r.csv.partial-1-00000001")
    (tmp_path / "r.csv.partial-1").write_text("no such name")
    (tmp_path / "r.csv.partial-1-00000002.bak").write_text("no such name")
    before = sorted(tmp_path.iterdir())
    assert clear_abandoned(tmp_path / "r.csv") == []
    assert sorted(tmp_path.iterdir()) == before
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_what_another_user_left_stays(tmp_path):
    left = tmp_path / "r.csv.partial-1-00000000"
    left.write_text("of another")
    os.chown(left, 12345, 12345)
    assert clear_abandoned(tmp_path / "r.csv") == []
    assert left.exists()


def test_a_folder_that_was_being_replaced_is_not_removed_but_named(tmp_path):
    left = tmp_path / "g.zarr.replaced-1-00000000"
    left.mkdir()
    (told,) = clear_abandoned(tmp_path / "g.zarr")
    assert told.endswith(f"was about to replace {left}: rename it to {tmp_path}/g.zarr.")
    assert left.exists()
    (tmp_path / "g.zarr").mkdir()
    assert len(clear_abandoned(tmp_path / "g.zarr")) == 1
    assert not left.exists()


def test_no_link_at_a_name_that_can_be_foreseen_is_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"r.csv.partial-{os.getpid()}").symlink_to(victim)
    with replacing(tmp_path / "r.csv") as temporary:
        temporary.write_text("ranks")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "r.csv").is_symlink()


def test_a_url_is_no_place_for_a_store():
    with pytest.raises(UsageError, match=r"Name a folder of this machine"):
        check_writable(Path("s3://bucket/g.zarr"), "m")


def test_no_store_is_written_into_another(tmp_path):
    (tmp_path / "zarr.json").write_text('{"m": 1}')
    check_writable(tmp_path / "g.zarr", "other")
    with pytest.raises(UsageError, match=r"g\.zarr lies in a store"):
        check_writable(tmp_path / "g.zarr", "m")


@pytest.mark.parametrize("there", [False, True])
def test_a_link_to_a_folder_stays_one(tmp_path, there):
    target, link = tmp_path / "large disk" / "g.zarr", tmp_path / "g.zarr"
    target.parent.mkdir()
    if there:
        target.mkdir()
        (target / "zarr.json").write_text('{"m": 1}')
    link.symlink_to(target)
    check_writable(link, "m")
    new = NewFolder(link, overwrite=there, marker="m")
    (new.temporary / "zarr.json").write_text('{"m": 2}')
    assert new.temporary.parent == target.parent
    new.publish()
    assert link.is_symlink()
    assert (target / "zarr.json").read_text() == '{"m": 2}'
    assert sorted(tmp_path.iterdir()) == [link, target.parent]
    assert list(target.parent.iterdir()) == [target]


def test_a_name_that_is_taken_is_never_written_to(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr("secrets.token_hex", lambda _: "00000000")
    (tmp_path / f"r.csv.partial-{os.getpid()}-00000000").symlink_to(victim)
    with pytest.raises(UsageError, match="File exists"), replacing(tmp_path / "r.csv"):
        pass
    (tmp_path / f"r.zarr.partial-{os.getpid()}-00000000.zarr").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="File exists"):
        NewFolder(tmp_path / "r.zarr", overwrite=False, marker="m")
    assert victim.read_text() == "precious"


def test_outputs_have_the_rights_of_new_files_and_private_folders_are_private(tmp_path):
    before = os.umask(0o022)
    try:
        with replacing(tmp_path / "r.csv") as temporary:
            temporary.write_text("ranks")
        assert stat.S_IMODE((tmp_path / "r.csv").stat().st_mode) == 0o644
        private = Partial(tmp_path / "store", folder=True, private=True)
        assert stat.S_IMODE(private.path.stat().st_mode) == 0o700
        private.remove()
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["r" * 251 + ".csv", "\u00e9" * 125 + ".csv"])
def test_the_longest_name_of_the_file_system_can_be_written(tmp_path, name):
    with replacing(tmp_path / name) as temporary:
        temporary.write_text("ranks")
    assert [file.name for file in tmp_path.iterdir()] == [name]
    with writing(tmp_path / name) as process:
        process.kill()
        process.wait()
    assert len(clear_abandoned(tmp_path / name)) == 1


def test_a_longer_name_is_refused(tmp_path):
    with pytest.raises(UsageError, match="File name too long"), replacing(tmp_path / ("r" * 300)):
        pass
    with pytest.raises(UsageError, match="File name too long"):
        NewFolder(tmp_path / ("r" * 300), overwrite=False, marker="m")
    assert list(tmp_path.iterdir()) == []


def write(path, size, then=lambda: None):
    with replacing(path) as temporary:
        temporary.write_bytes(bytes(size))
        then()


def test_a_read_only_file_system_is_the_cause_that_is_told(tmp_path):
    with mounted(tmp_path / "small", "size=1m") as small:
        new = NewFolder(small / "r.zarr", overwrite=False, marker="m")
        (new.temporary / "part").write_text("half")

        def end_writing():
            subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)

        with pytest.raises(UsageError, match="Read-only file system"):
            write(small / "r.csv", 10, end_writing)
        with pytest.raises(UsageError, match="Read-only file system"):
            new.publish()
        new.discard()
        remove(small / "nothing")


def test_a_full_disk_is_the_cause_that_is_told_and_nothing_is_left(tmp_path):
    with mounted(tmp_path / "small", "size=64k") as small:
        with pytest.raises(DoesNotFitError, match="No space left on device"):
            write(small / "r.csv", 2**20)
        assert list(small.iterdir()) == []


def test_what_a_thread_is_making_is_not_taken_for_what_was_left(tmp_path, caplog):
    made = []

    def make():
        for _ in range(200):
            clear_abandoned(tmp_path / "r")
            partial = Partial(tmp_path / "r", folder=True)
            made.append(partial.path.is_dir())
            partial.remove()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(make) for _ in range(4)]:
            done.result()
    assert made == [True] * 800
    assert not list(tmp_path.iterdir())
    assert not caplog.records


def test_a_process_that_was_forked_removes_nothing_of_its_parent(tmp_path):
    code = """
import os, sys, oocpr
ranks = oocpr.pagerank([("a", "b"), ("b", "c"), ("c", "b")])
if os.fork() == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(ranks.top(1)[0][0], len(os.listdir(sys.argv[1])))
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "b 1\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged at once on Linux only")
def test_folders_are_replaced_by_several_at_a_time(tmp_path):
    def write(number):
        for _ in range(50):
            new = NewFolder(tmp_path / "r", overwrite=True, marker="m")
            (new.temporary / "zarr.json").write_text('{"m": 1}')
            (new.temporary / "part").write_text(f"{number}")
            new.publish()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, number) for number in range(4)]:
            done.result(timeout=60)
    assert {file.name for file in (tmp_path / "r").iterdir()} == {"zarr.json", "part"}
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged at once on Linux only")
def test_a_folder_that_is_replaced_is_there_at_any_time(tmp_path):
    edges = np.arange(5), np.roll(np.arange(5), 1)
    oocpr.import_graph(edges, tmp_path / "g.zarr")
    ended = Event()

    def read():
        found = 0
        while not ended.is_set():
            found += oocpr.open_graph(tmp_path / "g.zarr").edges == 5
        return found

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        try:
            for _ in range(30):
                oocpr.import_graph(edges, tmp_path / "g.zarr", overwrite=True)
        finally:
            ended.set()
    assert all(one.result() > 0 for one in reading)
