"""Who carries out a pass: this process alone, or the workers of a Dask client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from oocpr.engine import tasks
from oocpr.engine.backends.base import Streams
from oocpr.engine.exchange import forget
from oocpr.engine.peak import own_peak

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.job import Job
    from oocpr.engine.method import State
    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.stream import PassTraffic


class Crew(Protocol):
    """Carries out passes."""

    def run_pass(self, state: State) -> tuple[State, list[PassTraffic]]:
        """Do one pass; returns the state after it and each stripe's traffic."""

    def finish(self, state: State) -> NDArray[np.float64]:
        """Sum of p and r of all nodes; float64, shape (nodes,)."""

    def peak_memory(self) -> int:
        """Largest resident set of the processes that worked, in bytes."""

    def peak_device_memory(self) -> int:
        """Most bytes taken of a device with a memory of its own; 0 without one."""

    def close(self) -> None:
        """Free everything."""


class LocalCrew:
    """All stripes one after another in this process."""

    def __init__(self, job: Job, store: RankedStore) -> None:
        self._job = job
        self._nodes = store.nodes
        try:
            self._stripes = [tasks.open_stripe(job, store, index) for index in range(len(job.plan.stripes))]
        except BaseException:
            # Nobody has this crew, so nobody can close it.
            forget(job.token)
            raise
        self._backend = self._stripes[0].backend

    def run_pass(self, state: State) -> tuple[State, list[PassTraffic]]:
        """See Crew."""
        job = self._job
        published = [tasks.publish(job, stripe, state, index) for index, stripe in enumerate(self._stripes)]
        swept = [tasks.sweep(job, stripe, state, published) for stripe in self._stripes]
        state = tasks.reduce(job, state, published, swept, self._nodes)
        return state, [part.traffic for part in swept]

    def finish(self, state: State) -> NDArray[np.float64]:
        """See Crew."""
        parts: list[NDArray[np.float64]] = []
        while self._stripes:
            # A stripe's history is freed before the next one's rows are needed.
            parts.append(tasks.finish(self._stripes.pop(0), state, len(parts)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def peak_memory(self) -> int:
        """See Crew."""
        return own_peak()

    def peak_device_memory(self) -> int:
        """See Crew."""
        return self._backend.taken_bytes if isinstance(self._backend, Streams) else 0

    def close(self) -> None:
        """See Crew."""
        for stripe in self._stripes:
            stripe.close()
        self._stripes.clear()
        forget(self._job.token)
