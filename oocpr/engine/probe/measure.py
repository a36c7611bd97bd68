"""A second of measuring, so that a plan can say how long a run takes.

Tiles spread over the store, or over the stripe of each device, are taken through a first pass and some later
ones; see :mod:`oocpr.engine.probe.sample_run`.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from oocpr.engine.cpu.threads import load_worker_loop
from oocpr.engine.executors.local import LocalBackends
from oocpr.engine.method import as_distribution
from oocpr.engine.probe.pass_times import PassTimeModel, SampleTimes, TileTimings, device_works
from oocpr.engine.probe.sample_run import LOADED_ROUNDS, MEASURING, MIN_ROUNDS, SECONDS, Measuring, SampleRun
from oocpr.engine.stripe import Job
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.engine.tiles.source import tiles_of
from oocpr.jit import MustCompileError, watched, without_compiling
from oocpr.plan.forecast import Forecast, Rates
from oocpr.progress import silent
from oocpr.store.direct_io import aligned
from oocpr.system import release_frames

if TYPE_CHECKING:
    from oocpr.engine.backend import Backend
    from oocpr.engine.method import Solution
    from oocpr.engine.probe.pass_times import DeviceWork, TileSample
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress
    from oocpr.store.graph import GraphStore

COMPILING = "compiling, once on a machine"
"""Stages that progress reports."""

LOADING, READING, RESIDENT, STREAMED = "loading", "reading", "tiles that stay", "tiles that pass"
"""Steps of measuring, one after the other, as progress reports them."""


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
    job = Job.of(store, plan, settings, backend, threads, kernel)
    with release_frames():
        return _measure(job, store, progress)


def _measure(job: Job, store: RankedStore, progress: Progress) -> Rates:
    plan = job.plan
    works = device_works(plan, store.tile_rows)
    ones = _loading_samples(plan, works)
    resident = [work.resident_sample() for work in works]
    streamed = [work.streamed_sample() for work in works]
    # Tiles that stay on devices or in memory are timed as they come; else reading is measured by itself.
    readers = sum(tiers.readers for tiers in plan.devices) * (plan.streamed_bytes > 0)
    readers = readers if plan.devices else job.readers
    measuring = Measuring(
        progress,
        {
            LOADING: sum(sample.reads(LOADED_ROUNDS) for one in ones for sample in one),
            READING: readers,
            RESIDENT: sum(sample.reads(MIN_ROUNDS) for sample in resident),
            STREAMED: sum(sample.reads(MIN_ROUNDS) for sample in streamed),
        },
    )
    measuring.begin(LOADING)
    begun = time.perf_counter()
    with closing(LocalBackends(job, several=len(plan.devices) > 1)) as backends:
        # What is loaded once per process is no part of a pass.
        with watched(silent) as compilation:
            for one in ones:
                SampleRun(job, store, backends, one, measuring, loading=True).load()
        loading = max(0.0, time.perf_counter() - begun - compilation.seconds)
        store_bytes = math.inf
        if readers:
            measuring.begin(READING)
            store_bytes = _reading(store, readers, plan.direct, measuring)
        run: SampleRun | None = None
        resident_times, streamed_times = ([SampleTimes()] * len(works) for _ in range(2))
        timings_of_all = [TileTimings()] * len(works)
        if any(sample.tiles for sample in resident):
            measuring.begin(RESIDENT)
            run = SampleRun(job, store, backends, resident, measuring)
            resident_times = run.measure()
        if any(sample.tiles for sample in streamed):
            measuring.begin(STREAMED)
            # One after the other has the memory.
            run = None
            backends.clear()
            run = SampleRun(job, store, backends, streamed, measuring)
            streamed_times = run.measure()
            if plan.devices:
                timings_of_all = run.timings()
        assert run is not None, "a tile is resident or streamed"
        between = run.pushing()
        pushed, ends = run.rows, run.opening + run.finishing()
        # Backends that are closed give back what nothing holds any more.
        run = None
    models = [
        PassTimeModel.of(work, stays, streams, timings, between)
        for work, stays, streams, timings in zip(
            works, resident_times, streamed_times, timings_of_all, strict=True
        )
    ]
    # A pass ends with the slowest of them. Which that is shows only in what each has to do in all: stripes of
    # tiles that stream have equally many bytes, not tiles, and devices may keep different shares of theirs.
    slowest = max(models, key=lambda model: model.resident + model.streamed)
    sending = max(models, key=lambda model: model.sent + model.alternating)
    moved = sum(work.streamed_edges for work in works)
    edges = sum(work.edges for work in works)
    return Rates(
        store_bytes=store_bytes,
        resident=_rate(edges - moved, slowest.resident),
        streamed=_rate(moved, slowest.streamed),
        uploaded=_rate(moved, sending.sent),
        alternating=_rate(moved, sending.alternating),
        # One thread launches for all devices, or several have Python in turns.
        launched=_rate(edges, sum(model.launched for model in models)),
        first=_rate(edges, max(model.first for model in models)),
        rows=pushed / between,
        ends=pushed / (ends + max(model.closing for model in models)),
        loading=loading,
    )


def _loading_samples(plan: Plan, works: list[DeviceWork]) -> list[list[TileSample]]:
    """Tiles to load with, one after the other: of each backend at most one."""
    kinds = zip(*(work.loading_samples(decoded=plan.decoded) for work in works), strict=True)
    return [list(one) for one in kinds if any(sample.tiles for sample in one)]


def _rate(edges: float, seconds: float) -> float:
    return edges / seconds if edges and seconds else math.inf


def load_compiled(store: RankedStore, plan: Plan, settings: Settings) -> None:
    """Call all compiled functions of a run on processors, on one tile of the graph, in this thread."""
    job = Job.of(store, plan, settings, "cpu", 1)
    backends = LocalBackends(job, several=False)
    for one in _loading_samples(plan, device_works(plan, store.tile_rows)):
        SampleRun(job, store, backends, one, Measuring(silent, {}), loading=True).load()
    # What several threads call, and what comes last.
    load_worker_loop()
    as_distribution(np.ones(1), 1.0)


def measure_whole(
    store: RankedStore, settings: Settings, threads: int | None, progress: Progress
) -> tuple[Forecast, int]:
    """Rank a graph for method ``components``, which takes about as long as measuring; its passes, too."""
    from oocpr.engine.scc.run import load_scc_graph, rank_components

    passed = count(1)

    def report(stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:  # noqa: ARG001
        # How many passes it takes is what is to be found.
        progress(MEASURING, next(passed), None, unit, note)

    def rank() -> Solution:
        begun = time.perf_counter()
        graph = load_scc_graph(store, threads)
        return rank_components(graph, settings, threads, begun, graph.bytes_read, report)

    progress(MEASURING, 0, None, "passes")
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


MEASURED_PASSES = 3
"""Passes of a segmented method that are measured: the first, and two that follow it."""


def measure_segmented(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    device: str,
    threads: int | None,
    progress: Progress,
    *,
    kernel: str | None,
) -> Forecast:
    """Time the first passes of a segmented method; later ones read more of each number."""
    from oocpr.engine.cpms.run import rank_segmented

    some = replace(settings, max_passes=MEASURED_PASSES)
    with watched(silent) as compilation:
        run = rank_segmented(store, plan, some, device, threads, progress, kernel=kernel)
    taken = [record.seconds for record in run.history]
    first = max(0.0, taken[0] - compilation.seconds)
    return Forecast(first=first, each=taken[-1], ends=run.seconds - sum(taken))


def _reading(store: RankedStore, readers: int, direct: bool, measuring: Measuring) -> float:
    """Bytes per second that the threads of a run read, with nothing else to do."""
    source = tiles_of(store)
    tiles = len(store.layout.first_rows if isinstance(store, GroupedStore) else store.tile_rows) - 1
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


_PROGRAM = "from oocpr.engine.probe.measure import compile_piped; compile_piped()"


def load_functions(store: GraphStore, plan: Plan, settings: Settings, progress: Progress) -> float:
    """Load the compiled functions of a run on processors, and have another process compile what is not there.

    The compiler leaves a hundred mebibytes behind, once on a machine; within a tight budget a run would have
    that much less for its vectors. Another process keeps what it compiles in files, from which this one loads
    it. Returns the seconds that compiling took.
    """
    try:
        with without_compiling():
            load_compiled(store, plan, settings)
    except MustCompileError:
        seconds = _compile(store.path, plan, settings, progress)
        with watched(progress) as compilation:
            # What the other process could not keep, too.
            load_compiled(store, plan, settings)
        return seconds + compilation.seconds
    return 0.0


def _compile(path: str, plan: Plan, settings: Settings, progress: Progress) -> float:
    """Compile in another process; returns the seconds of that, 0 if there can be none."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        "PYTHONSAFEPATH": "1",  # nothing is imported from the working folder
    }
    command = [sys.executable, "-c", _PROGRAM]
    pipe, seconds = subprocess.PIPE, 0.0
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
    except OSError:
        return seconds
    with process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(pickle.dumps((path, plan, settings)))
            process.stdin.close()
            for line in process.stdout:
                functions, took = line.split()
                seconds = float(took)
                progress(COMPILING, int(functions), None, "functions")
        except BrokenPipeError:
            pass
        finally:
            process.kill()
    return seconds


def compile_piped() -> None:
    """Compile for the run that comes from standard input; print how many functions, and seconds, so far."""
    from oocpr.store.graph import open_store

    path, plan, settings = pickle.load(sys.stdin.buffer)

    def report(stage: str, done: float, total: int | None, unit: str, note: str = "") -> None:  # noqa: ARG001
        sys.stdout.write(f"{done} {compilation.seconds}\n")
        sys.stdout.flush()

    with watched(report) as compilation:
        load_compiled(open_store(path), plan, settings)
