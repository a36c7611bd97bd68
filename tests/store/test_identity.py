"""What tells graphs apart, and what happens to an open store when its path gets another one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from oocpr.errors import DamagedError, ReplacedError
from oocpr.store.format import ATTRIBUTES_KEY, CHECKSUM_KEY, metadata_checksum
from oocpr.store.graph import open_store

from .damage import flip_bits

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format-1"
ARRAYS = (
    "in_edges/indptr", "in_edges/indices", "in_edges/data", "tile_rows", "out_degree", "out_weight",
    "node_ids", "labels/offsets", "labels/utf8",
)  # fmt: skip


def as_specified(path):
    """The identity as the text of the format says, from the chunks themselves."""
    own = json.loads((path / "zarr.json").read_text())["attributes"]["oocpr"]
    facts = [own[key] for key in ("nodes", "edges", "weighted", "tile_edges")]
    text = json.dumps(facts).encode() + b"\n"
    for name in ARRAYS:
        if not (path / name).is_dir():
            continue
        document = json.loads((path / name / "zarr.json").read_text())
        (size,), (chunk,) = document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"]
        files = [path / name / "c" / str(k) for k in range(-(-size // chunk))]
        own_checksums = document["codecs"][-1]["name"] == "crc32c"
        text += f"{name} {len(files)}\n".encode()
        for file in files:
            content = file.read_bytes()[:-4] if own_checksums else file.read_bytes()
            text += int(google_crc32c.value(content)).to_bytes(4, "little")
    return hashlib.sha256(text).hexdigest()[:32]


def written(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]["oocpr"]


def rewrite_root(path, **changes):
    """Change what the root says, checksum included."""
    documents = {}
    for file in path.rglob("zarr.json"):
        name = "" if file.parent == path else str(file.parent.relative_to(path))
        documents[name] = json.loads(file.read_text())
    own = documents[""]["attributes"][ATTRIBUTES_KEY]
    own.update(changes)
    if own[CHECKSUM_KEY] is None:
        del own[CHECKSUM_KEY]
    else:
        own[CHECKSUM_KEY] = metadata_checksum(documents)
    (path / "zarr.json").write_text(json.dumps(documents[""]))


@pytest.fixture
def labelled(make_store, random_graph):
    def make(graph=None, name="g.zarr", **more):
        graph = graph or random_graph(300, 2000)
        return make_store(graph, 256, name, labels=[f"node {v}" for v in range(graph.nodes)], **more)

    return make


def test_the_identity_is_what_the_format_says(make_store, random_graph, labelled):
    graph = random_graph(300, 2000)
    weighted = graph._replace(weights=np.random.default_rng(1).random(graph.columns.size))
    for path in (
        labelled(),
        make_store(graph, 64, "plain.zarr"),
        make_store(weighted, 64, "weighted.zarr"),
        make_store(graph, 64, "ids.zarr", node_ids=np.arange(300)[::-1] + 7),
    ):
        store = open_store(path)
        assert store.identity == written(path)["identity"] == as_specified(path)
        store.check_identity()


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("five-nodes", "dbcbd690f102a1b11a7ade6428d53458"),
        ("hub", "34f0a6a3ef25d41496477de55f721f36"),
        ("packed", "3e938652e02f371af7c92544727e771e"),
        ("weighted", "1d4157577dc21bb1f977291ea3197ac6"),
    ],
)
def test_stores_of_version_0_1_0_get_one(name, identity):
    path = FIXTURES / f"{name}.zarr"
    assert "identity" not in written(path)
    assert open_store(path).identity == as_specified(path) == identity


def test_only_what_ranks_and_names_depend_on_has_a_part_in_it(make_store, random_graph, labelled):
    graph = random_graph(300, 2000)
    identities = [
        open_store(path).identity
        for path in (
            labelled(graph),
            labelled(graph, "source.zarr", source="another name", self_loops=3),
            make_store(graph, 256, "plain.zarr"),
            make_store(graph, 128, "tiles.zarr"),
            make_store(graph, 256, "ids.zarr", node_ids=np.arange(300) + 1),
            make_store(graph._replace(weights=np.ones(graph.columns.size)), 256, "weighted.zarr"),
            make_store(random_graph(300, 2000, seed=2), 256, "other.zarr"),
        )
    ]
    assert identities[0] == identities[1]
    assert len(set(identities[1:])) == 6


def test_arrays_without_checksums_have_a_part_in_it(labelled):
    path = labelled()
    for name in ("out_degree", "tile_rows"):
        group = zarr.open_group(path, mode="r+")
        values = group[name][:]
        del group[name]
        config = {"write_empty_chunks": True}
        group.create_array(name, data=values, chunks=(100,), compressors=None, config=config)
    assert as_specified(path) != written(path)["identity"]
    rewrite_root(path, identity=as_specified(path))
    store = open_store(path)
    store.check_identity()
    flip_bits(path / "out_degree" / "c" / "0", 0)
    with pytest.raises(DamagedError, match=f"the identity is {store.identity}, that of the chunks is"):
        store.check_identity()


def test_an_identity_is_trusted_beside_a_checksum_only(labelled):
    path = labelled()
    identity = written(path)["identity"]
    rewrite_root(path, identity="0" * 32)
    assert open_store(path).identity == "0" * 32
    rewrite_root(path, identity="0" * 32, **{CHECKSUM_KEY: None})
    assert open_store(path).identity == identity


@pytest.mark.parametrize("wrong", ["", "x" * 32, 7, None, "0" * 31, "0" * 32 + "\n"])
def test_what_is_no_identity_is_refused(labelled, wrong):
    path = labelled()
    rewrite_root(path, identity=wrong)
    with pytest.raises(DamagedError, match="is no identity of a graph"):
        open_store(path)


def tile(store, number):
    buffer = np.empty(store.encoded.max_bytes, np.uint8)
    return buffer[: store.encoded.read_into(number, buffer)].tobytes()


def test_a_store_reads_what_it_opened_when_another_one_gets_its_name(labelled, random_graph):
    path = labelled()
    labels = [f"node {v}" for v in range(300)]
    store = open_store(path)
    before = [tile(store, k) for k in range(store.tiles)], store.out_degree(0, 300).tolist()
    path.rename(path.with_name("old.zarr"))
    labelled(random_graph(300, 2000, seed=2), overwrite=True)
    found = [tile(store, k) for k in range(store.tiles)], store.out_degree(0, 300).tolist()
    assert found == before
    assert store.labels(np.arange(300)) == labels
    with store.unchanged():
        pass
    other = open_store(path)
    assert [tile(other, k) for k in range(other.tiles)] != before[0]
    message = f"it held the graph {store.identity}, now it holds the graph {other.identity}"
    with pytest.raises(ReplacedError, match=message):
        store.check_current()


@pytest.mark.parametrize(
    "read",
    [
        lambda store: tile(store, 3),
        lambda store: store.out_degree(0, 300),
        lambda store: store.indptr(0, 300),
        lambda store: store.labels(np.arange(3)),
        lambda store: list(store.label_pieces(0, 3)),
    ],
)
def test_what_is_missing_of_a_replaced_store_is_not_damage(labelled, random_graph, read):
    path = labelled()
    store = open_store(path)
    labelled(random_graph(300, 2000, seed=2), overwrite=True)
    assert store.identity != open_store(path).identity
    with pytest.raises(ReplacedError, match=f"the graph {store.identity}.*{open_store(path).identity}"):
        read(store)
    labelled(overwrite=True)
    with pytest.raises(ReplacedError, match="now it holds it anew"):
        read(store)
    shutil.rmtree(path)
    with pytest.raises(ReplacedError, match="now it holds no graph"):
        read(store)


def test_what_is_missing_of_a_store_that_is_still_there_is_damage(labelled):
    path = labelled()
    store = open_store(path)
    (path / "in_edges" / "indices" / "c" / "3").unlink()
    with pytest.raises(DamagedError, match=r"tile 3 .* is missing"):
        tile(store, 3)


def test_files_that_are_overwritten_in_place_are_noticed(labelled, random_graph):
    path, other = labelled(), labelled(random_graph(300, 2000, seed=2), "other.zarr")
    store = open_store(path)
    first = tile(store, 0)
    chunk = Path("in_edges/indices/c/0")
    (path / chunk).write_bytes((other / chunk).read_bytes())
    with pytest.raises(ReplacedError, match="tile 0 is another one"):
        tile(store, 0)
    shutil.copytree(other, path, dirs_exist_ok=True)
    assert tile(open_store(path), 0) != first
    for check in (store.check_current, store.check_unchanged, lambda: store.labels([1])):
        with pytest.raises(ReplacedError, match=store.identity):
            check()
    with pytest.raises(ReplacedError), store.unchanged():
        raise DamagedError("a tile contradicts itself.", "")


def test_stores_that_are_no_folders_are_noticed_by_their_root(labelled, random_graph):
    def load(path):
        for file in path.rglob("*"):
            if file.is_file():
                key = str(file.relative_to(path))
                content[key] = zarr.core.buffer.cpu.Buffer.from_bytes(file.read_bytes())

    content = {}
    load(labelled())
    store = open_store(MemoryStore(content))
    with store.unchanged():
        tile(store, 0)
    load(labelled(random_graph(300, 2000, seed=2), "other.zarr"))
    with pytest.raises(ReplacedError, match=store.identity), store.unchanged():
        tile(store, 1)
    with pytest.raises(ReplacedError):
        store.labels([1])


def test_a_folder_is_given_back_with_its_store(labelled):
    import gc

    path = labelled()

    def leading_there():
        return [fd for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(path.resolve())]

    store = open_store(path)
    assert leading_there()
    del store
    gc.collect()
    assert not leading_there()
