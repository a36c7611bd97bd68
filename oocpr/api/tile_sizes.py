"""The tiles that CUDA devices take a graph in: stored ones joined, as large as there is memory for."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.plan.merge_memory import (
    NOTHING_JOINED,
    Joining,
    joining_on_host,
)
from oocpr.plan.merge_size import TileSize, joined_facts, pass_bytes, tile_sizes
from oocpr.plan.tile_bytes import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.plan import Plan
    from oocpr.plan.tile_bytes import Encoded
    from oocpr.store.graph import GraphStore

    Planned = tuple[Plan, RankedStore]


class Tiled(NamedTuple):
    """A graph in the tiles of a plan.

    Attributes
    ----------
    stats, store
        The graph.
    joining
        What making these tiles takes.
    encoded
        Bytes of each tile; None where that is not known.
    """

    stats: GraphStats
    store: RankedStore
    joining: Joining = NOTHING_JOINED
    encoded: Encoded | None = None


def fastest_that_fits(
    stats: GraphStats,
    streamed_edges: tuple[int, ...],
    planned: Callable[[TileSize], Planned],
    *,
    cores: int,
    devices: int = 1,
    reproducible: bool = False,
) -> Planned:
    """Plan with sizes of tiles for which memory suffices, and choose.

    Joining takes longer than reading, so joined tiles have to stay, on a device or in memory.

    Parameters
    ----------
    stats, streamed_edges, cores, devices
        As for :func:`oocpr.plan.merge_size.tile_sizes`.
    planned
        Plans a run with tiles of a size; returns the graph in them, too.
    reproducible
        Whether tiles are of the size that suits the graph if all stay on a device, whatever the memory and
        the processors. Who makes them changes no bit.

    Returns
    -------
    tuple
        As `planned` returned it; where no plan fits the last one, which refuses itself.
    """
    if reproducible:
        cores = 0
    sizes = list(tile_sizes(stats, streamed_edges, cores=cores, devices=devices))
    if reproducible:
        sizes = [size for size in sizes if (size.stays, size.edges) == (True, sizes[0].edges)]
    found: Planned | None = None
    for (stays, *_), alike in groupby(sizes, lambda size: (size.stays, size.rows_in_host, size.sliced)):
        fitting: dict[int | None, Planned] = {}
        for size in alike:
            if size.edges in fitting:
                continue
            found = plan, _ = planned(size)
            if plan.fits and (size.edges is None or plan.cached_tiles == plan.stats.tiles):
                fitting[size.edges] = found
                if stays:
                    break
        if fitting:
            return min(fitting.values(), key=lambda planned: _cost(planned[0]))
    assert found is not None, "tiles may always be as they are stored"
    return found


def _cost(plan: Plan) -> tuple[bool, float]:
    """What a pass of tiles that stream takes, to compare: reads of the store, then what is sent."""
    stats, devices = plan.stats, plan.devices
    staying = sum(tiers.on_device for tiers in devices)
    sent = pass_bytes(stats.usual_bytes, stats.tiles, staying=staying, devices=len(devices))
    return plan.cached_tiles < stats.tiles, plan.slices * sent


def joined_tiles(
    store: GraphStore,
    stats: GraphStats,
    cuts: tuple[int, ...],
    sizes: NDArray[np.int64] | None,
    size: TileSize,
    stripes: int = 1,
) -> Tiled:
    """Join stored tiles.

    Parameters
    ----------
    store, stats
        The graph as stored.
    cuts
        First stored tile of each joined one, and the number of tiles.
    sizes
        Bytes of each stored tile; int64, shape (tiles,), None where that is not known.
    size
        Which joined tiles, and how many are made at a time.
    stripes
        How many are read side by side.
    """
    from oocpr.engine.tiles.merged import JoinedStore

    larger = joined_facts(stats, store.tile_rows, cuts)
    encoded = joined(larger, store.tile_rows[np.asarray(cuts)], sizes, cuts)
    tiled = JoinedStore(store, stats.tile_edges, cuts)
    rows = np.diff(tiled.tile_rows)
    return Tiled(larger, tiled, joining_on_host(stats, larger, rows, size.at_once, stripes), encoded)
