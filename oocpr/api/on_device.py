"""Plans of runs on one CUDA device, and the tiles that they take the graph in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oocpr.api.tile_sizes import Tiled, fastest_that_fits, joined_tiles
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from oocpr.api.tile_sizes import Planned
    from oocpr.engine.settings import Settings
    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.merge_size import TileSize
    from oocpr.store.graph import GraphStore


def plan_on_one_device(
    store: GraphStore,
    stats: GraphStats,
    settings: Settings,
    *,
    memory: int,
    base: int,
    device_memory: str | int | None,
    device: str,
    personalized: bool,
    started: bool = False,
    reproducible: bool = False,
) -> Planned:
    """Plan a run on a device; returns the graph in the tiles that it takes, too.

    One device computes everything: it needs neither small tiles nor several stripes.

    Parameters
    ----------
    store, stats
        The graph.
    settings
        Of the run.
    memory, base
        Bytes the process may use, and those it uses already.
    device_memory
        The same of the device; None for what it has free.
    device
        Its name.
    personalized, started
        Whether the teleport vector is not uniform, and whether the run begins from another.
    reproducible
        Whether the graph and the settings alone decide on tiles and sweeps.
    """
    from oocpr.engine.cuda.discovery import free_memory
    from oocpr.plan.device_plan import plan_on_device
    from oocpr.plan.merge_size import STREAMED_EDGES, joined_cuts
    from oocpr.plan.tile_bytes import stored
    from oocpr.system import usable_cores

    given = free_memory(device) if device_memory is None else parse_bytes(device_memory)
    sizes = store.tile_sizes()

    def planned(size: TileSize) -> Planned:
        tiled = Tiled(stats, store, encoded=stored(stats, sizes))
        if size.edges is not None:
            cuts = joined_cuts(stats.tiles, stats.tile_edges, size.edges)
            tiled = joined_tiles(store, stats, cuts, sizes, size)
        plan = plan_on_device(
            tiled.stats,
            tiled.store.tile_rows,
            stays=size.stays,
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
            started=started,
            rows_in_host=size.rows_in_host,
            sliced=size.sliced,
            joining=tiled.joining,
            encoded=tiled.encoded,
        )
        return replace(plan, reproducible=reproducible), tiled.store

    return fastest_that_fits(stats, STREAMED_EDGES, planned, cores=usable_cores(), reproducible=reproducible)
