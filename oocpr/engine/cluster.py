"""A run on the workers of a Dask client: the tasks of this package, one publish and one sweep a stripe.

A stripe's rows change in place, so each stripe belongs to one worker. Pushes travel from worker to worker;
this process sees a few numbers a pass.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine import groups, tasks
from oocpr.engine.device_workers import Seat, device_seats, names_workers_devices
from oocpr.engine.peak import own_peak
from oocpr.errors import OocprError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.job import Job
    from oocpr.engine.method import State
    from oocpr.engine.settings import Settings
    from oocpr.engine.solution import Solution
    from oocpr.engine.stream import PassTraffic

_LOG = logging.getLogger(__name__)

SWITCH = "OOCPR_NCCL"
"""Variable of the environment that says ``off`` where pushes are to pass through the host."""

PATIENCE = 5.0
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
        stripes = len(job.plan.stripes)
        self._seats = _seats(job, client)
        if _on_devices(job):
            job = replace(job, backend=tuple(seat.device for seat in self._seats))
        (self._shared_job,) = client.scatter([job], broadcast=True, hash=False)
        self._stripes = [
            self._submit(stripe, tasks.open_stripe, self._shared_job, None, stripe)
            for stripe in range(stripes)
        ]
        try:
            self._grouped = _on_devices(self._job) and self._join()
        except BaseException:
            # Nobody has this crew, so nobody can close it.
            self.close()
            raise

    def run_pass(self, state: State) -> tuple[State, list[PassTraffic]]:
        """See Crew."""
        job, count = self._shared_job, len(self._stripes)
        publish = groups.publish if self._grouped else tasks.publish_to_host
        published = [self._submit(s, publish, job, self._stripes[s], state, s) for s in range(count)]
        if self._grouped:
            swept = [
                self._submit(s, groups.sweep, job, self._stripes[s], state, published, s)
                for s in range(count)
            ]
        else:
            swept = [
                self._submit(s, tasks.sweep, job, self._stripes[s], state, published) for s in range(count)
            ]
        reduced = self._submit(0, tasks.reduce, job, state, published, swept, self._nodes)
        after, reports = self._gather([reduced, swept])
        return after, [report.traffic for report in reports]

    def finish(self, state: State) -> NDArray[np.float64]:
        """See Crew."""
        parts = [self._submit(s, tasks.finish, self._stripes[s], state, s) for s in range(len(self._stripes))]
        return np.concatenate(self._gather(parts))

    def peak_memory(self) -> int:
        """See Crew."""
        return int(max(self._client.run(own_peak).values()))

    def peak_device_memory(self) -> int:
        """See Crew; workers do not say."""
        return 0

    def close(self) -> None:
        """See Crew."""
        self._client.cancel([*self._stripes, self._shared_job])
        self._client.run(groups.leave, self._job.token)

    def _join(self) -> bool:
        """Let the workers send their pushes from device to device; tells whether they can."""
        size = len(self._seats)
        if len({seat.worker for seat in self._seats}) < size or os.environ.get(SWITCH) == "off":
            return False
        # All are asked: who cannot come would be waited for.
        keys = self._gather([self._submit(s, groups.group_key) for s in range(size)])
        if size == 1 or any(key is None for key in keys):
            return False
        job, stripes = self._shared_job, self._stripes
        joined = [self._submit(s, groups.join_group, job, stripes[s], keys[0], s, size) for s in range(size)]
        able = all(self._gather(joined))
        _LOG.info("pushes go from device to device %s", "with NCCL" if able else "through the host")
        return able

    def _submit(self, stripe: int, function: Any, *args: Any) -> Any:
        seat = self._seats[stripe]
        return self._client.submit(
            function,
            *args,
            workers=[seat.worker],
            resources=dict(seat.resources) or None,
            pure=False,
            priority=1,
            retries=0,
        )

    def _gather(self, futures: Any) -> Any:
        from distributed import TimeoutError as NotYet
        from distributed import wait
        from distributed.client import futures_of

        waiting = futures_of(futures)
        while True:
            try:
                wait(waiting, timeout=PATIENCE)
            except NotYet:
                for future in waiting:
                    # The others may wait for this one, device for device.
                    if future.status == "error":
                        future.result()
                self._check_workers()
            else:
                return self._client.gather(futures)

    def _check_workers(self) -> None:
        living = self._client.scheduler_info(n_workers=-1)["workers"]
        lost = sorted({seat.worker for seat in self._seats} - set(living))
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
