"""Stores from arrays, plans with plenty of memory, and runs of one pass after another by hand."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oocpr.engine import method
from oocpr.engine.cuda.device import download
from oocpr.engine.executors.local import LocalBackends, LocalExecutor, PassReport
from oocpr.engine.number_formats import widen
from oocpr.engine.planning import PlannedRun, RunRequest, plan_request, plan_run, stats_of
from oocpr.engine.probe.measure import measure_rates
from oocpr.engine.run import rank_graph, reduce_pass
from oocpr.engine.settings import METHODS, Settings
from oocpr.engine.stripe import StripeGroup
from oocpr.ingest.build import build_store
from oocpr.plan.device_plan import plan_on_devices
from oocpr.plan.plan import Plan, make_plan
from oocpr.sources import open_source
from oocpr.store.graph import GraphStore, open_store

if TYPE_CHECKING:
    from oocpr.engine.method import Solution
    from oocpr.engine.stripe import Job

    from .digraphs import Digraph

PLENTY = 2**33
TILED = tuple(name for name in METHODS if name != "components")
"""Methods that pass over tiles."""

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


def plan_streamed(
    store: GraphStore, settings: Settings, *, device_memory: int, memory: int = PLENTY, **how: Any
) -> Plan:
    """Plan a run on one CUDA device through which stored tiles pass, as far as they have no room there."""
    return plan_on_devices(
        stats_of(store),
        store.tile_rows,
        plan_request(settings, memory=memory, device_memory=(device_memory,)),
        all_resident=False,
        **how,
    )


def check_forecast(store: GraphStore, plan: Plan, settings: Settings, backend: Any) -> None:
    """What is measured of a run on one CUDA device tells kinds of tiles that there are none of, and times."""
    (tiers,) = plan.devices
    rates = measure_rates(store, plan, settings, backend=backend)
    assert math.isinf(rates.resident) == (tiers.on_device == 0)
    assert math.isinf(rates.streamed) == (tiers.on_device == store.tiles)
    timing = plan.timed(rates).forecast
    assert timing is not None
    assert 0 < timing.each < 60
    assert 0 < timing.first < 60


def rank(
    store: GraphStore,
    *,
    stripes: int | None = None,
    sweeps: int | None = None,
    kept: str = "decoded",
    backend: str = "cpu",
    threads: int | None = 1,
    teleport: NDArray[np.float64] | None = None,
    start: NDArray[np.float64] | None = None,
    client: Any = None,
    progress: Any = None,
    **parameters: Any,
) -> Solution:
    """Run with `parameters` of Settings."""
    settings = Settings(**parameters)
    plan = plan_of(
        store, settings, stripes=stripes, sweeps=sweeps, kept=kept, personalized=teleport is not None
    )
    more = {} if progress is None else {"progress": progress}
    return rank_graph(
        store,
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


def passes(job: Job, store: GraphStore, count: int) -> Iterator[Passed]:
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
    return sum(len(found.states) for found in gc.get_objects() if isinstance(found, StripeGroup))


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
