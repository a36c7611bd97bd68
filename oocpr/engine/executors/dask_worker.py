"""A run as tasks of workers: each has some stripes in an actor, and does one epoch of passes after another.

An epoch is as many passes as take a second or two, one if a pass takes longer: a task per worker, and one
that adds up what the last pass has left and decides how the run goes on::

    sweep-0, epoch 0 ─┬─> reduce, epoch 0 ─┬─> sweep-0, epoch 1 ─┬─> reduce, epoch 1 ─> ...
    sweep-1, epoch 0 ─┘                    └─> sweep-1, epoch 1 ─┘

Within an epoch workers send each other what they push, and the first of them adds up and decides::

    worker 0: push ─┬─pushes─> worker 1 ─┬─> sweep ─┬─> reduce ─state─> worker 1
    worker 1: push ─┴─pushes─> worker 0 ─┴─> sweep ─┘

and what rows propose after each section of a sweep but the last.

Dask's scheduler, which needs tens of milliseconds for a pass of such tasks, has no part in that. If devices
of the workers reach each other, pushes go from device to device, and only their sums from worker to worker.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future as ConcurrentFuture
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from oocpr.engine.backend import Streams
from oocpr.engine.cpu.threads import default_threads
from oocpr.engine.cuda.device import download
from oocpr.engine.executors.dask_client import RANK_AGAIN
from oocpr.engine.executors.dask_copies import WorkerCopies
from oocpr.engine.executors.dask_groups import drop_reserved, join_group, keep_group
from oocpr.engine.executors.shared_memory import SharedAddress, find_shared
from oocpr.engine.reduction import PassReport, is_over, record_pass, reduce_pass
from oocpr.engine.stripe import StripeGroup
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.engine.tiles.stream import returned
from oocpr.errors import LostError
from oocpr.progress import silent
from oocpr.store.checkpoint import CheckpointFolder
from oocpr.system import peak_resident

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.backend import PushSums
    from oocpr.engine.cuda.communication import Communicator
    from oocpr.engine.executors.dask_groups import Place
    from oocpr.engine.method import PassRecord, Solution, State
    from oocpr.engine.settings import Settings
    from oocpr.engine.stripe import Job, Numbers, StripePush, Sweep, SweepReport
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.store.graph import GraphStore

_LOG = logging.getLogger(__name__)

FIRST_SECONDS = 0.5
"""What the first epoch takes at most: runs that take no longer have no other, which takes 20 ms to begin."""

MAIL_TIMEOUT = 5.0
"""Seconds after which a worker that waits for others asks whether anybody still wants it."""

TOPIC = "oocpr"
"""Under which each pass is an event of the scheduler."""

Subject = tuple[int, str, int]
"""Pass that something is sent in, what it is, and the rank of the worker that sends it."""

_OPEN: WeakSet[StripeWorker] = WeakSet()
_CLOSED: deque[str] = deque(maxlen=100)
"""Tokens of the last runs: a worker may be told that a run is over before it has its stripes."""
_LOCK = threading.Lock()

SHOWN = ("oocpr pass", "oocpr bound", "oocpr GTEPS")
"""Metrics of a worker that has stripes, columns of the dashboard's table of workers."""

PUSH, PROPOSED, REPORT, TURN = "push", "proposed", "report", "turn"


@dataclass(frozen=True)
class Decision:
    """How a run goes on after an epoch: it is over, or the next epoch has passes, or a `single` one.

    `seconds` are what an epoch shall take, `records` those of the passes since the decision before. `fresh`:
    whether the client has decided.
    """

    state: State
    seconds: float
    records: tuple[PassRecord, ...] = ()
    single: bool = False
    over: bool = False
    fresh: bool = False


class LastPass(NamedTuple):
    """The last pass of an epoch: what all stripes pushed, what those of one worker report, and seconds."""

    pushed: list[PushSums]
    report: SweepReport
    seconds: float


