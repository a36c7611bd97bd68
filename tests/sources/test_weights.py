import re
from decimal import Decimal

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import mmwrite
from scipy.sparse import coo_array, csr_array, save_npz

from oocpr.errors import InputError, UsageError
from oocpr.sources import open_source
from oocpr.sources.block import NameBlock, NodeBlock

NAMES = ("from", "to", "kg")


def read(source, max_edges=100):
    """All edges of a source: (from, to, weight)."""
    found = []
    for block in source.blocks(max_edges):
        if isinstance(block, NodeBlock):
            continue
        assert block.weight.dtype == np.float64
        ends = (
            [_ends(block.src), _ends(block.dst)] if isinstance(block, NameBlock) else [block.src, block.dst]
        )
        found += zip(*map(list, ends), block.weight.tolist(), strict=True)
    return found


def _ends(names):
    text = names.text.tobytes()
    return [text[start:end].decode() for start, end in zip(names.starts, names.ends, strict=True)]


def table(*edges, kind=None):
    src, dst, weight = zip(*edges, strict=True)
    return pa.table(dict(zip(NAMES, (src, dst, pa.array(weight, kind)), strict=True)))


decimals = st.one_of(
    st.floats(0, allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(0, allow_nan=False, allow_infinity=False).filter(lambda x: float(x) < np.inf).map(str),
    st.integers(0, 10**30).map(str),
    st.sampled_from(["+1", "+.5", "-0", "-0.0", ".5", "5.", "1e5", "1E+05", "1e-400", "0e999", "00012.50"]),
)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9), decimals), min_size=1, max_size=30),
    st.sampled_from([" ", "\t", "  \t "]),
    st.integers(3, 5),
    st.sampled_from(["", " ", " more", " # comment", "# comment", "\r"]),
    st.integers(1, 40),
)
def test_text_has_the_nearest_float64_of_each_number(tmp_path_factory, edges, gap, column, tail, max_edges):
    path = tmp_path_factory.getbasetemp() / "weights.txt"
    between = ["skip"] * (column - 3)
    lines = [gap.join([str(u), str(v), *between, w]) + tail for u, v, w in edges]
    path.write_text("# head\n\n" + "\n".join(lines))
    found = read(open_source(path, weight=column), max_edges)
    assert found == [(u, v, float(w)) for u, v, w in edges]
    assert not any(np.signbit(weight) for _, _, weight in found)


WRONG = {
    "-4": "negative",
    "-1e-320": "negative",
    "nan": "not finite",
    "-NaN": "not finite",
    "inf": "not finite",
    "-Infinity": "not finite",
    "1e999": "not finite",
    "-1e999": "not finite",
    "9" * 400: "not finite",
    "x": "no number",
    "0x10": "no number",
    "1_000": "no number",
    "1e": "no number",
    "++1": "no number",
    "1,5": "no number",
    "\N{SUPERSCRIPT TWO}": "no number",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_with_a_wrong_weight_is_named(tmp_path, wrong, place):
    weights = ["1", "2.5", "3e1"]
    weights[place] = wrong
    path = tmp_path / "weights.txt"
    path.write_text(
        "# one\n" + "".join(f"{k} 9 {weight}\n" for k, weight in enumerate(weights)) + "4 4 nan\n"
    )
    with pytest.raises(InputError) as caught:
        read(open_source(path, weight="3"))
    assert f"weights.txt, line {place + 2}: the weight '{wrong[:40]}' in column 3 is" in caught.value.cause
    assert caught.value.cause.endswith(f"{WRONG[wrong]}.")
    assert ("a decimal point" if "," in wrong else "a finite weight of 0 or more") in caught.value.remedy


def test_the_line_is_named_behind_many(tmp_path):
    path = tmp_path / "weights.txt"
    path.write_text("1 2 0.125\n" * 300_000 + "1 2 -1\n")
    with pytest.raises(InputError, match=r"line 300001: the weight '-1'"):
        read(open_source(path, weight=3), 1000)


@pytest.mark.parametrize("line", ["1 2", "1 2 ", "1 2 # 0.5"])
def test_a_line_without_a_weight_is_named(tmp_path, line):
    path = tmp_path / "weights.txt"
    path.write_text(f"0 1 1\n{line}\n")
    with pytest.raises(InputError, match=r"line 2: .* holds no weight in column 3"):
        read(open_source(path, weight=3))


@pytest.mark.parametrize("column", ["2", "0", "-3", "kg", "values", "3.5", ""])
def test_columns_of_text_that_have_no_weights(tmp_path, column):
    path = tmp_path / "weights.txt"
    path.write_text("0 1 1\n")
    with pytest.raises(UsageError, match="no column of weights"):
        open_source(path, weight=column)


def test_ids_of_64_bits_in_text_have_weights(tmp_path):
    path = tmp_path / "weights.txt"
    path.write_text("0 1 0.5\n-7 1 0.25\n1 99999999999 2\n")
    assert read(open_source(path, weight=3)) == [(0, 1, 0.5), (-7, 1, 0.25), (1, 99999999999, 2.0)]


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
        *(pa.decimal128(9, 3), pa.dictionary(pa.int8(), pa.float64())),
    ],
    ids=str,
)
def test_tables_have_weights_of_any_kind(tmp_path, kind):
    edges = [(5, 7, 3), (7, 5, 0), (5, 5, 12)]
    if pa.types.is_decimal(kind):
        edges = [(u, v, Decimal(w)) for u, v, w in edges]
    made = table(*edges, kind=kind)
    pq.write_table(made, tmp_path / "edges.parquet")
    expected = [(u, v, float(w)) for u, v, w in edges]
    for max_edges in (2, 100):
        assert read(open_source(made, weight="kg"), max_edges) == expected
        assert read(open_source(tmp_path / "edges.parquet", weight="kg"), max_edges) == expected


