"""Edges that are added to a store make the store that an import of all of them makes."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.errors import DamagedError, DoesNotFitError, InputError, UsageError
from oocpr.ingest import append
from oocpr.ingest.append import append_store, merged_name
from oocpr.ingest.build import build_store
from oocpr.ingest.merge import NewEdges, rows_of_keys
from oocpr.ingest.rows import NO_RANKS, EdgeCounter
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.store.graph import open_store
from oocpr.system import resident
from oocpr.units import format_bytes

from ..store.damage import flip_bits

PLENTY = 3 * 2**30

IDS = {
    "dense": st.integers(0, 12),
    "gaps": st.integers(0, 40).map(lambda k: 3 * k),
    "wide": st.one_of(st.integers(-5, 5), st.integers(2**40, 2**40 + 5)),
}


def edges_of(kind):
    return st.lists(st.tuples(IDS[kind], IDS[kind]), min_size=1, max_size=60)


def write(path, pairs, between=" "):
    path.write_text("".join(f"{u}{between}{v}\n" for u, v in pairs))
    return path


def appended(folder, first, others, *, tile_edges=None, ways=None, contents=None, duplicates="merge", **more):
    """Add sources to the store of the first, one after another, and compare with an import of all.

    Returns how many tiles of the last store but one were copied.
    """
    ways = ways or {}
    for path in folder.glob("*.zarr"):
        shutil.rmtree(path)
    made = {"memory": PLENTY, "tile_edges": tile_edges, "duplicates": duplicates}
    more["duplicates"] = duplicates
    build_store(open_source(first, **ways), folder / "0.zarr", **made)
    copied = 0
    for number, other in enumerate(others, 1):
        before = open_store(folder / f"{number - 1}.zarr")
        path = folder / f"{number}.zarr"
        facts, copied = append_store(before, open_source(other, **ways), path, memory=PLENTY, **more)
        assert open_store(path).attributes == facts
    every = open_source([first, *others], **ways)
    build_store(every, folder / "all.zarr", **made)
    found, expected = contents(folder / f"{len(others)}.zarr"), contents(folder / "all.zarr")
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []
    return copied


@pytest.mark.long
@pytest.mark.parametrize("kind", [*IDS, "names"])
@settings(max_examples=15)
@given(data=st.data(), tile_edges=st.integers(1, 30), bucket_edges=st.sampled_from([2, 7, 1000]))
def test_any_edges_added_to_any_graph(tmp_path_factory, contents, kind, data, tile_edges, bucket_edges):
    folder = tmp_path_factory.mktemp("append")
    parts = data.draw(st.lists(edges_of("gaps" if kind == "names" else kind), min_size=2, max_size=3))
    if kind == "names":
        named = [[(f"page {u}", f"page {v}") for u, v in part] for part in parts]
        paths = [write(folder / f"{k}.tsv", part, "\t") for k, part in enumerate(named)]
    else:
        paths = [write(folder / f"{k}.txt", part) for k, part in enumerate(parts)]
    appended(
        folder,
        paths[0],
        paths[1:],
        tile_edges=tile_edges,
        bucket_edges=bucket_edges,
        block_edges=data.draw(st.sampled_from([1, 10, 1000])),
        contents=contents,
    )


class TestCopiedTiles:
    """A graph of 600 links into 100 rows, 20 of them a tile."""

    @pytest.fixture
    def first(self, tmp_path):
        pairs = [((7 * row + k * k) % 100, row) for row in range(100) for k in range(6)]
        return write(tmp_path / "first.txt", pairs)

    @pytest.mark.parametrize(
        ("more", "copied"),
        [
            ([(2, 0)], 0),
            ([(3, 49)], 14),  # in the middle of tile 14
            ([(3, 50)], 15),  # the row that follows tile 14 is the same
            ([(100, 99)], 29),
            ([(5, 100)], 29),
            ([(101, 100), (0, 101)], 29),
            # There already: nothing changes but the counts.
            ([(0, 0), (50, 50), (93, 99)], 30),
            ([(0, 0), (50, 50), (3, 90)], 27),
        ],
    )
    def test_those_before_the_first_change_are(self, tmp_path, contents, first, more, copied):
        path = write(tmp_path / "more.txt", more)
        assert appended(tmp_path, first, [path], tile_edges=20, contents=contents) == copied

    def test_their_bytes_are_not_decoded(self, tmp_path, first, monkeypatch):
        build_store(open_source(first), tmp_path / "0.zarr", memory=PLENTY, tile_edges=20)
        decoded = []
        real = append.parse_tile
        monkeypatch.setattr(append, "parse_tile", lambda coded: decoded.append(1) or real(coded))
        source = open_source(write(tmp_path / "more.txt", [(3, 96)]))
        store = open_store(tmp_path / "0.zarr")
        _, copied = append_store(store, source, tmp_path / "1.zarr", memory=PLENTY)
        assert copied >= store.tiles - 3
        assert len(decoded) <= 2 + store.tiles - copied

    def test_a_larger_graph_has_larger_tiles(self, tmp_path, contents):
        rng = np.random.default_rng(1)
        paths = [
            write(tmp_path / f"{k}.txt", rng.integers(0, 900, (count, 2)).tolist())
            for k, count in enumerate((5000, 4000))
        ]
        assert appended(tmp_path, paths[0], paths[1:], contents=contents) == 0
        assert open_store(tmp_path / "0.zarr").attributes.tile_edges == 1024
        assert open_store(tmp_path / "1.zarr").attributes.tile_edges == 2048


@pytest.mark.parametrize("first", [None, 4 << 32, 5 << 32, 5 << 32 | 9, 6 << 32])
def test_a_tile_stays_unless_its_last_row_does_not(first):
    assert append.is_unchanged(first, 5, last=False, grown=True) == (first is None or first >= 5 << 32)
    assert append.is_unchanged(first, 5, last=True, grown=False) == (first is None)
    assert not append.is_unchanged(first, 5, last=True, grown=True)


class TestNewEdges:
    keys = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 12))).map(
        lambda pairs: sorted(row << 32 | column for row, column in pairs)
    )

    def new(self, pieces):
        """New edges in pieces, counted."""
        counter = EdgeCounter(64)
        counted = []
        for piece in pieces:
            keys = np.array(piece, np.uint64)
            rows, starts = np.empty(keys.size, np.uint32), np.empty(keys.size + 1, np.uint32)
            edges = counter.to_rows(keys, keys.size, NO_RANKS, rows, starts)
            counted.append(edges._replace(columns=edges.columns.copy()))
        return NewEdges(counted, counter), counter

    def cut(self, keys, size):
        return [keys[k : k + size] for k in range(0, len(keys), size)]

    @given(keys, keys, st.integers(1, 9), st.integers(1, 9))
    def test_merged_edges_are_the_union(self, old_keys, new_keys, one, other):
        new, counter = self.new(self.cut(new_keys, one))
        pieces = (rows_of_keys(np.array(piece, np.uint64)) for piece in self.cut(old_keys, other))
        found = [
            int(row) << 32 | int(column)
            for edges in new.merged(pieces)
            for k, row in enumerate(edges.rows)
            for column in edges.columns[edges.starts[k] : edges.starts[k + 1]]
        ]
        assert found == sorted({*old_keys, *new_keys})
        fresh = [key & 0xFFFFFFFF for key in set(new_keys) - set(old_keys)]
        assert counter.out_degree().tolist() == np.bincount(fresh, minlength=64).tolist()
        loops = [key for key in set(new_keys) - set(old_keys) if key >> 32 == key & 0xFFFFFFFF]
        assert counter.self_loops == len(loops)

    @given(keys, keys, st.integers(1, 9))
    def test_known_edges_are_dropped_up_to_the_first_that_is_not(self, old_keys, new_keys, size):
        new, counter = self.new(self.cut(new_keys, size))
        new.drop_stored(rows_of_keys(np.array(old_keys, np.uint64)))
        fresh = [key for key in new_keys if key not in old_keys]
        left = [key for key in new_keys if fresh and key >= fresh[0]]
        columns = [key & 0xFFFFFFFF for key in left]
        assert counter.out_degree().tolist() == np.bincount(columns, minlength=64).tolist()
        assert new.next == (fresh[0] if fresh else None)

    def test_rows_are_taken_apart(self):
        edges = rows_of_keys(np.array([3, 7 << 32, 7 << 32 | 1], np.uint64))
        assert [part.tolist() for part in edges[:3]] == [[3, 0, 1], [0, 7], [0, 1, 3]]


class TestNames:
    def test_of_parquet(self, tmp_path, contents):
        rng = np.random.default_rng(2)
        paths = []
        for k in range(3):
            ends = rng.integers(0, 40 * (k + 1), (2, 500))
            columns = [[f"ä {i}" for i in end] for end in ends.tolist()]
            paths.append(tmp_path / f"{k}.parquet")
            pq.write_table(pa.table(columns, names=["from", "to"]), paths[-1])
        appended(tmp_path, paths[0], paths[1:], tile_edges=64, contents=contents)

    def test_that_several_nodes_have_are_refused(self, tmp_path):
        (tmp_path / "0.labels.txt").write_text("a\na\nb\n")
        build_store(
            open_source(write(tmp_path / "0.txt", [(0, 1), (1, 2)])), tmp_path / "0.zarr", memory=PLENTY
        )
        more = open_source(write(tmp_path / "more.tsv", [("a", "c")], "\t"))
        with pytest.raises(InputError, match=r"0\.zarr has 1 names more than once"):
            append_store(open_store(tmp_path / "0.zarr"), more, tmp_path / "1.zarr", memory=PLENTY)
        assert not (tmp_path / "1.zarr").exists()


class TestSources:
    def test_that_say_how_many_nodes_there_are(self, tmp_path):
        build_store(open_source((np.array([0]), np.array([4]))), tmp_path / "0.zarr", memory=PLENTY)
        matrix = tmp_path / "m.mtx"
        matrix.write_text("%%MatrixMarket matrix coordinate pattern general\n7 7 1\n1 2\n")
        store = open_store(tmp_path / "0.zarr")
        facts, _ = append_store(store, open_source(matrix), tmp_path / "1.zarr", memory=PLENTY)
        assert (facts.nodes, facts.edges, facts.dangling) == (7, 2, 6)

    def test_of_both_directions(self, tmp_path, contents):
        rng = np.random.default_rng(3)
        paths = [write(tmp_path / f"{k}.txt", rng.integers(0, 90, (300, 2)).tolist()) for k in range(2)]
        appended(tmp_path, paths[0], paths[1:], ways={"undirected": True}, contents=contents)

    @pytest.mark.parametrize(
        ("first", "more", "message"),
        [
            ("0 1\n", "a\tb\n", r"0\.zarr knows its nodes by number, more by name"),
            ("a\tb\n", "0 1\n", r"0\.zarr knows its nodes by name, more by number"),
        ],
    )
    def test_that_know_their_nodes_otherwise(self, tmp_path, first, more, message):
        paths = []
        for name, text in (("0", first), ("more", more)):
            paths.append(tmp_path / f"{name}{'.tsv' if chr(9) in text else '.txt'}")
            paths[-1].write_text(text)
        build_store(open_source(paths[0]), tmp_path / "0.zarr", memory=PLENTY)
        with pytest.raises(InputError, match=message):
            append_store(
                open_store(tmp_path / "0.zarr"), open_source(paths[1]), tmp_path / "1.zarr", memory=PLENTY
            )
        assert not (tmp_path / "1.zarr").exists()

    def test_that_cannot_be_read_leave_nothing(self, tmp_path):
        build_store(open_source(write(tmp_path / "0.txt", [(0, 1)])), tmp_path / "0.zarr", memory=PLENTY)
        (tmp_path / "more.txt").write_text("1 2\n2 three\n")
        before = sorted(tmp_path.iterdir())
        with pytest.raises(InputError, match=r"more\.txt, line 2"):
            append_store(
                open_store(tmp_path / "0.zarr"),
                open_source(tmp_path / "more.txt"),
                tmp_path / "1.zarr",
                memory=PLENTY,
            )
        assert sorted(tmp_path.iterdir()) == before


class TestStores:
    def test_of_another_order_are_refused(self, tmp_path):
        source = open_source(write(tmp_path / "0.txt", [(0, 1), (1, 2), (1, 0)]))
        build_store(source, tmp_path / "0.zarr", memory=PLENTY, order="degree")
        with pytest.raises(UsageError, match="in the order 'degree'"):
            append_store(open_store(tmp_path / "0.zarr"), source, tmp_path / "1.zarr", memory=PLENTY)

    def test_may_replace_the_one_they_were_made_of(self, tmp_path, contents):
        paths = [write(tmp_path / f"{k}.txt", [(k, k + 1), (5, k)]) for k in range(2)]
        build_store(open_source(paths[0]), tmp_path / "g.zarr", memory=PLENTY)
        store = open_store(tmp_path / "g.zarr")
        with pytest.raises(UsageError, match="exists"):
            append_store(store, open_source(paths[1]), tmp_path / "g.zarr", memory=PLENTY)
        append_store(store, open_source(paths[1]), tmp_path / "g.zarr", memory=PLENTY, overwrite=True)
        build_store(open_source(paths), tmp_path / "all.zarr", memory=PLENTY)
        assert contents(tmp_path / "g.zarr") == contents(tmp_path / "all.zarr")

    @pytest.mark.parametrize("tile", [0, 3])
    def test_that_are_damaged_are_refused(self, tmp_path, tile):
        rng = np.random.default_rng(4)
        source = open_source(write(tmp_path / "0.txt", rng.integers(0, 90, (300, 2)).tolist()))
        build_store(source, tmp_path / "0.zarr", memory=PLENTY, tile_edges=64)
        flip_bits(tmp_path / "0.zarr" / "in_edges" / "indices" / "c" / str(tile), 50)
        more = open_source(write(tmp_path / "more.txt", [(1, 89)]))
        with pytest.raises(DamagedError, match=f"c/{tile}"):
            append_store(open_store(tmp_path / "0.zarr"), more, tmp_path / "1.zarr", memory=PLENTY)
        assert not (tmp_path / "1.zarr").exists()


def test_too_little_memory_is_refused(tmp_path):
    build_store(open_source(write(tmp_path / "0.txt", [(0, 1)])), tmp_path / "0.zarr", memory=PLENTY)
    more = open_source(write(tmp_path / "more.txt", [(1, 2)]))
    with pytest.raises(DoesNotFitError, match="Adding edges needs"):
        append_store(open_store(tmp_path / "0.zarr"), more, tmp_path / "1.zarr", memory=resident())


def test_a_refusal_says_how_much_was_given(tmp_path, monkeypatch):
    # What is kept for a stored tile is a part of it, and more than what memory that was freed hides.
    monkeypatch.setattr(append.budget, "stored_tile_bytes", lambda *_, **__: 64 << 20)
    build_store(Rmat(14), tmp_path / "old.zarr", memory=PLENTY)
    store, refused = open_store(tmp_path / "old.zarr"), []
    for step in range(80):
        memory = resident() + (16 + 2 * step) * 2**20
        try:
            append_store(store, Rmat(4), tmp_path / "new.zarr", memory=memory)
        except DoesNotFitError as error:
            refused.append((memory, error.cause))
        else:
            break
    assert {cause.partition(" ")[0] for _, cause in refused} == {"Adding", "Sorting"}
    assert all(f" {format_bytes(memory)} are given." in cause for memory, cause in refused)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_the_name_says_how_many_files_there_are(before, behind):
    def named(name, count):
        return name if count == 1 else f"{name} and {count - 1:,} more"

    assert merged_name(named("web", before), named("x", behind)) == named("web", before + behind)


def weigh_lines(folder, parts, suffix="txt"):
    paths = []
    for k, part in enumerate(parts):
        path = folder / f"{k}.{suffix}"
        path.write_text("".join("\t".join(map(str, link)) + "\n" for link in part))
        paths.append(path)
    return paths


class TestWeights:
    @pytest.mark.long
    @pytest.mark.parametrize("kind", [*IDS, "names"])
    @settings(max_examples=10)
    @given(data=st.data(), tile_edges=st.integers(1, 30), bucket_edges=st.sampled_from([3, 7, 1000]))
    def test_any_edges_added_to_any_graph(
        self, tmp_path_factory, contents, kind, data, tile_edges, bucket_edges
    ):
        folder = tmp_path_factory.mktemp("append")
        duplicates = data.draw(st.sampled_from(["merge", "sum", "count"]))
        # Sums of eighths are exact in any order.
        eighths = st.integers(0, 99).map(lambda k: k / 8)
        ends = IDS["gaps"].map(lambda k: f"page {k}") if kind == "names" else IDS[kind]
        link = st.tuples(ends, ends, eighths)
        parts = data.draw(st.lists(st.lists(link, min_size=1, max_size=60), min_size=2, max_size=3))
        if duplicates == "count":
            parts = [[(u, v) for u, v, _ in part] for part in parts]
        paths = weigh_lines(folder, parts, "tsv" if kind == "names" else "txt")
        appended(
            folder,
            paths[0],
            paths[1:],
            tile_edges=tile_edges,
            ways={} if duplicates == "count" else {"weight": 3},
            duplicates=duplicates,
            bucket_edges=bucket_edges,
            block_edges=data.draw(st.sampled_from([1, 10, 1000])),
            contents=contents,
        )

    @pytest.mark.parametrize(
        ("more", "copied"), [([(3, 49, 9.0)], 14), ([(3, 50, 9.0)], 15), ([(50, 50, 9.0)], 15)]
    )
    def test_tiles_before_the_first_change_are_copied(self, tmp_path, contents, more, copied):
        first = [((7 * row + k * k) % 100, row, 1 + k / 10) for row in range(100) for k in range(6)]
        paths = weigh_lines(tmp_path, [first, more])
        ways = {"tile_edges": 20, "ways": {"weight": 3}, "contents": contents}
        assert appended(tmp_path, paths[0], [paths[1]], **ways) == copied

    @pytest.mark.parametrize("weighted", [False, True])
    def test_links_with_and_without_weights_do_not_mix(self, tmp_path, weighted):
        path = weigh_lines(tmp_path, [[(0, 1, 0.5)]])[0]
        bare = write(tmp_path / "bare.txt", [(0, 1)])
        old, new = (path, bare) if weighted else (bare, path)
        ways = {path: {"weight": 3}, bare: {}}
        build_store(open_source(old, **ways[old]), tmp_path / "g.zarr", memory=PLENTY)
        store = open_store(tmp_path / "g.zarr")
        message = "has weights, and what is to be added has none" if weighted else "has no weights, and"
        with pytest.raises(UsageError, match=message):
            append_store(store, open_source(new, **ways[new]), tmp_path / "h.zarr", memory=PLENTY)
        assert not (tmp_path / "h.zarr").exists()

    def test_a_sum_that_float64_does_not_hold_is_refused(self, tmp_path):
        path = weigh_lines(tmp_path, [[(0, 1, 1.7e308)]])[0]
        build_store(open_source(path, weight=3), tmp_path / "g.zarr", memory=PLENTY, duplicates="sum")
        store, source = open_store(tmp_path / "g.zarr"), open_source(path, weight=3)
        with pytest.raises(InputError, match="add up to more"):
            append_store(store, source, tmp_path / "h.zarr", memory=PLENTY, duplicates="sum")


@pytest.mark.parametrize("direction", ["undirected", "reverse"])
def test_edges_are_added_in_the_direction_of_those_that_are_there(tmp_path, contents, direction):
    first, other = write(tmp_path / "first", [(0, 1), (1, 2)]), write(tmp_path / "other", [(2, 3)])
    appended(tmp_path, first, [other], ways={direction: True}, contents=contents)
    store = open_store(tmp_path / "0.zarr")
    assert store.attributes.direction == direction
    with pytest.raises(UsageError, match=f"was imported with {direction}"):
        append_store(store, open_source(other), tmp_path / "new.zarr", memory=PLENTY)
    assert not (tmp_path / "new.zarr").exists()
