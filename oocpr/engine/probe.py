"""A second of measuring, so that a plan can say how long a run takes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from oocpr.engine import method
from oocpr.engine.job import Job
from oocpr.engine.weighing import per_link, prepare_tile, tiles_of, unit_of
from oocpr.plan.model import Rates

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.settings import Settings
    from oocpr.plan.plan import Plan

SECONDS = 0.25
"""How long each of the three rates is measured."""


def measure_rates(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    *,
    backend: str = "cpu",
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
    tiles = len(store.tile_rows) - 1
    source = tiles_of(store)
    buffer = np.empty(source.max_bytes, np.uint8)
    sizes: list[int] = []

    def read(turn: int) -> None:
        # Spread over the store, so that a cached beginning does not pass for the whole.
        sizes.append(source.read_into(turn * 7919 % tiles, buffer))

    turns, seconds = _repeat(read)
    store_bytes = sum(sizes[-turns:]) / seconds

    tile = tiles // 2
    encoded = buffer[: source.read_into(tile, buffer)]
    settings = replace(settings, mixing=plan.mixing, sweeps=plan.sweeps) if settings.mixed else settings
    alone = replace(plan, stripes=((tile, tile + 1),))
    unit = unit_of(store, settings.reads)
    job = Job("", settings, alone, backend, threads, kernel=kernel, tuned=tuned, unit=unit)
    worker = job.make_backend(0)
    spec = job.spec(store, 0)
    state = worker.allocate(spec, per_link(store, unit, spec), None)
    reads = worker.allocate_reads(store.nodes, spec.reads, spec.proposals)
    begin = method.begin(settings, 1, 1 / store.nodes if unit is None else 1 / store.nodes / unit.least)
    publish = method.publish_step(settings, begin, 0)
    stored, pushed = worker.publish(state, publish)
    worker.load(reads, spec.row_begin, stored)
    step = method.sweep_step(settings, begin, store.nodes, [pushed])
    prepared = prepare_tile(worker, encoded, unit, store.nodes, plan.decoded)
    rows = (spec.row_begin, spec.row_end)

    def sweep(_: int) -> None:
        worker.sums(state, [worker.sweep_tile(state, reads, prepared, rows, step, None)], step)

    turns, seconds = _repeat(sweep)
    edges = plan.facts.edges / tiles * turns * plan.gathers / seconds
    turns, seconds = _repeat(lambda _: worker.publish(state, publish))
    return Rates(store_bytes, edges, max(1, spec.rows) * turns / seconds)


def _repeat(work: Callable[[int], object]) -> tuple[int, float]:
    """Work once unmeasured, then again and again for SECONDS; returns how often, and the seconds."""
    work(0)
    begun = time.perf_counter()
    turns = 0
    while True:
        turns += 1
        work(turns)
        seconds = time.perf_counter() - begun
        if seconds >= SECONDS:
            return turns, seconds
