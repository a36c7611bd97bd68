"""Plans of runs on several CUDA devices of this machine, and the tiles that they take the graph in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.errors import UsageError
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.settings import Settings
    from oocpr.plan.plan import GraphFacts, Plan
    from oocpr.store.graph import GraphStore

    Planned = tuple[Plan, RankedStore]

READERS = 2
"""Threads of each stripe that read and join tiles."""


def check_devices(devices: tuple[str, ...], stripes: int | None, *, alone: bool) -> None:
    """Refuse what several devices do not go with.

    Raises
    ------
    UsageError
        With the way out.

    Examples
    --------
    >>> check_devices(("cuda:0", "cuda:1"), None, alone=True)
    """
    if not alone:
        raise UsageError(
            f"devices {', '.join(devices)} are of one process and a Dask client was given.",
            "Use device cuda, which each worker has its own of, or leave the client out.",
        )
    if stripes not in (None, len(devices)):
        raise UsageError(
            f"{stripes} stripes were asked for on {len(devices)} devices.",
            "Leave the stripes out: each device has one.",
        )


def memory_of(devices: tuple[str, ...], device_memory: str | int | None, free: Sequence[int]) -> list[int]:
    """Bytes that a run may use of each device.

    Parameters
    ----------
    devices
        Names of devices of this process.
    device_memory
        What the caller gives of each; None for what it has free.
    free
        What each device of the workers of a cluster has free; empty where this process computes.

    Examples
    --------
    >>> memory_of((), None, [5, 7]), memory_of((), "1KiB", [5, 7])
    ([5, 7], [1024, 1024])
    """
    from oocpr.engine.backends.cuda_device import free_memory

    if device_memory is not None:
        return [parse_bytes(device_memory)] * len(free or devices)
    return list(free) or [free_memory(device) for device in devices]


def plan_on_several_devices(
    store: GraphStore,
    facts: GraphFacts,
    settings: Settings,
    *,
    memory: int,
    base: int,
    given: Sequence[int],
    promised: bool,
    personalized: bool,
) -> Planned:
    """Plan a run on several devices, one stripe on each; returns the graph in the tiles that it takes, too.

    A graph of fewer tiles than devices takes as many of them, the first, as it has tiles. Stored tiles are
    joined within the stripes where the joined ones stay, on a device or in memory. Tiles that stay take their
    time by their edges, so each stripe has as many; those that stream take it by their bytes.

    Parameters
    ----------
    store, facts, settings, memory, base, personalized
        As for `plan_on_one_device`.
    given
        Bytes that may be used of each device.
    promised
        Whether these are the caller's word.
    """
    from oocpr.engine.joined import JoinedStore
    from oocpr.plan.joining import JOINED_EDGES, SHARED_EDGES, joined_facts, joining_bytes
    from oocpr.plan.on_devices import even_cuts, plan_on_devices
    from oocpr.plan.tiling import stripe_tiles, weighed_stripes

    given = given[: facts.tiles]

    def planned(
        facts: GraphFacts,
        tiled: RankedStore,
        stripes: tuple[tuple[int, int], ...],
        base: int,
        *,
        stays: bool,
        rows_in_host: bool,
    ) -> Plan:
        return plan_on_devices(
            facts,
            tiled.tile_rows,
            stripes,
            given,
            memory=memory,
            base=base,
            stays=stays,
            rows_in_host=rows_in_host,
            method=settings.method,
            reads=settings.reads,
            damping=settings.damping,
            tol=settings.tol,
            mixing=settings.mixing,
            promised=promised,
            personalized=personalized,
        )

    even = stripe_tiles(facts.tiles, len(given))
    sizes = store.encoded.sizes()
    weighed = even if sizes is None else weighed_stripes(sizes, len(given))

    def largest(edges: tuple[int, ...], *, stays: bool, rows_in_host: bool) -> Planned | None:
        for joined_edges in edges:
            cuts, stripes = even_cuts(even if stays else weighed, facts.tile_edges, joined_edges)
            larger = joined_facts(facts, store.tile_rows, cuts)
            joined = JoinedStore(store, facts.tile_edges, cuts)
            joining = joining_bytes(facts, larger, READERS * len(given))
            plan = planned(larger, joined, stripes, base + joining, stays=stays, rows_in_host=rows_in_host)
            if plan.fits and plan.cached_tiles == larger.tiles:
                return plan, joined
        return None

    found = largest(JOINED_EDGES, stays=True, rows_in_host=False)
    for rows_in_host in (False, True):
        found = found or largest(SHARED_EDGES, stays=False, rows_in_host=rows_in_host)
        if found is None:
            plan = planned(facts, store, weighed, base, stays=False, rows_in_host=rows_in_host)
            found = (plan, store) if plan.fits or rows_in_host else None
    assert found is not None, "the last one is taken, and refused, where none fits"
    return found