class EpochReport(NamedTuple):
    """What a worker has after an epoch: a state, and a pass since then that is not added up, if any."""

    state: State
    records: list[PassRecord]
    last: LastPass | None
    paused: bool


class Then(Enum):
    """How an epoch goes on after a pass."""

    ON, LAST, END = "on", "with its last pass", "not"


class Turn(NamedTuple):
    """What all workers have to know after a pass."""

    state: State
    record: PassRecord
    then: Then


@dataclass(frozen=True)
class WorkerAddress:
    """Address of a worker that has stripes, and the key of its actor there."""

    worker: str
    key: str


class StripeWorker:
    """Some stripes of a run, on the worker that owns them; made by a task of that worker."""

    def __init__(
        self,
        job: Job,
        stripes: Sequence[int],
        rank: int,
        addresses: Sequence[WorkerAddress],
        places: Sequence[Place] = (),
    ) -> None:
        from distributed import get_worker

        self.token = job.token
        self._job = job = replace(job, threads=_own_threads(job))
        self._worker: Any = get_worker()
        # In the order of their stripes, which is that of their ranks.
        self._own, self._rank = addresses[rank], rank
        self._others = [*addresses[:rank], *addresses[rank + 1 :]]
        self._mail = _Mail(self._given_up)
        self._number = job.resumed or 0  # passes that its rows have had
        self._pausing = False
        self._communicator: Communicator | None = None
        self._place = places[rank] if places else None
        self._finished = False
        # Whether devices send each other their pushes, and only sums go from actor to actor.
        self._device_to_device = False
        self._own_push: Any = None
        # The worker's own threads are for tasks, and its event loop has to stay free.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oocpr-stripes")
        stored = open_on_worker(job.path, job.identity)
        self._nodes = stored.nodes
        store: RankedStore = stored if job.layout is None else GroupedStore(stored, job.layout)
        self._backend = job.make_backend(stripes[0])
        self._copies: WorkerCopies | None = None
        if job.copies:
            self._copies = WorkerCopies(self._worker, job.copies)
            self._job = job = replace(job, checkpoint=str(self._copies.path))
        try:
            if self._place is not None:
                # While the rest is made.
                backend: Any = self._backend
                self._communicator = join_group(self.token, self._own.worker, self._place, backend)
            if self._copies is not None and job.resumed is not None:
                for stripe in stripes:
                    fetched = self._copies.fetch(job.resumed, stripe, job.holders[stripe])
                    self._in_loop(fetched).result()
            self._group = StripeGroup(job, store, self._backend, stripes)
            self._group.allocate()
            with _LOCK:
                if self.token in _CLOSED:
                    raise LostError("the run was given up.", RANK_AGAIN)
                _OPEN.add(self)
        except BaseException:
            # Nobody has this worker, so nobody can close it.
            self.close()
            raise

    async def run_epoch(self, decision: Decision) -> EpochReport:
        """Do the passes of an epoch with the others.

        Raises LostError if this worker does not have the rows that the decision is of.
        """
        state, last = decision.state, decision.single
        records: list[PassRecord] = []
        if state.number != self._number:
            raise LostError(
                f"worker {self._own.worker} has the rows after pass {self._number}, not {state.number}.",
                RANK_AGAIN,
            )
        if decision.fresh:
            self._pausing = False
        if decision.records:
            self._show(decision.records[-1])
        # Of a first epoch nobody knows what passes take, and somebody waits to see the first.
        length = min(FIRST_SECONDS, decision.seconds) if decision.fresh else decision.seconds
        until = time.perf_counter() + length
        while True:
            at = time.perf_counter()
            pushed, report = await self._pass(state)
            seconds = time.perf_counter() - at
            if last:
                self._number = state.number + 1
                return EpochReport(state, records, LastPass(pushed, report, seconds), self._pausing)
            state, record, then = await self._decide(state, pushed, report, until, at)
            records.append(record)
            self._show(record)
            self._number = state.number
            if then is Then.END:
                return EpochReport(state, records, None, self._pausing)
            last = then is Then.LAST

    def _show(self, record: PassRecord) -> None:
        """Let the worker tell the scheduler of the last pass."""
        rate = record.gathers * self._job.plan.stats.edges / record.seconds / 1e9
        for name, value in zip(SHOWN, (record.number, record.bound, rate), strict=True):
            self._worker.metrics[name] = lambda _, value=value: value

    def _hide(self) -> None:
        for name in SHOWN:
            self._worker.metrics.pop(name, None)

    async def _pass(self, state: State) -> tuple[list[PushSums], SweepReport]:
        """Push and sweep; returns what all stripes pushed, and what the sweeps of the own ones report."""
        number = state.number
        pushes: list[StripePush] = await self._exchange(
            number, PUSH, await self._in_thread(self._push, state)
        )
        sweep = self._sweep(state, pushes)
        try:
            for section in range(self._job.plan.exchanges):
                made = await self._in_thread(_brought, sweep)
                proposed = await self._exchange(number, f"{PROPOSED}-{section}", made)
                await self._in_thread(self._group.put_proposals, proposed)
            return [push.sums for push in pushes], await self._in_thread(_reported, sweep)
        except BaseException:
            # Who waits for others in vain is still reading.
            await self._in_thread(sweep.close)
            raise

    async def _exchange(self, number: int, what: str, made: list[Any]) -> list[Any]:
        """Send what this worker's stripes have made to all others; what all stripes have, in their order."""
        sending = [self._send(other, (number, what, self._rank), made) for other in self._others]
        ranks = range(len(self._others) + 1)
        taking = [self._mail.take((number, what, rank)) for rank in ranks if rank != self._rank]
        _, parts = await asyncio.gather(asyncio.gather(*sending), asyncio.gather(*taking))
        parts.insert(self._rank, made)
        return [one for part in parts for one in part]

    async def _decide(
        self, state: State, pushed: list[PushSums], report: SweepReport, until: float, at: float
    ) -> Turn:
        """Add up what a pass has left, and say how the epoch goes on; the first worker does it for all."""
        number = state.number
        if self._rank > 0:
            await self._send(self._others[0], (number, REPORT, self._rank), report)
            turn: Turn = await self._mail.take((number, TURN, 0))
            return turn
        ranks = range(1, len(self._others) + 1)
        reports = await asyncio.gather(*(self._mail.take((number, REPORT, rank)) for rank in ranks))
        made = PassReport.of(pushed, [report, *reports])
        now = time.perf_counter()
        after, record = _reduced(self._job, state, made, now - at, self._nodes)
        # There is time for two passes more, for one, or for none.
        left = (until - now) / record.seconds
        then = Then.ON if left >= 2 else Then.LAST if left >= 1 else Then.END
        if self._pausing or is_over(self._job.settings, after):
            then = Then.END
        turn = Turn(after, record, then)
        await asyncio.gather(*(self._send(other, (number, TURN, 0), turn) for other in self._others))
        return turn

    def _push(self, state: State) -> list[StripePush]:
        pushes = self._group.begin_push(state)()
        if not self._device_to_device:
            return [replace(push, stored=download(push.stored)) for push in pushes]
        # It stays on the device until all others come for it.
        (push,) = pushes
        self._own_push = push.stored
        return [replace(push, stored=None)]

    def _sweep(self, state: State, pushes: Sequence[StripePush]) -> Sweep:
        if self._device_to_device:
            assert self._communicator is not None, "the devices have met"
            begins = [*(push.row_begin for push in pushes), self._group.specs[0].nodes]
            self._group.load(self._communicator.gather(self._own_push, begins))
        else:
            self._group.load((push.row_begin, push.stored) for push in pushes)
        return (yield from self._group.sweep(state, [push.sums for push in pushes]))

    async def receive(self, subject: Subject, content: Any) -> None:
        """Take what another worker sends; it may be ahead of this one."""
        self._mail.put(subject, content)

    async def pause(self) -> None:
        """End the epoch after the pass that is under way."""
        self._pausing = True

    async def save(self, number: int, last: int | None) -> dict[int, int]:
        """Write what the pass `number` has left of each stripe's rows to the checkpoint of the job.

        Returns their checksums. Of copies, those of the pass `last` stay until all workers have those of
        this one.
        """
        if self._copies is not None:
            CheckpointFolder(self._copies.path).remove_passes(but=last)
        checksums: dict[int, int] = await self._in_thread(self._group.save, number)
        return checksums

    async def copy(self, number: int, stripes: Sequence[int], holder: str) -> None:
        """Have copies of what another worker has saved of its stripes."""
        assert self._copies is not None, "there are no other checkpoints"
        for stripe in stripes:
            await self._copies.fetch(number, stripe, [holder])

    def finish(
        self, state: State, shared: NDArray[np.float64] | None
    ) -> tuple[int, NDArray[np.float64] | None]:
        """Sum of p and r of the rows of all its stripes, and the first of these rows.

        They are put into `shared`, where all rows are, or returned if there is no such memory.
        """
        self._finished = True
        first, last = self._group.specs[0].row_begin, self._group.specs[-1].row_end
        out = None if shared is None else shared[first:last]
        ranks = self._thread.submit(self._group.finish, state, out).result()
        return first, ranks if shared is None else None

    async def meet(self) -> bool:
        """Wait for the devices of the other workers; returns whether they reach each other."""
        assert self._communicator is not None, "there is a meeting"
        self._device_to_device = await self._communicator.meet()
        return self._device_to_device

    async def leave(self) -> None:
        """Send pushes through the host after all, as another worker has to."""
        self._device_to_device = False

    def close(self) -> None:
        """Free what the device has of the run; whoever still waits for others in it does so no longer."""
        # In the loop, which reads them.
        self._worker.loop.add_callback(self._hide)
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            if self._finished and self._device_to_device:
                assert self._place is not None, "it has joined"
                keep_group(self._own.worker, self._place, communicator)
            else:
                communicator.abort()
        # The worker lets go of this actor later than the next run begins, which has as much of the device.
        self._own_push = None
        if isinstance(self._backend, Streams):
            self._backend.close()

    async def _send(self, other: WorkerAddress, subject: Subject, content: Any) -> None:
        from distributed.protocol.serialize import to_serialize

        # What an actor's proxy does, which on a worker would first connect a client of its own.
        rpc = self._worker.rpc(other.worker)
        # Without an answer, which says nothing: whoever does not get it ends its own epoch with an error.
        await rpc.actor_execute(
            actor=other.key, function="receive", args=[subject, to_serialize(content)], kwargs={}, reply=False
        )

    def _given_up(self) -> bool:
        return self._own.key not in self._worker.state.actors

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> ConcurrentFuture[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._worker.loop.asyncio_loop)

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


