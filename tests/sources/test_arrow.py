"""Tables in memory and in Parquet files, arrays in .npy files, and graphs of NetworkX."""

from __future__ import annotations

import io

import dask
import duckdb
import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import InputError, UsageError
from oocpr.sources import open_source
from oocpr.sources.formats.parquet_metadata import pages

from .reading import read

ids = st.one_of(st.integers(0, 9), st.integers(-(2**63), 2**63 - 1))
names = st.text("aé/ %", max_size=6)
NUMBERS = [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
TEXTS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]


def table(pairs, kind=None, columns=("from", "to")):
    ends = list(zip(*pairs, strict=True)) or [(), ()]
    return pa.table({name: pa.array(end, kind) for name, end in zip(columns, ends, strict=True)})


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=30), st.integers(1, 7), st.integers(1, 7))
def test_tables_of_ids(tmp_path_factory, pairs, group, max_edges):
    path = tmp_path_factory.getbasetemp() / "ids.parquet"
    pq.write_table(table(pairs), path, row_group_size=group)
    assert read(open_source(path), max_edges).edges == pairs
    assert read(open_source(table(pairs)), max_edges).edges == pairs


@given(st.lists(st.tuples(names, names), min_size=1, max_size=30), st.sampled_from(TEXTS), st.integers(1, 7))
def test_tables_of_names(tmp_path_factory, pairs, kind, max_edges):
    path = tmp_path_factory.getbasetemp() / "names.parquet"
    held = pa.concat_tables([table(pairs[:3], kind), table(pairs[3:], kind).slice(0)])
    pq.write_table(held, path)
    assert read(open_source(path), max_edges).edges == pairs
    assert read(open_source(held), max_edges).edges == pairs


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_integers_of_any_width(kind):
    pairs = [(1, 2), (100, 0)]
    assert read(open_source(table(pairs, kind))).edges == pairs


def test_a_slice_of_a_table_keeps_its_place():
    pairs = [("a", "bb"), ("ccc", "d"), ("", "e")]
    assert read(open_source(table(pairs).slice(1))).edges == pairs[1:]


@pytest.mark.parametrize(
    ("columns", "named", "found"),
    [
        (["src", "dst"], (None, None), (0, 1)),
        (["weight", "Target", "Source"], (None, None), (2, 1)),
        (["citing", "cited"], (None, None), (0, 1)),
        (["citing", "cited"], ("cited", "citing"), (1, 0)),
        (["a", "b", "to"], ("a", None), (0, 2)),
    ],
)
def test_columns_are_found(tmp_path, columns, named, found):
    held = pa.table({name: [3 * k, 3 * k + 1] for k, name in enumerate(columns)})
    pq.write_table(held, tmp_path / "g.parquet")
    one, two = (held.column(k).to_pylist() for k in found)
    options = dict(zip(("source_column", "target_column"), named, strict=True))
    for spec in (held, tmp_path / "g.parquet"):
        assert read(open_source(spec, **options)).edges == list(zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (["a", "b", "c"], (None, None)),
        (["from"], (None, None)),
        (["src", "source", "to"], (None, None)),
        (["a", "b"], ("a", "c")),
        (["a", "b"], ("a", "a")),
        ([], (None, None)),
    ],
)
def test_columns_that_are_not_obvious_are_asked_for(columns, named):
    held = pa.table({name: [1] for name in columns})
    with pytest.raises(UsageError, match=r"column|both ends"):
        read(open_source(held, source_column=named[0], target_column=named[1]))


@pytest.mark.parametrize(
    ("names", "weight", "twice"),
    [
        (["source", "target", "w", "w"], "w", "w"),
        (["source", "target", "source", "w"], None, "source"),
        (["source", "w", "target", "target"], "w", "target"),
    ],
)
def test_two_columns_of_one_name_are_refused(tmp_path, names, weight, twice):
    held = pa.table([[1], [2], [3], [4]], names=names)
    pq.write_table(held, tmp_path / "twice.parquet")
    for spec in (held, tmp_path / "twice.parquet"):
        with pytest.raises(InputError, match=rf"has two columns '{twice}'"):
            read(open_source(spec, weight=weight))


