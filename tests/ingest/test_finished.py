"""What another import may use, decided from plain values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.ingest.resume.state import Checkpoint, difference, finished, usable

IDENTITY = {
    "version": 1,
    "output": "/graphs/web.zarr",
    "order": "keep",
    "tile_edges": None,
    "source": {"reader": "TextFile", "files": [["/a.txt", 10, 5], ["/b.txt", 20, 5]], "labels": []},
}


def checkpoint(read, **files):
    return Checkpoint(
        edges=read,
        listed=0,
        largest=9,
        nodes=None,
        mark={"edges": read},
        block_edges=4,
        records=None,
        points=None,
        files={name: [1, size] for name, size in files.items()},
        pieces={},
        dealt=None,
        segments=[],
    )


class TestFinished:
    def test_nothing_but_the_import(self):
        done = finished([{"import": IDENTITY}])
        assert (done.checkpoints, done.known, done.files, done.tiles) == ([], None, {}, [])
        assert str(done) == "0 edges were read"

    def test_a_checkpoint_survives_the_journal(self):
        at = checkpoint(7, keys=56)
        done = finished([{"import": IDENTITY}, at.event()])
        assert done.checkpoints == [at]
        assert done.known is None
        assert done.files == {"keys": (1, 56)}

    def test_the_last_checkpoint_says_whether_all_was_read(self):
        events = [{"import": IDENTITY}, checkpoint(4).event(), checkpoint(7).event({"notices": []})]
        assert finished(events).known == {"notices": []}
        assert finished(events[:2]).known is None

    def test_later_steps_need_their_own_files_only(self):
        events = [
            {"import": IDENTITY},
            checkpoint(7, keys=56, words=8).event({}),
            {"numbered": {}, "files": {"keys": [2, 56], "ids": [1, 8]}},
            {"dealt": [], "spilled": {}, "rows": 0, "files": {"dealt": [1, 56]}},
            {"tile": 0, "bytes": 30, "crc": 8},
            {"tile": 1, "bytes": 20, "crc": 9},
        ]
        done = finished(events)
        assert done.files == {"dealt": (1, 56)}
        assert done.tiles == [(30, 8, None), (20, 9, None)]
        assert (
            str(done) == "all 7 edges were read and numbered, and sorted into buckets, 2 tiles were written"
        )
        assert finished(events[:3]).files == {"keys": (2, 56), "ids": (1, 8)}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6), st.integers(0, 6))
def test_checkpoints_count_as_far_as_all_their_files_are_sound(fine, switched):
    """The file `edges` is needed up to a checkpoint, `words` from then on, `names` always."""
    at = [checkpoint(k, **{"edges" if k < switched else "words": 8, "names": 8}) for k in range(len(fine))]
    sound = {
        "edges": [k >= switched or edges for k, (edges, _) in enumerate(fine)],
        "words": [k < switched or words for k, (words, _) in enumerate(fine)],
        "names": [names for _, names in fine],
    }
    expected = 0
    for count in range(1, len(fine) + 1):
        if all(sound[name][k] for name in at[count - 1].files for k in range(count)):
            expected = count
    assert usable(at, sound) == expected


def test_a_file_that_is_gone_spoils_what_needs_it_alone():
    at = [checkpoint(1, edges=8), checkpoint(2, keys=16), checkpoint(3, keys=24)]
    sound = {"edges": [False] * 3, "keys": [True, True, True]}
    assert usable(at, sound) == 3
    assert usable(at, {**sound, "keys": [True, True, False]}) == 2
    assert usable(at, {**sound, "keys": [True, False, False]}) == 0


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
