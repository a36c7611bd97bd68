"""Weighted graphs on the tiled methods, against direct solution and against laws that hold to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.engine.number_formats import READS
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import ROUNDING, Settings
from oocpr.engine.stripe import Job
from oocpr.engine.tiles.source import weight_scale_of
from oocpr.errors import DamagedError, UsageError

from ..store.damage import flip_bits
from .digraphs import fewer, random_digraph, teleports
from .running import CONVERGENT, KEPT, PLENTY, TILED, check_same_bits, passes, plan_of, rank
from .weighted import KINDS, WeightedGraph, random_weighted, weighted_graphs, weights_of

if TYPE_CHECKING:
    from oocpr.store.graph import GraphStore


def quick(*kinds: str) -> list[Any]:
    """All kinds of weights; those that are not named with --run-slow only."""
    return [pytest.param(kind, marks=[] if kind in kinds else pytest.mark.slow) for kind in KINDS]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[WeightedGraph, int], GraphStore]:
    def store(graph: WeightedGraph, tile_edges: int) -> GraphStore:
        return graph.write(tmp_path_factory.mktemp("weighted") / "g.zarr", tile_edges)

    return store


@pytest.mark.long
@pytest.mark.parametrize(("name", "reads"), CONVERGENT)
@pytest.mark.parametrize("kind", quick("counts", "reals"))
def test_ranks_lie_within_their_bound(stored, name, reads, kind):
    graph = random_weighted(200, 900, 3, kind)
    store = stored(graph, 150)
    tol = 1e-6 if (name, reads) == ("power", "float32") else 1e-10
    exact = graph.exact_ranks(0.85)
    for backend, kept in (("reference", "decoded"), ("cpu", "decoded"), ("cpu", "some"), ("cpu", "none")):
        run = rank(store, method=name, reads=reads, tol=tol, backend=backend, kept=kept, stripes=2, sweeps=4)
        assert run.converged
        assert run.error_bound <= tol
        assert np.abs(run.ranks - exact).sum() <= run.error_bound


@pytest.mark.long
@fewer(5)
@given(graph=weighted_graphs(), data=st.data())
def test_any_small_graph(graph, data):
    teleport = data.draw(teleports(graph.nodes))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    name, reads = data.draw(st.sampled_from(CONVERGENT))
    tol = 1e-6 if (name, reads) == ("power", "float32") else 1e-10
    exact = graph.exact_ranks(0.85, teleport, dangling)
    with TemporaryDirectory() as folder:
        store = graph.write(Path(folder) / "g.zarr", data.draw(st.integers(1, 40)))
        stripes = data.draw(st.integers(1, min(4, store.tiles)))
        runs = [
            rank(
                store, method=name, reads=reads, tol=tol, teleport=teleport, dangling=dangling,
                stripes=stripes, sweeps=3, kept=kept, threads=threads,
            )
            for threads, kept in ((1, "decoded"), (2, "packed"), (3, "none"))
        ]  # fmt: skip
    assert runs[0].converged
    assert np.abs(runs[0].ranks - exact).sum() <= runs[0].error_bound
    for run in runs[1:]:
        assert np.array_equal(run.ranks, runs[0].ranks)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("tile_edges", [1, pytest.param(16, marks=pytest.mark.slow), 2000])
@pytest.mark.parametrize("kind", quick("reals"))
def test_a_pass_delivers_what_the_plain_backend_delivers(stored, reads, tile_edges, kind):
    graph = random_weighted(60, 150, tile_edges, kind)
    store = stored(graph, tile_edges)
    weights = np.random.default_rng(5).random(store.nodes) ** 4
    for stripes in {1, min(4, store.tiles)}:
        settings = Settings(reads=reads)
        done = {}
        for backend, kept in (("reference", "decoded"), *(("cpu", kept) for kept in KEPT)):
            plan = plan_of(store, settings, sweeps=3, personalized=True, stripes=stripes, kept=kept)
            unit = weight_scale_of(store, reads)
            teleport = weights / weights.sum()
            job = Job("", settings, plan, backend, threads=1, teleport=teleport, weight_scale=unit)
            done[backend, kept] = list(passes(job, store, 2))
        plain, later = done.pop(("reference", "decoded"))
        for ours, then in done.values():
            assert np.array_equal(ours.pushed, plain.pushed)
            assert np.abs(ours.after - plain.after).sum() <= 1e-14
            close = 1e-6 if READS[reads].bytes >= 4 else 2 * READS[reads].unit_rounding
            assert np.abs(then.pushed - later.pushed).sum() <= close * np.abs(later.pushed).sum()


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("kind", quick("reals"))
def test_the_kept_residual_is_that_of_the_exact_product(stored, reads, kind):
    graph = random_weighted(400, 3000, 8, kind)
    store, settings = stored(graph, 500), Settings(reads=reads)
    plan = plan_of(store, settings, sweeps=4, stripes=2)
    job = Job("", settings, plan, "cpu", threads=1, weight_scale=weight_scale_of(store, reads))
    for done in passes(job, store, 20):
        fresh = graph.product(done.p, 0.85) - done.p
        kept = done.after - done.p
        # A third of what each bound allows for.
        assert np.abs(kept - fresh).sum() <= ROUNDING / 3 * abs(done.p.sum())


@pytest.mark.parametrize("reads", READS)
def test_any_start_gives_the_same_ranks(stored, reads):
    graph = random_weighted(200, 900, 3)
    store = stored(graph, 150)
    exact = graph.exact_ranks(0.85)
    near = exact * (1 + 1e-6 * np.random.default_rng(1).random(200))
    plain, run = rank(store, reads=reads), rank(store, reads=reads, start=near / near.sum())
    assert np.abs(run.ranks - exact).sum() <= run.error_bound
    assert run.converged
    assert run.passes < plain.passes


@pytest.mark.long
@pytest.mark.parametrize("reads", ["float64", "float32", "bits16"])
@pytest.mark.parametrize("kept", ["decoded", "none"])
def test_the_unit_of_the_weights_of_a_node_changes_no_bit(stored, reads, kept):
    graph = random_weighted(300, 2000, 4)
    rng = np.random.default_rng(1)
    runs = [
        rank(stored(graph.scaled(np.ldexp(1.0, powers)), 300), reads=reads, kept=kept, stripes=2)
        for powers in (np.zeros(300, int), np.full(300, -600), np.full(300, 700), rng.integers(-9, 9, 300))
    ]
    for run in runs[1:]:
        check_same_bits(run, runs[0])


@pytest.mark.parametrize("name", TILED)
def test_weights_of_one_are_no_weights(stored, tmp_path, name):
    from oocpr.ingest.build import build_store
    from oocpr.sources import open_source
    from oocpr.store.graph import open_store

    bare = random_digraph(300, 1500, 6)
    build_store(open_source(bare.entries), tmp_path / "bare.zarr", memory=PLENTY, tile_edges=250)
    plain = open_store(tmp_path / "bare.zarr")
    ours = stored(WeightedGraph.of(bare, 3.0), 250)
    how = {"method": name, "reads": "float64" if name == "power" else "bits16"}
    one, other = rank(plain, **how), rank(ours, **how)
    assert np.abs(one.ranks - other.ranks).sum() <= one.error_bound + other.error_bound
    assert abs(one.passes - other.passes) <= 1


def test_networkx_agrees(stored):
    graph = random_weighted(150, 600, 9, "counts")
    other = nx.DiGraph()
    other.add_nodes_from(range(graph.nodes))
    links = zip(graph.src.tolist(), graph.dst.tolist(), graph.weight.tolist(), strict=True)
    other.add_weighted_edges_from(links)
    theirs = nx.pagerank(other, alpha=0.85, tol=1e-15, max_iter=1000, weight="weight")
    run = rank(stored(graph, 100))
    assert np.abs(run.ranks - np.array([theirs[v] for v in range(graph.nodes)])).sum() <= 1e-9


def test_links_without_weight_carry_nothing(stored):
    graph = random_weighted(100, 500, 2)
    kept = graph.weight > 0
    assert not kept.all()
    fewer_links = replace(graph, src=graph.src[kept], dst=graph.dst[kept], weight=graph.weight[kept])
    one, other = (rank(stored(links, 10**4)) for links in (graph, fewer_links))
    assert np.abs(one.ranks - other.ranks).sum() <= one.error_bound + other.error_bound


@pytest.mark.parametrize("kind", ["none", "zero"])
def test_a_graph_of_dangling_nodes_alone(stored, kind):
    bare = WeightedGraph.of(random_digraph(40, 30, 1), 0.0)
    if kind == "none":
        bare = replace(bare, src=bare.src[:0], dst=bare.dst[:0], weight=bare.weight[:0])
    run = rank(stored(bare, 10))
    assert np.abs(run.ranks - 1 / 40).sum() <= run.error_bound


def test_long_rows_and_tiles_inside_them(stored):
    rng = np.random.default_rng(4)
    nodes = 30_000
    src = np.concatenate([np.arange(nodes), rng.integers(0, nodes, 30_000)])
    dst = np.concatenate([np.full(nodes, 7), rng.integers(0, 400, 30_000)])
    bare = WeightedGraph.of(replace(random_digraph(nodes, 1, 1), src=src, dst=dst))
    graph = replace(bare, weight=weights_of(rng, len(bare.src), "reals"))
    sums = np.where(graph.out_weight > 0, graph.out_weight, 1)
    p = np.full(nodes, 1 / nodes)
    for _ in range(200):
        given = p / sums
        lost = p[graph.out_weight == 0].sum()
        p = 0.85 * (graph.into @ given + lost / nodes) + 0.15 / nodes
    for tile_edges, stripes in ((2**17, 1), (5000, 4)):
        store = stored(graph, tile_edges)
        runs = [
            rank(store, stripes=stripes, threads=threads, kept=kept)
            for threads, kept in ((1, "decoded"), (3, "decoded"), (2, "none"))
        ]
        assert np.abs(runs[0].ranks - p / p.sum()).sum() <= runs[0].error_bound + 1e-13
        for run in runs[1:]:
            assert np.array_equal(run.ranks, runs[0].ranks)


def test_what_has_no_version_for_weights_is_refused(stored):
    store = stored(random_weighted(50, 100, 1), 40)
    settings = Settings(method="components", reads="float32")
    with pytest.raises(UsageError, match=r"weighted.* method components"):
        rank_graph(store, plan_of(store, Settings()), settings)
    with pytest.raises(UsageError, match=r"weighted.* kernel ell does not take"):
        rank_graph(store, plan_of(store, Settings()), Settings(), backend="cuda:0", kernel="ell")


def test_reads_that_cannot_hold_the_span_of_the_weights_are_refused(stored):
    graph = random_weighted(50, 300, 1, "counts").scaled(np.ldexp(1.0, np.arange(50) * 4 - 100))
    store = stored(graph, 40)
    with pytest.raises(UsageError, match="too far apart for reads bits16"):
        rank(store)
    run = rank(store, reads="float64")
    assert np.abs(run.ranks - graph.exact_ranks(0.85)).sum() <= run.error_bound


@pytest.mark.parametrize("kept", ["decoded", "none"])
def test_damaged_weights_end_a_run(stored, kept):
    store = stored(random_weighted(50, 300, 1), 40)
    flip_bits(Path(store.path) / "in_edges/data/c/3", -9)
    with pytest.raises(DamagedError, match="in_edges/data/c/3"):
        rank(store, kept=kept)


def test_what_is_read_is_columns_and_weights(stored):
    store = stored(random_weighted(300, 2000, 1), 200)
    run = rank(store, kept="none")
    frame = 32 * store.tiles
    each = store.attributes.column_bytes + store.attributes.data_bytes
    assert run.passes * each <= run.bytes_read <= run.passes * (each + frame)