def test_columns_of_what_has_none_are_refused(tmp_path, data):
    for spec in (data / "tiny" / "site.txt", (np.array([0]), np.array([1])), nx.DiGraph([(0, 1)])):
        with pytest.raises(UsageError, match="no names of columns"):
            open_source(spec, source_column="from")


@pytest.mark.parametrize(
    ("held", "match"),
    [
        (pa.table({"from": [1, None], "to": [1, 2]}), "row 1 lacks an end"),
        (pa.table({"from": [1.0], "to": [2.0]}), "double holds no nodes"),
        (pa.table({"from": [1], "to": ["a"]}), "numbers and nodes with names"),
        (pa.table({"from": pa.array([2**63], pa.uint64()), "to": pa.array([0], pa.uint64())}), "cannot be"),
        (pa.table({"from": pa.array([], pa.int64()), "to": pa.array([], pa.int64())}), "holds no edges"),
    ],
)
def test_bad_tables_are_refused(tmp_path, held, match):
    with pytest.raises(InputError, match=match):
        read(open_source(held))
    pq.write_table(held, tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=match):
        read(open_source(tmp_path / "bad.parquet"))


@pytest.mark.parametrize("keep", [0, 3, 4, 50, -9, -4, -1])
def test_a_cut_parquet_file_is_named(tmp_path, keep):
    pq.write_table(table([(k, k + 1) for k in range(100)]), tmp_path / "cut.parquet")
    whole = (tmp_path / "cut.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:keep])
    with pytest.raises(InputError, match=r"cut\.parquet"):
        read(open_source(tmp_path / "cut.parquet"))


def test_parquet_metadata_with_a_bit_that_is_another_are_refused_or_read(tmp_path):
    path = tmp_path / "edges.parquet"
    pq.write_table(table([(1, 2), (3, 4)]), path)
    whole = path.read_bytes()
    for place in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            edges = read(open_source(path), 5).edges
        except InputError:
            continue
        assert edges == [(1, 2), (3, 4)]


def test_a_folder_of_parquet_files_is_read_in_the_order_of_their_paths(tmp_path):
    (tmp_path / "year=2").mkdir()
    for k, name in enumerate(["a.parquet", "b.parquet", "year=2/a.pq"]):
        pq.write_table(table([(k, k + 1)]), tmp_path / name)
    (tmp_path / "_metadata.parquet").write_bytes(b"no table")
    (tmp_path / "readme.txt").write_text("no table")
    source = open_source(tmp_path)
    assert read(source).edges == [(0, 1), (1, 2), (2, 3)]
    assert source.position == source.size == sum(p.stat().st_size for p in tmp_path.rglob("?.p*"))
    parts = open_source([tmp_path / "b.parquet", tmp_path / "a.parquet"])
    assert read(parts).edges == [(1, 2), (0, 1)]
    assert parts.name == "b and 1 more"


def test_labels_number_the_rows_of_a_table_or_list_its_names(tmp_path):
    (tmp_path / "labels.txt").write_text("c\nb\na\n")
    source = open_source(table([(0, 2)]), labels=tmp_path / "labels.txt")
    assert read(source).edges == [(0, 2)]
    assert (source.nodes, list(source.labels)) == (3, ["c", "b", "a"])
    source = open_source(table([("a", "b")]), labels=tmp_path / "labels.txt")
    graph = read(source)
    assert list(graph.nodes) == ["c", "b", "a"]
    assert source.closed == str(tmp_path / "labels.txt")


def test_data_frames_are_tables():
    pandas = pytest.importorskip("pandas")
    pairs = [(1, 2), (2**40, -1)]
    assert read(open_source(pandas.DataFrame(pairs, columns=["u", "v"]))).edges == pairs
    pairs = [("a", "b"), ("b", "é")]
    assert read(open_source(pandas.DataFrame(pairs, columns=["u", "v"]))).edges == pairs


def test_what_arrow_can_be_made_of_is_a_table():
    class OnDevice:
        def to_arrow(self):
            return table([(1, 2)])

    assert read(open_source(OnDevice())).edges == [(1, 2)]


def test_dask_data_frames_are_computed_by_partition():
    pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    pairs = [(k, k * k) for k in range(10)]
    frame = frames.from_pandas(pd.DataFrame(pairs, columns=["from", "to"]), npartitions=3)
    assert read(open_source(frame), 2).edges == pairs
    with pytest.raises(UsageError, match="no column 'x'"):
        read(open_source(frame, source_column="x"))


def test_dask_arrays_are_asked_for_slices():
    arrays = pytest.importorskip("dask.array")
    ends = np.arange(20).reshape(10, 2)
    pairs = [tuple(pair) for pair in ends.tolist()]
    lazy = arrays.from_array(ends, chunks=(3, 2))
    assert read(open_source(lazy), 4).edges == pairs
    assert read(open_source((lazy[:, 0], lazy[:, 1])), 4).edges == pairs


@given(
    st.lists(st.tuples(ids, ids), min_size=3, max_size=20),
    st.sampled_from(["pair", "rows", "columns"]),
    st.sampled_from("CF"),
    st.sampled_from("<>"),
    st.integers(1, 8),
)
def test_npy_files(tmp_path_factory, pairs, shape, layout, order, max_edges):
    folder = tmp_path_factory.getbasetemp()
    ends = np.array(pairs, order + "i8")
    paths = [folder / "ends.npy"]
    if shape == "pair":
        paths = [folder / "from.npy", folder / "to.npy"]
        for path, end in zip(paths, ends.T, strict=True):
            np.save(path, end)
    else:
        np.save(paths[0], np.asarray(ends.T if shape == "rows" else ends, order=layout))
    source = open_source(paths)
    assert read(source, max_edges).edges == pairs
    assert source.position == source.size
    if shape != "pair":
        assert read(open_source(np.load(paths[0])), max_edges).edges == pairs
        assert read(open_source(paths * 2), max_edges).edges == pairs * 2


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ([np.zeros(3, int)], "one array of one dimension"),
        ([np.zeros(3, int), np.zeros(4, int)], "have the shapes"),
        ([np.zeros(3, int), np.zeros((2, 4), int)], r"shape \(2, 4\)"),
        ([np.zeros((3, 3), int)], r"shape \(3, 3\)"),
        ([np.zeros((2, 2), int)], "two ways"),
        ([np.zeros((2, 4))], "no integers"),
        ([np.array([[1, "a", 3]] * 2, object)], "no integers"),
    ],
)
def test_bad_npy_files_are_refused(tmp_path, arrays, match):
    paths = [tmp_path / f"{k}.npy" for k in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    with pytest.raises(InputError, match=match):
        read(open_source(paths))


@pytest.mark.parametrize("keep", [0, 5, 40, 127, 130, -1])
def test_a_cut_npy_file_is_named(tmp_path, keep):
    np.save(tmp_path / "cut.npy", np.zeros((9, 2), int))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:keep])
    with pytest.raises(InputError, match=r"cut\.npy"):
        read(open_source(tmp_path / "cut.npy"))


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_graphs_of_networkx(pairs, directed, named):
    kind = nx.DiGraph if directed else nx.Graph
    graph = kind([(str(u), str(v)) for u, v in pairs] if named else pairs)
    graph.add_node("alone" if named else 77)
    found = read(open_source(graph), 4)
    expected = set(graph.to_directed().edges())
    assert set(found.edges) == expected
    assert len(found.edges) == len(expected)
    assert list(found.nodes) == list(graph.nodes)


