import itertools
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array

from oocpr.errors import InputError, UsageError
from oocpr.ingest.build import build_store
from oocpr.sources import open_source
from oocpr.sources.rmat import Rmat
from oocpr.store.graph import open_store
from oocpr.system import resident

PLENTY = 3 * 2**30


tails = st.one_of(st.integers(0, 6), st.integers(90, 95))
heads = st.sampled_from([0, 1, 2, 3, 5, 6, 93, 200])
pairs_of_ids = st.lists(st.tuples(tails, heads), min_size=1, max_size=60)


def reference(src, dst, known):
    """In-link matrix over the ids `known`, each repeated link summed away."""
    rows, columns = np.searchsorted(known, dst), np.searchsorted(known, src)
    matrix = coo_array((np.ones(len(src), np.int64), (rows, columns)), shape=(known.size, known.size)).tocsr()
    matrix.data[:] = 1
    return matrix


@pytest.mark.long
@given(
    pairs=pairs_of_ids,
    order=st.sampled_from(["keep", "degree", "bfs", "dfs"]),
    gaps=st.booleans(),
    tile_edges=st.integers(1, 20),
    block_edges=st.sampled_from([1, 7, 100]),
    bucket_edges=st.sampled_from([2, 5, 17, 100]),
)
@settings(max_examples=40)
def test_any_graph_is_the_matrix_scipy_makes(
    tmp_path_factory, arrays, stored_matrix, pairs, order, gaps, tile_edges, block_edges, bucket_edges
):
    src, dst = np.array(pairs).T
    path = tmp_path_factory.getbasetemp() / "any.zarr"
    facts = build_store(
        arrays(src, dst, None if gaps else 201),
        path,
        memory=4 * PLENTY,
        order=order,
        tile_edges=tile_edges,
        overwrite=True,
        block_edges=block_edges,
        bucket_edges=bucket_edges,
    )
    known = np.unique(pairs) if gaps else np.arange(201)
    expected = reference(src, dst, known)
    raw_out_degree = np.bincount(src, minlength=201)[known]
    rows = np.argsort(-raw_out_degree, kind="stable") if order == "degree" else np.arange(known.size)

    store = open_store(path)
    node_ids = store.node_ids()
    if order in ("bfs", "dfs") and node_ids is not None:
        rows = np.searchsorted(known, node_ids)
        np.testing.assert_array_equal(np.sort(rows), np.arange(known.size))
    np.testing.assert_array_equal(np.arange(known.size) if node_ids is None else node_ids, known[rows])
    expected = expected[rows][:, rows].sorted_indices()
    stored = stored_matrix(path)
    np.testing.assert_array_equal(stored.indptr, expected.indptr)
    np.testing.assert_array_equal(stored.indices, expected.indices)

    out_degree = expected.sum(axis=0)
    np.testing.assert_array_equal(store.out_degree(0, store.nodes), out_degree)
    assert store.attributes == facts
    assert (facts.nodes, facts.edges) == (known.size, expected.nnz)
    assert facts.duplicates == len(pairs) - expected.nnz
    assert facts.self_loops == expected.trace()
    assert facts.dangling == np.count_nonzero(out_degree == 0)
    assert (facts.order, facts.tile_edges, facts.source) == (order, tile_edges, "arrays")


@pytest.mark.parametrize(
    ("gaps", "order"),
    [
        *((False, order) for order in ("keep", "degree", "bfs", "dfs", "auto")),
        *((True, order) for order in ("keep", "auto")),
        *(pytest.param(True, order, marks=pytest.mark.slow) for order in ("degree", "bfs")),
    ],
)
def test_the_same_bytes_for_any_budget_and_block(tmp_path, contents, order, gaps):
    source = Rmat(14)
    if gaps:
        blocks = list(source.blocks(2**30))
        source = open_source((3 * blocks[0].src, 3 * blocks[0].dst))
        source.name = "with gaps"
    build_store(source, tmp_path / "0.zarr", order=order, memory=4 * PLENTY)
    stores = [contents(tmp_path / "0.zarr")]
    ways = [
        {"memory": resident() + (64 << 20), "block_edges": 1000},
        {"memory": 4 * PLENTY, "bucket_edges": 1000},
        {"memory": 4 * PLENTY, "bucket_edges": 40_000, "block_edges": 1 << 16},
    ]
    for k, way in enumerate(ways, 1):
        build_store(source, tmp_path / f"{k}.zarr", order=order, **way)
        stores.append(contents(tmp_path / f"{k}.zarr"))
    assert len(stores[0]) > 10
    for other in stores[1:]:
        assert other == stores[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["rows", "gaps", "hub"])
