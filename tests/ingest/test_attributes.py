"""Tables of nodes: every value stands at the row of its node, whatever the order of rows and of nodes."""

import gc
import itertools
import math

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from oocpr.errors import DoesNotFitError, InputError, UsageError
from oocpr.ingest.build import build_store
from oocpr.ingest.columns import attributes, row_lookup
from oocpr.sources import node_table, open_source
from oocpr.sources.node_table import NodeTable
from oocpr.store.graph import open_store
from oocpr.system import resident_after_trim

PLENTY = 3 * 2**30
KINDS = {
    "ratio": (pa.float64(), st.floats(allow_nan=False)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "large": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "sure": (pa.bool_(), st.booleans()),
    "title": (pa.string(), st.text("aé\n,\"' ", max_size=9)),
}
some_ids = st.one_of(st.integers(0, 9), st.sampled_from([2**32 - 2, 2**40, -5]))
some_names = st.sampled_from(["", "a", "b", "é", "b" * 8, "http://x.org/" + "y" * 90])


@pytest.fixture
def little(monkeypatch):
    """Make many batches, buckets and pieces of small tables."""
    monkeypatch.setattr(node_table, "_ROWS", 3)
    monkeypatch.setattr(attributes, "LEAST_NODES", 2)
    monkeypatch.setattr(attributes, "BUCKETS", 3)


@st.composite
def graphs_and_tables(draw, nodes):
    links = draw(st.lists(st.tuples(nodes, nodes), min_size=1, max_size=12))
    known = draw(st.permutations(draw(st.lists(nodes, unique=True, max_size=9))))
    rows = {node: {name: draw(st.none() | values) for name, (_, values) in KINDS.items()} for node in known}
    return links, rows


def table_of(rows, node_kind):
    nodes = pa.array(list(rows), node_kind)
    columns = {
        name: pa.array([row[name] for row in rows.values()], kind) for name, (kind, _) in KINDS.items()
    }
    return pa.table({**columns, "node": nodes})


def read_by_zarr_alone(attributes, name):
    """Values of all rows, as the format describes them."""
    group = attributes[name]
    if "offsets" in group:
        ends, text = group["offsets"][:].tolist(), group["utf8"][:].tobytes()
        return [text[lo:hi].decode() for lo, hi in itertools.pairwise(ends)]
    values = group["values"][:].tolist()
    missing = group["missing"][:].tolist() if "missing" in group else [False] * len(values)
    assert all(value == 0 for value, lacks in zip(values, missing, strict=True) if lacks)
    return [
        None if lacks or (isinstance(value, float) and math.isnan(value)) else value
        for value, lacks in zip(values, missing, strict=True)
    ]


def check(path, rows, called):
    store, by_zarr = open_store(path), zarr.open_group(path, mode="r")["attributes"]
    for name in KINDS:
        lacking = "" if name == "title" else None
        wanted = [rows.get(node, {}).get(name) for node in called]
        wanted = [lacking if value is None else value for value in wanted]
        assert read_by_zarr_alone(by_zarr, name) == wanted
        assert store.node_attributes.take(name, np.arange(len(called))[::-1]) == wanted[::-1]


@pytest.mark.usefixtures("little")
@given(case=graphs_and_tables(some_ids), order=st.sampled_from(["keep", "degree", "bfs"]))
def test_attributes_by_id(tmp_path_factory, case, order):
    folder = tmp_path_factory.mktemp("ids")
    links, rows = case
    pq.write_table(table_of(rows, pa.int64()), folder / "nodes.parquet", row_group_size=4)
    src, dst = np.array(links, np.int64).T
    told = []
    table = NodeTable(folder / "nodes.parquet")
    facts = build_store(
        open_source((src, dst)), folder / "g.zarr", memory=PLENTY, order=order, table=table, tell=told.append
    )
    ids = open_store(folder / "g.zarr").node_ids()
    check(folder / "g.zarr", rows, list(range(facts.nodes)) if ids is None else ids.tolist())
    strangers = len(rows.keys() - {node for link in links for node in link})
    assert len(told) == (strangers > 0)
    assert all(str(strangers) in notice for notice in told)


@pytest.mark.usefixtures("little")
@given(case=graphs_and_tables(some_names), order=st.sampled_from(["keep", "degree", "host"]))
def test_attributes_by_name(tmp_path_factory, case, order):
    folder = tmp_path_factory.mktemp("names")
    links, rows = case
    pq.write_table(table_of(rows, pa.string()), folder / "nodes.parquet", row_group_size=4)
    links = pa.table({"from": [u for u, _ in links], "to": [v for _, v in links]})
    table = NodeTable(folder / "nodes.parquet")
    build_store(open_source(links), folder / "g.zarr", memory=PLENTY, order=order, table=table)
    store = open_store(folder / "g.zarr")
    check(folder / "g.zarr", rows, store.labels(range(store.nodes)))


def build(folder, text, links="0 5\n5 7\n", labels=None, node=None, **more):
    if not (folder / "links.txt").exists():
        (folder / "links.txt").write_text(links)
    (folder / "nodes.csv").write_text(text)
    if labels is not None:
        (folder / "names.txt").write_text(labels)
    source = open_source(folder / "links.txt", labels=labels and folder / "names.txt")
    table = NodeTable(folder / "nodes.csv", node)
    build_store(source, folder / "g.zarr", memory=more.pop("memory", PLENTY), table=table, **more)
    return open_store(folder / "g.zarr").node_attributes


def test_text_of_csv_is_kept_as_it_is_written(tmp_path):
    lines = 'Id,since,code,note\n5,2020-02-30,007a,"two, and ""quotes"""\n0,1999-01-01,,NA\n'
    found = build(tmp_path, lines)
    assert dict(found.kinds) == {"since": "text", "code": "text", "note": "text"}
    rows = np.arange(3)
    assert found.take("since", rows) == ["1999-01-01", "2020-02-30", ""]
    assert found.take("code", rows) == ["", "007a", ""]
    assert found.take("note", rows) == ["NA", 'two, and "quotes"', ""]


def test_dates_and_times_are_kept_as_text(tmp_path):
    import datetime

    when = datetime.datetime(2020, 2, 29, 13, 5)
    columns = {"node": [5, 0], "day": [when.date(), None], "at": [None, when]}
    pq.write_table(pa.table(columns), tmp_path / "nodes.parquet")
    source = open_source((np.array([0, 0]), np.array([1, 5])))
    build_store(source, tmp_path / "g.zarr", memory=PLENTY, table=NodeTable(tmp_path / "nodes.parquet"))
    found = open_store(tmp_path / "g.zarr").node_attributes
    assert found.take("day", np.arange(3)) == ["", "", "2020-02-29"]
    assert found.take("at", np.arange(3)) == ["2020-02-29 13:05:00.000000", "", ""]


def test_labels_of_numbered_nodes_are_names_and_numbers_are_ids(tmp_path):
    labels = "home\nabout\n"
    by_name = build(tmp_path, "node,year\nabout,7\n", links="0 1\n", labels=labels)
    assert by_name.take("year", np.arange(2)) == [None, 7]
    pq.write_table(pa.table({"node": [1], "year": [8]}), tmp_path / "nodes.parquet")
    source = open_source(tmp_path / "links.txt", labels=tmp_path / "names.txt")
    table = NodeTable(tmp_path / "nodes.parquet")
    build_store(source, tmp_path / "g.zarr", memory=PLENTY, table=table, overwrite=True)
    assert open_store(tmp_path / "g.zarr").node_attributes.take("year", np.arange(2)) == [None, 8]


def test_a_name_of_several_nodes_has_no_attributes(tmp_path):
    with pytest.raises(InputError, match="'same' is the name of several nodes"):
        build(tmp_path, "node,year\nb,1\nsame,2\n", links="0 1\n1 2\n", labels="same\nsame\nb\n")
    assert not (tmp_path / "g.zarr").exists()
    assert build(tmp_path, "node,year\nb,1\n", links="0 1\n1 2\n", labels="same\nsame\nb\n") is not None


def test_names_that_share_a_word_are_told_apart(monkeypatch):
    real = row_lookup.Fingerprints.of

    def alike(self, names, words, checks):
        real(self, names, words, checks)
        words[:] = words % np.uint64(2)

    monkeypatch.setattr(row_lookup.Fingerprints, "of", alike)
    coded = [b"n%d" % k for k in range(40)]
    lengths = np.array([len(name) for name in coded], np.uint32)
    ends = np.cumsum(lengths, dtype=np.int64)
    text = np.frombuffer(b"".join(coded), np.uint8)
    index = row_lookup.NameRows([(text, lengths)], 39 + 1)
    names = row_lookup.Strings(text, (ends - lengths)[::-1].copy(), ends[::-1].copy())
    assert index.rows(names).tolist() == list(range(39, -1, -1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node,year\n5,1\n0,2\n7,3\n5,4\n0,5\n", "row 4 is of the node of row 1"),
        ("node,year\n5,1\n,2\n", "a row from 1 to 2 has no id"),
        ("node,year\n5,1\nx,2\n", "a row from 1 to 2 has no id of 64 bits"),
        ("node,year\n5,1,9\n", "cannot be read as a table of nodes"),
        ("node\n5\n", "no column but 'node'"),
        ("node,year,year\n5,1,2\n", "two columns of one name"),
        ("", "cannot be read as a table of nodes"),
    ],
)
def test_tables_that_cannot_be_leave_nothing(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        build(tmp_path, text)
    assert "nodes.csv" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links.txt", "nodes.csv"]


@pytest.mark.parametrize(
    ("text", "node", "message"),
    [
        ("page,year\n5,1\n", None, "no column of nodes"),
        ("page,year\n5,1\n", "node", "no column 'node'"),
        ("node,rank\n5,1\n", None, "a column 'rank'"),
        ("node,a/b\n5,1\n", None, "'a/b'"),
        ("node,..\n5,1\n", None, "called '..'"),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path, text, node, message):
    with pytest.raises(UsageError, match=message):
        build(tmp_path, text, node=node)


def test_a_row_without_node_is_named(tmp_path):
    pq.write_table(pa.table({"node": [5, None], "year": [1, 2]}), tmp_path / "nodes.parquet")
    source = open_source((np.array([0, 0]), np.array([1, 5])))
    with pytest.raises(InputError, match="row 2 has no node"):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY, table=NodeTable(tmp_path / "nodes.parquet"))
    for kind, value in (
        (pa.list_(pa.string()), ["a"]),
        (pa.binary(), b"a"),
        (pa.struct([("a", "int8")]), {}),
    ):
        held = pa.table({"node": [5], "tags": pa.array([value], kind)})
        pq.write_table(held, tmp_path / "nodes.parquet")
        with pytest.raises(InputError, match="the column 'tags' is of"):
            NodeTable(tmp_path / "nodes.parquet")
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    pq.write_table(pa.table({"node": [5], "text": bad}), tmp_path / "nodes.parquet")
    with pytest.raises(InputError, match="UTF8"):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY, table=NodeTable(tmp_path / "nodes.parquet"))
    pq.write_table(pa.table({"node": [5.0], "year": [1]}), tmp_path / "nodes.parquet")
    with pytest.raises(InputError, match="'node' of double holds no nodes"):
        NodeTable(tmp_path / "nodes.parquet")


@settings(max_examples=10)
@given(order=st.sampled_from(["keep", "degree"]))
def test_a_store_without_attributes_is_what_it_was(tmp_path_factory, contents, order):
    folder = tmp_path_factory.mktemp("same")
    for name in ("a", "b"):
        (folder / name).mkdir()
        build(folder / name, "node,year\n5,1\n", order=order)
    with_them = contents(folder / "a/g.zarr")
    build_store(open_source(folder / "a/links.txt"), folder / "c.zarr", memory=PLENTY, order=order)
    without = contents(folder / "c.zarr")
    assert contents(folder / "b/g.zarr") == with_them
    assert {path: with_them[path] for path in without if path != "zarr.json"} == {
        path: data for path, data in without.items() if path != "zarr.json"
    }
    assert b"columns" not in without["zarr.json"]


def test_an_import_that_was_stopped_by_its_table_goes_on_with_another(tmp_path, contents):
    with pytest.raises(InputError, match="row 2 is of the node of row 1"):
        build(tmp_path, "node,year\n5,1\n5,2\n", resume=True)
    assert (tmp_path / "g.zarr.unfinished").exists()
    build(tmp_path, "node,year\n5,1\n0,2\n", resume=True)
    assert not (tmp_path / "g.zarr.unfinished").exists()
    (tmp_path / "fresh").mkdir()
    build(tmp_path / "fresh", "node,year\n5,1\n0,2\n")
    assert contents(tmp_path / "g.zarr") == contents(tmp_path / "fresh" / "g.zarr")


def test_tables_that_do_not_fit_are_refused(tmp_path):
    rng = np.random.default_rng(1)
    texts = [rng.bytes(12_000).hex() for _ in range(4096)]
    pq.write_table(pa.table({"node": range(4096), "text": texts}), tmp_path / "nodes.parquet")
    del texts
    source = open_source((np.arange(4095), np.arange(1, 4096)))
    table = NodeTable(tmp_path / "nodes.parquet")
    gc.collect()  # what is given back only later would count as room that there is
    memory = resident_after_trim() + 170 * 2**20
    with pytest.raises(DoesNotFitError, match=r"Putting .*nodes\.parquet in order needs"):
        build_store(source, tmp_path / "g.zarr", memory=memory, table=table)
    assert not (tmp_path / "g.zarr").exists()
