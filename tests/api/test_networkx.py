"""The backend of NetworkX, against NetworkX itself."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oocpr
from oocpr.api import networkx_backend
from oocpr.errors import InputError, UsageError

KINDS = (nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph)
NAMES = [0, 1, "1", 2.5, (3, "x"), frozenset({4}), int, -5.0, b"8"]


@pytest.fixture(autouse=True)
def uncached() -> Iterator[None]:
    """NetworkX warns of graphs that it converted before; here each conversion is what is tested."""
    with nx.config(cache_converted_graphs=False):
        yield


def numbers(keys: Any, least: float = 0.0) -> st.SearchStrategy[dict[Any, float]]:
    return st.dictionaries(
        keys, st.integers(int(4 * least), 12).map(lambda quarters: quarters / 4), max_size=6
    )


@st.composite
def calls(draw: st.DrawFn) -> tuple[nx.Graph, dict[str, Any]]:
    """A graph of any kind, and arguments of pagerank."""
    graph = draw(st.sampled_from(KINDS))()
    graph.add_nodes_from(draw(st.lists(st.sampled_from(NAMES), min_size=1)))
    node = st.sampled_from(NAMES)
    weight = st.sampled_from([{}, {"weight": 0}, {"weight": 0.5}, {"weight": 3}, {"cost": 2.5}])
    if draw(st.booleans()):
        weight |= st.just({"weight": -0.25})
    graph.add_edges_from(draw(st.lists(st.tuples(node, node, weight), max_size=25)))
    some = {
        "alpha": st.sampled_from([0, 0.3, 0.85, 0.99, 1]),
        "personalization": numbers(node | st.just("no node"), draw(st.sampled_from([0, -1]))),
        "dangling": numbers(node) | st.just(dict.fromkeys(graph, 2)),
        "nstart": numbers(node, draw(st.sampled_from([0, -1]))),
        "weight": st.sampled_from(["cost", None, "lacking"]),
        "tol": st.sampled_from([1e-3, 1e-6, 1e-9, 1e-16, 0.0]),
        "max_iter": st.sampled_from([0, 1, 3, 40]),
    }
    arguments = {name: draw(value) for name, value in some.items() if draw(st.booleans())}
    if "personalization" in arguments and draw(st.booleans()):
        arguments["dangling"] = arguments["personalization"]
    return graph, arguments


def outcome(graph: nx.Graph, arguments: dict[str, Any]) -> tuple[dict[Any, float], type | None]:
    """Ranks, or the kind of error."""
    try:
        return nx.pagerank(graph, **arguments), None
    except (ZeroDivisionError, nx.PowerIterationFailedConvergence) as error:
        return {}, type(error)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NetworkX divides by sums of zero
@given(calls())
def test_ranks_are_those_of_networkx(call: tuple[nx.Graph, dict[str, Any]]) -> None:
    graph, arguments = call
    alpha, limit = arguments.get("alpha", 0.85), len(graph) * arguments.get("tol", 1e-6)
    wanted, failed = outcome(graph, arguments)
    ranks, refused = outcome(graph, arguments | {"backend": "oocpr"})
    if failed is nx.PowerIterationFailedConvergence and refused is None:
        # Fewer passes may suffice.
        assert arguments.get("max_iter", 100) >= 1
        wanted, failed = outcome(graph, arguments | {"max_iter": 100_000})
    assert refused is failed
    if failed is not None:
        return
    assert list(ranks) == list(graph)
    assert all(type(rank) is float for rank in ranks.values())
    # Each is off by so much at most, by the rule of both.
    allowed = 1e-9 if alpha == 1 else 2 * alpha / (1 - alpha) * limit + 1e-12
    assert sum(abs(ranks[node] - wanted[node]) for node in graph) <= allowed


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])} | more


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


SUITES = [
    "networkx.algorithms.link_analysis",
    *(f"networkx.algorithms.centrality.tests.test_{name}_centrality" for name in ("katz", "eigenvector")),
]


@pytest.mark.long
def test_networkx_passes_its_own_tests() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "-c", os.devnull, "--pyargs", *SUITES],
        env=environment(NETWORKX_TEST_BACKEND="oocpr", NETWORKX_FALLBACK_TO_NX="True"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A test that cannot run on a backend would be skipped, or expected to fail.
    summary = done.stdout.splitlines()[-1]
    assert "passed" in summary
    assert "skipped" not in summary
    assert "xfailed" not in summary


@pytest.mark.long
def test_networkx_chooses_the_backend_for_large_graphs_if_it_has_priority() -> None:
    edges = networkx_backend.LEAST_EDGES
    code = f"""
