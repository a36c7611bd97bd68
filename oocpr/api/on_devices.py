"""Plans of runs on several CUDA devices of this machine, and the tiles that they take the graph in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.errors import UsageError
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.settings import Settings
    from oocpr.plan.model import Rates
    from oocpr.plan.plan import GraphFacts, Plan
    from oocpr.store.graph import GraphStore

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


def plan_on_several_devices(
    store: GraphStore,
    facts: GraphFacts,
    settings: Settings,
    *,
    memory: int,
    base: int,
    device_memory: str | int | None,
    devices: tuple[str, ...],
    personalized: bool,
    rates: Rates | None,
) -> tuple[Plan, RankedStore]:
    """Plan a run on several devices, one stripe on each; returns the graph in the tiles that it takes, too.

    A graph of fewer tiles than devices takes as many of them, the first, as it has tiles. Stored tiles are
    joined within the stripes where the joined ones stay, on a device or in memory.

    Parameters
    ----------
    store, facts, settings, memory, base, personalized, rates
        As for `plan_on_one_device`.
    device_memory
        Bytes the process may use of each device; None for what each has free.
    devices
        Their names.
    """
    from oocpr.engine.backends.cuda_device import free_memory
    from oocpr.engine.joined import JoinedStore
    from oocpr.plan.joining import JOINED_EDGES, STREAMED_EDGES, joined_facts, joining_bytes
    from oocpr.plan.on_devices import even_cuts, plan_on_devices
    from oocpr.plan.tiling import stripe_tiles

    devices = devices[: facts.tiles]
    given = [
        free_memory(device) if device_memory is None else parse_bytes(device_memory) for device in devices
    ]

    def planned(
        facts: GraphFacts, tiled: RankedStore, stripes: tuple[tuple[int, int], ...], base: int, *, stays: bool
    ) -> Plan:
        return plan_on_devices(
            facts,
            tiled.tile_rows,
            stripes,
            given,
            memory=memory,
            base=base,
            stays=stays,
            method=settings.method,
            reads=settings.reads,
            damping=settings.damping,
            tol=settings.tol,
            mixing=settings.mixing,
            promised=device_memory is not None,
            personalized=personalized,
            rates=rates,
        )

    sizes = [(edges, True) for edges in JOINED_EDGES] + [(edges, False) for edges in STREAMED_EDGES]
    for joined_edges, stays in sizes:
        cuts, stripes = even_cuts(facts.tiles, facts.tile_edges, joined_edges, len(devices))
        larger = joined_facts(facts, store.tile_rows, cuts)
        joined = JoinedStore(store, facts.tile_edges, cuts)
        joining = joining_bytes(facts, larger, READERS * len(devices))
        plan = planned(larger, joined, stripes, base + joining, stays=stays)
        if plan.fits and plan.cached_tiles == larger.tiles:
            return plan, joined
    stripes = stripe_tiles(facts.tiles, len(devices))
    return planned(facts, store, stripes, base, stays=False), store
