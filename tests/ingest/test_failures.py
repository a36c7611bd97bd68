"""An import that does not finish leaves nothing, whatever ends it."""

import gc
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import oocpr
from oocpr.errors import DoesNotFitError, InputError, NotAStoreError
from oocpr.ingest.build import build_store
from oocpr.ingest.spill.files import require_disk
from oocpr.ingest.tiles import Sorter
from oocpr.sources.rmat import Rmat
from oocpr.store.graph import open_store

PLENTY = 3 * 2**30


def interrupt():
    raise KeyboardInterrupt


def bad_line():
    raise InputError("line 7 is no link.", "Correct it.")


def open_files():
    return [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]


@pytest.mark.parametrize(("event", "error"), [(interrupt, KeyboardInterrupt), (bad_line, InputError)])
def test_the_source_breaks_off(tmp_path, arrays, event, error):
    source = arrays(range(1000), range(1000), event=event)
    with pytest.raises(error):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY, block_edges=10)
    assert list(tmp_path.iterdir()) == []
    assert not [name for name in open_files() if str(tmp_path) in name]


@pytest.mark.parametrize("stage", ["reading", "ordering", "partitioning", "writing"])
def test_an_interruption_at_any_stage(tmp_path, stage):
    def listen(now, done, total, unit, note=""):
        if now == stage and done > total // 3:
            raise KeyboardInterrupt

    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with pytest.raises(KeyboardInterrupt):
        build_store(
            Rmat(12),
            tmp_path / "g.zarr",
            memory=PLENTY,
            order="degree",
            tmp=temporary,
            progress=listen,
            block_edges=4096,
            bucket_edges=9999,
        )
    assert list(tmp_path.iterdir()) == [temporary]
    assert list(temporary.iterdir()) == []


def run(code, *args):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)], capture_output=True, text=True
    )


FULL = """
    import resource, sys
    from oocpr.errors import DoesNotFitError
    from oocpr.system import resident
    from oocpr.ingest.build import build_store
    from oocpr.sources.rmat import Rmat

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def listen(stage, done, total, unit):
        if stage == sys.argv[2]:
            limit(int(sys.argv[3]))

    try:
        build_store(
            Rmat(18), sys.argv[1], memory=resident() + (60 << 20), order="degree",
            bucket_edges=int(sys.argv[4]), block_edges=30_000, tile_edges=1 << 14, progress=listen,
        )
    except DoesNotFitError as error:
        print(error.cause)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "size", "bucket", "cause"),
    [
        ("reading", 500_000, 900_000, "takes no"),
        ("partitioning", 500_000, 900_000, "takes no"),
        # One bucket takes all edges: where there are several, dealing the next one writes temporary files
        # while tiles are written.
        ("writing", 1000, 20_000_000, "cannot be written"),
    ],
)
def test_a_file_that_may_not_grow(tmp_path, stage, size, bucket, cause):
    # The system refuses to write past a limit as it does on a full disk, and no disk has to be filled.
    done = run(FULL, tmp_path / "g.zarr", stage, size, bucket)
    assert done.returncode == 0, done.stderr
    assert cause in done.stdout
    assert "free" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_disk_too_small_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(DoesNotFitError, match=r"needs 1 EiB for temporary files, .*iB are free"):
        require_disk(tmp_path, 2**60)


def test_a_killed_import_is_no_store_and_holds_no_temporary_files(tmp_path):
    code = """
        import os, signal, sys
        from oocpr.ingest.build import build_store
        from oocpr.sources.rmat import Rmat

        build_store(
            Rmat(12), sys.argv[1], memory=2**30, bucket_edges=9999,
            progress=lambda stage, *_: stage == "writing" and os.kill(os.getpid(), signal.SIGKILL),
        )
    """
    assert run(code, tmp_path / "g.zarr").returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert left.is_dir()
    with pytest.raises(NotAStoreError):
        open_store(left)
    with pytest.raises(NotAStoreError):
        open_store(tmp_path / "g.zarr")


@contextmanager
def nothing_left_in_cycles() -> Iterator[None]:
    """Check that no frame waits meanwhile for somebody who looks for cycles."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, FrameType)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("g.txt", b"0 1\n1 x\n"),
        ("g.tsv", b"a\tb\nc\n"),
        ("g.csv", b"from,to\n0,1\n1\n"),
        ("g.npy", b"no array"),
    ],
)
def test_a_refused_file_holds_no_memory_until_cycles_are_looked_for(tmp_path, name, text):
    (tmp_path / name).write_bytes(text)

    def refuse():
        try:
            oocpr.import_graph(tmp_path / name, tmp_path / "g.zarr")
        except InputError:
            return
        pytest.fail("it was taken")

    # What is loaded for the first one stays.
    refuse()
    with nothing_left_in_cycles():
        refuse()


def test_an_error_while_edges_are_sorted_holds_no_memory_either(tmp_path, arrays, monkeypatch):
    def fail(self, job, buffers):
        raise MemoryError("no room")

    monkeypatch.setattr(Sorter, "_sorted", fail)
    nodes = np.arange(1000) % 100

    def refuse():
        try:
            build_store(arrays(nodes, nodes[::-1]), tmp_path / "g.zarr", memory=PLENTY, bucket_edges=50)
        except MemoryError:
            return
        pytest.fail("it did not fail")

    refuse()
    with nothing_left_in_cycles():
        refuse()