def _brought(sweep: Sweep) -> list[Numbers]:
    """What the next section of a sweep proposes, in memory of the host."""
    return [(row_begin, download(stored)) for row_begin, stored in next(sweep)]


def _reported(sweep: Sweep) -> SweepReport:
    return returned(sweep)()


def sweep_epoch(key: str, decision: Decision) -> EpochReport | None:
    """Do the passes of an epoch, in a task of a worker; nothing if the run is over.

    Raises LostError if the stripes are not there any more.
    """
    from distributed import get_worker, secede

    if decision.over:
        return None
    worker: Any = get_worker()
    actor = worker.state.actors.get(key)
    if actor is None:
        raise LostError(f"worker {worker.address} does not have its stripes any more.", RANK_AGAIN)
    # It waits for other workers, which may have the epochs of another run to do before.
    secede()
    epoch = asyncio.run_coroutine_threadsafe(actor.run_epoch(decision), worker.loop.asyncio_loop)
    report: EpochReport = epoch.result()
    return report


def reduce_epoch(job: Job, nodes: int, decision: Decision, reports: Sequence[EpochReport | None]) -> Decision:
    """Add up what the last pass of an epoch has left, and decide how the run goes on, in a task."""
    from distributed import get_worker

    made = [report for report in reports if report is not None]
    if decision.over:
        return replace(decision, records=())
    state, records = made[0].state, list(made[0].records)
    lasts = [report.last for report in made if report.last is not None]
    if lasts:
        pass_report = PassReport.of(lasts[0].pushed, [last.report for last in lasts])
        seconds = max(last.seconds for last in lasts)
        state, record = _reduced(job, state, pass_report, seconds, nodes)
        records.append(record)
    over = any(report.paused for report in made) or is_over(job.settings, state)
    for record in records:
        get_worker().log_event(TOPIC, {"run": job.token, **asdict(record)})
    single = 2 * records[-1].seconds > decision.seconds
    return Decision(state, decision.seconds, tuple(records), single, over)


