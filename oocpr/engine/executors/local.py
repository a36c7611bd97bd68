"""Who carries out a pass: this process, alone or with several devices, or the workers of a Dask client."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from oocpr.engine import stripe_tasks
from oocpr.engine.backend import Streams
from oocpr.engine.executors.multi_device import SideBySide
from oocpr.engine.gather_vector import forget
from oocpr.system import peak_resident

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.job import Job
    from oocpr.engine.method import State
    from oocpr.engine.stripe import Stripe
    from oocpr.engine.stripe_tasks import StripePush, StripeReport
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.engine.tiles.stream import PassTraffic


class Executor(Protocol):
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


class LocalExecutor:
    """All stripes one after another in this process."""

    def __init__(self, job: Job, store: RankedStore) -> None:
        self._job = job
        self._nodes = store.nodes
        try:
            self._stripes = [
                stripe_tasks.open_stripe(job, store, index) for index in range(len(job.plan.stripes))
            ]
        except BaseException:
            # Nobody has this crew, so nobody can close it.
            forget(job.token)
            raise
        self._backend = self._stripes[0].backend

    def run_pass(self, state: State) -> tuple[State, list[PassTraffic]]:
        """See Executor."""
        job = self._job
        published = [
            stripe_tasks.publish(job, stripe, state, index) for index, stripe in enumerate(self._stripes)
        ]
        # Here and below no function inside another has the pushes: the error that leaves it would have them.
        sweep = partial(stripe_tasks.sweep, job, state=state, published=published)
        swept = list(map(sweep, self._stripes))
        state = stripe_tasks.reduce(job, state, published, swept, self._nodes)
        return state, [part.traffic for part in swept]

    def finish(self, state: State) -> NDArray[np.float64]:
        """See Executor."""
        parts: list[NDArray[np.float64]] = []
        while self._stripes:
            # A stripe's history is freed before the next one's rows are needed.
            parts.append(stripe_tasks.finish(self._stripes.pop(0), state, len(parts)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def peak_memory(self) -> int:
        """See Executor."""
        return peak_resident()

    def peak_device_memory(self) -> int:
        """See Executor."""
        return self._backend.taken_bytes if isinstance(self._backend, Streams) else 0

    def close(self) -> None:
        """See Executor."""
        for stripe in self._stripes:
            stripe.close()
        self._stripes.clear()
        forget(self._job.token)


class MultiDeviceExecutor:
    """Stripes side by side in this process, each on a device of its own.

    Within a pass all stripes publish, then all sweep; what they report is added in their order. So the bits
    are those of one such device that takes the stripes one after another.

    While tiles are read each device has a thread, which waits for them. Once all are where they stay, nothing
    is waited for but sums: then one thread launches for all devices, since several would take turns with
    Python at every launch. It begins where most tiles pass, so that the link there is at work meanwhile.

    Parameters
    ----------
    job
        The run, with a backend for each stripe.
    store
        The graph.
    """

    def __init__(self, job: Job, store: RankedStore) -> None:
        self._devices = SideBySide(job)
        self._job = job = replace(job, backend=tuple(self._devices.backends))
        self._nodes = store.nodes
        self._stripes: list[Stripe] = []
        try:
            self._stripes = self._devices.each(partial(stripe_tasks.open_stripe, job, store))
        except BaseException:
            self.close()
            raise

    def run_pass(self, state: State) -> tuple[State, list[PassTraffic]]:
        """See Executor."""
        job, stripes = self._job, self._stripes
        if all(stripe.stream.settled for stripe in stripes):
            publishing = [
                stripe_tasks.begin_publish(job, stripe, state, k) for k, stripe in enumerate(stripes)
            ]
            published = [wait_for() for wait_for in publishing]
            begin = partial(stripe_tasks.begin_sweep, job, state=state, published=published)
            order = self._most_passing_first
            begun = dict(zip(order, map(begin, map(stripes.__getitem__, order)), strict=True))
            swept = [wait_for() for wait_for in map(begun.__getitem__, range(len(stripes)))]
        else:
            published = self._devices.each(partial(self._publish, state))
            swept = self._devices.each(partial(self._sweep, state, published))
        state = stripe_tasks.reduce(job, state, published, swept, self._nodes)
        return state, [part.traffic for part in swept]

    @cached_property
    def _most_passing_first(self) -> list[int]:
        """Stripes, by how many of their tiles do not stay on their device."""
        plan = self._job.plan

        def staying(index: int) -> int:
            first, last = plan.stripes[index]
            return plan.devices[index].on_device - (last - first)

        return sorted(range(len(plan.stripes)), key=staying)

    def finish(self, state: State) -> NDArray[np.float64]:
        """See Executor."""
        ranks = np.empty(self._nodes)
        # One after another: the host has room for all ranks, and once more for those of one stripe.
        for index, stripe in enumerate(self._stripes):
            rows = slice(stripe.spec.row_begin, stripe.spec.row_end)
            ranks[rows] = self._devices.one(index, stripe_tasks.finish, stripe, state, index)
        return ranks

    def peak_memory(self) -> int:
        """See Executor."""
        return peak_resident()

    def _publish(self, state: State, index: int) -> StripePush:
        return stripe_tasks.publish(self._job, self._stripes[index], state, index)

    def _sweep(self, state: State, published: list[StripePush], index: int) -> StripeReport:
        return stripe_tasks.sweep(self._job, self._stripes[index], state, published)

    def peak_device_memory(self) -> int:
        """See Executor; of the device that took the most."""
        taken = (backend.taken_bytes for backend in self._devices.backends if isinstance(backend, Streams))
        return max(taken, default=0)

    def close(self) -> None:
        """See Executor."""
        self._devices.stop()
        for stripe in self._stripes:
            stripe.close()
        self._stripes.clear()
        forget(self._job.token)
        # Also the backends of stripes that could not be opened.
        self._devices.close()
