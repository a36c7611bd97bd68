"""An import that was interrupted goes on, whatever has changed that may; and does not, where it must not."""

import gc
import os
import shutil
from contextlib import closing

import numpy as np
import pytest

from oocpr.errors import DoesNotFitError, InputError, UsageError
from oocpr.ingest.build import build_store
from oocpr.ingest.journal import Journal, whole_lines
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.system import resident

PLENTY = 3 * 2**30
STAGES = ["reading", "looking up", "numbering", "ordering", "partitioning", "writing"]


@pytest.fixture
def edges(tmp_path):
    """Six thousand edges between ids with gaps."""
    path = tmp_path / "edges.txt"
    np.savetxt(path, np.random.default_rng(1).integers(0, 500, (6000, 2)) * 7, "%d")
    return path


@pytest.fixture
def links(tmp_path):
    """Six thousand links between names."""
    path = tmp_path / "links.tsv"
    ids = np.random.default_rng(2).integers(0, 500, (6000, 2)).tolist()
    path.write_text("".join(f"p%C3%A4ge{u}\tpage {v}\n" for u, v in ids))
    return path


def build(source, path, *, stop=None, **ways):
    """Import; stop at a stage of which a third is done. Returns what was told."""
    told = []

    def listen(stage, done, total, unit, note=""):
        if stage == stop and 3 * done > total:
            raise KeyboardInterrupt

    usual = {"block_edges": 500, "bucket_edges": 900, "tile_edges": 128, "memory": PLENTY, "resume": True}
    build_store(open_source(source), path, progress=listen, on_message=told.append, **{**usual, **ways})
    return told


def events(folder):
    return [event for event, _ in whole_lines((folder / "journal").read_bytes())]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("order", ["keep", "degree"])
@pytest.mark.parametrize("kind", ["edges", "links"])
@pytest.mark.parametrize("bucket_edges", [900, 10**6])
def test_it_may_stop_at_any_stage_and_go_on_with_other_memory(
    tmp_path, request, contents, order, kind, bucket_edges
):
    source = request.getfixturevalue(kind)
    build(source, tmp_path / "whole.zarr", order=order, resume=False)
    expected = contents(tmp_path / "whole.zarr")
    before = names(tmp_path)
    stopped = []
    for stage in STAGES:
        interrupted = None
        try:
            build(source, tmp_path / "g.zarr", stop=stage, order=order, bucket_edges=bucket_edges)
        except KeyboardInterrupt as error:
            interrupted = error
        if interrupted is not None:
            stopped.append(stage)
            finished = stage in ("ordering", "partitioning", "writing")
            assert finished == (
                "the same import with resume=True" in str(getattr(interrupted, "__notes__", []))
            )
            assert names(tmp_path) == sorted([*before, "g.zarr.unfinished"] if finished else before)
            memory = resident() + (64 << 20)
            [told] = build(
                source, tmp_path / "g.zarr", order=order, memory=memory, block_edges=300, bucket_edges=2000
            )
            assert told.startswith("Going on with an import" if finished else "Nothing to resume: ")
        assert contents(tmp_path / "g.zarr") == expected
        shutil.rmtree(tmp_path / "g.zarr")
        assert names(tmp_path) == before
    skipped = {"ordering"} if order == "keep" else set()
    skipped |= {"looking up", "numbering"} if kind == "edges" else set()
    skipped |= {"partitioning"} if (kind, order) == ("edges", "keep") else set()
    assert stopped == [stage for stage in STAGES if stage not in skipped]


@pytest.mark.long
def test_ids_whose_bitmap_does_not_fit_any_more_wait_for_memory(tmp_path, contents):
    ids = np.random.default_rng(3).integers(0, 2**32 - 1, (2, 3000), np.uint32)
    paths = [tmp_path / "from.npy", tmp_path / "to.npy"]
    for path, end in zip(paths, ids, strict=True):
        np.save(path, end)
    build(paths, tmp_path / "whole.zarr", resume=False)
    with pytest.raises(KeyboardInterrupt):
        build(paths, tmp_path / "g.zarr", stop="writing", memory=4 * PLENTY)
    gc.collect()  # what the import held when it stopped would count as room that there is
    with pytest.raises(DoesNotFitError, match=r"Going on with from and 1 more needs .* of memory") as caught:
        build(paths, tmp_path / "g.zarr", stop="writing", memory=resident() + (100 << 20))
    assert "is kept" in caught.value.__notes__[0]
    build(paths, tmp_path / "g.zarr", memory=4 * PLENTY)
    assert contents(tmp_path / "g.zarr") == contents(tmp_path / "whole.zarr")


