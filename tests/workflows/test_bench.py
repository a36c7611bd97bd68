from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oocpr
from oocpr.store.direct_io import PAGE, takes_direct_reads

BENCH = Path(__file__).parents[2] / "workflows" / "bench"


@pytest.fixture(autouse=True, scope="module")
def _siblings() -> Any:
    """Programs find the modules beside them, so the test does too."""
    sys.path.insert(0, str(BENCH))
    yield
    sys.path.remove(str(BENCH))


EDGES = np.array([[0, 1], [0, 2], [1, 2], [2, 0], [3, 2], [3, 3], [3, 4], [0, 1], [5, 4], [2, 5], [1, 1]])
NODES, DISTINCT, LOOPS = 6, 10, 2


def exact_ranks() -> np.ndarray:
    """By the definition, densely."""
    links = np.zeros((NODES, NODES))
    links[EDGES[:, 0], EDGES[:, 1]] = 1
    degree = links.sum(axis=1, keepdims=True)
    walk = np.where(degree > 0, links / np.maximum(degree, 1), 1 / NODES)
    ranks = np.linalg.solve(np.eye(NODES) - 0.85 * walk.T, np.full(NODES, 0.15 / NODES))
    scaled: np.ndarray = ranks / ranks.sum()
    return scaled


def compare(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = folder / "results.json"
    names = ("OOCPR_GRAPHS", "OOCPR_GAP", "OOCPR_PEERS_PYTHON")
    done = subprocess.run(
        [
            *(sys.executable, str(BENCH / "cpu_peers.py"), "--graphs", "tiny", "--sweeps", "--threads", "1"),
            *("--folder", str(folder), "--cache", str(folder / "cache"), "--out", str(out), "--runs", "3"),
            *options,
        ],
        env={key: value for key, value in os.environ.items() if key not in names},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    lines = "".join(f"{10 * a}\t{10 * b}\n" for a, b in EDGES)
    (folder / "tiny.txt").write_text("# gaps between ids\n" + lines)
    return folder


@pytest.fixture(scope="module")
def results(tiny: Path) -> dict[str, Any]:
    done, out = compare(tiny, "--only", "scipy", "networkit", "gap-pr")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_the_reference_is_the_solution_of_the_linear_system(tiny: Path, results: dict[str, Any]) -> None:
    facts = results["graphs"]["tiny"]
    assert (facts["nodes"], facts["edges"]) == (NODES, DISTINCT)
    assert (facts["self_loops"], facts["dangling"]) == (LOOPS, 1)
    assert facts["reference_bound"] < 1e-14
    assert np.abs(np.load(tiny / "cache" / "tiny" / "reference.npy") - exact_ranks()).sum() < 1e-14


def test_scipy_is_timed_at_the_first_tolerance_that_reaches_the_target(results: dict[str, Any]) -> None:
    cell = results["times"]["tiny"]["scipy"]
    assert cell["status"] == "reached"
    assert cell["error"] <= 1e-10
    assert 0 < cell["seconds_min"] <= cell["seconds_median"]
    trials = sorted(cell["tried"], key=lambda trial: trial["step"])
    [first] = [k for k, trial in enumerate(trials) if trial["setting"] == cell["setting"]]
    assert trials[first - 1]["step"] == trials[first]["step"] - 1
    assert trials[first - 1]["error"] > 1e-10


def test_a_missing_program_is_a_result_with_its_reason(results: dict[str, Any]) -> None:
    cells = results["times"]["tiny"]
    assert cells["networkit"]["status"] == cells["gap-pr"]["status"] == "unavailable"
    assert "--python" in cells["networkit"]["reason"]
    assert "--gap" in cells["gap-pr"]["reason"]


def test_the_machine_is_described_without_its_name(results: dict[str, Any]) -> None:
    machine = results["machine"]
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert machine["packages"]["numpy"] == np.__version__
    assert os.uname().nodename not in json.dumps(machine).split('"')


def test_results_are_kept_and_other_settings_are_refused(tiny: Path, results: dict[str, Any]) -> None:
    done, out = compare(tiny, "--only", "scipy", "--resume")
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["times"] == results["times"]
    before = out.read_bytes()
    done, _ = compare(tiny, "--only", "scipy", "--threads", "2")
    assert done.returncode == 1
    assert "other settings" in done.stderr
    assert out.read_bytes() == before


@pytest.mark.long
def test_imports_are_measured_from_every_format(tmp_path: Path) -> None:
    out = tmp_path / "imports.json"
    words = [sys.executable, str(BENCH / "imports.py"), "--scale", "10", "--times", "2"]
    peers = ("OOCPR_GAP", "OOCPR_PEERS_PYTHON")
    done = subprocess.run(
        [*words, "--cache", str(tmp_path / "files"), "--out", str(out)],
        env={key: value for key, value in os.environ.items() if key not in peers},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["settings"]["edges"] == 16 << 10
    assert {kind: sorted(programs) for kind, programs in found["imports"].items()} == {
        "txt": ["gap-converter", "networkit", "oocpr"],
        "npy": ["networkit", "oocpr"],
        "parquet": ["networkit", "oocpr"],
    }
    edges = {programs["oocpr"]["edges"] for programs in found["imports"].values()}
    assert len(edges) == 1
    for programs in found["imports"].values():
        ours = programs["oocpr"]
        assert len(ours["runs"]) == 2
        assert ours["process_seconds"] == min(one["process_seconds"] for one in ours["runs"])
        assert 0 < ours["seconds"] < ours["process_seconds"]
        assert ours["edges_per_second"] == pytest.approx((16 << 10) / ours["seconds"])
        assert 50 < ours["peak_mib"] < 1024
        assert "not given" in programs.get("gap-converter", {"reason": "not given"})["reason"]
        assert programs["networkit"] == {"reason": "no interpreter is given"}


def run_bench(name: str, *words: object) -> dict[str, Any]:
    out = Path(str(words[-1]))
    done = subprocess.run(
        [sys.executable, str(BENCH / name), *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.slow
def test_predictions_are_put_over_what_a_run_finds(tiny: Path, tmp_path: Path) -> None:
    oocpr.import_graph(tiny / "tiny.txt", tmp_path / "tiny.zarr")
    found = run_bench("predictions.py", tmp_path / "tiny.zarr", "--runs", 1, "--out", tmp_path / "p.json")
    assert sorted(found["graphs"]) == ["tiny, auto, roomy", "tiny, mixed, least", "tiny, mixed, roomy"]
    for row in found["graphs"].values():
        assert row["edges"] == DISTINCT
        assert row["predicted/actual"]["bytes_read"] == 1
        least, most = row["passes_range"]
        assert least <= row["predicted"]["passes"] <= most
        # Nothing is read in later passes, and nothing taken of a device.
        actual = row["actual"]
        assert actual.pop("pass_bytes") == actual.pop("peak_device_memory") == 0
        assert all(value > 0 for value in actual.values())


@pytest.mark.slow
def test_what_dask_adds_is_measured_beside_the_same_passes_without_it(tmp_path: Path) -> None:
    words = ("--scale", 10, "--cache", tmp_path / "stores", "--out", tmp_path / "cost.json")
    found = run_bench("dask_cost.py", *words)
    cells = [value for value in found.values() if "ms_more_by_median" in value]
    assert len(cells) == 5
    # The scheduler alone would take more than this.
    assert found["fixed, 2 stripes"]["ms_more_by_min"] < 25
    assert found["alone"]["ms_more_by_min"] < 1


def test_the_table_shows_losses_misses_and_spread() -> None:
    def cell(seconds: float, **more: Any) -> dict[str, Any]:
        return {"status": "reached", "seconds": [seconds, 3 * seconds, 2 * seconds]} | more

    found = {
        "graphs": {"tiny": {"edges": 10_000_000}},
        "times": {
            "tiny": {
                "oocpr": cell(2.0),
                "igraph": cell(0.5),
                "networkit": cell(9.0, status="not reached", error=3e-7),
                "gap-pr": {"status": "unavailable", "reason": "not given"},
            }
        },
        "sweeps": {"tiny": {"oocpr": cell(0.01), "scipy": cell(0.04)}},
    }
    tables = import_module("tables")
    lines = tables.peers(found, "times")
    assert "| **oocpr** | 4.00 s (2.00-6.00) |" in lines
    assert "| igraph (PRPACK) | 1.00 s (0.500-1.50) 0.250x |" in lines
    assert "| NetworKit | 18.0 s (9.00-27.0) 4.50x, not reached: error 3.0e-07 |" in lines
    assert "| GAP pr (Gauss-Seidel), float64 | unavailable: not given |" in lines
    assert "| SciPy | 80.0 ms (40.0-120) 4.00x |" in tables.peers(found, "sweeps", 1000.0, "ms")


def test_the_pages_of_figures_are_what_the_results_say() -> None:
    words = [sys.executable, str(BENCH / "tables.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_results_say_how_they_came_about() -> None:
    files = sorted((BENCH / "results").glob("*.json"))
    assert len(files) > 10
    for file in files:
        run = json.loads(file.read_text())["provenance"]
        assert sorted(run) == ["command", "commit", "date", "machine", "versions"], file.name


@given(
    rate=st.floats(0.05, 2.0),
    misjudged=st.floats(0.25, 4.0),
    start=st.integers(1, 60),
    scale=st.floats(-3, 0),
)
def test_the_search_finds_the_first_step_that_holds(
    rate: float, misjudged: float, start: int, scale: float
) -> None:
    search = import_module("search")
    ladder = search.Ladder(start=start, top=400, decades=rate * misjudged)

    def run(step: int) -> Any:
        return search.Trial(step, 1.0, 10 ** (scale - rate * step))

    trials = search.climb(ladder, run, 1e-10)
    found = search.first_within(trials, 1e-10)
    expected = next(step for step in range(1, 401) if run(step).error <= 1e-10)
    assert found.step == expected


def test_the_search_gives_up_on_an_error_that_no_longer_falls() -> None:
    search = import_module("search")
    ladder = search.Ladder(start=20, top=34, decades=0.5)
    trials = search.climb(ladder, lambda step: search.Trial(step, 1.0, 1e-6), 1e-10)
    assert search.first_within(trials, 1e-10) is None
    assert len(trials) <= 3


@pytest.mark.slow
def test_graphs_ranked_from_disk_are_measured_and_tabled(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGE))
    if not takes_direct_reads(str(tmp_path / "file")):
        pytest.skip("the file system of temporary files takes no direct reads")
    out = tmp_path / "results.json"
    command = [
        sys.executable,
        str(BENCH / "disk_stream.py"),
        "--scale",
        "10",
        "--times",
        "1",
        "--bytes",
        str(2**22),
        "--rounds",
        "2",
    ]
    command += ["--cache", str(tmp_path / "cache"), "--out", str(out), "--weighted-memory", "640MiB"]
    without = {key: value for key, value in os.environ.items() if key != "OOCPR_GRIDGRAPH"}
    subprocess.run(command, check=True, env=without, capture_output=True)
    found = json.loads(out.read_text())["measured"]
    assert "OOCPR_GRIDGRAPH" in found["GridGraph"]["reason"]
    for name, cell in found.items():
        if name.startswith("rank") and "weighted" not in name:
            assert cell["true_error"] <= cell["error_bound"] <= 1e-10
    assert found["Dask"]["true_error"] <= 1e-10
    assert found["all rates"]["read_bytes"] >= 2**22
    tables, results = import_module("tables"), json.loads(out.read_text())
    assert len(tables.disk(results)) == 2 + 6
    assert len(tables.disk_rates(results)) == 2 + sum("all" in cell for cell in found.values())


@pytest.mark.long
def test_runs_within_budgets_are_put_beside_their_plans(tmp_path: Path) -> None:
    graph = oocpr.import_graph((np.array([0, 1, 2, 3]), np.array([1, 2, 0, 0])), tmp_path / "g.zarr")
    assert graph.nodes == 4
    out = tmp_path / "budgets.json"
    words = [sys.executable, str(BENCH / "device_budgets.py"), str(tmp_path / "g.zarr"), "--out", str(out)]
    # Without a device: what a processor is not given is refused, and said.
    options = ["--device", "cpu", "--budgets", "1GiB", "all", "--runs", "2"]
    done = subprocess.run([*words, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert "device is cpu" in found["1GiB"]["failed"]
    assert found["all"]["runs"] == 2
    assert found["all"]["same bits as the first run"]
    assert found["all"]["bound"] <= 1e-10
    assert {"pass_seconds", "seconds", "peak_memory"} <= set(found["all"]["predicted/found"])


@pytest.mark.slow
def test_the_parts_of_a_run_from_the_start_of_its_process_are_all_of_it(tmp_path: Path) -> None:
    oocpr.import_graph((np.array([0, 1, 2, 3]), np.array([1, 2, 0, 0])), tmp_path / "g.zarr")
    # Without a device: a processor has no link, and is given no memory of a device.
    words = (tmp_path / "g.zarr", "--device", "cpu", "--runs", 2, "--budgets", "all", "1GiB")
    found = run_bench("device_start.py", *words, "--out", tmp_path / "start.json")
    assert sorted(found["provenance"]) == ["command", "commit", "date", "machine", "versions"]
    assert found["link, GB/s"] is None
    cells = found["stores"]["g"]
    assert "device is cpu" in cells["1GiB"]["failed"]
    assert cells["tiles"]["files"] == 1
    assert {"page cache, threads 1, GB/s", "page cache, threads 8, GB/s"} < set(cells["rates"])
    first, runs = cells["all, before"], cells["all"]
    assert sum(first["seconds by parts"].values()) == pytest.approx(first["seconds"])
    assert all(seconds >= 0 for seconds in first["seconds by parts"].values())
    assert first["seconds of pagerank"] < first["seconds"] < first["seconds of the process"]
    assert runs["runs"] == 2
    assert runs["passes"]["min"] == runs["passes"]["max"] == first["passes"]
    assert runs["bound"]["max"] <= 1e-10
    for figure in (runs["seconds"], runs["seconds by parts"]["first pass"]):
        assert figure["min"] <= figure["median"] <= figure["max"]


@pytest.mark.long
def test_systems_of_papers_are_run_to_the_same_error(tmp_path: Path) -> None:
    words = ("--rmat", 9, "--runs", 2, "--html", tmp_path / "papers.html", "--out", tmp_path / "papers.json")
    found = run_bench("papers.py", *words)
    [graph] = found["graphs"].values()
    assert graph["nodes"] == 512
    for system, cell in graph["systems"].items():
        for stop in ("certified", "residual"):
            assert len(cell[stop]["seconds"]) == 2
            assert cell[stop]["converged"]
            assert cell[stop]["error"] <= cell[stop]["certified"]
        assert cell["certified"]["certified"] <= 1e-10, system
    counts = graph["systems"]["CPMS, 4 segments (Grützmacher 2018)"]["residual"]
    assert sum(counts["sweeps"]) + 1 == counts["passes"]
    page = (tmp_path / "papers.html").read_text()
    assert all(system in page for system in graph["systems"])
    lines = import_module("tables").papers(found)
    assert lines[2].startswith("| R-MAT 9 | 0.01 M | ")


def test_steps_of_the_contest_are_measured_against_exact_ranks(tmp_path: Path) -> None:
    edges = np.random.default_rng(9).integers(0, 512, (4096, 2))
    np.savetxt(tmp_path / "python311-doc.txt.gz", edges, fmt="%d")
    words = ("--graphs", tmp_path, "--quick", "--seeds", 2, "--top", 5, "--out", tmp_path / "contest.json")
    (graph,) = run_bench("contest.py", *words)["graphs"].values()
    default, *others = graph["steps"].values()
    assert max(default["L1"]) <= 1e-6
    assert len(others) == 2
    for each in (default, *others):
        assert len(each["seconds"]) == 2
        assert all(l2 <= l1 for l1, l2 in zip(each["L1"], each["L2"], strict=True))
        assert all(0 <= share <= 1 for share in each["top"])
    # Where a change of 1e-6 ends a run, the error may be damping over one less damping times that.
    assert all(max(each["L1"]) <= 0.85 / 0.15 * 1e-6 + 1e-6 for each in others)


def test_rounds_are_counted_as_by_wu(tmp_path: Path) -> None:
    found = run_bench("wu.py", "--quick", "--out", tmp_path / "wu.json")
    (graph,) = found["graphs"].values()
    assert (graph["nodes"], graph["edges"]) == (281_903 // 8, 2_312_497 // 8)
    assert "not the graph itself" in graph["title"]
    # Figures of the whole graph are not those of an eighth of it.
    assert graph["published"] is None
    processors, default = graph["systems"].values()
    rate = (2 * graph["edges"] - graph["nodes"]) / processors["round, ms"] / 1e6
    assert processors["GFlop/s"] == pytest.approx(rate)
    assert processors["preparing, ms"] == 0
    assert default["bound"] <= 1e-10


@pytest.mark.slow
def test_many_seeds_are_ranked_beside_other_programs(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    pairs = [f"{u} {v}\n" for u, v in rng.integers(0, 60, (300, 2)).tolist()]
    (tmp_path / "small.txt").write_text("".join(pairs))
    words = (
        "small",
        "--count",
        40,
        "--sample",
        2,
        "--graphs-folder",
        tmp_path,
        "--cache",
        tmp_path / "cache",
    )
    found = run_bench("seeds.py", *words, "--out", tmp_path / "seeds.json")
    (graph,) = found["graphs"].values()
    ours = graph["oocpr"]
    assert ours["all converged"]
    assert ours["worst error"] <= ours["worst bound of the sample"] <= 1e-10
    for peer in ("SciPy, power iteration", "NetworkX"):
        assert len(graph["peers"][peer]["seconds a seed"]) == 2
        assert graph["peers"][peer]["worst error"] < 1e-10
    assert len(import_module("tables").seeds(found)) == 2 + 3 + len(graph["peers"])


def test_published_speedups_follow_from_published_times() -> None:
    wu = import_module("wu")
    assert list(wu.PUBLISHED) == list(wu.SHAPES)
    for published in wu.PUBLISHED.values():
        device = {"preparing, ms": published.preparing, "round, ms": published.round}
        assert wu.speedup({"round, ms": published.processor}, device) == pytest.approx(
            published.speedup, abs=0.06
        )


def test_the_series_of_jiang_is_ranked_on_processors(tmp_path: Path) -> None:
    links = Path(__file__).parents[2] / "data" / "tiny" / "langville-meyer.dat"
    (tmp_path / "hollins.dat.gz").write_bytes(gzip.compress(links.read_bytes()))
    words = ("--quick", "--graphs", tmp_path, "--out", tmp_path / "subgraphs.json")
    found = run_bench("subgraphs.py", *words)
    hollins, smallest = found["graphs"].values()
    assert (hollins["nodes"], hollins["published"]) == (6, None)
    assert smallest["nodes"] == 100_000
    assert smallest["published"] == {"cpu": 0.2903, "gpu": 0.0139}
    # Of the edges those stay whose ends both do: by chance, and more or less as nodes have many.
    assert smallest["edges"] == pytest.approx((100_000 / 3_566_907) ** 2 * 45_030_389, rel=0.3)
    assert "not the graph itself" in found["subgraphs"]
    for graph in (hollins, smallest):
        for cell in graph["systems"].values():
            assert len(cell["certified"]["seconds"]) == 1
            assert cell["certified"]["error"] <= cell["certified"]["certified"] <= 1e-10
    assert import_module("tables").papers(found)[2].startswith("| hollins | ")


def test_a_subgraph_has_the_edges_between_its_nodes() -> None:
    subgraphs = import_module("subgraphs")
    whole = subgraphs.Wu("su", 1000)
    (block,) = whole.blocks(whole.edges)
    ends = set(zip(block.src.tolist(), block.dst.tolist(), strict=True))
    for count, links in subgraphs.subgraphs(whole, [50, 200, whole.nodes]):
        assert links.shape == (count, count)
        inside = {(src, dst) for src, dst in ends if max(src, dst) < count}
        assert set(zip(*(each.tolist() for each in links.coords), strict=True)) == inside
        assert inside


def test_vectors_are_not_timed_without_a_device() -> None:
    words = [sys.executable, str(BENCH / "wu.py"), "--vectors"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Add --device cuda" in done.stderr