def test_integers_beyond_float64_are_rounded_to_the_nearest():
    made = table((0, 1, 2**53 + 1), (1, 0, 2**64 - 1), kind=pa.uint64())
    assert [weight for *_, weight in read(open_source(made, weight="kg"))] == [2.0**53, 2.0**64]


def test_the_column_of_weights_is_none_of_the_two_that_have_ends():
    made = pa.table({"a": [1], "kg": [0.5], "b": [2]})
    assert read(open_source(made, weight="kg")) == [(1, 2, 0.5)]
    with pytest.raises(UsageError, match="no column 'g'; its columns are 'a', 'kg', 'b'"):
        read(open_source(made, weight="g"))


def test_names_in_tables_have_weights():
    made = table(("a", "b", 0.5), ("b", "b", 1.5))
    assert read(open_source(made, weight="kg")) == [("a", "b", 0.5), ("b", "b", 1.5)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (-1.0, "row 3 has the weight -1.0, which is negative"),
        (float("nan"), "row 3 has the weight nan, which is not finite"),
        (float("inf"), "row 3 has the weight inf, which is not finite"),
        (None, "row 3 lacks a weight"),
    ],
)
def test_the_row_of_a_wrong_weight_is_named(tmp_path, wrong, message):
    made = table(*[(0, 1, 1.0)] * 3, (0, 1, wrong), kind=pa.float64())
    pq.write_table(made, tmp_path / "edges.parquet")
    for source in (open_source(made, weight="kg"), open_source(tmp_path / "edges.parquet", weight="kg")):
        with pytest.raises(InputError, match=message):
            read(source, 2)


def test_text_in_a_table_is_no_weight():
    with pytest.raises(InputError, match="column 'kg' of string holds no weights"):
        read(open_source(table((0, 1, "5")), weight="kg"))


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.float32, np.float64, np.bool_])
def test_values_of_matrices_are_weights_and_zeros_stay(tmp_path, layout, kind):
    matrix = coo_array((np.array([1, 0, 1], kind), ([0, 1, 2], [1, 2, 2])), shape=(3, 3)).asformat(layout)
    expected = {(0, 1, 1.0), (1, 2, 0.0), (2, 2, 1.0)}
    assert set(read(open_source(matrix, weight="values"))) == expected
    save_npz(tmp_path / "matrix.npz", matrix)
    for max_edges in (1, 2, 100):
        assert set(read(open_source(tmp_path / "matrix.npz", weight="values"), max_edges)) == expected


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, 1j])
def test_the_entry_of_a_wrong_value_is_named(tmp_path, wrong):
    matrix = csr_array((np.array([1, 1, wrong]), ([0, 1, 2], [1, 2, 2])), shape=(3, 3))
    message = "no weights" if wrong == 1j else "entry 2 has the weight"
    save_npz(tmp_path / "matrix.npz", matrix)
    for source in (matrix, tmp_path / "matrix.npz"):
        with pytest.raises(InputError, match=message):
            read(open_source(source, weight="values"))


