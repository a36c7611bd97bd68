"""What one backend has of a sample: some of its tiles, a state of their rows, and what was noted of them."""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine import stripe_tasks
from oocpr.engine.backend import Streams
from oocpr.engine.number_formats import READS
from oocpr.engine.probe.fit import TileTimings, tile_timings
from oocpr.engine.probe.sampling import edges_of
from oocpr.engine.tiles.partitions import each_partition
from oocpr.engine.tiles.weights import per_link
from oocpr.engine.trace import COMPUTE, COPY, HOST, READ, Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.engine.backend import Backend, StripeSpec, SweepStep
    from oocpr.engine.job import Job
    from oocpr.engine.probe.sampling import TileSample
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.engine.tiles.stream import Tiles


class Share:
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
        Rows of its states: one for each tile, or one for several.
    """

    def __init__(
        self,
        job: Job,
        store: RankedStore,
        index: int,
        backend: Backend,
        picked: TileSample,
        specs: list[StripeSpec],
    ) -> None:
        self._job, self._store, self._index = job, store, index
        self.backend = backend
        self._picked = picked
        self.specs = specs
        ends = [spec.last_tile for spec in specs]
        self._part = {tile: bisect_right(ends, tile) for tile in picked.tiles}
        self.edges = sum(edges_of(job.plan.stats, tile) for tile in picked.tiles)
        self.states: list[Any] = []
        self.reads: Any = None
        self._stream: Tiles | None = None
        self._trace = Trace()
        self._first_end = 0.0
        self._launching: list[float] = []
        self._computing: dict[int, list[float]] = {}
        self._paused = False

    def allocate(self) -> None:
        """Make the states of all rows."""
        store, unit = self._store, self._job.weight_scale
        self.states = [self.backend.allocate(spec, per_link(store, unit, spec), None) for spec in self.specs]

    def allocate_reads(self) -> None:
        """Make what is gathered from and write all of it: memory that nobody has written to reads faster."""
        nodes, reads = self._store.nodes, self._job.settings.reads
        self.reads = self.backend.allocate_reads(nodes, reads, self.specs[0].proposals)
        if not isinstance(self.backend, Streams):
            self.backend.load(self.reads, 0, np.zeros(nodes, READS[reads].dtype))

    def bring_slices(self) -> None:
        """Bring each slice of the push that rows gather, where they gather slices."""
        for _ in each_partition(self.backend, self.reads):
            pass

    def open(self) -> None:
        """Open the stream of the tiles."""
        chosen, none = frozenset(self._picked.tiles), frozenset[int]()
        job = self._job
        self._first_end, self._launching, self._computing, self._paused = 0.0, [], {}, False
        if job.plan.devices:
            self._trace = Trace()
            # In the first round, whose copies and kernels tell nothing, that would only take time.
            self._trace.pause(COMPUTE, COPY)
            job = replace(job, trace=self._trace)
        self._stream = stripe_tasks.open_stream(
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

    def pace(self) -> TileTimings:
        """How fast the tiles passed; nothing of tiles that stay."""
        rows, stats = self._store.tile_rows, self._job.plan.stats
        tiles = {
            tile: (edges_of(stats, tile), float(rows[tile + 1] - rows[tile])) for tile in self._picked.tiles
        }
        return tile_timings(self._trace.spans, tiles, self._job.plan.partitions)

    def brought(self) -> dict[int, float]:
        """Seconds in which each tile was read first; none where that was not noted."""
        return {tile: spans[0][1] for tile, spans in self._spans(READ).items()}

    def taken(self) -> dict[int, float]:
        """Seconds in which the host took each tile in the first round; the same."""
        return {
            tile: sum(took for end, took in spans if end <= self._first_end)
            for tile, spans in self._spans(HOST).items()
        }

    def pause(self) -> None:
        """Note no more of single tiles."""
        self._trace.pause(COMPUTE, COPY, HOST)
        self._paused = True

    def computed(self) -> dict[int, float]:
        """Seconds in which a processor swept each tile in later rounds."""
        return {tile: median(took[1:] or took) for tile, took in self._computing.items()}

    def launched(self) -> float:
        """Seconds in which the host launched a tile since nothing else is noted; none where it always was."""
        return median(self._launching) / max(1, len(self._picked.tiles)) if self._launching else 0.0

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
        settled, launched = self.settled, bool(self._job.plan.devices)

        def sweep(tile: int, prepared: Any) -> None:
            part = self._part[tile]
            rows = (int(self._store.tile_rows[tile]), int(self._store.tile_rows[tile + 1]))
            before, begun = swept.get(part), time.perf_counter()
            swept[part] = self.backend.sweep_tile(self.states[part], self.reads, prepared, rows, step, before)
            if not launched:
                self._computing.setdefault(tile, []).append(time.perf_counter() - begun)
            if not settled:
                read()

        begun = time.perf_counter()
        # Slices are brought between two passes here, as often as there: some tiles tell nothing of that.
        for _ in each_partition(self.backend, self.reads, bring=False):
            swept.clear()
            self._stream.run(sweep)
            settled = self._stream.settled
        ended = time.perf_counter()
        if not self._first_end:
            self._first_end = ended
            self._trace.resume(COMPUTE, COPY)
        if self._paused:
            self._launching.append(ended - begun)

        def wait() -> None:
            for part, last in swept.items():
                self.backend.sums(self.states[part], [last], step)

        return wait
