"""Archives of GraphAr, laid out as its specification says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import InputError, UsageError
from oocpr.sources import open_source
from oocpr.sources.registry import guess_format

from .reading import read


def write_archive(folder, links, nodes, per_part=3, per_chunk=2, side="src", ordered=True, **more):
    """Write the links of one type as GraphAr does: sorted by one end, in parts of its nodes, in chunks."""
    end = ("src", "dst").index(side)
    order = f"{'ordered' if ordered else 'unordered'}_by_{'source' if end == 0 else 'dest'}"
    known = {
        "src_type": "page",
        "edge_type": "cites",
        "dst_type": "page",
        "chunk_size": per_chunk,
        f"{side}_chunk_size": per_part,
        "directed": True,
        "prefix": "edge/page_cites_page/",
        "adj_lists": [{"ordered": ordered, "aligned_by": side, "file_type": "parquet"}],
        "version": "gar/v1",
    }
    place = folder / "edge/page_cites_page" / order
    place.mkdir(parents=True)
    (place / "vertex_count").write_bytes(np.array(nodes, "<i8").tobytes())
    for part in range(-(-nodes // per_part)):
        here = [link for link in links if link[end] // per_part == part]
        here = sorted(here, key=lambda link: link[end]) if ordered else here
        (place / f"edge_count{part}").write_bytes(np.array(len(here), "<i8").tobytes())
        (place / "adj_list" / f"part{part}").mkdir(parents=True)
        for chunk in range(-(-len(here) // per_chunk)):
            piece = here[chunk * per_chunk : (chunk + 1) * per_chunk]
            columns = {"_graphArSrcIndex": [u for u, _ in piece], "_graphArDstIndex": [v for _, v in piece]}
            pq.write_table(pa.table(columns), place / "adj_list" / f"part{part}" / f"chunk{chunk}")
    path = folder / "page_cites_page.edge.yml"
    path.write_text(yaml.safe_dump({**known, **more}))
    return path


@given(
    links=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=60),
    alone=st.integers(0, 5),
    side=st.sampled_from(["src", "dst"]),
    ordered=st.booleans(),
    max_edges=st.integers(1, 7),
)
def test_archives_hold_their_links_and_all_nodes(tmp_path_factory, links, alone, side, ordered, max_edges):
    nodes = max([max(link) for link in links], default=0) + 1 + alone
    path = write_archive(tmp_path_factory.mktemp("gar"), links, nodes, side=side, ordered=ordered)
    assert guess_format(path) == "graphar"
    source = open_source(path)
    assert sorted(read(source, max_edges).edges) == sorted(links)
    assert source.nodes == nodes
    assert source.name == "page_cites_page"
    assert not source.notices


def test_more_than_ten_parts_and_chunks_are_all_read(tmp_path):
    links = [(u, v) for u in range(12) for v in range(23)]
    path = write_archive(tmp_path, links, 23, per_part=1, per_chunk=2)
    assert sorted(read(open_source(path)).edges) == links


def test_links_in_both_ways_are_told(tmp_path):
    source = open_source(write_archive(tmp_path, [(0, 1)], 2, directed=False))
    assert source.notices == [f"{source.title} says that links go both ways; they are taken in one."]


def test_what_lacks_is_named(tmp_path):
    path = write_archive(tmp_path, [(0, 1), (1, 0), (2, 2), (4, 0)], 5)
    lists = tmp_path / "edge/page_cites_page/ordered_by_source"
    changed = open_source(path)
    identity = changed.identity()
    for name in ("adj_list/part0/chunk1", "edge_count1", "vertex_count"):
        whole = (lists / name).read_bytes()
        (lists / name).unlink()
        with pytest.raises(InputError, match=name):
            open_source(path)
        (lists / name).write_bytes(whole)
    (lists / "edge_count1").write_bytes(b"1234")
    with pytest.raises(InputError, match="edge_count1 holds 4 bytes"):
        open_source(path)
    (lists / "edge_count1").write_bytes(bytes([1]) + bytes(7))
    assert sorted(read(open_source(path)).edges) == [(0, 1), (1, 0), (2, 2), (4, 0)]
    path.write_text(path.read_text() + "\n")
    assert open_source(path).identity() != identity


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dst_type": "tag"}, "links go from page to tag"),
        ({"adj_lists": [{"ordered": True, "aligned_by": "src", "file_type": "orc"}]}, "no links in Parquet"),
        ({"chunk_size": None}, "does not say how many"),
        ({"adj_lists": None}, "describes no links"),
    ],
)
def test_archives_that_cannot_be_read_say_why(tmp_path, more, message):
    path = write_archive(tmp_path, [(0, 1)], 2, **more)
    with pytest.raises(InputError, match=message):
        open_source(path)


def test_files_that_describe_no_links_are_refused(tmp_path):
    for text in ("a: [", "name: graph\nvertices: []\n", "[]", "", "\x00"):
        path = tmp_path / "graph.yml"
        path.write_text(text)
        with pytest.raises(InputError, match=r"graph\.yml"):
            open_source(path)
    with pytest.raises(UsageError, match="no names of columns"):
        open_source(write_archive(tmp_path, [(0, 1)], 2), source_column="a")
