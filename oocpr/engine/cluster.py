"""A run on the workers of a Dask client: each owns a share of the stripes, whose rows change in place.

Pushes travel from worker to worker; this process sees a few numbers a pass.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine import tasks
from oocpr.engine.exchange import forget
from oocpr.engine.peak import own_peak
from oocpr.engine.share import Address, Share
from oocpr.errors import OocprError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from oocpr.engine.job import Job
    from oocpr.engine.method import State
    from oocpr.engine.settings import Settings
    from oocpr.engine.solution import Solution
    from oocpr.engine.stream import PassTraffic

PATIENCE = 2.0
"""Seconds after which a pass that has not ended asks whether its workers still live."""


class ClusterCrew:
    """Stripes dealt out to the workers of a client.

    Parameters
    ----------
    job
        The run; its path must open on every worker.
    nodes
        Nodes of the graph.
    client
        A ``distributed.Client``.

    Raises
    ------
    UsageError
        When the client has no worker.
    """

    def __init__(self, job: Job, nodes: int, client: Any) -> None:
        self._job = job
        self._nodes = nodes
        self._client = client
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise UsageError("the Dask client has no workers.", "Start workers, or leave the client out.")
        stripes = len(job.plan.stripes)
        homes = [workers[stripe * len(workers) // stripes] for stripe in range(stripes)]
        self._homes = sorted(set(homes))
        (shared_job,) = client.scatter([job], broadcast=True, hash=False)
        self._held = [shared_job]
        places = [Address(home, f"oocpr-share-{job.token}-{home}") for home in self._homes]
        for place in places:
            own = [stripe for stripe in range(stripes) if homes[stripe] == place.worker]
            others = [other for other in places if other != place]
            self._held.append(self._submit(place, shared_job, own, place, others))
        try:
            self._shares = self._wait(self._held[1:])
        except BaseException:
            # Nobody has this crew, so nobody can close it.
            self.close()
            raise

    def run_pass(self, state: State) -> tuple[State, list[PassTraffic]]:
        """See Crew."""
        told = self._ask("run_pass", state)
        published, swept = zip(*(stripe for share in told for stripe in share), strict=True)
        return tasks.reduce(self._job, state, published, swept, self._nodes), [part.traffic for part in swept]

    def finish(self, state: State) -> NDArray[np.float64]:
        """See Crew."""
        return np.concatenate([part for share in self._ask("finish", state) for part in share])

    def peak_memory(self) -> int:
        """See Crew."""
        return int(max(self._client.run(own_peak).values()))

    def peak_device_memory(self) -> int:
        """See Crew; workers do not say."""
        return 0

    def close(self) -> None:
        """See Crew."""
        self._client.cancel(self._held)
        self._client.run(forget, self._job.token)

    def _submit(self, place: Address, *args: Any) -> Any:
        return self._client.submit(
            Share, *args, key=place.key, workers=[place.worker], actor=True, priority=1, retries=0
        )

    def _ask(self, question: str, state: State) -> list[Any]:
        """Ask all shares the same."""
        try:
            calls = [getattr(share, question)(state) for share in self._shares]
        except RuntimeError:
            # So Dask says that an actor is lost.
            self._check_workers()
            raise
        return self._wait(calls)

    def _wait(self, calls: Sequence[Any]) -> list[Any]:
        """Results of all calls, or the first failure of one."""
        while True:
            try:
                results = self._client.sync(_results, calls)
            except OocprError:
                raise
            except (OSError, RuntimeError):
                # A worker that dies ends its calls before the scheduler says that it is gone.
                until = time.monotonic() + PATIENCE
                while time.monotonic() < until:
                    self._check_workers()
                    time.sleep(0.05)
                raise
            if results is not None:
                return list(results)
            self._check_workers()

    def _check_workers(self) -> None:
        living = self._client.scheduler_info(n_workers=-1)["workers"]
        lost = sorted(set(self._homes) - set(living))
        if lost:
            raise LostWorkerError(
                f"worker {lost[0]} was lost, and the rows it kept with it.",
                "Start the run again; the graph's store is unharmed.",
            )


async def _results(calls: Sequence[Any]) -> list[Any] | None:
    """What calls return, or None where some have not ended after PATIENCE; raises the first failure."""
    waiting = [asyncio.ensure_future(_result(call)) for call in calls]
    try:
        done, pending = await asyncio.wait(waiting, timeout=PATIENCE, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for one in waiting:
            one.cancel()
    ended = [one.result() for one in waiting if one in done]
    return None if pending else ended


async def _result(call: Any) -> Any:
    return await call


def rank_on_worker(
    client: Any,
    path: str,
    settings: Settings,
    threads: int | None,
    teleport: NDArray[np.float64] | None,
    start: NDArray[np.float64] | None,
) -> Solution:
    """Rank a graph that one worker keeps in memory whole; what that worker is told of passes stays there.

    Raises
    ------
    LostWorkerError
        When the worker dies.
    """
    from distributed import KilledWorker

    future = client.submit(tasks.rank_whole, path, settings, threads, teleport, start, pure=False)
    try:
        solution: Solution = future.result()
    except KilledWorker as error:
        raise LostWorkerError(
            "workers were lost while they ranked the graph.",
            "Start the run again with more memory a worker; the graph's store is unharmed.",
        ) from error
    return solution


class LostWorkerError(OocprError, RuntimeError):
    """A worker died with the state of its stripes."""