import networkx as nx
for edges in ({edges} - 1, {edges}):
    graph = nx.gnm_random_graph(2000, edges, seed=1, directed=True)
    assert len(nx.pagerank(graph)) == 2000
    print("oocpr" in graph.__networkx_cache__.get("backends", ()))
"""
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(NETWORKX_BACKEND_PRIORITY="oocpr"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["False", "True"]


def test_networkx_finds_the_backend_and_loads_it_late() -> None:
    (found,) = entry_points(group="networkx.backends", name="oocpr")
    assert found.load() is networkx_backend
    assert "oocpr : PageRank for graphs larger than memory" in nx.pagerank.__doc__
    assert modules_after("import networkx, oocpr").isdisjoint({"oocpr.api", "numpy"})
    assert modules_after("import oocpr.api").isdisjoint({"oocpr.api.networkx_backend", "networkx"})


def test_graphs_that_networkx_keeps_are_ranked_without_their_weights() -> None:
    graph = nx.MultiGraph()
    graph.add_edge("a", "b", weight=5)
    graph.add_edge("a", "b", weight=0)
    graph.add_edge("b", "c", weight=0)
    graph.add_edge("c", "a")
    with nx.config(cache_converted_graphs=True, warnings_to_ignore={"cache"}):
        for weight in ("weight", None, "weight"):
            arguments = {"weight": weight, "tol": 1e-12, "max_iter": 1000}
            ranks = nx.pagerank(graph, backend="oocpr", **arguments)
            assert ranks == pytest.approx(nx.pagerank(graph, **arguments), abs=1e-10)
        assert len(graph.__networkx_cache__["backends"]["oocpr"]) == 1


@pytest.mark.parametrize("kind", [nx.MultiGraph, nx.MultiDiGraph])
def test_parallel_edges_are_added_up_without_a_word(kind: type, caplog: pytest.LogCaptureFixture) -> None:
    graph = kind([(1, 2), (1, 2), (2, 3), (3, 1), (2, 1)])
    ranks = nx.pagerank(graph, backend="oocpr", tol=1e-12)
    assert ranks == pytest.approx(nx.pagerank(graph, tol=1e-12), abs=1e-10)
    assert not caplog.records


def test_views_are_ranked_in_their_order() -> None:
    graph = nx.DiGraph([(4, 3), (3, 2), (2, 1), (1, 4), (4, 2), (0, 1)])
    view = graph.subgraph([1, 2, 4])
    ranks = nx.pagerank(view, backend="oocpr", tol=1e-12)
    assert list(ranks) == list(view)
    assert ranks == pytest.approx(nx.pagerank(view, tol=1e-12), abs=1e-10)


@pytest.mark.parametrize("weight", ["five", [1], {}])
def test_weights_that_are_no_numbers_are_refused_as_networkx_does(weight: object) -> None:
    graph = nx.Graph()
    graph.add_edge(0, 1, weight=weight)
    graph.add_edge(1, 2, weight=1)
    with pytest.raises((TypeError, ValueError)) as theirs:
        nx.pagerank(graph)
    with pytest.raises(theirs.type):
        nx.pagerank(graph, backend="oocpr")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_text_are_taken_and_refused_as_networkx_does(kind: type) -> None:
    for textual in ([(1, 2)], [(2, 2)], [(1, 2), (2, 2)]):
        graph = kind([(1, 2), (2, 2), (2, 3), (3, 1)])
        for edge in textual:
            nx.set_edge_attributes(graph, {(*edge, 0) if graph.is_multigraph() else edge: "2"}, "weight")
        if graph.is_directed() or (2, 2) not in textual:
            ranks = nx.pagerank(graph, backend="oocpr")
            assert ranks == pytest.approx(nx.pagerank(graph, tol=1e-12), abs=1e-5)
            continue
        for backend in ("networkx", "oocpr"):
            with pytest.raises(TypeError):
                nx.pagerank(graph, backend=backend)


def test_all_attributes_at_once_are_not_taken() -> None:
    with pytest.raises(NotImplementedError, match="oocpr"):
        nx.pagerank(nx.path_graph(3), weight=len, backend="oocpr")


@pytest.fixture(scope="module", params=["numbers", "text"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A weighted graph of NetworkX, and its store."""
    random = np.random.default_rng(3)
    graph = nx.DiGraph()
    for source, target, weight in zip(
        *random.integers(0, 60, (2, 300)), random.integers(1, 9, 300), strict=True
    ):
        graph.add_edge(10 * int(source) - 200, 10 * int(target) - 200, weight=int(weight))
    graph.remove_edges_from(list(graph.out_edges([50, 100])))  # dangling nodes
    if request.param == "text":
        graph = nx.relabel_nodes(graph, {node: f"node {node}" for node in graph})
    path = tmp_path_factory.mktemp("store") / "g.zarr"
    return graph, oocpr.import_graph(graph, path, weight="weight")


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"alpha": 0.6, "weight": "whatever"},
    {"personalization": {0: 2, 30: 1, "node 30": 4, (1, 2): 5, "nobody": 1, 2.5: 3, 10**30: 1}},
    {"nstart": {0: 2, "node 30": 4, "nobody": 1}},
    {"dangling": "even"},
]


