"""The plan of a run on one CUDA device, where all tiles stay or through which they stream.

The plan of a run on several is made of such plans, one for the stripe of each; see `on_devices`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from oocpr.plan.device import (
    DEVICE_SLOTS,
    FEWEST_IN_TURNS,
    FEWEST_SLOTS,
    DeviceNeed,
    DeviceTiers,
    device_need,
    divisor_bytes,
    history_bytes,
    kept_bytes,
    row_bytes,
    tile_bytes,
    usual_host_bytes,
)
from oocpr.plan.islands import Islands, islands_of
from oocpr.plan.join_needs import NOTHING_JOINED, Joining
from oocpr.plan.memory import Need
from oocpr.plan.model import DEVICE_MIXING, SMALL_EDGES, predicted_passes
from oocpr.plan.plan import GraphFacts, Plan
from oocpr.plan.sweeps import streamed_sweeps, sweeps_for
from oocpr.plan.tiers import ring_slots


class Part(NamedTuple):
    """The stripe of one of several devices: its rows, and its tiles."""

    rows: int
    tiles: int


def plan_on_device(
    facts: GraphFacts,
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
    joining: Joining = NOTHING_JOINED,
    part: Part | None = None,
) -> Plan:
    """Decide how a run on a device uses the memory of both, its tiles being those of `facts`.

    Parameters
    ----------
    facts
        The graph, in tiles as the run takes them.
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
    joining
        What joining stored tiles takes, of the host for all devices.
    part
        What the device has of the graph where it is one of several; None for all.
    """
    rows, tiles = part or (facts.nodes, facts.tiles)
    mixed = method == "mixed"
    encoded = min(facts.most_tile_bytes, tile_bytes(facts.column_bytes, facts.edges, facts.tile_edges))
    edges = min(facts.tile_edges, facts.edges)
    small = facts.tiles == 1 and facts.edges <= SMALL_EDGES
    sweeps = 1
    if mixed and stays:
        sweeps = sweeps_for(facts.local_share, on_device=True, small=small)
    elif mixed:
        sweeps = streamed_sweeps(facts.column_bytes / max(1, facts.edges), facts.local_share)
    # What others propose doubles what is gathered, which costs nothing while the link is busy.
    pairs = mixed and not stays and not rows_in_host
    remembered = min(mixing, DEVICE_MIXING) if mixed else 0
    slots = 0 if stays else min(DEVICE_SLOTS, tiles)

    def needed(sweeps: int, slots: int) -> DeviceNeed:
        return device_need(
            nodes=facts.nodes,
            tile_edges=edges,
            tile_rows=facts.most_tile_rows,
            slot_bytes=facts.most_tile_bytes,
            slots=slots,
            reads=reads,
            mixing=remembered,
            proposals=mixed and (sweeps > 1 or pairs),
            pairs=pairs,
            personalized=personalized,
            rows=rows,
            rows_in_host=rows_in_host,
            joining=joining.device,
            weighted=facts.weighted,
            started=started,
        )

    while slots > FEWEST_SLOTS and needed(sweeps, slots).total > device_memory:
        slots -= 1
    if rows_in_host and needed(sweeps, slots).total > device_memory:
        sweeps = 1
        # Smaller joined tiles are better than one slot, in which nothing arrives while kernels run.
        while (
            slots > (FEWEST_IN_TURNS if joining.at_once else 1)
            and needed(sweeps, slots).total > device_memory
        ):
            slots -= 1
    proposals = mixed and (sweeps > 1 or pairs)
    need = needed(sweeps, slots)
    islands = Islands()
    if mixed and sweeps > 1 and not facts.weighted and edges > SMALL_EDGES:
        islands = islands_of(edges, facts.most_tile_rows, facts.local_share)
    each = kept_bytes(encoded, edges, facts.most_tile_rows) + islands.kept
    room = max(0, device_memory - need.total - islands.finding) // each
    on_device = tiles if stays else min(tiles, room)
    if on_device:
        need = replace(need, scratch=need.scratch + islands.finding)
    buffers = min(ring_slots(joining.at_once), tiles)
    # What ranks are divided by, in the beginning, and ranks, in the end.
    ends = rows * (8 + divisor_bytes(facts.weighted))
    vectors = ends + rows * (16 if personalized else 0)
    history = 0
    if rows_in_host:
        vectors += row_bytes(
            rows,
            proposals=proposals,
            personalized=personalized,
            weighted=facts.weighted,
            started=started,
        )
        history = history_bytes(rows, remembered)
    host = Need(base, vectors, history, reads=0, scratch=joining.host, ring=buffers * facts.most_tile_bytes)
    in_host = min(tiles - on_device, max(0, memory - host.total) // encoded)
    mean = facts.column_bytes * facts.tile_edges // max(1, facts.edges)
    # Only buffers of a ring that a device reads from are there before anything is written to them.
    written = min(mean, facts.most_tile_bytes) if on_device + in_host == tiles else facts.most_tile_bytes
    tiers = DeviceTiers(
        device_memory, need, on_device, in_host, on_device * each, in_host * encoded, slots, pairs, promised,
        rows_in_host,
        joined_at_once=joining.at_once,
        usual_host=usual_host_bytes(
            rows=rows,
            state=vectors - ends + history if rows_in_host else 0,
            ring=buffers * written,
            pinned=min(in_host * mean, facts.column_bytes),
            joining=joining.usual_host,
            weighted=facts.weighted,
        ),
    )  # fmt: skip
    passes = predicted_passes(damping, tol, method, facts.local_share)
    return Plan(
        facts, method, reads, ((0, tiles),), remembered, sweeps, host, memory, on_device + in_host,
        True, passes, proposals, (tiers,),
    )  # fmt: skip
