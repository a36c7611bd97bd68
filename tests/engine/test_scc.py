"""Graphs in memory whole: components, order of rows, mixing of sweeps, and ranks that are right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from oocpr.engine.cpu.numbers import ROW_BLOCK
from oocpr.engine.planning import RunRequest, plan_run
from oocpr.engine.scc.level_schedule import LISTED, SHARED, SWEPT, WALKED, find_components, schedule_rows
from oocpr.engine.scc.personal import SeedVectors, rank_seeds
from oocpr.engine.scc.run import SccGraph, load_scc_graph, zeros_together
from oocpr.engine.scc.solve import DEPTH, RIDGE, TERMS, least_squares, mix, record_stride
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError, UsageError
from oocpr.jit import entry
from oocpr.store.graph import open_store

from ..store.damage import flip_bits
from .digraphs import Digraph, digraphs, exact_ranks, fewer, product, random_digraph, teleports
from .running import Stored, rank_whole


def knotted(seed: int = 3) -> Digraph:
    """Cycles small and large, hubs, chains, edges to oneself: every kind of stage."""
    random = np.random.default_rng(seed)
    nodes = 61_000
    parts = [
        # A large component with hubs, then a wide level of rows that hang on it.
        (random.integers(0, 9000, 240_000), (random.random(240_000) ** 3 * 9000).astype(np.int64)),
        (random.integers(0, 9000, 60_000), random.integers(9000, 30_000, 60_000)),
        # Pairs with edges to each other and to the level above, and a chain below them.
        (np.arange(30_000, 50_000), np.arange(30_000, 50_000) ^ 1),
        (random.integers(9000, 30_000, 40_000), random.integers(30_000, 50_000, 40_000)),
        (np.arange(49_999, 59_998), np.arange(50_000, 59_999)),
        (np.arange(0, 60_000, 7), np.arange(0, 60_000, 7)),
        # Sites whose pages all have edges to each other and to themselves, small and large.
        *(
            tuple(ends.ravel() for ends in np.meshgrid(site, site))
            for site in (np.arange(100, 120), np.arange(8000, 8200))
        ),
        # Leaves with the same few edges, and with the same many.
        tuple(ends.ravel() for ends in np.meshgrid(np.arange(60), np.arange(60_000, 60_500))),
        tuple(ends.ravel() for ends in np.meshgrid(np.arange(0, 9000, 50), np.arange(60_500, 60_550))),
    ]
    src, dst = (np.concatenate(ends) for ends in zip(*parts, strict=True))
    return Digraph(nodes, src, dst)


@fewer(2)
@given(graph=digraphs(), data=st.data())
def test_the_true_error_is_below_the_certified_bound(graph, data):
    damping = data.draw(st.sampled_from([0.2, 0.85, 0.97]))
    dangling = data.draw(st.sampled_from(["strongly", "weakly"]))
    teleport = data.draw(teleports(graph.nodes))
    exact = exact_ranks(graph, damping, teleport, dangling)
    tol = data.draw(st.sampled_from([1e-3, 1e-7, 1e-10]))
    with Stored(graph, data.draw(st.integers(1, 20))) as store:
        run = rank_whole(store, tol=tol, damping=damping, dangling=dangling, teleport=teleport)
    assert run.converged
    assert run.error_bound <= run.tol
    assert np.abs(run.ranks - exact).sum() <= run.error_bound
    assert abs(run.ranks.sum() - 1) <= 1e-14


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    from oocpr.sources import open_source

    from .running import build

    return build(open_source(knotted().entries), tmp_path_factory.mktemp("knotted") / "graph.zarr")


@pytest.fixture(params=[1, 2, 4])
def regions(request, monkeypatch):
    """Parts that large components are cut in; as many edges have one."""
    monkeypatch.setattr("oocpr.engine.scc.level_schedule.regions_of", lambda _: request.param)
    return request.param


def test_every_kind_of_stage_is_right_in_few_passes(store, regions):
    graph = knotted()
    schedule = load_scc_graph(store).schedule
    assert {*schedule.stages[:, 0].tolist()} == {SHARED, LISTED, WALKED, SWEPT}
    assert len(schedule.regions) == regions
    assert len(schedule.long_rows) > 8
    assert len(schedule.duplicate_rows) > 400
    long = schedule.long_ptr.astype(np.int64)
    assert (np.diff(long) == 0).sum() > 40
    run = rank_whole(store)
    assert run.converged
    assert run.passes <= 3
    # One more product moves the exact ranks by nothing, and these by what is certified.
    moved = product(graph, run.ranks, 0.85) - run.ranks
    assert np.abs(moved).sum() <= run.error_bound


@pytest.mark.usefixtures("regions")
def test_the_number_of_threads_changes_no_bit(store):
    ranks = [rank_whole(store, threads=threads).ranks for threads in (1, 2, 3, 5, 8)]
    assert all((ranks[0] == other).all() for other in ranks[1:])


def test_a_graph_that_was_kept_is_not_read_again(store):
    kept = {}
    first, second = rank_whole(store, kept=kept), rank_whole(store, kept=kept)
    assert first.bytes_read > 0
    assert second.bytes_read == 0
    assert (first.ranks == second.ranks).all()
    other = rank_whole(store, kept=kept, damping=0.5)
    assert (other.ranks == rank_whole(store, damping=0.5).ranks).all()


def test_what_a_run_leaves_changes_no_bit_of_the_next(store, monkeypatch):
    def ranked(**how):
        return rank_whole(store, kept=kept, **how).ranks

    kept: dict[str, SccGraph] = {}
    runs = [{}, {"damping": 0.5}, {"damping": 0.99}, {"teleport": np.arange(store.nodes) + 1.0}, {}]
    for how in runs:
        if "teleport" in how:
            how["teleport"] /= how["teleport"].sum()
    left = [ranked(**how) for how in runs for _ in range(2)]
    graph = kept["graph"]
    (workspace,) = graph.kept
    assert 0 < workspace.nbytes < graph.nbytes
    assert not any(np.shares_memory(workspace.vectors.r, ranks) for ranks in left)
    # Blocks of vectors, which need more, have it for themselves.
    seeds = SeedVectors(np.array([0, 1]), np.array([0]), np.array([1.0]))
    settings = Settings(method="components", reads="float32")
    rank_seeds(graph, settings, seeds, lambda *_: None, threads=1, width=8)
    assert not graph.kept
    monkeypatch.setattr("oocpr.engine.scc.run._KEPT_BYTES", 0)
    kept.clear()
    for how, pair in zip(runs, zip(left[::2], left[1::2], strict=True), strict=True):
        fresh = ranked(**how)
        assert not kept["graph"].kept
        assert all((fresh == ranks).all() for ranks in pair)


@pytest.mark.parametrize(("method", "auto", "free"), [("components", 0, 1), ("mixed", 0, 0), ("mixed", 1, 1)])
def test_what_earlier_runs_left_is_of_use_in_memory_only(store, method, auto, free):
    request = RunRequest(auto=bool(auto), memory=2**32, reusable=2**24)
    settings = Settings(method=method, reads="float32")
    run = plan_run(store, settings, request, 2**28)
    assert run.plan.method == ("components" if free else "mixed")
    assert run.plan.need.base == 2**28 - free * 2**24


@pytest.mark.usefixtures("regions")
def test_every_edge_is_laid_out_once():
    graph = knotted()
    into = graph.into
    schedule = schedule_rows(into.indptr.astype(np.uint32), into.indices.astype(np.uint32))
    live = graph.nodes + 1
    found = [np.stack([schedule.loops, schedule.loops], axis=1)]
    for row in schedule.members:
        first = int(schedule.offsets[row])
        edges = schedule.columns[first : first + int(schedule.outer[row]) + int(schedule.inner[row])]
        found.append(np.stack([np.full_like(edges, row), edges], axis=1))
    ranges = [stage[1:5] for stage in schedule.stages if stage[0] == SHARED] + [*schedule.regions[:, :4]]
    for low, high, long_low, long_high in ranges:
        for s in range(low, high - 1):
            block = schedule.slice_columns[schedule.slice_ptr[s] : schedule.slice_ptr[s + 1]].reshape(-1, 16)
            duplicates = slice(*schedule.duplicate_ptr[s : s + 2])
            rows = [*enumerate(schedule.targets[16 * s : 16 * s + 16], 16 * s)]
            for place, row in [
                *rows,
                *zip(schedule.duplicate_places[duplicates], schedule.duplicate_rows[duplicates], strict=True),
            ]:
                edges = block[:, place - 16 * s]
                edges = edges[edges != graph.nodes]
                found.append(np.stack([np.full_like(edges, row), edges % live], axis=1))
        for q in range(long_low, long_high - 1):
            # A row without columns has those of the next that has some.
            end = next(end for end in schedule.long_ptr[q + 1 :] if end > schedule.long_ptr[q])
            edges = schedule.slice_columns[schedule.long_ptr[q] : end]
            found.append(np.stack([np.full_like(edges, schedule.long_rows[q]), edges % live], axis=1))
    pairs = np.concatenate(found).astype(np.int64)
    keys = np.sort(pairs[:, 0] * graph.nodes + pairs[:, 1])
    expected = into.tocoo()
    assert keys.tolist() == np.sort(expected.row.astype(np.int64) * graph.nodes + expected.col).tolist()


def test_passes_that_run_out_are_an_outcome(store):
    run = rank_whole(store, max_passes=1)
    assert not run.converged
    assert run.passes == 1
    assert run.error_bound > run.tol


def test_high_damping_is_solved_too():
    graph = random_digraph(400, 900, seed=2)
    with Stored(graph, 200) as stored:
        run = rank_whole(stored, damping=0.999, tol=1e-9)
    assert run.converged
    assert np.abs(run.ranks - exact_ranks(graph, 0.999)).sum() <= run.error_bound


def test_only_its_own_number_format_is_taken():
    with pytest.raises(UsageError, match="reads float32"):
        Settings(method="components", reads="bits16")


def test_a_flipped_byte_is_found(store, tmp_path):
    import shutil

    copy = tmp_path / "graph.zarr"
    shutil.copytree(store.path, copy)
    chunk = next(file for file in sorted(copy.rglob("indices/c/*")) if file.is_file())
    flip_bits(chunk)
    with pytest.raises(DamagedError):
        load_scc_graph(open_store(copy))


def components(graph: Digraph) -> tuple[np.ndarray, np.ndarray]:
    """Component of each row, and level of each component."""
    into = graph.into
    component, levels = np.empty(graph.nodes, np.uint32), np.empty(graph.nodes, np.uint32)
    found = find_components(into.indptr.astype(np.uint32), into.indices.astype(np.uint32), component, levels)
    return component, levels[:found]


def check_components(graph: Digraph) -> None:
    component, levels = components(graph)
    count, labels = connected_components(graph.into, connection="strong")
    assert len(levels) == count
    assert len({*zip(component.tolist(), labels.tolist(), strict=True)}) == count
    before, after = component[graph.src], component[graph.dst]
    assert (before <= after).all()
    between = before != after
    expected = np.zeros(count, np.int64)
    for first, second in sorted(zip(before[between], after[between], strict=True), key=lambda edge: edge[1]):
        expected[second] = max(expected[second], expected[first] + 1)
    assert levels.tolist() == expected.tolist()


@given(digraphs(most_nodes=40, most_links=80))
def test_components_of_small_graphs(graph):
    check_components(graph)


@pytest.mark.parametrize("edges", [1000, 3000, 12_000])
def test_components_of_random_graphs_of_few_and_many_cycles(edges):
    check_components(random_digraph(3000, edges, seed=edges))


def test_a_long_path_and_a_long_cycle_need_no_deep_stack():
    nodes = 200_000
    path = np.arange(nodes - 1)
    _, levels = components(Digraph(nodes, path, path + 1))
    assert levels.tolist() == list(range(nodes))
    cycle = np.arange(nodes)
    component, levels = components(Digraph(nodes, cycle, (cycle + 1) % nodes))
    assert (component.max(), levels.tolist()) == (0, [0])


@entry(cache=False)
def record_and_mix(rows, stride, states, changes, sums, coefficients):
    record_stride(
        np.uint64(0), np.uint64(rows), stride, changes, np.empty((DEPTH, ROW_BLOCK), np.float32), sums
    )
    least_squares(min(stride, DEPTH), sums, np.empty((DEPTH, DEPTH)), coefficients)
    mix(np.uint64(0), np.uint64(rows), stride, coefficients, states)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(1, DEPTH))
@example(484, 2, 2)
def test_mixing_coefficients_are_those_of_least_squares(seed, rows, older):
    random = np.random.default_rng(seed)
    states, changes = np.zeros((DEPTH + 2, rows), np.float32), np.zeros((DEPTH + 1, rows), np.float32)
    sums, coefficients = np.empty(TERMS), np.empty(DEPTH)
    outcomes, moved = [], []
    for stride in range(older + 1):
        y, f = random.random((2, rows)).astype(np.float32)
        states[stride % (DEPTH + 1)], changes[stride % (DEPTH + 1)] = y, f
        record_and_mix(rows, stride, states, changes, sums, coefficients)
        outcomes.append(y)
        moved.append(f)
    assert np.isclose(sums[0], np.abs(moved[-1]).sum(dtype=np.float64), rtol=1e-12)
    differences = np.array([moved[-1] - earlier for earlier in moved[-2::-1]]).T.astype(np.float64)
    # Least squares with a ridge are those of the problem with a row more for each coefficient, solved by SVD.
    ridge = np.diag(np.sqrt(RIDGE) * np.linalg.norm(differences, axis=0))
    problem = np.vstack([differences, ridge])
    target = np.concatenate([moved[-1].astype(np.float64), np.zeros(older)])
    best, *_ = np.linalg.lstsq(problem, target, rcond=None)
    left = [np.linalg.norm(target - problem @ found) for found in (best, coefficients[:older])]
    assert left[1] <= left[0] + 1e-12 * np.linalg.norm(target)
    mixed = outcomes[-1] - sum(
        coefficient * (outcomes[-1] - earlier)
        for coefficient, earlier in zip(coefficients, outcomes[-2::-1], strict=False)
    )
    size = 1 + np.abs(coefficients[:older]).sum()
    assert np.abs(states[-1] - mixed).max() <= 1e-5 * size


def test_as_many_dimensions_as_are_mixed_are_solved_exactly():
    matrix = np.array([[0.5, 0.3], [-0.2, 0.7]], np.float32)
    target = np.linalg.solve(np.eye(2) - matrix, [1.0, 2.0])
    rows = len(matrix)
    states, changes = np.zeros((DEPTH + 2, rows), np.float32), np.zeros((DEPTH + 1, rows), np.float32)
    sums, coefficients = np.empty(TERMS), np.empty(DEPTH)
    x = states[-1]
    for stride in range(rows + 1):
        assert np.abs(x - target).max() > 0.1
        y = matrix @ x + np.array([1, 2], np.float32)
        states[stride % (DEPTH + 1)], changes[stride % (DEPTH + 1)] = y, y - x
        record_and_mix(rows, stride, states, changes, sums, coefficients)
    assert np.abs(x - target).max() < 1e-4


KINDS = st.sampled_from([np.float32, np.float64, np.int64])
# Together both less than a huge page and more than one.
SHAPES = st.lists(st.one_of(st.integers(0, 40), st.integers(200_000, 300_000)), min_size=1, max_size=2)


@given(
    wanted=st.lists(
        st.tuples(SHAPES.map(lambda sizes: (*sizes[:1], *(k % 5 for k in sizes[1:]))), KINDS),
        min_size=1,
        max_size=6,
    )
)
def test_arrays_side_by_side_are_zero_and_apart(
    wanted: list[tuple[tuple[int, ...], type[np.generic]]],
) -> None:
    arrays = zeros_together(*wanted)
    assert [(array.shape, array.dtype) for array in arrays] == wanted
    for number, array in enumerate(arrays, 1):
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert not array.any()
        array[...] = number
    for number, array in enumerate(arrays, 1):
        assert (array == number).all()
