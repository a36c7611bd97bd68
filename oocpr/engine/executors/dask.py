"""A run on the workers of a Dask client, as a graph of tasks; see `oocpr.engine.executors.dask_worker`.

This process gives workers the tasks of some epochs ahead, and sees a few numbers per pass. A worker computes
on one CUDA device, and a device for one worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from oocpr.engine.cuda.communication import has_nccl, new_unique_id
from oocpr.engine.cuda.device import all_devices, free_memory, open_device
from oocpr.engine.cuda.names import ALL
from oocpr.engine.executors.dask_client import (
    CHECK_INTERVAL,
    RANK_AGAIN,
    RETURN_TIMEOUT,
    Watch,
    check_workers,
    cluster_errors,
    known_workers,
)
from oocpr.engine.executors.dask_copies import remove_copies
from oocpr.engine.executors.dask_groups import Place, common_group, reserve_group
from oocpr.engine.executors.dask_worker import (
    Decision,
    StripeWorker,
    WorkerAddress,
    close_workers,
    finish_stripes,
    rank_whole,
    reduce_epoch,
    sweep_epoch,
)
from oocpr.engine.executors.local import Executor, SavedPass
from oocpr.engine.executors.shared_memory import SharedMemory
from oocpr.errors import DoesNotFitError, LostError, SetupError, UsageError
from oocpr.plan.partition import stripe_owner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.method import PassRecord, Solution, State
    from oocpr.engine.settings import Settings
    from oocpr.engine.stripe import Job


_LOG = logging.getLogger(__name__)

RESOURCE = "GPU"
"""What workers declare that are meant for tasks on a device: ``dask worker --resources GPU=1``."""

SWITCH = "OOCPR_NCCL"
"""Environment variable that is ``off`` if pushes have to pass through the host."""

EPOCH_SECONDS = 2.0
"""About what an epoch takes, unless a pass takes longer."""

EPOCHS_AHEAD = 3
"""Epochs that workers are given ahead: what one is followed by does not wait for this process."""

_MORE_MEMORY = "Start the run again with more memory a worker; the graph's store is unharmed."


class VisibleDevice(NamedTuple):
    """A device: the name a worker has for it, what tells it from all others, and whether NCCL is there."""

    name: str
    identity: str
    nccl: bool = False


@dataclass(frozen=True)
class DeviceAssignment:
    """A worker, its name for its device, resources of tasks on it, and whether NCCL is there."""

    worker: str
    device: str
    resources: Mapping[str, float] = field(default_factory=dict)
    nccl: bool = False


_SEEN: WeakKeyDictionary[Any, dict[str, Sequence[VisibleDevice]]] = WeakKeyDictionary()
"""Devices of the machine of each worker that a client has asked, by the worker's address: to ask takes
milliseconds, and who ranks a graph asks twice."""


def names_workers_devices(device: str) -> bool:
    """Whether a name stands, with a client, for the devices of its workers, one each.

    Examples
    --------
    >>> names_workers_devices("cuda"), names_workers_devices("cuda:all"), names_workers_devices("cpu")
    (True, True, False)
    """
    return device in ("cuda", ALL)


def assign_workers(client: Any) -> list[DeviceAssignment]:
    """Assign devices to the workers of a client, in the order of addresses; UsageError if none has any."""
    workers = known_workers(client)
    declared = {address: about.get("resources", {}).get(RESOURCE, 0) for address, about in workers.items()}
    meant = [address for address, count in declared.items() if count] or list(workers)
    seen = _SEEN.setdefault(client, {})
    # A worker that has no device may have one later.
    if unknown := [address for address in meant if not seen.get(address)]:
        seen |= Watch(client).during(partial(client.run, visible_devices, workers=unknown), unknown)
    assigned = assign_gpus({address: seen[address] for address in meant}, declared)
    if not assigned:
        raise UsageError(
            "no worker of the Dask client has a CUDA device.",
            "Start workers with CuPy where there are devices, or use device cpu.",
        )
    return assigned


def free_bytes(client: Any, assigned: Sequence[DeviceAssignment]) -> list[int]:
    """Bytes of each assigned device that a run may take."""
    # Each is asked for its own only, since who asks takes memory of a device.
    names = {each.worker: each.device for each in assigned}
    ask = partial(client.run, _free_memory_of, names, workers=list(names))
    free = Watch(client).during(ask, list(names))
    return [free[each.worker] for each in assigned]


def _free_memory_of(names: Mapping[str, str], dask_worker: Any) -> int:
    return free_memory(names[dask_worker.address])


def visible_devices() -> list[VisibleDevice]:
    """Devices of the process that this runs in; none if they cannot be used."""
    try:
        return _visible_devices()
    except (SetupError, UsageError):
        return []


@cache
def _visible_devices() -> list[VisibleDevice]:
    # An error is not kept: a device that cannot be used now may be usable later.
    names = all_devices().split(",")
    devices = [open_device(name) for name in names]
    host, nccl = socket.gethostname(), has_nccl()
    return [
        VisibleDevice(name, f"{host} {device.bus}", nccl) for name, device in zip(names, devices, strict=True)
    ]


def assign_gpus(
    seen: Mapping[str, Sequence[VisibleDevice]], declared: Mapping[str, float]
) -> list[DeviceAssignment]:
    """Give each worker a device that no other has; a worker for which none is left has no assignment.

    Examples
    --------
    >>> both = [VisibleDevice("cuda:0", "a"), VisibleDevice("cuda:1", "b")]
    >>> assigned = assign_gpus({"one": both, "other": both, "third": both}, declared={"one": 1})
    >>> [(each.worker, each.device, dict(each.resources)) for each in assigned]
    [('one', 'cuda:0', {'GPU': 1}), ('other', 'cuda:1', {})]
    """
    taken: set[str] = set()
    assigned = []
    # Who sees few has little choice.
    for worker in sorted(seen, key=lambda worker: (len(seen[worker]), worker)):
        device = next((device for device in seen[worker] if device.identity not in taken), None)
        if device is not None:
            taken.add(device.identity)
            resources = {RESOURCE: 1} if declared.get(worker) else {}
            assigned.append(DeviceAssignment(worker, device.name, resources, device.nccl))
    return sorted(assigned, key=lambda each: each.worker)


class DaskExecutor(Executor):
    """Stripes on the workers of a ``distributed.Client``, which all find the graph at the path of the job.

    Raises UsageError if there is no worker, SetupError for one without a graph there, and ReplacedError for
    one with another graph.
    """

    def __init__(self, job: Job, client: Any) -> None:
        self._job = job
        self._client, self._watch = client, Watch(client)
        with cluster_errors(client):
            assigned = _assignments(job, client)
            # Whoever asks a worker that is gone waits until that is given up.
            living = known_workers(client)
        holders = tuple(tuple(name for name in names if name in living) for names in job.holders)
        if not all(holders):
            raise LostError("all workers that had a stripe of the run were lost.", RANK_AGAIN)
        job = replace(job, holders=holders)
        on_devices = _on_devices(job)
        if on_devices:
            job = replace(job, backend=tuple(each.device for each in assigned))
        addresses = {
            each.worker: WorkerAddress(each.worker, f"oocpr-stripes-{job.token}-{each.worker}")
            for each in assigned
        }
        # In the order of their stripes.
        self._names = list(addresses)
        self._addresses = list(addresses.values())
        of = {name: [k for k, each in enumerate(assigned) if each.worker == name] for name in self._names}
        self._owned, self._saved = of, job.resumed
        self._stripes = {
            name: str(own[0]) if len(own) == 1 else f"{own[0]}-{own[-1]}" for name, own in of.items()
        }
        self._resources = {each.worker: dict(each.resources) or None for each in assigned}
        self._epochs, self._nodes, self._peak = count(), job.plan.stats.nodes, 0
        self._held: list[Any] = []
        self._ahead: deque[tuple[Any, ...]] = deque()
        self._ranks = SharedMemory(self._nodes)
        try:
            self._ranks.fill()
            with self._errors():
                places = self._places(assigned) if on_devices else []
                jobs = self._watch.during(partial(client.sync, _scattered, client, job, self._names))
                self._held.extend(jobs)
                for rank, (address, job_there) in enumerate(zip(self._addresses, jobs, strict=True)):
                    actor = client.submit(
                        StripeWorker,
                        job_there,
                        of[address.worker],
                        rank,
                        self._addresses,
                        places,
                        key=address.key,
                        workers=[address.worker],
                        resources=self._resources[address.worker],
                        actor=True,
                        priority=1,
                        retries=0,
                    )
                    self._held.append(actor)
            self._workers = self._wait(self._held[len(jobs) :])
            if places:
                able = all(self._ask("meet"))
                if not able:
                    self._ask("leave")
                _LOG.info("pushes go from device to device %s", "with NCCL" if able else "through the host")
        except BaseException:
            # Nobody has this executor, so nobody can close it.
            self.close()
            raise

    def run_passes(
        self, state: State, note: Callable[[PassRecord], None], ending: Callable[[], bool]
    ) -> State:
        """See Executor."""
        decision: Any = Decision(state, EPOCH_SECONDS, fresh=True)
        ahead, pausing = self._ahead, False

        def pause() -> None:
            nonlocal pausing
            if not pausing and ending():
                pausing = True
                with self._errors():
                    self._workers[0].pause()

        while True:
            while len(ahead) < EPOCHS_AHEAD:
                # The scheduler may hear that a task's result is not wanted before it hears of what needs it.
                ahead.append(self._submit_epoch(decision))
                decision = ahead[-1][0]
            (decided,) = self._wait([ahead[0][0]], pause)
            ahead.popleft()
            for record in decided.records:
                note(record)
            if decided.over:
                ahead.clear()
                return cast("State", decided.state)
            pause()

    def _submit_epoch(self, decision: Any) -> tuple[Any, ...]:
        """Have an epoch follow a decision; returns futures of what that leads to, and of the reports."""
        epoch = next(self._epochs)
        with self._errors():
            reports = [
                self._client.submit(sweep_epoch, address.key, decision, **self._on(address, "sweep", epoch))
                for address in self._addresses
            ]
            made = self._client.submit(
                reduce_epoch, self._held[0], self._nodes, decision, reports,
                key=(f"reduce-{self._job.token[:8]}", epoch), workers=self._names, pure=False, retries=0,
                priority=1,
            )  # fmt: skip
        return made, *reports

    def _on(self, address: WorkerAddress, what: str, epoch: int) -> dict[str, Any]:
        """How a task is submitted that a worker does to its stripes."""
        return {
            "key": (f"{what}-{self._stripes[address.worker]}-{self._job.token[:8]}", epoch),
            "workers": [address.worker],
            "resources": self._resources[address.worker],
            "pure": False,
            "retries": 0,
            "priority": 1,
        }

    def save(self, number: int) -> SavedPass:
        """See Executor; without a checkpoint each worker has a copy of its neighbour's stripes, too."""
        checksums = self._ask("save", number, self._saved)
        self._saved = number
        if not self._job.copies:
            return SavedPass.of(checksums)
        names, of = self._names, self._owned
        if len(names) > 1:
            with self._errors():
                calls = [
                    worker.copy(number, of[names[rank - 1]], names[rank - 1])
                    for rank, worker in enumerate(self._workers)
                ]
            self._wait(calls)
        owners = [names.index(name) for name in names for _ in of[name]]
        holders = tuple((names[owner], names[(owner + 1) % len(names)]) for owner in owners)
        return SavedPass.of(checksums, holders)

    def has_grown(self) -> bool:
        """See Executor; a run on devices is planned for those that it has."""
        could = min(len(self._job.plan.stripes), self._watch.living)
        return not _on_devices(self._job) and len(self._names) < could

    def finish(self, state: State) -> NDArray[np.float64]:
        """See Executor."""
        with self._errors():
            made = [
                self._client.submit(
                    finish_stripes, address.key, state, self._ranks.address, **self._on(address, "finish", 0)
                )
                for address in self._addresses
            ]
        self._wait_until_done(made)
        with self._errors():
            # Not through the scheduler, if this process reaches the workers.
            found = self._watch.during(partial(self._client.gather, made, direct=True), self._names)
        ranks = self._ranks.array
        self._peak = max(peak for _, _, peak in found)
        for first, part, _ in found:
            if part is not None:
                if part.size == self._nodes:
                    return cast("NDArray[np.float64]", part)
                ranks[first : first + part.size] = part
        return ranks

    def peak_memory(self) -> int:
        """See Executor; of the workers, known once they have finished."""
        return self._peak

    def close(self) -> None:
        """See Executor."""
        self._ranks.close()
        # After a fault there is nothing left to free, or nobody to be asked.
        with suppress(LostError, DoesNotFitError), self._errors():
            left = sorted(set(self._names) & set(check_workers(self._client, ())))
            if left:
                ask = partial(self._client.run, close_workers, self._job.token, on_error="ignore")
                self._watch.during(partial(ask, workers=left), left)
        # Cancelling would ask the scheduler for tasks, dependents of these, that this client does not hold.
        for future in (
            *(each for futures in reversed(self._ahead) for each in futures),
            *reversed(self._held),
        ):
            future.release()

    def _places(self, assigned: Sequence[DeviceAssignment]) -> list[Place]:
        """Where in a group devices of workers with a stripe each are; none if they cannot, or shall not."""
        names = self._names
        if not len(names) == len(assigned) > 1 or os.environ.get(SWITCH) == "off":
            return []
        # Who cannot come would be waited for.
        if not all(each.nccl for each in assigned):
            return []
        kept = self._each_of(names, reserve_group, self._job.token)
        devices = [each.device for each in assigned]
        unique_id = common_group(kept, devices)
        if unique_id is None:
            (unique_id,) = self._each_of(names[:1], new_unique_id)
        return [Place(unique_id, device, rank, len(names)) for rank, device in enumerate(devices)]

    def _each_of(self, names: list[str], question: Callable[..., Any], *about: Any) -> list[Any]:
        """Answers of the processes of workers."""
        answers = self._watch.during(partial(self._client.run, question, *about, workers=names), names)
        return [answers[name] for name in names]

    def _ask(self, question: str, *about: Any) -> list[Any]:
        """Ask all workers the same."""
        with self._errors():
            calls = [getattr(worker, question)(*about) for worker in self._workers]
        return self._wait(calls)

    def _wait(self, calls: Sequence[Any], meanwhile: Callable[[], None] = lambda: None) -> list[Any]:
        """Results of all calls, or the first failure of one; now and then does something else meanwhile."""
        with self._errors():
            while (results := self._client.sync(results_of, calls)) is None:
                self._watch.check(self._names)
                meanwhile()
            return list(results)

    def _wait_until_done(self, futures: Sequence[Any]) -> None:
        from distributed import wait

        with self._errors():
            while True:
                try:
                    wait(futures, timeout=CHECK_INTERVAL)
                except TimeoutError:
                    self._watch.check(self._names)
                else:
                    return

    def _errors(self) -> AbstractContextManager[None]:
        return cluster_errors(self._client, self._names)


