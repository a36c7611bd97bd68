"""The Dask client of a command, of a cluster that runs already or of workers on this machine; its faults."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import active_children, resource_tracker
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from oocpr import version
from oocpr.errors import DoesNotFitError, LostError, OocprError, SetupError, UsageError
from oocpr.signals import handling
from oocpr.system import usable_cores
from oocpr.units import format_bytes

Answer = TypeVar("Answer")

ANSWER_TIMEOUT = 10
"""Seconds in which a scheduler has to answer."""

START_TIMEOUT = 60
"""Seconds in which a worker of this machine has to be there."""

CLOSE_TIMEOUT = 10
"""Seconds in which workers of this machine end by themselves; then they are killed."""

NOTICE_TIMEOUT = 2.0
"""Seconds in which a scheduler says that a worker is gone whose calls have failed."""

RETURN_TIMEOUT = 60.0
"""Seconds in which a worker has to come back when all are dead."""

CHECK_INTERVAL = 2.0
"""Seconds after which who waits for a call asks whether its worker still lives."""

SILENT_TIMEOUT = 60.0
"""Seconds after which a worker that has not told the scheduler that it lives is taken for lost: a process
that is stopped keeps its connections, so nobody else notices."""

OVER_MEMORY = "worker-restart-memory"
"""Topic under which Dask's nannies say whom they ended for its memory."""

RANK_AGAIN = "Start the run again; the graph's store is unharmed."