def test_the_same_bytes_for_any_budget_and_number_of_threads(tmp_path, contents, cores, kind):
    blocks = list(Rmat(17).blocks(1 << 16))
    src, dst = (np.concatenate([getattr(block, end) for block in blocks]) for end in ("src", "dst"))
    if kind == "gaps":
        src, dst = 3 * src, 3 * dst
    if kind == "hub":
        dst[::2] = 7
    # Bytes beside what the process holds: with least of them most edges go to the disk.
    for k, (threads, spare) in enumerate(itertools.product((1, 2), (28 << 20, 80 << 20, 2 << 30))):
        cores(threads)
        source = open_source((src, dst))
        build_store(source, tmp_path / f"{k}.zarr", memory=resident() + spare, tile_edges=1 << 14)
    stores = [contents(path) for path in sorted(tmp_path.iterdir())]
    assert len(stores) == 6
    assert len(stores[0]) > 60
    assert all(store == stores[0] for store in stores)


@pytest.mark.slow
def test_the_same_bytes_at_scale(tmp_path, contents):
    stores = []
    for threads, mebibytes in itertools.product((1, 2), (256, 1024, 8192)):
        path = tmp_path / "g.zarr"
        done = subprocess.run(
            [sys.executable, "-c", AT_SCALE, path, str(threads), str(mebibytes << 20)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) <= mebibytes << 20
        stores.append({name: zlib.crc32(data) for name, data in contents(path).items()})
        assert stores[-1] == stores[0]


AT_SCALE = """
import os, sys
from pathlib import Path
from oocpr.ingest.build import build_store
from oocpr.sources.rmat import Rmat

path, threads, memory = sys.argv[1:]
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
build_store(Rmat(5), path, memory=1 << 33, overwrite=True)  # compiled, if it was not
Path("/proc/self/clear_refs").write_text("5")
build_store(Rmat(22), path, memory=int(memory), overwrite=True, tile_edges=1 << 18)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) << 10)
"""


@pytest.mark.parametrize(("pair", "node_ids"), [((0, 2), [0, 2]), ((1, 1), [1]), ((1, 0), None)])
def test_one_gap_is_enough_for_ids_to_be_kept(tmp_path, arrays, pair, node_ids):
    build_store(arrays([pair[0]], [pair[1]]), tmp_path / "g.zarr", memory=PLENTY)
    found = open_store(tmp_path / "g.zarr").node_ids()
    assert (found if found is None else found.tolist()) == node_ids


@pytest.mark.parametrize("nodes", [1, 7])
def test_a_graph_without_links_has_its_nodes(tmp_path, arrays, nodes):
    facts = build_store(arrays([], [], nodes), tmp_path / "g.zarr", memory=PLENTY, order="degree")
    assert (facts.nodes, facts.edges, facts.dangling, facts.tiles) == (nodes, 0, nodes, 1)
    assert open_store(tmp_path / "g.zarr").indptr(0, nodes + 1).tolist() == [0] * (nodes + 1)


@pytest.mark.parametrize(
    ("order", "called"),
    [
        ("keep", ["b.org/a", "a.org", "b.org", "c"]),
        ("degree", ["c", "b.org", "b.org/a", "a.org"]),
        ("host", ["c", "a.org", "b.org", "b.org/a"]),
        ("bfs", ["b.org/a", "c", "a.org", "b.org"]),
    ],
)
def test_labels_stay_with_their_nodes(tmp_path, arrays, order, called):
    source = arrays([3, 3, 2], [0, 1, 3], nodes=4, labels=["b.org/a", "a.org", "b.org", "c"])
    build_store(source, tmp_path / "g.zarr", memory=PLENTY, order=order)
    store = open_store(tmp_path / "g.zarr")
    assert store.labels(range(4)) == called
    node_ids = range(4) if store.node_ids() is None else store.node_ids()
    assert [source.labels[node] for node in node_ids] == called


@pytest.mark.parametrize("nodes", [None, 4])
def test_ids_have_no_hosts(tmp_path, arrays, nodes):
    source = arrays([3, 3, 2], [0, 1, 3], nodes)
    with pytest.raises(UsageError, match="nodes without names"):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY, order="host")
    assert list(tmp_path.iterdir()) == []


def test_progress_names_the_stages_and_never_goes_back(tmp_path):
    told = {}

    def listen(stage, done, total, unit, note=""):
        assert done >= told.get(stage, (0,))[0]
        assert done <= total
        told[stage] = (done, total, unit)

    m = 16 << 12
    build_store(
        Rmat(12), tmp_path / "g.zarr", memory=PLENTY, order="degree", bucket_edges=9999, progress=listen
    )
    assert told == {
        "reading": (8 * m, 8 * m, "B"),
        "ordering": (m, m, "edges"),
        "partitioning": (m, m, "edges"),
        "writing": (m, m, "edges"),
    }


