"""What workers of a client must have before they get work: this version, and the graph of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr import version
from oocpr.engine.executors.dask_client import RANK_AGAIN, check_workers, telling_faults
from oocpr.errors import NotAStoreError, OocprError, ReplacedError, SetupError

if TYPE_CHECKING:
    from oocpr.store.graph import GraphStore


def own_version() -> str:
    """Say which version of this package a process has."""
    return version.__version__


def check_versions(client: Any, remedy: str = RANK_AGAIN) -> None:
    """Raise SetupError if a worker of a ``distributed.Client`` has another version, or lacks this package.

    Parameters
    ----------
    client
        The client.
    remedy
        What to do if a worker was lost meanwhile, which raises LostError.
    """
    with telling_faults(client, remedy=remedy):
        for worker, answer in client.run(own_version, on_error="return").items():
            if isinstance(answer, OSError):
                check_workers(client, [worker], remedy)
            if answer != own_version():
                raise SetupError(
                    f"worker {worker} has no oocpr {own_version()} but answers {answer!r}.",
                    "Install the same version on all workers.",
                )


def open_on_worker(path: str, identity: str | None) -> GraphStore:
    """Open the graph of a run on the worker that calls this.

    Parameters
    ----------
    path
        Where the graph's store is.
    identity
        What the store's identity has to be.

    Raises
    ------
    SetupError
        If the worker finds no store there, or cannot open it.
    ReplacedError
        If the store there is of another graph.
    """
    from distributed import get_worker

    from oocpr.store.graph import open_store

    worker = get_worker().address
    try:
        store = open_store(path)
        found = store.identity
    except (OocprError, OSError, ImportError, ValueError) as error:
        if isinstance(error, OocprError) and not isinstance(error, NotAStoreError):
            raise
        cause = error.cause if isinstance(error, OocprError) else str(error)
        raise SetupError(
            f"worker {worker} cannot open the graph at {path}: {cause}",
            "Put the store where every worker finds it under this path, such as a shared folder.",
        ) from error
    if found != identity:
        raise ReplacedError(
            f"worker {worker} has the graph {found} at {path}, and the run is of the graph {identity}.",
            "Put the same store under this path on all workers, such as in a shared folder.",
        )
    return store
