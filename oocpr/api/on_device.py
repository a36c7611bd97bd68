"""Plans of runs on one CUDA device, and the tiles that they take the graph in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from oocpr.engine.joined import Joins
    from oocpr.engine.ranked import RankedStore
    from oocpr.engine.settings import Settings
    from oocpr.plan.plan import GraphFacts, Plan
    from oocpr.store.graph import GraphStore

    Planned = tuple[Plan, RankedStore]


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
) -> Planned:
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
    from oocpr.plan.joining import (
        JOINED_AT_ONCE,
        JOINED_EDGES,
        STREAMED_EDGES,
        device_joining,
        joined_cuts,
        joined_facts,
        joining_bytes,
    )
    from oocpr.plan.on_device import plan_on_device

    given = free_memory(device) if device_memory is None else parse_bytes(device_memory)

    def planned(facts: GraphFacts, base: int, *, stays: bool, rows_in_host: bool, joining: int = 0) -> Plan:
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
            rows_in_host=rows_in_host,
            joining=joining,
        )

    def largest(sizes: tuple[int, ...], *, stays: bool, rows_in_host: bool) -> Planned | None:
        for joined_edges in sizes:
            cuts = joined_cuts(facts.tiles, facts.tile_edges, joined_edges)
            larger = joined_facts(facts, store.tile_rows, cuts)
            each = device_joining(facts, larger)
            # The device joins tiles, two at a time or one, or the processor does.
            for at_once in range(JOINED_AT_ONCE, -1, -1):
                host = at_once * each.host or joining_bytes(facts, larger)
                joining = at_once * each.device
                plan = planned(larger, base + host, stays=stays, rows_in_host=rows_in_host, joining=joining)
                if plan.fits and plan.cached_tiles == larger.tiles:
                    joins = _joins(store, facts, device, each.slab, at_once) if joining else None
                    return plan, JoinedStore(store, facts.tile_edges, cuts, joins)
        return None

    found = largest(JOINED_EDGES, stays=True, rows_in_host=False)
    for rows_in_host in (False, True):
        found = found or largest(STREAMED_EDGES, stays=False, rows_in_host=rows_in_host)
        if found is None:
            as_stored = planned(facts, base, stays=False, rows_in_host=rows_in_host)
            found = (as_stored, store) if as_stored.fits or rows_in_host else None
    assert found is not None, "the last one is taken, and refused, where none fits"
    return found


def _joins(store: GraphStore, facts: GraphFacts, device: str, slab_bytes: int, at_once: int) -> Joins:
    from oocpr.engine.backends.cuda_device import open_device
    from oocpr.engine.backends.cuda_join import DeviceJoins

    return DeviceJoins(
        lambda: open_device(device),
        store.encoded,
        nodes=facts.nodes,
        edges=facts.edges,
        tile_edges=facts.tile_edges,
        segments=facts.most_tile_rows + 1,
        slab_bytes=slab_bytes,
        at_once=at_once,
    )
