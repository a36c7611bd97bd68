"""Some tiles of a graph, taken through a first pass and later ones again and again, and timed.

They are swept by the functions of a run, with its threads, its ring of buffers and an array to gather from
that is as long as the graph has nodes. Several devices sweep theirs side by side.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine import method
from oocpr.engine.probe.trial_stripe import Share

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.engine.backend import PushSums, SweepStep
    from oocpr.engine.executors.multi_device import Alone, SideBySide
    from oocpr.engine.job import Job
    from oocpr.engine.probe.fit import TileTimings
    from oocpr.engine.probe.progress import Measuring
    from oocpr.engine.probe.sampling import TileSample
    from oocpr.engine.tiles.source import RankedStore

SECONDS = 0.25
"""How long reading is measured, and how long later passes are, for tiles of each kind."""

LOADED_ROUNDS = 2
"""Rounds after which all that is measured later was done once: a first one, and a later one."""

LEAST_ROUNDS = 4
"""Rounds that are measured at least, the first among them."""


@dataclass(frozen=True)
class Rounds:
    """In what time backends swept their tiles, side by side; one without tiles took none.

    Parameters
    ----------
    first, later
        Seconds an edge, of each backend: in a first pass, and in later ones.
    brought
        Seconds in which a thread read each tile, and joined it where it is made of several; of each device.
    taken
        Seconds in which the host took each tile in the first pass: made it what stays, and launched what
        computes with it.
    launched
        The same in later ones, of a tile as a rule.
    closing
        Seconds in which they gave back the memory of those that stayed in memory of the host.
    computed
        Seconds in which a processor swept each tile in later ones.
    """

    first: list[float]
    later: list[float]
    brought: list[dict[int, float]]
    taken: list[dict[int, float]]
    launched: list[float]
    closing: list[float]
    computed: list[dict[int, float]]


class Sample:
    """Tiles of a graph, each with a state of its own rows.

    On a device there is one state of all rows that it has, and elsewhere too where all tiles are measured:
    as in a run, tiles then gather what those before them have proposed.

    Parameters
    ----------
    job, store
        The run.
    team
        Its backends.
    picked
        What is measured of each.
    measuring
        Told of each tile that is read.

    Attributes
    ----------
    rows
        Rows that are pushed.
    opening
        Seconds in which their states were made.
    """

    def __init__(
        self,
        job: Job,
        store: RankedStore,
        team: Alone | SideBySide,
        picked: list[TileSample],
        measuring: Measuring,
    ) -> None:
        self._job, self._nodes, self._team = job, store.nodes, team
        self._measuring = measuring
        cuts = job.plan.stripes
        if not job.plan.devices and len(picked[0].tiles) < job.plan.stats.tiles:
            cuts = tuple((tile, tile + 1) for tile in picked[0].tiles)
        parts = replace(job, plan=replace(job.plan, stripes=cuts))
        specs = [parts.spec(store, k) for k in range(len(cuts))]
        of_each = [[spec] for spec in specs] if job.plan.devices else [specs]
        self._shares = [
            Share(job, store, index, backend, picked[index], of_each[index])
            for index, backend in enumerate(team.backends)
        ]
        self._closing: list[float] = []
        self.rows = max(1, sum(spec.rows for spec in specs))
        begun = time.perf_counter()
        team.each(lambda index: self._shares[index].allocate())
        self.opening = time.perf_counter() - begun
        for share in self._shares:
            share.allocate_reads()
        least = 1.0 if job.weight_scale is None else job.weight_scale.least
        self._begin = method.begin(job.settings, len(cuts), 1 / store.nodes / least)
        slots = job.slots
        self._later = replace(
            self._begin,
            starting=False,
            memory=replace(self._begin.memory, live=tuple(range(slots))),
            mixing_coefficients=tuple((slot, 0.01) for slot in range(slots)),
        )

    def load(self) -> None:
        """Do all that is measured later once."""
        self._measured(LOADED_ROUNDS, 0.0)

    def measure(self) -> Rounds:
        """Pass over the tiles, again and again."""
        first, *later = self._measured(LEAST_ROUNDS, SECONDS)
        typical = [median(took) for took in zip(*later, strict=True)]
        return Rounds(
            self._an_edge(first),
            self._an_edge(typical),
            [share.brought() for share in self._shares],
            [share.taken() for share in self._shares],
            [share.launched() for share in self._shares],
            self._closing,
            [share.computed() for share in self._shares],
        )

    def paces(self) -> list[TileTimings]:
        """How fast tiles pass through each device, by the rounds that were measured last."""
        return [share.pace() for share in self._shares]

    def pushing(self) -> float:
        """Seconds of pushing the rows of the sample and laying out the pushes, as later passes do."""
        took = []
        for _ in range(LEAST_ROUNDS):
            begun = time.perf_counter()
            self._load(self._published(self._later))
            took.append(time.perf_counter() - begun)
        return median(took[1:])

    def finishing(self) -> float:
        """Seconds of what follows the last pass."""
        begun = time.perf_counter()
        ranks = np.empty(self.rows if len(self._shares) > 1 else 0)
        at = 0
        for share in self._shares:
            for rows in share.states:
                part = share.backend.finish(rows, 0.0)
                if len(ranks):
                    # Those of several devices are brought together, one after another as a run has room for.
                    ranks[at : at + len(part)] = part
                    at += len(part)
                else:
                    part /= max(part.sum(), 1.0)
        ranks /= max(ranks.sum(), 1.0)
        return time.perf_counter() - begun

    def _an_edge(self, seconds: list[float]) -> list[float]:
        return [
            took / share.edges if share.edges else 0.0
            for took, share in zip(seconds, self._shares, strict=True)
        ]

    def _measured(self, rounds: int, seconds: float) -> list[list[float]]:
        """What each round took of each backend."""
        took: list[list[float]] = []
        try:
            self._team.each(lambda index: self._shares[index].open())
            self._pass(took, rounds, seconds)
            if seconds and self._job.plan.devices:
                # To note what each tile takes takes the host time: what follows is as fast as a run.
                for share in self._shares:
                    share.pause()
                del took[1:]
                self._pass(took, rounds, seconds)
        finally:
            # Each where it was at work: it may be still, if it was not waited for.
            self._closing = self._team.each(lambda index: _timed(self._shares[index].close))
        return took

    def _pass(self, took: list[list[float]], rounds: int, seconds: float) -> None:
        """Add rounds until there are so many, and so many seconds are over since the first that was added."""
        until = math.inf
        # What is between two rounds may take longer than they do.
        while len(took) < rounds or time.perf_counter() < until:
            state = self._later if took else self._begin
            published = self._published(state)
            if not took:
                # A device alone gathers a push where it is, and has no room for another.
                self._load(published)
            pushed = [sums for _, _, sums in published]
            took.append(self._round(method.sweep_step(self._job.settings, state, self._nodes, pushed)))
            until = min(until, time.perf_counter() + seconds)

    def _published(self, state: method.State) -> list[tuple[int, Any, PushSums]]:
        """First row, numbers and sums of the push of each state."""
        publishing: list[tuple[int, Any, Callable[[], PushSums]]] = []
        for share in self._shares:
            for spec, rows in zip(share.specs, share.states, strict=True):
                step = method.publish_step(self._job.settings, state, len(publishing))
                publishing.append((spec.row_begin, *share.backend.publish(rows, step)))
        return [(row_begin, stored, told()) for row_begin, stored, told in publishing]

    def _load(self, published: list[tuple[int, Any, PushSums]]) -> None:
        """Lay out pushes where rows gather them."""
        for share in self._shares:
            for row_begin, stored, _ in published:
                share.backend.load(share.reads, row_begin, stored)
            share.bring_slices()

    def _round(self, step: SweepStep) -> list[float]:
        """Sweep all tiles once, as a run does; returns the seconds after which each backend was done.

        While tiles are read a thread launches for each device, and one for all once nothing is read. Then,
        too, each device is waited for in its own thread: in turns only the last of them would be known.
        """
        shares, read, begun = self._shares, self._measuring.read, time.perf_counter()

        def until(done: Callable[[], None]) -> float:
            done()
            return time.perf_counter() - begun

        if all(share.settled for share in shares):
            sweeping = [share.begin_sweep(step, read) for share in shares]
            return self._team.each(lambda index: until(sweeping[index]))
        return self._team.each(lambda index: until(shares[index].begin_sweep(step, read)))


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
