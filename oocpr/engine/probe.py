"""A second of measuring, so that a plan can say how long a run takes.

Tiles spread over the store are taken through a first pass and some later ones by the functions of a run, with
its threads, its ring of buffers and an array to gather from that is as long as the graph has nodes.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine import method, tasks
from oocpr.engine.backends.base import Streams
from oocpr.engine.job import Job
from oocpr.engine.reads import READS
from oocpr.engine.weighing import per_link, tiles_of, unit_of
from oocpr.jit import watched
from oocpr.plan.model import Forecast, Rates
from oocpr.progress import silent
from oocpr.store.direct import aligned

if TYPE_CHECKING:
    from oocpr.engine.backends.base import Backend, PublishStep, Pushed, StripeSpec, SweepStep
    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.settings import Settings
    from oocpr.engine.solution import Solution
    from oocpr.engine.stream import Tiles
    from oocpr.plan.plan import GraphFacts, Plan

SECONDS = 0.25
"""How long reading is measured, and how long later passes are, for tiles of each kind."""

SAMPLED = 8
"""Tiles that are measured, of a store that has more."""

PASSING_EDGES = 2**25
"""Edges that are measured of tiles that pass by, if so many tiles have fewer: a round waits for its first."""

DEVICE_SAMPLED = 4
"""The same for a CUDA device, whose tiles are made of several stored ones."""

LEAST_ROUNDS = 3


def measure_rates(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    *,
    backend: str | Backend = "cpu",
    threads: int | None = None,
    kernel: str | None = None,
    tuned: bool = False,
) -> Rates:
    """Measure, on tiles of the graph itself, what the machine does right now.

    Parameters
    ----------
    store, plan, settings
        The run that would be done.
    backend, threads, kernel, tuned
        As for a run.

    Returns
    -------
    Rates
        Of reading as the store is now: tiles that the system keeps in its cache read faster.

    Raises
    ------
    DamagedError
        When a tile's bytes are not what was written.
    """
    job = _job(store, plan, settings, backend, threads, kernel=kernel, tuned=tuned)
    begun = time.perf_counter()
    worker = job.make_backend(0)
    try:
        return _measured(job, store, worker, begun)
    finally:
        if isinstance(worker, Streams):
            worker.close()


def _job(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    backend: str | Backend,
    threads: int | None,
    kernel: str | None = None,
    *,
    tuned: bool = False,
) -> Job:
    """Describe the run of a plan."""
    settings = replace(settings, mixing=plan.mixing, sweeps=plan.sweeps) if settings.mixed else settings
    unit = unit_of(store, settings.reads)
    return Job("", settings, plan, backend, threads, kernel=kernel, tuned=tuned, unit=unit)


def _measured(job: Job, store: RankedStore, worker: Backend, begun: float) -> Rates:
    """Measure with a backend that was begun to be made at a time."""
    plan, device = job.plan, job.plan.device
    staying = plan.cached_tiles if device is None else device.on_device
    stays, there = staying / plan.facts.tiles, device is not None and staying > 0
    tiles, most = plan.facts.tiles, SAMPLED if device is None else DEVICE_SAMPLED
    # What is loaded once a process is no part of a pass.
    with watched(silent) as compilation:
        _Sample(job, store, worker, spread(tiles, 1)).load(on_device=there, kept=plan.decoded)
    loading = max(0.0, time.perf_counter() - begun - compilation.seconds)
    store_bytes = _reading(store, job.readers, plan.direct)
    sample: _Sample | None = None
    kept = passing = None
    if stays > 0:
        # No more than the plan keeps, which there is memory for.
        sample = _Sample(job, store, worker, spread(tiles, min(most, staying)))
        kept = sample.measure(on_device=there, kept=True)
    if stays < 1:
        # One after the other has the memory.
        sample = None
        # To a device they come from pinned memory, or else at the rate of the store.
        in_host = 0 if device is None else device.in_host
        if device is None:
            most = max(most, PASSING_EDGES // plan.facts.tile_edges)
        sample = _Sample(job, store, worker, spread(tiles, min(most, in_host or most)))
        passing = sample.measure(on_device=False, kept=in_host > 0)
    assert sample is not None, "a tile stays or passes"
    first = (stays * kept.first if kept else 0) + ((1 - stays) * passing.first if passing else 0)
    return Rates(
        store_bytes=store_bytes,
        kept=1 / kept.later if kept else math.inf,
        passing=1 / passing.later if passing else math.inf,
        first=1 / first,
        rows=sample.rows / sample.pushing(),
        ends=sample.rows / (sample.opening + sample.finishing()),
        loading=loading,
    )


def load_compiled(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
) -> None:
    """Call all compiled functions of a run on processors, on one tile of the graph, in this thread.

    Parameters
    ----------
    store, plan, settings
        As for `measure_rates`.
    """
    job = _job(store, plan, settings, "cpu", 1)
    tiles = spread(plan.facts.tiles, 1)
    _Sample(job, store, job.make_backend(0), tiles).load(on_device=False, kept=plan.decoded)


def measure_whole(store: RankedStore, settings: Settings, threads: int | None) -> tuple[Forecast, int]:
    """Rank a graph for method ``components``, which takes about as long as measuring; its passes, too."""
    from oocpr.engine.whole.graph import load_whole
    from oocpr.engine.whole.run import WholeRun

    def rank() -> Solution:
        begun = time.perf_counter()
        graph = load_whole(store, threads)
        return WholeRun(graph, settings, threads, None).rank(begun, graph.bytes_read, silent)

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


def spread(tiles: int, most: int) -> list[int]:
    """Choose at most so many tiles, evenly.

    Examples
    --------
    >>> spread(3, 8), spread(100, 4)
    ([0, 1, 2], [12, 37, 62, 87])
    """
    count = min(tiles, most)
    return [(2 * k + 1) * tiles // (2 * count) for k in range(count)]


def edges_of(facts: GraphFacts, tile: int) -> float:
    """Edges of a tile: all have as many but the last, or about as many where stored ones were joined.

    Examples
    --------
    >>> from oocpr.plan.plan import GraphFacts
    >>> facts = GraphFacts(100, 2500, 3, 1000, 5000, 2000, 40, 0.5)
    >>> [edges_of(facts, tile) for tile in range(3)]
    [1000, 1000, 500]
    """
    if (facts.tiles - 1) * facts.tile_edges < facts.edges <= facts.tiles * facts.tile_edges:
        return min(facts.tile_edges, facts.edges - tile * facts.tile_edges)
    return facts.edges / facts.tiles


@dataclass(frozen=True)
class _Passes:
    """Seconds an edge in which the tiles of a sample were swept, in a first pass and in later ones."""

    first: float
    later: float


class _Sample:
    """Tiles of a graph, each with a state of its own rows; a device that computes alone has one of all."""

    def __init__(self, job: Job, store: RankedStore, backend: Backend, tiles: list[int]) -> None:
        self._job, self._store, self._backend, self._tiles = job, store, backend, tiles
        facts = job.plan.facts
        each = tuple((tile, tile + 1) for tile in tiles)
        cuts = each if job.plan.device is None else ((0, facts.tiles),)
        parts = replace(job, plan=replace(job.plan, stripes=cuts))
        self._specs = [parts.spec(store, k) for k in range(len(cuts))]
        self._part = {tile: k if len(cuts) > 1 else 0 for k, tile in enumerate(tiles)}
        self.rows = max(1, sum(spec.rows for spec in self._specs))
        begun = time.perf_counter()
        self._states = [self._allocated(spec) for spec in self._specs]
        self.opening = time.perf_counter() - begun
        proposals = self._specs[0].proposals
        self._reads = backend.allocate_reads(store.nodes, job.settings.reads, proposals)
        least = 1.0 if job.unit is None else job.unit.least
        self._begin = method.begin(job.settings, len(cuts), 1 / store.nodes / least)
        slots = job.slots
        self._later = replace(
            self._begin,
            starting=False,
            memory=replace(self._begin.memory, live=tuple(range(slots))),
            weights=tuple((slot, 0.01) for slot in range(slots)),
        )
        self._fill()

    def load(self, *, on_device: bool, kept: bool) -> None:
        """Do all that is measured later once."""
        self._measured(2, 0.0, on_device=on_device, kept=kept)

    def measure(self, *, on_device: bool, kept: bool) -> _Passes:
        """Pass over the tiles, again and again."""
        first, *later = self._measured(1 + LEAST_ROUNDS, SECONDS, on_device=on_device, kept=kept)
        edges = sum(edges_of(self._job.plan.facts, tile) for tile in self._tiles)
        return _Passes(first / edges, median(later) / edges)

    def _measured(self, rounds: int, seconds: float, *, on_device: bool, kept: bool) -> list[float]:
        chosen = frozenset(self._tiles)
        stream = tasks.open_stream(
            self._job,
            0,
            self._store,
            self._backend,
            self._tiles,
            on_device=chosen if on_device else frozenset(),
            kept=chosen if kept else frozenset(),
        )
        took: list[float] = []
        try:
            while len(took) < rounds or sum(took[1:]) < seconds:
                state = self._later if took else self._begin
                pushed = [self._published(k, state)[1] for k in range(len(self._specs))]
                step = method.sweep_step(self._job.settings, state, self._store.nodes, pushed)
                begun = time.perf_counter()
                self._sweep(stream, step)
                took.append(time.perf_counter() - begun)
        finally:
            stream.close()
        return took

    def pushing(self) -> float:
        """Seconds of pushing the rows of the sample and laying out the pushes, as later passes do."""
        took = []
        for _ in range(1 + LEAST_ROUNDS):
            begun = time.perf_counter()
            for k, spec in enumerate(self._specs):
                stored, _ = self._published(k, self._later)
                self._backend.load(self._reads, spec.row_begin, stored)
            took.append(time.perf_counter() - begun)
        return median(took[1:])

    def finishing(self) -> float:
        """Seconds of what follows the last pass."""
        begun = time.perf_counter()
        for state in self._states:
            ranks = self._backend.finish(state, 0.0)
            ranks /= max(ranks.sum(), 1.0)
        return time.perf_counter() - begun

    def _allocated(self, spec: StripeSpec) -> Any:
        return self._backend.allocate(spec, per_link(self._store, self._job.unit, spec), None)

    def _fill(self) -> None:
        """Write all that is gathered from: memory that nobody has written to reads faster."""
        if isinstance(self._backend, Streams):
            return
        numbers = np.zeros(self._store.nodes, READS[self._job.settings.reads].dtype)
        self._backend.load(self._reads, 0, numbers)

    def _published(self, k: int, state: method.State) -> tuple[Any, Pushed]:
        step: PublishStep = method.publish_step(self._job.settings, state, k)
        stored, told = self._backend.publish(self._states[k], step)
        return stored, told()

    def _sweep(self, stream: Tiles, step: SweepStep) -> None:
        swept: dict[int, Any] = {}

        def sweep(tile: int, prepared: Any) -> None:
            part = self._part[tile]
            rows = (int(self._store.tile_rows[tile]), int(self._store.tile_rows[tile + 1]))
            swept[part] = self._backend.sweep_tile(
                self._states[part], self._reads, prepared, rows, step, None
            )

        stream.run(sweep)
        # A device is waited for here only.
        for part, last in swept.items():
            self._backend.sums(self._states[part], [last], step)


def _reading(store: RankedStore, readers: int, direct: bool) -> float:
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
            if time.perf_counter() >= until:
                return total

    begun = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        total = sum(pool.map(read, range(readers)))
    return total / (time.perf_counter() - begun)