@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("field", ["real", "integer"])
def test_matrix_market_has_weights(tmp_path, symmetry, field):
    matrix = coo_array((np.array([3, 2]), ([1, 1], [0, 1])), shape=(2, 2))
    path = tmp_path / "matrix.mtx"
    mmwrite(path, matrix if field == "integer" else matrix / 4, symmetry=symmetry)
    scale = 1 if field == "integer" else 4
    expected = {(1, 0, 3 / scale), (1, 1, 2 / scale)} | (
        {(0, 1, 3 / scale)} if symmetry == "symmetric" else set()
    )
    assert set(read(open_source(path, weight="values"))) == expected


HEAD = "%%MatrixMarket matrix coordinate"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (f"{HEAD} real general\n2 2 2\n1 2 1\n2 1 -3\n", InputError, "line 4: the weight '-3'"),
        (f"{HEAD} real general\n2 2 1\n1 2\n", InputError, "line 3: .* no weight in column 3"),
        (f"{HEAD} real skew-symmetric\n2 2 1\n2 1 3\n", InputError, "line 1: one half"),
        (f"{HEAD} pattern general\n2 2 1\n2 1\n", UsageError, "pattern without values"),
    ],
)
def test_wrong_values_of_matrix_market(tmp_path, text, error, message):
    (tmp_path / "matrix.mtx").write_text(text)
    with pytest.raises(error, match=message):
        read(open_source(tmp_path / "matrix.mtx", weight="values"))


def test_stored_zeros_of_matrix_market_stay(tmp_path):
    (tmp_path / "matrix.mtx").write_text(f"{HEAD} real general\n2 2 2\n1 2 0.0\n2 1 3\n")
    assert read(open_source(tmp_path / "matrix.mtx", weight="values")) == [(0, 1, 0.0), (1, 0, 3.0)]


@pytest.mark.parametrize("source", [csr_array([[0, 1], [1, 0]]), "matrix.mtx", "matrix.npz"])
def test_values_of_matrices_have_one_name(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    mmwrite("matrix.mtx", csr_array([[0, 1], [1, 0]]))
    save_npz("matrix.npz", csr_array([[0, 1], [1, 0]]))
    with pytest.raises(UsageError, match="has values and no column 'kg'"):
        open_source(source, weight="kg")


@pytest.mark.parametrize("graph", [nx.DiGraph, nx.Graph, nx.MultiDiGraph])
@pytest.mark.parametrize("named", [False, True])
def test_networkx_has_weights_and_one_where_it_has_none(graph, named):
    a, b = "ab" if named else (3, 4)
    made = graph()
    made.add_edge(a, b, kg=0.5)
    made.add_edge(b, b)
    expected = [(a, b, 0.5), (b, b, 1.0)] + ([] if made.is_directed() else [(b, a, 0.5)])
    assert sorted(read(open_source(made, weight="kg"))) == sorted(expected)


@pytest.mark.parametrize("wrong", [-1, np.nan, "0.5", None, 10**400])
def test_the_edge_of_a_wrong_attribute_is_named(wrong):
    graph = nx.DiGraph()
    graph.add_edge(3, 4, kg=1)
    graph.add_edge(4, 5, kg=wrong)
    with pytest.raises(InputError, match="the edge from 4 to 5 has the weight"):
        read(open_source(graph, weight="kg"))


def test_partitions_of_dask_have_weights():
    frame = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    made = pandas.DataFrame({"from": [1, 2, 3], "to": [2, 3, 1], "kg": [0.5, 1.5, 0.0]})
    source = open_source(frame.from_pandas(made, npartitions=2), weight="kg")
    assert read(source) == [(1, 2, 0.5), (2, 3, 1.5), (3, 1, 0.0)]


names = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r#%"), min_size=1).filter(
    lambda x: x.strip() == x
)


