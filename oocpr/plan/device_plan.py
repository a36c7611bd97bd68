"""The plan of a run on one CUDA device, where all tiles stay or through which they stream.

The plan of a run on several is made of such plans, one for the stripe of each; see `on_devices`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from oocpr.plan.column_partitions import partition_counts, partition_host_bytes
from oocpr.plan.device_memory import (
    DEVICE_SLOTS,
    MIN_ALTERNATING_SLOTS,
    MIN_SLOTS,
    DeviceNeed,
    DeviceTiers,
    device_need,
    divisor_bytes,
    history_bytes,
    row_bytes,
    staged_numbers,
    usual_host_bytes,
)
from oocpr.plan.forecast import DEVICE_MIXING, SMALL_EDGES, predicted_passes
from oocpr.plan.memory import READ_BYTES, Need
from oocpr.plan.merge_memory import NOTHING_JOINED, Joining
from oocpr.plan.passes import streamed_sweeps, sweeps_for
from oocpr.plan.plan import Plan
from oocpr.plan.residency import evenly, ring_slots
from oocpr.plan.resident_tiles import resident_tiles
from oocpr.plan.tile_bytes import guessed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.resident_tiles import ResidentTiles
    from oocpr.plan.tile_bytes import Encoded

    Needed = Callable[[int, int], DeviceNeed]
    """Tells what a run needs that sweeps so often and has so many slots."""


def plan_on_device(
    stats: GraphStats,
    tile_rows: NDArray[np.int64],
    *,
    stays: bool,
    method: str,
    reads: str,
    damping: float,
    tol: float,
    mixing: int,
    memory: int,
    base: int,
    device_memory: int,
    promised: bool = False,
    personalized: bool,
    started: bool = False,
    rows_in_host: bool = False,
    sliced: bool = False,
    joining: Joining = NOTHING_JOINED,
    encoded: Encoded | None = None,
    longest: int = 0,
) -> Plan:
    """Decide how a run on a device uses the memory of both, its tiles being those of `stats`.

    Parameters
    ----------
    stats
        The graph, in tiles as the run takes them.
    tile_rows
        First row of each tile that the device has, and the one past the last; int64, shape (tiles + 1,). One
        of several has some of the graph's.
    stays
        Whether all tiles are to stay on the device; else as many as there is room for.
    method, reads, damping, tol, mixing
        As in the run's settings.
    memory, base
        Bytes the whole process may use on the host, and those it uses already.
    device_memory
        Bytes the run may use on the device.
    promised
        Whether these are the caller's word.
    personalized, started
        Whether the teleport vector is not uniform, and whether the run begins from another.
    rows_in_host
        Whether rows are kept in memory of the host, and the device has what they gather, and no more sweeps
        of a tile or slots than it has room for.
    sliced
        Whether what they gather may be there in slices, as few as there is room for; see
        :mod:`oocpr.plan.column_partitions`. Only with rows in memory of the host, and on one device.
    joining
        What joining stored tiles takes, of the host for all devices.
    encoded
        Bytes of the device's tiles; None where only the stats tell.
    longest
        Most tiles that another device has.
    """
    tiles, rows = len(tile_rows) - 1, int(tile_rows[-1] - tile_rows[0])
    mixed = method == "mixed"
    edges = min(stats.tile_edges, stats.edges)
    # What others propose doubles what is gathered, which costs nothing while the link is busy.
    pairs = mixed and not stays and not rows_in_host
    remembered = min(mixing, DEVICE_MIXING) if mixed else 0
    row = {"personalized": personalized, "weighted": stats.weighted, "started": started}

    def needed(sweeps: int, slots: int, slices: int) -> DeviceNeed:
        return device_need(
            nodes=stats.nodes,
            tile_edges=edges,
            tile_rows=int(np.diff(tile_rows).max()),
            slot_bytes=stats.max_tile_bytes,
            slots=slots,
            reads=reads,
            mixing=remembered,
            proposals=mixed and (sweeps > 1 or pairs),
            pairs=pairs,
            swept=mixed and sweeps > 1,
            tiles=tiles,
            rows=rows,
            rows_in_host=rows_in_host,
            joining=joining.device,
            slices=slices,
            **row,
        )

    for slices in partition_counts(stats.nodes) if sliced else (1,):
        sweeps, slots = _cut_down(
            partial(needed, slices=slices),
            device_memory,
            # What is swept inside a tile reads proposals, which are not kept from slice to slice.
            sweeps=_sweeps(stats, stays=stays) if mixed and slices == 1 else 1,
            slots=0 if stays else min(DEVICE_SLOTS, tiles),
            fewest=None if not rows_in_host else MIN_ALTERNATING_SLOTS if joining.at_once else 1,
        )
        need = needed(sweeps, slots, slices)
        if need.total <= device_memory:
            break
    proposals = mixed and (sweeps > 1 or pairs)
    islands = mixed and sweeps > 1 and not stats.weighted and edges > SMALL_EDGES
    encoded = encoded or guessed(stats, tile_rows)
    staying = resident_tiles(stats, tile_rows, encoded, islands=islands)
    chosen = evenly(tiles, tiles if stays else staying.within(device_memory - need.total))
    on_device = len(chosen)
    need = replace(need, scratch=need.scratch + staying.found_in(chosen))
    # Slots for more tiles than pass are not made, and devices of one process read each other's numbers.
    taken = needed(sweeps, min(slots, tiles - on_device), slices).lasting
    taken -= staged_numbers(stats.nodes, rows) * READ_BYTES[reads]
    # What a row has beside its ranks in the end, and what these are divided by in the beginning.
    state = history = 0
    if rows_in_host:
        state = row_bytes(rows, proposals=proposals, **row)
        history = history_bytes(rows, remembered)
    ends = rows * (8 + divisor_bytes(stats.weighted))
    vectors = ends + rows * (16 if personalized else 0)
    buffers = min(ring_slots(joining.at_once), tiles)
    pushed, brought = partition_host_bytes(rows, tiles, reads, slices)
    host = Need(
        base, vectors + state, history, reads=pushed, scratch=joining.host + brought,
        ring=buffers * stats.max_tile_bytes,
    )  # fmt: skip
    others = np.setdiff1d(np.arange(tiles), chosen, assume_unique=True)
    in_host = encoded.room_for(others, memory - host.total)
    pinned = others[evenly(len(others), in_host)]
    # Buffers of a ring that a device reads from are there before anything is written to them; in time the
    # others have held the largest tiles.
    largest = int(np.sort(encoded.usual)[-buffers:].sum())
    tiers = DeviceTiers(
        device_memory, need, on_device, in_host, int(staying.most[chosen].sum()),
        int(encoded.most[pinned].sum()), slots, pairs, promised, rows_in_host,
        joined_at_once=joining.at_once,
        usual_host=usual_host_bytes(
            rows=rows,
            state=vectors - ends + state + history + pushed + brought if rows_in_host else 0,
            ring=buffers * stats.max_tile_bytes if in_host < len(others) else largest,
            pinned=int(encoded.usual[pinned].sum()),
            joining=joining.usual_host,
            weighted=stats.weighted,
        ),
        usual=taken + _usual_of_tiles(staying, chosen, joining, longest),
        slices=slices,
    )  # fmt: skip
    passes = predicted_passes(damping, tol, method, stats.local_share, pairs=pairs)
    return Plan(
        stats, method, reads, ((0, tiles),), remembered, sweeps, host, memory, on_device + in_host,
        True, passes, proposals, (tiers,),
    )  # fmt: skip


def _sweeps(stats: GraphStats, *, stays: bool) -> int:
    """Products inside a tile a pass, where there is room for what they take."""
    if stays:
        small = stats.tiles == 1 and stats.edges <= SMALL_EDGES
        return sweeps_for(stats.local_share, on_device=True, small=small)
    return streamed_sweeps(stats.usual_bytes / max(1, stats.edges), stats.local_share)


def _cut_down(needed: Needed, memory: int, *, sweeps: int, slots: int, fewest: int | None) -> tuple[int, int]:
    """Give up slots, then sweeps, then slots again, where memory is short; returns sweeps and slots.

    Parameters
    ----------
    needed, memory
        What a run needs, and bytes that there are.
    sweeps, slots
        If there are enough.
    fewest
        Slots without which it does not go on, where rows are in memory of the host; None where they are not.
    """

    def short() -> bool:
        return needed(sweeps, slots).total > memory

    while slots > MIN_SLOTS and short():
        slots -= 1
    if fewest is not None and short():
        sweeps = 1
        # Smaller joined tiles are better than one slot, in which nothing arrives while kernels run.
        while slots > fewest and short():
            slots -= 1
    return sweeps, slots


def _usual_of_tiles(staying: ResidentTiles, chosen: NDArray[np.int64], joining: Joining, longest: int) -> int:
    """Bytes that tiles which stay, and joining them, take of the device at their peak, as a rule.

    While the last tiles are joined, these are not on the device, and after that what joined them is gone:
    from all devices at a time, so that one which has few tiles has them and what has joined them.
    """
    tiles, at_once = len(staying.usual), max(1, joining.at_once)
    rounds = -(-tiles // at_once)
    before = chosen[chosen < (rounds - 1) * at_once] if rounds >= -(-longest // at_once) else chosen
    rooms = joining.device // at_once * min(at_once, tiles)
    stages = ((before, rooms), (chosen, 0))
    return max(staying.usual_in(of) + more for of, more in stages)
