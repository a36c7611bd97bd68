"""Steps of an import on the workers of a Dask client, which send each other what the steps keep.

A step is a task. What it keeps is in an actor of its worker, one for each import: if the client ends, so do
its actors, and their files have no names. Workers ask each other's actors directly; the scheduler and the
client see arguments and results of steps, which are small.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from oocpr.engine.executors.dask_client import (
    CHECK_INTERVAL,
    NOTICE_TIMEOUT,
    RETURN_TIMEOUT,
    SILENT_TIMEOUT,
    Watch,
    check_versions,
    check_workers,
    cluster_errors,
    known_workers,
)
from oocpr.errors import DoesNotFitError, LostError, OocprError, UsageError
from oocpr.system import whole_memory
from oocpr.units import format_bytes

T = TypeVar("T")

ATTEMPTS = 5
"""Times that workers may be lost in an import: if it happens that often, it is the import that ends them."""

CONNECT_TIMEOUT = 5.0
"""Seconds in which another worker has to take a connection: Dask would go on trying for long."""

MEMORY_SHARE = 0.6
"""Part of a worker's memory limit that an import takes: from 0.7 on Dask spills, from 0.8 on it pauses."""

_HANDLER = "oocpr_import"
_AGAIN = "Start the import again with more memory a worker."


class Holder(NamedTuple):
    """A worker, and the key of the actor there that keeps what steps leave."""

    address: str
    key: str


class Step(Protocol):
    """What is to be called on a worker, on any for None."""

    @property
    def function(self) -> Callable[..., Any]:
        """Called with an `ImportWorker` and the arguments."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Arguments."""

    @property
    def holder(self) -> Any:
        """Where to call it."""


class PeerLostError(Exception):
    """A worker does not have any more what another one wants of it."""


class ImportWorker:
    """What a worker has of an import: the files and counts that steps keep, in an actor."""

    def __init__(self, key: str, folder: str | None) -> None:
        from distributed import get_worker

        self._worker: Any = get_worker()
        self._key = key
        self.name = f"worker {self._worker.address}"
        self.folder = Path(folder or self._worker.local_directory)
        self.threads: int = self._worker.state.nthreads
        self.memory = int(MEMORY_SHARE * (self._worker.memory_manager.memory_limit or whole_memory()))
        self.kept: dict[str, Any] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._worker.handlers[_HANDLER] = _server(self._worker)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Give what is kept under a name; the first that asks makes it."""
        with self._locks.setdefault(name, threading.Lock()):
            if name not in self.kept:
                self.kept[name] = make()
            found: T = self.kept[name]
            return found

    def fetch(self, holder: Holder, name: str, method: str, *args: Any) -> Any:
        """Call a method of what another worker keeps; PeerLostError if that is not there any more."""
        if holder.key == self._key:
            return getattr(self.kept[name], method)(*args)
        asked = self._ask(holder, name, method, args)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self._worker.loop.asyncio_loop).result()
        except (OSError, TimeoutError, CancelledError, KeyError) as error:
            if isinstance(error, OocprError):
                raise
            raise PeerLostError(f"{holder.address}: {error!r}") from error

    async def _ask(self, holder: Holder, name: str, method: str, args: tuple[Any, ...]) -> Any:
        pool = self._worker.rpc
        comm = await asyncio.wait_for(pool.connect(holder.address), CONNECT_TIMEOUT)
        pool.reuse(holder.address, comm)
        ask = getattr(pool(holder.address), _HANDLER)
        answer = await asyncio.wait_for(
            ask(key=holder.key, name=name, method=method, args=list(args)), 2 * SILENT_TIMEOUT
        )
        return answer["result"]


def _server(worker: Any) -> Callable[..., Any]:
    """Make what answers other workers; KeyError for an import or a name that is not here."""

    async def serve(key: str, name: str, method: str, args: list[Any]) -> Any:
        from distributed.protocol.serialize import to_serialize

        kept = worker.state.actors[key].kept[name]
        # Files are read meanwhile.
        result = await asyncio.to_thread(getattr(kept, method), *args)
        # Between workers of one process, Dask unwraps what is inside a message and no message itself.
        return {"result": to_serialize(result)}

    return serve


def run_step(token: str, holder: Holder | None, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Carry out a step, in a task of a worker; returns the key of the actor here, result and error."""
    from distributed import get_worker

    actors: dict[Any, Any] = get_worker().state.actors
    keys = [key for key in actors if str(key).startswith(token)] if holder is None else [holder.key]
    here = actors.get(keys[-1]) if keys else None
    if here is None:
        raise PeerLostError(f"the worker has nothing of the import {token}")
    try:
        return keys[-1], function(here, *args), None
    except OocprError as error:
        # Errors that are MemoryErrors as well cannot be unpickled as Dask pickles them.
        return keys[-1], None, (type(error), error.cause, error.remedy)


