"""What the first lines of delimited text show, against tables whose dialect is known."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import InputError, UsageError
from oocpr.sources import open_source
from oocpr.sources.dialect import (
    UnclearError,
    chosen_columns,
    dialect_of,
    is_header,
    separators_of,
    usual_ends,
)
from oocpr.sources.registry import guess_format

from .reading import read
from .test_csv_json import refused, written
from .test_weights import read as read_weighted

NUMBERS = [("1", "2", "0.5"), ("2", "3", "1.5"), ("3", "1", "2.5")]
NAMES = [("main", "foo", "3"), ("foo", "bar", "2"), ("bar", "main", "1")]
ENDS = [
    ("source", "target"), ("src", "dst"), ("from", "to"), ("Source", "Target"), ("FromNodeId", "ToNodeId"),
    ("caller", "callee"), ("citing_paper", "cited_paper"), ("follower_id", "followee_id"), ("u", "v"),
    ("sender", "receiver"), ("origin", "destination"), (":START_ID", ":END_ID"), ("~from", "~to"),
]  # fmt: skip
SUFFIXES = (".csv", ".tsv", ".txt", "")

words = st.text("ab0é.,;|\t\"'#% \n", min_size=1, max_size=6).filter(lambda word: word.strip(" \t\r"))
plain = st.text("abcé.-/ ", min_size=1, max_size=6).filter(str.strip)
weights = st.floats(0, 1e6).map(repr)


def edges_of(rows, source=0, target=1):
    ids = all(field.isdecimal() for row in rows for field in (row[source], row[target]))
    return [(int(row[source]), int(row[target])) if ids else (row[source], row[target]) for row in rows]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " ", ", ", "  "])
@pytest.mark.parametrize("rows", [NUMBERS, NAMES], ids=["numbers", "names"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tables_are_read_at_the_first_try(tmp_path, suffix, separator, rows, end):
    """In both orders of the ends, with other columns between, with weights and without, with a BOM."""
    edges = edges_of(rows)
    weighted = [(*edge, float(row[2])) for edge, row in zip(edges, rows, strict=True)]
    for header in (None, ENDS[0], *ENDS[5:7]):
        # Lines of two numbers and a third may have weights there: that is asked.
        wide = separator in "\t  " and rows is NUMBERS
        for columns in ((0, 1), (0, 1, 2), (2, 1, 0), (1, 2, 0)):
            if header is None and (columns[:2] != (0, 1) or (wide and len(columns) > 2)):
                continue
            lines = [*([(*header, "kg")] if header else []), *rows]
            text = end.join(separator.join(line[column] for column in columns) for line in lines)
            path = written(tmp_path, f"g{suffix}", "\ufeff" * (suffix == ".csv") + text + end)
            assert read(open_source(path)).edges == edges, text
            if header and len(columns) > 2:
                assert read_weighted(open_source(path, weight="kg")) == weighted
        if header is None:
            text = end.join(separator.join(row) for row in rows)
            assert read_weighted(open_source(written(tmp_path, f"g{suffix}", text), weight=3)) == weighted


@pytest.mark.parametrize("ends", ENDS)
def test_usual_names_in_any_order(ends):
    for names in itertools.permutations(["id", *ends, "weight", "note"]):
        assert usual_ends(names) == ends
    assert is_header([ends, ("ann", "bob"), ("bob", "eve")])
    assert is_header([ends, ends[::-1]]) is None


@pytest.mark.parametrize("header", ["src,source,to", "id,src,source,to", "from_id,from_name,to_id,to_name"])
def test_more_usual_names_than_two_are_a_header_and_no_edge(tmp_path, header):
    rows = [",".join(word * (header.count(",") + 1)) for word in ("a", "b", "c")]
    path = written(tmp_path, "g.csv", "\n".join([header, *rows]))
    with pytest.raises(UsageError, match="no obvious source column"):
        read(open_source(path))


@pytest.mark.parametrize(
    ("names", "source", "target", "expected"),
    [
        (["", "a", "b"], None, None, ["a", "b"]),
        (["Unnamed: 0", "b", "a"], None, None, ["b", "a"]),
        (["note", "id_2", "id_1"], None, None, ["id_1", "id_2"]),
        (["source_name", "source", "target_name", "target"], None, None, ["source", "target"]),
        (["start", "end", "source", "target"], None, None, ["source", "target"]),
        (["a", "b", "to"], "a", None, ["a", "to"]),
        (["a", "caller", "c"], None, "a", ["caller", "a"]),
        (["a", "b", "c"], "c", "a", ["c", "a"]),
        (["x1", "x2", "y1", "y2"], None, None, None),
        (["x1", "x2", "x3"], None, None, None),
        (["from_id", "from_name", "to_id", "to_name"], None, None, None),
        (["id", "head", "tail"], None, None, None),  # authors differ on which is which
        (["caller", "cited", "c"], None, None, None),
        (["a", "from"], None, None, None),
        (["to", "b"], None, None, None),
        (["from", "from", "to"], None, None, None),
    ],
)
def test_columns_are_chosen_or_asked_for(names, source, target, expected):
    if expected is None:
        with pytest.raises(UsageError, match="no obvious"):
            chosen_columns(names, source, target, "g.csv")
    else:
        assert chosen_columns(names, source, target, "g.csv") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb,c\nd\te,f\n", ["\t"]),
        ("a;b;0,5\nb;c;1,5\n", [";"]),
        ('"a;b","c"\n"b;c","d"\n', [","]),
        ("http://a/?x;y,http://b\nhttp://b,http://a/?x;y\n", [";", ","]),
        ("source,target\nhttp://a/?x;y,http://b\n", [","]),
        ("a b,c d\nc d,e f\n", [","]),
        ("a  b\nc\td\n", [" "]),
        ("a;1 b;2\nb;2 c;3\n", [";", " "]),
        ("a;1 b;2 7\nb;2 c;3 8\n", [";", " "]),
        ('"a|b" "c|d"\n"c|d" "e|f"\n', [" "]),
        ("a,b\nc;d\n", [","]),
        ("one\ntwo\n", []),
        ("", []),
    ],
)
def test_separators(text, expected):
    assert separators_of(text) == expected


LETTERS = "abcdefghij"


def lonely(first, count=10):
    return [first, *([f"n{LETTERS[k]}", f"n{LETTERS[(k + 1) % count]}"] for k in range(count))]


def test_a_header_of_unusual_words_is_asked_for():
    assert is_header(lonely(["mother", "daughter"])) is None
    assert is_header(lonely(["mother", "nc"])) is False
    assert is_header(lonely(["7up", "cola"])) is False
    assert is_header([*lonely(["mother", "daughter"]), ["x", "y"]]) is False
    assert is_header(lonely(["mother", "daughter"], 9)) is False
    for first in (["parent", "child"], ["node_1", "node_2"], ["head", "tail"], ["x", "y"]):
        assert is_header([first, ["ann", "bob"]]) is None
        assert is_header([first, ["ann", first[0]]]) is False
    urls = [["http://a/1", "http://b/2"], ["http://b/2", "http://c/3"], ["http://c/3", "http://d/4"]]
    assert is_header([["mother", "daughter"], *urls]) is None
    assert is_header([["mother", "http://e/5"], *urls]) is False
    assert is_header([["mother", "daughter"], *urls[:1]]) is False


@pytest.mark.parametrize(
    ("name", "text", "match", "remedy", "options", "edges"),
    [
        (
            "g.csv", "\n".join(map(",".join, lonely(["mother", "daughter"]))),
            "line 1: 'mother,daughter' may be a header or an edge", "header=True", {"header": True},
            list(map(tuple, lonely([])[1:])),
        ),
        (
            "g.tsv", "# c\nfrom\tto\nto\tby\n", "line 2: 'from.*to' may be", "header=False",
            {"header": False}, [("from", "to"), ("to", "by")],
        ),
        (
            "g.csv", "a;b,c\nb;c,d\n", "line 1: semicolons and commas split", 'delimiter=";"',
            {"delimiter": "comma"}, [("a;b", "c"), ("b;c", "d")],
        ),
        (
            "g.txt", "# by hand\n# ToNodeId\tFromNodeId\n1\t2\n", "line 2: .* targets of edges first",
            "source_column=2", {"source_column": 2, "target_column": 1}, [(2, 1)],
        ),
        (
            "g.txt", "# to from\n1 2\n", "line 1: .* targets of edges first", "header=False",
            {"header": False}, [(1, 2)],
        ),
    ],
)  # fmt: skip
def test_what_may_be_read_in_two_ways_is_asked_for(tmp_path, name, text, match, remedy, options, edges):
    path = written(tmp_path, name, text)
    assert remedy in refused(path, match).remedy
    assert read(open_source(path, **options)).edges == edges


@pytest.mark.parametrize(
    ("name", "text", "options", "match"),
    [
        ("g.csv", "source,target\n1,2\n" + "2,3\n" * 99 + "3;4\n", {}, "line 102: a row of 1 columns"),
        ("g.txt", "1 2\n" * 99 + "3,4\n", {}, "line 100: .* not a whole number"),
        ("g.txt", "ann bob\n" * 99 + "bob eve joe\n", {}, "line 100: a row of 3 columns"),
        ("g.txt", "ann\tbob\n" * 99 + "bob\teve\tjoe\n", {}, "line 100: .* is not two names"),
        ("g.csv", "source,target\r1,2\r", {}, "line 1: lines end in carriage returns alone"),
        ("g.txt", "1 2 3\r2 1 3\r", {"weight": 3}, "line 1: lines end in carriage returns alone"),
        ("g.txt", "1 2 # a\r2 1 # b", {}, "line 1: lines end in carriage returns alone"),
        ("g.txt", "a\tb\t3\tx\rb\ta\t3\ty\r", {"weight": 3}, "line 1: lines end in carriage returns alone"),
        ("g.csv", "a;b;w\na;b;0,5\n", {"weight": "w"}, "line 2: the weight '0,5' .* no number"),
        ("g.txt", "1 2 0,5\n", {"weight": 3}, "line 1: the weight '0,5' .* no number"),
        ("g.txt", 'a b\nb "c\n', {}, "line 2: a quote is opened"),
    ],
)
def test_lines_that_contradict_the_first_are_named(tmp_path, name, text, options, match):
    error = refused(written(tmp_path, name, text), match, **options)
    assert ("decimal point" in error.remedy) == ("0,5" in text)


@pytest.mark.parametrize(
    ("delimiter", "text"),
    [(":", "1:2\n2:3\n"), ("tab", "1\t2\n2\t3\n"), ("\\t", "1\t2\n2\t3\n"), ("space", " 1  2 \n2\t3\n")],
)
def test_the_caller_may_say_the_delimiter(tmp_path, delimiter, text):
    path = written(tmp_path, "g.txt", text)
    for format in (None, "csv"):  # noqa: A001
        assert read(open_source(path, delimiter=delimiter, format=format)).edges == [(1, 2), (2, 3)]


@pytest.mark.parametrize("delimiter", ["", ",,", "\n", '"', "é", "commas"])
def test_what_is_no_delimiter_is_refused(tmp_path, delimiter):
    refused(written(tmp_path, "g.csv", "1,2\n"), "delimiter is", UsageError, delimiter=delimiter)


@pytest.mark.parametrize(("name", "text"), [("g.mtx", "%%MatrixMarket"), ("g.jsonl", '{"u": 1, "v": 2}\n')])
def test_formats_without_a_delimiter(tmp_path, name, text):
    refused(written(tmp_path, name, text), "no delimiter", UsageError, delimiter=",")
    with pytest.raises(UsageError, match="no file"):
        open_source([(0, 1)] * 3, delimiter=",")


def test_what_was_guessed_is_said(tmp_path):
    path = written(tmp_path, "g.txt", "# by hand\nkg;callee;caller\n2;b;a\n")
    source = open_source(path, weight="kg")
    assert read_weighted(source) == [("a", "b", 2.0)]
    assert source.notices == [
        f"{path} is CSV separated by semicolons, line 2 is its header; "
        "edges run from column 'caller' to column 'callee' and weights are in column 'kg'."
    ]
    source = open_source(written(tmp_path, "g.csv", "ann,bob\nbob,eve\n"))
    read(source)
    assert source.notices == [
        f"{tmp_path}/g.csv is CSV separated by commas, it has no header; "
        "edges run from column '1' to column '2'; header=True if its first row is one."
    ]


def test_columns_of_one_name_have_numbers(tmp_path):
    path = written(tmp_path, "g.csv", "source,source,target\n1,2,3\n")
    refused(path, r"'source \(1\)', 'source \(2\)', 'target'", UsageError)
    assert read(open_source(path, source_column=2)).edges == [(2, 3)]


def test_a_header_that_is_a_comment(tmp_path):
    path = written(tmp_path, "g.csv", "# made by NumPy\n# target,source,kg\n1,2,0.5\n")
    assert read(open_source(path)).edges == [(2, 1)]
    assert read(open_source(path, header=False)).edges == [(1, 2)]


def test_names_with_quotes_are_not_csv(tmp_path):
    """Titles of pages, in which quotes are letters."""
    text = '"Heroes"\tDavid Bowie\nDavid Bowie\t"Heroes" (album)\n5" disk\t"Heroes"\n'
    rows = [tuple(line.split("\t")) for line in text.splitlines()]
    for name in ("g.tsv", "g.txt"):
        assert guess_format(written(tmp_path, name, text)) == "names"
        assert read(open_source(tmp_path / name)).edges == rows


@given(
    st.lists(st.tuples(words, words, words, weights), min_size=1, max_size=12),
    st.sampled_from(",;|\t "),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(ENDS),
    st.permutations(range(4)),
    st.booleans(),
    st.booleans(),
    st.sampled_from(SUFFIXES),
)
def test_what_python_writes_is_read(
    tmp_path_factory, rows, separator, quoting, end, ends, columns, said, weighted, suffix
):
    """Any dialect gives the graph that was written; an error only if fields hold what else may separate."""
    if separator == " ":  # any blanks are one separator
        rows = [tuple(field.replace("\t", "_") for field in row) for row in rows]
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=end)
    for line in [(*ends, "note", "kg"), *rows]:
        writer.writerow([line[column] for column in columns])
    path = written(tmp_path_factory.mktemp("csv"), f"g{suffix}", text.getvalue())
    expected = [(u.strip(" \t"), v.strip(" \t"), float(kg)) for u, v, _, kg in rows]
    options = {"delimiter": separator} if said else {}
    try:
        if weighted:
            found = read_weighted(open_source(path, format="csv_names", weight="kg", **options))
        else:
            edges = read(open_source(path, **options)).edges
            found = [(str(u), str(v), row[2]) for (u, v), row in zip(edges, expected, strict=True)]
    except (InputError, UsageError):
        unlike = any(set(",;|\t\n ") & set(field) for row in rows for field in row)
        assert unlike
        assert not said
    else:
        assert found == expected


@given(
    st.lists(st.tuples(plain, plain, plain), min_size=1, max_size=12),
    st.sampled_from(",;|\t "),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.integers(2, 3),
    st.sampled_from(SUFFIXES),
)
def test_rows_without_a_header_are_read_or_refused(tmp_path_factory, rows, separator, quoting, width, suffix):
    """Nothing is lost, cut or taken for a header."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, quoting=quoting).writerows(row[:width] for row in rows)
    path = written(tmp_path_factory.mktemp("csv"), f"g{suffix}", text.getvalue())
    with contextlib.suppress(InputError, UsageError):
        edges = [(str(u), str(v)) for u, v in read(open_source(path)).edges]
        assert edges == [(u.strip(" \t"), v.strip(" \t")) for u, v, _ in rows]


@given(
    st.text('ab1,;|\t "#%\r\n', max_size=40),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, ","]),
)
def test_any_text_has_a_dialect_or_an_error(text, header, delimiter):
    for name in separators_of(text):
        assert len(name) == 1
    with contextlib.suppress(UnclearError):
        found = dialect_of(text, delimiter, header)
        assert 0 <= found.lines <= text.count("\n") + 1
        assert len(found.separator) == 1
        assert len(set(found.names)) == len(found.names)
