"""What another import may use, decided from plain values."""

import pytest

from oocpr.ingest.resume.journal import ImportState, difference

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
@pytest.mark.parametrize("undirected", [False, True])
def test_what_differs_is_named(change, reason, undirected):
    def identity(changed):
        source = IDENTITY["source"] | {k: v for k, v in changed.items() if k in IDENTITY["source"]}
        options = {k: v for k, v in changed.items() if k in IDENTITY}
        return IDENTITY | options | {"source": {"undirected": source} if undirected else source}

    assert difference(identity({}), identity(change)) == reason


def test_a_direction_that_was_given_up_is_another_way():
    source = IDENTITY["source"]
    assert difference(IDENTITY, IDENTITY | {"source": {"undirected": source}}) == (
        "the source is read in another way"
    )


def test_a_synthetic_graph_is_another_one_with_other_parameters():
    one = IDENTITY | {"source": {"reader": "Rmat", "scale": 5}}
    assert difference(one, IDENTITY | {"source": {"reader": "Rmat", "scale": 6}}) == "it is of another source"
