"""The calls that people make, against other programs and exact vectors."""

from __future__ import annotations

import csv
import gc
import gzip
import json
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

import oocpr
from oocpr.api import as_graph
from oocpr.errors import InputError, NotAStoreError, ReplacedError, UsageError
from oocpr.sources.rmat import Rmat

HEAVY = ("cupy", "dask", "distributed", "numba", "numpy", "pyarrow", "scipy", "zarr")


def python(code: str) -> str:
    """Run code in a fresh interpreter that has the package under test."""
    environment = os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["oocpr", "oocpr.cli", "oocpr.cli.commands", "oocpr.errors", "oocpr.units"]
)
def test_importing_is_light(module: str) -> None:
    assert python(f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])") == "[]"


def test_calls_load_what_they_need_when_they_are_made() -> None:
    heavy = sorted({*HEAVY} - {"numpy"})
    assert (
        python(f"import sys, oocpr; oocpr.pagerank; print([m for m in {heavy} if m in sys.modules])") == "[]"
    )


@pytest.mark.long
def test_tables_of_names_are_read_and_written_without_pandas(tmp_path: Path) -> None:
    pq.write_table(pa.table({"from": ["a", "b"], "to": ["b", "c"]}), tmp_path / "links.parquet")
    # Loading it takes half a second and fifty mebibytes of a budget; much of pyarrow does so by the way.
    lines = [
        "import sys, oocpr",
        f"graph = oocpr.import_graph({str(tmp_path / 'links.parquet')!r}, {str(tmp_path / 'g.zarr')!r})",
        *(
            f"oocpr.pagerank(graph).to_{path[-1]}({path[0]!r}); read = oocpr.read_ranks({path[0]!r})\n"
            "read.top(1), oocpr.verify(graph, read), oocpr.pagerank(graph, start=read)"
            for path in ((str(tmp_path / f"r.{kind}"), kind) for kind in ("parquet", "csv"))
        ),
        "print('pandas' in sys.modules)",
    ]
    assert python("\n".join(lines)) == "False"


def test_every_public_name_is_there() -> None:
    for name in oocpr.__all__:
        assert getattr(oocpr, name) is not None
    assert set(oocpr.__all__) <= set(dir(oocpr))
    with pytest.raises(AttributeError, match="no attribute 'page_rank'"):
        oocpr.page_rank  # noqa: B018


@pytest.mark.parametrize("first", ["oocpr.plan.plan", "oocpr.engine.run", "oocpr.api"])
def test_plan_stays_the_function_whatever_is_imported(first: str) -> None:
    code = f"import oocpr, {first}; from oocpr.plan.plan import Plan; print(oocpr.plan.__module__, Plan)"
    assert python(code) == "oocpr.api.ranking <class 'oocpr.plan.plan.Plan'>"


def test_the_version_is_that_of_the_package() -> None:
    import tomllib

    text = Path(oocpr.__file__).parents[1].joinpath("pyproject.toml").read_text()
    assert oocpr.__version__ == tomllib.loads(text)["project"]["version"]


