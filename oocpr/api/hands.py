"""Who sorts and packs for an import: this process, the workers of a client, or a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oocpr.errors import UsageError

if TYPE_CHECKING:
    from oocpr.ingest.sort.executor import SortEncodeService


def import_hands(client: Any, device: str) -> SortEncodeService | None:
    """Choose who sorts the edges and encodes the tiles.

    Parameters
    ----------
    client
        A ``distributed.Client``, or None.
    device
        ``cpu``, or a CUDA device.

    Returns
    -------
    SortEncodeService or None
        None for this process.

    Raises
    ------
    UsageError
        Where the client has no workers, the device cannot be had, or both are asked for.
    """
    if device == "cpu":
        if client is None:
            return None
        from oocpr.engine.executors.dask_import import ClusterHands

        return ClusterHands(client)
    if client is not None:
        raise UsageError(
            f"device {device} and a Dask client are both asked to sort.", "Leave one of them out."
        )
    from oocpr.engine.cuda.discovery import is_cuda, open_device
    from oocpr.engine.cuda.import_device import DevicePacker

    if not is_cuda(device):
        raise UsageError(f"device {device!r} is not known.", "Use cpu, cuda, or cuda: and a number.")
    return DevicePacker(open_device(device))
