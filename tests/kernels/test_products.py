"""Products of decoded columns in runs: tiles that stay or stream, devices, partitions, damaged tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oocpr
from oocpr.cli.output import summary
from oocpr.engine.cuda import baselines
from oocpr.engine.cuda.backend import CudaBackend
from oocpr.engine.cuda.baselines import BASELINES, DecodedSpMV, parse_kernel
from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.spmv import Gather, SegmentSums
from oocpr.engine.number_formats import READS
from oocpr.engine.planning import asked_settings
from oocpr.engine.run import rank_graph
from oocpr.engine.settings import Settings
from oocpr.errors import DamagedError, DoesNotFitError, UsageError
from oocpr.plan.request import BALANCED
from oocpr.sources import open_source

from ..engine.digraphs import exact_ranks, random_digraph
from ..engine.running import Stored, build, in_groups, planned_run
from ..engine.weighted import WeightedGraph, weigh
from .conftest import RUNS
from .matrices import exact_numbers
from .several import plan_for
from .test_partitions import sliced_plan
from .test_staging import damage_tile, grouped, streaming_plan
from .tiles import groups, joined, placed

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.method import Solution
    from oocpr.store.graph import GraphStore

    from .pooled import PooledMachine
    from .tiles import Tile

NODES = 300
GRAPH = random_digraph(NODES, 2500, seed=8)
EXACT = exact_ranks(GRAPH, 0.85)
CHOSEN = Settings(tol=1e-4)
OTHERS = [name for name, product in BASELINES.items() if not product.divides]

SHORT = ("binned", "ell")


def slow(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


MOSTLY_TWO = pytest.mark.parametrize("kernel", [name if name in SHORT else slow(name) for name in OTHERS])


def segment_sums(of: list[Tile], values: np.ndarray) -> np.ndarray:
    """Sums of all segments of a group, the empty ones too, whose numbers add up without rounding."""
    columns, lengths = joined(of)
    before = np.append(0.0, values[columns].cumsum(axis=0))
    ends = np.cumsum(lengths, dtype=np.int64)
    return before[ends] - before[ends - lengths]


@pytest.mark.long
@settings(max_examples=25)
@given(
    first=groups(NODES),
    second=groups(NODES),
    kernel=st.sampled_from([*OTHERS, "binned:0:2:64"]),
    reads=st.sampled_from(list(READS)),
    window=st.one_of(st.none(), st.tuples(st.integers(0, NODES - 1), st.integers(1, NODES))),
)
def test_groups_follow_each_other_in_a_workspace(
    device: Device,
    first: list[Tile],
    second: list[Tile],
    kernel: str,
    reads: str,
    window: tuple[int, int] | None,
) -> None:
    name, thresholds = parse_kernel(kernel)
    product = DecodedSpMV(device, name, thresholds, layouts_stay=False)
    there = [placed(device, *of) for of in (first, second)]
    for group in there:
        product.expect(group.sizes.rows + group.sizes.tiles, group.sizes.edges)
    begin, past = (0, NODES) if window is None else (window[0], min(NODES, sum(window)))
    stored, values = exact_numbers(reads, (past - begin,))
    outside = np.zeros(NODES)
    outside[begin:past] = values
    faults, numbers = device.xp.zeros(1, np.uint32), device.xp.asarray(stored)
    for group, of in zip([*there, there[0]], [first, second, first], strict=True):
        sums = SegmentSums.allocate(device, group.sizes.rows + group.sizes.tiles, 1, paired=False)
        sums.pushes[:] = np.nan
        gather = Gather(reads, local=window is not None)
        product(group, gather, numbers, NODES, (begin, past), sums, faults)
        assert np.array_equal(download(sums.pushes), segment_sums(of, outside))
    assert not int(download(faults)[0])


def streamed(device: Device, store: GraphStore, chosen: Settings, kernel: str) -> Solution:
    plan = streaming_plan(store, chosen, 0, 0, each=2)
    return rank_graph(grouped(store, 2), plan, chosen, backend=CudaBackend(device, kernel))


def partly_streamed(device: Device, store: GraphStore, chosen: Settings, kernel: str) -> Solution:
    plan = streaming_plan(store, chosen, 2, 1, rows_in_host=True)
    backend = CudaBackend(device, kernel, pairs=False, rows_in_host=True)
    return rank_graph(grouped(store), plan, chosen, backend=backend)


def laid_out_once(device: Device, store: GraphStore, chosen: Settings, kernel: str) -> Solution:
    plan = streaming_plan(store, chosen, store.tiles, 0)
    return rank_graph(grouped(store), plan, chosen, backend=CudaBackend(device, kernel, layouts_stay=True))


def in_partitions(device: Device, store: GraphStore, chosen: Settings, kernel: str) -> Solution:
    plan = sliced_plan(store, chosen, 3)
    backend = CudaBackend(device, kernel, pairs=False, rows_in_host=True, slices=3)
    return rank_graph(in_groups(store)[0], plan, chosen, backend=backend)


def on_two_devices(device: Device, store: GraphStore, chosen: Settings, kernel: str) -> Solution:
    plan, tiles = plan_for(store, chosen, 2, 1, pinned=True)
    return rank_graph(tiles, plan, chosen, backend=(CudaBackend(device, kernel), CudaBackend(device, kernel)))


@RUNS
@MOSTLY_TWO
@pytest.mark.parametrize("way", [streamed, partly_streamed, laid_out_once, in_partitions, on_two_devices])
def test_ranks_lie_within_their_bound(
    device: Device, monkeypatch: pytest.MonkeyPatch, way: Callable[..., Solution], kernel: str
) -> None:
    decoded, decode = [], baselines.decode
    monkeypatch.setattr(baselines, "decode", lambda *of: decoded.append(of[1]) or decode(*of))
    with Stored(GRAPH, 300) as store:
        run = way(device, store, CHOSEN, kernel)
        tiles = store.tiles
    assert run.converged
    assert np.abs(run.ranks - EXACT).sum() <= run.error_bound + 1e-14
    assert run.preparing_seconds is not None
    assert run.preparing_seconds > 0
    each = {streamed: -(-tiles // 2), in_partitions: 3 * tiles}.get(way, tiles)
    assert len(decoded) == (tiles if way is laid_out_once else run.passes * each)


DIVIDING = Settings(tol=1e-4, method="power", reads="float64")


@RUNS
@pytest.mark.parametrize("way", [streamed, partly_streamed, laid_out_once])
def test_edges_that_divide_lead_to_the_ranks(device: Device, way: Callable[..., Solution]) -> None:
    with Stored(GRAPH, 300) as store:
        run = way(device, store, DIVIDING, "edges")
        usual = way(device, store, DIVIDING, "exchange")
    assert run.converged
    assert run.passes == usual.passes
    assert np.abs(run.ranks - EXACT).sum() <= run.error_bound + 1e-14
    np.testing.assert_allclose(run.ranks, usual.ranks, rtol=1e-12)


@pytest.mark.parametrize("way", [in_partitions, on_two_devices])
def test_edges_that_divide_have_all_nodes(device: Device, way: Callable[..., Solution]) -> None:
    with Stored(GRAPH, 300) as store, pytest.raises(UsageError, match="takes one stripe on a device"):
        way(device, store, DIVIDING, "edges")


@pytest.mark.parametrize(("method", "reads"), [("mixed", None), ("residual", "float64")])
def test_edges_that_divide_take_ranks(
    machine: PooledMachine, path: str, method: str, reads: str | None
) -> None:
    assert machine.used == 0
    given = {"device": "cuda", "method": method, "reads": reads, "kernel": "edges"}
    with pytest.raises(UsageError, match=f"kernel 'edges' gathers ranks in float64, and method {method}"):
        oocpr.pagerank(path, **given)


@pytest.mark.long
@RUNS
@pytest.mark.parametrize("way", [streamed, laid_out_once, in_partitions])
@pytest.mark.parametrize("kernel", [name for name in OTHERS if BASELINES[name].weights])
def test_weights_are_taken(device: Device, tmp_path: Path, way: Callable[..., Solution], kernel: str) -> None:
    graph = weigh(GRAPH, 2, "wide")
    run = way(device, graph.write(tmp_path / "g.zarr", 300), CHOSEN, kernel)
    assert run.converged
    assert np.abs(run.ranks - graph.exact_ranks(0.85)).sum() <= run.error_bound + 1e-14


@pytest.mark.long
@RUNS
@MOSTLY_TWO
@pytest.mark.parametrize("stays", [True, False])
def test_damaged_tiles_end_a_run(device: Device, tiles_alone: None, kernel: str, stays: bool) -> None:
    rng, found = np.random.default_rng(3), 0
    for _ in range(12):
        with Stored(GRAPH, 300) as store:
            chosen = Settings(method="residual", reads="float32", tol=1e-3)
            plan = streaming_plan(store, chosen, store.tiles if stays else 0, 0)
            damage_tile(store, 3, rng)
            backend = CudaBackend(device, kernel, layouts_stay=stays)
            # Bits that stand for nothing change nothing.
            try:
                run = rank_graph(grouped(store), plan, chosen, backend=backend)
                assert np.abs(run.ranks - EXACT).sum() <= run.error_bound + 1e-14
            except DamagedError:
                found += 1
    assert found > 6


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A graph that has a long row, without and with weights."""
    graph = random_digraph(9000, 60_000, seed=3)
    hub = np.arange(1000)
    there = type(graph)(9000, np.append(graph.src, hub), np.append(graph.dst, np.full(1000, 7)))
    folder = tmp_path_factory.mktemp("stores")
    build(open_source(there.entries), folder / "bare.zarr", 4000)
    bare = WeightedGraph.of(there)
    weight = np.random.default_rng(3).random(len(bare.src))
    replace(bare, weight=weight).write(folder / "weighted.zarr", 4000)
    return {name: str(folder / f"{name}.zarr") for name in ("bare", "weighted")}


