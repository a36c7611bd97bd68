"""Who carries out a pass; here this process, with one backend or several devices side by side."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.backend import Streams
from oocpr.engine.reduction import PassReport, is_over, record_pass, reduce_pass
from oocpr.engine.stripe import StripeGroup
from oocpr.engine.tiles.stream import returned
from oocpr.system import peak_resident

if TYPE_CHECKING:
    from oocpr.engine.backend import Backend
    from oocpr.engine.method import PassRecord, State
    from oocpr.engine.stripe import Job, Numbers, StripePush, Sweep, SweepReport, TilePlacement
    from oocpr.engine.tiles.source import RankedStore

Result = TypeVar("Result")

SWITCHING = 1e-4
"""Seconds for which a thread may keep Python from the others in a run on devices. Those that read tiles do a
little each, and so do those of several devices: with the usual 5 ms four H200s took 28 ms for a pass of R-MAT
with 1.06 G edges, with this 22."""


class SavedPass(NamedTuple):
    """Checksum of each stripe, and the workers that have it if they keep it in folders of theirs."""

    checksums: tuple[int, ...]
    holders: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, groups: Iterable[Mapping[int, int]], holders: tuple[tuple[str, ...], ...] = ()) -> SavedPass:
        """Put the checksums of several groups of stripes in the order of stripes."""
        stripes = sorted(chain.from_iterable(group.items() for group in groups))
        return cls(tuple(checksum for _, checksum in stripes), holders)


class Executor(ABC):
    """Carries out passes: in this process, or on the workers of a Dask client."""

    @abstractmethod
    def run_passes(
        self, state: State, note: Callable[[PassRecord], None], ending: Callable[[], bool]
    ) -> State:
        """Do passes until the run is over, or, after a pass, `ending` says so; returns what they leave.

        `note` is called after each, or soon after.
        """

    @abstractmethod
    def save(self, number: int) -> SavedPass:
        """Write what the pass `number` has left of all rows to the checkpoint of the job."""

    def has_grown(self) -> bool:
        """Whether workers have come that could have stripes of others."""
        return False

    @abstractmethod
    def finish(self, state: State) -> NDArray[np.float64]:
        """Sum of p and r of all nodes; float64, shape (nodes,)."""

    @abstractmethod
    def peak_memory(self) -> int:
        """Largest resident set of the processes that worked, in bytes."""

    def peak_device_memory(self) -> int:
        """Most bytes taken of a device with a memory of its own; 0 without one, or if workers have them."""
        return 0

    def preparing_seconds(self) -> float | None:
        """Seconds in which a device laid tiles out for its product; None if it takes them as they are."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free everything."""


class LocalBackends:
    """The backends of a run in this process: one, or one per stripe with a thread for each."""

    def __init__(self, job: Job, *, several: bool) -> None:
        self.backends: list[Backend] = []
        self._threads: list[ThreadPoolExecutor] = []
        self.several = several
        self._interval = sys.getswitchinterval() if several or job.plan.devices else None
        if self._interval is not None:
            sys.setswitchinterval(SWITCHING)
        try:
            for stripe in range(len(job.plan.stripes) if several else 1):
                self.backends.append(job.make_backend(stripe))
            if several:
                self._threads += [ThreadPoolExecutor(1, "oocpr-device") for _ in self.backends]
        except BaseException:
            # Nobody has these, so nobody can close them.
            self.close()
            raise

    def each(self, work: Callable[[int], Result]) -> list[Result]:
        """Work for each backend in its thread; an error is raised once all have ended."""
        if not self.several:
            return [work(0)]
        futures = [thread.submit(work, index) for index, thread in enumerate(self._threads)]
        wait(futures)
        return [future.result() for future in futures]

    def clear(self) -> None:
        """Let another run have the memory of devices; nobody uses what was made there any more."""
        for backend in self.backends:
            if isinstance(backend, Streams):
                backend.clear()

    @property
    def allocated_bytes(self) -> int:
        """Most bytes that were taken of a device with a memory of its own; 0 without one."""
        return max((each.allocated_bytes for each in self.backends if isinstance(each, Streams)), default=0)

    @property
    def preparing_seconds(self) -> float | None:
        """Seconds in which the device that took longest laid tiles out; None if none does."""
        each = [backend.preparing_seconds for backend in self.backends if isinstance(backend, Streams)]
        return max((seconds for seconds in each if seconds is not None), default=None)

    def close(self) -> None:
        """Wait until no thread is at work, and let others have what the backends were limited to."""
        if self._interval is not None:
            sys.setswitchinterval(self._interval)
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        for backend in self.backends:
            if isinstance(backend, Streams):
                backend.close()


