"""Files that outlive their process, against bytes in memory."""

import zlib
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.resume.files import KeptScratch, KeptWorkspace, sound

texts_of = st.lists(st.binary(min_size=1, max_size=9), max_size=8)


def write_all(scratch, at, texts):
    for text in texts:
        scratch.write(at, np.frombuffer(text, np.uint8))
        at += len(text)


def whole(scratch, size):
    out = np.empty(size, np.uint8)
    scratch.read(0, out)
    return out.tobytes()


@given(
    appended=texts_of,
    again=st.lists(texts_of, max_size=3),
    behind=st.binary(max_size=9),
    step=st.integers(1, 7),
)
def test_what_is_rewritten_leaves_what_was_there(tmp_path_factory, appended, again, behind, step):
    folder = tmp_path_factory.mktemp("kept")
    before = b"".join(appended)
    with KeptScratch(folder, "f") as scratch:
        write_all(scratch, 0, appended)
        assert scratch.size == len(before)
        ends = np.cumsum([len(text) for text in appended], dtype=int).tolist()
        assert scratch.pieces == [
            [end - len(text), len(text), zlib.crc32(text)] for text, end in zip(appended, ends, strict=True)
        ]
        scratch.freeze()
        write_all(scratch, len(before), [behind] if behind else [])
        now = bytearray(before + behind)
        for texts in again:
            # Each time from the front on, and no further than there was something.
            text = b"".join(texts)[: len(before)]
            write_all(scratch, 0, [text[k : k + step] for k in range(0, len(text), step)])
            now[: len(text)] = text
        assert whole(scratch, len(now)) == bytes(now)
    assert Path(folder, "f.1").read_bytes() == before + behind
    with KeptScratch(folder, "f", 1, len(before)) as scratch:
        assert whole(scratch, len(before)) == before
        at, view = scratch.reserve(4)
        assert (at, view) == (len(before), None)
        write_all(scratch, at, [b"more"])
        assert scratch.size == len(before) + 4
        assert whole(scratch, len(before) + 4) == before + b"more"


def test_the_generation_that_was_rewritten_is_what_stays(tmp_path):
    with KeptWorkspace(tmp_path, {}) as space:
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
        assert whole(space.file(name="keys"), 32) == np.arange(4)[::-1].tobytes()


def test_each_piece_is_told_once_and_closed_files_count_no_more(tmp_path):
    with KeptWorkspace(tmp_path, {}) as space:
        one, two = space.file(name="one"), space.file(name="two")
        one.write(0, np.frombuffer(b"abc", np.uint8))
        assert space.pieces() == {"one": [[0, 3, zlib.crc32(b"abc")]]}
        two.write(0, np.frombuffer(b"d", np.uint8))
        one.write(3, np.frombuffer(b"e", np.uint8))
        one.close()
        assert space.files() == {"two": [1, 1]}
        assert space.pieces() == {"two": [[0, 1, zlib.crc32(b"d")]]}
        assert space.pieces() == {}


@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=5))
def test_pieces_are_sound_where_all_their_bytes_are_there(tmp_path_factory, text, places):
    path = tmp_path_factory.mktemp("pieces") / "file"
    path.write_bytes(text)
    pieces = [[at, size, zlib.crc32(text[at : at + size])] for at, size in places]
    assert sound(path, pieces) == all(at + size <= len(text) for at, size in places)
    for k, (at, size) in enumerate(places):
        if at + size <= len(text):
            changed = bytearray(text)
            changed[at] ^= 1
            path.write_bytes(changed)
            assert not sound(path, [pieces[k]])
    assert sound(path.with_name("missing"), pieces) == (not pieces)
