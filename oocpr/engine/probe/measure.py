"""A second of measuring, so that a plan can say how long a run takes.

Tiles spread over the store, or over the stripe of each device, are taken through a first pass and some later
ones; see :mod:`oocpr.engine.probe.trial`.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

from oocpr.engine.executors.local import LocalBackends
from oocpr.engine.job import Job, each_backend
from oocpr.engine.probe.pass_times import Kind, PassTimeModel, TileTimings, rate_of
from oocpr.engine.probe.sampling import device_works
from oocpr.engine.probe.trial import LEAST_ROUNDS, LOADED_ROUNDS, SECONDS, Trial
from oocpr.engine.process import release_frames
from oocpr.engine.tiles.merged import closing_joins, free_joins
from oocpr.engine.tiles.source import tiles_of
from oocpr.engine.tiles.weights import weight_scale_of
from oocpr.jit import watched
from oocpr.plan.forecast import Forecast, Rates
from oocpr.progress import silent
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oocpr.engine.backend import Backend
    from oocpr.engine.probe.sampling import DeviceWork, TileSample
    from oocpr.engine.settings import Settings
    from oocpr.engine.solution import Solution
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress


LOADING, READING, STAYING, PASSING = "loading", "reading", "tiles that stay", "tiles that pass"
"""What is done one after the other, as progress reports it."""


def measure_rates(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    *,
    backend: str | Backend | tuple[str | Backend, ...] = "cpu",
    threads: int | None = None,
    kernel: str | None = None,
    progress: Progress = silent,
) -> Rates:
    """Measure, on tiles of the graph itself, what the machine does right now for the run that would be done.

    Reading is measured as the store is now: tiles that the system keeps in its cache read faster. Raises
    DamagedError if a tile's bytes are not what was written.
    """
    job = _job(store, plan, settings, backend, threads, kernel=kernel)
    with release_frames(), closing_joins(store):
        return _measure(job, store, progress)


def _job(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    backend: str | Backend | tuple[str | Backend, ...],
    threads: int | None,
    kernel: str | None = None,
) -> Job:
    """Describe the run of a plan."""
    settings = replace(settings, mixing=plan.mixing, sweeps=plan.sweeps) if settings.mixed else settings
    scale = weight_scale_of(store, settings.reads)
    return Job("", settings, plan, each_backend(backend), threads, kernel=kernel, weight_scale=scale)


def _measure(job: Job, store: RankedStore, progress: Progress) -> Rates:
    chosen = _Chosen.of(job, device_works(job.plan, store.tile_rows))
    measuring = Measuring(progress, chosen.reads())
    measuring.begin(LOADING)
    begun = time.perf_counter()
    with closing(LocalBackends(job, several=len(job.plan.devices) > 1)) as backends:
        return _measured(job, store, backends, chosen, measuring, begun)


@dataclass(frozen=True)
class _Chosen:
    """What is measured of a run.

    Of each backend: what it computes, tiles to load with, one after the other, and tiles of each kind.
    `readers` threads read if that is measured by itself; tiles that stay on devices or in memory are timed as
    they come.
    """

    works: list[DeviceWork]
    ones: list[list[TileSample]]
    staying: list[TileSample]
    passing: list[TileSample]
    readers: int

    @classmethod
    def of(cls, job: Job, works: list[DeviceWork]) -> _Chosen:
        """Choose from what the backends compute."""
        return cls(
            works,
            _ones(job.plan, works),
            [work.of_staying() for work in works],
            [work.of_passing() for work in works],
            job.readers * len(works) * (not job.plan.devices or job.plan.streamed_bytes > 0),
        )

    def reads(self) -> dict[str, int]:
        """How many tiles each step reads in any case."""
        return {
            LOADING: sum(picked.reads(LOADED_ROUNDS) for one in self.ones for picked in one),
            READING: self.readers,
            STAYING: sum(picked.reads(LEAST_ROUNDS) for picked in self.staying),
            PASSING: sum(picked.reads(LEAST_ROUNDS) for picked in self.passing),
        }


def _ones(plan: Plan, works: list[DeviceWork]) -> list[list[TileSample]]:
    """Tiles to load with, one after the other: of each backend at most one."""
    kinds = zip(*(work.one(decoded=plan.decoded) for work in works), strict=True)
    return [list(one) for one in kinds if any(picked.tiles for picked in one)]


def _measured(
    job: Job,
    store: RankedStore,
    backends: LocalBackends,
    chosen: _Chosen,
    measuring: Measuring,
    begun: float,
) -> Rates:
    """Measure with backends that were begun to be made at a time."""
    plan, works = job.plan, chosen.works
    # What is loaded once a process is no part of a pass.
    with watched(silent) as compilation:
        for one in chosen.ones:
            Trial(job, store, backends, one, measuring).load()
    loading = max(0.0, time.perf_counter() - begun - compilation.seconds)
    store_bytes = math.inf
    if chosen.readers:
        measuring.begin(READING)
        store_bytes = _reading(store, chosen.readers, plan.direct, measuring)
    trial: Trial | None = None
    kept, passing = ([Kind()] * len(works) for _ in range(2))
    timings_of_all = [TileTimings()] * len(works)
    if any(picked.tiles for picked in chosen.staying):
        measuring.begin(STAYING)
        trial = Trial(job, store, backends, chosen.staying, measuring)
        kept = trial.measure()
    if any(picked.tiles for picked in chosen.passing):
        measuring.begin(PASSING)
        # One after the other has the memory.
        trial = None
        trial = Trial(job, store, backends, chosen.passing, measuring)
        passing = trial.measure()
        if plan.devices:
            timings_of_all = trial.timings()
    assert trial is not None, "a tile stays or passes"
    # As in a run, nothing is joined any more once rows are all that is left to do.
    free_joins(store)
    between = trial.pushing()
    models = [
        PassTimeModel.of(work, stays, streams, timings, job.readers, between)
        for work, stays, streams, timings in zip(works, kept, passing, timings_of_all, strict=True)
    ]
    # A pass ends with the slowest of them. Which that is shows only in what each has to do in all: stripes of
    # tiles that stream have equally many bytes, not tiles, and devices may keep different shares of theirs.
    slowest = max(models, key=lambda model: model.kept + model.passing)
    sending = max(models, key=lambda model: model.sent + model.turned)
    moved = sum(work.passing_edges for work in works)
    edges = sum(work.edges for work in works)
    return Rates(
        store_bytes=store_bytes,
        resident=rate_of(edges - moved, slowest.kept),
        streamed=rate_of(moved, slowest.passing),
        uploaded=rate_of(moved, sending.sent),
        alternating=rate_of(moved, sending.turned),
        # One thread launches for all devices, or several have Python in turns.
        launched=rate_of(edges, sum(model.launched for model in models)),
        first=rate_of(edges, max(model.first for model in models)),
        rows=trial.rows / between,
        ends=trial.rows / (trial.opening + trial.finishing() + max(model.closing for model in models)),
        loading=loading,
    )


def load_compiled(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
) -> None:
    """Call all compiled functions of a run on processors, on one tile of the graph, in this thread."""
    job = _job(store, plan, settings, "cpu", 1)
    backends = LocalBackends(job, several=False)
    for one in _ones(plan, device_works(plan, store.tile_rows)):
        Trial(job, store, backends, one, Measuring(silent, {})).load()


def measure_whole(
    store: RankedStore, settings: Settings, threads: int | None, progress: Progress = silent
) -> tuple[Forecast, int]:
    """Rank a graph for method ``components``, which takes about as long as measuring; its passes, too."""
    from oocpr.engine.scc.run import SccRun, load_scc_graph

    passed = count(1)

    def told(stage: str, done: int, total: int | None, unit: str, note: str = "") -> None:  # noqa: ARG001
        # How many passes it takes is what is to be found.
        progress(STAGE, next(passed), None, unit, note)

    def rank() -> Solution:
        begun = time.perf_counter()
        graph = load_scc_graph(store, threads)
        return SccRun(graph, settings, threads, None).rank(begun, graph.bytes_read, told)

    progress(STAGE, 0, None, "passes")
    with watched(silent) as compilation:
        loaded = rank()
    run = rank()
    first, later = run.history[0].seconds, [record.seconds for record in run.history[1:]]
    timing = Forecast(
        first=first,
        each=sum(later) / max(len(later), 1),
        ends=run.seconds - first - sum(later),
        loading=max(0.0, loaded.seconds - compilation.seconds - run.seconds),
    )
    return timing, run.passes


def _reading(store: RankedStore, readers: int, direct: bool, measuring: Measuring) -> float:
    """Bytes a second that the threads of a run read, with nothing else to do."""
    source, tiles = tiles_of(store), len(store.tile_rows) - 1
    until = time.perf_counter() + SECONDS

    def read(reader: int) -> int:
        buffer = aligned(source.max_bytes)
        turn, total = reader, 0
        while True:
            # Spread over the store, so that a cached beginning does not pass for the whole.
            total += source.read_into(turn * 7919 % tiles, buffer, direct=direct)
            turn += readers
            measuring.read()
            if time.perf_counter() >= until:
                return total

    begun = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        total = sum(pool.map(read, range(readers)))
    return total / (time.perf_counter() - begun)


STAGE = "measuring"


class Measuring:
    """Reports the tiles that a probe reads, which is what takes it long; by one thread at a time.

    Tiles that are quick are read once more until there is something to time, so how many there will be is not
    known. Those that are read in any case, by step, are reported, and no others.
    """

    def __init__(self, progress: Progress, steps: Mapping[str, int]) -> None:
        self._progress, self._steps = progress, steps
        self._lock = Lock()
        self._step = ""
        self._done = self._end = 0

    def begin(self, step: str) -> None:
        """Tell what is measured from now on."""
        with self._lock:
            self._step, self._end = step, self._done + self._steps[step]
            self._tell()

    def read(self) -> None:
        """Report that a tile was read, and merged if it is made of several; any thread may."""
        with self._lock:
            if self._done < self._end:
                self._done += 1
                self._tell()

    def _tell(self) -> None:
        self._progress(STAGE, self._done, sum(self._steps.values()), "tiles", self._step)