class TestFinishedWork:
    def test_is_not_done_again(self, tmp_path):
        edges = tmp_path / "edges.npy"
        np.save(edges, np.random.default_rng(1).integers(0, 500, (6000, 2)) * 7)
        folder = tmp_path / "g.zarr.unfinished"
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", stop="writing")
        second = events(folder)
        assert second[1]["read"]["edges"] == 6000
        tiles = [event["tile"] for event in second if "tile" in event]
        assert tiles == list(range(len(tiles)))
        # Tiles that were being written are not finished.
        chunks = [folder / "store.zarr" / "in_edges" / "indices" / "c" / str(tile) for tile in tiles]
        times = [chunk.stat().st_mtime_ns for chunk in chunks]
        assert len(tiles) > 1
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", stop="writing")
        third = events(folder)
        assert third[: len(second)] == second
        assert [chunk.stat().st_mtime_ns for chunk in chunks] == times
        count = sum("tile" in event for event in third)
        assert f"{count} tiles were written" in build(edges, tmp_path / "g.zarr")[0]

    @pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
    def test_tiles_are_taken_up_to_the_first_that_is_damaged(self, tmp_path, edges, contents, damage):
        build(edges, tmp_path / "whole.zarr", resume=False)
        folder = tmp_path / "g.zarr.unfinished"
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", stop="writing")
        tile = folder / "store.zarr" / "in_edges" / "indices" / "c" / "2"
        stored = bytearray(tile.read_bytes())
        stored[40] ^= 1
        tile.unlink()
        if damage != "gone":
            tile.write_bytes(stored if damage == "changed" else stored[:100])
        lines = (folder / "journal").read_bytes()
        added = []
        real = Journal.add

        def note(self, event, *, durable=False):
            added.append(event)
            real(self, event, durable=durable)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "add", note)
            build(edges, tmp_path / "g.zarr")
        assert next(event["tile"] for event in added if "tile" in event) == 2
        assert b'"tile":3' in lines
        assert contents(tmp_path / "g.zarr") == contents(tmp_path / "whole.zarr")

    def test_that_is_lost_is_done_again(self, tmp_path, edges, contents):
        build(edges, tmp_path / "whole.zarr", order="degree", resume=False)
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", order="degree", stop="writing")
        (tmp_path / "g.zarr.unfinished" / "partitioned").unlink()
        assert build(edges, tmp_path / "g.zarr", order="degree") == [
            "Nothing that was finished is left to resume: the import starts from the beginning."
        ]
        assert contents(tmp_path / "g.zarr") == contents(tmp_path / "whole.zarr")


class TestRefusals:
    @pytest.fixture
    def left(self, tmp_path, edges):
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", stop="writing")
        return tmp_path / "g.zarr.unfinished"

    def refused(self, left, contents, match, source, **ways):
        before = contents(left)
        with pytest.raises(UsageError, match=match) as caught:
            build(source, left.parent / "g.zarr", **ways)
        assert caught.value.exit_code == 2
        assert contents(left) == before
        assert not (left.parent / "g.zarr").exists()

    def test_a_source_that_was_changed(self, left, contents, edges):
        with edges.open("a") as file:
            file.write("1 2\n")
        self.refused(left, contents, r"edges\.txt was changed\. .* rm -r .*unfinished", edges)

    def test_a_source_that_was_written_again(self, left, contents, edges):
        os.utime(edges, ns=(1, 1))
        self.refused(left, contents, r"edges\.txt was changed", edges)

    def test_other_sources(self, left, contents, edges, links):
        self.refused(left, contents, "of another source", links)
        self.refused(left, contents, "of another source", [edges, edges])

    def test_other_options(self, left, contents, edges):
        self.refused(left, contents, "order was keep and is degree", edges, order="degree")
        self.refused(left, contents, "tile_edges was 128 and is 1024", edges, tile_edges=1024)

    def test_one_import_at_a_time(self, left, contents, edges):
        with closing(Journal(left / "journal")):
            self.refused(left, contents, "in use: another process", edges)

    def test_a_store_of_the_same_name_elsewhere(self, tmp_path, edges):
        shared = tmp_path / "tmp"
        shared.mkdir()
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", stop="writing", tmp=shared)
        (tmp_path / "other").mkdir()
        with pytest.raises(UsageError, match=r"output was .*/g\.zarr and is .*/other/g\.zarr"):
            build(edges, tmp_path / "other" / "g.zarr", tmp=shared)

    def test_what_nobody_can_tell_from_another(self, tmp_path):
        source = (np.array([0, 1]), np.array([1, 0]))
        with pytest.raises(UsageError, match="arrays cannot be resumed"):
            build(source, tmp_path / "g.zarr")
        assert names(tmp_path) == []

    def test_what_stands_there_is_found_before_anything_is_made(self, tmp_path, edges):
        build(edges, tmp_path / "g.zarr")
        before = names(tmp_path)
        with pytest.raises(UsageError, match=r"g\.zarr exists"):
            build(edges, tmp_path / "g.zarr")
        assert names(tmp_path) == before


