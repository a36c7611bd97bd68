"""CSV and JSON lines, against Python's own readers of both."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import InputError, UsageError
from oocpr.sources import open_source
from oocpr.sources.block import EdgeBlock
from oocpr.sources.formats import csv_json

from .reading import read
from .test_weights import read as read_weighted

COMPRESSED = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}
fields = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=8)
names = st.text('aé,;|\t"#% \n0', min_size=1, max_size=8).filter(lambda name: name.strip(" \t\r"))
numbers = st.one_of(st.integers(0, 9), st.integers(-(2**63), 2**63 - 1))


def written(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def is_number(field):
    try:
        float(field)
    except ValueError:
        return False
    return True


def refused(path, match, kind=InputError, **options):
    with pytest.raises(kind, match=match) as caught:
        read(open_source(path, **options))
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def small_pieces(monkeypatch):
    """Files of several pieces, in a few lines."""
    for name, size in (("SHOWN_BYTES", 24), ("_MIN_BYTES", 16), ("_MAX_BYTES", 16)):
        monkeypatch.setattr(csv_json, name, size)


@given(
    st.lists(st.tuples(fields, names, names), min_size=1, max_size=12),
    st.sampled_from(",;|\t"),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_csv_has_the_names_that_python_reads(
    tmp_path_factory, rows, separator, quoting, end, header, max_edges
):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=end)
    writer.writerows([("note", "from", "to")] * header + rows)
    path = written(tmp_path_factory.mktemp("csv"), "g.csv", "\ufeff" * header + text.getvalue())
    # Python's reader takes a carriage return out of no field, and gives each row back as it was.
    expected = [(u.strip(" \t"), v.strip(" \t")) for _, u, v in rows]
    columns = {} if header else {"source_column": "2", "target_column": "3"}
    with pytest.MonkeyPatch.context() as patch:
        for pieces in (16, 1 << 17):
            patch.setattr(csv_json, "_MIN_BYTES", pieces)
            patch.setattr(csv_json, "_MAX_BYTES", pieces)
            source = open_source(path, format="csv_names", header=header, delimiter=separator, **columns)
            assert read(source, max_edges).edges == expected
    assert source.unused_columns == ["note" if header else "1"] * all(is_number(note) for note, _, _ in rows)
    assert source.position == source.size


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.integers(1, 7))
def test_csv_has_ids_of_64_bits(tmp_path_factory, pairs, max_edges):
    path = written(tmp_path_factory.mktemp("csv"), "g.csv", "".join(f"{u}, {v}\n" for u, v in pairs))
    assert read(open_source(path, header=False), max_edges).edges == pairs


@pytest.mark.parametrize("odd", ["007", "-0", "+5", "1e3", "9223372036854775808", "x", "1.0", "-", "--1"])
def test_what_is_no_whole_number_makes_names_of_all(tmp_path, odd):
    path = written(tmp_path, "g.csv", f"source,target\n7,8\n{odd},7\n")
    assert read(open_source(path)).edges == [("7", "8"), (odd, "7")]


def test_a_name_behind_many_numbers_is_named_with_the_way_out(tmp_path, small_pieces):
    text = "source,target\n" + "1,2\n" * 30
    for odd in ("x", "007"):
        path = written(tmp_path, "g.csv", f"{text}\n3,{odd}\n4,5\n")
        error = refused(path, rf"g\.csv, line 33: '{odd}' in column 'target' is no whole number")
        assert 'format="csv_names"' in error.remedy
        assert read(open_source(path, format="csv_names")).edges[-2:] == [("3", odd), ("4", "5")]


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("name", ["g.csv", "g.jsonl"])
def test_compressed_files_are_read(tmp_path, suffix, name):
    text = (
        "source,target\n1,2\n2,1\n"
        if name == "g.csv"
        else '{"source":1,"target":2}\n{"source":2,"target":1}\n'
    )
    path = written(tmp_path, name + suffix, COMPRESSED[suffix](text.encode()))
    assert read(open_source(path)).edges == [(1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("name", "text"), [("csv", b"a;b\nb;c\n"), ("jsonl", b'{"u":"a","v":"b"}\n{"u":"b","v":"c"}\n')]
)
def test_standard_input(monkeypatch, name, text):
    class Trickle(io.BytesIO):
        def readinto(self, view):
            return super().readinto(memoryview(view)[:3])

        def read(self, size=-1):
            return super().read(min(size, 3))

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Trickle(text)))
    assert read(open_source("-", format=name)).edges == [("a", "b"), ("b", "c")]


def test_columns_by_name_and_by_number(tmp_path):
    path = written(tmp_path, "g.csv", "id,amount,to,from\n0,2.5,5,4\n1,1,4,5\n")
    assert read_weighted(open_source(path, weight="amount")) == [(4, 5, 2.5), (5, 4, 1.0)]
    assert read_weighted(open_source(path, weight="2")) == [(4, 5, 2.5), (5, 4, 1.0)]
    source = open_source(path, source_column="3", target_column="from")
    assert read(source).edges == [(5, 4), (4, 5)]
    assert source.unused_columns == ["id", "amount"]
    refused(path, "no column 'kg'; its columns are 'id', 'amount'", UsageError, weight="kg")
    refused(path, "no column '9'", UsageError, source_column="9")


def test_columns_without_names_are_the_first_two_and_that_is_said(tmp_path):
    source = open_source(written(tmp_path, "g.csv", "1,2,3\n2,3,4\n"))
    assert read(source).edges == [(1, 2), (2, 3)]
    assert source.unused_columns == ["3"]
    assert source.notices == [
        f"{tmp_path}/g.csv is CSV separated by commas, it has no header; "
        "edges run from column '1' to column '2'."
    ]
    source = open_source(tmp_path / "g.csv", weight=1)
    assert read_weighted(source) == [(2, 3, 1.0), (3, 4, 2.0)]


@pytest.mark.parametrize(
    ("text", "options", "edges"),
    [
        ("citing,cited\n1,2\n", {}, [(1, 2)]),
        ("ann,bob\nbob,eve\n", {}, [("ann", "bob"), ("bob", "eve")]),
        ("ann,bob\nbob,eve\n", {"header": True}, [("bob", "eve")]),
        ("source,target\nann,bob\n", {}, [("ann", "bob")]),
        ("source,target\nann,bob\n", {"header": False}, [("source", "target"), ("ann", "bob")]),
        ("Zoo,Cat\n1984,Book\nCat,Zoo\n", {}, [("Zoo", "Cat"), ("1984", "Book"), ("Cat", "Zoo")]),
        ("# made by hand\n\nsource|target\na,b|c\n", {}, [("a,b", "c")]),
        ("#source,target\n1,2\n", {}, [(1, 2)]),
        ("sep=;\r\nsource;target\r\na;b\r\n", {}, [("a", "b")]),
        ('"from", "to"\n"a", "b"\n"b", "a ""x"""\n', {}, [("a", "b"), ("b", 'a "x"')]),
        ('a,5" disk\n5" disk,a\n', {}, [("a", '5" disk'), ('5" disk', "a")]),
        ('source,target\n"a\nb",c\nc,"a\nb"', {}, [("a\nb", "c"), ("c", "a\nb")]),
    ],
)  # fmt: skip
def test_headers_separators_and_quotes(tmp_path, text, options, edges):
    source = open_source(written(tmp_path, "g.csv", text), **options)
    assert read(source).edges == edges
    assert len(source.notices) == 1
    assert ("its header" in source.notices[0]) == (len(edges) < text.count("\n") and '5"' not in text)