def _on_devices(job: Job) -> bool:
    return isinstance(job.backend, str) and names_workers_devices(job.backend)


def _assignments(job: Job, client: Any) -> list[DeviceAssignment]:
    """Where each stripe is computed: workers in the order of their addresses, neighbours together."""
    stripes, planned = len(job.plan.stripes), len({tiers.device for tiers in job.plan.devices})
    if _on_devices(job):
        assigned = assign_workers(client)
        if len(assigned) < planned:
            raise LostError(
                f"the run was planned for {planned} workers with devices and {len(assigned)} are left.",
                RANK_AGAIN,
            )
        assigned = assigned[:planned] or assigned
    else:
        workers = sorted(known_workers(client))
        assigned = [DeviceAssignment(worker, "") for worker in workers]
    if not assigned:
        raise UsageError("the Dask client has no workers.", "Start workers, or leave the client out.")
    return [assigned[stripe_owner(stripe, stripes, len(assigned))] for stripe in range(stripes)]


async def _scattered(client: Any, value: Any, workers: Sequence[str]) -> list[Any]:
    """Send a value to each worker by itself.

    What is sent to several at once has a lock of the scheduler until all have it, also if one is stopped.
    """
    sent = [client.scatter(value, workers=[name], hash=False, asynchronous=True) for name in workers]
    return list(await asyncio.gather(*sent))


