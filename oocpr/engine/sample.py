"""Some tiles of a graph, taken through a first pass and later ones again and again, and timed.

They are swept by the functions of a run, with its threads, its ring of buffers and an array to gather from
that is as long as the graph has nodes. Several devices sweep theirs side by side.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine import method, tasks
from oocpr.engine.backends.base import Streams
from oocpr.engine.passed import Pace, pace_of
from oocpr.engine.picked import edges_of
from oocpr.engine.reads import READS
from oocpr.engine.trace import HOST, READ, Trace
from oocpr.engine.weighing import per_link

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.engine.backends.base import Backend, Pushed, StripeSpec, SweepStep
    from oocpr.engine.job import Job
    from oocpr.engine.measuring import Measuring
    from oocpr.engine.picked import Picked
    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.side_by_side import Alone, SideBySide
    from oocpr.engine.stream import Tiles

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
    """

    first: list[float]
    later: list[float]
    brought: list[dict[int, float]]
    taken: list[dict[int, float]]
    launched: list[float]


class Sample:
    """Tiles of a graph, each with a state of its own rows; on a device there is one of all rows that it has.

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
        picked: list[Picked],
        measuring: Measuring,
    ) -> None:
        self._job, self._nodes, self._team = job, store.nodes, team
        self._measuring = measuring
        cuts = job.plan.stripes
        if not job.plan.devices:
            cuts = tuple((tile, tile + 1) for tile in picked[0].tiles)
        parts = replace(job, plan=replace(job.plan, stripes=cuts))
        specs = [parts.spec(store, k) for k in range(len(cuts))]
        of_each = [[spec] for spec in specs] if job.plan.devices else [specs]
        self._shares = [
            _Share(job, store, index, backend, picked[index], of_each[index])
            for index, backend in enumerate(team.backends)
        ]
        self.rows = max(1, sum(spec.rows for spec in specs))
        begun = time.perf_counter()
        team.each(lambda index: self._shares[index].allocate())
        self.opening = time.perf_counter() - begun
        for share in self._shares:
            share.allocate_reads()
        least = 1.0 if job.unit is None else job.unit.least
        self._begin = method.begin(job.settings, len(cuts), 1 / store.nodes / least)
        slots = job.slots
        self._later = replace(
            self._begin,
            starting=False,
            memory=replace(self._begin.memory, live=tuple(range(slots))),
            weights=tuple((slot, 0.01) for slot in range(slots)),
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
        )

    def paces(self) -> list[Pace]:
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
        for share in self._shares:
            for state in share.states:
                ranks = share.backend.finish(state, 0.0)
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
            while len(took) < rounds or sum(map(max, took[1:])) < seconds:
                state = self._later if took else self._begin
                published = self._published(state)
                if not took:
                    # A device alone gathers a push where it is, and has no room for another.
                    self._load(published)
                pushed = [sums for _, _, sums in published]
                took.append(self._round(method.sweep_step(self._job.settings, state, self._nodes, pushed)))
        finally:
            # Each where it was at work: it may be still, if it was not waited for.
            self._team.each(lambda index: self._shares[index].close())
        return took

    def _published(self, state: method.State) -> list[tuple[int, Any, Pushed]]:
        """First row, numbers and sums of the push of each state."""
        publishing: list[tuple[int, Any, Callable[[], Pushed]]] = []
        for share in self._shares:
            for spec, rows in zip(share.specs, share.states, strict=True):
                step = method.publish_step(self._job.settings, state, len(publishing))
                publishing.append((spec.row_begin, *share.backend.publish(rows, step)))
        return [(row_begin, stored, told()) for row_begin, stored, told in publishing]

    def _load(self, published: list[tuple[int, Any, Pushed]]) -> None:
        """Lay out pushes where rows gather them."""
        for share in self._shares:
            for row_begin, stored, _ in published:
                share.backend.load(share.reads, row_begin, stored)

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


class _Share:
    """What one backend has of a sample.

    Parameters
    ----------
    job, store
        The run.
    index
        Number of the backend.
    backend
        What computes.
    picked
        Its tiles.
    specs
        Rows of its states: one for each tile, or one for all.
    """

    def __init__(
        self,
        job: Job,
        store: RankedStore,
        index: int,
        backend: Backend,
        picked: Picked,
        specs: list[StripeSpec],
    ) -> None:
        self._job, self._store, self._index = job, store, index
        self.backend = backend
        self._picked = picked
        self.specs = specs
        self._part = {tile: k if len(specs) > 1 else 0 for k, tile in enumerate(picked.tiles)}
        self.edges = sum(edges_of(job.plan.facts, tile) for tile in picked.tiles)
        self.states: list[Any] = []
        self.reads: Any = None
        self._stream: Tiles | None = None
        self._trace = Trace()
        self._first_end = 0.0

    def allocate(self) -> None:
        """Make the states of all rows."""
        store, unit = self._store, self._job.unit
        self.states = [self.backend.allocate(spec, per_link(store, unit, spec), None) for spec in self.specs]

    def allocate_reads(self) -> None:
        """Make what is gathered from and write all of it: memory that nobody has written to reads faster."""
        nodes, reads = self._store.nodes, self._job.settings.reads
        self.reads = self.backend.allocate_reads(nodes, reads, self.specs[0].proposals)
        if not isinstance(self.backend, Streams):
            self.backend.load(self.reads, 0, np.zeros(nodes, READS[reads].dtype))

    def open(self) -> None:
        """Open the stream of the tiles."""
        chosen, none = frozenset(self._picked.tiles), frozenset[int]()
        job = self._job
        self._first_end = 0.0
        if job.plan.devices:
            self._trace = Trace()
            job = replace(job, trace=self._trace)
        self._stream = tasks.open_stream(
            job,
            self._index,
            self._store,
            self.backend,
            self._picked.tiles,
            on_device=chosen if self._picked.on_device else none,
            kept=chosen if self._picked.kept else none,
        )

    def close(self) -> None:
        """Close it, if it was opened."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def pace(self) -> Pace:
        """How fast the tiles passed; nothing of tiles that stay."""
        rows, facts = self._store.tile_rows, self._job.plan.facts
        tiles = {
            tile: (edges_of(facts, tile), float(rows[tile + 1] - rows[tile])) for tile in self._picked.tiles
        }
        return pace_of(self._trace.spans, tiles)

    def brought(self) -> dict[int, float]:
        """Seconds in which each tile was read first; none where that was not noted."""
        return {tile: spans[0][1] for tile, spans in self._spans(READ).items()}

    def taken(self) -> dict[int, float]:
        """Seconds in which the host took each tile in the first round; the same."""
        return {
            tile: sum(took for end, took in spans if end <= self._first_end)
            for tile, spans in self._spans(HOST).items()
        }

    def launched(self) -> float:
        """Seconds in which the host launched a tile in later rounds; the same."""
        later = [took for spans in self._spans(HOST).values() for end, took in spans if end > self._first_end]
        return median(later) if later else 0.0

    def _spans(self, kind: str) -> dict[int, list[tuple[float, float]]]:
        """End and length of what was noted of each tile on tracks of a kind, in its order."""
        found: dict[int, list[tuple[float, float]]] = {}
        numbers = {f"tile {tile}": tile for tile in self._picked.tiles}
        for span in self._trace.spans:
            if span.track.startswith(kind):
                found.setdefault(numbers[span.name], []).append((span.end, span.end - span.begin))
        return found

    @property
    def settled(self) -> bool:
        """Whether all tiles are where they stay."""
        return self._stream is not None and self._stream.settled

    def begin_sweep(self, step: SweepStep, read: Callable[[], None]) -> Callable[[], None]:
        """Sweep the tiles; a device is still at it when this returns what waits for it.

        Parameters
        ----------
        step
            How.
        read
            Called after each tile that was read for it.
        """
        assert self._stream is not None, "the stream is open"
        swept: dict[int, Any] = {}
        settled = self.settled

        def sweep(tile: int, prepared: Any) -> None:
            part = self._part[tile]
            rows = (int(self._store.tile_rows[tile]), int(self._store.tile_rows[tile + 1]))
            swept[part] = self.backend.sweep_tile(self.states[part], self.reads, prepared, rows, step, None)
            if not settled:
                read()

        self._stream.run(sweep)
        self._first_end = self._first_end or time.perf_counter()

        def wait() -> None:
            for part, last in swept.items():
                self.backend.sums(self.states[part], [last], step)

        return wait