@pytest.mark.parametrize("number", range(len(ARGUMENTS)))
def test_stored_graphs_are_ranked_as_those_of_networkx(number: int, pair: Any) -> None:
    graph, stored = pair
    arguments = dict(ARGUMENTS[number])
    if arguments.get("dangling") == "even":
        arguments |= {"dangling": dict.fromkeys(graph, 3), "personalization": {50: 1, "node 50": 2}}
    wanted = nx.pagerank(graph, tol=1e-14, max_iter=1000, **arguments | {"weight": "weight"})
    for ranks in (
        nx.pagerank(stored, tol=1e-13, **arguments),
        nx.pagerank(stored, tol=1e-13, backend="oocpr", **arguments),
    ):
        assert ranks == pytest.approx(wanted, abs=1e-10)
        assert {type(rank) for rank in ranks.values()} == {float}
        assert {type(node) for node in ranks} == {type(node) for node in graph}


def test_stored_graphs_are_refused_what_oocpr_cannot_do(pair: Any) -> None:
    _, stored = pair
    with pytest.raises(UsageError, match="damping is 1, outside"):
        nx.pagerank(stored, alpha=1)
    with pytest.raises(UsageError, match="weights, and weight is None"):
        nx.pagerank(stored, weight=None)
    with pytest.raises(UsageError, match="dangling is neither"):
        nx.pagerank(stored, dangling={0: 1, "node 0": 1})
    with pytest.raises(ZeroDivisionError):
        nx.pagerank(stored, personalization={"nobody": 1})
    for passes in (0, 1):
        with pytest.raises(nx.PowerIterationFailedConvergence):
            nx.pagerank(stored, max_iter=passes, tol=1e-14)
    with pytest.raises(NotImplementedError, match="clustering"):
        nx.clustering(stored)
    with pytest.raises(NotImplementedError, match="hits"):
        nx.hits(stored, nstart={0: 1})
    with pytest.raises(NotImplementedError, match="katz"):
        nx.katz_centrality(stored, beta={0: 1}, weight="weight")
    with pytest.raises(UsageError, match="not turned into a graph of NetworkX"):
        nx.hits(stored, backend="networkx")


