"""The verifying pass agrees with dense arithmetic, and only right ranks get a small bound."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from oocpr.errors import DamagedError, DoesNotFitError, InputError, UsageError
from oocpr.ingest.build import build_store
from oocpr.result import verify as verifying
from oocpr.result.names import ListedNames, RowNames
from oocpr.result.ranks import Ranks
from oocpr.result.verify import in_store_order, verify
from oocpr.sources import open_source
from oocpr.store.graph import open_store
from oocpr.store.writer import GraphWriter

from ..store.writing import add_tile

if TYPE_CHECKING:
    from oocpr.store.graph import GraphStore

MEMORY = 1 << 33


def stored(adjacency: NDArray[np.bool_], folder: str | Path, tile_edges: int | None = None) -> GraphStore:
    from scipy.sparse import csr_array

    path = Path(folder, "graph.zarr")
    build_store(open_source(csr_array(adjacency)), path, memory=MEMORY, tile_edges=tile_edges)
    return open_store(path)


def step_matrix(
    adjacency: NDArray[np.bool_], damping: float, dangling: str, teleport: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Dense A and b of the step p -> A p + b, b the teleport of mass one."""
    nodes = len(adjacency)
    degree = adjacency.sum(axis=1)
    links = np.divide(adjacency, degree[:, None], out=np.zeros((nodes, nodes)), where=degree[:, None] > 0).T
    spread = teleport if dangling == "strongly" else np.full(nodes, 1 / nodes)
    return damping * (links + np.outer(spread, degree == 0)), (1 - damping) * teleport


