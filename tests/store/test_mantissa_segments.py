"""Weights as mantissa segments, against NumPy's own view of the same bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.storage import MemoryStore

from oocpr.errors import DamagedError, UsageError
from oocpr.store.codec.mantissa_segments import (
    HEADER_BYTES,
    encode_segments,
    join_segments,
    max_weight_bytes,
    parse_segments,
    segment_bytes,
)
from oocpr.store.codec.zarr_codecs import MantissaSegments
from oocpr.store.graph import open_store
from oocpr.store.writer import GraphWriter

from .damage import flip_bits
from .writing import add_tile

WEIGHTS = st.lists(st.floats(0, allow_infinity=False), max_size=70).map(lambda x: np.array(x, np.float64))
ANY_BITS = st.lists(st.integers(0, 2**64 - 1), max_size=70).map(
    lambda x: np.array(x, np.uint64).view(np.float64)
)


def bits(values: np.ndarray) -> list[int]:
    return values.view(np.uint64).tolist()


def segments_of(values: np.ndarray) -> np.ndarray:
    """Shape (4, k), the heads first: float64 is stored with its lowest 16 bits first."""
    return values.astype("<f8").view("<u2").reshape(-1, 4)[:, ::-1].T


@given(WEIGHTS | ANY_BITS)
@example(np.array([5e-324, 1.7976931348623157e308, 0.0]))
def test_every_bit_comes_back(values):
    coded = encode_segments(values)
    assert bits(join_segments(coded)) == bits(values)
    assert coded.size <= max_weight_bytes(values.size)
    assert coded.size % 16 == 0


@given(WEIGHTS, st.integers(1, 4))
def test_the_bytes_are_the_segments_that_are_not_zero_one_behind_the_other(values, seed):
    parts = [part for part in segments_of(values) if part.any()]
    coded = encode_segments(values)
    assert coded.size == HEADER_BYTES + len(parts) * segment_bytes(values.size)
    for k, part in enumerate(parts):
        at = HEADER_BYTES + k * segment_bytes(values.size)
        assert coded[at : at + 2 * values.size].view("<u2").tolist() == part.tolist()
    parsed = parse_segments(coded)
    for found, part in zip(parsed.parts, segments_of(values), strict=True):
        assert found.tolist() == (part.tolist() if part.any() else [])


@given(WEIGHTS, st.integers(0, 4))
def test_a_prefix_gives_the_values_cut_short(values, segments):
    mask = np.uint64(2**64 - 2 ** (64 - 16 * segments))
    cut = (values.view(np.uint64) & mask).tolist()
    coded = encode_segments(values)
    assert bits(join_segments(coded, segments=segments)) == cut
    stored = sum(bool(part.any()) for part in segments_of(values)[:segments])
    prefix = coded[: HEADER_BYTES + stored * segment_bytes(values.size)]
    assert bits(join_segments(prefix, segments=segments)) == cut


def test_counts_take_two_or_four_bytes_and_floats_six():
    rng = np.random.default_rng(1)

    def bytes_each(values):
        return (encode_segments(values.astype(np.float64)).size - HEADER_BYTES) / values.size

    assert bytes_each(np.zeros(800)) == 0
    assert bytes_each(np.ones(800)) == 2
    assert bytes_each(rng.integers(1, 32, 800)) == 2
    assert bytes_each(rng.integers(1, 2**21, 800)) == 4
    assert bytes_each(rng.random(800, np.float32)) == 6
    assert bytes_each(rng.random(800)) == 8


def test_values_that_a_chunk_lacks_are_zero_and_more_than_asked_for_are_damage():
    coded = encode_segments(np.array([1.0, 0.3]))
    assert join_segments(coded, np.full(4, 9.0)).tolist() == [1.0, 0.3, 0, 0]
    with pytest.raises(DamagedError, match="2 weights where 1"):
        join_segments(coded, np.empty(1))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c[:12],
        lambda c: c[:-2],
        lambda c: np.append(c, c[:16]),
        lambda c: np.append(np.uint8(0), c[1:]),
        lambda c: np.concatenate([c[:4], [np.uint8(16)], c[5:]]),
        lambda c: np.concatenate([c[:12], [np.uint8(1)], c[13:]]),
        lambda c: np.concatenate([c[:8], [np.uint8(200)], c[9:]]),
    ],
)
def test_bytes_that_contradict_themselves_are_damage(spoil):
    with pytest.raises(DamagedError):
        parse_segments(spoil(encode_segments(np.array([1.0, 0.3, 7.0]))))


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_zarr_reads_and_writes_slices(chunk):
    values = np.random.default_rng(2).random(73)
    codec = MantissaSegments()
    array = zarr.create_array(
        {}, shape=73, dtype="float64", chunks=chunk, serializer=codec, compressors=[Crc32cCodec()]
    )
    array[:] = values
    array[30:41] = 5
    values[30:41] = 5
    assert array[:].tolist() == values.tolist()
    assert array[29:50].tolist() == values[29:50].tolist()


def test_zarr_refuses_other_types_and_configurations():
    array = zarr.create_array({}, shape=3, dtype="float32", serializer=MantissaSegments(), compressors=None)
    with pytest.raises(TypeError, match="float64"):
        array[:] = 1
    with pytest.raises(ValueError, match="without configuration"):
        MantissaSegments.from_dict({"name": "oocpr.segments", "configuration": {"bits": 8}})


@pytest.fixture
def weighted(random_graph):
    """A graph whose links weigh 0 or something of any size."""
    graph = random_graph(50, 400)
    rng = np.random.default_rng(5)
    weights = np.ldexp(rng.random(graph.columns.size), rng.integers(-300, 300, graph.columns.size))
    return graph._replace(weights=np.where(rng.random(weights.size) < 0.1, 0, weights))


@pytest.mark.parametrize("tile_edges", [7, 64, 1000])
def test_a_store_gives_back_the_weights(make_store, weighted, tile_edges):
    path = make_store(weighted, tile_edges)
    store = open_store(path)
    out = np.empty(tile_edges)
    read = np.concatenate([store.weights.read(t, out).copy() for t in range(store.tiles)])
    assert read.tolist() == weighted.weights.tolist()
    group = zarr.open_group(path, mode="r")
    assert group["in_edges/data"].dtype == np.float64
    assert group["in_edges/data"][:].tolist() == weighted.weights.tolist()
    sums = np.bincount(weighted.columns, weighted.weights, weighted.nodes)
    assert store.out_weight(0, store.nodes).tolist() == sums.tolist()
    sizes = [path / "in_edges/data/c" / str(t) for t in range(store.tiles)]
    sizes = [chunk.stat().st_size - 4 for chunk in sizes]
    facts = store.attributes
    assert facts.weighted
    assert (facts.data_bytes, facts.max_data_bytes) == (sum(sizes), max(sizes))
    assert facts.dangling == np.count_nonzero(sums == 0)
    columns = [path / "in_edges/indices/c" / str(t) for t in range(store.tiles)]
    # With the checksums of both.
    assert store.tile_sizes().tolist() == [
        chunk.stat().st_size + size + 4 for chunk, size in zip(columns, sizes, strict=True)
    ]


def test_a_store_without_weights_says_nothing_of_them(make_store, random_graph):
    path = make_store(random_graph(50, 400))
    store = open_store(path)
    assert store.weights is None
    assert store.out_weight(3, 40).tolist() == store.out_degree(3, 40).tolist()
    assert not (path / "in_edges/data").exists()
    assert not (path / "out_weight").exists()
    assert "data_bytes" not in json.loads((path / "zarr.json").read_text())["attributes"]["oocpr"]


def test_a_graph_without_edges_has_a_chunk_without_weights(make_store, graph_of):
    store = open_store(make_store(graph_of([[], []])._replace(weights=np.empty(0))))
    assert store.weights.read(0).size == 0
    assert store.attributes.dangling == 2


def test_weights_that_zarr_wrote_are_read(make_store, weighted):
    for codec in (BytesCodec(), MantissaSegments()):
        path = make_store(weighted, 64, codec.__class__.__name__)
        del (group := zarr.open_group(path, mode="r+"))["in_edges/data"]
        array = group.create_array(
            "in_edges/data",
            shape=weighted.weights.size,
            dtype="float64",
            chunks=64,
            serializer=codec,
            compressors=[Crc32cCodec()],
        )
        array[:] = weighted.weights
        # A store that another program wrote has no checksum of its metadata.
        attributes = dict(group.attrs["oocpr"])
        del attributes["metadata_crc32c"]
        group.attrs["oocpr"] = attributes
        store = open_store(path)
        read = np.concatenate([store.weights.read(t) for t in range(store.tiles)])
        assert read.tolist() == weighted.weights.tolist()


def test_weights_of_other_zarr_stores_than_folders_are_read(make_store, weighted):
    path = make_store(weighted, 64)
    files = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    buffers = {key: zarr.core.buffer.cpu.Buffer.from_bytes(value) for key, value in files.items()}
    store = open_store(MemoryStore(buffers))
    read = np.concatenate([store.weights.read(t) for t in range(store.tiles)])
    assert read.tolist() == weighted.weights.tolist()
    del buffers["in_edges/data/c/3"]
    with pytest.raises(DamagedError, match=r"tile 3 .* is missing"):
        store.weights.read(3)


@pytest.mark.parametrize("where", [0, 5, 14, 40, -1])
def test_a_flipped_byte_is_damage(make_store, weighted, where):
    path = make_store(weighted, 64)
    flip_bits(path / "in_edges/data/c/2", where, 8)
    store = open_store(path)
    store.weights.read(1)
    with pytest.raises(DamagedError, match="in_edges/data/c/2"):
        store.weights.read(2)


@pytest.mark.parametrize("spoil", [lambda c: c.unlink(), lambda c: c.write_bytes(c.read_bytes()[:50])])
def test_missing_or_cut_weights_are_damage(make_store, weighted, spoil):
    path = make_store(weighted, 64)
    spoil(path / "in_edges/data/c/0")
    with pytest.raises(DamagedError, match="in_edges/data/c/0"):
        open_store(path).weights.read(0)


@pytest.mark.parametrize("bad", [-1.0, -0.0, np.inf, np.nan])
def test_numbers_that_are_no_weights_are_damage(make_store, weighted, bad):
    weights = weighted.weights.copy()
    weights[70] = bad
    store = open_store(make_store(weighted._replace(weights=weights), 64, out_weight=[np.ones(50)]))
    with pytest.raises(DamagedError, match="negative or not finite"):
        store.weights.read(1)


@pytest.mark.parametrize("bad", [-1.0, np.inf, np.nan])
def test_sums_that_are_none_are_damage(make_store, weighted, bad):
    store = open_store(make_store(weighted, out_weight=[np.r_[np.ones(49), bad]]))
    with pytest.raises(DamagedError, match="out_weight"):
        store.out_weight(0, 50)


@pytest.mark.parametrize("missing", ["one tile", "the sums", "all tiles"])
def test_weights_are_everywhere_or_nowhere(tmp_path, missing):
    columns, lengths = np.array([0, 1], np.uint32), np.array([2, 0, 0])
    ones = np.ones(2)
    facts = {"source": "two", "order": "keep", "duplicates": 0, "self_loops": 1, "local_edges": 0}
    with GraphWriter(tmp_path / "g.zarr") as writer:
        add_tile(writer, columns, np.array([2]), None if missing == "all tiles" else ones)
        add_tile(writer, columns, lengths, ones if missing == "the sums" else None)
        sums = None if missing == "the sums" else [ones]
        with pytest.raises(UsageError, match="tiles have weights"):
            writer.finish(tile_edges=2, out_degree=[np.full(2, 2, np.uint32)], out_weight=sums, **facts)
    assert list(tmp_path.iterdir()) == []


def test_weights_are_taken_over_with_their_tile(tmp_path):
    columns, lengths = np.array([0, 1], np.uint32), np.array([2, 0, 0])
    kept, told = tmp_path / "kept", []
    kept.mkdir()
    with GraphWriter(tmp_path / "a.zarr", resumable=kept, on_written=told.append) as writer:
        add_tile(writer, columns, lengths, np.array([0.5, 3]))
    (event,) = told
    with GraphWriter(tmp_path / "a.zarr", resumable=kept) as writer:
        found = writer.take_tile(event["bytes"], event["crc"], tuple(event["data"]))
        assert [part.tolist() for part in found] == [[0, 1], [2, 0, 0], [0.5, 3]]
    with GraphWriter(tmp_path / "a.zarr", resumable=kept) as writer:
        assert writer.take_tile(event["bytes"], event["crc"], (event["data"][0], 7)) is None
