"""Stores that were written once stay readable for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

import oocpr
from oocpr.errors import DamagedError
from oocpr.store.codec.tiles import decode_tile
from oocpr.store.graph import open_store
from tests.store import reference_codec as reference

from .hostile import set_attribute, sign

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format-1"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())


@pytest.mark.parametrize("decode", [decode_tile, reference.decode_tile])
@pytest.mark.parametrize("name", EXPECTED)
def test_tiles_hold_the_edges(name, decode):
    expected = EXPECTED[name]
    store = open_store(FIXTURES / f"{name}.zarr")
    assert (store.nodes, store.edges) == (expected["nodes"], len(expected["columns"]))
    assert store.tile_rows.tolist() == expected["tile_rows"]
    buffer = np.empty(store.encoded.max_bytes, np.uint8)
    rows, columns = [], []
    for t in range(store.tiles):
        tile_columns, lengths = decode(buffer[: store.encoded.read_into(t, buffer)])
        segments = np.arange(store.tile_rows[t], store.tile_rows[t + 1] + 1)
        rows += np.repeat(segments, lengths).tolist()
        columns += tile_columns.tolist()
    assert rows == expected["rows"]
    assert columns == expected["columns"]


@pytest.mark.parametrize("name", EXPECTED)
def test_arrays_beside_the_tiles_agree(name):
    expected = EXPECTED[name]
    store = open_store(FIXTURES / f"{name}.zarr")
    n = store.nodes
    counts = np.bincount(expected["rows"], minlength=n)
    np.testing.assert_array_equal(np.diff(store.indptr(0, n + 1)), counts)
    np.testing.assert_array_equal(store.out_degree(0, n), np.bincount(expected["columns"], minlength=n))
    ids = store.node_ids()
    assert (ids if ids is None else ids.tolist()) == expected["node_ids"]
    assert store.labels(np.arange(n)) == expected["labels"]


@pytest.mark.parametrize("name", EXPECTED)
def test_zarr_reads_the_columns(name):
    group = zarr.open_group(FIXTURES / f"{name}.zarr", mode="r")
    assert group["in_edges/indices"][:].tolist() == EXPECTED[name]["columns"]


@pytest.mark.parametrize("name", EXPECTED)
def test_weights_are_those_of_the_edges(name):
    store = open_store(FIXTURES / f"{name}.zarr")
    weights = EXPECTED[name].get("weights")
    assert store.attributes.weighted == (weights is not None)
    if weights is None:
        assert store.weights is None
        return
    assert np.concatenate([store.weights.read(t) for t in range(store.tiles)]).tolist() == weights
    assert zarr.open_group(store.path, mode="r")["in_edges/data"][:].tolist() == weights
    sums = np.bincount(EXPECTED[name]["columns"], weights, store.nodes)
    assert store.out_weight(0, store.nodes).tolist() == sums.tolist()


def test_attributes_of_five_nodes():
    attributes = open_store(FIXTURES / "five-nodes.zarr").attributes
    assert attributes.to_json() == {
        "format": 1,
        "nodes": 5,
        "edges": 10,
        "weighted": False,
        "order": "degree",
        "tile_edges": 3,
        "source": "five nodes",
        "duplicates": 1,
        "self_loops": 1,
        "dangling": 0,
        "local_edges": 2,
        "column_bytes": 1612,
        "max_tile_bytes": 404,
    }


def test_what_earlier_versions_knew_of_nodes_is_ignored(tmp_path):
    path = shutil.copytree(FIXTURES / "five-nodes.zarr", tmp_path / "g.zarr")
    plain = oocpr.pagerank(oocpr.open_graph(path)).top()
    group = zarr.open_group(path, mode="r+")
    for name, kind in (("attributes/year/values", "int64"), ("attributes/title/utf8", "uint8")):
        group.create_array(name, data=np.zeros(5, kind))
    sign(path)
    with pytest.raises(DamagedError, match="metadata"):
        open_store(path)  # its root does not know of them
    set_attribute(path, "columns", {"year": "int64", "title": "text"})
    sign(path)
    graph = oocpr.open_graph(path)
    assert graph.store.identity == open_store(FIXTURES / "five-nodes.zarr").identity
    assert oocpr.pagerank(graph).top() == plain
    document = path / "attributes" / "year" / "values" / "zarr.json"
    document.write_text(document.read_text().replace("int64", "int32"))
    with pytest.raises(DamagedError, match="metadata"):
        open_store(path)