class LocalExecutor(Executor):
    """Stripes in this process: one after another on one backend, or side by side, each on its own device.

    All stripes push, then all sweep, and what they report is added in their order, so the bits are those of
    one such device that takes the stripes in turn.

    While tiles are read each device has a thread, which waits for them. Once all are resident, one thread
    launches for all devices, since several would take turns with Python at every launch; it begins where most
    tiles are streamed, so that the link there is at work meanwhile.

    The backends stay the caller's. A probe gives `placements` of some tiles.
    """

    def __init__(
        self,
        job: Job,
        store: RankedStore,
        backends: LocalBackends,
        placements: Sequence[TilePlacement] | None = None,
    ) -> None:
        self._job, self._store, self._backends = job, store, backends
        self._placements = placements
        self.groups: list[StripeGroup] = backends.each(self._open)

    def _open(self, index: int) -> StripeGroup:
        stripes = (index,) if self._backends.several else range(len(self._job.plan.stripes))
        placement = None if self._placements is None else self._placements[index]
        return StripeGroup(self._job, self._store, self._backends.backends[index], stripes, placement)

    def allocate(self) -> None:
        """Make the states of all rows."""
        self._backends.each(lambda index: self.groups[index].allocate())

    def restart(self, rows: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Make all as it was before a run that has been finished, but for the teleport weights."""
        self._backends.each(lambda index: self.groups[index].restart(rows, weights))

    def run_passes(
        self, state: State, note: Callable[[PassRecord], None], ending: Callable[[], bool]
    ) -> State:
        """See Executor."""
        while not is_over(self._job.settings, state):
            begun = time.perf_counter()
            report = self.run_pass(state)
            state = reduce_pass(self._job, state, report, self._store.nodes)
            note(record_pass(self._job, state, report.traffic, time.perf_counter() - begun))
            if ending():
                break
        return state

    def run_pass(self, state: State) -> PassReport:
        """Push and sweep once."""
        if len(self.groups) == 1 and self.groups[0].takes_whole_passes:
            pushed, report = self.groups[0].run_pass(state)
            return PassReport.of([pushed], [report])
        pushes = self.push(state)
        return PassReport.of([push.sums for push in pushes], self.sweep(state, pushes))

    def push(self, state: State) -> list[StripePush]:
        """Make the next push of each stripe."""
        if self._all_resident:
            waits = [group.begin_push(state) for group in self.groups]
            made = [wait_for() for wait_for in waits]
        else:
            made = self._backends.each(partial(self._push, state))
        return [push for pushes in made for push in pushes]

    def sweep(self, state: State, pushes: Sequence[StripePush], *, again: bool = False) -> list[SweepReport]:
        """Deliver the pushes to every tile, and propose the next ones.

        `again` is for a probe: it sweeps over what was loaded before, and waits for each device in its own
        thread, since in turns only the last of them would be known to be done.
        """
        resident = self._all_resident
        each = self._in_turn if resident else self._backends.each
        sweeps = [self._sweep(state, pushes, again, index) for index in range(len(self.groups))]
        held: list[list[Numbers]] = []
        try:
            for _ in range(self._job.plan.exchanges):
                proposed = list(chain.from_iterable(each(partial(_next, sweeps))))
                each(partial(self._put_proposals, proposed))
                if self._job.plan.devices:
                    # Until all have reported, others may be reading it.
                    held.append(proposed)
            if not resident:
                return each(partial(_report, sweeps))
            begun = each(partial(_rest, sweeps))
            return (self._backends.each if again else self._in_turn)(lambda index: begun[index]())
        finally:
            # After an error of one of them, others are still reading.
            for sweep in sweeps:
                sweep.close()

    @property
    def _all_resident(self) -> bool:
        return all(group.all_resident for group in self.groups)

    def _in_turn(self, work: Callable[[int], Result]) -> list[Result]:
        """Work for each backend in this thread, first for those that most tiles stream to."""
        order = self._most_streamed_first() if self._job.plan.devices else range(len(self.groups))
        done = {index: work(index) for index in order}
        return [done[index] for index in range(len(self.groups))]

    def _most_streamed_first(self) -> list[int]:
        """Devices, by how many of their tiles do not stay there."""
        plan = self._job.plan

        def resident(index: int) -> int:
            first, last = plan.stripes[index]
            return plan.devices[index].on_device - (last - first)

        return sorted(range(len(self.groups)), key=resident)

    # No function inside another and no comprehension has the pushes: an error that leaves it would hold them.
    def _push(self, state: State, index: int) -> list[StripePush]:
        return self.groups[index].begin_push(state)()

    def _sweep(self, state: State, pushes: Sequence[StripePush], again: bool, index: int) -> Sweep:
        group = self.groups[index]
        if not again:
            group.load((push.row_begin, push.stored) for push in pushes)
        return (yield from group.sweep(state, [push.sums for push in pushes], bring=not again))

    def _put_proposals(self, proposals: Sequence[Numbers], index: int) -> None:
        self.groups[index].put_proposals(proposals)

    def save(self, number: int) -> SavedPass:
        """See Executor."""
        return SavedPass.of(self._backends.each(lambda index: self.groups[index].save(number)))

    def finish(self, state: State, *, again: bool = False) -> NDArray[np.float64]:
        """See Executor; `again`: whether `restart` follows, and another run."""
        # Rows in memory of the host are given as they are there, where another run would overwrite them.
        if not self._backends.several and not (again and self._job.plan.rows_in_host):
            return self.groups[0].finish(state, again=again)
        ends = np.cumsum([0, *(sum(spec.rows for spec in group.specs) for group in self.groups)])
        ranks = np.empty(ends[-1])
        self._backends.each(
            lambda index: self.groups[index].finish(state, ranks[ends[index] : ends[index + 1]], again=again)
        )
        return ranks

    def largest(self, state: State, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """Rows and ranks of the `k` largest, if one device finds them; None if only `finish` can tell."""
        backend, stripes = self.groups[0].backend, self._job.plan.stripes
        if self._backends.several or len(stripes) > 1 or not isinstance(backend, Streams):
            return None
        bound = self._job.settings.bound(state.residuals[-1], state.growth)
        return backend.largest(
            self.groups[0].states[0], state.carries[0], k, bound, state.total, state.growth
        )

    def peak_memory(self) -> int:
        """See Executor."""
        return peak_resident()

    def peak_device_memory(self) -> int:
        """See Executor; of the device that took the most."""
        return self._backends.allocated_bytes

    def preparing_seconds(self) -> float | None:
        """See Executor; of the device that took longest."""
        return self._backends.preparing_seconds

    def close(self) -> None:
        """See Executor; the backends stay open."""
        if self.groups:
            self._backends.each(lambda index: self.groups[index].close())
        self.groups.clear()


def _next(sweeps: Sequence[Sweep], index: int) -> list[Numbers]:
    return next(sweeps[index])


def _rest(sweeps: Sequence[Sweep], index: int) -> Callable[[], SweepReport]:
    return returned(sweeps[index])


def _report(sweeps: Sequence[Sweep], index: int) -> SweepReport:
    return _rest(sweeps, index)()