def reference(
    adjacency: coo_array,
    damping: float = 0.85,
    dangling: str = "strongly",
    teleport: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Power iteration in SciPy, to the last bit that float64 has."""
    links = csr_array(adjacency)
    links.data[:] = 1
    nodes = links.shape[0]
    degree = np.diff(links.indptr)
    share = np.divide(1, degree, out=np.zeros(nodes), where=degree > 0)
    transposed = csr_array(links.T)
    uniform = np.full(nodes, 1 / nodes)
    teleport = uniform if teleport is None else teleport
    spread = teleport if dangling == "strongly" else uniform
    ranks = uniform
    for _ in range(5000):
        step = damping * (transposed @ (ranks * share) + ranks[degree == 0].sum() * spread)
        step += (1 - damping) * teleport
        if np.abs(step - ranks).sum() < 1e-15:
            return step
        ranks = step
    return ranks


def random_graph(nodes: int, edges: int, seed: int) -> coo_array:
    random = np.random.default_rng(seed)
    ends = (random.zipf(1.6, edges) - 1) % nodes, random.integers(0, nodes, edges)
    return coo_array((np.ones(edges), ends), shape=(nodes, nodes))


@pytest.fixture(scope="module")
def adjacency() -> coo_array:
    return random_graph(2000, 12_000, 7)


@pytest.fixture(scope="module")
def graph(adjacency: coo_array, tmp_path_factory: pytest.TempPathFactory) -> oocpr.Graph:
    return oocpr.import_graph(adjacency, tmp_path_factory.mktemp("api") / "graph.zarr")


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"method": "residual", "reads": "bits8"},
        {"method": "power", "reads": "float64"},
        {"damping": 0.95, "reads": "float32", "tol": 1e-11},
        {"dangling": "weakly", "device": "reference"},
    ],
)
def test_the_certified_bound_holds(graph: oocpr.Graph, adjacency: coo_array, asked: dict[str, Any]) -> None:
    ranks = oocpr.pagerank(graph, **asked)
    exact = reference(adjacency, asked.get("damping", 0.85), asked.get("dangling", "strongly"))
    assert ranks.converged
    assert ranks.error_bound is not None
    assert np.abs(ranks.to_numpy() - exact).sum() <= ranks.error_bound <= asked.get("tol", 1e-10)
    assert ranks.run is not None
    assert ranks.run.passes == len(ranks.history) == ranks.history[-1].number
    for name, value in asked.items():
        assert name == "device" or getattr(ranks.run, name) == value


@pytest.mark.parametrize("method", ["auto", "mixed", "residual"])
@pytest.mark.parametrize("damping", [np.float32(0.7), np.float16(0.5), Fraction(17, 20), 0.995, 0.9999])
def test_dampings_of_any_kind_are_taken(
    adjacency: coo_array, damping: Any, method: str, tmp_path: Path
) -> None:
    ranks = oocpr.pagerank(adjacency, damping=damping, tol=np.float32(1e-9), method=method)
    assert ranks.converged
    assert ranks.error_bound is not None
    # The reference is no nearer to the solution than its last step over what the damping keeps back.
    slack = 1e-15 / (1 - float(damping))
    assert np.abs(ranks.to_numpy() - reference(adjacency, float(damping))).sum() <= ranks.error_bound + slack
    ranks.to_parquet(tmp_path / "ranks.parquet")
    assert json.loads(json.dumps(ranks.report()))["damping"] == float(damping)
    several = oocpr.pagerank(adjacency, damping=damping, tol=1e-9, personalization=[{0: 1}, {1: 1}])
    assert several.converged.all()


@pytest.mark.parametrize("many", [False, True])
def test_a_damping_too_small_to_divide_by_is_taken(adjacency: coo_array, many: bool) -> None:
    weights: Any = [{3: 1.0}] if many else {3: 1.0}
    ranks = oocpr.pagerank(adjacency, damping=1e-50, personalization=weights)
    assert (ranks[0] if many else ranks).top(1) == [(3, 1.0)]
    with pytest.raises(UsageError, match="too small for float32"):
        oocpr.pagerank(adjacency, damping=1e-50, method="components")


def test_every_way_to_name_a_graph_gives_the_same_ranks(graph: oocpr.Graph, adjacency: coo_array) -> None:
    expected = oocpr.pagerank(graph).to_numpy()
    source, target = adjacency.coords
    for other in (graph.path, Path(graph.path), oocpr.open_graph(graph.path), adjacency):
        assert oocpr.pagerank(other).to_numpy().tobytes() == expected.tobytes()
    pairs = oocpr.pagerank((source, target))
    # Pairs have the nodes that occur, a matrix those of its shape.
    assert len(pairs) == len(np.union1d(source, target))


def test_expected_ranks_of_a_labelled_file(data: Path) -> None:
    ranks = oocpr.pagerank(data / "tiny" / "site.txt")
    with (data / "tiny" / "site.ranks-0.85.csv").open(newline="") as file:
        expected = {row["name"]: float(row["rank"]) for row in csv.DictReader(file)}
    assert dict(ranks.top(5)) == pytest.approx(expected, abs=1e-10)


def test_a_temporary_store_lives_as_long_as_its_ranks(data: Path, tmp_path: Path) -> None:
    graph = as_graph(data / "tiny" / "site.txt", tmp=tmp_path)
    assert repr(graph) == "Graph(5 nodes, 6 edges, temporary)"
    ranks = oocpr.pagerank(graph)
    del graph
    gc.collect()
    assert len(list(tmp_path.iterdir())) == 1
    assert isinstance(ranks.top(1)[0][0], str)
    del ranks
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["auto", "mixed"])
def test_a_temporary_store_goes_with_the_last_that_holds_it(tmp_path: Path, method: str) -> None:
    code = """
import gc, os, sys
import numpy as np, oocpr
gc.disable()
for edges in [[("a", "b"), ("b", "c"), ("c", "b")], (np.array([5, 6, 7]), np.array([6, 7, 5]))]:
    ranks = oocpr.pagerank(edges, method=sys.argv[2])
    assert len(os.listdir(sys.argv[1])) == 1
    ranks.top(1)
    del ranks
    print(os.listdir(sys.argv[1]))
"""
    environment = os.environ | {
        "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(oocpr.__file__).parents[1])
    }  # fmt: skip
    command = [sys.executable, "-c", code, str(tmp_path), method]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.returncode) == ("[]\n[]\n", 0), done.stderr


def test_a_graph_that_was_pickled_is_the_same_or_refused(adjacency: coo_array, tmp_path: Path) -> None:
    made = oocpr.import_graph(adjacency, tmp_path / "graph.zarr")
    kept = pickle.dumps(made)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).store.identity)"
    environment = os.environ | {"PYTHONPATH": str(Path(oocpr.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], input=kept, capture_output=True, env=environment, check=True
    )
    assert done.stdout.decode().strip() == made.store.identity
    oocpr.import_graph((np.array([0, 1]), np.array([1, 0])), tmp_path / "graph.zarr", overwrite=True)
    with pytest.raises(ReplacedError):
        pickle.loads(kept)


def test_a_temporary_store_does_not_outlive_the_process(data: Path, tmp_path: Path) -> None:
    site = data / "tiny" / "site.txt"
    python(f"import oocpr.api; kept = oocpr.api.as_graph({str(site)!r}, tmp={str(tmp_path)!r})")
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_fails_leaves_no_temporary_store(tmp_path: Path) -> None:
    source = tmp_path / "links.txt"
    source.write_text("1 2\nx y\n")
    with pytest.raises(InputError, match="line 2"):
        as_graph(source, tmp=tmp_path)
    assert list(tmp_path.iterdir()) == [source]


def test_parameters_are_refused_before_a_source_is_read() -> None:
    with pytest.raises(UsageError, match="damping"):
        oocpr.pagerank("no such file.txt", damping=2)


def test_what_is_settled_in_a_store_cannot_be_asked_for_again(graph: oocpr.Graph) -> None:
    with pytest.raises(UsageError, match="is a store"):
        as_graph(graph.path, undirected=True)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        oocpr.pagerank(tmp_path)


def test_a_temporary_folder_that_cannot_be_made_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        as_graph(data / "tiny" / "site.txt", tmp=tmp_path / "nowhere")


def test_undirected_takes_both_directions(data: Path) -> None:
    site = data / "tiny" / "site.txt"
    both = as_graph(site, undirected=True)
    assert both.store.out_degree(0, 5).sum() == both.edges
    assert both.edges > as_graph(site).edges


def test_reverse_ranks_the_transpose(adjacency: coo_array) -> None:
    ranks = oocpr.pagerank(adjacency, reverse=True)
    assert np.abs(ranks.to_numpy() - reference(coo_array(adjacency.T))).sum() <= 1e-10


@pytest.mark.parametrize("way", ["mapping", "array", "file"])
@pytest.mark.parametrize("dangling", ["strongly", "weakly"])
def test_personalized_ranks_follow_the_weights(
    graph: oocpr.Graph, adjacency: coo_array, tmp_path: Path, way: str, dangling: str
) -> None:
    seeds = {5: 3.0, 1999: 1.0}
    teleport = np.zeros(2000)
    teleport[[5, 1999]] = 0.75, 0.25
    path = tmp_path / "seeds.txt"
    path.write_text("5\t3\n1999\n")
    wanted: Any = {"mapping": seeds, "array": teleport, "file": path}[way]
    ranks = oocpr.pagerank(graph, personalization=wanted, dangling=dangling)
    exact = reference(adjacency, dangling=dangling, teleport=teleport)
    assert np.abs(ranks.to_numpy() - exact).sum() <= 1e-10
    assert oocpr.verify(graph, ranks, personalization=wanted).bound <= 1e-10
    with pytest.raises(UsageError, match="personalized"):
        oocpr.verify(graph, ranks)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "zarr"])
@pytest.mark.parametrize("labelled", [False, True])
def test_ranks_written_and_read_back_verify(data: Path, tmp_path: Path, suffix: str, labelled: bool) -> None:
    name = "site.txt" if labelled else "langville-meyer.txt"
    graph = oocpr.import_graph(data / "tiny" / name, tmp_path / "graph.zarr", order="degree")
    ranks = oocpr.pagerank(graph, damping=0.9, dangling="weakly")
    path = tmp_path / f"ranks.{suffix}"
    getattr(ranks, f"to_{suffix}")(path)
    again = oocpr.read_ranks(path)
    assert again.top(10) == ranks.top(10)
    assert again.to_numpy().tobytes() == ranks.to_numpy().tobytes()
    # CSV has no place for the facts of a run.
    said = {} if suffix != "csv" else {"damping": 0.9, "dangling": "weakly"}
    assert oocpr.verify(graph, path, **said).bound <= 1e-10
    assert again.run == (None if suffix == "csv" else ranks.run)


@pytest.mark.parametrize("sort", ["node", "rank"])
def test_labels_of_digits_are_found_in_a_csv_file(adjacency: coo_array, tmp_path: Path, sort: str) -> None:
    (tmp_path / "labels.txt").write_text("".join(f"{9 * node % 2003}\n" for node in range(2000)))
    graph = oocpr.import_graph(adjacency, tmp_path / "graph.zarr", labels=tmp_path / "labels.txt")
    ranks = oocpr.pagerank(graph)
    path = tmp_path / "ranks.csv"
    ranks.to_csv(path, sort=sort)
    assert oocpr.verify(graph, path).bound <= 1e-10
    read = oocpr.read_ranks(path)
    for one, other in ((ranks, read), (read, ranks), (read, read)):
        change = one.compare(other)
        assert (change.common, change.distance) == (2000, 0)
    assert oocpr.pagerank(graph, start=path, method="power").passes < 5


def test_ranks_in_any_order_are_verified_by_name(graph: oocpr.Graph, tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    oocpr.pagerank(graph).to_parquet(path, sort="rank")
    table = pq.read_table(path)
    assert table["rank"].to_pylist() == sorted(table["rank"].to_pylist(), reverse=True)
    assert oocpr.verify(graph, path).bound <= 1e-10


@pytest.mark.parametrize("order", ["keep", "degree", "bfs", "dfs", "auto"])
@pytest.mark.parametrize("asked", [{}, {"method": "mixed"}, {"method": "residual", "reads": "bits8"}])
def test_a_node_has_its_rank_in_any_order(
    adjacency: coo_array, tmp_path: Path, order: str, asked: dict[str, Any]
) -> None:
    graph = oocpr.import_graph(adjacency, tmp_path / "graph.zarr", order=order)
    assert (graph.reason is None) == (order != "auto")
    ranks = oocpr.pagerank(graph, **asked)
    found = dict(ranks.top(2000))
    exact = reference(adjacency)
    assert ranks.error_bound is not None
    assert sum(abs(found[node] - exact[node]) for node in range(2000)) <= ranks.error_bound


@pytest.mark.parametrize("order", ["keep", "degree", "host", "bfs", "auto"])
def test_a_name_has_its_rank_in_any_order(adjacency: coo_array, tmp_path: Path, order: str) -> None:
    names = [f"http://www.h{node * 7 % 90}.org/{node}" for node in range(2000)]
    (tmp_path / "links.tsv").write_text(
        "".join(f"{names[u]}\t{names[v]}\n" for u, v in zip(*adjacency.coords, strict=True))
    )
    graph = oocpr.import_graph(tmp_path / "links.tsv", tmp_path / "graph.zarr", order=order)
    ranks = oocpr.pagerank(graph)
    linked = np.unique(np.concatenate(adjacency.coords))
    exact = reference(csr_array(adjacency)[linked][:, linked].tocoo())
    found = dict(ranks.top(2000))
    assert found.keys() == {names[node] for node in linked}
    assert ranks.error_bound is not None
    assert sum(abs(found[names[v]] - r) for v, r in zip(linked, exact, strict=True)) <= ranks.error_bound


def test_info_says_what_is_stored(graph: oocpr.Graph, adjacency: coo_array) -> None:
    info = graph.info()
    distinct = csr_array(adjacency)
    assert info["nodes"] == 2000
    assert info["edges"] == distinct.nnz
    assert info["duplicates"] == 12_000 - distinct.nnz
    assert info["dangling"] == (np.diff(distinct.indptr) == 0).sum()
    assert info["self_loops"] == (distinct.diagonal() > 0).sum()
    assert info["weighted"] is False
    assert info["order"] == "keep"
    files = [path for path in Path(graph.path).rglob("*") if path.is_file()]
    assert info["store_bytes"] == sum(path.stat().st_size for path in files)
    assert info["arrays"]["in_edges/indices"] > info["bytes_per_edge"] * info["edges"]
    assert sum(info["arrays"].values()) < info["store_bytes"]


def test_a_plan_predicts_and_fits(graph: oocpr.Graph) -> None:
    plan = oocpr.plan(graph)
    assert plan.fits
    assert plan.seconds is not None
    assert plan.seconds > 0
    assert oocpr.plan(graph.path, memory="10MiB").fits is False


def _keep_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have plans find no room for tiles, decoded or not."""
    plan = import_module("oocpr.plan.processor_plan")
    monkeypatch.setattr(plan, "fitting_tiles", lambda *_: 0)
    monkeypatch.setattr(plan, "decoded_bytes", lambda *_: 2**60)


@pytest.mark.long
@pytest.mark.parametrize(("room", "direct"), [(2**40, False), (0, True)])
def test_tiles_are_read_directly_where_the_page_cache_is_smaller(
    graph: oocpr.Graph, monkeypatch: pytest.MonkeyPatch, room: int, direct: bool
) -> None:
    if not graph.store.takes_direct_reads():
        pytest.skip("the file system of temporary files takes no direct reads")
    given = 2**35
    monkeypatch.setattr("oocpr.engine.planning.whole_memory", lambda: given + room)
    asked: dict[str, Any] = {"method": "residual", "memory": given}
    _keep_no_tiles(monkeypatch)
    assert oocpr.plan(graph, **asked).direct == direct
    assert ("directly" in str(oocpr.plan(graph, **asked))) == direct
    chosen, buffered = oocpr.pagerank(graph, **asked), oocpr.pagerank(graph, **asked, io="buffered")
    assert chosen.run is not None
    assert buffered.run is not None
    assert (chosen.run.direct, buffered.run.direct) == (direct, False)
    assert (chosen.to_numpy() == buffered.to_numpy()).all()


def test_direct_reads_that_cannot_be_had_are_refused(
    graph: oocpr.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_url = oocpr.open_graph(f"file://{Path(graph.path).resolve()}")
    for work in (oocpr.plan, oocpr.pagerank):
        with pytest.raises(UsageError, match=r"does not take direct reads\. Use io buffered"):
            work(by_url, io="direct")
        with pytest.raises(UsageError, match=r"io 'fast' is not known\. Use one of auto, direct, buffered"):
            work(graph, io="fast")
    monkeypatch.setattr("oocpr.engine.planning.whole_memory", lambda: 0)
    _keep_no_tiles(monkeypatch)
    ranks = oocpr.pagerank(by_url, method="residual")
    assert ranks.run is not None
    assert ranks.run.direct is False


def test_a_run_that_gives_up_says_so(graph: oocpr.Graph, adjacency: coo_array) -> None:
    ranks = oocpr.pagerank(graph, max_passes=1)
    assert ranks.converged is False
    assert ranks.error_bound is not None
    assert 1e-10 < np.abs(ranks.to_numpy() - reference(adjacency)).sum() <= ranks.error_bound
    assert "not converged" in repr(ranks)


def test_progress_is_told_of_import_and_passes(adjacency: coo_array) -> None:
    seen: list[tuple[str, int]] = []

    def progress(stage: str, done: int, total: int | None, unit: str, note: str = "") -> None:
        seen.append((stage, done))

    ranks = oocpr.pagerank(adjacency, progress=progress)
    assert ranks.run is not None
    assert {stage for stage, _ in seen} >= {"reading", "writing", "ranking"}
    assert seen[-1] == ("ranking", ranks.run.passes)


def test_a_graph_that_stays_open_is_read_once(graph: oocpr.Graph) -> None:
    fresh = oocpr.open_graph(graph.path)
    first, second = oocpr.pagerank(fresh), oocpr.pagerank(fresh)
    assert first.run is not None
    assert second.run is not None
    assert (first.run.method, second.run.method) == ("components", "components")
    assert (first.to_numpy() == second.to_numpy()).all()
    assert second.history[0].bytes_read == 0
    assert oocpr.pagerank(fresh, reads="bits16").run.method == "mixed"


def test_a_store_that_is_overwritten_is_noticed_by_a_graph_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = oocpr.import_graph(Rmat(6), tmp_path / "graph.zarr")
    oocpr.pagerank(graph, method="components")
    assert graph.decoded
    planning = import_module("oocpr.engine.planning")
    plan_loaded = planning.plan_loaded

    def overwritten(*request: Any) -> Any:
        # Names and weights of nodes have been read by now.
        root = tmp_path / "graph.zarr" / "zarr.json"
        root.write_text(root.read_text().replace(graph.store.identity, 32 * "0"))
        return plan_loaded(*request)

    monkeypatch.setattr(planning, "plan_loaded", overwritten)
    with pytest.raises(ReplacedError, match="was replaced while it was in use"):
        oocpr.pagerank(graph, method="components", personalization={0: 1.0})


def test_power_iteration_reads_what_it_can_converge_with(graph: oocpr.Graph) -> None:
    ranks = oocpr.pagerank(graph, method="power")
    assert ranks.converged
    assert ranks.run is not None
    assert ranks.run.reads == "float64"
    with pytest.raises(oocpr.UsageError, match="stalls above tol 1e-10"):
        oocpr.pagerank(graph, method="power", reads="bits16")
    with pytest.raises(oocpr.UsageError, match=r"loses its small numbers\. Use reads float64"):
        oocpr.pagerank(graph, method="power", reads="bits8", tol=0.5)


class TestStart:
    """Ranks of an earlier graph as where a run begins."""

    @pytest.fixture
    def grown(self, tmp_path: Path) -> tuple[oocpr.Graph, oocpr.Graph]:
        """A named graph, and the same with one link in two hundred and a few nodes more."""
        rng = np.random.default_rng(3)
        links = [f"page {u}\tpage {v}\n" for u, v in rng.integers(0, 2000, (20_000, 2)).tolist()]
        new = [f"new {u}\tpage {v}\n" for u, v in rng.integers(0, 20, (100, 2)).tolist()]
        (tmp_path / "old.tsv").write_text("".join(links))
        (tmp_path / "new.tsv").write_text("".join([*new, *links]))
        old, both = (
            oocpr.import_graph(tmp_path / f"{name}.tsv", tmp_path / f"{name}.zarr") for name in ("old", "new")
        )
        return old, both

    def test_fewer_passes_to_the_same_ranks(
        self, grown: tuple[oocpr.Graph, oocpr.Graph], tmp_path: Path
    ) -> None:
        old, both = grown
        earlier = oocpr.pagerank(old, method="mixed")
        earlier.to_parquet(tmp_path / "ranks.parquet")
        cold = oocpr.pagerank(both, method="mixed")
        for start in (earlier, tmp_path / "ranks.parquet", dict(earlier.top(2000))):
            warm = oocpr.pagerank(both, method="mixed", start=start)
            assert warm.converged
            assert warm.run is not None
            assert cold.run is not None
            assert warm.run.passes < cold.run.passes
            assert np.abs(warm.to_numpy() - cold.to_numpy()).sum() <= 2e-10
            assert oocpr.verify(both, warm).bound <= 1e-10 * 1.01 + 1e-12

    def test_with_a_personalization(self, grown: tuple[oocpr.Graph, oocpr.Graph]) -> None:
        old, both = grown
        wanted = {"page 3": 1.0}
        start = oocpr.pagerank(old, personalization=wanted)
        cold = oocpr.pagerank(both, personalization=wanted)
        warm = oocpr.pagerank(both, personalization=wanted, start=start)
        assert np.abs(warm.to_numpy() - cold.to_numpy()).sum() <= 2e-10

    def test_ranks_of_another_graph(self, grown: tuple[oocpr.Graph, oocpr.Graph]) -> None:
        with pytest.raises(InputError, match="no rank of any node"):
            oocpr.pagerank(grown[0], start=oocpr.pagerank((np.array([0]), np.array([1]))))


@pytest.mark.parametrize(
    "edges",
    [
        (np.array([5, 6, 7, 7]), np.array([6, 7, 5, 6])),
        [("a", "b"), ("b", "c"), ("c", "a"), ("c", "b")],
        csr_array(np.array([[0, 1, 0], [0, 0, 1], [1, 1, 0]])),
    ],
    ids=["ids", "labels", "rows"],
)
def test_ranks_can_be_pickled_and_outlive_their_graph(edges: Any) -> None:
    ranks = oocpr.pagerank(edges)
    first = ranks.top(1)[0][0]
    several = oocpr.pagerank(edges, personalization=[{first: 1}, {first: 2}])
    kept = pickle.dumps((ranks, several))
    expected = ranks.top(3), several.top(3)
    del ranks, several
    gc.collect()
    ranks, several = pickle.loads(kept)
    assert (ranks.top(3), several.top(3)) == expected
    assert ranks[first] == expected[0][0][1]


def test_each_form_of_weights_can_be_one_of_several(adjacency: coo_array) -> None:
    pandas = pytest.importorskip("pandas")
    forms: list[Any] = [{3: 1.0, 7: 3.0}, pandas.Series({3: 1.0, 7: 3.0})]
    one = oocpr.pagerank(adjacency, personalization=forms[0])
    for several in ([forms[0]], [forms[1]], [forms[1], forms[0]]):
        found = oocpr.pagerank(adjacency, personalization=several)
        assert all(np.abs(found[k].to_numpy() - one.to_numpy()).sum() < 2e-10 for k in range(len(several)))
    names = oocpr.pagerank([("a", "b"), ("b", "a"), ("a", "a")], personalization=[["a", "b"], ["b"]])
    assert len(names) == 2


def test_a_sparse_vector_gives_weights(adjacency: coo_array) -> None:
    weights = np.zeros(2000)
    weights[[3, 7]] = 1, 3
    sparse = oocpr.pagerank(adjacency, personalization=coo_array(weights))
    assert np.array_equal(sparse.to_numpy(), oocpr.pagerank(adjacency, personalization=weights).to_numpy())


def test_weights_whose_sum_is_beyond_float64_count_as_smaller_ones(adjacency: coo_array) -> None:
    large, small = (
        oocpr.pagerank(adjacency, personalization={3: scale, 7: scale}).to_numpy() for scale in (1e308, 1.0)
    )
    assert np.array_equal(large, small)


def test_masked_entries_are_refused(adjacency: coo_array) -> None:
    masked = np.ma.MaskedArray(np.arange(2000.0), np.arange(2000) == 4)
    with pytest.raises(UsageError, match="masked entries"):
        oocpr.pagerank(adjacency, personalization=masked)
    with pytest.raises(UsageError, match="masked entries"):
        oocpr.pagerank(adjacency, personalization=masked[None])
    ends = np.ma.MaskedArray(np.array([0, 1, 2]), [False, False, True])
    with pytest.raises(InputError, match="masked entries"):
        oocpr.pagerank((ends, np.array([1, 2, 0])))


def test_csv_is_not_written_where_it_could_not_be_read(adjacency: coo_array, tmp_path: Path) -> None:
    ranks = oocpr.pagerank(adjacency)
    several = oocpr.pagerank(adjacency, personalization=[{3: 1}])
    for made in (ranks, several):
        with pytest.raises(UsageError, match="would not be compressed"):
            made.to_csv(tmp_path / "ranks.csv.gz")
        with (tmp_path / "text").open("w") as text, pytest.raises(UsageError, match="stream of text"):
            made.to_csv(text)  # type: ignore[arg-type]
    with gzip.open(tmp_path / "ranks.csv.gz", "wb") as stream:
        ranks.to_csv(stream)
    lines = gzip.decompress((tmp_path / "ranks.csv.gz").read_bytes()).decode().splitlines()
    assert len(lines) == 2001
    several.to_csv(tmp_path / "several.csv")
    with pytest.raises(InputError, match="ranks of several seeds"):
        oocpr.read_ranks(tmp_path / "several.csv")


def test_what_an_import_notices_is_said_where_nobody_has_the_graph(caplog: pytest.LogCaptureFixture) -> None:
    graph = nx.DiGraph([(0, 1, {"weight": 5.0}), (1, 2, {"weight": 1.0}), (2, 0, {"weight": 1.0})])
    oocpr.pagerank(graph)
    oocpr.katz_centrality(graph, alpha=0.1)
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 2
    assert all("weight" in message for message in told)
    caplog.clear()
    made = as_graph(graph)
    oocpr.pagerank(made)
    oocpr.pagerank(graph, weight="weight")
    assert made.notices
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_personal_ranks_show_themselves_and_become_tables(adjacency: coo_array) -> None:
    several = oocpr.pagerank(adjacency, personalization=[{3: 1}, {7: 1}] * 6, top=5)
    shown = several._repr_html_()
    assert shown.count("<tr>") == 11
    (node, value), *_ = several.top(1)[0]
    assert f"{node} {value:.4g}" in shown
    least = oocpr.pagerank(adjacency, personalization=[{3: 1}, {7: 1}], top=1)
    assert least._repr_html_().count("<tr>") == 3
    polars = pytest.importorskip("polars")
    assert isinstance(several.to_polars(2), polars.DataFrame)
    assert several.to_polars(2).to_dicts() == several.to_arrow(2).to_pylist()


def test_columns_of_dask_give_edges_and_open_graphs_none(graph: oocpr.Graph, tmp_path: Path) -> None:
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pandas.DataFrame({"from": [0, 1, 2, 2], "to": [1, 2, 0, 1]})
    parted = frames.from_pandas(table, npartitions=2)
    ranks = oocpr.pagerank((parted["from"], parted["to"]))
    assert np.array_equal(
        ranks.to_numpy(), oocpr.pagerank((table["from"].to_numpy(), table["to"].to_numpy())).to_numpy()
    )
    with pytest.raises(UsageError, match="is stored already"):
        oocpr.import_graph(graph, tmp_path / "again.zarr")


def test_what_cannot_be_taken_is_refused_with_a_remedy(graph: oocpr.Graph, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    mixed = pandas.DataFrame({"source": [1, "a"], "target": ["b", 2]})
    twice = pandas.DataFrame([[1, 2], [2, 1]], columns=["source", "source"])
    for table in (mixed, twice):
        with pytest.raises(InputError, match=r"cannot be taken as one of Arrow: [^(]"):
            oocpr.pagerank(table)
    with pytest.raises(InputError, match="no text of Unicode"):
        oocpr.pagerank(nx.DiGraph([("\ud800", "a")]))
    with pytest.raises(UsageError, match="no name of a new folder"):
        oocpr.import_graph((np.array([0, 1]), np.array([1, 0])), ".")
    with pytest.raises(UsageError, match="graph is a str"):
        oocpr.pagerank(graph).plot("graph.zarr")  # type: ignore[arg-type]


def test_whole_numbers_that_are_objects_are_ids() -> None:
    numbers = np.array([5, 6, 7]), np.array([6, 7, 5])
    objects = tuple(ends.astype(object) for ends in numbers)
    assert oocpr.pagerank(objects).top(3) == oocpr.pagerank(numbers).top(3)
    mixed = np.array([5, "a", 7], object), np.array(["b", 7, 5], object)
    with pytest.raises(InputError):
        oocpr.pagerank(mixed)
