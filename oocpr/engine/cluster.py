"""A run on the workers of a Dask client: each owns a share of the stripes, whose rows change in place.

Pushes travel from worker to worker; this process sees a few numbers a pass.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine import groups, tasks
from oocpr.engine.device_workers import Seat, device_seats, names_workers_devices
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

_LOG = logging.getLogger(__name__)

SWITCH = "OOCPR_NCCL"
"""Variable of the environment that says ``off`` where pushes are to pass through the host."""

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
        seats = _seats(job, client)
        if _on_devices(job):
            job = replace(job, backend=tuple(seat.device for seat in seats))
        (shared_job,) = client.scatter([job], broadcast=True, hash=False)
        self._held = [shared_job]
        homes = {
            seat.worker: Address(seat.worker, f"oocpr-share-{job.token}-{seat.worker}") for seat in seats
        }
        self._homes = [homes[worker] for worker in sorted(homes)]
        for place in self._homes:
            own = [stripe for stripe, seat in enumerate(seats) if seat.worker == place.worker]
            others = [other for other in self._homes if other != place]
            self._held.append(self._submit(seats[own[0]], place, shared_job, own, place, others))
        try:
            self._shares = self._wait(self._held[1:])
            if _on_devices(self._job) and len(self._homes) == len(seats) > 1:
                self._join()
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
        self._client.run(groups.leave, self._job.token)

    def _join(self) -> None:
        """Let the workers send their pushes from device to device, if they can."""
        if os.environ.get(SWITCH) == "off":
            return
        # All are asked: who cannot come would be waited for.
        keys = self._ask("group_key")
        if any(key is None for key in keys):
            return
        able = all(self._ask("join_group", keys[0]))
        if not able:
            self._ask("leave_group")
        _LOG.info("pushes go from device to device %s", "with NCCL" if able else "through the host")

    def _submit(self, seat: Seat, place: Address, *args: Any) -> Any:
        return self._client.submit(
            Share,
            *args,
            key=place.key,
            workers=[place.worker],
            resources=dict(seat.resources) or None,
            actor=True,
            priority=1,
            retries=0,
        )

    def _ask(self, question: str, *about: Any) -> list[Any]:
        """Ask all shares the same."""
        try:
            calls = [getattr(share, question)(*about) for share in self._shares]
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
        lost = sorted({home.worker for home in self._homes} - set(living))
        if lost:
            raise LostWorkerError(
                f"worker {lost[0]} was lost, and the rows it kept with it.",
                "Start the run again; the graph's store is unharmed.",
            )


def _on_devices(job: Job) -> bool:
    return isinstance(job.backend, str) and names_workers_devices(job.backend)


def _seats(job: Job, client: Any) -> list[Seat]:
    """Where each stripe is computed: workers in the order of their addresses, neighbours together."""
    stripes, planned = len(job.plan.stripes), len(job.plan.devices)
    if _on_devices(job):
        seats = device_seats(client)
        if len(seats) < planned:
            raise LostWorkerError(
                f"the run was planned for {planned} workers with devices and {len(seats)} are left.",
                "Start the run again; the graph's store is unharmed.",
            )
        seats = seats[:planned] or seats
    else:
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        seats = [Seat(worker, "") for worker in workers]
    if not seats:
        raise UsageError("the Dask client has no workers.", "Start workers, or leave the client out.")
    return [seats[stripe * len(seats) // stripes] for stripe in range(stripes)]


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
