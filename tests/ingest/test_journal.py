"""The journal of an import: lines that survive any end of writing, and what another import uses of them."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import UsageError
from oocpr.ingest.journal import DurableSpillDir, ImportState, Journal, difference, line_of, whole_lines


def test_another_process_finds_what_was_synced(tmp_path):
    with DurableSpillDir(tmp_path, {}) as space:
        keys, other = space.file(name="keys"), space.file(1 << 20, name="other")
        for file in (keys, other):
            file.write(0, np.arange(4))
        assert (keys.in_memory, other.in_memory) == (0, 0)  # nothing in memory
        left = space.synced(["keys"])
        assert left == {"keys": 32}
        keys.write(32, np.arange(9))  # no part of what is left
        space.drop(other)
        space.file().write(0, np.arange(4))
        assert [path.name for path in tmp_path.iterdir()] == ["keys"]
    with DurableSpillDir(tmp_path, left) as space:
        file, out = space.file(name="keys"), np.empty(4, np.int64)
        file.read(0, out)
        assert (file.size, out.tolist()) == (32, [0, 1, 2, 3])
        assert file.reserve(8) == (32, None)
    with DurableSpillDir(tmp_path, {}) as space:
        assert space.file(name="keys").size == 0
    assert (tmp_path / "keys").stat().st_size == 0


events = st.lists(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text() | st.lists(st.integers())), max_size=5
)


@given(events, st.data())
def test_a_journal_cut_anywhere_has_its_whole_lines(written, data):
    lines = [line_of(event) for event in written]
    text = b"".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    whole = [event for k, event in enumerate(written) if len(b"".join(lines[: k + 1])) <= cut]
    found = whole_lines(text[:cut])
    assert [event for event, _ in found] == whole
    assert [end for _, end in found] == [len(b"".join(lines[: k + 1])) for k in range(len(whole))]


@given(events.filter(bool), st.data())
def test_a_byte_that_changed_ends_the_journal_before_its_line(written, data):
    text = bytearray(b"".join(map(line_of, written)))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    before = sum(len(b"".join(map(line_of, written[: k + 1]))) <= place for k in range(len(written)))
    assert [event for event, _ in whole_lines(bytes(text))] == written[:before]


@pytest.mark.parametrize("torn", [b"", b"0", line_of({"c": 3})[:-1], b"\0" * 40, b"nonsense\nmore\n"])
def test_writing_goes_on_behind_the_last_whole_line(tmp_path, torn):
    path = tmp_path / "journal"
    path.write_bytes(line_of({"a": 1}) + line_of({"b": 2}) + torn)
    with closing(Journal(path)) as journal:
        assert journal.events == [{"a": 1}, {"b": 2}]
        journal.add({"d": 4}, durable=True)
    assert path.read_bytes() == line_of({"a": 1}) + line_of({"b": 2}) + line_of({"d": 4})


def test_what_is_cut_is_gone(tmp_path):
    path = tmp_path / "journal"
    with closing(Journal(path)) as journal:
        for k in range(4):
            journal.add({"tile": k})
        journal.cut(2)
        journal.add({"tile": 9})
    with closing(Journal(path)) as journal:
        assert journal.events == [{"tile": 0}, {"tile": 1}, {"tile": 9}]


def test_one_process_at_a_time_has_it(tmp_path):
    with closing(Journal(tmp_path / "journal")), pytest.raises(UsageError, match="in use"):
        Journal(tmp_path / "journal")
    Journal(tmp_path / "journal").close()


def test_who_is_interrupted_while_a_journal_is_opened_can_open_it_again(tmp_path, monkeypatch):
    def interrupted(_: Path) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Journal(tmp_path / "journal")
    Journal(tmp_path / "journal").close()


IDENTITY = {
    "version": 1,
    "output": "/graphs/web.zarr",
    "order": "keep",
    "tile_edges": None,
    "source": {"reader": "TextFile", "files": [["/a.txt", 10, 5], ["/b.txt", 20, 5]], "labels": []},
}


def read(**more):
    about = {"file": "edges", "edges": 7, "nodes": 4, "dictionary": None, "buckets": None}
    return {"read": {**about, **more}, "largest_id": None, "said": {}, "files": {"edges": 56, "ids": 8}}


class TestImportState:
    def test_nothing_but_the_import(self):
        state = ImportState.of([{"import": IDENTITY}])
        assert (state.read, state.partitioned, state.files, state.tiles) == (None, None, {}, [])

    def test_what_was_read(self):
        state = ImportState.of([{"import": IDENTITY}, read()])
        assert state.files == {"edges": 56, "ids": 8}
        assert str(state) == "all 7 edges were read, 0 tiles were written"
        state = ImportState.of([{"import": IDENTITY}, read(dictionary={})])
        assert str(state) == "all 7 edges were read and numbered, 0 tiles were written"

    def test_later_stages_need_their_own_files_only(self):
        events = [
            {"import": IDENTITY},
            read(),
            {"partitioned": {}, "order": {}, "files": {"partitioned": 56}},
            {"tile": 0, "bytes": 30, "crc": 8},
            {"tile": 1, "bytes": 20, "crc": 9, "data": [5, 6]},
            {"whole": 77},
        ]
        state = ImportState.of(events)
        assert state.files == {"partitioned": 56}
        assert state.tiles == [(30, 8, None), (20, 9, (5, 6))]
        assert state.whole == 77
        assert str(state) == "all 7 edges were read and sorted into buckets, 2 tiles were written"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"version": 2}, "it was begun by another version of oocpr"),
        ({"order": "degree"}, "order was keep and is degree"),
        ({"tile_edges": 1024}, "tile_edges was None and is 1024"),
        ({"output": "/elsewhere/web.zarr"}, "output was /graphs/web.zarr and is /elsewhere/web.zarr"),
        ({"files": [["/a.txt", 10, 5], ["/b.txt", 21, 5]]}, "/b.txt was changed"),
        ({"files": [["/a.txt", 10, 6], ["/b.txt", 20, 5]]}, "/a.txt was changed"),
        ({"files": [["/b.txt", 20, 5], ["/a.txt", 10, 5]]}, "it is of another source"),
        ({"files": [["/a.txt", 10, 5]]}, "it is of another source"),
        ({"labels": [["/names", 3, 3]]}, "it is of another source"),
        ({"reader": "NamesFile"}, "the source is read in another way"),
    ],
)
@pytest.mark.parametrize("turn", [None, "undirected", "reverse"])
def test_what_differs_is_named(change, reason, turn):
    def identity(changed):
        source = IDENTITY["source"] | {k: v for k, v in changed.items() if k in IDENTITY["source"]}
        options = {k: v for k, v in changed.items() if k in IDENTITY}
        return IDENTITY | options | {"source": {turn: source} if turn else source}

    assert difference(identity({}), identity(change)) == reason


@pytest.mark.parametrize("turn", ["undirected", "reverse"])
def test_a_direction_that_was_given_up_is_another_way(turn):
    source = IDENTITY["source"]
    assert difference(IDENTITY, IDENTITY | {"source": {turn: source}}) == "the source is read in another way"


def test_a_synthetic_graph_is_another_one_with_other_parameters():
    one = IDENTITY | {"source": {"reader": "Rmat", "scale": 5}}
    assert difference(one, IDENTITY | {"source": {"reader": "Rmat", "scale": 6}}) == "it is of another source"
