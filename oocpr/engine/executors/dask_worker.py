"""The stripes that one worker of a cluster owns, in a Dask actor that is asked for a pass at a time.

A pass is one question to each actor and its answer, a few numbers each way; what stripes push goes from actor
to actor in between. Dask's scheduler, which needs milliseconds for each task, has no part in that::

    client ──state──> worker 0: push ─┬─pushes─> worker 1 ─┬─> sweep ──sums──> client: reduce
                      worker 1: push ─┴─pushes─> worker 0 ─┘

If devices of the workers reach each other, pushes go from device to device, and only their sums from actor to
actor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oocpr.engine.backend import Streams
from oocpr.engine.cuda.communication import new_unique_id
from oocpr.engine.cuda.device import download
from oocpr.engine.stripe import StripeGroup
from oocpr.engine.tiles.groups import GroupedStore
from oocpr.errors import NotAStoreError, OocprError, ReplacedError, SetupError
from oocpr.progress import silent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.cuda.communication import Communicator
    from oocpr.engine.method import Solution, State
    from oocpr.engine.settings import Settings
    from oocpr.engine.stripe import Job, StripePush, SweepReport
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.store.graph import GraphStore

_LOG = logging.getLogger(__name__)

PUSH_TIMEOUT = 5.0
"""Seconds after which a worker that has not got all pushes asks whether anybody still wants it."""


@dataclass(frozen=True)
class WorkerAddress:
    """Address of a worker that has stripes, and the key of its actor there."""

    worker: str
    key: str


class StripeWorker:
    """Some stripes of a run, on the worker that owns them; made by a task of that worker."""

    def __init__(
        self, job: Job, stripes: Sequence[int], own: WorkerAddress, others: Sequence[WorkerAddress]
    ) -> None:
        from distributed import get_worker

        # Workers of one machine share its cores: each has as many threads as Dask gave it.
        self._job = job = replace(job, threads=job.threads or get_worker().state.nthreads)
        self._own, self._others = own, others
        self._pushes: dict[int, _Pushes] = {}
        self._communicator: Communicator | None = None
        # Whether devices send each other their pushes, and only sums go from actor to actor.
        self._device_to_device = False
        self._own_push: Any = None
        # The worker's own threads are for tasks, and its event loop has to stay free.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oocpr-stripes")
        stored = open_on_worker(job.path, job.identity)
        store: RankedStore = stored if job.layout is None else GroupedStore(stored, job.layout)
        self._backend = job.make_backend(stripes[0])
        try:
            self._group = StripeGroup(job, store, self._backend, stripes)
            self._group.allocate()
        except BaseException:
            # Nobody has this worker, so nobody can close it.
            self.close()
            raise

    async def run_pass(self, state: State) -> tuple[list[StripePush], SweepReport]:
        """Do the next pass with the others; returns what each stripe reports, without the push itself."""
        number = state.number
        pushes = self._pushes_of(number)
        made = await self._in_thread(self._push, state)
        sending = []
        for index, push in zip(self._group.stripes, made, strict=True):
            pushes.add(index, push)
            sending += [asyncio.ensure_future(_send(other, number, index, push)) for other in self._others]
        await asyncio.gather(*sending, self._complete(pushes))
        report = await self._in_thread(self._sweep, state, pushes.in_order())
        del self._pushes[number]
        return [replace(push, stored=None) for push in made], report

    def _push(self, state: State) -> list[StripePush]:
        pushes = self._group.begin_push(state)()
        if not self._device_to_device:
            return [replace(push, stored=download(push.stored)) for push in pushes]
        # It stays on the device until all others come for it.
        (push,) = pushes
        self._own_push = push.stored
        return [replace(push, stored=None)]

    def _sweep(self, state: State, pushes: Sequence[StripePush]) -> SweepReport:
        if self._device_to_device:
            assert self._communicator is not None, "the devices have met"
            begins = [*(push.row_begin for push in pushes), self._group.specs[0].nodes]
            self._group.load(self._communicator.gather(self._own_push, begins))
        else:
            self._group.load((push.row_begin, push.stored) for push in pushes)
        return self._group.begin_sweep(state, [push.sums for push in pushes])()

    async def receive(self, number: int, index: int, push: StripePush) -> None:
        """Take what a stripe of another worker has pushed; it may be ahead of this worker's own question."""
        self._pushes_of(number).add(index, push)

    async def save(self, number: int) -> None:
        """Write what the pass `number` has left of each stripe's rows to the checkpoint of the job."""
        await self._in_thread(self._group.save, number)

    async def finish(self, state: State) -> list[NDArray[Any]]:
        """Sum of p and r of each stripe's rows."""
        ranks: list[NDArray[Any]] = await self._in_thread(lambda: list(self._group.finish(state)))
        return ranks

    async def unique_id(self) -> Any:
        """What devices of several processes can meet by; None if they cannot."""
        return await self._in_thread(new_unique_id)

    async def join(self, unique_id: Any) -> bool:
        """Have the device of this worker's one stripe meet those of all others; returns whether they can."""
        self._device_to_device = await self._in_thread(self._join, unique_id)
        return self._device_to_device

    def _join(self, unique_id: Any) -> bool:
        (index,) = self._group.stripes
        try:
            self._communicator = self._backend.join_group(  # type: ignore[attr-defined]
                unique_id, index, len(self._job.plan.stripes)
            )
            return bool(self._communicator.works())
        except RuntimeError as error:
            # NCCL's own class, and CUDA's, are known only if they are loaded.
            _LOG.warning("the devices of the workers do not reach each other: %s", error)
            return False

    async def leave(self) -> None:
        """Send pushes through the host after all, as another worker has to."""
        self._device_to_device = False

    def close(self) -> None:
        """Free what the device has of the run; whoever still waits for others in it does so no longer."""
        if self._communicator is not None:
            self._communicator.abort()
        if isinstance(self._backend, Streams):
            self._backend.close()

    def _pushes_of(self, number: int) -> _Pushes:
        return self._pushes.setdefault(number, _Pushes(len(self._job.plan.stripes)))

    async def _complete(self, pushes: _Pushes) -> None:
        from distributed import get_worker

        while True:
            try:
                await asyncio.wait_for(pushes.complete.wait(), PUSH_TIMEOUT)
            except TimeoutError:
                # Who asked may have given the run up, or be gone: what is missing then never comes.
                if self._own.key not in get_worker().state.actors:
                    raise RuntimeError("the run was given up.") from None
            else:
                return

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