def test_parts_of_one_table(tmp_path):
    written(tmp_path, "a.csv", "kg,to,from\n1,2,1\n")
    written(tmp_path, "b.csv", "2,3,2\n")
    written(tmp_path, "c.csv", "kg,to,from\n4,1,3\n")
    written(tmp_path, "d.csv", "from,to,kg\n4,1,3\n")
    source = open_source(f"{tmp_path}/*.csv", weight="kg")
    assert read_weighted(source) == [(1, 2, 1.0), (2, 3, 2.0), (3, 1, 4.0), (4, 1, 3.0)]
    assert len(source.notices) == 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("source,target\n1,2\n\n1,2,3\n", "line 4: a row of 3 columns, where there are 2"),
        ("source,target\n1\n", "line 2: a row of 1 columns"),
        ('source,target\n1,"2\n', "line 2: a quote is opened and not closed"),
        ('source,target\n"a\nb",c\nd,"e\n', "line 4: a quote is opened and not closed"),
        ('source,target\n"a\nb",c\nd, \n', "line 4: no node in column 'target'"),
        ("source,target\n", "holds no edges"),
        ("", "holds no edges"),
        ("source,target\n1,2\n\xff".encode("latin-1"), "line 3: the text is not UTF-8"),
        ("source,target\n1,2\n".encode("utf-16"), "UTF-16"),
        ("source,target\n1,2\n".encode("utf-16-le"), "UTF-16"),
    ],
)
def test_csv_that_cannot_be_read(tmp_path, text, match):
    refused(written(tmp_path, "g.csv", text), rf"g\.csv.*{match}")


