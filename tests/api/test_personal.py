"""Ranks of many seeds: how seeds are given, what is kept of the ranks and written, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import read_csv
from scipy.sparse import coo_matrix, csr_array

import oocpr
from oocpr.api import as_graph
from oocpr.errors import DoesNotFitError, InputError, UsageError

SEEDS = [{"a": 1}, {"b": 2, "f": 1}, {"i": 0.5}, {"d": 3, "a": 1e-3}]
ROWS = "one\ta\ntwo\tb\t2\n# a comment\nthree\ti\t0.5\ntwo\tf\nfour\td\t3\nfour\ta\t0.001\n"


def links() -> list[tuple[str, str]]:
    random = np.random.default_rng(3)
    return [("abcdefghij"[a], "abcdefghij"[b]) for a, b in random.integers(0, 10, (40, 2)) if a != 4]


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> oocpr.Graph:
    folder = tmp_path_factory.mktemp("personal")
    text = "".join(f"{source}\t{target}\n" for source, target in links())
    (folder / "names.tsv").write_text(text)
    return oocpr.import_graph(folder / "names.tsv", folder / "g.zarr", format="names")


@pytest.fixture(scope="module")
def ranks(graph) -> oocpr.PersonalRanks:
    return oocpr.pagerank(graph, personalization=SEEDS)


def test_ranks_are_those_of_networkx(graph, ranks):
    directed = nx.DiGraph(links())
    for number, seed in enumerate(SEEDS):
        expected = nx.pagerank(directed, personalization=seed, tol=1e-14, max_iter=1000)
        found = dict(ranks[number].top(10))
        assert found.keys() == expected.keys()
        assert sum(abs(found[name] - expected[name]) for name in expected) < 1e-9
    assert ranks.converged.all()
    assert (ranks.error_bound <= 1e-10).all()
    assert (ranks.passes >= 1).all()
    assert repr(ranks) == "PersonalRanks(4 seeds, 10 nodes, 4 converged)"


@pytest.mark.parametrize("dangling", ["strongly", "weakly"])
def test_ranks_are_those_of_single_runs(graph, dangling):
    many = oocpr.pagerank(graph, personalization=SEEDS, damping=0.6, dangling=dangling)
    for number, seed in enumerate(SEEDS):
        one = oocpr.pagerank(graph, personalization=seed, damping=0.6, dangling=dangling)
        mine = many[number]
        assert np.abs(one.to_numpy() - mine.to_numpy()).sum() <= one.error_bound + mine.error_bound
        assert mine.error_bound == many.error_bound[number]
        assert mine.converged


def matrix_of(graph) -> np.ndarray:
    rows = dict(zip(*zip(*oocpr.pagerank(graph).top(10), strict=True), strict=True))
    order = graph.store.labels(np.arange(len(rows)))
    return np.array([[seed.get(name, 0.0) for name in order] for seed in SEEDS])


def test_seeds_may_be_given_in_many_ways(graph, ranks, tmp_path):
    dense = matrix_of(graph)
    file = tmp_path / "seeds.tsv"
    file.write_text(ROWS)
    frames = [pd.DataFrame({"node": list(seed), "weight": list(seed.values())}) for seed in SEEDS]
    for given in (dense, csr_array(dense), coo_matrix(dense), tuple(SEEDS), frames):
        same = oocpr.pagerank(graph, personalization=given)
        assert same.seeds == [0, 1, 2, 3]
        assert all((same[k].to_numpy() == ranks[k].to_numpy()).all() for k in range(4))
    named = oocpr.pagerank(graph, seeds=file)
    assert named.seeds == ["one", "two", "three", "four"]
    assert named.top(3) == ranks.top(3)


@pytest.mark.parametrize("number", [slice(0, 1), True, "ann"])
def test_what_is_no_number_of_a_seed_is_refused(ranks, number):
    with pytest.raises(UsageError, match="is no number of a seed"):
        ranks[number]


def test_sets_and_numbered_nodes_are_taken_too(tmp_path):
    graph = as_graph((np.array([7, 8, 9]), np.array([8, 7, 7])))
    (tmp_path / "seeds.txt").write_text("u 7\nv 9 2.5\n% no seed\nv 7 2.5\n")
    many = oocpr.pagerank(graph, personalization=[{7}, {9, 7}], top=2)
    assert many.top() == oocpr.pagerank(graph, seeds=tmp_path / "seeds.txt").top(2)
    assert [type(node) for node, _ in many.top()[0]] == [int, int]


def test_only_the_first_of_each_seed_are_kept(graph, ranks):
    few = oocpr.pagerank(graph, personalization=SEEDS, top=3)
    assert few.top(3) == ranks.top(3)
    assert few.top(2) == ranks.top(2)
    assert few.top(0) == [[]] * 4
    assert [top == ranks[k].top(3) for k, top in enumerate(few.top(3))] == [True] * 4
    with pytest.raises(UsageError, match="3 largest ranks are kept"):
        few[0]
    with pytest.raises(UsageError, match="k is 4 and the 3 largest"):
        few.top(4)
    assert len(oocpr.pagerank(graph, personalization=SEEDS, top=99).top(99)[0]) == 10


def test_tables_and_files_have_all_that_is_kept(graph, ranks, tmp_path):
    few = oocpr.pagerank(graph, personalization=SEEDS, top=3)
    table = few.to_pandas()
    assert list(table.columns) == ["seed", "rank", "node", "value"]
    assert table["seed"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert table["rank"].tolist() == [1, 2, 3] * 4
    listed = [entry for top in ranks.top(3) for entry in top]
    assert list(zip(table["node"], table["value"], strict=True)) == listed
    few.to_parquet(tmp_path / "r.parquet")
    few.to_csv(tmp_path / "r.csv")
    assert pq.read_table(tmp_path / "r.parquet").equals(few.to_arrow())
    assert read_csv(tmp_path / "r.csv").to_pandas().equals(table)
    assert ranks.to_arrow(3).equals(few.to_arrow())
    assert len(ranks.to_arrow()) == 40
    assert ranks.to_arrow()["value"].to_numpy().sum() == pytest.approx(4)


def test_the_report_has_each_seed(graph):
    report = oocpr.pagerank(graph, personalization=SEEDS, max_passes=1, top=1).report()
    assert not report["converged"]
    assert report["error_bound"] == max(seed["error_bound"] for seed in report["seeds"])
    assert [seed["seed"] for seed in report["seeds"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("seeds", "problem"),
    [
        ([{}, {"a": 1}], r"personalization\[0\] has no number above 0"),
        ([{"a": 1}, {"a": -1}], r"personalization\[1\] gives the node 'a' -1"),
        ([{"a": 1}, np.ones(10)], r"personalization\[1\] has no names"),
        ([{"a": 1}, 5], r"personalization\[1\] is a int"),
        (np.ones((2, 9)), r"has the shape \(2, 9\)"),
        (csr_array((0, 10)), "has no seed"),
        (csr_array((2, 10)), "seed 0 has no number above 0"),
        (np.full((2, 10), -1.0), "no finite numbers of at least 0"),
        (np.full((2, 10), np.nan), "no finite numbers of at least 0"),
        (np.full((2, 10), "a"), "no finite numbers"),
    ],
)
def test_seeds_that_are_none_are_named(graph, seeds, problem):
    with pytest.raises(UsageError, match=problem):
        oocpr.pagerank(graph, personalization=seeds)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("one\tz\n", "the graph has no node 'z'"),
        ("one\ta\none\n", "line 2: 'one' is no seed, node and weight"),
        ("one\ta\tmuch\n", "line 1: .* is no seed, node and weight"),
        ("one\ta\t-1\n", "line 1: -1.0 is no weight"),
    ],
)
def test_lines_that_are_wrong_are_named(graph, tmp_path, text, problem):
    (tmp_path / "seeds.tsv").write_text(text)
    with pytest.raises(InputError, match=problem):
        oocpr.pagerank(graph, seeds=tmp_path / "seeds.tsv")


def test_files_without_seeds_are_refused(graph, tmp_path):
    (tmp_path / "seeds.tsv").write_text("# nothing\n")
    with pytest.raises(UsageError, match="has no seed"):
        oocpr.pagerank(graph, seeds=tmp_path / "seeds.tsv")
    (tmp_path / "seeds.tsv").write_text("one\ta\t0\n")
    with pytest.raises(UsageError, match="seed 'one' has no number above 0"):
        oocpr.pagerank(graph, seeds=tmp_path / "seeds.tsv")
    with pytest.raises(InputError, match="does not exist"):
        oocpr.pagerank(graph, seeds=tmp_path / "none.tsv")


@pytest.mark.parametrize(
    "others",
    [
        {"start": {"a": 1}}, {"client": object()}, {"trace": "t.json"},
        {"checkpoint": "kept"}, {"resume": True}, {"predict": True},
        {"time_limit": "1h"},
    ],
)  # fmt: skip
def test_what_many_seeds_do_not_go_with_is_refused(graph, others):
    with pytest.raises(UsageError, match=f"take no {next(iter(others))}"):
        oocpr.pagerank(graph, personalization=SEEDS, **others)


def test_other_parameters_that_cannot_be_are_refused(graph, tmp_path):
    with pytest.raises(UsageError, match="take no personalization"):
        oocpr.pagerank(graph, personalization=SEEDS, seeds=tmp_path / "seeds.tsv")
    with pytest.raises(UsageError, match="top is 3, for many seeds"):
        oocpr.pagerank(graph, top=3)
    for top in (-1, 2.5, "3", True):
        with pytest.raises(UsageError, match="no count"):
            oocpr.pagerank(graph, personalization=SEEDS, top=top)
    for method in ("auto", "components"):
        with pytest.raises(UsageError, match="damping is 2"):
            oocpr.pagerank(tmp_path / "is not read", personalization=SEEDS, damping=2, method=method)
    with pytest.raises(UsageError, match="reads float32, not bits8"):
        oocpr.pagerank(graph, personalization=SEEDS, reads="bits8", method="components")
    with pytest.raises(UsageError, match="method cpms2 takes no personalization"):
        oocpr.pagerank(graph, personalization=SEEDS, method="cpms2")
    with pytest.raises(UsageError, match="method cpms4 takes no seeds"):
        oocpr.pagerank(graph, seeds=tmp_path / "seeds.tsv", method="cpms4")
    with pytest.raises(UsageError, match="is for CUDA devices"):
        oocpr.pagerank(graph, personalization=SEEDS, kernel="ell")


def test_too_little_memory_is_refused(graph):
    for method, what in (("components", "Ranking a graph in memory"), ("auto", "Keeping the ranks")):
        with pytest.raises(DoesNotFitError, match=f"{what} (for|of) 4 seeds needs"):
            oocpr.pagerank(graph, personalization=matrix_of(graph), memory="2MiB", method=method)


@pytest.fixture(scope="module")
def weighted(tmp_path_factory) -> oocpr.Graph:
    random, folder = np.random.default_rng(5), tmp_path_factory.mktemp("weighted")
    ends, weights = random.integers(0, 60, (300, 2)), random.random(300) + 0.1
    rows = (f"{a} {b} {weight:.3f}\n" for (a, b), weight in zip(ends, weights, strict=True))
    (folder / "w.txt").write_text("".join(rows))
    return oocpr.import_graph(folder / "w.txt", folder / "w.zarr", weight=3)


@pytest.mark.parametrize("top", [None, 3])
@pytest.mark.parametrize("method", ["auto", "mixed"])
def test_seeds_of_weighted_graphs_are_ranked_in_blocks_or_one_after_the_other(weighted, top, method):
    directed = nx.DiGraph()
    for source, target, weight in np.loadtxt(Path(weighted.path).with_name("w.txt")):
        before = directed.get_edge_data(int(source), int(target), {"weight": 0.0})["weight"]
        directed.add_edge(int(source), int(target), weight=before + weight)
    seeds = [{7: 1}, {3: 2, 50: 1}, {20: 1}]
    seen = []
    many = oocpr.pagerank(
        weighted, personalization=seeds, top=top, method=method,
        progress=lambda *state: seen.append(state[:4]),
    )  # fmt: skip
    for number, seed in enumerate(seeds):
        expected = nx.pagerank(directed, personalization=seed, tol=1e-14, max_iter=1000)
        found = dict(many.top(top or 60)[number])
        assert sum(abs(found[node] - expected[node]) for node in found) < 1e-9
        assert list(found.values()) == sorted(found.values(), reverse=True)
        one = oocpr.pagerank(weighted, personalization=seed)
        if method == "mixed":
            assert (many.error_bound[number], many.passes[number]) == (one.error_bound, one.passes)
        if top is None:
            apart = np.abs(many[number].to_numpy() - one.to_numpy()).sum()
            assert apart <= (method == "auto") * (many.error_bound[number] + one.error_bound)
    assert many.converged.all()
    assert many.run.method == {"auto": "components", "mixed": "mixed"}[method]
    assert many.run.personalized
    assert many.run.passes == many.passes.max()
    done = [state[1] for state in seen if state[0] == "personal ranks"]
    assert done == sorted(done)
    assert done[-1] == 3
    assert {state[2:] for state in seen if state[0] == "personal ranks"} == {(3, "seeds")}


@pytest.mark.parametrize("how", [{"method": "mixed"}, {"reads": "bits8"}, {"stripes": 1}, {"io": "buffered"}])
def test_other_runs_than_those_in_memory_are_asked_for_by_their_parameters(graph, ranks, how):
    many = oocpr.pagerank(graph, personalization=SEEDS, **how)
    for number in range(len(SEEDS)):
        apart = np.abs(many[number].to_numpy() - ranks[number].to_numpy()).sum()
        assert apart <= many.error_bound[number] + ranks.error_bound[number]
    assert many.run.method != "components" or how == {"io": "buffered"}


def test_a_run_that_ends_too_early_is_seen(weighted):
    many = oocpr.pagerank(weighted, personalization=[{7: 1}, {8: 1}], method="residual", max_passes=2)
    assert not many.converged.any()
    assert not many.run.converged
    assert (many.passes == 2).all()


@pytest.mark.long
def test_a_graph_past_memory_is_ranked_for_each_seed(tmp_path):
    random = np.random.default_rng(2)
    source, target = random.integers(0, 1_500_000, (2, 4_000_000))
    oocpr.import_graph((source, target), tmp_path / "g.zarr")
    program = f"""
