"""A run as each process has it, and the stripes that one backend computes: rows, stream of tiles, gathering.

A pass is a push of all stripes, then a sweep over the tiles of each, then a reduction of what they report::

    state ──> push(stripes 0, 1) ─┬─> sweep(stripes 0, 1) ─┬─> reduce ──> state
          └─> push(stripe 2)     ─┴─> sweep(stripe 2)     ─┘

Each sweep takes what all stripes have pushed; whoever adds those few sums gets the same numbers. Several
stripes are swept in sections, after which each gets what the rows of all others propose::

    sweep(stripe 0) = section 0 ─┬─proposals─> section 1 ─┬─proposals─> section 2 ──> ...
    sweep(stripe 1) = section 0 ─┴─proposals─> section 1 ─┴─proposals─> section 2 ──> ...

Tiles that processors sweep together stay open over the end of a section. What their rows propose by then is
exchanged, too, and they read what others propose before they are swept on.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from oocpr.engine import method
from oocpr.engine.backend import Streams, StripeSpec
from oocpr.engine.degree_check import claims_of
from oocpr.engine.devices import each_backend, make_backend
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.engine.tiles.source import split_tile, tiles_of, weight_scale_of
from oocpr.engine.tiles.stream import PassTraffic, TileStream, returned
from oocpr.engine.trace import COMPUTE
from oocpr.plan.partition import section_tiles
from oocpr.plan.residency import RING_SLOTS, reading_threads, ring_slots
from oocpr.store.checkpoint import CheckpointFolder
from oocpr.system import PIECE_ITEMS, in_background, usable_cores

if TYPE_CHECKING:
    from oocpr.engine.backend import (
        Backend,
        Floats,
        HostBackend,
        PushSums,
        ResidentPass,
        SeedBlock,
        SweepStep,
        TileSums,
    )
    from oocpr.engine.method import Balance, Claims, State, StripeSums
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore, WeightScale
    from oocpr.engine.tiles.stream import Tiles
    from oocpr.engine.trace import Trace
    from oocpr.plan.plan import Plan
    from oocpr.plan.tile_groups import GroupLayout


@dataclass(frozen=True)
class Job:
    """Everything a worker must know of a run, small enough to send to each.

    Parameters
    ----------
    path, identity
        Where a worker can open the graph's store, and which identity it has to have there.
    backend
        A name that `make_backend` takes, or, within this process, a backend; of several, one for each stripe.
    threads
        Threads that work on one tile; None for as many as the edges of the graph feed.
    teleport, start
        float64, shape (nodes,), sum to 1; None for uniform, and to begin from the teleport vector.
    kernel
        Product of a CUDA device; None for the default.
    weight_scale
        What weights are multiplied by; None for a graph without weights.
    trace
        Receives when each tile was read, sent and computed, within this process; None for nothing.
    layout
        Groups of tiles, if devices take them so; the run's tiles are these groups then.
    checkpoint, resumed
        Where checkpoints of the run are, and the pass after which it goes on from one; None for a new run.
    checksums
        What `StripeGroup.save` has returned of each stripe after that pass.
    copies, holders
        Name of the folders in which workers keep the run instead, and who has each stripe there.
    token
        Names the run inside a process.
    """

    path: str
    settings: Settings
    plan: Plan
    backend: str | Backend | tuple[str | Backend, ...] = "cpu"
    threads: int | None = None
    teleport: NDArray[np.float64] | None = None
    kernel: str | None = None
    start: NDArray[np.float64] | None = None
    weight_scale: WeightScale | None = None
    trace: Trace | None = None
    layout: GroupLayout | None = None
    identity: str | None = None
    checkpoint: str = ""
    resumed: int | None = None
    checksums: tuple[int, ...] = ()
    copies: str = ""
    holders: tuple[tuple[str, ...], ...] = ()
    token: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def of(
        cls,
        store: RankedStore,
        plan: Plan,
        settings: Settings,
        backend: str | Backend | tuple[str | Backend, ...],
        threads: int | None,
        kernel: str | None = None,
        *,
        path: str = "",
        **more: Any,
    ) -> Job:
        """Make the job of a run over an open graph, mixing and sweeps as they are planned."""
        settings = replace(settings, mixing=plan.mixing, sweeps=plan.sweeps) if settings.mixed else settings
        scale = weight_scale_of(store, settings.reads)
        layout = store.layout if isinstance(store, GroupedStore) else None
        return cls(
            path, settings, plan, each_backend(backend), threads, kernel=kernel, weight_scale=scale,
            layout=layout, **more,
        )  # fmt: skip

    @property
    def slots(self) -> int:
        """Passes that mixing remembers."""
        return self.plan.mixing if self.settings.mixed else 0

    @property
    def mark_key(self) -> int:
        """Key of the marks of `degree_check`: positive, below 2^63, and nobody's guess."""
        return int(self.token, 16) % (2**63 - 1) + 1

    @property
    def readers(self) -> int:
        """Threads that read tiles for one stripe."""
        return reading_threads(usable_cores(), past_cache=self.plan.direct and self.plan.streamed_bytes > 0)

    def make_backend(self, stripe: int) -> Backend:
        """Make what computes a stripe in this process."""
        name = self.backend[stripe] if isinstance(self.backend, tuple) else self.backend
        tiers = self.plan.devices[stripe] if self.plan.devices else None
        edges, streams = self.plan.stats.edges, self.plan.streamed_bytes > 0
        return make_backend(name, self.threads, self.kernel, tiers, edges=edges, streams=streams)

    def spec(self, store: RankedStore, stripe: int) -> StripeSpec:
        """Rows and tiles of one stripe."""
        first, last = self.plan.stripes[stripe]
        return StripeSpec(
            first_tile=first,
            last_tile=last,
            row_begin=int(store.tile_rows[first]),
            row_end=int(store.tile_rows[last]),
            nodes=store.nodes,
            slots=self.slots,
            proposals=self.settings.mixed and self.plan.proposals,
            reads=self.settings.reads,
            stored_tiles=0
            if self.layout is None
            else int(self.layout.bounds[last] - self.layout.bounds[first]),
            tile_rows=store.tile_rows[first : last + 1],
            exchanging=self.plan.exchanging and self.plan.keeps_open,
        )


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


