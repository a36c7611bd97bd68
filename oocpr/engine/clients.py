"""The Dask client of a command: of a cluster that runs already, or of workers on this machine."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from oocpr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 10
"""Seconds in which a scheduler has to answer."""


@contextmanager
def joined(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """Give a client while a command needs it; None where it wants none.

    Parameters
    ----------
    scheduler
        Address of a scheduler, such as ``"tcp://10.0.0.1:8786"``; None for none that runs already.
    workers
        Worker processes to start on this machine, which share its processors; None to start none.

    Raises
    ------
    UsageError
        Where both are given, no scheduler answers, or Dask is not installed.

    Examples
    --------
    >>> with joined(None, None) as client:
    ...     print(client)
    None
    """
    if scheduler is None and workers is None:
        yield None
        return
    if scheduler is not None and workers is not None:
        raise UsageError(
            "Workers are to be started, and those of a scheduler to be used.",
            "Give --scheduler or --workers, not both.",
        )
    try:
        from distributed import Client, LocalCluster
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Workers cannot be used: {error}.", "Install what they need: pip install 'oocpr[cluster]'."
        ) from error
    if workers is not None:
        cores = max(1, len(os.sched_getaffinity(0)) // workers)
        with ExitStack() as stack:
            with _uninterrupted():
                cluster = LocalCluster(n_workers=workers, threads_per_worker=cores, dashboard_address=":0")
                stack.enter_context(cluster)
                client = stack.enter_context(Client(cluster))
            yield client
        return
    try:
        client = Client(scheduler, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"No Dask scheduler answers at {scheduler}: {error}.",
            "Give its address, such as tcp://HOST:8786.",
        ) from error
    with client:
        yield client


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off meanwhile, and for good in processes begun meanwhile, as they end with this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    # Processes take over what the thread blocks that begins them; the first one would unblock it.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if asked:
        signal.raise_signal(signal.SIGINT)