def _reduced(
    job: Job, state: State, report: PassReport, seconds: float, nodes: int
) -> tuple[State, PassRecord]:
    after = reduce_pass(job, state, report, nodes)
    return after, record_pass(job, after, report.traffic, seconds)


def finish_stripes(
    key: str, state: State, address: SharedAddress
) -> tuple[int, NDArray[np.float64] | None, int]:
    """Do what `StripeWorker.finish` does, in a task; most bytes that its process had, too."""
    from distributed import get_worker

    actor: Any = get_worker().state.actors[key]
    return *actor.finish(state, find_shared(address)), peak_resident()


def close_workers(token: str) -> None:
    """Close what this process has of a run, and what is still being made of it, or will be."""
    with _LOCK:
        _CLOSED.append(token)
        of_run = [worker for worker in _OPEN if worker.token == token]
    for worker in of_run:
        worker.close()
    drop_reserved(token)


def rank_whole(
    path: str,
    identity: str,
    settings: Settings,
    threads: int | None,
    teleport: NDArray[Any] | None,
    start: NDArray[Any] | None,
) -> Solution:
    """Rank a graph that one worker keeps in memory whole."""
    from distributed import get_worker

    from oocpr.engine.scc.run import component_threads, load_scc_graph, rank_components

    begun = time.perf_counter()
    store = open_on_worker(path, identity)
    most = threads or get_worker().state.nthreads
    graph = load_scc_graph(store, most)
    threads = threads or min(most, component_threads(store.edges))
    return rank_components(graph, settings, threads, begun, graph.bytes_read, silent, teleport, start)