def test_graphs_of_networkx_that_cannot_be_are_refused(tmp_path):
    for nodes in ([0, "a"], [0.5], [True, 1], [(1, 2)], [2**63]):
        graph = nx.DiGraph()
        graph.add_nodes_from(nodes)
        with pytest.raises(InputError, match="The graph has"):
            read(open_source(graph))
    with pytest.raises(InputError, match="their own names"):
        open_source(nx.DiGraph([(0, 1)]), labels=tmp_path / "labels.txt")


def test_weights_of_networkx_are_not_read_and_that_is_said():
    source = open_source(nx.DiGraph([(0, 1, {"weight": 2.0})]))
    read(source)
    assert source.unused_columns == ["weight"]


@pytest.mark.parametrize(
    "header",
    [
        "1c00 00",  # a struct as the kind
        "1500 1502 1502 00",  # of data, without what is said of data
        "1500 1502 1502 2c 1c00 00 00",  # a struct as the number of values
        "1500 1502 1502 25 02 00",  # a number as what is said of data
        "1500 1502 1502 2c 15 14 00 00",  # more values than the column
        "1500 1502 1501 2c 15 02 00 00",  # fewer bytes than none
    ],
)
def test_headers_of_pages_that_contradict_themselves_are_refused(header):
    with pytest.raises(ValueError, match="page"):
        list(pages(io.BytesIO(bytes.fromhex(header)), 0, 3))


