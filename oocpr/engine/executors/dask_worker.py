"""The stripes that one worker of a cluster owns, in a Dask actor that is asked for a pass at a time.

A pass is one question to each actor and its answer, a few numbers each way; what stripes push goes from actor
to actor in between. Dask's scheduler, which needs milliseconds for each task, has no part in that::

    client ──state──> share 0: publish ─┬─pushes─> share 1 ─┬─> sweep ──sums──> client: reduce
                      share 1: publish ─┴─pushes─> share 0 ─┘

What is called for a stripe are the functions of `oocpr.engine.stripe_tasks`, as in a run of one process.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oocpr.engine import stripe_tasks
from oocpr.engine.executors import dask_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.job import Job
    from oocpr.engine.method import State
    from oocpr.engine.stripe_tasks import StripePush, StripeReport

PATIENCE = 5.0
"""Seconds after which a share that has not got all pushes asks whether anybody still wants it."""


@dataclass(frozen=True)
class WorkerAddress:
    """Where a share is.

    Parameters
    ----------
    worker
        Address of its worker.
    key
        Its name there.
    """

    worker: str
    key: str


class StripeWorker:
    """Some stripes of a run, on the worker that owns them; made by a task of that worker.

    Parameters
    ----------
    job
        The run.
    stripes
        Numbers of these stripes.
    own
        Where this share is.
    others
        Where the others are.
    """

    def __init__(
        self, job: Job, stripes: Sequence[int], own: WorkerAddress, others: Sequence[WorkerAddress]
    ) -> None:
        from distributed import get_worker

        # Workers of one machine share its cores: each has as many threads as Dask gave it.
        self._job = replace(job, threads=job.threads or get_worker().state.nthreads)
        self._stripes = {index: stripe_tasks.open_stripe(self._job, None, index) for index in stripes}
        self._own = own
        self._others = others
        self._pushes: dict[int, _Pushes] = {}
        # Whether devices send each other their pushes, and only sums go from actor to actor.
        self._grouped = False
        # The worker's own threads are for tasks, and its event loop has to stay free.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="oocpr-share")

    async def run_pass(self, state: State) -> list[tuple[StripePush, StripeReport]]:
        """Do the next pass with the others; returns what each stripe reports, without the push itself."""
        number = state.number
        pushes = self._pushes_of(number)
        publish = dask_groups.publish if self._grouped else stripe_tasks.publish_to_host
        sending = []
        for index, stripe in self._stripes.items():
            published = await self._in_thread(publish, self._job, stripe, state, index)
            pushes.add(index, published)
            sending += [
                asyncio.ensure_future(_send(other, number, index, published)) for other in self._others
            ]
        await asyncio.gather(*sending, self._complete(pushes))
        parts = pushes.in_order()
        swept = [await self._sweep(index, state, parts) for index in self._stripes]
        del self._pushes[number]
        return [
            (replace(parts[index], stored=None), part)
            for index, part in zip(self._stripes, swept, strict=True)
        ]

    async def _sweep(self, index: int, state: State, parts: Sequence[StripePush]) -> StripeReport:
        job, stripe = self._job, self._stripes[index]
        if self._grouped:
            part: StripeReport = await self._in_thread(dask_groups.sweep, job, stripe, state, parts, index)
        else:
            part = await self._in_thread(stripe_tasks.sweep, job, stripe, state, parts)
        return part

    async def receive(self, number: int, index: int, published: StripePush) -> None:
        """Take what a stripe of another share has pushed; it may be ahead of this share's own question."""
        self._pushes_of(number).add(index, published)

    async def finish(self, state: State) -> list[NDArray[np.float64]]:
        """Sum of p and r of each stripe's rows."""
        return [
            await self._in_thread(stripe_tasks.finish, stripe, state, index)
            for index, stripe in self._stripes.items()
        ]

    async def group_key(self) -> Any:
        """What devices of several processes can meet by; None where they cannot."""
        return await self._in_thread(dask_groups.group_key)

    async def join_group(self, key: Any) -> bool:
        """Have the device of this share's one stripe meet those of all others; tells whether they can."""
        ((index, stripe),) = self._stripes.items()
        size = len(self._job.plan.stripes)
        self._grouped = await self._in_thread(dask_groups.join_group, self._job, stripe, key, index, size)
        return self._grouped

    async def leave_group(self) -> None:
        """Send pushes through the host after all, as another share cannot do without."""
        self._grouped = False

    def _pushes_of(self, number: int) -> _Pushes:
        return self._pushes.setdefault(number, _Pushes(len(self._job.plan.stripes)))

    async def _complete(self, pushes: _Pushes) -> None:
        from distributed import get_worker

        while True:
            try:
                await asyncio.wait_for(pushes.complete.wait(), PATIENCE)
            except TimeoutError:
                # Who asked may have given the run up, or be gone: what is missing then never comes.
                if self._own.key not in get_worker().state.actors:
                    raise RuntimeError("the run was given up.") from None
            else:
                return

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


class _Pushes:
    """What all stripes push in one pass, as it comes."""

    def __init__(self, stripes: int) -> None:
        self._parts: list[StripePush | None] = [None] * stripes
        self.complete = asyncio.Event()

    def add(self, index: int, published: StripePush) -> None:
        self._parts[index] = published
        if all(part is not None for part in self._parts):
            self.complete.set()

    def in_order(self) -> list[StripePush]:
        return [part for part in self._parts if part is not None]


async def _send(other: WorkerAddress, number: int, index: int, published: StripePush) -> None:
    from distributed import get_worker
    from distributed.protocol.serialize import to_serialize

    # What an actor's proxy does, which on a worker would first connect a client of its own.
    await (
        get_worker()
        .rpc(other.worker)
        .actor_execute(
            actor=other.key, function="receive", args=[number, index, to_serialize(published)], kwargs={}
        )
    )