def _own_threads(job: Job) -> int:
    """Threads of a run on this worker: those that somebody chose, else as many as its edges feed.

    Workers of one machine share its cores, so that each takes no more than Dask gave it.
    """
    from distributed import get_worker

    plan, cores = job.plan, get_worker().state.nthreads
    return job.threads or default_threads(plan.stats.edges, streams=plan.streamed_bytes > 0, cores=cores)


def open_on_worker(path: str, identity: str | None) -> GraphStore:
    """Open the graph of a run on the worker that calls this; raises what `open_same` raises."""
    from distributed import get_worker

    from oocpr.store.graph import open_same

    return open_same(path, identity, f"worker {get_worker().address}")


class _Mail:
    """What other workers have sent and nobody has taken yet."""

    def __init__(self, given_up: Callable[[], bool]) -> None:
        self._given_up = given_up
        self._contents: dict[Subject, asyncio.Future[Any]] = {}

    def _future(self, subject: Subject) -> asyncio.Future[Any]:
        if subject not in self._contents:
            self._contents[subject] = asyncio.get_running_loop().create_future()
        return self._contents[subject]

    def put(self, subject: Subject, content: Any) -> None:
        self._future(subject).set_result(content)

    async def take(self, subject: Subject) -> Any:
        future = self._future(subject)
        while not (await asyncio.wait([future], timeout=MAIL_TIMEOUT))[0]:
            # Who asked may have given the run up, or be gone: what is missing then never comes.
            if self._given_up():
                raise LostError("the run was given up.", RANK_AGAIN)
        del self._contents[subject]
        return future.result()
