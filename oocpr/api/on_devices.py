"""Plans of runs on several CUDA devices of this machine, and the tiles that they take the graph in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oocpr.api.tile_sizes import Tiled, fastest_that_fits, joined_tiles
from oocpr.errors import UsageError
from oocpr.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oocpr.api.tile_sizes import Planned
    from oocpr.engine.settings import Settings
    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.merge_size import TileSize
    from oocpr.store.graph import GraphStore


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
    from oocpr.engine.cuda.discovery import free_memory

    if device_memory is not None:
        return [parse_bytes(device_memory)] * len(free or devices)
    return list(free) or [free_memory(device) for device in devices]


def plan_on_several_devices(
    store: GraphStore,
    stats: GraphStats,
    settings: Settings,
    *,
    memory: int,
    base: int,
    given: Sequence[int],
    devices: Sequence[str],
    promised: bool,
    personalized: bool,
    started: bool = False,
    reproducible: bool = False,
) -> Planned:
    """Plan a run on several devices, one stripe on each; returns the graph in the tiles that it takes, too.

    A graph of fewer tiles than devices takes as many of them, the first, as it has tiles. Stored tiles are
    joined within the stripes. Tiles that stay take their time by their edges and rows, those that stream by
    their bytes, and stripes have as much of it as each other.

    Parameters
    ----------
    store, stats, settings, memory, base, personalized, started
        As for `plan_on_one_device`.
    given
        Bytes that may be used of each device.
    devices
        Their names, where they are of this process; empty where they are of workers.
    promised
        Whether these are the caller's word.
    reproducible
        Whether the graph, the settings and the number of devices alone decide on tiles and sweeps.
    """
    from oocpr.plan.device_plan import even_cuts, plan_on_devices, stay_weights
    from oocpr.plan.merge_size import SHARED_EDGES
    from oocpr.plan.partition import weighted_stripes
    from oocpr.plan.tile_bytes import stored
    from oocpr.system import usable_cores

    given = given[: stats.tiles]
    staying = weighted_stripes(stay_weights(store.tile_rows, stats.tile_edges), len(given))
    sizes = store.tile_sizes()
    passing = staying if sizes is None else weighted_stripes(sizes, len(given))

    def planned(size: TileSize) -> Planned:
        tiled = Tiled(stats, store, encoded=stored(stats, sizes))
        stripes = staying if size.stays else passing
        if size.edges is not None:
            cuts, stripes = even_cuts(stripes, stats.tile_edges, size.edges)
            tiled = joined_tiles(store, stats, cuts, sizes, size, len(given))
        plan = plan_on_devices(
            tiled.stats,
            tiled.store.tile_rows,
            stripes,
            given,
            memory=memory,
            base=base,
            stays=size.stays,
            rows_in_host=size.rows_in_host,
            joining=tiled.joining,
            encoded=tiled.encoded,
            method=settings.method,
            reads=settings.reads,
            damping=settings.damping,
            tol=settings.tol,
            mixing=settings.mixing,
            promised=promised,
            personalized=personalized,
            started=started,
        )
        return replace(plan, reproducible=reproducible), tiled.store

    # How many processors workers have is not known here.
    cores = usable_cores() // len(devices) if devices else 0
    return fastest_that_fits(
        stats,
        SHARED_EDGES,
        planned,
        cores=cores,
        devices=len(given),
        reproducible=reproducible,
    )
