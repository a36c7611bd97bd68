"""Katz and eigenvector centrality, hubs and authorities, against direct solutions, SciPy and NetworkX."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import oocpr
from oocpr.api import as_graph
from oocpr.engine.centrality import StreamedMatrix
from oocpr.errors import DoesNotFitError, InputError, UsageError

Matrix = NDArray[np.float64]


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """Weights of edges among a few nodes: some dangle, some are alone, some have loops; zero is no edge."""
    nodes = draw(st.integers(1, 12))
    weight = draw(st.sampled_from([st.just(1.0), st.sampled_from([0.25, 1.0, 3.0, 1e-3])]))
    matrix = np.zeros((nodes, nodes))
    node = st.integers(0, nodes - 1)
    for place, value in draw(st.dictionaries(st.tuples(node, node), weight, max_size=40)).items():
        matrix[place] = value
    return matrix


def graph_of(matrix: Matrix) -> oocpr.Graph:
    return as_graph(sp.sparse.csr_array(matrix), weight="values")


def radius(matrix: Matrix) -> float:
    return float(np.abs(np.linalg.eigvals(matrix)).max(initial=0.0))


@pytest.mark.long
@given(matrices(), st.sampled_from([0.1, 0.6, 0.97]), st.sampled_from([1.0, 0.125, 30.0]))
def test_katz_centrality_is_the_direct_solution_within_its_bound(
    matrix: Matrix, share: float, beta: float
) -> None:
    most = radius(matrix)
    alpha = share / most if most > 1e-3 else share
    exact = np.linalg.solve(np.eye(len(matrix)) - alpha * matrix.T, np.full(len(matrix), beta))
    found = oocpr.katz_centrality(graph_of(matrix), alpha=alpha, beta=beta, tol=1e-9)
    assert found.converged
    assert found.error_bound is not None
    assert found.error_bound <= 1e-9
    assert (np.abs(found.to_numpy() - exact) <= (found.error_bound + 1e-12 / (1 - share)) * exact).all()


@pytest.mark.long
@given(matrices(), st.sampled_from([1.01, 1.5, 20.0]))
def test_an_alpha_that_is_too_large_is_never_certified(matrix: Matrix, share: float) -> None:
    most = radius(matrix)
    if most < 1e-2:
        return
    with contextlib.suppress(UsageError):
        found = oocpr.katz_centrality(graph_of(matrix), alpha=share / most, max_passes=200)
        assert (found.converged, found.error_bound) == (False, np.inf)


def cosine(a: Matrix, b: Matrix) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.long
@given(matrices())
def test_hubs_and_authorities_are_singular_vectors(matrix: Matrix) -> None:
    if not matrix.any():
        with pytest.raises(InputError, match="no edges"):
            oocpr.hits(graph_of(matrix))
        return
    hubs, authorities = oocpr.hits(graph_of(matrix))
    left, sizes, right = np.linalg.svd(matrix)
    assert hubs.facts.eigenvalue == pytest.approx(sizes[0] ** 2, rel=1e-6)
    same = sizes >= (1 - 1e-9) * sizes[0]  # of several largest ones, a combination is an answer
    if sizes[np.argmin(same)] > 0.999 * sizes[0] and not same.all():
        return  # a residual of 1e-8 may then be of a vector that is far away
    for found, basis in ((hubs.to_numpy(), left.T[same]), (authorities.to_numpy(), right[same])):
        assert found.sum() == pytest.approx(1)
        assert (found >= 0).all()
        assert cosine(found, (basis @ found) @ basis) == pytest.approx(1, abs=1e-6)


def strongly_connected(nodes: int, seed: int) -> Matrix:
    """A circle, whose eigenvalues are all of one size, and some more edges with weights."""
    random = np.random.default_rng(seed)
    matrix = np.roll(np.eye(nodes), 1, axis=1)
    matrix[random.integers(0, nodes, 3 * nodes), random.integers(0, nodes, 3 * nodes)] = random.integers(1, 9)
    return matrix


@pytest.mark.long
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_an_eigenvector_is_that_of_numpy(nodes: int, seed: int) -> None:
    matrix = strongly_connected(nodes, seed)
    values, vectors = np.linalg.eig(matrix.T)
    exact = np.abs(vectors[:, np.argmax(values.real)].real)
    found = oocpr.eigenvector_centrality(graph_of(matrix))
    assert found.converged
    assert found.facts.eigenvalue == pytest.approx(values.real.max(), rel=1e-6)
    assert np.linalg.norm(found.to_numpy()) == pytest.approx(1)
    assert cosine(found.to_numpy(), exact) == pytest.approx(1, abs=1e-6)


def tiled(nodes: int = 3000, *, weighted: bool) -> sp.sparse.csr_array[np.float64]:
    """A matrix of which rows go on from tile to tile; the longest fills several of the least tiles."""
    random = np.random.default_rng(3)
    matrix = sp.sparse.random_array((nodes, nodes), density=0.002, rng=random, format="lil")
    matrix[: nodes - 50, 7] = 0.5
    matrix[5, ::3] = 0.25
    found = sp.sparse.csr_array(matrix)
    if not weighted:
        found.data[:] = 1
    return found


@pytest.mark.parametrize("weighted", [False, True])
def test_products_do_not_depend_on_threads_tiles_and_memory(tmp_path: Path, weighted: bool) -> None:
    from oocpr.ingest.build import build_store
    from oocpr.sources import open_source

    matrix = tiled(weighted=weighted)
    options: Any = {"weight": "values"} if weighted else {}
    x = np.random.default_rng(1).random(matrix.shape[0])
    for tile_edges in (1024, None):
        source = open_source(matrix, **options)
        path = tmp_path / f"{tile_edges}.zarr"
        build_store(source, path, memory=1 << 30, tile_edges=tile_edges)
        store = oocpr.open_graph(path).store
        assert store.tiles > (15 if tile_edges else 1)
        answers = []
        for threads, resident in ((1, 0), (2, store.tiles), (3, store.tiles // 2)):
            product = StreamedMatrix(store, resident, threads)
            received, reflected = np.empty_like(x), np.empty_like(x)
            for _ in range(2):  # tiles that stay are there the second time
                product.receive(x, received)
                product.reflect(x, reflected)
            product.close()
            answers.append((received, reflected))
        for received, reflected in answers:
            assert np.array_equal(received, answers[0][0])
            assert np.array_equal(reflected, answers[0][1])
        wanted = product.factor * (matrix.T @ x)
        assert np.allclose(answers[0][0], wanted, rtol=1e-13, atol=0)
        assert np.allclose(answers[0][1], product.factor * (matrix @ wanted), rtol=1e-13, atol=0)


def test_paths_of_a_chain_are_counted(tmp_path: Path) -> None:
    # No step by least squares makes the residual of a long chain smaller; the terms of the series do.
    nodes = np.arange(60)
    found = oocpr.katz_centrality((nodes[:-1], nodes[1:]), alpha=1.0)
    assert found.converged
    assert found.to_numpy() == pytest.approx(nodes + 1)
    with pytest.raises(UsageError, match="no cycle"):
        oocpr.eigenvector_centrality((np.array([0, 0]), np.array([1, 2])))


def test_a_graph_without_edges() -> None:
    empty = sp.sparse.csr_array((3, 3))
    assert oocpr.katz_centrality(empty, alpha=0.5, beta=2.0).to_numpy().tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(InputError, match="no edges"):
        oocpr.eigenvector_centrality(empty)


def test_passes_that_run_out_are_an_outcome(data: Path) -> None:
    graph = as_graph(str(data / "debian-bookworm-deps.txt.gz"))
    found = oocpr.katz_centrality(graph, alpha=0.02, max_passes=3)
    assert (found.converged, found.passes) == (False, 3)
    hubs, _ = oocpr.hits(graph, max_passes=3)
    assert (hubs.converged, hubs.error_bound) == (False, None)
    assert "not converged" in repr(hubs)


@pytest.mark.parametrize("passes", [1, 2, 14])
def test_the_last_passes_of_a_search_are_none_too_few(passes: int) -> None:
    # With 14, one product is left to a search that has made more before.
    matrix = sp.sparse.random_array((200, 200), density=0.02, rng=np.random.default_rng(5), format="csr")
    matrix.data[:] = 1
    for search, product in (
        (oocpr.eigenvector_centrality, matrix.T),
        (lambda *args, **options: oocpr.hits(*args, **options).hubs, matrix @ matrix.T),
    ):
        found = search(matrix, tol=1e-15, max_passes=passes)
        assert (found.converged, found.passes) == (False, passes)
        x = found.to_numpy() / np.linalg.norm(found.to_numpy())
        if passes <= 2:
            power = np.linalg.matrix_power(product.toarray(), passes - 1) @ np.ones(200)
            assert x == pytest.approx(power / np.linalg.norm(power), rel=1e-12)
        value = x @ (product @ x)
        assert found.facts.eigenvalue == pytest.approx(value, rel=1e-12)
        residual = np.linalg.norm(product @ x - value * x) / value
        assert found.facts.residual == pytest.approx(residual, rel=1e-6, abs=1e-14)
        assert residual < (3.0 if passes < 14 else 0.01)


def test_numbers_that_float64_hardly_holds_are_certified_for_what_they_are() -> None:
    edges = np.array([0, 2, 1, 0]), np.array([1, 1, 0, 2])
    matrix = np.zeros((3, 3))
    matrix[edges] = 1
    exact = [Fraction(x) for x in np.linalg.solve(np.eye(3) - 0.1 * matrix.T, np.ones(3)).tolist()]
    for beta in (5e-324, 1e-323, 1e-320, 1e-312, 2.2e-308, 1e-300, 1e300, 1.7e308):
        if beta > 1e308:
            with pytest.raises(UsageError, match="float64 holds no numbers as large"):
                oocpr.katz_centrality(edges, alpha=0.1, beta=beta)
            continue
        found = oocpr.katz_centrality(edges, alpha=0.1, beta=beta)
        assert found.error_bound is not None
        assert found.converged == (found.error_bound <= 1e-6) == (beta > 1e-317)
        for x, one in zip(found.to_numpy().tolist(), exact, strict=True):
            wanted = one * Fraction(beta)
            # What is wanted is exact to a few units of float64, too.
            assert found.error_bound == np.inf or abs(Fraction(x) - wanted) <= wanted * (
                Fraction(found.error_bound) + Fraction(1e-15)
            )


@pytest.mark.parametrize("passes", [1, 2, 14])
def test_authorities_are_what_the_hubs_point_to_whatever_the_passes(passes: int) -> None:
    matrix = sp.sparse.random_array((200, 200), density=0.02, rng=np.random.default_rng(6), format="csr")
    hubs, authorities = oocpr.hits(matrix, weight="values", tol=1e-15, max_passes=passes)
    assert hubs.passes == passes
    wanted = matrix.T @ hubs.to_numpy()
    assert authorities.to_numpy() == pytest.approx(wanted / wanted.sum(), rel=1e-13)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_katz_centrality_takes_no_more_passes_than_it_may(passes: int) -> None:
    matrix = np.random.default_rng(7).integers(0, 2, (30, 30)).astype(float)
    alpha = 0.3 / radius(matrix)
    found = oocpr.katz_centrality(sp.sparse.csr_array(matrix), alpha=alpha, tol=1e-15, max_passes=passes)
    assert (found.converged, found.passes) == (False, passes)
    exact = np.linalg.solve(np.eye(30) - alpha * matrix.T, np.ones(30))
    assert (np.abs(found.to_numpy() - exact) <= found.facts.error_bound * exact).all()
    x = found.to_numpy()
    assert found.facts.residual == pytest.approx(np.abs(alpha * (matrix.T @ x) + 1 - x).max(), rel=1e-9)


def test_what_cannot_be_is_refused_with_cause_and_remedy() -> None:
    edges = np.array([0, 1]), np.array([1, 0])
    with pytest.raises(UsageError, match="device is 'cuda', and hits is found on processors only"):
        oocpr.hits(edges, device="cuda")
    with pytest.raises(UsageError, match="alpha is -1"):
        oocpr.katz_centrality(edges, alpha=-1)
    with pytest.raises(UsageError, match="tol is 0"):
        oocpr.hits(edges, tol=0)
    with pytest.raises(DoesNotFitError, match="of memory in all, 32 MiB are given"):
        oocpr.hits(as_graph(edges), memory="32MiB")


@given(st.integers(2, 40), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_a_graph_without_cycles_is_not_said_to_have_an_eigenvector(nodes: int, edges: int, seed: int) -> None:
    ends = np.sort(np.random.default_rng(seed).integers(0, nodes, (edges + 1, 2)), axis=1)
    low, high = np.append(ends[ends[:, 0] < ends[:, 1]], [[0, 1]], axis=0).T
    with contextlib.suppress(UsageError):
        # Or its passes run out: what they come to is no eigenvector.
        assert not oocpr.eigenvector_centrality((low, high), max_passes=100).converged
    # With one edge back there is a cycle of two nodes at least, whose eigenvalue is one or more.
    found = oocpr.eigenvector_centrality((np.append(low, high[0]), np.append(high, low[0])))
    assert not found.converged or found.facts.eigenvalue >= 1 - 1e-6


def test_a_graph_without_cycles_is_refused_whatever_its_numbers_look_like() -> None:
    graphs = [np.triu_indices(40, 1)]
    for seed in range(4):
        ends = np.sort(np.random.default_rng(seed).integers(0, 40, (600, 2)), axis=1)
        graphs.append(tuple(ends[ends[:, 0] < ends[:, 1]].T))
    for edges in graphs:
        matrix = np.zeros((40, 40))
        matrix[edges] = 1
        assert not np.linalg.matrix_power(matrix, 40).any()
        with pytest.raises(UsageError, match="it has no cycle"):
            oocpr.eigenvector_centrality(edges, max_passes=300)


def test_a_search_for_cycles_leaves_a_long_search_as_it_is() -> None:
    # Rows of the chain leave the set one after the other, more than the first look for cycles has passes.
    chain, path = np.arange(100), np.arange(100, 180)
    source, target = np.hstack([[chain, chain + 1], [path[:-1], path[1:]], [path[1:], path[:-1]]])
    found = oocpr.eigenvector_centrality((source, target))
    matrix = np.zeros((180, 180))
    matrix[source, target] = 1
    assert found.converged
    assert found.facts.eigenvalue == pytest.approx(2 * np.cos(np.pi / 81), rel=1e-9)
    x = found.to_numpy()
    assert np.linalg.norm(matrix.T @ x - found.facts.eigenvalue * x) <= 1e-8 * found.facts.eigenvalue


def test_a_chain_too_long_for_the_passes_is_not_said_to_have_an_eigenvector() -> None:
    chain = np.arange(3000), np.arange(1, 3001)
    assert not oocpr.eigenvector_centrality(chain, max_passes=100).converged


def test_a_cycle_is_found_whose_numbers_are_small_beside_those_of_others() -> None:
    # Each layer has 300 times the numbers of the one before.
    layers = [np.array([0]), *(2 + 300 * k + np.arange(300) for k in range(3))]
    pairs = [np.array(np.meshgrid(one, other)).reshape(2, -1) for one, other in pairwise(layers)]
    source, target = np.hstack([[[0, 1], [1, 0]], *pairs])
    found = oocpr.eigenvector_centrality((source, target))
    assert found.converged
    assert found.facts.eigenvalue == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("edges", "alpha", "tol"),
    [
        ((np.arange(1, 1000), np.zeros(999, int)), 0.85, 1e-10),
        ((np.arange(10), np.roll(np.arange(10), 1)), 0.5, 1e-14),
        ((np.array([0]), np.array([1])), 1e10, 1e-6),
    ],
)
def test_what_rounding_leaves_ends_a_search(edges: Any, alpha: float, tol: float) -> None:
    found = oocpr.katz_centrality(edges, alpha=alpha, tol=tol)
    nodes = 1 + int(np.max(edges))
    matrix = np.zeros((nodes, nodes))
    matrix[edges] = 1
    exact = np.linalg.solve(np.eye(nodes) - alpha * matrix.T, np.ones(nodes))
    assert found.error_bound is not None
    assert tol < found.error_bound < 1
    assert not found.converged
    assert np.allclose(found.to_numpy(), exact, rtol=found.error_bound, atol=0)


def test_the_remedy_for_an_alpha_that_is_too_large_is_below_it() -> None:
    cycle = np.array([0, 1, 2]), np.array([1, 2, 0])
    with pytest.raises(UsageError, match=r"not below 1 .* estimated to be 1\.") as refused:
        oocpr.katz_centrality(cycle, alpha=1.5)
    assert refused.value.remedy == "Use a smaller alpha, by the estimate below 1."


@pytest.mark.parametrize(
    ("edges", "alphas"),
    [
        ((np.array([0, 1, 2]), np.array([1, 2, 3])), (1e5, 1e300)),
        (np.triu_indices(40, 1), (10, 1e3)),
    ],
)
def test_an_alpha_that_is_only_hard_is_not_said_to_be_above_a_limit(edges: Any, alphas: Any) -> None:
    graph = as_graph(edges)
    nodes = graph.nodes
    matrix = np.zeros((nodes, nodes))
    matrix[edges] = 1
    assert not np.linalg.matrix_power(matrix, nodes).any()  # so that no alpha is too large
    assert oocpr.katz_centrality(graph, alpha=0.5).converged
    for alpha in alphas:
        with pytest.raises(UsageError, match="numbers grow past what float64 can certify") as refused:
            oocpr.katz_centrality(graph, alpha=alpha)
        assert "eigenvalue" not in str(refused.value)
        assert refused.value.remedy == "Use a smaller alpha."


def test_tables_and_files_have_the_numbers(tmp_path: Path, data: Path) -> None:
    graph = as_graph(str(data / "debian-bookworm-deps.txt.gz"))
    hubs, authorities = oocpr.hits(graph)
    assert authorities.top(1)[0][0] == "libc6"
    frame = hubs.to_pandas()
    assert frame["rank"].tolist() == hubs.to_numpy().tolist()
    hubs.to_parquet(tmp_path / "hubs.parquet")
    assert oocpr.read_ranks(tmp_path / "hubs.parquet").top(3) == hubs.top(3)
    facts = hubs.report(1)
    assert facts["measure"] == "hubs"
    assert facts["identity"] == graph.store.identity
    assert list(facts)[-1] == "top"


@pytest.mark.long
@pytest.mark.parametrize("name", ["wiki-Vote.txt.gz", "soc-Slashdot0902.mtx.gz"])
def test_a_real_graph_has_the_numbers_of_networkx_and_scipy(graphs: Path, name: str) -> None:
    graph = as_graph(str(graphs / name))
    rows = as_rows(graph)
    found = oocpr.eigenvector_centrality(graph)
    exact = np.abs(sp.sparse.linalg.eigs(rows.T, k=1, which="LR")[1][:, 0].real)
    assert np.abs(found.to_numpy() - exact).max() < 1e-7
    hubs, authorities = oocpr.hits(graph)
    left, _, right = sp.sparse.linalg.svds(rows, k=1)
    for one, vector in ((hubs, np.abs(left[:, 0])), (authorities, np.abs(right[0]))):
        assert np.abs(one.to_numpy() - vector / vector.sum()).max() < 1e-8
    assert found.facts.eigenvalue is not None
    alpha = 0.85 / found.facts.eigenvalue
    katz = oocpr.katz_centrality(graph, alpha=alpha)
    summed = iterated(rows, alpha)
    assert (np.abs(katz.to_numpy() - summed) <= 1e-6 * summed).all()
    with pytest.raises(UsageError, match="not below 1 over the largest eigenvalue") as refused:
        oocpr.katz_centrality(graph, alpha=1.3 * alpha)
    said = float(refused.value.cause.rsplit(maxsplit=1)[1].rstrip("."))
    assert said == pytest.approx(found.facts.eigenvalue, rel=0.02)


def as_rows(graph: oocpr.Graph) -> sp.sparse.csr_array[np.float64]:
    """The matrix as the store has it, decoded by what the engine does not use."""
    from oocpr.store.codec.tiles import decode_tile

    store = graph.store
    buffer = np.empty(store.encoded.max_bytes, np.uint8)
    sizes = (store.encoded.read_into(tile, buffer) for tile in range(store.tiles))
    indices = np.concatenate([decode_tile(buffer[:size])[0] for size in sizes])
    parts = np.ones(len(indices)), indices, store.indptr(0, store.nodes + 1)
    return sp.sparse.csr_array(sp.sparse.csr_array(parts, (store.nodes, store.nodes)).T)


def iterated(rows: sp.sparse.csr_array[np.float64], alpha: float) -> Matrix:
    into, x = sp.sparse.csr_array(rows.T), np.ones(rows.shape[0])
    for _ in range(300):
        x = alpha * (into @ x) + 1
    return x


@pytest.mark.long
def test_the_memory_that_is_given_is_kept(tmp_path: Path) -> None:
    store = tmp_path / "g.zarr"
    oocpr.import_graph(oocpr_rmat(17), store)
    for measure in ("hits", "katz_centrality"):
        least = 64 << 20
        # What is needed counts what the process holds already, which differs by a little from one process to
        # the next, and is rounded in the message.
        for _ in range(4):
            done = run_in(store, measure, str(least))
            if done.returncode == 0:
                break
            needed = re.search(r"needs (\d+) MiB of memory in all", done.stderr.splitlines()[-1])
            assert needed, done.stderr
            assert int(needed[1]) << 20 >= least - (1 << 20), "what was given was refused for less"
            least = (int(needed[1]) + 1) << 20
        assert done.returncode == 0, done.stderr
        assert least > 64 << 20
        assert int(done.stdout) <= least


def oocpr_rmat(scale: int) -> Any:
    from oocpr.sources.rmat import Rmat

    return Rmat(scale)


def run_in(store: Path, measure: str, memory: str) -> subprocess.CompletedProcess[str]:
    more = ", alpha=1e-4" if measure == "katz_centrality" else ""
    code = (
        f"import oocpr; found = oocpr.{measure}({str(store)!r}, memory={memory!r}{more}); "
        "print(getattr(found, 'hubs', found).facts.peak_memory)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_networkx_has_the_same_numbers() -> None:
    graph = nx.gnp_random_graph(80, 0.08, seed=2, directed=True)
    for node in range(0, 80, 7):
        graph.add_edge(node, (3 * node + 1) % 80, weight=2.5)
    ours = oocpr.eigenvector_centrality(graph, weight="weight")
    wanted = nx.eigenvector_centrality(graph, weight="weight", tol=1e-12, max_iter=2000)
    assert ours.to_numpy() == pytest.approx(list(wanted.values()), abs=1e-7)
    katz = oocpr.katz_centrality(graph, alpha=0.05, beta=2.0, weight="weight").to_numpy()
    wanted = nx.katz_centrality(graph, alpha=0.05, beta=2.0, weight="weight", tol=1e-12, normalized=False)
    assert katz == pytest.approx(list(wanted.values()), rel=1e-6)
    hubs, authorities = oocpr.hits(graph, weight="weight")
    of_hubs, of_authorities = nx.hits(graph, tol=1e-12)
    assert hubs.to_numpy() == pytest.approx(list(of_hubs.values()), abs=1e-7)
    assert authorities.to_numpy() == pytest.approx(list(of_authorities.values()), abs=1e-7)