@contextmanager
def open_client(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """Give a client while a command needs it, of a scheduler or of workers started here.

    Raises UsageError if both are given or no scheduler answers, SetupError if workers cannot be started, and
    LostError if a worker ends while it is started.
    """
    if scheduler is not None and workers is not None:
        raise UsageError(
            "Workers are to be started, and those of a scheduler to be used.",
            "Give --scheduler or --workers, not both.",
        )
    from distributed import Client

    with _quiet():
        if workers is not None:
            with _own_client(workers) as client:
                yield client
            return
        try:
            client = Client(scheduler, timeout=ANSWER_TIMEOUT)
        except (OSError, ValueError, TypeError) as error:
            remedy = "Give its address, such as tcp://HOST:8786."
            if str(scheduler).startswith("tls://"):
                remedy = "Name the certificates of this client in Dask's configuration, distributed.comm.tls."
            raise UsageError(f"No Dask scheduler answers at {scheduler}: {error}.", remedy) from error
        with ExitStack() as stack:
            stack.callback(_close, client)
            yield client


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Dask logs of faults off standard error meanwhile: they are raised as errors."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "distributed"]
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _own_client(workers: int) -> Iterator[Any]:
    """Start workers on this machine, and end them; they import nothing from the working folder."""
    import dask
    from distributed import Client, LocalCluster

    cores = max(1, usable_cores() // workers)
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        with ExitStack() as stack:
            # What workers lay down there stays behind if they are killed.
            folder = stack.enter_context(
                TemporaryDirectory(prefix="oocpr-workers-", ignore_cleanup_errors=True)
            )
            stack.enter_context(dask.config.set({"temporary-directory": folder}))
            with _uninterrupted(), _start_errors(), _in_time():
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=cores,
                    dashboard_address=":0",
                    silence_logs=logging.CRITICAL,
                    death_timeout=START_TIMEOUT,
                )
                stack.callback(_close, cluster)
                client = Client(cluster)
                stack.callback(_close, client)
            yield client
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def _in_time() -> Iterator[None]:
    """Kill the processes begun meanwhile if that takes longer than START_TIMEOUT, as when one is stopped."""
    before = set(active_children())

    def kill() -> None:
        for process in set(active_children()) - before:
            process.kill()

    timer = threading.Timer(START_TIMEOUT, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _start_errors() -> Iterator[None]:
    """Raise why workers of this machine did not come: an error of their Python, or that they ended."""
    try:
        yield
    except (RuntimeError, OSError, AssertionError) as error:
        # Dask asserts that its processes have ended, and some may still be starting.
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        wrong = next((cause for cause in causes if isinstance(cause, ImportError)), None)
        if wrong is not None:
            raise SetupError(
                f"a Dask worker cannot be started: {wrong}.", "Install oocpr with all that it needs again."
            ) from error
        raise LostError(
            f"a Dask worker ended while it was started: {causes[-1]}.",
            "Run it again; give fewer --workers where memory is short.",
        ) from error


def _close(opened: Any) -> None:
    """Close a client or a cluster in the time that it has; its faults were raised before."""
    # A client that looks for its scheduler would go on with that.
    seconds = 1 if opened.status == "connecting" else CLOSE_TIMEOUT
    # A cluster that is closed does not know them any more, and those that are stopped stay.
    processes = [
        getattr(getattr(nanny, "process", None), "process", None)
        for nanny in getattr(opened, "workers", {}).values()
    ]
    with suppress(OSError, RuntimeError, CancelledError, ValueError, AssertionError):
        opened.close(timeout=seconds)
    for process in processes:
        if process is not None and process.is_alive():
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)


@contextmanager
def cluster_errors(client: Any, workers: Iterable[str] = (), remedy: str = RANK_AGAIN) -> Iterator[None]:
    """Raise errors of this package in place of what Dask raises.

    LostError if the scheduler or one of the `workers` that are needed has gone, DoesNotFitError if one was
    ended for its memory, SetupError if one lacks a package.
    """
    from distributed import KilledWorker

    try:
        yield
    except OocprError:
        raise
    except ImportError as error:
        # Of this process, such errors have a remedy already.
        raise SetupError(
            f"a Dask worker lacks a package: {error}.",
            f"Install oocpr {version.__version__} with what it needs on all workers.",
        ) from error
    except (KilledWorker, CancelledError, OSError, RuntimeError, KeyError) as error:
        # The scheduler's word for a worker that has just gone is its address, as a key that it does not know.
        unknown = isinstance(error, KeyError) and "://" in str(error)
        if isinstance(error, KilledWorker):
            workers = [error.last_worker.address]
        # Dask has no class of its own for a lost actor, and calls end before the scheduler knows why.
        until = time.monotonic() + NOTICE_TIMEOUT
        while True:
            check_workers(client, workers, remedy)
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        if unknown or isinstance(error, KilledWorker | CancelledError | ConnectionError | TimeoutError):
            raise LostError(f"Dask workers were lost: {' '.join(str(error).split())}", remedy) from error
        raise


def check_workers(client: Any, workers: Iterable[str], remedy: str = RANK_AGAIN) -> dict[str, int]:
    """Refuse to wait for workers that are gone; returns the threads of all that are there.

    Raises LostError if the scheduler or one of the workers has gone, and DoesNotFitError if a nanny ended one
    for its memory.
    """
    # A client whose connection ends gives up all that it waits for, even if it finds the scheduler again.
    if client.status not in ("running", "newly-created"):
        raise _lost_scheduler(client, remedy)
    try:
        living: dict[str, int] = client.nthreads(callback_timeout=ANSWER_TIMEOUT)
        gone = sorted(set(workers) - set(living))
        if not gone:
            return living
        # Nannies and workers tell the scheduler by ways of their own.
        time.sleep(0.1)
        ended = client.sync(client.scheduler.events, topic=OVER_MEMORY, callback_timeout=ANSWER_TIMEOUT)
    except (OSError, CancelledError) as error:
        raise _lost_scheduler(client, remedy) from error
    for _, event in ended:
        if event["worker"] in gone:
            raise DoesNotFitError(
                f"worker {event['worker']} had {format_bytes(event['rss'])}, more than its memory limit "
                "allows, and was ended by its nanny.",
                "Give workers a higher memory limit, start more of them, or give a smaller memory to the "
                "run.",
            )
    raise LostError(f"worker {gone[0]} was lost, and what it kept with it.", remedy)


def known_workers(client: Any, remedy: str = RANK_AGAIN) -> dict[str, Any]:
    """What the scheduler knows of the workers of a client, by their addresses; LostError if it has gone."""
    try:
        # Not by ``scheduler_info``: every two seconds the client asks without workers, and that answer may
        # come between the one that was asked for and its return.
        identity = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_TIMEOUT)
    except (OSError, CancelledError) as error:
        raise _lost_scheduler(client, remedy) from error
    workers: dict[str, Any] = identity["workers"]
    return workers


