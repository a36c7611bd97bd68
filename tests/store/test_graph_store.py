from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

import oocpr
from oocpr.errors import DamagedError, NotAStoreError, SetupError, UsageError
from oocpr.store import writer
from oocpr.store.codec.tiles import decode_tile, encode_tile
from oocpr.store.codec.zarr_codecs import PackedInts
from oocpr.store.graph import open_store
from oocpr.store.writer import GraphWriter, WrittenTile, write_tile

from .writing import add_tile


def read_tile(store, tile):
    buffer = np.empty(store.encoded.max_bytes, np.uint8)
    return decode_tile(buffer[: store.encoded.read_into(tile, buffer)])


def all_columns(store):
    return np.concatenate([read_tile(store, t)[0] for t in range(store.tiles)])


def read_everything(path):
    store = open_store(path)
    rows = np.arange(store.nodes)
    return (
        [read_tile(store, t) for t in range(store.tiles)],
        store.indptr(0, store.nodes + 1),
        store.out_degree(0, store.nodes),
        store.node_ids(),
        store.labels(rows),
    )


@pytest.mark.parametrize("tile_edges", [1, 2, 7, 64, 1000, 10**6])
def test_a_store_gives_back_its_graph(make_store, random_graph, tile_edges):
    graph = random_graph(200, 600 if tile_edges > 2 else 60, hub=117)
    store = open_store(make_store(graph, tile_edges))
    m = graph.columns.size
    assert (store.nodes, store.edges, store.tiles) == (200, m, -(-m // tile_edges))
    rows = graph.tile_rows(tile_edges)
    assert store.tile_rows.tolist() == rows
    for t in range(store.tiles):
        columns, lengths = read_tile(store, t)
        expected = graph.tile(t, tile_edges, rows)
        np.testing.assert_array_equal(columns, expected[0])
        np.testing.assert_array_equal(lengths, expected[1])
    np.testing.assert_array_equal(store.indptr(0, 201), graph.indptr)
    np.testing.assert_array_equal(store.indptr(50, 61), graph.indptr[50:61])
    np.testing.assert_array_equal(store.out_degree(0, 200), np.bincount(graph.columns, minlength=200))
    assert store.node_ids() is None
    assert store.labels([3]) is None
    assert not store.has_labels


@settings(max_examples=30)
@given(
    rows=st.lists(st.sets(st.integers(0, 11), max_size=12), min_size=1, max_size=12),
    tile_edges=st.integers(1, 30),
)
def test_any_small_graph_is_what_zarr_and_the_tiles_say(tmp_path_factory, graph_of, rows, tile_edges):
    rows = [sorted(c for c in row if c < len(rows)) for row in rows]
    graph = graph_of(rows)
    path = graph.write(tmp_path_factory.mktemp("any") / "g.zarr", tile_edges)
    np.testing.assert_array_equal(all_columns(open_store(path)), graph.columns)
    group = zarr.open_group(path, mode="r")
    np.testing.assert_array_equal(group["in_edges/indices"][:], graph.columns)
    np.testing.assert_array_equal(group["in_edges/indptr"][:], graph.indptr)
    np.testing.assert_array_equal(group["tile_rows"][:], graph.tile_rows(tile_edges))


def test_zarr_and_scipy_conventions_hold(make_store, random_graph):
    graph = random_graph(200, 1000)
    in_edges = zarr.open_group(make_store(graph, 100), mode="r")["in_edges"]
    assert in_edges.attrs["encoding-type"] == "csr_matrix"
    assert in_edges.attrs["shape"] == [200, 200]
    np.testing.assert_array_equal(in_edges["indices"][350:777], graph.columns[350:777])


def test_attributes_say_what_the_store_holds(make_store, random_graph):
    graph = random_graph(200, 1000)
    path = make_store(graph, 100, source="two hundred", order="degree", duplicates=4, self_loops=2)
    store = open_store(path)
    a = store.attributes
    files = [(path / "in_edges/indices/c" / str(t)).stat().st_size - 4 for t in range(store.tiles)]
    assert (a.column_bytes, a.max_tile_bytes) == (sum(files), max(files))
    assert (a.source, a.order, a.duplicates, a.self_loops) == ("two hundred", "degree", 4, 2)
    assert a.dangling == np.count_nonzero(np.bincount(graph.columns, minlength=200) == 0)
    assert store.encoded.max_bytes == a.max_tile_bytes
    assert store.store_bytes() == sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def test_ids_and_labels_come_back_in_any_order(make_store, random_graph, monkeypatch):
    monkeypatch.setattr("oocpr.store.node_data._LABELS_CHUNK", 16)
    monkeypatch.setattr("oocpr.store.node_data._BYTES_CHUNK", 50)
    monkeypatch.setattr(writer, "_ROWS_CHUNK", 16)
    labels = [f"ⅷ{k}" * (k % 4) for k in range(200)]
    ids = np.random.default_rng(1).permutation(10**6)[:200]
    store = open_store(make_store(random_graph(200, 1000), labels=iter(labels), node_ids=ids))
    assert store.has_labels
    rows = [199, 0, 17, 17, 3, 16, 150]
    assert store.labels(rows) == [labels[r] for r in rows]
    assert store.labels(np.arange(200)) == labels
    assert store.labels([]) == []
    np.testing.assert_array_equal(store.node_ids(), ids)


def test_few_labels_cost_few_chunks(make_store, random_graph, monkeypatch):
    monkeypatch.setattr("oocpr.store.node_data._LABELS_CHUNK", 16)
    monkeypatch.setattr("oocpr.store.node_data._BYTES_CHUNK", 50)
    path = make_store(random_graph(200, 1000), labels=(f"node{k}" for k in range(200)))
    for array in ("labels/utf8", "labels/offsets"):
        for chunk in (path / array / "c").iterdir():
            # Rows 40 and 41 are in chunk 2 of the offsets, their text begins behind 10 * 5 + 30 * 6 bytes.
            if chunk.name not in {"labels/utf8": {"4"}, "labels/offsets": {"2"}}[array]:
                chunk.unlink()
    assert open_store(path).labels([41, 40]) == ["node41", "node40"]


def test_a_graph_without_edges_has_one_empty_tile(make_store, graph_of):
    store = open_store(make_store(graph_of([[], [], []]), 8))
    assert (store.nodes, store.edges, store.tiles) == (3, 0, 1)
    columns, lengths = read_tile(store, 0)
    assert (columns.tolist(), lengths.tolist()) == ([], [0, 0, 0, 0])
    assert store.attributes.dangling == 3


def test_other_zarr_stores_than_folders_are_read(make_store, random_graph):
    graph = random_graph(200, 1000)
    path = make_store(graph, 100, labels=map(str, range(200)))
    files = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    buffers = {key: zarr.core.buffer.cpu.Buffer.from_bytes(value) for key, value in files.items()}
    store = open_store(MemoryStore(buffers))
    np.testing.assert_array_equal(all_columns(store), graph.columns)
    assert store.labels([7]) == ["7"]
    assert store.store_bytes() == sum(map(len, files.values()))
    del buffers["in_edges/indices/c/3"]
    with pytest.raises(DamagedError, match=r"tile 3 .* is missing"):
        all_columns(store)


@pytest.mark.parametrize(
    ("serializer", "compressors"),
    [("auto", [ZstdCodec()]), (PackedInts(), [Crc32cCodec()]), (PackedInts(), None)],
)
@pytest.mark.parametrize("chunk", [100, 64])
def test_columns_written_through_zarr_are_coded_again(
    make_store, random_graph, serializer, compressors, chunk
):
    graph = random_graph(200, 1000, hub=3)
    path = make_store(graph, 100)
    group = zarr.open_group(path, mode="r+")
    attributes = {k: v for k, v in group.attrs["oocpr"].items() if k != "metadata_crc32c"}
    group.attrs["oocpr"] = attributes
    del group["in_edges/indices"]
    group.create_array(
        "in_edges/indices",
        shape=graph.columns.shape,
        chunks=(chunk,),
        dtype="uint32",
        serializer=serializer,
        compressors=compressors,
    )[:] = graph.columns
    store = open_store(path)
    for t in range(store.tiles):
        for got, expected in zip(read_tile(store, t), graph.tile(t, 100, graph.tile_rows(100)), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_threads_read_tiles_at_once(make_store, random_graph):
    graph = random_graph(2000, 40_000)
    store = open_store(make_store(graph, 500))
    found: dict[int, np.ndarray] = {}

    def work(first: int) -> None:
        for t in range(first, store.tiles, 4):
            found[t] = read_tile(store, t)[0]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.concatenate([found[t] for t in range(store.tiles)]), graph.columns)


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_every_flipped_byte_is_found(make_store, graph_of, step):
    graph = graph_of([[1, 2], [0], [], [0, 1, 2, 4], [3]])
    path = make_store(graph, 3, node_ids=np.array([7, 3, 5, 1, 2]), labels=["a", "bb", "", "ccc", "d"])
    expected = repr(read_everything(path))
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        whole = file.read_bytes()
        for at in range(0, len(whole), step):
            if whole[at : at + 1].isspace():
                continue  # space between two tokens of JSON
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            with pytest.raises((DamagedError, NotAStoreError)) as caught:
                read_everything(path)
            if caught.type is NotAStoreError:
                assert "reads format 1" in str(caught.value)
        file.write_bytes(whole)
    assert repr(read_everything(path)) == expected


@pytest.mark.parametrize("spoil", ["cut", "removed"])
def test_every_cut_or_missing_file_is_found(make_store, graph_of, spoil):
    graph = graph_of([[1, 2], [0], [], [0, 1, 2, 4], [3]])
    path = make_store(graph, 3, node_ids=np.array([7, 3, 5, 1, 2]), labels=["a", "bb", "", "ccc", "d"])
    files = sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        whole = file.read_bytes()
        if spoil == "cut":
            file.write_bytes(whole[: len(whole) // 2])
        else:
            file.unlink()
        expected = NotAStoreError if spoil == "removed" and file == path / "zarr.json" else DamagedError
        with pytest.raises(expected):
            read_everything(path)
        file.write_bytes(whole)
    read_everything(path)


def test_what_is_no_store_is_refused(tmp_path, make_store, graph_of):
    with pytest.raises(NotAStoreError, match="does not exist"):
        open_store(tmp_path / "missing.zarr")
    (tmp_path / "file.txt").write_text("1 2")
    with pytest.raises(NotAStoreError, match="is a file"):
        open_store(tmp_path / "file.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAStoreError, match="no Zarr group"):
        open_store(tmp_path / "empty")
    zarr.create_array(tmp_path / "foreign.zarr", shape=(3,), dtype="int32")
    with pytest.raises(NotAStoreError, match="not of a graph"):
        open_store(tmp_path / "foreign.zarr")
    path = make_store(graph_of([[0]]))
    group = zarr.open_group(path)
    group.attrs["oocpr"] = {**group.attrs["oocpr"], "format": 2}
    with pytest.raises(NotAStoreError, match=r"format 2, .* reads format 1"):
        open_store(path)


def test_a_half_written_store_is_refused(tmp_path):
    unfinished = GraphWriter(tmp_path / "g.zarr")
    add_tile(unfinished, np.array([0], np.uint32), np.array([1]))
    (left,) = tmp_path.iterdir()
    assert ".partial" in left.name
    with pytest.raises(NotAStoreError, match="interrupted import"):
        open_store(left)
    unfinished.abort()
    assert list(tmp_path.iterdir()) == []


def fail_while_writing(path):
    with GraphWriter(path) as unfinished:
        add_tile(unfinished, np.array([0], np.uint32), np.array([1]))
        raise KeyboardInterrupt


def test_a_failure_inside_the_writer_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fail_while_writing(tmp_path / "g.zarr")
    assert list(tmp_path.iterdir()) == []


FIELDS = {"source": "", "order": "keep", "duplicates": 0, "self_loops": 0, "local_edges": 0}


@pytest.mark.parametrize(
    ("tiles", "tile_edges", "fields", "message"),
    [
        ([([0], [1, 0]), ([0, 1], [2, 0])], 1, {}, "tiles do not all have 1 edges"),
        ([([0], [1, 0]), ([0, 1], [2, 0]), ([0], [1, 0])], 2, {}, "tiles do not all have 2 edges"),
        ([], 2, {}, "tiles do not all have 2 edges"),
        ([([0, 1], [2, 0])], 2, {"out_degree": [np.ones(2, np.uint32)]}, "2 entries of out_degree where 1"),
        ([([0, 1], [2, 0])], 2, {"node_ids": np.arange(3)}, "3 entries of node_ids where 1"),
        ([([0, 1], [2, 0])], 2, {"labels": ["a", "b"]}, "2 labels for 1 rows"),
    ],
)
def test_contradictions_are_refused_and_leave_nothing(tmp_path, tiles, tile_edges, fields, message):
    fields = {**FIELDS, "out_degree": [np.ones(1, np.uint32)], **fields}
    with pytest.raises(UsageError, match=message):
        write(tmp_path / "g.zarr", tiles, tile_edges, fields)
    assert list(tmp_path.iterdir()) == []


def write(path, tiles, tile_edges, fields):
    """Write without the context manager: a call that fails must clean up by itself."""
    unfinished = GraphWriter(path)
    for columns, lengths in tiles:
        add_tile(unfinished, np.array(columns, np.uint32), np.array(lengths))
    unfinished.finish(tile_edges=tile_edges, **fields)


def test_an_existing_store_is_replaced_only_when_told_and_only_at_the_end(make_store, graph_of, tmp_path):
    path = make_store(graph_of([[0], [1]]))
    with pytest.raises(UsageError, match="exists"):
        make_store(graph_of([[0]]))
    second = GraphWriter(path, overwrite=True)
    add_tile(second, np.array([0], np.uint32), np.array([1, 0]))
    assert open_store(path).nodes == 2
    second.finish(tile_edges=4, out_degree=[np.ones(1, np.uint32)], **FIELDS)
    assert open_store(path).nodes == 1
    assert [p.name for p in tmp_path.iterdir()] == ["g.zarr"]


def test_nothing_but_a_graph_store_is_ever_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="something else"):
        GraphWriter(tmp_path / "home", overwrite=True)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_tiles_that_another_process_has_written_are_taken_over(tmp_path):
    columns, lengths = np.array([1, 0], np.uint32), np.array([1, 1, 0], np.uint32)
    facts = {"source": "two", "order": "keep", "tile_edges": 2, "duplicates": 0, "self_loops": 0}
    facts |= {"local_edges": 2, "out_degree": [np.ones(2, np.uint32)]}
    with GraphWriter(tmp_path / "own.zarr") as own:
        add_tile(own, columns, lengths)
        own.finish(**facts)
    folder = tmp_path / "made"
    folder.mkdir()
    coded = np.frombuffer(encode_tile(columns, lengths), np.uint8)
    tile = WrittenTile(2, *write_tile(folder, 0, coded, None))
    theirs = GraphWriter(tmp_path / "theirs.zarr", resumable=folder)
    with pytest.raises(SetupError, match="lacks tile 0"):
        theirs.take_over(tile._replace(columns=tile.columns._replace(size=tile.columns.size + 1)), lengths)
    theirs.take_over(tile, lengths)
    theirs.finish(**facts, publish=False)
    assert not (tmp_path / "theirs.zarr").exists()
    assert read_everything(folder)[1].tolist() == read_everything(tmp_path / "own.zarr")[1].tolist()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert path.read_bytes() == (tmp_path / "own.zarr" / path.relative_to(folder)).read_bytes()


def test_a_process_that_does_not_see_the_store_writes_no_tile(tmp_path):
    with pytest.raises(SetupError, match=r"elsewhere is not there\. Put the store where all processes"):
        write_tile(tmp_path / "elsewhere", 0, np.zeros(8, np.uint8), None)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nobody_may_write_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        GraphWriter(tmp_path / "file" / "g.zarr")


def test_a_full_disk_leaves_nothing(tmp_path):
    code = """
import resource, sys, numpy as np
from oocpr.errors import DoesNotFitError
from oocpr.store.writer import GraphWriter, WrittenTile, write_tile
from oocpr.store.codec.tiles import encode_tile
encode_tile(np.arange(3, dtype=np.uint32), np.array([3]))  # compiled and cached before files are limited
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
rng = np.random.default_rng(1)
columns = np.unique(rng.integers(0, 2**32, 100_000)).astype(np.uint32)
try:
    with GraphWriter(sys.argv[1]) as writer:
        writer.put_tile(0, np.frombuffer(encode_tile(columns, np.array([columns.size, 0])), np.uint8))
except DoesNotFitError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "g.zarr")], capture_output=True, text=True, check=True
    )
    assert "g.zarr cannot be written: File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another")
@pytest.mark.parametrize("file", ["zarr.json", "in_edges/indices/c/0", "out_degree/c/0", "tile_rows/c/0", ""])
def test_what_the_user_may_not_read_is_no_damage(file):
    code = """
import os, sys
import oocpr
from oocpr.errors import InputError
oocpr.pagerank(sys.argv[1], method="mixed")
os.chmod(sys.argv[2], 0o600 if os.path.isfile(sys.argv[2]) else 0o700)
os.seteuid(65534)
try:
    oocpr.pagerank(sys.argv[1], method="mixed")
except InputError as error:
    print(error)
"""
    # Folders of pytest are closed to others.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "graph.zarr")
        oocpr.import_graph((np.arange(5), np.roll(np.arange(5), 1)), path)
        environment = os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])}
        command = [sys.executable, "-c", code, str(path), str(path / file)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not done.returncode, done.stderr
    assert f"{path} cannot be read: Permission denied" in done.stdout
    assert "Have its owner let this user read all of it." in done.stdout
