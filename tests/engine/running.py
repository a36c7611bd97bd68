"""Stores from arrays, plans with plenty of memory, and runs of one pass after another by hand."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine import method
from oocpr.engine.backend import Streams
from oocpr.engine.cuda.device import download
from oocpr.engine.executors.local import LocalBackends, LocalExecutor
from oocpr.engine.number_formats import READS, widen
from oocpr.engine.planning import PlannedRun, RunRequest, plan_request, plan_run, stats_of
from oocpr.engine.probe.measure import measure_rates
from oocpr.engine.reduction import PassReport, reduce_pass
from oocpr.engine.run import rank_each, rank_graph
from oocpr.engine.scc.personal import SeedVectors
from oocpr.engine.settings import Settings
from oocpr.engine.stripe import StripeGroup
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.ingest.build import build_store
from oocpr.plan.device_memory import DEVICE_SLOTS
from oocpr.plan.device_plan import plan_on_devices
from oocpr.plan.partition import stripe_tiles
from oocpr.plan.processor_plan import make_plan
from oocpr.plan.tile_groups import grouped_stats, layout_of
from oocpr.sources import open_source
from oocpr.store.graph import GraphStore, open_store

from .digraphs import exact_ranks

if TYPE_CHECKING:
    from oocpr.engine.backend import Backend
    from oocpr.engine.method import Solution
    from oocpr.engine.stripe import Job
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.plan.request import PlanRequest

    from .digraphs import Digraph


PLENTY = 2**33
TILED = ("mixed", "residual", "power")
"""Methods that pass over tiles."""

CONVERGENT = [
    (name, reads) for name in TILED for reads in READS if name != "power" or READS[reads].bytes >= 4
]
"""Those that converge: ranks that are pushed as a whole and rounded to 16 bits settle nowhere."""

KEPT = ("decoded", "packed", "some", "none")


def build(source: Any, path: Path, tile_edges: int | None = None) -> GraphStore:
    """Import and open a graph."""
    build_store(source, path, memory=PLENTY, tile_edges=tile_edges)
    return open_store(path)


class Stored:
    """A context with the store of a small graph, for properties that draw a graph an example."""

    def __init__(self, graph: Digraph, tile_edges: int) -> None:
        self._folder = TemporaryDirectory()
        self._graph, self._tile_edges = graph, tile_edges

    def __enter__(self) -> GraphStore:
        source = open_source(self._graph.entries)
        return build(source, Path(self._folder.name) / "graph.zarr", self._tile_edges)

    def __exit__(self, *exception: object) -> None:
        self._folder.cleanup()


def planned_run(store: GraphStore, settings: Settings, *, base: int = 0, **how: Any) -> PlannedRun:
    """Plan a run as `oocpr.pagerank` does."""
    return plan_run(store, settings, RunRequest(**how), base)


def plan_of(
    store: GraphStore,
    settings: Settings,
    *,
    stripes: int | None = None,
    sweeps: int | None = None,
    kept: str = "decoded",
    personalized: bool = False,
) -> Plan:
    """Plan a run that keeps all tiles, decoded or packed, or a third of them packed, or none: see KEPT."""
    request = plan_request(settings, sweeps=sweeps, stripes=stripes, personalized=personalized, memory=PLENTY)
    plan = make_plan(stats_of(store), request)
    if kept != "decoded":
        tiles = {"packed": store.tiles, "some": store.tiles // 3, "none": 0}[kept]
        memory = plan.need.total + tiles * plan.stats.max_tile_bytes
        plan = make_plan(plan.stats, replace(request, memory=memory))
        assert plan.cached_tiles == tiles
    assert plan.decoded == (kept == "decoded")
    return plan


def in_groups(
    store: GraphStore, each: int = 1, stripes: int | tuple[tuple[int, int], ...] = 1
) -> tuple[GroupedStore, tuple[tuple[int, int], ...]]:
    """Take so many tiles of a graph as one, and return its stripes in such groups, too.

    `stripes`: how many, then those of a graph in tiles of so many more edges; or the first tile of each and
    the one past its last.
    """
    if isinstance(stripes, int):
        parts = stripe_tiles(-(-store.tiles // each), stripes)
        stripes = tuple((first * each, min(last * each, store.tiles)) for first, last in parts)
    bounds, groups = [0], []
    for first, last in stripes:
        begun = len(bounds) - 1
        bounds += [min(last, begin + each) for begin in range(first, last, each)]
        groups.append((begun, len(bounds) - 1))
    layout = layout_of(stats_of(store), store.tile_rows, store.tile_sizes(), np.array(bounds))
    return GroupedStore(store, layout), tuple(groups)


def plan_for_groups(
    store: GraphStore,
    tiles: GroupedStore,
    request: PlanRequest,
    groups: tuple[tuple[int, int], ...] | None = None,
    **how: Any,
) -> Plan:
    """Plan a run on devices that take the tiles of a graph in groups."""
    stats = grouped_stats(stats_of(store), tiles.layout)
    return plan_on_devices(stats, tiles.layout, request, groups, **how)


def plan_streamed(
    store: GraphStore,
    settings: Settings,
    *,
    device_memory: int,
    memory: int = PLENTY,
    each: int = 1,
    **how: Any,
) -> Plan:
    """Plan a run on one CUDA device through which groups pass, as far as they have no room there."""
    request = plan_request(settings, memory=memory, device_memory=(device_memory,))
    return plan_for_groups(store, in_groups(store, each)[0], request, all_resident=False, **how)


def plan_grouped(
    store: GraphStore,
    settings: Settings,
    *,
    each: int = 1,
    stays: bool = True,
    stripes: int | None = None,
    pairs: bool = True,
    **how: Any,
) -> tuple[Plan, GroupedStore]:
    """Plan a run as `plan_of` does, with its passes, of which one device takes all stripes; all stay or none.

    `pairs`: whether its backend gathers proposals. Returns the graph in groups of `each` tiles, too.
    """
    plan = plan_of(store, settings, stripes=stripes, **how)
    tiles, groups = in_groups(store, each, len(plan.stripes))
    request = plan_request(settings, memory=PLENTY, device_memory=(PLENTY,))
    there = plan_for_groups(store, tiles, request, groups, all_resident=stays)
    devices = tuple(replace(of, pairs=pairs) for of in there.devices)
    if not stays:
        devices = tuple(replace(of, on_device=0, in_host=0, slots=DEVICE_SLOTS) for of in devices)
    cached = there.stats.tiles if stays else 0
    plan = replace(plan, stats=there.stats, stripes=groups, devices=devices, cached_tiles=cached)
    return plan, tiles


def check_forecast(store: GroupedStore, plan: Plan, settings: Settings, backend: Any) -> None:
    """What is measured of a run on one CUDA device tells kinds of tiles that there are none of, and times."""
    (tiers,) = plan.devices
    rates = measure_rates(store, plan, settings, backend=backend)
    assert math.isinf(rates.resident) == (tiers.on_device == 0)
    assert math.isinf(rates.streamed) == (tiers.on_device == plan.stats.tiles)
    timing = plan.timing(rates)
    assert 0 < timing.each < 60
    assert 0 < timing.first < 60


def check_same_bits(run: Solution, other: Solution) -> None:
    """Ranks of one run are those of the other, bit by bit, and so is the residual after each pass."""
    assert np.array_equal(run.ranks, other.ranks)
    assert [x.residual for x in run.history] == [x.residual for x in other.history]


def rank(
    store: GraphStore,
    *,
    stripes: int | None = None,
    sweeps: int | None = None,
    kept: str = "decoded",
    backend: str | Backend = "cpu",
    threads: int | None = 1,
    teleport: NDArray[np.float64] | None = None,
    start: NDArray[np.float64] | None = None,
    client: Any = None,
    progress: Any = None,
    each: int = 1,
    pairs: bool = True,
    **parameters: Any,
) -> Solution:
    """Run with `parameters` of Settings; on a CUDA backend, if one is given, in groups of `each` tiles.

    `pairs`: whether a CUDA backend gathers proposals.
    """
    settings = Settings(**parameters)
    how: dict[str, Any] = {"stripes": stripes, "sweeps": sweeps, "personalized": teleport is not None}
    taken: RankedStore = store
    if isinstance(backend, Streams):
        plan, taken = plan_grouped(store, settings, each=each, stays=kept == "decoded", pairs=pairs, **how)
    else:
        plan = plan_of(store, settings, kept=kept, **how)
    more = {} if progress is None else {"progress": progress}
    return rank_graph(
        taken,
        plan,
        settings,
        path=store.path,
        client=client,
        backend=backend,
        threads=threads,
        teleport=teleport,
        start=start,
        **more,
    )


@dataclass(frozen=True)
class Passed:
    """A run after one of its passes.

    Parameters
    ----------
    pushed
        What was pushed, recomputed from the stored narrow numbers.
    p
        Sum of the pushes; of the last one only where the method restarts.
    after
        p + r as the run has it.
    residual
        Relative L1 norm of r as the run has it.
    """

    pushed: NDArray[np.float64]
    p: NDArray[np.float64]
    after: NDArray[np.float64]
    residual: float


def passes(job: Job, store: RankedStore, count: int) -> Iterator[Passed]:
    """Do `count` passes with the executor of a run, and look at all rows after each."""
    factor, least = (1.0, 1.0) if job.weight_scale is None else job.weight_scale
    degree = store.out_weight(0, store.nodes) * factor
    degree[degree == 0] = 1
    uniform = job.teleport is None and job.start is None
    state = method.begin(job.settings, len(job.plan.stripes), (1 / store.nodes if uniform else 1.0) / least)
    p = np.zeros(store.nodes)
    with (
        closing(LocalBackends(job, several=False)) as backends,
        closing(LocalExecutor(job, store, backends)) as executor,
    ):
        executor.allocate()
        (group,) = executor.groups
        for _ in range(count):
            scale = state.scale
            pushes = executor.push(state)
            stored = np.concatenate([download(push.stored) for push in pushes])
            pushed = widen(stored, job.settings.reads, scale) * degree
            p = pushed if job.settings.method == "power" else p + pushed
            report = PassReport.of([push.sums for push in pushes], executor.sweep(state, pushes))
            state = reduce_pass(job, state, report, store.nodes)
            # Finishing ends a stripe's run, so it is done to a copy; what it runs on is the same.
            after = np.concatenate(
                [
                    group.backend.finish(deepcopy(rows, _shared(rows)), state.carries[index])
                    for index, rows in enumerate(group.states)
                ]
            )
            yield Passed(pushed, p, after, state.residuals[-1])


def _shared(rows: Any) -> dict[int, Any]:
    """What `deepcopy` leaves as it is: a device and its kernels."""
    return {id(each): each for name, each in vars(rows).items() if name in ("_device", "_kernel")}


def stripes_held() -> int:
    """How many stripes this process still has rows of, reachable or not."""
    gc.collect()
    # By its type: to ask a proxy of what is gone what it is an instance of is an error.
    return sum(len(found.states) for found in gc.get_objects() if issubclass(type(found), StripeGroup))


def rank_whole(
    store: GraphStore,
    *,
    threads: int = 2,
    teleport: NDArray[np.float64] | None = None,
    start: NDArray[np.float64] | None = None,
    kept: dict[str, Any] | None = None,
    client: Any = None,
    **chosen: Any,
) -> Solution:
    """Rank a graph by its components, in memory."""
    settings = Settings(method="components", reads="float32", **chosen)
    request = plan_request(settings, memory=PLENTY)
    plan = make_plan(stats_of(store), request)
    return rank_graph(
        store,
        plan,
        settings,
        path=str(store.path),
        threads=threads,
        teleport=teleport,
        start=start,
        decoded=kept,
        client=client,
    )


def check_each(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    backend: Callable[[], Any],
    graph: Digraph,
    nodes: Sequence[int] = (),
) -> list[int]:
    """Rank for one teleport vector after another: each has the bits of a run by itself, and is right.

    There are four, and one for each of the `nodes`. Returns their numbers in the order in which they end.
    """
    rng = np.random.default_rng(3)
    vectors = [np.eye(graph.nodes)[17], rng.random(graph.nodes), np.eye(graph.nodes)[graph.nodes - 1]]
    vectors = [vector / vector.sum() for vector in (*vectors, vectors[0])]
    vectors += [np.eye(graph.nodes)[node] for node in nodes]
    entries = [np.flatnonzero(vector) for vector in vectors]
    ptr = np.cumsum([0, *map(len, entries)])
    weights = np.concatenate([vector[rows] for vector, rows in zip(vectors, entries, strict=True)])
    seeds = SeedVectors(ptr, np.concatenate(entries), weights)
    how: dict[str, Any] = {"threads": 1, "kernel": None}
    seen: list[tuple[int, float]] = []
    found = list(
        rank_each(
            store, plan, settings, seeds, lambda number: lambda _, done, *__: seen.append((number, done)),
            path="", decoded={}, backend=backend(), **how,
        )
    )  # fmt: skip
    # One after the other is told of each; side by side of all together, which never goes back.
    assert {number for number, _ in seen} <= set(range(len(vectors)))
    assert sorted(each.number for each in found) == list(range(len(vectors)))
    for number, one, _ in found:
        vector = vectors[number]
        alone = rank_graph(store, plan, settings, backend=backend(), teleport=vector, **how)
        assert one.converged
        assert np.array_equal(one.ranks, alone.ranks)
        assert [record.residual for record in one.history] == [record.residual for record in alone.history]
        exact = exact_ranks(graph, settings.damping, vector, settings.dangling)
        assert np.abs(one.ranks - exact).sum() <= one.error_bound + 1e-13
    return [each.number for each in found]
