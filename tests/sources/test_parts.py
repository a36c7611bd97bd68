"""Sources divided into parts: together they have the edges of the source, and they name the same lines."""

import gzip
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import InputError
from oocpr.sources import base, open_source
from oocpr.sources.rmat import Rmat


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(base, "MIN_PART_BYTES", 1)


def edges_of(source):
    blocks = list(source.blocks(50))
    ends = [np.stack([block.src, block.dst]).astype(np.int64) for block in blocks]
    weights = [block.weight for block in blocks if block.weight is not None]
    edges = np.concatenate(ends, axis=1) if ends else np.empty((2, 0), np.int64)
    return np.concatenate([edges, [np.concatenate(weights)]]) if weights else edges


def divided(source, count):
    """Edges of all parts, as another process gets them."""
    parts = pickle.loads(pickle.dumps(source.parts(count)))
    assert parts
    assert sum(part.size for part in parts) == source.size
    return np.concatenate([edges_of(part) for part in parts], axis=1)


lines = st.sampled_from(["1 2", "30\t4", "500 600 ", "", "# said", "7 70000", "\t8 9"])


@given(
    st.lists(st.tuples(lines, st.sampled_from(["\n", "\r\n"])), min_size=1, max_size=30),
    st.sampled_from(["", "\n", "1 1"]),
    st.sampled_from(["", "source target\n", "\ufeff"]),
    st.integers(1, 40),
)
def test_parts_of_a_text_have_each_line_once(tmp_path_factory, lines, last, first, count):
    path = tmp_path_factory.mktemp("text") / "edges.txt"
    path.write_bytes((first + "1 3\n" + "".join(line + end for line, end in lines) + last).encode())
    whole = edges_of(open_source(path))
    assert divided(open_source(path), count).tolist() == whole.tolist()
    both = edges_of(open_source(path, undirected=True))
    assert sorted(divided(open_source(path, undirected=True), count).T.tolist()) == sorted(both.T.tolist())
    assert divided(open_source(path, reverse=True), count).tolist() == whole[::-1].tolist()


def test_only_the_first_part_of_a_text_has_a_header(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("1 2\n" * 100)
    assert divided(open_source(path, header=True), 7).shape == (2, 99)
    path.write_text("from to\n" + "1 2\n" * 100)
    assert divided(open_source(path), 7).shape == (2, 100)


@pytest.mark.parametrize("line", [1, 2, 57, 99, 100])
def test_a_part_names_the_line_of_its_file(tmp_path, line):
    path = tmp_path / "edges.txt"
    text = ["12 345"] * 100
    text[line - 1] = "1 x"
    path.write_text("\n".join(text))
    found = []
    for part in open_source(path, format="text", header=False).parts(9):
        try:
            edges_of(part)
        except InputError as error:
            found.append(error.cause)
    assert found == [f"{path}, line {line}: '1 x' holds something that is not a whole number."]


def test_compressed_files_are_parts_as_a_whole(tmp_path):
    ids = np.random.default_rng(1).integers(0, 900, (2, 600))
    for k, some in enumerate(np.array_split(ids, 6, axis=1)):
        text = "".join(f"{src} {dst}\n" for src, dst in some.T).encode()
        # One is an archive by its first bytes only.
        (tmp_path / f"{k}.txt{'.gz' * (k > 0)}").write_bytes(gzip.compress(text))
    source = open_source(str(tmp_path / "*"))
    assert len(source.parts(3)) <= 4
    assert divided(source, 3).tolist() == ids.tolist()
    assert len(open_source(tmp_path / "1.txt.gz").parts(3)) == 1


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_row_groups_are_parts(tmp_path, count):
    ids = np.random.default_rng(1).integers(0, 900, (3, 700))
    for k, some in enumerate(np.array_split(ids, 3, axis=1)):
        table = pa.table({"to": some[1], "from": some[0], "kg": some[2]})
        pq.write_table(table, tmp_path / f"{k}.parquet", row_group_size=40)
    source = open_source(tmp_path, weight="kg")
    assert divided(source, count).tolist() == ids.tolist()
    assert len(source.parts(count)) == pytest.approx(min(count, 18), abs=2)


def test_a_part_names_the_row_of_its_file(tmp_path):
    pq.write_table(
        pa.table({"a": [0] * 57 + [None] + [1] * 42, "b": [1] * 100}),
        tmp_path / "g.parquet",
        row_group_size=10,
    )
    found = []
    for part in open_source(tmp_path / "g.parquet").parts(5):
        try:
            edges_of(part)
        except InputError as error:
            found.append(error.cause)
    assert found == [f"{tmp_path / 'g.parquet'}: row 57 lacks an end."]


@pytest.mark.parametrize("count", [1, 3, 64])
def test_a_generated_graph_has_ranges_of_edges_as_parts(count):
    assert divided(Rmat(6), count).tolist() == edges_of(Rmat(6)).tolist()


def test_parts_may_hold_no_edges_and_the_source_may_not(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# said\n" * 50)
    assert divided(open_source(path), 4).shape == (2, 0)
    with pytest.raises(InputError, match="holds no edges"):
        edges_of(open_source(path))


@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_parts_of_a_file_of_names_have_each_line_once(tmp_path, count):
    path = tmp_path / "names.txt"
    pairs = [(f"from {k % 7}", f"to {k * k % 90}") for k in range(200)]
    path.write_text("source\ttarget\n" + "".join(f"{src}\t{dst}\n" for src, dst in pairs))
    found = []
    for part in open_source(path, format="names").parts(count):
        for block in part.blocks(50):
            found += zip(block.src, block.dst, strict=True)
    assert found == pairs


def test_other_sources_have_no_parts(tmp_path):
    (tmp_path / "g.csv").write_text("a,b\n1,2\n")
    (tmp_path / "names.txt").write_text("a\tb\n")
    (tmp_path / "g.txt").write_text("0 1\n")
    (tmp_path / "labels").write_text("a\nb\n")
    for source in (
        open_source(tmp_path / "g.csv"),
        open_source(tmp_path / "names.txt", format="names", labels=tmp_path / "labels"),
        open_source(tmp_path / "g.txt", labels=tmp_path / "labels"),
        open_source((np.array([0]), np.array([1])), undirected=True),
    ):
        assert source.parts(4) == []
