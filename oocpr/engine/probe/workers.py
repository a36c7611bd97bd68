"""How fast each worker of a Dask client is at a graph, measured on some of its tiles."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oocpr.engine.executors.dask import results_of
from oocpr.engine.executors.dask_client import Watch, cluster_errors, known_workers
from oocpr.engine.executors.dask_worker import open_on_worker
from oocpr.engine.probe.measure import measure_rates
from oocpr.engine.probe.sample_run import MEASURING
from oocpr.errors import LostError

if TYPE_CHECKING:
    from oocpr.engine.settings import Settings
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress

MIN_EDGES = 2**28
"""Edges of a graph for which it pays: measuring takes a second, and a pass of fewer does not, on workers."""


def worker_speeds(
    client: Any, path: str, identity: str, plan: Plan, settings: Settings, progress: Progress
) -> list[float]:
    """Measure how many passes a second each worker would make of a graph alone.

    In the order in which workers get stripes; empty if one is lost. All measure at the same time, as they
    share what they share in a run.
    """
    with suppress(LostError), cluster_errors(client):
        names = sorted(known_workers(client))
        progress(MEASURING, len(names), None, "workers")
        asked = [
            client.submit(_passes_a_second, path, identity, plan, settings, workers=[name], pure=False)
            for name in names
        ]
        watch = Watch(client)
        while (found := client.sync(results_of, asked)) is None:
            watch.check(names)
        return list(found)
    return []


def _passes_a_second(path: str, identity: str, plan: Plan, settings: Settings) -> float:
    from distributed import get_worker

    store, threads = open_on_worker(path, identity), get_worker().state.nthreads
    rates = measure_rates(store, plan, settings, threads=threads)
    return 1 / plan.timing(rates).each