FRAME = pd.DataFrame({"note": ["x", "y"], "callee": ["b", "c"], "calls": [2, 3], "caller": ["a", "b"]})
CALLS = [("a", "b"), ("b", "c")]
TABLES = {
    "pandas": lambda: FRAME,
    "pandas, objects": lambda: FRAME.astype(object),
    "pandas, categories": lambda: FRAME.astype({"caller": "category", "callee": "category"}),
    "pandas, index": lambda: FRAME.set_index(["caller", "callee"]),
    "pyarrow": lambda: pa.table(FRAME),
    "pyarrow, batch": lambda: pa.RecordBatch.from_pandas(FRAME),
    "pyarrow, stream": lambda: pa.table(FRAME).to_reader(),
    "polars": lambda: pl.from_pandas(FRAME),
    "polars, categories": lambda: pl.from_pandas(FRAME).cast({"caller": pl.Categorical}),
    "polars, enumeration": lambda: pl.from_pandas(FRAME).cast({"callee": pl.Enum(["c", "b"])}),
    "polars, lazy": lambda: pl.from_pandas(FRAME).lazy(),
    "duckdb": lambda: duckdb.sql("select * from FRAME"),
    "a pair of pandas": lambda: (FRAME["caller"], FRAME["callee"]),
    "a pair of polars": lambda: (pl.Series(["a", "b"]), pl.Series(["b", "c"])),
    "a pair of NumPy": lambda: (np.array(["a", "b"]), np.array(["b", "c"])),
    "a pair of lists": lambda: (["a", "b"], ["b", "c"]),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_other_libraries(kind):
    assert read(open_source(TABLES[kind]())).edges == CALLS
    if "pair" not in kind:
        source = open_source(TABLES[kind](), weight="calls")
        assert [block.weight.tolist() for block in source.blocks(9)] == [[2.0, 3.0]]


def test_numbers_of_other_libraries():
    edges = [(1, 2), (2, 3), (3, 1)]
    ends = tuple(zip(*edges, strict=True))
    for pair in ([pl.Series(end) for end in ends], [pd.Series(end, dtype="Int64") for end in ends], ends):
        assert read(open_source(tuple(pair))).edges == edges
    assert read(open_source(edges)).edges == edges
    assert read(open_source([list(edge) for edge in edges])).edges == edges
    assert read(open_source([(str(u), str(v)) for u, v in edges])).edges == [
        (str(u), str(v)) for u, v in edges
    ]
    assert read(open_source(duckdb.sql("select 1 as source, 2 as target"))).edges == [(1, 2)]


@pytest.mark.parametrize("nodes", [pd.Series([2**64, 1], dtype=object), pd.Series([1j, 2]), [1, "a"]])
def test_data_frames_that_arrow_cannot_take_are_refused(nodes):
    frames = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"from": nodes, "to": nodes})
    with pytest.raises(InputError, match="cannot be taken as one of Arrow"):
        read(open_source(frame))
    with pytest.raises(InputError):
        read(open_source((frame["from"], frame["to"])))
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = frames.from_pandas(frame, npartitions=2)
    with pytest.raises(InputError):
        read(open_source(lazy))


def test_what_is_no_pair_of_ends_is_refused():
    with pytest.raises(InputError, match="two edges, or the sources and targets"):
        open_source([(0, 1), (2, 3)])
    for pair in ((["a"], ["b", "c"]), (["a", 1], ["b", "c"]), (["a", None], ["b", "c"])):
        with pytest.raises(InputError):
            read(open_source(pair))
    with pytest.raises(InputError, match="shape") as caught:
        open_source(np.eye(3))
    assert "csr_array" in caught.value.remedy