class Watch:
    """Looks after the workers that somebody waits for; raises as `check_workers`, also for silent ones."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._seen: dict[str, tuple[Any, float]] = {}
        self.living = 0
        """Workers that there were at the last check."""

    def check(self, workers: Iterable[str], remedy: str = RANK_AGAIN) -> None:
        """Raise LostError for a worker that is gone, or silent: the scheduler gives it no work any more."""
        client = self._client
        self.living = len(check_workers(client, workers, remedy))
        known = known_workers(client, remedy)
        now = time.monotonic()
        for name in workers:
            seen = known.get(name, {}).get("last_seen")
            last, since = self._seen.get(name, (None, now))
            if seen != last:
                self._seen[name] = seen, now
            elif now - since > SILENT_TIMEOUT:
                client.sync(client.scheduler.unregister, address=name, stimulus_id="oocpr-silent")
                raise LostError(f"worker {name} has not been heard of for {SILENT_TIMEOUT:.0f} s.", remedy)

    def during(
        self, call: Callable[[], Answer], workers: Iterable[str] | None = None, remedy: str = RANK_AGAIN
    ) -> Answer:
        """Do what has to have an answer of workers, by default of all; Dask would wait for it for ever."""
        names = sorted(check_workers(self._client, (), remedy)) if workers is None else list(workers)
        future: Future[Answer] = Future()

        def answer() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised below
                future.set_exception(error)

        # Nobody waits for it at the end of the process.
        threading.Thread(target=answer, name="oocpr-client", daemon=True).start()
        while not wait([future], CHECK_INTERVAL).done:
            self.check(names, remedy)
        return future.result()


def worker_limits(client: Any) -> list[int]:
    """Memory limits in bytes of those workers of a client that have one."""
    workers = known_workers(client)
    return [about["memory_limit"] for about in workers.values() if about.get("memory_limit")]


def worker_count(client: Any) -> int:
    """Workers that a client has now; asked before a run, as after it nobody may be left to answer."""
    with cluster_errors(client):
        return len(client.nthreads())


def own_version() -> str:
    """Version of this package in the process that this runs in."""
    return version.__version__


def wait_for_workers(client: Any, count: int) -> None:
    """Wait until a client has so many workers, or the time is over in which one has to come back.

    Raises LostError if there is none then.
    """
    # A client of a cluster of its own would ask that, which may not know yet who is lost.
    until = time.monotonic() + RETURN_TIMEOUT
    while len(living := check_workers(client, ())) < count and time.monotonic() < until:
        time.sleep(0.1)
    if not living:
        raise LostError("all workers were lost.", RANK_AGAIN)


def check_versions(client: Any, remedy: str = RANK_AGAIN) -> None:
    """Raise SetupError if a worker has another version of this package, or none; LostError if one is lost."""
    with cluster_errors(client, remedy=remedy):
        answers = Watch(client).during(lambda: client.run(own_version, on_error="return"), remedy=remedy)
        for worker, answer in answers.items():
            if isinstance(answer, OSError):
                check_workers(client, [worker], remedy)
            if answer != own_version():
                raise SetupError(
                    f"worker {worker} has no oocpr {own_version()} but answers {answer!r}.",
                    "Install the same version on all workers.",
                )


def _lost_scheduler(client: Any, remedy: str) -> LostError:
    return LostError(f"the Dask scheduler at {client.scheduler.address} was lost.", remedy)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off meanwhile what ends this process, since Dask does not end what it is just starting.

    Processes begun meanwhile never get Ctrl-C, as they end with this one.
    """
    asked: list[int] = []
    try:
        with handling(lambda number, _: asked.append(number)):
            # Processes take over what the thread blocks that begins them; the first one would unblock it.
            resource_tracker.ensure_running()
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        # Also if workers have got it as well, and ended: then it is why they did not come.
        if asked:
            signal.raise_signal(asked[0])