def exact_ranks(matrix: NDArray[np.float64], constant: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.linalg.solve(np.eye(len(matrix)) - matrix, constant)


@settings(max_examples=30)
@given(data=st.data())
def test_residual_and_bound_are_those_of_dense_arithmetic(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 12))
    seed = data.draw(st.integers(0, 2**32 - 1))
    density = data.draw(st.sampled_from([0.0, 0.1, 0.4, 1.0]))
    damping = data.draw(st.sampled_from([0.01, 0.5, 0.85, 0.99]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    noise = data.draw(st.sampled_from([0.0, 1e-12, 1e-3, 1.0]))
    random = np.random.default_rng(seed)
    adjacency = random.random((nodes, nodes)) < density
    personal = data.draw(st.booleans())
    teleport = random.dirichlet(np.ones(nodes)) if personal else np.full(nodes, 1 / nodes)
    matrix, constant = step_matrix(adjacency, damping, dangling, teleport)
    exact = exact_ranks(matrix, constant)
    ranks = exact + noise * random.standard_normal(nodes)

    with tempfile.TemporaryDirectory() as folder:
        store = stored(adjacency, folder, tile_edges=data.draw(st.integers(1, 20)))
        found = verify(
            store, ranks, damping=damping, dangling=dangling, personalization=teleport if personal else None
        )

    residual = np.abs(matrix @ ranks + constant - ranks).sum()
    assert found.residual == pytest.approx(residual, rel=1e-9, abs=1e-13)
    assert found.bound >= np.abs(ranks - exact).sum() * (1 - 1e-12) - 1e-15
    assert found.bound == (found.residual + found.rounding) / (1 - damping)
    assert found.rounding <= 1e-13 * (1 + np.abs(ranks).sum())
    assert found.total == pytest.approx(ranks.sum(), rel=1e-13, abs=1e-15)


def test_a_multiple_of_the_answer_does_not_pass_for_it(tmp_path: Path) -> None:
    adjacency = np.array([[0, 1, 0], [0, 0, 1], [1, 1, 0]], bool)
    matrix, constant = step_matrix(adjacency, 0.85, "strongly", np.full(3, 1 / 3))
    exact = exact_ranks(matrix, constant)
    store = stored(adjacency, tmp_path)
    assert verify(store, exact).residual < 1e-14
    assert verify(store, 2 * exact).bound >= 1


def test_ranks_that_float64_cannot_add_up_are_bounded_by_nothing(tmp_path: Path) -> None:
    store = stored(np.array([[0, 1], [1, 0]], bool), tmp_path)
    assert verify(store, np.array([1e308, 1e308])).bound == np.inf


def test_a_hub_longer_than_a_tile_is_pushed_whole(tmp_path: Path) -> None:
    nodes = 50
    adjacency = np.zeros((nodes, nodes), bool)
    adjacency[:, 7] = True
    adjacency[7] = True
    matrix, constant = step_matrix(adjacency, 0.85, "strongly", np.full(nodes, 1 / nodes))
    store = stored(adjacency, tmp_path, tile_edges=3)
    assert store.tiles == 33
    assert verify(store, exact_ranks(matrix, constant)).residual < 1e-14


def written(folder: Path, **changes: Any) -> GraphStore:
    """A store of 0 -> 1, 0 -> 2, 1 -> 2, or of what `changes` makes of it."""
    facts: dict[str, Any] = {
        "source": "three nodes",
        "order": "keep",
        "tile_edges": 4,
        "duplicates": 0,
        "self_loops": 0,
        "local_edges": 3,
        "out_degree": [np.array([2, 1, 0], np.uint32)],
    }
    weights = changes.pop("weights", None)
    with GraphWriter(folder / "graph.zarr") as writer:
        add_tile(writer, np.array([0, 0, 1], np.uint32), np.array([0, 1, 2, 0]), weights)
        writer.finish(**facts | changes)
    return open_store(folder / "graph.zarr")


@pytest.mark.parametrize("off", [0, 1, 1 << 16, 1 << 17])
def test_edges_of_a_node_are_counted_past_the_numbers_of_a_counter(tmp_path: Path, off: int) -> None:
    nodes = 200_000
    degree = np.zeros(nodes, np.uint32)
    degree[5] = nodes - off
    with GraphWriter(tmp_path / "graph.zarr") as writer:
        for _ in range(nodes // 50_000):
            lengths = np.append(np.ones(50_000, np.uint32), np.uint32(0))
            add_tile(writer, np.full(50_000, 5, np.uint32), lengths)
        writer.finish(
            source="a star", order="keep", tile_edges=50_000, duplicates=0, self_loops=1, local_edges=0,
            out_degree=[degree],
        )  # fmt: skip
    store = open_store(tmp_path / "graph.zarr")
    if off:
        with pytest.raises(DamagedError, match=f"row 5 has 200000 out-edges .* out-degree {nodes - off}"):
            verify(store, np.full(nodes, 1 / nodes))
    else:
        assert verify(store, np.full(nodes, 1 / nodes)).total == pytest.approx(1)


def test_out_degrees_that_are_not_those_of_the_tiles_are_damage(tmp_path: Path) -> None:
    store = written(tmp_path, out_degree=[np.array([1, 2, 0], np.uint32)])
    with pytest.raises(DamagedError, match="row 0 has 2 out-edges in the tiles and out-degree 1"):
        verify(store, np.full(3, 1 / 3))


@pytest.mark.parametrize("unit", [1.0, 1e-310, 1e300])
def test_weights_are_pushed_by_their_share(tmp_path: Path, unit: float) -> None:
    weights, sums = unit * np.array([1.0, 3.0, 2.0]), unit * np.array([4.0, 2.0, 0.0])
    store = written(tmp_path, weights=weights, out_weight=[sums])
    links = np.array([[0, 0, 0], [1 / 4, 0, 0], [3 / 4, 1, 0]])
    matrix, constant = 0.85 * (links + np.outer(np.full(3, 1 / 3), [0, 0, 1])), np.full(3, 0.05)
    exact = exact_ranks(matrix, constant)
    assert verify(store, exact).residual < 1e-14
    other = np.array([0.2, 0.5, 0.3])
    residual = np.abs(matrix @ other + constant - other).sum()
    assert verify(store, other).residual == pytest.approx(residual, rel=1e-12)


@pytest.mark.parametrize(
    ("sums", "message"),
    [([4.0, 2.5, 0.0], "row 1's out-edges are 0.8 times"), ([0.0, 2.0, 0.0], "row 0 .* out-weight 0")],
)
def test_out_weights_that_are_not_those_of_the_tiles_are_damage(
    tmp_path: Path, sums: list[float], message: str
) -> None:
    store = written(tmp_path, weights=np.array([1.0, 3.0, 2.0]), out_weight=[np.array(sums)])
    with pytest.raises(DamagedError, match=message):
        verify(store, np.full(3, 1 / 3))


@pytest.mark.parametrize("row", [0, 1, 2, 3])
def test_row_offsets_that_are_not_those_of_the_tiles_are_damage(
    tmp_path: Path, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_WINDOW", 2)
    store = written(tmp_path)
    assert verify(store, np.full(3, 1 / 3)).residual > 0
    right = store.indptr

    def shifted(low: int, high: int) -> NDArray[np.int64]:
        return right(low, high) + (np.arange(low, high) == row)

    monkeypatch.setattr(store, "indptr", shifted)
    with pytest.raises(DamagedError, match="row offsets"):
        verify(store, np.full(3, 1 / 3))


@pytest.mark.parametrize("damping", [0.0, 1.0, -0.5, float("nan")])
def test_a_damping_that_cannot_be_is_refused(tmp_path: Path, damping: float) -> None:
    with pytest.raises(UsageError, match="damping"):
        verify(written(tmp_path), np.full(3, 1 / 3), damping=damping)


def test_other_parameters_that_cannot_be_are_refused(tmp_path: Path) -> None:
    store = written(tmp_path)
    with pytest.raises(UsageError, match="'never'"):
        verify(store, np.full(3, 1 / 3), dangling="never")
    with pytest.raises(InputError, match="2 ranks for a graph of 3 nodes"):
        verify(store, np.full(2, 1 / 2))


def ordered(store: GraphStore, ranks: Ranks) -> list[float]:
    with in_store_order(store, ranks, "r.csv", MEMORY) as vector:
        return [float(value) for chunk in vector.chunks() for value in chunk]


class TestOrder:
    """Ranks in a file may stand in any order; names tell whose they are."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> GraphStore:
        return written(tmp_path, labels=["a", "b", "b"])

    def test_ranks_in_the_order_of_the_store_need_no_unique_names(self, store: GraphStore) -> None:
        ranks = Ranks(np.array([0.1, 0.2, 0.7]), ListedNames(["a", "b", "b"]))
        assert ordered(store, ranks) == [0.1, 0.2, 0.7]

    def test_names_that_repeat_cannot_be_matched_in_another_order(self, store: GraphStore) -> None:
        ranks = Ranks(np.array([0.1, 0.2, 0.7]), ListedNames(["b", "a", "b"]))
        with pytest.raises(InputError, match="'b' is the name of several nodes"):
            ordered(store, ranks)

    def test_several_ranks_of_a_node_are_refused(self, tmp_path: Path) -> None:
        ranks = Ranks(np.array([0.1, 0.2, 0.7]), ListedNames(["b", "a", "b"]))
        with pytest.raises(InputError, match=r"r\.csv has several ranks for one node name"):
            ordered(written(tmp_path, labels=["a", "b", "c"]), ranks)

    def test_any_order_is_matched_by_name(self, tmp_path: Path) -> None:
        store = written(tmp_path, node_ids=np.array([30, 10, 20], np.uint32))
        ranks = Ranks(np.array([0.1, 0.2, 0.7]), ListedNames(np.array([10, 20, 30])))
        assert ordered(store, ranks) == [0.7, 0.1, 0.2]

    @pytest.mark.parametrize("ids", [[30, 10, 20], [10, 20, 30]])
    def test_what_reading_names_has_left_in_memory_counts(
        self, tmp_path: Path, ids: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = written(tmp_path, node_ids=np.array([30, 10, 20], np.uint32))
        ranks = Ranks(np.array([0.1, 0.2, 0.7]), ListedNames(np.array(ids)))
        assert sorted(ordered(store, ranks)) == [0.1, 0.2, 0.7]
        # First the two files are compared, and then, in another order, names are looked up and ranks placed.
        held = [0, 0, MEMORY] if ids[0] == 10 else [MEMORY]
        monkeypatch.setattr(verifying, "resident_after_trim", lambda: held.pop(0))
        with pytest.raises(DoesNotFitError, match="Verifying"):
            ordered(store, ranks)
        assert not held

    def test_a_node_without_a_rank_is_named(self, tmp_path: Path) -> None:
        ranks = Ranks(np.array([0.1, 0.2, 0.7]), ListedNames(np.array([2, 1, 5])))
        with pytest.raises(InputError, match="no rank for the node 0"):
            ordered(written(tmp_path), ranks)

    def test_another_number_of_ranks_is_refused(self, store: GraphStore) -> None:
        with pytest.raises(InputError, match="4 ranks, the graph 3 nodes"):
            ordered(store, Ranks(np.full(4, 0.25), RowNames()))


def permutation_graph(folder: Path, nodes: int) -> tuple[Path, Path, Path]:
    """A named graph in which one edge enters and one leaves each node; its ranks in two orders."""
    target, edges = np.random.default_rng(3).permutation(nodes).astype(np.uint32), 1 << 17
    names = np.arange(nodes).astype("S9")
    text = np.char.add(b"node-", np.char.zfill(names, 9))
    with GraphWriter(folder / "graph.zarr") as writer:
        for first in range(0, nodes, edges):
            columns = target[first : first + edges]
            add_tile(writer, columns, np.append(np.ones(columns.size, np.uint32), np.uint32(0)))
        writer.finish(
            source="a permutation",
            order="keep",
            tile_edges=edges,
            duplicates=0,
            self_loops=0,
            local_edges=0,
            out_degree=[np.ones(nodes, np.uint32)],
            labels=[(np.frombuffer(text.tobytes(), np.uint8), np.full(nodes, 14, np.uint32))],
        )
    files = folder / "ranks.parquet", folder / "other-order.parquet"
    listed = text.astype(str).tolist()
    for path, order in zip(files, (listed, listed[::-1]), strict=True):
        Ranks(np.full(nodes, 1 / nodes), ListedNames(order)).to_parquet(path)
    return folder / "graph.zarr", *files


VERIFY = """
import sys, oocpr
from oocpr.system import peak_resident
found = oocpr.verify(sys.argv[1], sys.argv[2], memory=sys.argv[3])
assert found.bound < 1e-9, found
print(peak_resident())
"""


@pytest.mark.slow
def test_memory_holds_for_graphs_of_many_named_nodes(tmp_path: Path) -> None:
    def peak(graph: Path, ranks: Path, memory: int) -> int:
        command = [sys.executable, "-c", VERIFY, graph, ranks, str(memory)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    graph, ranks, _ = permutation_graph(tmp_path / "small", 1000)
    peak(graph, ranks, 1 << 32)  # compiles
    alone = peak(graph, ranks, 1 << 32)
    nodes = 2_000_000
    graph, *files = permutation_graph(tmp_path / "large", nodes)
    budget = alone + 10 * nodes + (64 << 20)
    for path in files:
        assert peak(graph, path, budget) <= budget