class TestLeftOvers:
    def test_are_reported_and_not_used_without_resume(self, tmp_path, edges, contents):
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", stop="writing")
        folder = tmp_path / "g.zarr.unfinished"
        before = contents(folder)
        [told] = build(edges, tmp_path / "g.zarr", resume=False)
        assert told.startswith("An interrupted import has left ")
        assert f"KiB; continue it with resume=True, or remove it with: rm -r {folder}" in told
        assert contents(folder) == before

    def test_that_cannot_be_resumed_are_removed(self, tmp_path, edges):
        left, other = (tmp_path / f"{name}.zarr.partial-{os.getpid()}-0123abcd.zarr" for name in "gh")
        for folder in (left, other):
            folder.mkdir()
            (folder / "zarr.json").write_text("{}")
        told = build(edges, tmp_path / "g.zarr")
        assert told == [
            f"{left}, which a process that was killed had left, was removed.",
            "Nothing to resume: the import starts from the beginning.",
        ]
        assert (left.exists(), other.exists()) == (False, True)

    def test_of_an_import_under_way_are_none(self, tmp_path, edges):
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", stop="writing")
        with closing(Journal(tmp_path / "g.zarr.unfinished" / "journal")):
            assert build(edges, tmp_path / "g.zarr", resume=False) == []

    def test_lie_where_temporary_files_are_wanted(self, tmp_path, edges, contents):
        build(edges, tmp_path / "whole.zarr", resume=False)
        other = tmp_path / "tmp"
        other.mkdir()
        with pytest.raises(KeyboardInterrupt):
            build(edges, tmp_path / "g.zarr", stop="writing", tmp=other)
        assert names(other) == ["g.zarr.unfinished"]
        [told] = build(edges, tmp_path / "h.zarr", resume=False, tmp=other) or [""]
        assert told == ""
        left = build(edges, tmp_path / "g.zarr", resume=False, tmp=other)
        assert left[0].endswith(f"rm -r {other}/g.zarr.unfinished {tmp_path}/g.zarr.partial.zarr")
        shutil.rmtree(tmp_path / "g.zarr")
        build(edges, tmp_path / "g.zarr", tmp=other)
        assert contents(tmp_path / "g.zarr") == contents(tmp_path / "whole.zarr")
        assert names(other) == []
        assert names(tmp_path) == ["edges.txt", "g.zarr", "h.zarr", "tmp", "whole.zarr"]

    def test_of_an_error_while_reading_there_are_none(self, tmp_path, edges):
        text = edges.read_text()
        edges.write_text(text + "and so on\n")
        with pytest.raises(InputError, match="line 6001") as caught:
            build(edges, tmp_path / "g.zarr")
        assert not hasattr(caught.value, "__notes__")
        assert names(tmp_path) == ["edges.txt"]

    def test_of_too_little_memory_are_kept(self, tmp_path, contents):
        source = Rmat(12)
        ways = {"tile_edges": 1 << 12, "block_edges": 1 << 13, "resume": True}
        with pytest.raises(DoesNotFitError):
            build_store(
                source,
                tmp_path / "g.zarr",
                memory=PLENTY,
                progress=lambda stage, *_: stage == "writing" and _no_memory(),
                **ways,
            )
        build_store(Rmat(12), tmp_path / "g.zarr", memory=PLENTY, **ways)
        build_store(Rmat(12), tmp_path / "whole.zarr", memory=PLENTY, tile_edges=1 << 12)
        assert contents(tmp_path / "g.zarr") == contents(tmp_path / "whole.zarr")


def _no_memory():
    raise DoesNotFitError("No memory.", "Give more.")


def test_a_store_that_is_replaced_stays_until_the_new_one_is_whole(tmp_path, edges, links, contents):
    build(links, tmp_path / "g.zarr", resume=False)
    old = contents(tmp_path / "g.zarr")
    with pytest.raises(KeyboardInterrupt):
        build(edges, tmp_path / "g.zarr", stop="writing", overwrite=True)
    assert contents(tmp_path / "g.zarr") == old
    build(edges, tmp_path / "g.zarr", overwrite=True)
    build(edges, tmp_path / "whole.zarr", resume=False)
    assert contents(tmp_path / "g.zarr") == contents(tmp_path / "whole.zarr")


def test_what_the_source_says_is_said_after_going_on_too(tmp_path, links):
    links.write_text("source\ttarget\n" + links.read_text())
    for stage in ("partitioning", "writing"):
        with pytest.raises(KeyboardInterrupt):
            build(links, tmp_path / "g.zarr", stop=stage)
    source = open_source(links)
    build_store(source, tmp_path / "g.zarr", memory=PLENTY, tile_edges=128, resume=True)
    [notice] = source.notices
    assert "is taken as a header" in notice