def close_workers(token: str, dask_worker: Any) -> None:
    """Close what the process of a Dask worker has of a run."""
    for key, actor in list(dask_worker.state.actors.items()):
        if isinstance(actor, StripeWorker) and token in key:
            actor.close()


def rank_whole(
    path: str,
    identity: str,
    settings: Settings,
    threads: int | None,
    teleport: NDArray[Any] | None,
    start: NDArray[Any] | None,
) -> Solution:
    """Rank a graph that one worker keeps in memory whole."""
    from oocpr.engine.scc.run import load_scc_graph, rank_components

    begun = time.perf_counter()
    graph = load_scc_graph(open_on_worker(path, identity), threads)
    return rank_components(graph, settings, threads, begun, graph.bytes_read, silent, teleport, start)


def open_on_worker(path: str, identity: str | None) -> GraphStore:
    """Open the graph of a run on the worker that calls this.

    Raises SetupError if the worker cannot open a store there, and ReplacedError if that has another identity.
    """
    from distributed import get_worker

    from oocpr.store.graph import open_store

    worker = get_worker().address
    try:
        store = open_store(path)
        found = store.identity
    except (OocprError, OSError, ImportError, ValueError) as error:
        if isinstance(error, OocprError) and not isinstance(error, NotAStoreError):
            raise
        cause = error.cause if isinstance(error, OocprError) else str(error)
        raise SetupError(
            f"worker {worker} cannot open the graph at {path}: {cause}",
            "Put the store where every worker finds it under this path, such as a shared folder.",
        ) from error
    if found != identity:
        raise ReplacedError(
            f"worker {worker} has the graph {found} at {path}, and the run is of the graph {identity}.",
            "Put the same store under this path on all workers, such as in a shared folder.",
        )
    return store


class _Pushes:
    """What all stripes push in one pass, as it comes."""

    def __init__(self, stripes: int) -> None:
        self._parts: list[StripePush | None] = [None] * stripes
        self.complete = asyncio.Event()

    def add(self, index: int, push: StripePush) -> None:
        self._parts[index] = push
        if all(part is not None for part in self._parts):
            self.complete.set()

    def in_order(self) -> list[StripePush]:
        return [part for part in self._parts if part is not None]


async def _send(other: WorkerAddress, number: int, index: int, push: StripePush) -> None:
    from distributed import get_worker
    from distributed.protocol.serialize import to_serialize

    # What an actor's proxy does, which on a worker would first connect a client of its own.
    await (
        get_worker()
        .rpc(other.worker)
        .actor_execute(
            actor=other.key, function="receive", args=[number, index, to_serialize(push)], kwargs={}
        )
    )