def test_nodes_that_share_a_name_are_no_keys(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\nb\n")
    edges = np.array([0, 1, 2]), np.array([1, 2, 0])
    stored = oocpr.import_graph(edges, tmp_path / "g.zarr", labels=labels)
    with pytest.raises(InputError, match=r"1 nodes of .* have the name of another one"):
        nx.pagerank(stored)


def test_other_centralities_are_those_of_networkx() -> None:
    for kind in (nx.Graph, nx.DiGraph):
        graph = nx.gnp_random_graph(60, 0.1, seed=4, directed=True)
        graph = kind(graph.edges(data=True))
        graph.add_edge(3, 4, weight=2.5)
        graph.add_edge(4, 3)
        calls = {
            nx.katz_centrality: {"alpha": 0.03, "beta": 2.0, "weight": "weight"},
            nx.eigenvector_centrality: {"max_iter": 500, "tol": 1e-10},
            nx.hits: {},
        }
        for call, arguments in calls.items():
            wanted, found = call(graph, **arguments), call(graph, **arguments, backend="oocpr")
            pairs = zip(wanted, found, strict=True) if call is nx.hits else [(wanted, found)]
            for one, other in pairs:
                assert list(one) == list(other)
                assert list(other.values()) == pytest.approx(list(one.values()), rel=1e-5)
    # NetworkX has ways to compute them from 3.7 on, which scale them differently.
    knows = "method" in inspect.signature(nx.hits).parameters
    for how in ({}, {"method": "power_iteration"}, {"method": "svd"}) if knows else ({},):
        wanted = nx.hits(graph, 1000, normalized=False, **how)
        for one, other in zip(wanted, nx.hits(graph, normalized=False, backend="oocpr", **how), strict=True):
            assert list(other.values()) == pytest.approx([abs(value) for value in one.values()], rel=1e-5)
    if knows:
        with pytest.raises(ValueError, match="method not supported: lanczos"):
            nx.hits(graph, method="lanczos", backend="oocpr")
    unnormalized = nx.katz_centrality(graph, alpha=0.03, normalized=False, backend="oocpr")
    assert unnormalized == pytest.approx(nx.katz_centrality(graph, alpha=0.03, normalized=False), rel=1e-5)


def test_weights_of_text_are_refused_where_networkx_refuses_them() -> None:
    graph = nx.DiGraph([("a", "b"), ("b", "a"), ("c", "a")])
    nx.set_edge_attributes(graph, "2", "kg")
    for backend in ("networkx", "oocpr"):
        for call in (nx.katz_centrality, nx.eigenvector_centrality):
            with pytest.raises(TypeError):
                call(graph, weight="kg", backend=backend)
            assert call(graph, max_iter=1000, backend=backend)


def test_other_centralities_of_graphs_on_disk_and_what_is_raised(tmp_path: Path) -> None:
    edges = np.array([0, 1, 2, 2]), np.array([1, 2, 0, 1])
    stored = oocpr.import_graph(edges, tmp_path / "g.zarr")
    wanted = oocpr.katz_centrality(stored, alpha=0.2).to_numpy()
    found = nx.katz_centrality(stored, alpha=0.2)
    assert list(found.values()) == pytest.approx(wanted / np.linalg.norm(wanted))
    for call in (
        lambda: nx.katz_centrality(stored, alpha=5.0),
        lambda: nx.hits(stored, max_iter=1),
        lambda: nx.hits(stored, max_iter=2),
        lambda: nx.eigenvector_centrality(stored, max_iter=1),
    ):
        with pytest.raises(nx.PowerIterationFailedConvergence):
            call()


@pytest.mark.parametrize("beta", [1e-320, 1e-200, 1e200])
def test_what_is_normalized_does_not_depend_on_beta(beta: float) -> None:
    graph = nx.DiGraph([(1, 2), (3, 2), (2, 1), (1, 3)])
    found = nx.katz_centrality(graph, beta=beta, backend="oocpr")
    assert found == pytest.approx(nx.katz_centrality_numpy(graph), rel=1e-6)


@pytest.mark.parametrize("numbers", [{"beta": -1}, {"beta": 0}, {"alpha": 0}, {"tol": 2}])
def test_numbers_that_oocpr_does_not_take_are_left_to_networkx(numbers: dict[str, float]) -> None:
    graph = nx.path_graph(5)
    assert not networkx_backend.can_run("katz_centrality", (graph,), numbers)
    with pytest.raises(NotImplementedError):
        nx.katz_centrality(graph, backend="oocpr", **numbers)


def test_a_graph_without_cycles_has_no_eigenvector_for_networkx_either() -> None:
    with pytest.raises(nx.PowerIterationFailedConvergence):
        nx.eigenvector_centrality(nx.path_graph(5, create_using=nx.DiGraph), backend="oocpr")