Numbers = tuple[int, Any]
"""Narrow numbers of rows on their way to others, behind the first of these rows."""

Sweep = Generator[list[Numbers], None, Callable[[], SweepReport]]
"""A sweep under way. It yields what the rows of each section but the last propose, and goes on once this is
where rows gather; it returns what waits for the report."""


class StripeGroup:
    """The stripes of a run, following each other, that one backend of this process computes.

    Stripes write their proposals into the array that rows gather from while they sweep, each to its own rows
    and read by itself alone until its section ends; pushes change between passes only. A probe gives a
    `placement` of some tiles.
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
        self._tile_ends = [spec.last_tile for spec in self.specs]
        self.states: list[Any] = []
        self.after_tile: Callable[[bool], None] | None = None
        """Called after each tile that has been computed or launched, with whether it was read for that."""
        self._claims: list[Future[Claims]] = []
        self._mark_key = job.mark_key
        # Of each stripe, the first row that may propose something else than at the last exchange, and what it
        # and those behind it proposed then.
        self._shown: list[tuple[int, Any]] = []
        self._whole_pass: ResidentPass | None = None
        self.gather_vector = backend.allocate_reads(store.nodes, job.settings.reads, self.specs[0].proposals)
        trace = job.trace
        if trace is not None and isinstance(job.backend, tuple):
            trace = trace.part(f"device {stripes[0]}")
        placements = self._planned_placements() if placement is None else [placement]
        self._comes_as_one = len(placements) == 1 == len(placements[0].tiles) == len(placements[0].on_device)
        # Of each section, by stripes.
        self._sections = self._cut(frozenset[int]().union(*(placed.tiles for placed in placements)))
        if len(self._sections) > 1 and len(placements) == 1:
            in_order = [tile for section in self._sections for tiles in section for tile in tiles]
            placements = [placements[0]._replace(tiles=in_order)]
        self._exchanged = {tile for section in self._sections[1:] for tiles in section for tile in tiles}
        self.streams = [self._open_stream(number, each, trace) for number, each in enumerate(placements)]
        # A device with a stream of its own measures by itself when it computes.
        self._trace = trace if isinstance(self.streams[0], TileStream) else None

    def _planned_placements(self) -> list[TilePlacement]:
        """Of each stripe that a device has planned room for, or else of all together."""
        plan = self._job.plan
        if plan.devices and isinstance(self.backend, Streams):
            ranges = [range(spec.first_tile, spec.last_tile) for spec in self.specs]
            return [
                TilePlacement(tiles, *plan.devices[stripe].places(tiles))
                for stripe, tiles in zip(self.stripes, ranges, strict=True)
            ]
        resident = (plan.resident(stripe) for stripe in self.stripes)
        tiles = range(self.specs[0].first_tile, self.specs[-1].last_tile)
        return [TilePlacement(tiles, frozenset(), frozenset().union(*resident))]

    def _cut(self, placed: frozenset[int]) -> list[list[list[int]]]:
        stripes, count = [(spec.first_tile, spec.last_tile) for spec in self.specs], self._job.plan.sections
        return [
            [[tile for tile in section_tiles(stripe, count, number) if tile in placed] for stripe in stripes]
            for number in range(count)
        ]

    def _open_stream(self, number: int, placement: TilePlacement, trace: Trace | None) -> Tiles:
        job, store, backend = self._job, self._store, self.backend
        plan, scale, source = job.plan, job.weight_scale, tiles_of(store)
        tiles, on_device, in_memory = placement
        if plan.devices and isinstance(backend, Streams):
            tiers = plan.devices[self.stripes[number]]
            assert job.layout is not None, "a plan for devices has groups"
            return backend.open_stream(
                source,
                tiles,
                store.nodes,
                layout=job.layout,
                on_device=on_device,
                in_host=in_memory - on_device,
                slots=tiers.slots,
                readers=tiers.readers,
                buffers=ring_slots(tiers.readers),
                trace=trace,
                direct=plan.direct,
                factor=None if scale is None else scale.factor,
            )

        host = cast("HostBackend", backend)

        def prepare(_: int, encoded: NDArray[np.uint8], stays: bool) -> Any:
            decoded = stays and plan.decoded
            # Of a tile that stays decoded no bytes are needed once it has been swept, which follows at once.
            own = encoded.copy() if stays and not decoded else encoded
            if scale is None:
                return host.prepare(own, store.nodes, decoded)
            return host.prepare_weighted(*split_tile(own), scale.factor, store.nodes, decoded)

        return TileStream(
            source, tiles, in_memory, RING_SLOTS, job.readers, prepare, trace=trace, direct=plan.direct
        )

    def allocate(self) -> None:
        """Make the states of all rows."""
        job, store = self._job, self._store
        for spec in self.specs:
            # What the ranks are divided by: out-degrees, or the weights that leave each row.
            divisors: NDArray[Any]
            if job.weight_scale is None:
                divisors = store.out_degree(spec.row_begin, spec.row_end)
            else:
                divisors = store.out_weight(spec.row_begin, spec.row_end)
                divisors *= job.weight_scale.factor
            key = 0 if isinstance(self.backend, Streams) else job.mark_key
            # Meanwhile a device gets them, and begins to sweep; weights are written to by backends.
            meanwhile = spec.rows > PIECE_ITEMS and job.weight_scale is None
            self._claims.append(_begun(partial(claims_of, store, spec, divisors, key), meanwhile=meanwhile))
            rows = slice(spec.row_begin, spec.row_end)
            teleport, start = (None if whole is None else whole[rows] for whole in (job.teleport, job.start))
            self.states.append(self.backend.allocate(spec, divisors, teleport, start))
        if job.resumed is not None:
            self._restore(job.resumed)

    def restart(self, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Make the states of all rows, which were finished, as they were before a run, with such weights."""
        # The tiles were compared with what the store says of them.
        self._mark_key = 0
        for spec, state in zip(self.specs, self.states, strict=True):
            own = (rows >= spec.row_begin) & (rows < spec.row_end)
            self.backend.restart(state, rows[own] - spec.row_begin, weights[own])

    def save(self, number: int) -> dict[int, int]:
        """Write what the pass `number` has left of each stripe to the checkpoint; returns their checksums."""
        folder, checksums = CheckpointFolder(self._job.checkpoint), {}
        for stripe, state in zip(self.stripes, self.states, strict=True):
            kept = self.backend.kept(state).items()
            # One after the other: of what a device has, the host has room for one.
            arrays = ((name, self.backend.bring(array)) for name, array in kept)
            checksums[stripe] = folder.write_arrays(number, stripe, arrays)
        return checksums

    def _restore(self, number: int) -> None:
        folder = CheckpointFolder(self._job.checkpoint)
        for stripe, state in zip(self.stripes, self.states, strict=True):
            kept = self.backend.kept(state)
            wanted = ((name, array.dtype, array.size) for name, array in kept.items())
            read = folder.read_arrays(number, stripe, wanted, self._job.checksums[stripe])
            # The reader comes first: it is asked once more, and compares checksums then.
            for values, array in zip(read, kept.values(), strict=True):
                self.backend.put(array, values)

    @property
    def all_resident(self) -> bool:
        """Whether all tiles are where they stay, so that a pass reads nothing."""
        return all(stream.all_resident for stream in self.streams)

    def begin_push(self, state: State) -> Callable[[], list[StripePush]]:
        """Have the backend begin to make the next push of each stripe; returns what waits for them."""
        begun = []
        for stripe, spec, rows in zip(self.stripes, self.specs, self.states, strict=True):
            step = method.push_step(self._job.settings, state, stripe)
            begun.append((spec.row_begin, *self.backend.make_push(rows, step)))
        return partial(_pushes, begun)

    def load(self, pushes: Iterable[Numbers]) -> None:
        """Put pushes where rows gather."""
        for row_begin, stored in pushes:
            self.backend.load(self.gather_vector, row_begin, stored)

    def put_proposals(self, proposals: Iterable[Numbers]) -> None:
        """Put what rows of a section propose where others gather it."""
        for row_begin, stored in proposals:
            self.backend.put_proposals(self.gather_vector, row_begin, stored)

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

    def sweep(self, state: State, pushed: Sequence[PushSums], *, bring: bool = True) -> Sweep:
        """Deliver what is loaded to every tile, in order, and propose the next push.

        A device is still at it when this returns; who asks for the report waits until all is done.
        """
        begun = time.perf_counter()
        job = self._job
        step = method.sweep_step(job.settings, state, self._store.nodes, pushed, self._mark_key)
        swept: list[list[Any]] = [[] for _ in self.specs]
        runs: list[PassTraffic] = []
        if job.plan.exchanges:
            tiles_of_all = [stream.steps(self._computing(swept, step, stream)) for stream in self.streams]
            runs, launched = yield from self._sweep_sections(tiles_of_all, step)
            return partial(self._report, swept, step, runs, launched)
        for number, stream in enumerate(self.streams):
            for _ in self.each_partition(bring=bring):
                # The sums are of what the last partition leaves.
                for tiles in swept if len(self.streams) == 1 else [swept[number]]:
                    tiles.clear()
                runs.append(stream.run(self._computing(swept, step, stream)))
        return partial(self._report, swept, step, runs, time.perf_counter() - begun)

    def _sweep_sections(
        self, streams: Sequence[Generator[None, None, PassTraffic]], step: SweepStep
    ) -> Generator[list[Numbers], None, tuple[list[PassTraffic], float]]:
        """Sweep section after section; what was read, and seconds without what others are waited for."""
        exchanges, launched = self._job.plan.exchanges, 0.0
        self._shown = [(spec.row_begin, None) for spec in self.specs]
        for section, parts in enumerate(self._sections):
            proposals: list[Numbers] = []
            for number, tiles in enumerate(parts):
                begun = time.perf_counter()
                for _ in tiles:
                    next(streams[number % len(streams)])
                launched += time.perf_counter() - begun
                # Stripes that follow here would read what stripes on other backends do not have yet.
                if tiles and (section < exchanges or number < len(parts) - 1):
                    proposals.append(self._take_proposals(number, tiles, step))
            if section < exchanges:
                yield proposals
                begun = time.perf_counter()
                self._reread(step)
                launched += time.perf_counter() - begun
        return [returned(stream) for stream in streams], launched

    def _take_proposals(self, number: int, tiles: Sequence[int], step: SweepStep) -> Numbers:
        """Take what rows propose since the last exchange; others read what they knew until the next one."""
        vector, bounds = self.gather_vector, self._store.tile_rows
        first, last = int(bounds[tiles[0]]), int(bounds[tiles[-1] + 1])
        if isinstance(self.backend, Streams):
            return first, self.backend.take_proposals(vector, first, last)
        host = cast("HostBackend", self.backend)
        first, known = self._shown[number]
        first_open = host.show_open(self.states[number], vector, last, step)
        taken = host.take_proposals(vector, first, last)
        if known is not None:
            host.put_proposals(vector, first, known)
        self._shown[number] = first_open, taken[first_open - first :]
        return first, taken

    def _reread(self, step: SweepStep) -> None:
        for state in () if isinstance(self.backend, Streams) else self.states:
            cast("HostBackend", self.backend).reread(state, self.gather_vector, step)

    @property
    def takes_whole_passes(self) -> bool:
        """Whether the next pass may be `run_pass`: nothing is exchanged with other stripes.

        Nor is anything read, but what comes as one, of which nothing can be computed before all is there.
        """
        backend = self.backend
        alone = len(self._job.plan.stripes) == 1 and isinstance(backend, Streams) and backend.slices == 1
        return alone and (self._comes_as_one or self.all_resident)

    def run_pass(self, state: State) -> tuple[PushSums, SweepReport]:
        """Push and sweep, which the backend takes as one."""
        begun = time.perf_counter()
        job, (spec,), (rows,), (claims,) = self._job, self.specs, self.states, self._claims
        push = method.push_step(job.settings, state, 0)
        step = method.sweep_step(job.settings, state, self._store.nodes, None, self._mark_key)
        if self._whole_pass is None:
            backend = cast("Streams", self.backend)
            (stream,), bounds = self.streams, self._store.tile_rows
            self._whole_pass = backend.resident_pass(rows, self.gather_vector, stream, bounds, push, step)
        pushed, sums, traffic = self._whole_pass.run(push, step)
        report = self._stripe_sums(spec, rows, claims, sums, step)
        ended = time.perf_counter()
        return pushed, SweepReport([report], traffic, ended - begun, ended)

    def _computing(
        self, swept: list[list[Any]], step: SweepStep, stream: Tiles
    ) -> Callable[[int, Any], None]:
        steps = step, step._replace(exchanged=True)
        return partial(self._sweep_tile, swept, steps, not stream.all_resident)

    def _sweep_tile(
        self, swept: list[list[Any]], steps: Sequence[SweepStep], reading: bool, tile: int, prepared: Any
    ) -> None:
        step = steps[tile in self._exchanged]
        number = bisect_right(self._tile_ends, tile)
        before = swept[number][-1] if swept[number] else None
        rows = (int(self._store.tile_rows[tile]), int(self._store.tile_rows[tile + 1]))
        trace = self._trace
        with nullcontext() if trace is None else trace.span(COMPUTE, f"tile {tile}"):
            done = self.backend.sweep_tile(
                self.states[number], self.gather_vector, prepared, rows, step, before
            )
        swept[number].append(done)
        if self.after_tile is not None:
            self.after_tile(reading)

    def _report(
        self, swept: list[list[Any]], step: SweepStep, runs: list[PassTraffic], launched: float
    ) -> SweepReport:
        reports = []
        for spec, rows, claims, tiles in zip(self.specs, self.states, self._claims, swept, strict=True):
            if not tiles:  # a probe may sweep no tile of a stripe
                continue
            reports.append(self._stripe_sums(spec, rows, claims, self.backend.sums(rows, tiles, step), step))
        return SweepReport(reports, PassTraffic.of(runs), launched, time.perf_counter())

    def _stripe_sums(
        self, spec: StripeSpec, rows: Any, claims: Future[Claims], sums: TileSums, step: SweepStep
    ) -> StripeSums:
        first = self.backend.first_row(rows, step.live) if spec.rows else (0.0,) * (1 + len(step.live))
        balance = method.Balance(claims.result(), sums.marks, sums.residual) if step.key else None
        return stripe_sums(spec, sums, step, first, balance)

    def seed_block(self, lanes: int) -> SeedBlock:
        """Runs side by side, one of which takes the rows of this one, which ends with that."""
        backend = cast("Streams", self.backend)
        return backend.seed_block(self.states[0], self.streams[0], self._store.tile_rows, lanes)

    def finish(
        self, state: State, out: NDArray[np.float64] | None = None, *, again: bool = False
    ) -> NDArray[np.float64]:
        """Sum of p and r of the rows of all stripes, in `out` if it is given.

        `again`: whether `restart` follows, and another run.
        """
        if not again:
            self.close_streams()
            self._whole_pass = None
        at, made, states = 0, [], self.states.copy() if again else self.states
        for stripe, spec in zip(self.stripes, self.specs, strict=True):
            part = None if out is None else out[at : at + spec.rows]
            # What is left of a stripe is freed before the next one's ranks, or all of them, take memory.
            made.append(self.backend.finish(states.pop(0), state.carries[stripe], part))
            at += spec.rows
        if out is None:
            out = made[0] if len(made) == 1 else np.concatenate(made)
        return out

    def close(self) -> None:
        """End what the streams of tiles are still doing, and free tiles and rows."""
        self.close_streams()
        wait(self._claims)
        self._whole_pass = None
        self.states.clear()

    def close_streams(self) -> None:
        """End what the streams of tiles are still doing, and free the tiles."""
        for stream in self.streams:
            stream.close()


def stripe_sums(
    spec: StripeSpec, sums: TileSums, step: SweepStep, first: Floats, balance: Balance | None = None
) -> StripeSums:
    """What a stripe reports of its tiles; `first` is what is told of its first row."""
    return method.StripeSums(
        rows=spec.rows,
        carry=step.damping * sums.carry[0],
        norm=sums.norm,
        with_change=sums.with_change,
        with_residual=sums.with_residual,
        peaks=sums.peaks,
        first=first,
        balance=balance,
    )


def _begun(work: Callable[[], Claims], *, meanwhile: bool) -> Future[Claims]:
    """Have a thread work, if it is to do so while the caller goes on."""
    if meanwhile:
        return in_background(work, "oocpr-claims")
    done: Future[Claims] = Future()
    done.set_result(work())
    return done


def _pushes(begun: list[tuple[int, Any, Callable[[], PushSums]]]) -> list[StripePush]:
    return [StripePush(row_begin, stored, sums()) for row_begin, stored, sums in begun]
