"""The plan of a run on CUDA devices: stripes, and which of their tiles stay or stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.plan.device_memory import (
    DEVICE_SLOTS,
    MIN_ALTERNATING_SLOTS,
    MIN_OVERLAP_SLOTS,
    MIN_SLOTS,
    OVERLAP_SLOTS,
    DeviceNeed,
    DeviceTiers,
    device_need,
    divisor_bytes,
    history_bytes,
    row_bytes,
    staged_numbers,
)
from oocpr.plan.forecast import (
    DEVICE_MIXING,
    SMALL_EDGES,
    predicted_passes,
    streamed_sweeps,
    sweeps_on_device,
)
from oocpr.plan.memory import READ_BYTES, Need
from oocpr.plan.partition import partition_counts, partition_host_bytes
from oocpr.plan.plan import Plan
from oocpr.plan.products import layout_bytes
from oocpr.plan.residency import device_readers, evenly, fitting, resident_groups, ring_slots
from oocpr.plan.tile_groups import GroupSizes

if TYPE_CHECKING:
    from oocpr.plan.device_memory import Inside
    from oocpr.plan.request import GraphStats, PlanRequest
    from oocpr.plan.tile_groups import GroupLayout

ROW_EDGES = 3
"""Edges that take a device as long as a row does: an H200 moves 74 bytes for a row of R-MAT in a pass, which
is 18 ps at its own copy rate, and delivers an edge in 6 ps."""


def resident_weights(tile_rows: NDArray[np.int64], tile_edges: int) -> NDArray[np.int64]:
    """Time that each resident tile takes, in edges; `tile_rows` has the first row of each, and the last."""
    return tile_edges + ROW_EDGES * np.diff(tile_rows)


def plan_on_devices(
    stats: GraphStats,
    layout: GroupLayout,
    request: PlanRequest,
    stripes: tuple[tuple[int, int], ...] | None = None,
    *,
    all_resident: bool,
    rows_in_host: bool = False,
    partitioned: bool = False,
    most_remembered: int | None = None,
) -> Plan:
    """Decide how a run uses the memory of one or several devices and of the host.

    Each device keeps what it can of its stripe; what the host has for tiles is dealt out among them. If there
    are more stripes than devices, neighbours share one and its memory.

    Parameters
    ----------
    stats, layout
        The graph in groups of tiles, and which tiles these are.
    stripes
        First group of each stripe and the one past its last; None for one device that takes all groups.
    all_resident
        Whether all groups are to stay on the devices; else as many as there is room for.
    rows_in_host
        Whether rows are kept in memory of the host, and the device has what they gather, and no more sweeps
        of a tile or slots than it has room for.
    partitioned
        Whether what they gather may be there in column partitions, as few as there is room for. Only with
        rows in memory of the host, and one device.
    most_remembered
        Passes that mixing remembers at most where memory is short: then, if tiles stream, rows neither
        propose nor gather what others do. None for as much of both as pays.
    """
    plan_stripe = partial(
        _plan_stripe,
        stats,
        all_resident=all_resident,
        rows_in_host=rows_in_host,
        partitioned=partitioned,
        most_remembered=most_remembered,
    )
    given = request.device_memory
    if stripes is None:
        return plan_stripe(layout, request, given[0])
    devices = [stripe * len(given) // len(stripes) for stripe in range(len(stripes))]
    parts = [layout.part(first, last) for first, last in stripes]

    def planned(number: int, memory: int) -> Plan:
        device = devices[number]
        sharing = devices.count(device)
        return plan_stripe(
            parts[number],
            replace(request, memory=memory),
            given[device] // sharing,
            device=device,
            sharing=sharing,
        )

    bare = [planned(number, 0) for number in range(len(stripes))]
    # The process is there once.
    sums = {field.name: sum(getattr(plan.need, field.name) for plan in bare) for field in fields(Need)}
    need = Need(**sums | {"base": request.base})
    left = max(0, request.memory - need.total)
    # Groups that want memory of the host: those that there is no room for on their device.
    wanted = [len(part.sizes) - plan.devices[0].on_device for part, plan in zip(parts, bare, strict=True)]
    plans = []
    for number, plan in enumerate(bare):
        share = left * wanted[number] // max(1, sum(wanted[number:]))
        plans.append(planned(number, plan.need.total + share))
        left -= plans[-1].devices[0].pinned_bytes
    return replace(
        plans[0],
        stripes=stripes,
        need=need,
        memory=request.memory,
        # All sweep alike: as often as the device can that has the least room.
        sweeps=min(plan.sweeps for plan in plans),
        proposals=all(plan.proposals for plan in plans),
        cached_tiles=sum(plan.cached_tiles for plan in plans),
        devices=tuple(plan.devices[0] for plan in plans),
    )


def _plan_stripe(
    stats: GraphStats,
    layout: GroupLayout,
    request: PlanRequest,
    memory: int,
    *,
    device: int = 0,
    sharing: int = 1,
    all_resident: bool,
    rows_in_host: bool,
    partitioned: bool,
    most_remembered: int | None,
) -> Plan:
    """Plan the stripe of one device, which has so much memory for it, as if it were the run."""
    groups, (tiles, rows) = len(layout.sizes), layout.sizes[:, [0, 3]].sum(axis=0).tolist()
    mixed = request.method == "mixed"
    # What others propose doubles what is gathered, which costs nothing while the link is busy.
    short = most_remembered is not None and not all_resident
    pairs = mixed and not (all_resident or rows_in_host or short or request.reproducible)
    wanted = min(request.mixing, DEVICE_MIXING) if mixed else 0
    remembered = wanted if most_remembered is None else min(wanted, most_remembered)

    inside = _inside(stats, request)
    overlaps = mixed and not (all_resident or rows_in_host or short) and inside != "tiles"

    def needed(sweeps: int, slots: int, way: tuple[int, bool], *, layouts_stay: bool = False) -> DeviceNeed:
        partitions, overlap = way
        return device_need(
            stats,
            layout,
            request,
            slots=slots,
            mixing=remembered,
            sweeps=sweeps,
            pairs=pairs,
            rows_in_host=rows_in_host,
            partitions=partitions,
            sharing=sharing,
            layouts_stay=layouts_stay,
            overlap=overlap and sweeps > 1 and slots >= MIN_OVERLAP_SLOTS,
        )

    # Sweeping groups with their neighbours is given up before sweeps are.
    twice = (True, False) if overlaps and groups >= MIN_OVERLAP_SLOTS else (False,)
    for way in product(partition_counts(stats.nodes) if partitioned else (1,), twice):
        partitions, overlap = way
        wanted_sweeps = 1
        # What is swept inside a tile reads proposals, which are not kept from partition to partition.
        if mixed and not short and partitions == 1:
            wanted_sweeps = _sweeps(stats, request, all_resident=all_resident, overlap=overlap)
        most_slots = DEVICE_SLOTS + (OVERLAP_SLOTS if overlap and wanted_sweeps > 1 else 0)
        sweeps, slots = _cut_down(
            partial(needed, way=way),
            memory,
            sweeps=wanted_sweeps,
            slots=0 if all_resident else min(most_slots, groups),
            min_slots=None if not rows_in_host else MIN_ALTERNATING_SLOTS if tiles > groups else 1,
            min_sweeps=None if request.reproducible else 1,
        )
        need = needed(sweeps, slots, way)
        if need.total <= memory:
            break
    proposals = sweeps > 1 or pairs
    blocks = sweeps > 1 and inside == "blocks"
    resident = resident_groups(stats, layout, diagonal=blocks)
    layouts_stay = False
    # Stripes that share a device have one backend, which lays out groups for all of them in one way.
    if all_resident and sharing == 1:
        laid = resident_groups(
            stats, layout, diagonal=blocks, laid_out=_layouts(stats, layout, request, pairs=pairs)
        )
        bare = needed(sweeps, slots, way, layouts_stay=True)
        # With less memory than both ways take, the one that takes less: it is what the run lacks.
        least = need.total + int(resident.limits.sum()) + resident.max_finding(np.arange(groups))
        layouts_stay = laid.within(max(memory, least) - bare.total) == groups
        if layouts_stay:
            resident, need = laid, bare
    chosen = evenly(groups, groups if all_resident else resident.within(memory - need.total))
    on_device = len(chosen)
    need = replace(need, scratch=need.scratch + resident.max_finding(chosen))
    # Slots for more groups than stream are not made, and devices of one process read each other's numbers.
    taken = needed(sweeps, min(slots, groups - on_device), way, layouts_stay=layouts_stay).lasting
    taken -= staged_numbers(stats.nodes, rows) // sharing * READ_BYTES[request.reads]
    state = history = 0
    if rows_in_host:
        state = row_bytes(rows, stats, request, proposals=proposals)
        history = history_bytes(rows, remembered)
    # What a row has beside its ranks in the end, and what these are divided by in the beginning.
    ends = rows * (8 + divisor_bytes(stats))
    vectors = ends + rows * (16 if request.personalized else 0)
    readers = device_readers(request.cores)
    buffers = min(ring_slots(readers), tiles)
    pushed, brought = partition_host_bytes(rows, tiles, request.reads, partitions)
    ring = buffers * layout.run_bytes
    host = Need(
        request.base, vectors + state, history, reads=pushed, scratch=brought, ring=ring
    )  # fmt: skip
    others = np.setdiff1d(np.arange(groups), chosen, assume_unique=True)
    in_host = fitting(layout.room[others], request.memory - host.total)
    pinned = others[evenly(len(others), in_host)]
    tiers = DeviceTiers(
        memory, need, on_device, in_host, int(resident.limits[chosen].sum()),
        int(layout.room[pinned].sum()), slots, pairs, request.promised, rows_in_host,
        typical_host=_typical_host_bytes(
            ranks=8 * rows,
            divisors=divisor_bytes(stats) * rows,
            state=vectors - ends + state + history + pushed + brought if rows_in_host else 0,
            tiles=int(layout.room[pinned].sum()),
            ring=ring,
        ),
        typical=taken + resident.typical_peak(chosen),
        partitions=partitions,
        device=device,
        sharing=sharing,
        readers=readers,
        inside=inside,
        layouts_stay=layouts_stay,
        overlap=overlap and sweeps > 1 and slots >= MIN_OVERLAP_SLOTS,
    )  # fmt: skip
    passes = predicted_passes(
        request.damping,
        request.tol,
        # What neither proposes nor remembers is pushed as it is.
        "residual" if mixed and not (proposals or remembered) else request.method,
        stats.local_share,
        pairs=pairs,
        mixing=remembered if remembered < wanted else None,
        swept=sweeps > 1,
    )
    return Plan(
        stats, request.method, request.reads, ((0, groups),), remembered, sweeps, host, request.memory,
        on_device + in_host, True, passes, proposals, (tiers,), reproducible=request.reproducible,
    )  # fmt: skip


def _layouts(
    stats: GraphStats, layout: GroupLayout, request: PlanRequest, *, pairs: bool
) -> NDArray[np.int64]:
    """Bytes of a device that each group takes as the product lays it out."""

    def taken(sizes: list[int]) -> int:
        of = GroupSizes(*sizes)
        return layout_bytes(
            request.kernel, of, stats.nodes, request.reads, pairs=pairs, weighted=stats.weighted, stays=True
        )

    return np.array([taken(sizes) for sizes in layout.sizes.tolist()], np.int64)


def _typical_host_bytes(*, ranks: int, divisors: int, state: int, tiles: int, ring: int) -> int:
    """Bytes of the host that a run on a device comes to hold, of which `Need` is the most.

    In the beginning there are out-degrees or the weights that leave, until devices have them, while the first
    tiles are on their way in a ring; then those that stay pinned; in the end ranks, and no tiles any more.
    `state` is what is kept of rows in memory of the host, their ranks included; else 0.
    """
    return state + max(divisors + ring, tiles + ring, 0 if state else ranks)


def _inside(stats: GraphStats, request: PlanRequest) -> Inside:
    """What rows are swept in; of a reproducible run the same wherever groups are and whatever is in them.

    Diagonal blocks know which rows have edges, not their weights. A web-like graph of 296 M edges took 15
    passes and 34 ms on an H200 with two sweeps in diagonal blocks, 13 and 55 ms in tiles.
    """
    if request.reproducible:
        return "tiles"
    return "groups" if stats.weighted or stats.edges <= SMALL_EDGES else "blocks"


def _sweeps(stats: GraphStats, request: PlanRequest, *, all_resident: bool, overlap: bool) -> int:
    """Products inside a tile per pass, if there is room for what they take."""
    if all_resident or request.reproducible:
        small = stats.edges <= SMALL_EDGES and (stats.tiles == 1 or request.reproducible)
        return sweeps_on_device(stats.local_share, small=small)
    per_edge = stats.column_bytes / max(1, stats.edges)
    return streamed_sweeps(per_edge, stats.local_share, overlap=overlap)


def _cut_down(
    needed: Callable[[int, int], DeviceNeed],
    memory: int,
    *,
    sweeps: int,
    slots: int,
    min_slots: int | None,
    min_sweeps: int | None,
) -> tuple[int, int]:
    """Give up slots, then sweeps, then slots again, while memory is short; returns sweeps and slots.

    `needed` has what a run needs with so many of both. `min_slots` are those without which it does not go on
    if rows are in memory of the host; None if they are not. `min_sweeps` are those that are left, None for
    all.
    """

    def short() -> bool:
        return needed(sweeps, slots).total > memory

    while slots > MIN_SLOTS and short():
        slots -= 1
    if min_slots is not None and short():
        sweeps = min_sweeps or sweeps
        # Smaller groups are better than one slot, in which nothing arrives while kernels run.
        while slots > min_slots and short():
            slots -= 1
    return sweeps, slots
