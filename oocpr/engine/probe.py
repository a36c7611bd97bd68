"""A second of measuring, so that a plan can say how long a run takes.

Tiles spread over the store, or over the stripe of each device, are taken through a first pass and some later
ones; see :mod:`oocpr.engine.sample`.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING

from oocpr.engine.job import Job, each_backend
from oocpr.engine.joined import JoinedStore, closing_joins
from oocpr.engine.passed import Pace
from oocpr.engine.passed_frames import NothingKept
from oocpr.engine.picked import edges_of, places_of
from oocpr.engine.sample import SECONDS, Rounds, Sample
from oocpr.engine.side_by_side import Alone, SideBySide
from oocpr.engine.weighing import unit_of
from oocpr.engine.weighted_tiles import tiles_of
from oocpr.jit import watched
from oocpr.plan.model import Forecast, Rates
from oocpr.progress import silent
from oocpr.store.direct import aligned

if TYPE_CHECKING:
    from oocpr.engine.backends.base import Backend
    from oocpr.engine.picked import Place
    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.settings import Settings
    from oocpr.engine.solution import Solution
    from oocpr.plan.plan import Plan

JOINED_ROW_EDGES = 4
"""Edges that take as long to be joined to larger tiles as a row does, whose length goes through the host: on
R-MAT by out-degree, half of whose rows are in one tile, first passes fit 2 to 8."""


def measure_rates(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    *,
    backend: str | Backend | tuple[str | Backend, ...] = "cpu",
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
    with NothingKept(), closing_joins(store):
        return _measure(job, store)


def _job(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    backend: str | Backend | tuple[str | Backend, ...],
    threads: int | None,
    kernel: str | None = None,
    *,
    tuned: bool = False,
) -> Job:
    """Describe the run of a plan."""
    settings = replace(settings, mixing=plan.mixing, sweeps=plan.sweeps) if settings.mixed else settings
    unit = unit_of(store, settings.reads)
    return Job("", settings, plan, each_backend(backend), threads, kernel=kernel, tuned=tuned, unit=unit)


def _measure(job: Job, store: RankedStore) -> Rates:
    begun = time.perf_counter()
    team = SideBySide(job) if len(job.plan.devices) > 1 else Alone(job)
    try:
        return _measured(job, store, team, begun)
    finally:
        team.close()


def _measured(job: Job, store: RankedStore, team: Alone | SideBySide, begun: float) -> Rates:
    """Measure with backends that were begun to be made at a time."""
    plan, places = job.plan, places_of(job.plan, store.tile_rows)
    # What is loaded once a process is no part of a pass.
    with watched(silent) as compilation:
        Sample(job, store, team, [place.one(decoded=plan.decoded) for place in places]).load()
    loading = max(0.0, time.perf_counter() - begun - compilation.seconds)
    store_bytes = _reading(store, job.readers * len(places), plan.direct)
    sample: Sample | None = None
    nothing = [0.0] * len(places)
    kept = passing = Rounds(nothing, nothing)
    paces = [Pace()] * len(places)
    if any(place.staying for place in places):
        sample = Sample(job, store, team, [place.of_staying() for place in places])
        kept = sample.measure()
    if any(place.staying < len(place.tiles) for place in places):
        # One after the other has the memory.
        sample = None
        sample = Sample(job, store, team, [place.of_passing() for place in places])
        passing = sample.measure()
        if plan.devices:
            paces = sample.paces()
    assert sample is not None, "a tile stays or passes"
    row_edges = JOINED_ROW_EDGES if isinstance(store, JoinedStore) else 0
    rounds = zip(kept.first, kept.later, strict=True), zip(passing.first, passing.later, strict=True)
    shares = list(map(_Times.of, places, *rounds, paces, repeat(row_edges)))
    # A pass ends with the slowest of them. Which that is shows only in what each has to do in all: stripes of
    # tiles that stream have equally many bytes, not tiles, and devices may keep different shares of theirs.
    slowest = max(shares, key=lambda share: share.kept + share.passing + plan.rows_in_host * share.sent)
    sending = slowest if plan.rows_in_host else max(shares, key=lambda share: share.sent)
    moved = sum(place.passing_edges for place in places)
    edges = sum(place.edges for place in places)
    return Rates(
        store_bytes=store_bytes,
        kept=_rate(edges - moved, slowest.kept),
        passing=_rate(moved, slowest.passing),
        sending=_rate(moved, sending.sent),
        first=_rate(edges, max(share.first for share in shares)),
        rows=sample.rows / sample.pushing(),
        ends=sample.rows / (sample.opening + sample.finishing()),
        loading=loading,
    )


@dataclass(frozen=True)
class _Times:
    """Seconds of what one backend does in a pass.

    Parameters
    ----------
    kept, passing
        Of sweeping the tiles that stay, and the others.
    sent
        In which these come over the link of a device.
    first
        Of all tiles in a first pass.
    """

    kept: float
    passing: float
    sent: float
    first: float

    @classmethod
    def of(
        cls,
        place: Place,
        kept: tuple[float, float],
        passing: tuple[float, float],
        pace: Pace,
        row_edges: float,
    ) -> _Times:
        """Put together what an edge takes in a first pass and in later ones, and the pace of what passes.

        A row takes as long as `row_edges` edges until its tile is where kernels take it.
        """
        moved = place.passing_edges
        stayed = place.edges - moved
        first, later = (moved * took for took in passing)
        if place.device is not None and moved:
            # The sample has more rows an edge than all that passes.
            sampled = place.of_passing().tiles
            edges = sum(edges_of(place.facts, tile) for tile in sampled)
            rows = sum(map(place.rows_of, sampled))
            later = pace.kernels(moved, place.passing_rows)
            until_there = max(0.0, edges * passing[0] - pace.kernels(edges, rows))
            more = (moved + row_edges * place.passing_rows) / (edges + row_edges * rows)
            first = until_there * more + later
        # Tiles have about as many bytes an edge.
        sent = place.facts.column_bytes * moved / max(1, place.facts.edges) * pace.byte
        return cls(stayed * kept[1], later, sent, stayed * kept[0] + first)


def _rate(edges: float, seconds: float) -> float:
    """Edges a second; infinite where there is nothing to do."""
    return edges / seconds if seconds else math.inf


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
    places = places_of(plan, store.tile_rows)
    Sample(job, store, Alone(job), [place.one(decoded=plan.decoded) for place in places]).load()


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