@pytest.mark.parametrize("order", ["bfs", "auto"])
def test_progress_of_an_order_that_goes_over_the_links_again_and_again(tmp_path, order):
    told = []

    def listen(stage, done, total, unit, note=""):
        if stage == "ordering":
            told.append((done, total, unit))

    build_store(Rmat(12), tmp_path / "g.zarr", memory=PLENTY, order=order, progress=listen)
    m = 16 << 12
    done = [edges for edges, _, _ in told]
    assert done == sorted(done)
    # Whole traversals, three of them at least, nobody knows how many.
    assert {m, 2 * m, 3 * m} <= set(done)
    assert done[-1] % m == 0
    assert {(total, unit) for _, total, unit in told} == {(None, "edges")}


def test_an_id_beyond_the_nodes_a_source_names(tmp_path, arrays):
    with pytest.raises(InputError, match=r"node 9, but says it has nodes 0 to 4"):
        build_store(arrays([0, 9], [1, 2], nodes=5), tmp_path / "g.zarr", memory=PLENTY)
    assert list(tmp_path.iterdir()) == []


def test_a_source_without_nodes(tmp_path, arrays):
    with pytest.raises(InputError, match="no nodes"):
        build_store(arrays([], []), tmp_path / "g.zarr", memory=PLENTY)


def test_weights_are_not_dropped_silently(tmp_path, arrays):
    source = arrays([0], [1], weight=np.ones(1))
    source.weighted = False
    with pytest.raises(UsageError, match="weights"):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("order", "random", "keep, degree, host, bfs, dfs, auto"),
        ("tile_edges", 0, "tile of 0"),
        ("tmp", "absent", "no temporary"),
    ],
)
def test_parameters_that_cannot_be(tmp_path, monkeypatch, arrays, argument, value, message):
    monkeypatch.chdir(tmp_path)
    source = arrays([0], [1])
    with pytest.raises(UsageError, match=message):
        build_store(source, "g.zarr", memory=PLENTY, **{argument: value})
    assert source.reads == 0
    assert list(tmp_path.iterdir()) == []


def test_what_stands_there_is_found_before_the_source_is_read(tmp_path, arrays, contents):
    build_store(arrays([0], [1]), tmp_path / "g.zarr", memory=PLENTY)
    before = contents(tmp_path)
    source = arrays([0, 1], [1, 2])
    with pytest.raises(UsageError, match="exists"):
        build_store(source, tmp_path / "g.zarr", memory=PLENTY)
    assert source.reads == 0
    assert contents(tmp_path) == before
    assert build_store(source, tmp_path / "g.zarr", memory=PLENTY, overwrite=True).nodes == 3


@pytest.mark.parametrize(
    ("name", "edges", "duplicates", "loops", "dangling", "nodes"),
    [
        ("debian-bookworm-deps.txt.gz", 309_498, 20_519, 2, 6_513, 63_436),
        ("wiki-Vote.txt.gz", 103_689, 0, 0, 1_005, 7_115),
        ("cit-HepTh.mtx.gz", 352_807, 0, 39, 2_711, 27_770),
    ],
)
def test_real_graphs_have_their_published_counts(
    tmp_path, graphs, name, edges, duplicates, loops, dangling, nodes
):
    facts = build_store(open_source(graphs / name), tmp_path / "g.zarr", memory=PLENTY, order="degree")
    assert (facts.nodes, facts.edges, facts.duplicates) == (nodes, edges, duplicates)
    assert (facts.self_loops, facts.dangling) == (loops, dangling)


@pytest.mark.long
def test_a_graph_makes_the_same_store_from_every_format(tmp_path, graphs, contents):
    import pyarrow as pa
    import pyarrow.parquet as pq

    blocks = list(open_source(graphs / "cnr-2000.graph").blocks(1 << 20))
    ends = [np.concatenate([getattr(block, end) for block in blocks]) for end in ("src", "dst")]
    pq.write_table(pa.table(ends, names=["from", "to"]), tmp_path / "cnr-2000.parquet")
    np.save(tmp_path / "cnr-2000.npy", np.array(ends))
    paths = [graphs / "cnr-2000.graph", graphs / "cnr-2000.mtx.xz", *sorted(tmp_path.glob("cnr*"))]
    stores = []
    for k, path in enumerate(paths):
        build_store(open_source(path), tmp_path / f"{k}.zarr", memory=resident() + 2**30)
        stores.append(contents(tmp_path / f"{k}.zarr"))
    assert len(stores) == 4
    assert all(store == stores[0] for store in stores)
