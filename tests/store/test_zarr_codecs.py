from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec

from oocpr.errors import DamagedError
from oocpr.store.codec.layout import KIND_OFFSETS, KIND_RAW, KIND_TILE, kind_of
from oocpr.store.codec.zarr_codecs import PackedInts, decode_chunk, encode_chunk

from ..engine.digraphs import random_digraph
from ..engine.running import Stored


def as_array(coded: bytes) -> np.ndarray:
    return np.frombuffer(coded, np.uint8)


def make_array(values: np.ndarray, chunk: int) -> zarr.Array:
    array = zarr.create_array(
        {},
        shape=values.shape,
        dtype=values.dtype,
        chunks=(chunk,) * values.ndim,
        serializer=PackedInts(),
        compressors=[Crc32cCodec()],
    )
    array[:] = values
    return array


@given(st.lists(st.integers(0, 2**32 - 1), max_size=200), st.booleans())
def test_columns_come_back_sorted_or_not(values, in_order):
    array = np.array(sorted(values) if in_order else values, np.uint32)
    decoded = decode_chunk(as_array(encode_chunk(array)))
    assert decoded.dtype == np.uint32
    np.testing.assert_array_equal(decoded, array)


@given(st.integers(-(2**62), 2**62), st.lists(st.integers(-3, 2**33), max_size=100))
def test_offsets_come_back_whatever_they_are(base, steps):
    array = np.cumsum([base, *steps]).astype(np.int64)
    decoded = decode_chunk(as_array(encode_chunk(array)))
    assert decoded.dtype == np.int64
    np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.arange(1000, dtype=np.int64) ** 2, KIND_OFFSETS),
        (np.arange(1000, dtype=np.int64)[::-1], KIND_RAW),
        (np.arange(1000, dtype=np.uint32) * 7, KIND_TILE),
        (np.random.default_rng(1).integers(0, 2**32, 1000, np.uint32), KIND_RAW),
        (np.linspace(0, 1, 1000), KIND_RAW),
        (np.empty(0, np.uint32), KIND_RAW),
    ],
)
def test_each_kind_is_chosen_where_it_is_shortest(values, kind):
    coded = as_array(encode_chunk(values))
    assert kind_of(coded) & 0xFF == kind
    assert coded.size <= values.nbytes + 16
    np.testing.assert_array_equal(decode_chunk(coded), values)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_zarr_reads_and_writes_slices(chunk):
    values = np.sort(np.random.default_rng(2).integers(0, 2**40, 730))
    array = make_array(values, chunk)
    np.testing.assert_array_equal(array[:], values)
    np.testing.assert_array_equal(array[98:205], values[98:205])
    array[300:410] = 5
    values[300:410] = 5
    np.testing.assert_array_equal(array[:], values)


def test_a_last_chunk_is_as_short_as_its_values():
    store: dict[str, object] = {}
    array = zarr.create_array(
        store, shape=(3,), dtype="int64", chunks=(10**6,), serializer=PackedInts(), compressors=None
    )
    array[:] = [5, 6, 9]
    assert len(store["c/0"].to_bytes()) < 300
    assert array[:].tolist() == [5, 6, 9]


def test_two_dimensions_are_flattened_and_folded():
    values = np.random.default_rng(3).integers(0, 100, (30, 50)).astype(np.uint32)
    np.testing.assert_array_equal(make_array(values, 16)[:], values)


def test_metadata_name_the_codec_and_reopening_finds_it():
    store: dict[str, object] = {}
    zarr.create_array(store, shape=(9,), dtype="uint32", serializer=PackedInts(), compressors=None)[:] = 3
    metadata = json.loads(store["zarr.json"].to_bytes())
    assert metadata["codecs"] == [{"name": "oocpr.packed_ints"}]
    assert zarr.open_array(store)[:].tolist() == [3] * 9


def test_a_configuration_that_the_codec_does_not_have_is_refused():
    with pytest.raises(ValueError, match="without configuration"):
        PackedInts.from_dict({"name": "oocpr.packed_ints", "configuration": {"level": 3}})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda coded: b"oci2" + coded[4:],
        lambda coded: coded[:4] + b"\x07" + coded[5:],
        lambda coded: coded[:-1],
        lambda coded: coded[:12] + b"zz" + coded[14:],
        lambda coded: coded[:8] + b"\xff" + coded[9:],
    ],
)
def test_raw_chunks_that_contradict_themselves_are_damaged(spoil):
    coded = encode_chunk(np.linspace(0, 1, 10))
    with pytest.raises(DamagedError):
        decode_chunk(as_array(spoil(coded)))


def test_a_chunk_of_another_type_than_its_array_is_damaged():
    store: dict[str, object] = {}
    array = zarr.create_array(store, shape=(4,), dtype="int64", serializer=PackedInts(), compressors=None)
    array[:] = [1, 2, 3, 4]
    store["c/0"] = type(store["c/0"]).from_bytes(encode_chunk(np.array([1, 2], np.uint32)))
    with pytest.raises(DamagedError, match="2 uint32 where 4 int64 belong"):
        array[:]


NOT_INSTALLED = """
import importlib.metadata, sys
importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints(())
import oocpr
print(oocpr.open_graph(sys.argv[1]).store.encoded.sizes().size)
"""


def test_a_store_opens_where_zarr_finds_no_entry_points():
    with Stored(random_digraph(30, 200, seed=8), 100) as store:
        words = [sys.executable, "-W", "error", "-c", NOT_INSTALLED, str(store.path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.stderr) == (str(store.tiles), "")
