"""Every file format: what it reads, what it refuses, and how it is recognised."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import InputError, UsageError
from oocpr.sources import FORMATS, open_source
from oocpr.sources.block import MAX_NODES
from oocpr.sources.registry import guess_format

from .reading import read


def edges_of(source, max_edges: int = 3) -> list[tuple[int, int]]:
    return read(source, max_edges).edges


def written(tmp_path, name: str, text: str):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def refused(path, match: str, **options) -> InputError:
    with pytest.raises(InputError, match=match) as caught:
        edges_of(open_source(path, **options))
    assert path.name in caught.value.cause
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


# Text


def test_text_keeps_ids_with_gaps(tmp_path):
    source = open_source(written(tmp_path, "web.txt", "# head\r\n30\t1412\r\n\r\n3   30\r\n% tail\r\n8297 3"))
    assert edges_of(source) == [(30, 1412), (3, 30), (8297, 3)]
    assert source.nodes is None
    assert source.labels is None
    assert source.name == "web"
    assert source.position == source.size


@given(
    st.lists(
        st.tuples(*[st.one_of(st.integers(0, 9), st.integers(-(2**63), 2**63 - 1))] * 2),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_text_reads_any_id_of_64_bits(tmp_path_factory, pairs, max_edges):
    path = tmp_path_factory.mktemp("text") / "web.txt"
    path.write_text("".join(f"{u} {v}\n" for u, v in pairs))
    source = open_source(path)
    kinds = [block.src.dtype for block in source.blocks(max_edges)]
    assert edges_of(open_source(path), max_edges) == pairs
    # Blocks are narrow up to the first id that is not, and wide from there on.
    assert kinds == sorted(kinds, key=lambda kind: kind.itemsize)
    assert (np.int64 in kinds) == any(not 0 <= node < MAX_NODES for pair in pairs for node in pair)


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n% comments\n"])
@pytest.mark.parametrize("format", [None, "text"])
def test_text_without_edges_and_nodes_is_refused(tmp_path, text, format):  # noqa: A002
    refused(written(tmp_path, "web.txt", text), "holds no edges", format=format)


@pytest.mark.parametrize("line", ["7", "x y", "x\ty", "1 two", "- 2", "1 -", f"{2**63} 1", "1 2 0.5"])
@pytest.mark.parametrize("at", [1, 2, 100])
def test_a_bad_line_of_text_is_named(tmp_path, line, at):
    lines = ["0 1"] * 120
    lines[at - 1] = line
    refused(
        written(tmp_path, "web.txt", "\n".join(lines)),
        f"line {at}: ",
        **({"header": False} if at == 1 else {}),
    )


# Labels


@pytest.mark.parametrize("name", ["web.labels.txt", "web.labels.tsv"])
def test_labels_beside_are_found_and_count_every_node(tmp_path, name):
    written(tmp_path, name, "home\tstart page\r\nabout\t\r\n#3\r\n")
    source = open_source(written(tmp_path, "web.txt", "0 1\n"))
    assert edges_of(source) == [(0, 1)]
    assert source.nodes == 3
    assert list(source.labels) == ["home", "about", "#3"]
    assert any(name in notice for notice in source.notices)


def test_a_graph_of_labels_alone_has_nodes_without_edges(tmp_path):
    written(tmp_path, "web.labels.txt", "a\nb\n")
    source = open_source(written(tmp_path, "web.txt", "# nothing\n"))
    assert edges_of(source) == []
    assert source.nodes == 2


def test_an_id_beyond_the_labels_is_refused(tmp_path):
    labels = written(tmp_path, "names.txt", "a\nb\n")
    error = refused(written(tmp_path, "web.txt", "0 1\n1 2\n"), "line 2: .* above 1", labels=labels)
    assert "2 nodes" in error.remedy


def test_bad_labels_are_refused(tmp_path):
    graph = written(tmp_path, "web.txt", "0 1\n")
    for text, match in [
        ("a\n\nb\n", "line 2: no label"),
        ("", "holds no labels"),
        ("a\n\tb\n", "line 2: no label"),
        ("# id, name\n1\tb\n0\ta\n", "numbers of nodes before the labels"),
    ]:
        labels = written(tmp_path, "names.txt", text)
        with pytest.raises(InputError, match=match):
            edges_of(open_source(graph, labels=labels))
    labels.write_bytes(b"a\nb\xff\n")
    with pytest.raises(InputError, match=r"line 2: .*UTF-8"):
        edges_of(open_source(graph, labels=labels))


def test_labels_that_can_be_read_only_once_name_the_nodes_of_names_alone(tmp_path):
    for text, expected in (("0 1\n", None), ("b\ta\n", [("b", "a")])):
        reading, writing = os.pipe()
        os.write(writing, b"a\nb\n")
        os.close(writing)
        source = open_source(written(tmp_path, "web.tsv", text), labels=f"/dev/fd/{reading}")
        if expected is None:
            with pytest.raises(InputError, match=f"/dev/fd/{reading} can be read only once") as caught:
                read(source)
            assert caught.value.remedy == "Write the labels to a file and name that."
        else:
            assert read(source).edges == expected
        os.close(reading)


def test_labels_must_be_as_many_as_rows(tmp_path):
    written(tmp_path, "web.labels.txt", "a\nb\n")
    matrix = written(tmp_path, "web.mtx", "%%MatrixMarket matrix coordinate pattern general\n3 3 1\n1 2\n")
    refused(matrix, "labels 2 nodes, .* has 3")


# Matrix Market


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.sampled_from([0, 1, -2, 0.5])), max_size=20),
    st.sampled_from(["general", "symmetric", "skew-symmetric"]),
    st.sampled_from(["pattern", "real", "integer"]),
    st.integers(1, 9),
)
def test_matrix_market_as_scipy_reads_it(tmp_path_factory, n, entries, symmetry, field, max_edges):
    kept = {(i % n, j % n): value for i, j, value in entries}
    if symmetry != "general":
        kept = {(max(ij), min(ij)): v for ij, v in kept.items() if symmetry == "symmetric" or ij[0] != ij[1]}
    if symmetry == "skew-symmetric" and field == "pattern":
        field = "real"
    shown = {"pattern": lambda _: "", "real": lambda v: f" {v:e}", "integer": lambda v: f" {int(v)}"}[field]
    text = f"%%MatrixMarket matrix coordinate {field} {symmetry}\n% note\n{n} {n} {len(kept)}\n"
    text += "".join(f"{i + 1} {j + 1}{shown(value)}\n" for (i, j), value in kept.items())
    path = written(tmp_path_factory.mktemp("mtx"), "web.mtx", text)
    source = open_source(path)
    found = edges_of(source, max_edges)
    with warnings.catch_warnings():
        # Newer releases of SciPy announce that they will return another kind of matrix.
        warnings.simplefilter("ignore", DeprecationWarning)
        matrix = scipy.io.mmread(path).tocsr()
    matrix.eliminate_zeros()
    rows, columns = matrix.nonzero()
    assert sorted(found) == sorted(zip(rows.tolist(), columns.tolist(), strict=True))
    assert source.nodes == n
    assert any("unweighted" in notice for notice in source.notices) == (field != "pattern")
    assert any(notice.endswith(f"node 0 is row 1 of {path}.") for notice in source.notices)
    labels = written(path.parent, "names.txt", "".join(f"page {row}\n" for row in range(n)))
    named = open_source(path, labels=labels)
    assert edges_of(named, max_edges) == found
    assert not any("row 1" in notice for notice in named.notices)


HEAD = "%%MatrixMarket matrix coordinate pattern general\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (HEAD + "3 3 3\n1 2\n2 3\n", "states 3 entries and holds 2"),
        (HEAD + "3 3 1\n1 2\n2 3\n", "states 1 entries and holds 2"),
        (HEAD + "3 4 1\n1 2\n", "line 2: 3 rows and 4 columns"),
        (HEAD + "% note\n\n3 3 2\n1 2\n0 1\n", "line 6: .* below 1"),
        (HEAD + "3 3 2\n1 2\n1 4\n", "line 4: .* above 3"),
        (HEAD + "3 3 1\n1 2 5\n", "line 3: .* more columns"),
        (HEAD + "3 3\n", "line 2: the numbers of rows"),
        (HEAD, "line 2: the numbers of rows"),
        (HEAD + "0 0 0\n", "holds no edges"),
        (HEAD + "4294967296 4294967296 1\n1 1\n", "line 2: 4,294,967,296 nodes are too many"),
        ("", "line 1: no Matrix Market header"),
        ("3 3 1\n1 2\n", "line 1: no Matrix Market header"),
        (HEAD.replace("coordinate", "array"), "line 1: the layout is 'array'"),
        (HEAD.replace("pattern", "complex"), "line 1: the values are 'complex'"),
        (HEAD.replace("general", "hermitian"), "line 1: the symmetry is 'hermitian'"),
        (HEAD.replace("pattern", "real") + "3 3 1\n1 2\n", "line 3: .* third column"),
    ],
)
def test_bad_matrix_market_is_refused(tmp_path, text, match):
    refused(written(tmp_path, "web.mtx", text), match)


# npz


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.sampled_from([0, 1, 2])), max_size=25),
    st.sampled_from(["csr", "csc", "coo"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_npz_as_scipy_loads_it(tmp_path_factory, n, entries, layout, compressed, max_edges):
    kept = {(i % n, j % n): value for i, j, value in entries}
    rows, columns = np.array(list(kept), np.int64).reshape(-1, 2).T
    matrix = sp.coo_array((np.array(list(kept.values()), np.int8), (rows, columns)), shape=(n, n)).asformat(
        layout
    )
    path = tmp_path_factory.mktemp("npz") / "web.npz"
    sp.save_npz(path, matrix, compressed=compressed)
    source = open_source(path)
    found = edges_of(source, max_edges)
    rows, columns = sp.load_npz(path).nonzero()
    assert sorted(found) == sorted(zip(rows.tolist(), columns.tolist(), strict=True))
    assert source.nodes == n
    assert any("stored as zero" in notice for notice in source.notices) == (0 in kept.values())
    assert any("unweighted" in notice for notice in source.notices) == (2 in kept.values())
    assert source.position == source.size


def test_bad_npz_is_refused(tmp_path):
    path = tmp_path / "web.npz"
    sp.save_npz(path, sp.csr_array(np.ones((2, 3))))
    refused(path, "shape")
    sp.save_npz(path, sp.dia_array(np.eye(3)))
    refused(path, "layout 'dia'")
    np.savez(path, a=np.arange(3))
    refused(path, "no whole matrix")
    np.savez(path, format=np.array(["csr"], dtype=object), shape=np.array([3, 3]))
    refused(path, "Python objects")
    starts = {"format": np.array(b"csr"), "shape": (2, 2), "data": np.ones(2), "indices": np.array([0, 1])}
    np.savez(path, indptr=np.array([0, 2, 1]), **starts)
    refused(path, "row starts")
    np.savez(path, indptr=np.array([0, 1, 2]), **{**starts, "indices": np.array([0, 5])})
    refused(path, "entry 1 is in row or column 5")
    sp.save_npz(path, sp.random_array((300, 300), density=0.3, rng=np.random.default_rng(1), format="csr"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "no whole matrix")
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :])
    refused(path, "no whole matrix")
    path.write_bytes(b"1 2\n")
    refused(path, "no whole matrix")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"row": np.zeros(2, int)}, r"rows of the shape \(2,\)"),
        ({"col": np.zeros(2, int)}, r"rows of the shape \(3,\)"),
        ({"data": np.ones(2)}, r"values of the shape \(2,\)"),
        ({"row": np.zeros((3, 2), int)}, r"rows of the shape \(3, 2\)"),
        ({"row": np.array([0.5, 1.5, 0.5])}, "rows of the type float64"),
    ],
)
def test_npz_whose_arrays_do_not_fit_each_other_is_refused(tmp_path, change, match):
    whole = {"row": np.array([0, 1, 2]), "col": np.array([1, 2, 0]), "data": np.ones(3)}
    np.savez(tmp_path / "web.npz", format=np.array("coo"), shape=(3, 3), **(whole | change))
    refused(tmp_path / "web.npz", match)


def test_numbers_of_thousands_of_digits_are_refused(tmp_path):
    head = "%%MatrixMarket matrix coordinate pattern general\n"
    refused(written(tmp_path, "web.mtx", f"{head}{'9' * 5000} 3 1\n1 1\n"), "numbers of rows")
    refused(written(tmp_path, "web.dat", f"{'9' * 5000} 3\n1 a\n"), "numbers of nodes", format="hollins")


# Formats with labels of their own


def test_gr0(tmp_path):
    path = written(tmp_path, "gr0.web", "n 0 http://a/ \nn 1 http://b/x y\n\nn 2 http://c/\ne 2 0\ne 0 1\n")
    source = open_source(path)
    assert edges_of(source) == [(2, 0), (0, 1)]
    assert source.labels == ["http://a/", "http://b/x y", "http://c/"]
    assert source.nodes == 3


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("n 0 a\nn 2 b\n", "line 2: .* not the line of node 1"),
        ("n 0 a\nn 1\n", "line 2: .* not the line of node 1"),
        ("n 0 a\ne 0 1\n", "line 2: .* above 0"),
        ("n 0 a\ne 0\n", "line 2: .* one column"),
        ("n 0 a\ne 0 0\nn 1 b\n", "line 3: .* letter 'e'"),
        ("", "holds no edges"),
    ],
)
def test_bad_gr0_is_refused(tmp_path, text, match):
    refused(written(tmp_path, "web.gr0", text), match, format="gr0")


def test_hollins(tmp_path):
    source = open_source(
        written(tmp_path, "web.dat", "3 2\n1 http://a/ \n2 http://b/\n3 http://c/\n3 1\n1 2\n")
    )
    assert edges_of(source) == [(2, 0), (0, 1)]
    assert source.labels == ["http://a/", "http://b/", "http://c/"]
    assert source.nodes == 3


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "line 1: the numbers of nodes and edges"),
        ("2 1\n1 a\n", "line 3: not the line of node 2 of 2"),
        ("2 1\n2 b\n1 a\n", "line 2: not the line of node 1 of 2"),
        ("2 2\n1 a\n2 b\n1 2\n", "states 2 edges and holds 1"),
        ("2 1\n1 a\n2 b\n1 2\n2 1\n", "states 1 edges and holds 2"),
        ("2 1\n1 a\n2 b\n1 3\n", "line 4: .* above 2"),
        ("4294967296 1\n", "line 1: 4,294,967,296 nodes are too many"),
    ],
)
def test_bad_hollins_is_refused(tmp_path, text, match):
    refused(written(tmp_path, "web.dat", text), match, format="hollins")


@pytest.mark.parametrize("max_edges", [1, 2, 100])
def test_names_are_read_line_by_line(tmp_path, max_edges):
    path = written(tmp_path, "links.tsv", "# head\tx\r\n\r\nZoo\tA b\r\r\nA b\t Zoo\n#É \tC")
    source = open_source(path)
    graph = read(source, max_edges)
    assert graph.edges == [("Zoo", "A b"), ("A b", "Zoo"), ("#É", "C")]
    assert source.nodes is source.labels is source.closed is None
    assert [source.locate(edge) for edge in range(3)] == [f"{path}, line {line}" for line in (3, 4, 5)]


@given(
    st.lists(st.tuples(*[st.text("aé%4 \r#", min_size=1, max_size=9)] * 2), min_size=1, max_size=9),
    st.integers(1, 4),
)
def test_names_are_what_python_splits(tmp_path_factory, pairs, max_edges):
    lines = ["\t".join(pair) for pair in pairs]
    expected = [
        tuple(name.strip(" \r") for name in line.split("\t"))
        for line in lines
        if line.strip(" \t\r") and not line.startswith("# ") and line.strip("\r ") != "#"
    ]
    path = tmp_path_factory.mktemp("names") / "links.tsv"
    path.write_text("".join(line + "\n" for line in lines), newline="")
    source = open_source(path, format="names", header=False)
    if all(len(pair) == 2 and all(pair) for pair in expected) and expected:
        blocks = list(source.blocks(max_edges))
        found = [pair for block in blocks for pair in zip(block.src, block.dst, strict=True)]
        assert found == expected
    else:
        with pytest.raises(InputError):
            list(source.blocks(max_edges))


def test_names_in_the_order_of_their_file(tmp_path):
    labels = written(tmp_path, "articles.tsv", "# all\n\nÉire\nZulu\nAlone\n")
    source = open_source(written(tmp_path, "links.tsv", "Zulu\tÉire\n"), labels=labels)
    graph = read(source)
    assert graph.edges == [("Zulu", "Éire")]
    assert list(graph.nodes) == ["Éire", "Zulu", "Alone"]
    assert source.closed == str(labels)


def test_names_stay_as_they_are(tmp_path):
    names = ["50%", "%C3%89"]
    source = open_source(written(tmp_path, "links.tsv", "\t".join(names) + "\n"), format="names")
    assert list(read(source).nodes) == names
    assert source.notices == []


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a\tb\na\n", "line 2: .* not two names"),
        ("a\tb\n\na\tb\tc\n", "line 3: .* not two names"),
        ("a\t\n", "line 1: .* not two names"),
        ("\ta\n", "line 1: .* not two names"),
        ("", "holds no edges"),
    ],
)
def test_bad_names_are_refused(tmp_path, text, match):
    refused(written(tmp_path, "links.tsv", text), match, format="names")


def test_a_line_of_labels_without_name_is_refused(tmp_path):
    labels = written(tmp_path, "all.txt", "a\n\n\tb\n")
    with pytest.raises(InputError, match=r"all\.txt, line 3: no label"):
        read(open_source(written(tmp_path, "links.tsv", "a\tb\n"), labels=labels))


def test_names_that_are_not_utf8_are_refused(tmp_path):
    path = tmp_path / "links.tsv"
    path.write_bytes(b"a\tb\nb\t\xff\n")
    refused(path, r"line 2: .*UTF-8", format="names")


# What format a file has


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "# c\n1 2\n", "text"),
        ("a.e", "1 2\n", "text"),
        ("a.tsv", "1\t2\n", "text"),
        ("a.tsv", "1\tx\n", "text"),
        ("a.tsv", "# c\nx\ty\n", "names"),
        ("a.tsv", "%C3%81\tx\n", "names"),
        ("a.txt", "x\ty\n", "names"),
        ("a.txt", "x\ty\n1\t2\n", "text"),
        ("a.txt", "x7\ty\n1\t2\n2\t3\n", "text"),
        ("a.txt", "[1, 2]\n1 7\n2 14\n", "text"),
        ("a.txt", "ann bob\nbob 7\n", "csv"),
        ("a.txt", "to be or not\nto be and so\n", "text"),
        ("a", "%%MatrixMarket matrix\n", "matrixmarket"),
        ("a.mtx", "", "matrixmarket"),
        ("gr0.a", "n 0 http://a\n", "gr0"),
        ("a.dat", "2 3\n1 http://a\n", "hollins"),
        ("a.dat", "2 3\n1 4\n", "text"),
        ("a.dat", "2 3\n1 -4\n", "text"),
        ("a.npz", "", "npz"),
        ("a", "PK\x03\x04", "npz"),
    ],
)
def test_the_format_shows(tmp_path, name, text, expected):
    assert guess_format(written(tmp_path, name, text)) == expected
    assert expected in FORMATS


def test_the_caller_may_name_the_format(tmp_path):
    source = open_source(written(tmp_path, "numbers.txt", "1\t2\n"), format="names")
    assert list(read(source).nodes) == ["1", "2"]


def test_what_makes_no_sense_is_a_usage_error(tmp_path):
    path = written(tmp_path, "a.gr0", "n 0 a\n")
    labels = written(tmp_path, "l.txt", "a\n")
    with pytest.raises(UsageError, match="no format 'xlsx'"):
        open_source(path, format="xlsx")
    with pytest.raises(UsageError, match="hold their own labels"):
        open_source(path, labels=labels)


def test_a_path_without_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        open_source(tmp_path / "missing.txt")
    with pytest.raises(InputError, match="is a folder"):
        open_source(tmp_path)


def test_a_source_left_half_read_closes_its_file(tmp_path):
    blocks = open_source(written(tmp_path, "web.txt", "0 1\n" * 100)).blocks(10)
    next(blocks)
    blocks.close()


def test_opening_the_room_loads_nothing_heavy():
    check = "import sys, oocpr.sources; print({'numba', 'pyarrow', 'scipy'} & sys.modules.keys() or 'light')"
    assert (
        subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
        == "light\n"
    )


# Headers, and what is no graph


@pytest.mark.parametrize(
    ("name", "text", "edges"),
    [
        ("a.txt", "src dst\n1 2\n", [(1, 2)]),
        ("a.txt", "# c\n\nFromId\tToId\n1\t2\n", [(1, 2)]),
        ("a.tsv", "source\ttarget\n1\t2\n", [(1, 2)]),
        ("a.tsv", "#source\ttarget\na\tb\n", [("a", "b")]),
        ("a.tsv", "source\ttarget\na\tb\n", [("a", "b")]),
    ],
)
def test_a_header_is_found_and_named(tmp_path, name, text, edges):
    source = open_source(written(tmp_path, name, text))
    assert read(source).edges == edges
    assert [f"in {tmp_path / name} is taken as a header" in notice for notice in source.notices] == [True]


def test_a_header_is_forced_or_forbidden(tmp_path):
    path = written(tmp_path, "a.tsv", "source\ttarget\na\tb\n")
    assert read(open_source(path, header=False)).edges == [("source", "target"), ("a", "b")]
    path = written(tmp_path, "a.txt", "1 2\n3 4\n")
    assert read(open_source(path, header=True)).edges == [(3, 4)]
    refused(written(tmp_path, "a.txt", "src dst\n3 4\n"), "line 1: 'src dst'", header=False)


def test_names_may_begin_with_a_hash(tmp_path):
    source = open_source(written(tmp_path, "a.tsv", "# said\n#cats\t#dogs\n#\n#dogs\t %x\n"))
    assert read(source).edges == [("#cats", "#dogs"), ("#dogs", "%x")]
    assert source.locate(1).endswith("line 4")


LZMA = lzma.compress(b"1 2\n", lzma.FORMAT_ALONE)
LZMA_OF_KNOWN_SIZE = LZMA[:5] + (4).to_bytes(8, "little") + LZMA[13:]


@pytest.mark.parametrize(
    ("first", "what"),
    [
        (
            b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml" + bytes(90) + b"xl/workbook.xml",
            "an Excel workbook",
        ),
        (b"PK\x03\x04" + bytes(26) + b"edges.txt", "a zip archive"),
        (b"%PDF-1.7", "a PDF"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"ARROW1\x00\x00", "an Arrow or Feather file"),
        (b"\x80\x04\x95", "a Python pickle"),
        (b"src_type: a\nadj_lists:\n", "a description of a GraphAr archive"),
        (b"<!DOCTYPE html>", "an HTML page"),
        (b"<?xml version", "GraphML"),
        (bytes(257) + b"ustar", "a tar archive"),
        (LZMA, "an .lzma archive"),
        (LZMA_OF_KNOWN_SIZE, "an .lzma archive"),
        (b"(0, 1)\n(1, 2)\n", "text with a list or tuple on each line"),
        (b"# said\n('a', 'b', {'kg': 1})\r\n('b', 'c', {})\r\n", "text with a list or tuple on each line"),
        (b'["a", "b"]', "text with a list or tuple on each line"),
        (b"[(0, 1), (1, 2)]\n", "a list of lists or tuples"),
        (b'[\n  ["a", "b"],\n  ["b", "c"]\n]\n', "a list of lists or tuples"),
        (b"a -> b\nb -> c\n", "text with an arrow on each line"),
        (b"a -- b;\n", "text with an arrow on each line"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.xlsx", "a"])
def test_what_no_format_reads_is_refused_by_what_it_is(tmp_path, first, what, name):
    path = tmp_path / name
    path.write_bytes(first)
    refused(path, what)


@pytest.mark.parametrize(
    "text",
    [
        "[1,2]-Wittig rearrangement\t(3, 4)\n",
        "(1, 2, 3)\ta (b)\n",
        "(a, b)\t[c]\n",
        "a -> b\tc -> d\n",
        "a->b\tc\n",
    ],
)
def test_names_may_have_brackets_and_arrows(tmp_path, text):
    path = written(tmp_path, "a.tsv", text)
    assert read(open_source(path)).edges == [tuple(text.rstrip().split("\t"))]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "a,b\n", "csv"),
        ("a.csv", "1 2\n", "text"),
        ("a.txt", "1,2\n", "csv"),
        ("a.tsv", "source\ttarget\tkg\n1\t2\t0.5\n", "csv"),
        ("a.tsv", "Zoo\tCat\n1984\tBook\n", "names"),
        ("a.json", "", "jsonl"),
        ("a", '{"u": 1}\n', "jsonl"),
    ],
)
def test_the_format_of_tables_shows(tmp_path, name, text, expected):
    assert guess_format(written(tmp_path, name, text)) == expected
