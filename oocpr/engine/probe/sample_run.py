"""Some tiles of a graph, taken through a first pass and later ones again and again, and timed.

The executor of a run does that, with its threads, its ring of buffers and an array to gather from that is as
long as the graph has nodes; it is given some tiles only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from oocpr.engine import method
from oocpr.engine.backend import Streams
from oocpr.engine.executors.local import LocalExecutor
from oocpr.engine.number_formats import READS
from oocpr.engine.probe.pass_times import SampleTimes, tile_timings
from oocpr.engine.stripe import TilePlacement
from oocpr.engine.trace import COMPUTE, COPY, HOST, READ, Trace
from oocpr.plan.memory import tile_edges

if TYPE_CHECKING:
    from oocpr.engine.executors.local import LocalBackends
    from oocpr.engine.probe.pass_times import TileSample, TileTimings
    from oocpr.engine.stripe import Job, StripePush
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.progress import Progress

MEASURING = "measuring"

SECONDS = 0.25
"""How long reading is measured, and how long later passes are, for tiles of each kind."""

LOADED_ROUNDS = 2
"""Rounds after which all that is measured later was done once: a first one, and a later one."""

MIN_ROUNDS = 4
"""Rounds that are measured at least, the first among them."""


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
        """Say what is measured from now on."""
        with self._lock:
            self._step, self._end = step, self._done + self._steps[step]
            self._report()

    def read(self, read: bool = True) -> None:
        """Report that a tile was read, if it was; any thread may."""
        with self._lock:
            if read and self._done < self._end:
                self._done += 1
                self._report()

    def _report(self) -> None:
        self._progress(MEASURING, self._done, sum(self._steps.values()), "tiles", self._step)


class SampleRun:
    """Tiles of a graph, each with a state of its own rows.

    `rows` of them are pushed, whose states took `opening` seconds to make. `loading`: whether `load` follows.

    On a device there is one state of all rows that it has, and elsewhere too if all tiles are measured: as in
    a run, tiles then gather what those before them have proposed.
    """

    def __init__(
        self,
        job: Job,
        store: RankedStore,
        backends: LocalBackends,
        samples: list[TileSample],
        measuring: Measuring,
        *,
        loading: bool = False,
    ) -> None:
        stripes, self._exchanging = job.plan.stripes, job.plan.exchanging
        if not job.plan.devices and len(samples[0].tiles) < job.plan.stats.tiles:
            stripes = tuple((tile, tile + 1) for tile in samples[0].tiles)
        self._trace = Trace()
        plan = job.plan
        if stripes != plan.stripes:
            # Not while it is measured: all of these tiles would be swept at the same time.
            plan = replace(plan, stripes=stripes, exchange=loading and self._exchanging)
        self._job = job = replace(job, plan=plan, trace=self._trace)
        self._rows_of = np.diff(store.tile_rows)
        self._edges_of = tile_edges(job.plan.stats, store.tile_rows)
        self._backends, self._samples = backends, samples
        self._executor = LocalExecutor(job, store, backends, [_placement(sample) for sample in samples])
        self.rows = max(1, sum(spec.rows for group in self._executor.groups for spec in group.specs))
        begun = time.perf_counter()
        self._executor.allocate()
        self.opening = time.perf_counter() - begun
        for group in self._executor.groups:
            group.after_tile = measuring.read
            # Memory that nobody has written to reads faster.
            if not isinstance(group.backend, Streams):
                group.load([(0, np.zeros(store.nodes, READS[job.settings.reads].dtype))])
        self._launching: list[list[float]] = [[] for _ in samples]
        self._first_end = math.inf
        self._closing: list[float] = []
        scale = job.weight_scale
        min_weight = 1.0 if scale is None else scale.least
        self._begin = method.begin(job.settings, len(stripes), 1 / store.nodes / min_weight)
        slots = job.slots
        self._later = self._begin._replace(
            number=1,
            starting=False,
            memory=self._begin.memory._replace(live=tuple(range(slots))),
            mixing_coefficients=tuple((slot, 0.01) for slot in range(slots)),
        )

    def load(self) -> None:
        """Do all that is measured later once, and exchange a proposal if stripes of the run do."""
        # Processors do that in each pass.
        for group in self._executor.groups if self._exchanging and self._job.plan.devices else ():
            taken = group.backend.take_proposals(group.gather_vector, 0, 1)
            group.put_proposals([(0, taken)])
        self._measured(LOADED_ROUNDS, 0.0)

    def measure(self) -> list[SampleTimes]:
        """Pass over the tiles, again and again; what each backend took."""
        took = self._measured(MIN_ROUNDS, SECONDS)
        noted = zip(*map(self._noted, (READ, HOST, COMPUTE)), strict=True)
        found = []
        for index, (read, host, computed) in enumerate(noted):
            sample, launching = self._samples[index], self._launching[index]
            edges = int(self._edges_of[sample.tiles].sum())
            first, *later = [of_all[index] / edges if edges else 0.0 for of_all in took]
            times = SampleTimes(
                first,
                median(later),
                brought=self._in_first_pass(read),
                taken=self._in_first_pass(host),
                launched=median(launching) / max(1, len(sample.tiles)),
                closing=self._closing[index],
            )
            if not self._job.plan.devices:
                times = times._replace(computed={tile: _typical(of) for tile, of in computed.items()})
            found.append(times)
        return found

    def _in_first_pass(self, noted: dict[int, list[tuple[float, float]]]) -> dict[int, float]:
        """Seconds of each tile, or group of tiles, in the first pass."""
        return {
            tile: sum(took for end, took in spans if end <= self._first_end) for tile, spans in noted.items()
        }

    def timings(self) -> list[TileTimings]:
        """How fast tiles are streamed through each device, by the rounds that were measured last."""
        return [
            tile_timings(
                [span for span in self._trace.spans if span.name in _names(sample)],
                {tile: (float(self._edges_of[tile]), float(self._rows_of[tile])) for tile in sample.tiles},
                self._job.plan.partitions,
            )
            for sample in self._samples
        ]

    def pushing(self) -> float:
        """Seconds of pushing the rows of the sample and laying out the pushes, as later passes do."""
        took = []
        for _ in range(MIN_ROUNDS):
            begun = time.perf_counter()
            self._load(self._executor.push(self._later))
            took.append(time.perf_counter() - begun)
        return median(took[1:])

    def finishing(self) -> float:
        """Seconds of what follows the last pass."""
        begun = time.perf_counter()
        ranks = self._executor.finish(self._later)
        ranks /= max(ranks.sum(), 1.0)
        return time.perf_counter() - begun

    def _noted(self, kind: str) -> list[dict[int, list[tuple[float, float]]]]:
        """End and length of what was noted of each tile of each backend on tracks of a kind, in its order."""
        found = []
        for sample in self._samples:
            names, noted = _names(sample), dict[int, list[tuple[float, float]]]()
            for span in self._trace.spans:
                if span.track.startswith(kind) and span.name in names:
                    noted.setdefault(names[span.name], []).append((span.end, span.end - span.begin))
            found.append(noted)
        return found

    def _measured(self, rounds: int, seconds: float) -> list[list[float]]:
        """Seconds after which each backend was done, of each round."""
        took: list[list[float]] = []
        streamed = bool(self._job.plan.devices)
        if streamed:
            # In the first round, whose copies and kernels are not typical, that would only take time.
            self._trace.pause(COMPUTE, COPY)
        try:
            self._pass(took, rounds, seconds)
            if seconds and streamed:
                # To note what each tile takes takes the host time: what follows is as fast as a run.
                self._trace.pause(COMPUTE, COPY, HOST)
                del took[1:]
                self._launching = [[] for _ in self._samples]
                self._pass(took, rounds, seconds)
        finally:
            # Each in its thread, which may be at work still if it was not waited for.
            groups = self._executor.groups
            self._closing = self._backends.each(lambda index: _timed(groups[index].close_streams))
        return took

    def _pass(self, took: list[list[float]], rounds: int, seconds: float) -> None:
        """Add rounds until there are so many, and so many seconds are over since the first that was added."""
        until = math.inf
        # What is between two rounds may take longer than they do.
        while len(took) < rounds or time.perf_counter() < until:
            state = self._later if took else self._begin
            pushes = self._executor.push(state)
            if not took:
                self._load(pushes)
            begun = time.perf_counter()
            reports = self._executor.sweep(state, pushes, again=True)
            for launching, report in zip(self._launching, reports, strict=True):
                launching.append(report.launched)
            took.append([report.ended - begun for report in reports])
            if len(took) == 1:
                self._first_end = time.perf_counter()
                self._trace.resume(COMPUTE, COPY)
            until = min(until, time.perf_counter() + seconds)

    def _load(self, pushes: list[StripePush]) -> None:
        """Lay out pushes where rows gather them; column partitions are brought, as often as there are any."""
        for group in self._executor.groups:
            group.load((push.row_begin, push.stored) for push in pushes)
            for _ in group.each_partition():
                pass


def _placement(sample: TileSample) -> TilePlacement:
    tiles, none = frozenset(sample.tiles), frozenset[int]()
    return TilePlacement(sample.tiles, tiles if sample.on_device else none, tiles if sample.in_host else none)


def _names(sample: TileSample) -> dict[str, int]:
    """The tiles of a sample by what a timeline calls them."""
    return {f"tile {tile}": tile for tile in sample.tiles}


def _typical(spans: list[tuple[float, float]]) -> float:
    took = [seconds for _, seconds in spans]
    return median(took[1:] or took)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
