"""The shared real graphs, read with the counts that are known of them."""

from __future__ import annotations

import numpy as np
import pytest

from oocpr.sources import open_source

from .reading import read

# file: nodes, edge lines, distinct edges, self-loops, dangling nodes, most lines out of and into a node
COUNTS = {
    "cnr-2000.mtx.xz": (325_557, 3_216_152, 3_216_152, 87_442, 78_056, 2_716, 18_235),
    "linux61-calls.txt.xz": (683_626, 2_573_683, 2_573_683, 1_105, 76_184, 137, 28_064),
    "soc-Slashdot0902.mtx.gz": (82_168, 948_464, 948_464, 78_303, 3_727, 2_511, 2_553),
    "cit-HepTh.mtx.gz": (27_770, 352_807, 352_807, 39, 2_711, 562, 2_414),
    "debian-bookworm-deps.txt.gz": (63_436, 330_017, 309_498, 2, 6_513, 648, 21_819),
    "openjdk17-javadoc.txt.gz": (10_140, 172_205, 172_205, 1_176, 1_731, 4_896, 3_990),
    "p2p-Gnutella31.e.gz": (62_586, 147_892, 147_892, 0, 46_199, 78, 68),
    "wikispeedia_links.tsv.gz": (4_598, 119_879, 119_879, 110, 13, 294, 1_551),
    "wiki-Vote.txt.gz": (7_115, 103_689, 103_689, 0, 1_005, 893, 457),
    "hollins.dat.gz": (6_012, 23_875, 23_875, 0, 3_189, 184, 829),
    "gr0.California.gz": (9_664, 16_150, 16_150, 0, 4_637, 164, 199),
    "python311-doc.txt.gz": (530, 14_961, 14_961, 0, 0, 483, 529),
}
LABELS = {
    "linux61-calls.txt.xz": (0, "find_pa"),
    "debian-bookworm-deps.txt.gz": (0, "0ad"),
    "openjdk17-javadoc.txt.gz": (0, "api/allclasses-index.html"),
    "wikispeedia_links.tsv.gz": (1, "%C3%85land"),
    "hollins.dat.gz": (1, "http://www.hollins.edu/"),
    "gr0.California.gz": (9663, "http://www.cs.ucl.ac.uk/external/P.Dourish/hotlist.html"),
    "python311-doc.txt.gz": (0, "about.html"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in COUNTS if not name.endswith(".tsv.gz")])
def test_a_real_graph_is_read_whole(graphs, name):
    source = open_source(graphs / name)
    positions = [0]
    edges = []
    for block in source.blocks(100_000):
        edges.append(block.src.astype(np.uint64) << np.uint64(32) | block.dst)
        positions.append(source.position)
    assert positions == sorted(positions)
    check(name, source, np.concatenate(edges), source.nodes, source.labels)


def test_a_real_graph_of_names_is_read_whole(graphs):
    name = "wikispeedia_links.tsv.gz"
    source = open_source(graphs / name, labels=graphs / "wikispeedia_articles.tsv.gz")
    graph = read(source, 10_000)
    src, dst = np.array(graph.numbered(), np.uint64).T
    check(name, source, src << np.uint64(32) | dst, len(graph.nodes), list(graph.nodes))
    assert source.notices == []


def check(name, source, lines, nodes, labels):
    """Compare edges, from << 32 | to, and labels with what is known of a graph."""
    assert source.position == source.size
    distinct = len(np.unique(lines))
    loops = lines[lines >> np.uint64(32) == (lines & np.uint64(2**32 - 1))]
    src, dst = (lines >> np.uint64(32)).astype(np.int64), (lines & np.uint64(2**32 - 1)).astype(np.int64)
    if nodes is None:
        ids, numbers = np.unique(np.concatenate([src, dst]), return_inverse=True)
        nodes = len(ids)
        src, dst = numbers.reshape(2, -1)
    out_degrees, in_degrees = np.bincount(src, minlength=nodes), np.bincount(dst, minlength=nodes)
    assert (
        nodes,
        len(lines),
        distinct,
        len(np.unique(loops)),
        int((out_degrees == 0).sum()),
        int(out_degrees.max()),
        int(in_degrees.max()),
    ) == COUNTS[name]

    if name in LABELS:
        node, label = LABELS[name]
        labels = list(labels)
        assert labels[node] == label
        assert len(labels) == nodes
    else:
        assert labels is None
