"""Plans of runs on CUDA devices, and the tiles of the graph in them: as stored, or joined."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.plan.device_plan import even_cuts, plan_on_devices, resident_weights
from oocpr.plan.merge_memory import (
    NOTHING_JOINED,
    Joining,
    joining_on_host,
)
from oocpr.plan.merge_size import (
    SHARED_EDGES,
    STREAMED_EDGES,
    TileSize,
    joined_cuts,
    joined_facts,
    pass_bytes,
    tile_sizes,
)
from oocpr.plan.partition import stripe_tiles, weighted_stripes
from oocpr.plan.tile_bytes import joined, stored
from oocpr.system import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.plan import Plan
    from oocpr.plan.tile_bytes import Encoded
    from oocpr.store.graph import GraphStore

    Planned = tuple[Plan, RankedStore]
    """A plan, and the graph in its tiles."""

AS_STORED = (TileSize(None, True, False), TileSize(None, False, False), TileSize(None, False, True))
"""Ways to take stored tiles, the fastest first: all resident, streamed, streamed with rows in the host."""


def plan_for_devices(
    store: GraphStore,
    stats: GraphStats,
    settings: Settings,
    *,
    memory: int,
    base: int,
    device_memory: Sequence[int],
    devices: Sequence[str],
    promised: bool,
    stripes: int | None = None,
    personalized: bool = False,
    started: bool = False,
    reproducible: bool = False,
) -> Planned:
    """Plan a run on one device or several; returns the graph in the tiles that it takes, too.

    One device takes the whole graph, and of several each has a stripe. A graph of fewer tiles than devices
    takes as many of them, the first, as it has tiles. Stored tiles are joined within the stripes. Resident
    tiles take their time by their edges and rows, those that stream by their bytes, and stripes have as much
    of it as each other. If more stripes than devices are asked for, neighbours share a device, and stripes
    and tiles are those that processors have.

    Parameters
    ----------
    memory, base
        Bytes the process may use, and those it uses already.
    device_memory
        Bytes that may be used of each device.
    devices
        Their names in this process; empty if they are those of workers.
    promised
        Whether these bytes are the caller's word.
    personalized, started
        Whether the teleport vector is not uniform, and whether the run begins from another.
    reproducible
        Whether the graph, the settings and the number of devices alone decide on tiles and sweeps.
    """
    shared = stripes is not None and stripes > len(device_memory)
    alone = len(devices) == 1 and not shared
    given = list(device_memory[: stats.tiles if stripes is None else min(stripes, stats.tiles)])
    sizes = store.tile_sizes()
    if alone:
        resident = streamed = None
    elif shared:
        assert stripes is not None, "more are asked for than there are devices"
        resident = streamed = stripe_tiles(stats.tiles, stripes)
    else:
        resident = weighted_stripes(resident_weights(store.tile_rows, stats.tile_edges), len(given))
        streamed = resident if sizes is None else weighted_stripes(sizes, len(given))

    def planned(size: TileSize) -> Planned:
        cuts = resident if size.all_resident else streamed
        tiles = _Tiles(stats, store, encoded=stored(stats, sizes))
        if size.edges is not None and cuts is None:
            joins = joined_cuts(stats.tiles, stats.tile_edges, size.edges)
            tiles = _join(store, stats, joins, sizes, size)
        elif size.edges is not None and cuts is not None:
            joins, cuts = even_cuts(cuts, stats.tile_edges, size.edges)
            tiles = _join(store, stats, joins, sizes, size, len(given))
        plan = plan_on_devices(
            tiles.stats,
            tiles.store.tile_rows,
            given,
            cuts,
            memory=memory,
            base=base,
            all_resident=size.all_resident,
            rows_in_host=size.rows_in_host,
            partitioned=size.partitioned,
            joining=tiles.joining,
            encoded=tiles.encoded,
            method=settings.method,
            reads=settings.reads,
            damping=settings.damping,
            tol=settings.tol,
            mixing=settings.mixing,
            promised=promised,
            personalized=personalized,
            started=started,
        )
        return replace(plan, reproducible=reproducible), tiles.store

    if shared:
        wanted = list(AS_STORED)
    else:
        # How many processors workers have is not known here; how many join tiles changes no bit.
        cores = usable_cores() // len(devices) if devices and not reproducible else 0
        edges = STREAMED_EDGES if alone else SHARED_EDGES
        wanted = list(tile_sizes(stats, edges, cores=cores, devices=len(given)))
    if reproducible:
        wanted = [size for size in wanted if (size.all_resident, size.edges) == (True, wanted[0].edges)]
    return _fastest(wanted, planned)


class _Tiles(NamedTuple):
    """A graph in the tiles of a plan, what making them takes, and the bytes of each if they are known."""

    stats: GraphStats
    store: RankedStore
    joining: Joining = NOTHING_JOINED
    encoded: Encoded | None = None


def _fastest(sizes: Sequence[TileSize], planned: Callable[[TileSize], Planned]) -> Planned:
    """Choose among plans with tiles of these sizes, the fastest first; the last one if none fits.

    Joining takes longer than reading, so joined tiles have to stay, on a device or in memory.
    """
    found: Planned | None = None
    for (all_resident, *_), alike in groupby(
        sizes, lambda size: (size.all_resident, size.rows_in_host, size.partitioned)
    ):
        fitting: dict[int | None, Planned] = {}
        for size in alike:
            if size.edges in fitting:
                continue
            found = plan, _ = planned(size)
            if plan.fits and (size.edges is None or plan.cached_tiles == plan.stats.tiles):
                fitting[size.edges] = found
                if all_resident:
                    break
        if fitting:
            return min(fitting.values(), key=lambda planned: _cost(planned[0]))
    assert found is not None, "tiles may always be as they are stored"
    return found


def _cost(plan: Plan) -> tuple[bool, float]:
    """What a pass of tiles that stream takes, to compare: reads of the store, then what is sent."""
    stats, devices = plan.stats, plan.devices
    resident = sum(tiers.on_device for tiers in devices)
    sent = pass_bytes(stats.usual_bytes, stats.tiles, staying=resident, devices=len(devices))
    return plan.cached_tiles < stats.tiles, plan.partitions * sent


def _join(
    store: GraphStore,
    stats: GraphStats,
    cuts: tuple[int, ...],
    sizes: NDArray[np.int64] | None,
    size: TileSize,
    stripes: int = 1,
) -> _Tiles:
    """Join stored tiles at the cuts: the first of each joined one, and the number of tiles.

    `sizes` has the bytes of each stored tile, `stripes` is how many are read side by side.
    """
    from oocpr.engine.tiles.merged import JoinedStore

    larger = joined_facts(stats, store.tile_rows, cuts)
    encoded = joined(larger, store.tile_rows[np.asarray(cuts)], sizes, cuts)
    tiles = JoinedStore(store, stats.tile_edges, cuts)
    rows = np.diff(tiles.tile_rows)
    return _Tiles(larger, tiles, joining_on_host(stats, larger, rows, size.at_once, stripes), encoded)