class DaskImportWorkers:
    """The workers of a ``distributed.Client``, for an import; what they keep is given back by `close`.

    `folder` is where they put files, None for their own. Raises UsageError if there is no worker, and
    SetupError for one of another version, which may encode otherwise.
    """

    def __init__(self, client: Any, folder: str | None) -> None:
        self._client, self._watch, self._folder = client, Watch(client), folder
        self._token = f"oocpr-import-{secrets.token_hex(8)}"
        self._actors: dict[str, tuple[Holder, Any]] = {}
        self._losses = 0
        if not check_workers(client, (), _AGAIN):
            raise UsageError("the Dask client has no workers.", "Start workers, or leave the client out.")
        check_versions(client, _AGAIN)

    def living(self) -> Sequence[Holder]:
        """Give the workers there are, one at least; LostError if there are none."""
        begun = time.monotonic()
        while True:
            there = self._there()
            for address, (_, actor) in list(self._actors.items()):
                if address not in there or actor.status in ("error", "lost", "cancelled"):
                    del self._actors[address]
                    if address in there:
                        self._lose()
            for address in sorted(set(there) - set(self._actors)):
                holder = Holder(address, f"{self._token}-{secrets.token_hex(4)}")
                self._actors[address] = holder, self._client.submit(
                    ImportWorker, holder.key, self._folder, key=holder.key, workers=[address], actor=True,
                    pure=False, retries=0,
                )  # fmt: skip
            ready = sorted(holder for holder, actor in self._actors.values() if actor.status == "finished")
            waited = time.monotonic() - begun
            # Some may be busy with the work of others.
            if ready and (len(ready) == len(there) or waited > RETURN_TIMEOUT):
                return ready
            if not there and waited > RETURN_TIMEOUT:
                raise LostError("all workers were lost.", _AGAIN)
            if waited > SILENT_TIMEOUT:
                self._refuse_paused()
            time.sleep(0.05)

    def run(
        self, calls: Mapping[int, Step], on_done: Callable[[int], None] = lambda _: None
    ) -> dict[int, tuple[Holder, Any]]:
        """Carry out steps; returns where, and what they returned. Those that were lost are missing.

        `on_done` gets the number of each that ends. Raises what a step raises, and LostError if steps were
        lost too often.
        """
        from distributed import KilledWorker, wait

        lost = False
        holders = {holder.key: holder for holder in self.living()}
        addresses = [holder.address for holder in holders.values()]
        pending: dict[Any, int] = {}
        waiting_since = time.monotonic()
        done: dict[int, tuple[Holder, Any]] = {}
        with cluster_errors(self._client, remedy=_AGAIN):
            for number, call in calls.items():
                if call.holder is not None and call.holder.key not in holders:
                    continue
                future = self._client.submit(
                    run_step, self._token, call.holder, call.function, call.args,
                    key=(f"{call.function.__name__}-{secrets.token_hex(4)}", number), pure=False, retries=0,
                    workers=addresses if call.holder is None else [call.holder.address],
                )  # fmt: skip
                pending[future] = number
        try:
            # Who wants something of a lost worker waits for that: all is begun again without it.
            while pending and not lost:
                ended: set[Any] = set()
                with suppress(TimeoutError):
                    ended = wait(list(pending), timeout=CHECK_INTERVAL, return_when="FIRST_COMPLETED").done
                    waiting_since = time.monotonic()
                for future in ended:
                    try:
                        key, result, error = future.result(timeout=CHECK_INTERVAL)
                    except (PeerLostError, KilledWorker, CancelledError):
                        lost = True
                        break
                    except TimeoutError:  # it may have been lost with its worker
                        ended.clear()
                        break
                    number = pending.pop(future)
                    if error is not None:
                        kind, cause, remedy = error
                        raise kind(cause, remedy)
                    done[number] = holders[key], result
                    on_done(number)
                if not ended:
                    lost = lost or not set(addresses) <= set(self._there())
                    if time.monotonic() - waiting_since > SILENT_TIMEOUT:
                        self._refuse_paused()
        finally:
            for future in pending:
                future.cancel()
        if lost:
            # The scheduler learns of it by a way of its own.
            time.sleep(NOTICE_TIMEOUT)
        if len(done) < len(calls):
            self._lose()
        return done

    def _lose(self) -> None:
        """Count a loss."""
        self._losses += 1
        if self._losses > ATTEMPTS:
            raise LostError(f"{self._losses} times workers of the import were lost.", _AGAIN)

    def _there(self) -> Mapping[str, int]:
        """Find the workers there are; DoesNotFitError if one of the import was ended for its memory."""
        with suppress(LostError):
            self._watch.check(sorted(self._actors), _AGAIN)
        return check_workers(self._client, (), _AGAIN)

    def _refuse_paused(self) -> None:
        """Raise DoesNotFitError for a worker that Dask gives no work, since its memory is nearly full."""
        workers = known_workers(self._client, _AGAIN)
        for address, about in workers.items():
            if about.get("status") == "paused":
                raise DoesNotFitError(
                    f"worker {address} is paused: {format_bytes(about['memory_limit'])}, its memory limit, "
                    "is nearly reached.",
                    "Give workers a higher memory limit, or fewer threads.",
                )

    def close(self) -> None:
        """Give back what workers keep."""
        for _, actor in self._actors.values():
            actor.release()