import oocpr
graph = oocpr.open_graph({str(tmp_path / "g.zarr")!r})
ranks = oocpr.pagerank(graph, personalization=[{{n: 1}} for n in range(5)], top=4, memory="400MiB", threads=2)
assert ranks.converged.all() and ranks.run.method == "mixed", ranks.run
print(ranks.run.peak_memory)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) <= 400 * 2**20


@pytest.mark.long
@pytest.mark.parametrize("weight", [None, "weight"])
def test_the_run_stays_within_its_memory(tmp_path, weight):
    """In a process of its own, since the peak of this one is that of other tests.

    What it runs is compiled before: compilers stay in memory, and blocks of seeds do not fit beside them.
    """
    program = f"""
import numpy as np, oocpr, pandas as pd
random = np.random.default_rng(1)
ends, weights = random.integers(0, 200_000, (1_000_000, 2)), random.random(1_000_000)
edges = pd.DataFrame({{"source": ends[:, 0], "target": ends[:, 1], "weight": weights}})
graph = oocpr.import_graph(edges, {str(tmp_path / "g.zarr")!r}, weight={weight!r})
oocpr.pagerank(graph, personalization=[{{0: 1}}, {{1: 1}}], top=5, threads=2)
"""
    measured = f"""
import oocpr
graph = oocpr.open_graph({str(tmp_path / "g.zarr")!r})
seeds = [{{n: 1}} for n in range(0, 100_000, 1000)]
ranks = oocpr.pagerank(graph, personalization=seeds, top=5, memory="400MiB", threads=2)
assert ranks.converged.all()
assert ranks.run.method == "components"
print(ranks.run.peak_memory)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    done = subprocess.run([sys.executable, "-c", measured], check=True, capture_output=True, text=True)
    assert int(done.stdout) <= 400 * 2**20


def test_whole_ranks_can_be_written_as_any_others(ranks, tmp_path):
    ranks[2].to_parquet(tmp_path / "one.parquet")
    assert oocpr.read_ranks(Path(tmp_path / "one.parquet")).top(3) == ranks[2].top(3)
