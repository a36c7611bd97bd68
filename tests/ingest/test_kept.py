"""Files that outlive their process, against bytes in memory."""

import zlib
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.kept import KeptScratch, KeptWorkspace, ReadOnlyRun, fronts
from oocpr.ingest.partition import Run
from oocpr.ingest.scratch import Scratch

pieces = st.lists(st.binary(min_size=1, max_size=9), max_size=8)


def write_all(scratch, at, texts):
    for text in texts:
        scratch.write(at, np.frombuffer(text, np.uint8))
        at += len(text)


def whole(scratch, size):
    out = np.empty(size, np.uint8)
    scratch.read(0, out)
    return out.tobytes()


@given(
    appended=pieces, again=st.lists(pieces, max_size=3), behind=st.binary(max_size=9), step=st.integers(1, 7)
)
def test_what_is_rewritten_leaves_what_was_there(tmp_path_factory, appended, again, behind, step):
    folder = tmp_path_factory.mktemp("kept")
    before = b"".join(appended)
    with KeptScratch(folder, "f") as scratch:
        write_all(scratch, 0, appended)
        assert (scratch.size, scratch.crc) == (len(before), zlib.crc32(before))
        scratch.frozen = True
        write_all(scratch, len(before), [behind] if behind else [])
        now = bytearray(before + behind)
        for texts in again:
            # Each time from the front on, and no further than there was something.
            text = b"".join(texts)[: len(before)]
            write_all(scratch, 0, [text[k : k + step] for k in range(0, len(text), step)])
            now[: len(text)] = text
        assert whole(scratch, len(now)) == bytes(now)
    assert Path(folder, "f.1").read_bytes() == before + behind
    with KeptScratch(folder, "f", 1, len(before), zlib.crc32(before)) as scratch:
        assert whole(scratch, len(before)) == before
        write_all(scratch, len(before), [b"more"])
        assert (scratch.size, scratch.crc) == (len(before) + 4, zlib.crc32(before + b"more"))


def test_the_generation_that_was_rewritten_is_what_stays(tmp_path):
    space = KeptWorkspace(tmp_path, {})
    with space:
        keys, other = space.file(name="keys"), space.file(name="other")
        for file in (keys, other):
            file.write(0, np.arange(4))
        space.freeze()
        keys.write(0, np.arange(4)[::-1].copy())
        files = space.settled(["keys"])
        space.drop_others(files)
    assert [path.name for path in tmp_path.iterdir()] == ["keys.2"]
    left = {name: tuple(what) for name, what in files.items()}
    with KeptWorkspace(tmp_path, left) as space:
        found = np.empty(4, np.int64)
        space.file(name="keys").read(0, found)
        assert found.tolist() == [3, 2, 1, 0]


@given(st.binary(max_size=60), st.lists(st.integers(0, 70), max_size=5).map(sorted))
def test_fronts_are_those_that_are_there(tmp_path_factory, text, sizes):
    path = tmp_path_factory.mktemp("fronts") / "file"
    path.write_bytes(text)
    expected = [(size, zlib.crc32(text[:size])) for size in sizes if size <= len(text)]
    assert fronts(path, sizes) == expected
    assert fronts(path.with_name("missing"), sizes) == [(0, 0) for size in sizes if size == 0]


@given(st.lists(st.integers(0, 2**40)), st.integers(1, 9))
def test_keys_that_are_relabelled_on_reading_are_those_that_are_relabelled_once(keys, room):
    def shift(some):
        some += np.uint64(3)

    folder = Path()
    buffer = np.empty(room, np.uint64)
    with Scratch(folder) as one, Scratch(folder) as two:
        for scratch in (one, two):
            scratch.write(0, np.array(keys, np.uint64))
        runs = (
            Run(one, 0, len(keys), 0, 2**64, relabel=shift),
            ReadOnlyRun(two, 0, len(keys), 0, 2**64, always=shift),
        )
        settled = [[key for some in run.settle(buffer) for key in some.tolist()] for run in runs]
        assert settled[0] == settled[1] == [key + 3 for key in keys]
        assert [key for some in runs[1].blocks(buffer) for key in some.tolist()] == settled[0]
        out = np.empty(len(keys), np.uint64)
        two.read(0, out)
        assert out.tolist() == keys
