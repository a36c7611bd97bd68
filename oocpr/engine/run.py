"""The outer loop: pass, reduce, decide."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import numpy as np

from oocpr.engine.checkpoint import KeptRun, Resumed
from oocpr.engine.devices import check_weighted
from oocpr.engine.executors.local import LocalBackends, LocalExecutor
from oocpr.engine.executors.seed_lanes import lanes_of, rank_side_by_side
from oocpr.engine.method import Solution, as_distribution
from oocpr.engine.reduction import first_state, is_over
from oocpr.engine.stripe import Job
from oocpr.errors import LostError, OocprError, StoppedError, UsageError
from oocpr.plan.forecast import passes_from
from oocpr.plan.memory import SEGMENTED_METHODS
from oocpr.progress import silent
from oocpr.system import release_frames
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.backend import Backend
    from oocpr.engine.checkpoint import Checkpoints
    from oocpr.engine.executors.local import Executor
    from oocpr.engine.method import PassRecord, State
    from oocpr.engine.scc.personal import SeedVectors
    from oocpr.engine.scc.run import SccGraph
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.engine.trace import Trace
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress


_LOG = logging.getLogger(__name__)

MAX_LOSSES = 3
"""Times that a run goes on after it has lost workers and has not come any further since."""


def rank_graph(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    *,
    path: str = "",
    client: Any = None,
    backend: str | Backend | tuple[str | Backend, ...] = "cpu",
    threads: int | None = None,
    kernel: str | None = None,
    teleport: NDArray[np.float64] | None = None,
    start: NDArray[np.float64] | None = None,
    decoded: dict[str, SccGraph] | None = None,
    trace: Trace | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress = silent,
) -> Solution:
    """Rank a graph.

    Parameters
    ----------
    path, client
        A ``distributed.Client``, whose workers open the graph there; None to work in this process.
    backend
        A name that `make_backend` takes; without a client also names of several CUDA devices, as
        `named_devices` takes them, or a backend itself, or several of them: one for each stripe.
    threads, kernel, teleport, start, trace
        See `Job`.
    decoded
        Where method ``components`` leaves the graph in memory for later runs in this process; None to forget.
    checkpoints
        What is kept of the run meanwhile, and from what it goes on; None for nothing.
    progress
        Called after every pass.

    Raises
    ------
    DoesNotFitError
        If the plan does not fit its memory.
    DamagedError
        If a tile's bytes are not what was written.
    StoppedError
        If the time limit is up; KeyboardInterrupt if a signal came and there are checkpoints.
    UsageError
        If the graph is weighted and the method, the reads or the kernel cannot have that, or a checkpoint is
        of another run.
    ReplacedError, SetupError
        If the store was replaced so that not all of the opened graph can be read, or a worker has another
        graph at the path, or none, or another version of this package.
    """
    plan.validate()
    if client is not None:
        from oocpr.engine.executors.dask_client import check_versions

        check_versions(client)
    if trace is not None and (client is not None or settings.method == "components"):
        raise UsageError(
            "a run of workers, or of method components, has no timeline of tiles.",
            "Use another method in this process, such as mixed, or leave the trace out.",
        )
    if store.weights is not None:
        check_weighted(settings.method, kernel)
    if settings.method == "components":
        if backend != "cpu":
            raise UsageError(f"method components does not run on {backend}.", "Use method mixed there.")
        with release_frames():
            if client is None:
                return _rank_in_memory(store, settings, threads, teleport, start, decoded, progress)
            from oocpr.engine.executors.dask import rank_on_worker

            return rank_on_worker(client, path, store.identity, settings, threads, teleport, start)
    if settings.method in SEGMENTED_METHODS:
        from oocpr.engine.cpms.run import rank_segmented

        assert isinstance(backend, str), "segmented methods take the name of a device"
        with release_frames():
            return rank_segmented(store, plan, settings, backend, threads, progress, kernel=kernel)
    identity = None if client is None else store.identity
    job = Job.of(
        store, plan, settings, backend, threads, kernel,
        path=path, teleport=teleport, start=start, trace=trace, identity=identity,
    )  # fmt: skip
    with release_frames():
        return _solve_tiles(job, store, client, checkpoints, progress)


class SeedRanks(NamedTuple):
    """What was found for the seed of a number.

    `largest`: rows and values of the largest ranks, if only those were wanted and found; the solution has no
    ranks then.
    """

    number: int
    solution: Solution
    largest: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None


def rank_each(
    store: RankedStore,
    plan: Plan,
    settings: Settings,
    seeds: SeedVectors,
    shown: Callable[[int], Progress],
    *,
    path: str,
    decoded: dict[str, SccGraph],
    top: int | None = None,
    **how: Any,
) -> Iterator[SeedRanks]:
    """Rank a graph in this process for each of many teleport vectors: what fits into memory stays.

    They are ranked one after the other or, where all stays on a device that has room, side by side, and may
    overtake each other then. `shown` gives what is told of the run that comes after so many; `top` is how
    many of the largest ranks are wanted at most. The others are as for `rank_graph`, which is called for each
    with method ``components``.
    """
    if settings.method == "components":
        for number, teleport in enumerate(seeds.dense(store.nodes)):
            solution = rank_graph(
                store, plan, settings, path=path, teleport=teleport, decoded=decoded,
                progress=shown(number), **how,
            )  # fmt: skip
            yield SeedRanks(number, solution)
        return
    plan.validate()
    if store.weights is not None:
        check_weighted(settings.method, how["kernel"])
    job = Job.of(store, plan, settings, path=path, **how)
    with release_frames(), ExitStack() as stack:
        if not len(seeds):
            return
        job = replace(job, teleport=next(seeds.dense(store.nodes)))
        executor = stack.enter_context(_opened(job, store))
        lanes = lanes_of(job, len(seeds))
        if lanes > 1:
            # The tiles have to be there, and be what the store says: a pass of a run sees to that.
            state = first_state(job, store.nodes, seeds.of(0)[1])
            _shown(job, executor, [], shown(0))
            executor.run_passes(state, lambda _: None, lambda: True)
            yield from _rank_in_lanes(job, executor, seeds, lanes, top, shown)
            return
        for number in range(len(seeds)):
            begun, (rows, weights) = time.perf_counter(), seeds.of(number)
            if number:
                executor.restart(rows, weights)
            resumed = Resumed(first_state(job, store.nodes, weights), [])
            state, history = _run_passes(job, store, executor, resumed, None, shown(number))
            largest = None if top is None else executor.largest(state, top)
            ranks = None if largest else executor.finish(state, again=True)
            yield SeedRanks(number, _solution(job, executor, state, history, ranks, begun), largest)
            del ranks


def _rank_in_lanes(
    job: Job,
    executor: LocalExecutor,
    seeds: SeedVectors,
    lanes: int,
    top: int | None,
    shown: Callable[[int], Progress],
) -> Iterator[SeedRanks]:
    def note(done: float) -> None:
        shown(int(done))("ranking", done % 1, 1, "passes")

    for run, ranks, largest in rank_side_by_side(job, executor.groups[0], seeds, lanes, top, note):
        solution = _solution(job, executor, run.state, run.history, ranks, run.begun)
        yield SeedRanks(run.number, solution, largest)


def _solve_tiles(
    job: Job, store: RankedStore, client: Any, checkpoints: Checkpoints | None, progress: Progress
) -> Solution:
    if client is None:
        return _solve_kept(job, store, client, checkpoints, progress)
    from oocpr.engine.executors.dask import remove_all_copies

    kept = KeptRun() if checkpoints is None else checkpoints
    try:
        return _solve_kept(job, store, client, kept, progress)
    finally:
        if kept.copied:
            remove_all_copies(client, kept.name)


def _solve_kept(
    job: Job, store: RankedStore, client: Any, kept: KeptRun | None, progress: Progress
) -> Solution:
    """Carry a run out; if it loses workers, those that are left go on from what was kept of it."""
    from oocpr.engine.executors.dask_client import wait_for_workers

    begun, lost_after, losses = time.perf_counter(), -1, 0
    while True:
        resumed = None
        if kept is not None:
            resumed = kept.resume(job, store)
            begun -= 0.0 if losses else kept.seconds_before
            job = replace(
                job, checkpoint=kept.path, resumed=kept.number, checksums=kept.checksums,
                holders=kept.holders, copies="" if client is None or kept.path else kept.name,
                token=uuid4().hex,
            )  # fmt: skip
        try:
            return _solve_from(job, store, client, resumed, kept, begun, progress)
        except StoppedError:
            raise
        except _HasGrownError:
            assert kept is not None, "it was kept"
            _LOG.info("the run goes on after pass %d with all workers that there are now", kept.number)
        except OocprError as error:
            if kept is None:
                raise
            number = kept.number or 0
            losses = 1 if number > lost_after else losses + 1
            lost_after = number
            if not isinstance(error, LostError) or client is None or losses > MAX_LOSSES:
                kept.add_hint(error)
                raise
            if losses > 1:
                kept.forget()
            _LOG.warning("%s The run goes on after pass %d.", error.cause, kept.number or 0)
            wait_for_workers(client, len({tiers.device for tiers in job.plan.devices}) or 1)


def _solve_from(
    job: Job,
    store: RankedStore,
    client: Any,
    resumed: Resumed | None,
    kept: KeptRun | None,
    begun: float,
    progress: Progress,
) -> Solution:
    """Carry a run out from the beginning or from where it was resumed."""
    if resumed is None:
        resumed = Resumed(first_state(job, store.nodes), [])
    with ExitStack() as stack:
        executor: Executor
        if client is None:
            executor = stack.enter_context(_opened(job, store))
        else:
            from oocpr.engine.executors.dask import DaskExecutor

            executor = DaskExecutor(job, client)
            stack.callback(executor.close)
        if kept is not None:
            stack.enter_context(kept.stopping())
        state, history = _run_passes(job, store, executor, resumed, kept, progress)
        return _solution(job, executor, state, history, executor.finish(state), begun)


@contextmanager
def _opened(job: Job, store: RankedStore) -> Iterator[LocalExecutor]:
    """What carries a run out in this process, the states of all rows made."""
    with ExitStack() as stack:
        backends = LocalBackends(job, several=isinstance(job.backend, tuple))
        stack.callback(backends.close)
        executor = LocalExecutor(job, store, backends)
        stack.callback(executor.close)
        executor.allocate()
        yield executor


def _shown(job: Job, executor: Executor, history: list[PassRecord], progress: Progress) -> RunProgress:
    """What shows how far passes are, of which a history has those that are done."""
    shown = RunProgress(progress, job, history)
    if isinstance(executor, LocalExecutor):
        for group in executor.groups:
            group.after_tile = shown.take_tile
    return shown


def _solution(
    job: Job,
    executor: Executor,
    state: State,
    history: list[PassRecord],
    ranks: NDArray[np.float64] | None,
    begun: float,
) -> Solution:
    settings = job.settings
    bound = settings.bound(state.residuals[-1], state.growth)
    peak, peak_device = executor.peak_memory(), executor.peak_device_memory()
    preparing = executor.preparing_seconds()
    return Solution(
        ranks=np.empty(0)
        if ranks is None
        else as_distribution(ranks, bound, state.total or None, state.growth),
        error_bound=bound,
        converged=settings.satisfied(state.residuals[-1], state.growth),
        history=tuple(history),
        method=settings.method,
        reads=settings.reads,
        damping=settings.damping,
        tol=settings.tol,
        seconds=time.perf_counter() - begun,
        peak_memory=peak,
        peak_device_memory=peak_device,
        preparing_seconds=preparing,
    )


def _rank_in_memory(
    store: RankedStore,
    settings: Settings,
    threads: int | None,
    teleport: NDArray[np.float64] | None,
    start: NDArray[np.float64] | None,
    decoded: dict[str, SccGraph] | None,
    progress: Progress,
) -> Solution:
    from oocpr.engine.scc.run import decoded_graph, rank_components

    begun = time.perf_counter()
    graph, bytes_read = decoded_graph(store, threads, {} if decoded is None else decoded)
    return rank_components(graph, settings, threads, begun, bytes_read, progress, teleport, start)


def _run_passes(
    job: Job,
    store: RankedStore,
    executor: Executor,
    resumed: Resumed,
    kept: KeptRun | None,
    progress: Progress,
) -> tuple[State, list[PassRecord]]:
    settings, (state, history) = job.settings, resumed
    shown = _shown(job, executor, history, progress)
    movable = True  # whether other workers can have what is kept of the run

    def note(record: PassRecord) -> None:
        history.append(record)
        shown.end_pass()

    def ending() -> bool:
        seconds = history[-1].seconds if history else 0.0
        return kept is not None and (kept.due(seconds) or (movable and executor.has_grown()))

    while not is_over(settings, state):
        state = executor.run_passes(state, note, ending)
        if kept is not None and not is_over(settings, state):
            kept.keep(job, store, executor, state, history)
            kept.check_end(state.number, history[-1].seconds)
            if executor.has_grown():
                movable = kept.number == state.number
                if movable:
                    raise _HasGrownError
    if kept is not None and not settings.satisfied(state.residuals[-1], state.growth):
        kept.keep(job, store, executor, state, history)
        kept.unfinished = True
    return state, history


class _HasGrownError(Exception):
    """There are more workers than the run has."""


class RunProgress:
    """Shows how far a run is: passes that are done, all in its history, and what part of the next one."""

    def __init__(self, progress: Progress, job: Job, history: list[PassRecord]) -> None:
        self._progress, self._job, self._history = progress, job, history
        self._tiles = job.plan.stats.tiles * job.plan.partitions
        self._total, self._note, self._taken = job.plan.passes, "", count(1)

    def end_pass(self) -> None:
        """Show that the last pass of the history is done."""
        if self._progress is silent:
            return
        settings, plan, record = self._job.settings, self._job.plan, self._history[-1]
        # How many are left is predicted by how the error has fallen so far.
        errors = [done.bound if settings.stop == "certified" else done.residual for done in self._history]
        self._total = passes_from(errors, settings.tol, plan.passes)
        speed = plan.stats.edges * record.gathers / record.seconds / 1e9
        self._note = f"bound {record.bound:.1e}, {speed:.2f} GTEPS"
        if record.bytes_read:
            self._note += f", {format_bytes(int(record.bytes_read / record.seconds))}/s from the store"
        self._taken = count(1)
        self._progress("ranking", record.number, self._total, "passes", self._note)

    def take_tile(self, _: bool) -> None:
        """Show that a pass has come a tile further, before its last one; any thread may."""
        part = next(self._taken) / self._tiles
        if part < 1:
            self._progress("ranking", len(self._history) + part, self._total, "passes", self._note)