def test_a_quote_without_end_takes_no_more_memory_than_a_line(tmp_path):
    path = written(tmp_path, "g.csv", 'source,target\na,b\nb,"' + "c\n" * (3 << 20))
    refused(path, "line 3: a quote is opened")


def test_a_matrix_is_no_list_of_edges(tmp_path):
    path = tmp_path / "g.csv"
    for format, size in (("%d", 3), ("%.18e", 3), ("%.1f", 1500)):  # noqa: A001
        np.savetxt(path, np.eye(size)[::-1], format, delimiter=",", header="by hand")
        refused(path, rf"g\.csv, line 2: {size:,} columns of 0 and 1 alone")
    path.write_text("0,1,1\n1,0,1\n1,1,0\n")
    assert read(open_source(path, source_column=1, target_column=2)).edges == [(0, 1), (1, 0), (1, 1)]
    assert read(open_source(path, weight=3)).edges == [(0, 1), (1, 0), (1, 1)]
    for text in ("0,1,1\n1,0,1\n", "0,1,1\n1,0,1\n1,2,0\n", "0,1\n1,0\n1,1\n0,0\n"):
        path.write_text(text)
        assert read(open_source(path)).edges[:2] == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        ('"1,5"', "the weight '1,5' in column 'kg' is no number"),
        ("-1", "the weight '-1' in column 'kg' is negative"),
        ("inf", "is not finite"),
        ("", "the weight '' in column 'kg' is no number"),
        ("NA", "is no number"),
    ],
)
def test_wrong_weights_of_csv(tmp_path, weight, match):
    path = written(tmp_path, "g.csv", f'from,to,kg\n"a\n",b,1\n\nb,a,{weight}\n')
    error = refused(path, rf"g\.csv, line 5: .*{match}", weight="kg")
    assert ("decimal point" in error.remedy) == ("," in weight)


@given(
    st.lists(st.tuples(fields, fields, st.floats(0, 1e300)), min_size=1, max_size=12),
    st.booleans(),
    st.integers(1, 9),
)
def test_json_lines_have_the_names_that_python_reads(tmp_path_factory, rows, ascii_only, max_edges):
    lines = [
        json.dumps({"x": [{"source": 1}], "target": v, "w": w, "source": u}, ensure_ascii=ascii_only)
        for u, v, w in rows
    ]
    path = written(tmp_path_factory.mktemp("json"), "g.jsonl", "\n\n".join(lines))
    source = open_source(path, weight="w")
    assert read_weighted(source, max_edges) == rows
    assert source.unused_columns == []


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.integers(1, 9))
def test_json_lines_have_ids(tmp_path_factory, pairs, max_edges):
    lines = "".join(json.dumps({"u": u, "v": v}) + "\r\n" for u, v in pairs)
    path = written(tmp_path_factory.mktemp("json"), "g.ndjson", lines)
    blocks = list(open_source(path).blocks(max_edges))
    assert all(isinstance(block, EdgeBlock) for block in blocks)
    assert read(open_source(path), max_edges).edges == pairs


