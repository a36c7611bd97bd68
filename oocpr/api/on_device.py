"""Plans of runs on one CUDA device, and the tiles that they take the graph in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.settings import Settings
    from oocpr.plan.plan import GraphFacts, Plan
    from oocpr.store.graph import GraphStore


def plan_on_one_device(
    store: GraphStore,
    facts: GraphFacts,
    settings: Settings,
    *,
    memory: int,
    base: int,
    device_memory: str | int | None,
    device: str,
    personalized: bool,
) -> tuple[Plan, RankedStore]:
    """Plan a run on a device; returns the graph in the tiles that it takes, too.

    One device computes everything: it needs neither small tiles nor several stripes. Stored tiles are joined
    where the joined ones stay, on the device or in memory, since joining takes longer than reading.

    Parameters
    ----------
    store, facts
        The graph.
    settings
        Of the run.
    memory, base
        Bytes the process may use, and those it uses already.
    device_memory
        The same of the device; None for what it has free.
    device
        Its name.
    personalized
        Whether the teleport vector is not uniform.
    """
    from oocpr.engine.backends.cuda_device import free_memory
    from oocpr.engine.joined import JoinedStore
    from oocpr.plan.joining import JOINED_EDGES, STREAMED_EDGES, joined_cuts, joined_facts, joining_bytes
    from oocpr.plan.on_device import plan_on_device

    given = free_memory(device) if device_memory is None else parse_bytes(device_memory)

    def planned(facts: GraphFacts, base: int, *, stays: bool) -> Plan:
        return plan_on_device(
            facts,
            stays=stays,
            method=settings.method,
            reads=settings.reads,
            damping=settings.damping,
            tol=settings.tol,
            mixing=settings.mixing,
            memory=memory,
            base=base,
            device_memory=given,
            promised=device_memory is not None,
            personalized=personalized,
        )

    sizes = [(edges, True) for edges in JOINED_EDGES] + [(edges, False) for edges in STREAMED_EDGES]
    for joined_edges, stays in sizes:
        cuts = joined_cuts(facts.tiles, facts.tile_edges, joined_edges)
        larger = joined_facts(facts, store.tile_rows, cuts)
        plan = planned(larger, base + joining_bytes(facts, larger), stays=stays)
        if plan.fits and plan.cached_tiles == larger.tiles:
            return plan, JoinedStore(store, facts.tile_edges, cuts)
    return planned(facts, base, stays=False), store