@given(
    st.lists(st.tuples(names, names, decimals), min_size=1, max_size=20),
    st.integers(3, 5),
    st.sampled_from(["", "\tmore", " ", "\r", " \tmore\tthan"]),
    st.integers(1, 20),
)
def test_pairs_of_names_have_weights(tmp_path_factory, edges, column, tail, max_edges):
    path = tmp_path_factory.getbasetemp() / "weighted-names.tsv"
    between = ["skip"] * (column - 3)
    lines = ["\t".join([u, v, *between, w]) + tail for u, v, w in edges]
    path.write_bytes(("# head\n\n" + "\n".join(lines)).encode())
    found = read(open_source(path, format="names", weight=column), max_edges)
    assert found == [(u, v, float(w)) for u, v, w in edges]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\tb", "line 3: 'a.tb' is not two names and a weight"),
        ("a\tb\t", "line 3: .* is not two names and a weight"),
        ("a\t\t1", "line 3: .* is not two names and a weight"),
        ("\tb\t1", "line 3: .* is not two names and a weight"),
        ("a\tb\t-1", "line 3: the weight '-1' in column 3 is negative"),
        ("a\tb\tx", "line 3: the weight 'x' in column 3 is no number"),
    ],
)
def test_wrong_lines_of_names_are_named(tmp_path, line, message):
    path = tmp_path / "g.tsv"
    path.write_text(f"a\tb\t1\n# none\n{line}\na\tb\t-3\n")
    source = open_source(path, weight=3)
    with pytest.raises(InputError) as caught:
        read(source)
    assert re.search(message, caught.value.cause.replace("\\", "."))


@pytest.mark.parametrize("name", ["g.npy", "g.gr0", "g.dat"])
def test_formats_without_weights_say_so(tmp_path, name):
    path = tmp_path / name
    text = {"g.gr0": "n 0 a\nn 1 b\ne 0 1\n", "g.dat": "2 1\n1 a\n2 b\n1 2\n"}
    if name == "g.npy":
        np.save(path, np.array([[0, 1, 2], [1, 2, 0]]))
    else:
        path.write_text(text[name])
    with pytest.raises(UsageError, match="have no weights"):
        open_source(path, weight="3")


def test_arrays_in_memory_say_so():
    with pytest.raises(UsageError, match="have no weights"):
        open_source((np.array([0]), np.array([1])), weight="w")
    with pytest.raises(UsageError, match="source that is open"):
        open_source(open_source((np.array([0]), np.array([1]))), weight="w")


def test_both_directions_have_the_weight(tmp_path):
    path = tmp_path / "weights.txt"
    path.write_text("0 1 0.5\n1 1 2\n")
    source = open_source(path, weight=3, undirected=True)
    assert source.weighted
    assert sorted(read(source)) == [(0, 1, 0.5), (1, 0, 0.5), (1, 1, 2.0)]


@pytest.mark.parametrize("way", ["text", "names", "parquet", "mtx", "npz"])
def test_the_column_of_weights_is_a_part_of_the_identity(tmp_path, way):
    rng = np.random.default_rng(1)
    matrix = coo_array(
        (rng.random(200), (rng.integers(0, 50, 200), rng.integers(0, 50, 200))), shape=(50, 50)
    )
    path = tmp_path / f"g.{way}"
    weight = "values"
    if way == "text":
        lines = zip(matrix.row.tolist(), matrix.col.tolist(), matrix.data.tolist(), strict=True)
        path.write_text("".join(f"{u} {v} {w!r}\n" for u, v, w in lines))
        weight = "3"
    elif way == "names":
        lines = zip(matrix.row.tolist(), matrix.col.tolist(), matrix.data.tolist(), strict=True)
        path.write_text("".join(f"n{u}\tn{v}\t{w!r}\n" for u, v, w in lines))
        weight = "3"
    elif way == "parquet":
        pq.write_table(pa.table(dict(zip(NAMES, (matrix.row, matrix.col, matrix.data), strict=True))), path)
        weight = "kg"
    elif way == "mtx":
        mmwrite(path, matrix)
    else:
        save_npz(path, matrix)

    def source():
        return open_source(path, weight=weight, format=way if way in ("text", "names") else None)

    whole = read(source(), 30)
    assert len(whole) == 200
    assert source().identity() == source().identity() != open_source(path).identity()