GOOD = '{"source": 1, "target": 2, "w": 1}\n\n'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (GOOD + '{"source": 1, "target": "x", "w": 1}', "line 3: \"x\" in 'target' is not a whole number"),
        (GOOD + '{"source": 1.0, "target": 1, "w": 1}', "line 3: 1.0 in 'source' is not a whole number"),
        (GOOD + '{"source": true, "target": 1, "w": 1}', "line 3: true in 'source'"),
        (GOOD + '{"source": 9223372036854775808, "target": 1, "w": 1}', "line 3: 9223372036854775808 in"),
        (GOOD + '{"source": 1, "w": 1}', "line 3: the object has no 'target'"),
        (GOOD + '{"source": 1, "target": null, "w": 1}', "line 3: the object has no 'target'"),
        (GOOD + '{"source": 1, "target": 1, "w": "5"}', "line 3: the weight \"5\" in 'w' is no number"),
        (GOOD + '{"source": 1, "target": 1, "w": -5}', "line 3: the weight -5.0 in column 'w' is negative"),
        (GOOD + '{"source": 1, "target": 1, "w": NaN}', "line 3: the weight nan in column 'w' is not finite"),
        (GOOD + '{"source": 1, "target": 1}', "line 3: the object has no 'w'"),
        (GOOD + "[1, 2]", "line 3: no JSON object"),
        (GOOD + '{"source": 1,', "line 3: no JSON object"),
        (GOOD + '{"source": 1, "source": 2, "target": 1, "w": 1}', "line 1: in an object from here on"),
        ('{"source": "a", "target": 2, "w": 1}', "line 1: 2 in 'target' is not text"),
        ('[{"source": 1, "target": 2, "w": 1}]', "line 1: no JSON object on a line of its own"),
        ('{\n"source": 1, "target": 2, "w": 1}', "line 1: no JSON object on a line of its own"),
        ("", "holds no edges"),
    ],
)
def test_json_lines_that_cannot_be_read(tmp_path, text, match):
    refused(written(tmp_path, "g.json", text), rf"g\.json.*{match}", weight="w")


def test_members_that_are_not_there(tmp_path):
    path = written(tmp_path, "g.json", '{"nodes": [], "links": [], "graph": {}}\n')
    refused(path, "no obvious source column; its columns are 'nodes', 'links', 'graph'", UsageError)
    # A header, though a name stands twice: no edge from one node to itself.
    path = written(tmp_path, "twice.csv", "source,source,target\nann,bob,eve\n")
    refused(path, r"no obvious source column; its columns are 'source \(1\)'", UsageError)
    path = written(tmp_path, "g.json", '{"nodes": [], "links": []}\n')
    refused(path, r"line 1: \[\] in 'nodes' is not a whole number")


def test_dates_and_digits_in_quotes_are_names(tmp_path):
    path = written(tmp_path, "g.jsonl", '{"u": "2020-01-01", "v": "007"}\n')
    assert read(open_source(path)).edges == [("2020-01-01", "007")]


def test_pieces_do_not_matter(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    names = [f'n "{k}"\n,' if k % 3 else f"n{k}" for k in range(20)]
    text = io.StringIO(newline="")
    pairs = [(names[u], names[v]) for u, v in rng.integers(0, 20, (200, 2))]
    csv.writer(text).writerows([("source", "target"), *pairs])
    path = written(tmp_path, "g.csv", text.getvalue())
    for shown, most in ((1, 1), (30, 64), (1 << 18, 1 << 17)):
        for name, size in (("SHOWN_BYTES", shown), ("_MIN_BYTES", most), ("_MAX_BYTES", most)):
            monkeypatch.setattr(csv_json, name, size)
        assert read(open_source(path, header=True), 7).edges == pairs