@pytest.fixture
def path(paths: dict[str, str]) -> str:
    """The one without."""
    return paths["bare"]


def plan_within(path: str, given: int, **how: Any) -> Any:
    chosen = asked_settings("auto", None, damping=0.85, tol=1e-10, stop="certified")
    how = {"device": "cuda", "memory": "4GiB", **how}
    return planned_run(oocpr.open_graph(path).store, chosen, device_memory=given, **how).plan


def budgets_of(path: str, kernel: str, **how: Any) -> dict[tuple[Any, ...], int]:
    """A budget for each way to use a device with a kernel: the middle one of those in which a plan has it."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for step in range(160):
        given = int(2**16 * 1.05**step)
        plan = plan_within(path, given, kernel=kernel, **how)
        if plan.fits:
            tiers = plan.devices[0]
            stay = "all" if tiers.on_device == plan.stats.tiles else "some" if tiers.on_device else "none"
            way = (tiers.layouts_stay, stay, tiers.rows_in_host, tiers.partitions > 1)
            found.setdefault(way, []).append(given)
    return {way: budgets[len(budgets) // 2] for way, budgets in found.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kernel", "graph"),
    [
        *((name, "bare") if name in SHORT else slow(name, "bare") for name in OTHERS),
        slow("csr-16", "weighted"),
        ("binned", "weighted"),
    ],
)
def test_a_run_takes_what_its_plan_says(
    machine: PooledMachine, paths: dict[str, str], kernel: str, graph: str
) -> None:
    path = paths[graph]
    exact = oocpr.pagerank(path, tol=1e-6).to_numpy()
    budgets = budgets_of(path, kernel)
    assert {stays for stays, *_ in budgets} == {False, True}
    assert {stay for _, stay, *_ in budgets} == {"all", "some", "none"}
    assert {partitioned for *_, partitioned in budgets} == {False, True}
    for way, budget in budgets.items():
        given = {"device": "cuda", "device_memory": budget, "memory": "4GiB", "kernel": kernel}
        plan = plan_within(path, budget, kernel=kernel)
        for passes in (2, 30):
            ranks = oocpr.pagerank(path, tol=1e-6, max_passes=passes, **given)
            run = ranks.run
            assert run is not None
            assert run.predicted is not None
            assert machine.used == 0
            assert run.peak_device_memory <= plan.devices[0].max_bytes <= budget
            assert run.predicted["peak_device_memory"] == pytest.approx(run.peak_device_memory, rel=0.15), way
        assert np.abs(ranks.to_numpy() - exact).sum() <= ranks.error_bound + 1e-6


@pytest.mark.long
@pytest.mark.parametrize("how", [{"device": "cuda:0,cuda:1"}, {"device": "cuda", "stripes": 2}], ids=str)
def test_stripes_keep_their_promise(machine: PooledMachine, path: str, how: dict[str, Any]) -> None:
    exact = oocpr.pagerank(path, tol=1e-6).to_numpy()
    for budget in budgets_of(path, "ell", **how).values():
        ranks = oocpr.pagerank(
            path, tol=1e-6, kernel="ell", memory="4GiB", device_memory=budget, predict=True, **how
        )
        assert ranks.run is not None
        assert ranks.run.peak_device_memory <= budget
        assert machine.used == 0
        assert np.abs(ranks.to_numpy() - exact).sum() <= ranks.error_bound + 1e-6


def test_too_little_memory_is_refused_with_both_numbers(machine: PooledMachine, path: str) -> None:
    least = {
        kernel: next(
            given
            for step in range(200)
            if plan_within(path, given := int(2**16 * 1.03**step), kernel=kernel).fits
        )
        for kernel in (BALANCED, "csr-16", "chunked")
    }
    assert least[BALANCED] < least["csr-16"] < least["chunked"]
    with pytest.raises(DoesNotFitError, match=r"the run needs .* of the device .* and was given"):
        oocpr.pagerank(path, device="cuda", kernel="chunked", device_memory=least["csr-16"])


def test_a_report_says_what_preparing_took(machine: PooledMachine, path: str) -> None:
    for kernel in (None, BALANCED, "binned"):
        run = oocpr.pagerank(path, device="cuda", kernel=kernel, max_passes=2).run
        assert run is not None
        assert (run.preparing_seconds is None) == (kernel != "binned")
        assert ("preparing the products: " in summary(run)) == (kernel == "binned")
        assert run.to_dict()["preparing_seconds"] == run.preparing_seconds