async def results_of(calls: Sequence[Any]) -> list[Any] | None:
    """What calls return, or None if some have not ended after CHECK_INTERVAL; raises the first failure."""

    async def result(call: Any) -> Any:
        try:
            return await call
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Of a future that Dask has given up; Dask's own way out of its loop loses it.
            raise CancelledError(str(error)) from error

    waiting = [asyncio.ensure_future(result(call)) for call in calls]
    try:
        done, pending = await asyncio.wait(
            waiting, timeout=CHECK_INTERVAL, return_when=asyncio.FIRST_EXCEPTION
        )
    finally:
        for call, one in zip(calls, waiting, strict=True):
            # A client attaches all that it fetches to a fetch that was cancelled before it began.
            if getattr(call, "status", "pending") != "pending":
                one.add_done_callback(_leave)
            else:
                one.cancel()
    ended = [one.result() for one in waiting if one in done]
    return None if pending else ended


def _leave(ended: asyncio.Task[Any]) -> None:
    """Look at what a task has ended with, which asyncio speaks of if nobody does."""
    if not ended.cancelled():
        ended.exception()


def remove_all_copies(client: Any, name: str) -> None:
    """Remove what workers have kept of a run that has ended."""
    with suppress(LostError, DoesNotFitError), cluster_errors(client):
        left = sorted(check_workers(client, ()))
        ask = partial(client.run, remove_copies, name, workers=left, on_error="ignore")
        Watch(client).during(ask, left)


def rank_on_worker(
    client: Any,
    path: str,
    identity: str,
    settings: Settings,
    threads: int | None,
    teleport: NDArray[np.float64] | None,
    start: NDArray[np.float64] | None,
) -> Solution:
    """Rank a graph that one worker keeps in memory whole; its progress stays there.

    Raises LostError if worker after worker dies, or none is there to rank.
    """
    with cluster_errors(client, remedy=_MORE_MEMORY):
        future = client.submit(rank_whole, path, identity, settings, threads, teleport, start, pure=False)
        begun: float | None = None
        while (results := client.sync(results_of, [future])) is None:
            if check_workers(client, ()):
                begun = None
                continue
            begun = begun or time.monotonic()
            if time.monotonic() - begun > RETURN_TIMEOUT:
                raise LostError("all workers were lost.", _MORE_MEMORY)
        solution: Solution = results[0]
    return solution
