"""Which workers of a Dask client compute on which CUDA device: one device a worker, one worker a device."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from oocpr.engine.cuda.discovery import ALL, all_devices, free_memory, open_device
from oocpr.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESOURCE = "GPU"
"""What workers declare that are meant for tasks on a device: ``dask worker --resources GPU=1``."""


class VisibleDevice(NamedTuple):
    """A device: the name a worker has for it, and what tells it from all others."""

    name: str
    identity: str


@dataclass(frozen=True)
class DeviceAssignment:
    """A worker, its name for the device that it computes on, and how many bytes of that a run may take.

    Tasks on it have to carry the `resources`.
    """

    worker: str
    device: str
    free: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)


def names_workers_devices(device: str) -> bool:
    """Whether a name stands, with a client, for the devices of its workers, one each.

    Examples
    --------
    >>> names_workers_devices("cuda"), names_workers_devices("cuda:all"), names_workers_devices("cpu")
    (True, True, False)
    """
    return device in ("cuda", ALL)


def assign_workers(client: Any) -> list[DeviceAssignment]:
    """Ask the workers of a client for their devices, and assign these; in the order of addresses.

    Raises UsageError if no worker has a device.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    declared = {address: about.get("resources", {}).get(RESOURCE, 0) for address, about in workers.items()}
    meant = [address for address, count in declared.items() if count] or list(workers)
    assigned = assign_gpus(client.run(visible_devices, workers=meant) if meant else {}, declared)
    # Each is asked for its own only, since who asks takes memory of a device.
    free = [client.run(free_memory, each.device, workers=[each.worker])[each.worker] for each in assigned]
    if not assigned:
        raise UsageError(
            "no worker of the Dask client has a CUDA device.",
            "Start workers with CuPy where there are devices, or use device cpu.",
        )
    return [replace(each, free=nbytes) for each, nbytes in zip(assigned, free, strict=True)]


def visible_devices() -> list[VisibleDevice]:
    """Devices of the process that this runs in; none if they cannot be used."""
    try:
        names = all_devices().split(",")
        devices = [open_device(name) for name in names]
    except UsageError:
        return []
    host = socket.gethostname()
    return [VisibleDevice(name, f"{host} {device.bus}") for name, device in zip(names, devices, strict=True)]


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
            assigned.append(DeviceAssignment(worker, device.name, resources=resources))
    return sorted(assigned, key=lambda each: each.worker)
