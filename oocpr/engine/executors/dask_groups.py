"""Devices of workers that stay connected from run to run: to connect takes 0.3 s.

A worker keeps the last group that its device was in, if the run ended in order. Before the next run each
worker is asked for it, and if all have their places in the same one they go on in that; else they meet anew.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from oocpr.engine.cuda.backend import CudaBackend
    from oocpr.engine.cuda.communication import Communicator


class Place(NamedTuple):
    """A device's place in a group, which is found by `unique_id`."""

    unique_id: Any
    device: str
    rank: int
    size: int


_LOCK = Lock()
_KEPT: dict[str, tuple[Place, Communicator]] = {}
"""By the addresses of workers: those of tests share a process."""
_RESERVED: dict[tuple[str, str], tuple[Place, Communicator]] = {}
"""By the tokens of runs that begin, and addresses."""


def reserve_group(token: str, dask_worker: Any) -> Place | None:
    """Let a run have the group that a worker keeps, and no other run; returns its place there."""
    with _LOCK:
        kept = _KEPT.pop(dask_worker.address, None)
        if kept is None:
            return None
        _RESERVED[token, dask_worker.address] = kept
        return kept[0]


def common_group(places: Sequence[Place | None], devices: Sequence[str]) -> Any:
    """What the group is found by in which these devices have all places, in their order; None without one.

    Examples
    --------
    >>> places = [Place("id", "cuda:0", 0, 2), Place("id", "cuda:1", 1, 2)]
    >>> common_group(places, ["cuda:0", "cuda:1"]), common_group(places[:1], ["cuda:0"])
    ('id', None)
    """
    first = places[0]
    if first is None:
        return None
    ranks = range(len(devices))
    wanted = [Place(first.unique_id, devices[rank], rank, len(devices)) for rank in ranks]
    return first.unique_id if list(places) == wanted else None


def join_group(token: str, address: str, place: Place, backend: CudaBackend) -> Communicator:
    """Take a place: in the group that was reserved for the run if it is there, else with all others anew."""
    with _LOCK:
        reserved, communicator = _RESERVED.pop((token, address), (None, None))
    if communicator is not None and reserved == place:
        communicator.try_again()
        return communicator
    if communicator is not None:
        communicator.abort()
    return backend.join_group(place.unique_id, place.rank, place.size)


def keep_group(address: str, place: Place, communicator: Communicator) -> None:
    """Keep a group for the next run of a worker; nothing is under way in it."""
    with _LOCK:
        before = _KEPT.pop(address, None)
        _KEPT[address] = place, communicator
    if before is not None:
        before[1].abort()


def drop_reserved(token: str) -> None:
    """Abort what was reserved for a run that has ended before it took it."""
    with _LOCK:
        reserved = [_RESERVED.pop(key) for key in list(_RESERVED) if key[0] == token]
    for _, communicator in reserved:
        communicator.abort()


@atexit.register
def drop_all() -> None:
    """Abort all groups: who leaves one in another way waits for the other members, who may be gone."""
    with _LOCK:
        kept = [*_KEPT.values(), *_RESERVED.values()]
        _KEPT.clear()
        _RESERVED.clear()
    for _, communicator in kept:
        communicator.abort(wait=True)
