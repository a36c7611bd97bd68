"""Who sorts and encodes for an import: this process, or the workers of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oocpr.ingest.sort.sorter import SortEncodeService


def import_hands(client: Any) -> SortEncodeService | None:
    """Return what sorts the edges and encodes the tiles on a ``distributed.Client``; None for this process.

    Raises
    ------
    UsageError
        If the client has no workers.
    """
    if client is None:
        return None
    from oocpr.engine.executors.dask_import import DaskSortEncodeService

    return DaskSortEncodeService(client)
