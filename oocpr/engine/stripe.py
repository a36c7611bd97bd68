"""The stripes that one backend of a process computes: their rows, their stream of tiles, what they gather.

A pass is a push of all stripes, then a sweep over the tiles of each, then a reduction of what they report::

    state ──> push(stripes 0, 1) ─┬─> sweep(stripes 0, 1) ─┬─> reduce ──> state
          └─> push(stripe 2)     ─┴─> sweep(stripe 2)     ─┘

Each sweep takes what all stripes have pushed; whoever adds those few sums gets the same numbers.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oocpr.engine import method
from oocpr.engine.backend import Streams
from oocpr.engine.degree_check import claims_of
from oocpr.engine.tiles.source import split_tile, tiles_of
from oocpr.engine.tiles.stream import PassTraffic, TileStream
from oocpr.engine.trace import COMPUTE
from oocpr.plan.residency import RING_SLOTS, ring_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.backend import Backend, PushSums, StripeSpec, SweepStep
    from oocpr.engine.job import Job
    from oocpr.engine.method import Claims, State, StripeSums
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.engine.tiles.stream import Tiles
    from oocpr.engine.trace import Trace


@dataclass(frozen=True)
class StripePush:
    """A stripe's push on its way to the others: the narrow numbers of its rows, from the first of them.

    There are none if only the sums are reported.
    """

    row_begin: int
    stored: Any
    sums: PushSums


@dataclass(frozen=True)
class SweepReport:
    """What the stripes of one backend report after a pass, each its sums, and together what was read.

    `launched` are the seconds until everything was computed or, by a device, launched, and `ended` is when
    all was done, in seconds of `time.perf_counter`.
    """

    sums: list[StripeSums]
    traffic: PassTraffic
    launched: float
    ended: float


class TilePlacement(NamedTuple):
    """Which tiles a backend passes over, in their order, and which of them stay on a device or in memory."""

    tiles: Sequence[int]
    on_device: frozenset[int]
    in_memory: frozenset[int]


class StripeGroup:
    """The stripes of a run, following each other, that one backend of this process computes.

    Stripes write their proposals into the array that rows gather from while they sweep, each to its own rows
    and read by itself alone; pushes change between passes only. A probe gives a `placement` of some tiles.
    """

    def __init__(
        self,
        job: Job,
        store: RankedStore,
        backend: Backend,
        stripes: Sequence[int],
        placement: TilePlacement | None = None,
    ) -> None:
        self._job, self._store, self.backend, self.stripes = job, store, backend, stripes
        self.specs = [job.spec(store, stripe) for stripe in stripes]
        self.states: list[Any] = []
        self.after_read: Callable[[], None] | None = None
        """Called after each tile that was read for it has been computed or launched."""
        self._claims: list[Claims] = []
        reads, proposals = job.settings.reads, self.specs[0].proposals
        self.gather_vector = backend.allocate_reads(store.nodes, reads, proposals)
        trace = self._tracks()
        placements = self._planned_placements() if placement is None else [placement]
        self.streams = [self._open_stream(number, each, trace) for number, each in enumerate(placements)]
        # A device with a stream of its own measures by itself when it computes.
        self._trace = trace if isinstance(self.streams[0], TileStream) else None

    def _tracks(self) -> Trace | None:
        """Where the timeline goes, on tracks of its own for each of several devices."""
        if self._job.trace is None or not isinstance(self._job.backend, tuple):
            return self._job.trace
        return self._job.trace.part(f"device {self.stripes[0]}")

    def _planned_placements(self) -> list[TilePlacement]:
        """Of each stripe that a device has planned room for, or else of all together."""
        job = self._job
        if job.plan.devices and isinstance(self.backend, Streams):
            placements = []
            for stripe, spec in zip(self.stripes, self.specs, strict=True):
                tiles = range(spec.first_tile, spec.last_tile)
                placements.append(TilePlacement(tiles, *job.plan.devices[stripe].places(tiles)))
            return placements
        resident = (job.plan.resident(stripe) for stripe in self.stripes)
        tiles = range(self.specs[0].first_tile, self.specs[-1].last_tile)
        return [TilePlacement(tiles, frozenset(), frozenset().union(*resident))]

    def _open_stream(self, number: int, placement: TilePlacement, trace: Trace | None) -> Tiles:
        job, store, backend = self._job, self._store, self.backend
        plan, tiers, scale = job.plan, job.tiers(self.stripes[number]), job.weight_scale
        tiles, on_device, in_memory = placement
        if tiers is not None and isinstance(backend, Streams):
            first, last = self.specs[number].first_tile, self.specs[number].last_tile
            return backend.open_stream(
                tiles_of(store),
                tiles,
                store.nodes,
                on_device=on_device,
                in_host=in_memory - on_device,
                edges=plan.stats.tile_edges,
                segments=int(np.diff(store.tile_rows[first : last + 1]).max()) + 1,
                slots=tiers.slots,
                readers=max(job.readers, tiers.merged_at_once),
                buffers=ring_slots(tiers.merged_at_once),
                trace=trace,
                direct=plan.direct,
                factor=None if scale is None else scale.factor,
            )

        def prepare(_: int, encoded: NDArray[np.uint8], stays: bool) -> Any:
            decoded = stays and plan.decoded
            # Of a tile that stays decoded no bytes are needed once it has been swept, which follows at once.
            own = encoded.copy() if stays and not decoded else encoded
            if scale is None:
                return backend.prepare(own, store.nodes, decoded)
            return backend.prepare_weighted(*split_tile(own), scale.factor, store.nodes, decoded)

        return TileStream(
            tiles_of(store),
            tiles,
            in_memory,
            RING_SLOTS,
            job.readers,
            prepare,
            trace=trace,
            direct=plan.direct,
        )

    def allocate(self) -> None:
        """Make the states of all rows."""
        job, store = self._job, self._store
        for spec in self.specs:
            degree = self._divisors(spec)
            self._claims.append(claims_of(store, spec, degree, job.mark_key))
            rows = slice(spec.row_begin, spec.row_end)
            teleport, start = (None if whole is None else whole[rows] for whole in (job.teleport, job.start))
            self.states.append(self.backend.allocate(spec, degree, teleport, start))

    def _divisors(self, spec: StripeSpec) -> NDArray[Any]:
        """What the ranks of a stripe's rows are divided by: out-degrees, or the weights that leave them."""
        scale = self._job.weight_scale
        if scale is None:
            return self._store.out_degree(spec.row_begin, spec.row_end)
        sums = self._store.out_weight(spec.row_begin, spec.row_end)
        sums *= scale.factor
        return sums

    @property
    def all_resident(self) -> bool:
        """Whether all tiles are where they stay, so that a pass reads nothing."""
        return all(stream.all_resident for stream in self.streams)

    def begin_push(self, state: State) -> Callable[[], list[StripePush]]:
        """Have the backend begin to make the next push of each stripe; returns what waits for them."""
        begun = []
        for stripe, spec, rows in zip(self.stripes, self.specs, self.states, strict=True):
            step = method.publish_step(self._job.settings, state, stripe)
            begun.append((spec.row_begin, *self.backend.publish(rows, step)))
        return partial(_pushes, begun)

    def push(self, state: State) -> list[StripePush]:
        """Make the next push of each stripe."""
        return self.begin_push(state)()

    def load(self, pieces: Iterable[tuple[int, Any]]) -> None:
        """Put pushes, each with its first row, where rows gather."""
        for row_begin, stored in pieces:
            self.backend.load(self.gather_vector, row_begin, stored)

    def each_partition(self, *, bring: bool = True) -> Iterator[None]:
        """Have rows gather from one column partition after the other; once if they gather from all nodes.

        Without `bring` the numbers of another partition stand for those of each, which takes tiles as long.
        """
        if not isinstance(self.backend, Streams):
            yield
            return
        for number in range(self.backend.slices):
            self.backend.select_partition(self.gather_vector, number, bring=bring)
            yield

    def begin_sweep(
        self, state: State, pushed: Sequence[PushSums], *, bring: bool = True
    ) -> Callable[[], SweepReport]:
        """Deliver what is loaded to every tile, in order, and propose the next push.

        A device is still at it when this returns; who asks for the report waits until all is done.
        """
        begun = time.perf_counter()
        step = sweep_step(self._job, state, self._store.nodes, pushed)
        swept: list[list[Any]] = [[] for _ in self.specs]
        runs: list[PassTraffic] = []
        for number, stream in enumerate(self.streams):
            for _ in self.each_partition(bring=bring):
                # The sums are of what the last partition leaves.
                for tiles in swept if len(self.streams) == 1 else [swept[number]]:
                    tiles.clear()
                reading = not stream.all_resident
                runs.append(stream.run(partial(self._sweep_tile, swept, step, reading)))
        return partial(self._report, swept, step, runs, time.perf_counter() - begun)

    def sweep(
        self, state: State, pushed: Sequence[PushSums], pieces: Iterable[tuple[int, Any]]
    ) -> SweepReport:
        """Load what all have pushed, and sweep all tiles once."""
        self.load(pieces)
        return self.begin_sweep(state, pushed)()

    def _sweep_tile(
        self, swept: list[list[Any]], step: SweepStep, reading: bool, tile: int, prepared: Any
    ) -> None:
        number = bisect_right(self.specs, tile, key=lambda spec: spec.last_tile)
        before = swept[number][-1] if swept[number] else None
        rows = (int(self._store.tile_rows[tile]), int(self._store.tile_rows[tile + 1]))
        trace = self._trace
        with nullcontext() if trace is None else trace.span(COMPUTE, f"tile {tile}"):
            done = self.backend.sweep_tile(
                self.states[number], self.gather_vector, prepared, rows, step, before
            )
        swept[number].append(done)
        if reading and self.after_read is not None:
            self.after_read()

    def _report(
        self, swept: list[list[Any]], step: SweepStep, runs: list[PassTraffic], launched: float
    ) -> SweepReport:
        # A probe may sweep no tile of a stripe.
        sums = [self._sums(number, tiles, step) for number, tiles in enumerate(swept) if tiles]
        return SweepReport(sums, PassTraffic.of(runs), launched, time.perf_counter())

    def _sums(self, number: int, swept: list[Any], step: SweepStep) -> StripeSums:
        spec, rows = self.specs[number], self.states[number]
        sums = self.backend.sums(rows, swept, step)
        return method.StripeSums(
            rows=spec.rows,
            carry=step.damping * sums.carry[0],
            norm=sums.norm,
            with_change=sums.with_change,
            with_residual=sums.with_residual,
            peaks=sums.peaks,
            first=self.backend.first_row(rows, step.live) if spec.rows else np.zeros(1 + len(step.live)),
            balance=method.Balance(self._claims[number], sums.marks, sums.residual) if step.key else None,
        )

    def finish(self, state: State) -> Iterator[NDArray[np.float64]]:
        """Sum of p and r of each stripe's rows; what is left of a stripe is freed before the next one."""
        self.close_streams()
        for stripe in self.stripes:
            yield self.backend.finish(self.states.pop(0), state.carries[stripe])

    def close(self) -> None:
        """End what the streams of tiles are still doing, and free the rows."""
        self.close_streams()
        self.states.clear()

    def close_streams(self) -> None:
        """End what the streams of tiles are still doing, and free the tiles."""
        for stream in self.streams:
            stream.close()


def _pushes(begun: list[tuple[int, Any, Callable[[], PushSums]]]) -> list[StripePush]:
    return [StripePush(row_begin, stored, sums()) for row_begin, stored, sums in begun]


def sweep_step(job: Job, state: State, nodes: int, pushed: Sequence[PushSums]) -> SweepStep:
    """How the next pass of a run treats each tile; the first one adds marks up, too."""
    step = method.sweep_step(job.settings, state, nodes, pushed)
    return step if state.number else replace(step, key=job.mark_key)
