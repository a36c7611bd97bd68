"""The plan of a run on CUDA devices: stripes, and which of their tiles stay or stream."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

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
from oocpr.plan.forecast import DEVICE_MIXING, SMALL_EDGES, predicted_passes, streamed_sweeps, sweeps_for
from oocpr.plan.memory import READ_BYTES, Need
from oocpr.plan.merge_memory import NOTHING_JOINED, Joining
from oocpr.plan.partition import partition_counts, partition_host_bytes
from oocpr.plan.plan import Plan
from oocpr.plan.residency import evenly, resident_tiles, ring_slots
from oocpr.plan.tile_bytes import guessed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from oocpr.plan.graph_stats import GraphStats
    from oocpr.plan.tile_bytes import Encoded

Stripes = tuple[tuple[int, int], ...]
"""First tile of each stripe and the one past its last."""

ROW_EDGES = 3
"""Edges that take a device as long as a row does: an H200 moves 74 bytes for a row of R-MAT in a pass, which
is 18 ps at its own copy rate, and delivers an edge in 6 ps."""


def resident_weights(tile_rows: NDArray[np.int64], tile_edges: int) -> NDArray[np.int64]:
    """Time that each resident tile takes, in edges; `tile_rows` has the first row of each, and the last.

    Examples
    --------
    >>> resident_weights(np.array([0, 10, 1000]), 2000)
    array([2030, 4970])
    """
    return tile_edges + ROW_EDGES * np.diff(tile_rows)


def even_cuts(stripes: Stripes, tile_edges: int, joined_edges: int) -> tuple[tuple[int, ...], Stripes]:
    """Join the stored tiles of each stripe to as few as can be of at most `joined_edges`, as even as can be.

    Returns the first stored tile of each joined one, with the number of tiles behind; and the stripes in
    joined tiles.

    Examples
    --------
    >>> even_cuts(((0, 5), (5, 11)), 2**24, 2**26)
    ((0, 2, 5, 8, 11), ((0, 2), (2, 4)))
    """
    each = max(1, joined_edges // tile_edges)
    cuts, bounds = [0], []
    for first, last in stripes:
        parts = -(-(last - first) // each)
        begun = len(cuts) - 1
        cuts += [first + (last - first) * (part + 1) // parts for part in range(parts)]
        bounds.append((begun, begun + parts))
    return tuple(cuts), tuple(bounds)


def plan_on_devices(
    stats: GraphStats,
    tile_rows: NDArray[np.int64],
    device_memory: Sequence[int],
    stripes: Stripes | None = None,
    *,
    memory: int,
    base: int,
    joining: Joining = NOTHING_JOINED,
    encoded: Encoded | None = None,
    **how: Any,
) -> Plan:
    """Decide how a run uses the memory of one or several devices and of the host.

    Each device keeps what it can of its stripe; what the host has for tiles is dealt out among them. If there
    are more stripes than devices, neighbours share one and its memory.

    Parameters
    ----------
    stats, tile_rows
        The graph in tiles as the run takes them, and the first row of each with the number of nodes behind;
        int64, shape (tiles + 1,).
    device_memory
        Bytes that the run may use on each device.
    stripes
        None for one device that takes all tiles.
    memory, base
        Bytes the whole process may use on the host, and those it uses already.
    joining
        What joining stored tiles takes, of the host for all devices.
    encoded
        Bytes of each tile; None if only the statistics tell.
    how
        More for `_plan_stripe`, alike for all stripes.
    """
    if stripes is None:
        return _plan_stripe(
            stats, tile_rows, memory=memory, base=base, device_memory=device_memory[0], joining=joining,
            encoded=encoded, **how,
        )  # fmt: skip
    devices = [stripe * len(device_memory) // len(stripes) for stripe in range(len(stripes))]
    joining = joining.share(len(stripes))
    parts = [tile_rows[first : last + 1] for first, last in stripes]

    def planned(number: int, memory: int) -> Plan:
        device = devices[number]
        sharing = devices.count(device)
        return _plan_stripe(
            stats,
            parts[number],
            encoded=None if encoded is None else encoded.part(*stripes[number]),
            memory=memory,
            base=base,
            joining=joining,
            device_memory=device_memory[device] // sharing,
            device=device,
            sharing=sharing,
            **how,
        )

    bare = [planned(number, 0) for number in range(len(stripes))]
    need = _added([plan.need for plan in bare], base)
    # In the end the ranks of all rows are there, and once more those of one stripe; or of all, if they share
    # a device.
    shared = len(stripes) > len(device_memory)
    twice = stats.nodes if shared else max(int(part[-1] - part[0]) for part in parts)
    need = replace(need, vectors=need.vectors + 4 * twice)
    left = max(0, memory - need.total)
    # Tiles that want memory of the host: those that there is no room for on their device.
    wanted = [len(part) - 1 - plan.devices[0].on_device for part, plan in zip(parts, bare, strict=True)]
    plans = []
    for number, plan in enumerate(bare):
        share = left * wanted[number] // max(1, sum(wanted[number:]))
        plans.append(planned(number, plan.need.total + share))
        left -= plans[-1].devices[0].pinned_bytes
    return replace(
        plans[0],
        stripes=stripes,
        need=need,
        memory=memory,
        # All sweep alike: as often as the device can that has the least room.
        sweeps=min(plan.sweeps for plan in plans),
        proposals=all(plan.proposals for plan in plans),
        cached_tiles=sum(plan.cached_tiles for plan in plans),
        devices=tuple(plan.devices[0] for plan in plans),
    )


def _plan_stripe(
    stats: GraphStats,
    tile_rows: NDArray[np.int64],
    *,
    all_resident: bool,
    method: str,
    reads: str,
    damping: float,
    tol: float,
    mixing: int,
    memory: int,
    base: int,
    device_memory: int,
    device: int = 0,
    sharing: int = 1,
    promised: bool = False,
    personalized: bool,
    started: bool = False,
    rows_in_host: bool = False,
    partitioned: bool = False,
    joining: Joining = NOTHING_JOINED,
    encoded: Encoded | None = None,
) -> Plan:
    """Plan the stripe of one device as if it were the run.

    Parameters
    ----------
    tile_rows
        First row of each tile of the stripe, and the one past the last.
    all_resident
        Whether all tiles are to stay on the device; else as many as there is room for.
    device_memory, device, sharing
        Bytes of the device for this stripe, its number, and how many stripes share it.
    promised
        Whether these bytes are the caller's word.
    personalized, started
        Whether the teleport vector is not uniform, and whether the run begins from another.
    rows_in_host
        Whether rows are kept in memory of the host, and the device has what they gather, and no more sweeps
        of a tile or slots than it has room for.
    partitioned
        Whether what they gather may be there in column partitions, as few as there is room for. Only with
        rows in memory of the host, and one device.
    encoded
        Bytes of the stripe's tiles.
    """
    tiles, rows = len(tile_rows) - 1, int(tile_rows[-1] - tile_rows[0])
    mixed = method == "mixed"
    edges = min(stats.tile_edges, stats.edges)
    # What others propose doubles what is gathered, which costs nothing while the link is busy.
    pairs = mixed and not all_resident and not rows_in_host
    remembered = min(mixing, DEVICE_MIXING) if mixed else 0
    row = {"personalized": personalized, "weighted": stats.weighted, "started": started}

    def needed(sweeps: int, slots: int, partitions: int) -> DeviceNeed:
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
            partitions=partitions,
            sharing=sharing,
            **row,
        )

    for partitions in partition_counts(stats.nodes) if partitioned else (1,):
        sweeps, slots = _cut_down(
            partial(needed, partitions=partitions),
            device_memory,
            # What is swept inside a tile reads proposals, which are not kept from partition to partition.
            sweeps=_sweeps(stats, all_resident=all_resident) if mixed and partitions == 1 else 1,
            slots=0 if all_resident else min(DEVICE_SLOTS, tiles),
            min_slots=None if not rows_in_host else MIN_ALTERNATING_SLOTS if joining.at_once else 1,
        )
        need = needed(sweeps, slots, partitions)
        if need.total <= device_memory:
            break
    proposals = mixed and (sweeps > 1 or pairs)
    blocks = mixed and sweeps > 1 and not stats.weighted and edges > SMALL_EDGES
    encoded = encoded or guessed(stats, tile_rows)
    resident = resident_tiles(stats, tile_rows, encoded, diagonal=blocks)
    chosen = evenly(tiles, tiles if all_resident else resident.within(device_memory - need.total))
    on_device = len(chosen)
    need = replace(need, scratch=need.scratch + resident.found_in(chosen))
    # Slots for more tiles than stream are not made, and devices of one process read each other's numbers.
    taken = needed(sweeps, min(slots, tiles - on_device), partitions).lasting
    taken -= staged_numbers(stats.nodes, rows) // sharing * READ_BYTES[reads]
    # What a row has beside its ranks in the end, and what these are divided by in the beginning.
    state = history = 0
    if rows_in_host:
        state = row_bytes(rows, proposals=proposals, **row)
        history = history_bytes(rows, remembered)
    ends = rows * (8 + divisor_bytes(stats.weighted))
    vectors = ends + rows * (16 if personalized else 0)
    buffers = min(ring_slots(joining.at_once), tiles)
    pushed, brought = partition_host_bytes(rows, tiles, reads, partitions)
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
        device_memory, need, on_device, in_host, int(resident.most[chosen].sum()),
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
        usual=taken + resident.usual_in(chosen),
        partitions=partitions,
        device=device,
        sharing=sharing,
    )  # fmt: skip
    passes = predicted_passes(damping, tol, method, stats.local_share, pairs=pairs)
    return Plan(
        stats, method, reads, ((0, tiles),), remembered, sweeps, host, memory, on_device + in_host,
        True, passes, proposals, (tiers,),
    )  # fmt: skip


def _added(needs: list[Need], base: int) -> Need:
    """Bytes of the host that the stripes of a run take; the process is there once."""
    return Need(
        base,
        sum(need.vectors for need in needs),
        history=sum(need.history for need in needs),
        reads=sum(need.reads for need in needs),
        scratch=sum(need.scratch for need in needs),
        ring=sum(need.ring for need in needs),
    )


def _sweeps(stats: GraphStats, *, all_resident: bool) -> int:
    """Products inside a tile per pass, if there is room for what they take."""
    if all_resident:
        small = stats.tiles == 1 and stats.edges <= SMALL_EDGES
        return sweeps_for(stats.local_share, on_device=True, small=small)
    return streamed_sweeps(stats.usual_bytes / max(1, stats.edges), stats.local_share)


def _cut_down(
    needed: Callable[[int, int], DeviceNeed], memory: int, *, sweeps: int, slots: int, min_slots: int | None
) -> tuple[int, int]:
    """Give up slots, then sweeps, then slots again, while memory is short; returns sweeps and slots.

    `needed` has what a run needs with so many of both. `min_slots` are those without which it does not go on
    if rows are in memory of the host; None if they are not.
    """

    def short() -> bool:
        return needed(sweeps, slots).total > memory

    while slots > MIN_SLOTS and short():
        slots -= 1
    if min_slots is not None and short():
        sweeps = 1
        # Smaller joined tiles are better than one slot, in which nothing arrives while kernels run.
        while slots > min_slots and short():
            slots -= 1
    return sweeps, slots
