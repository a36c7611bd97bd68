"""Where a run on processors keeps what it takes, decided from integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oocpr.errors import UsageError
from oocpr.plan.forecast import MAX_SCC_EDGES, MAX_SCC_NUMBERED_EDGES, Passes, predicted_passes, sweeps_for
from oocpr.plan.memory import (
    SEGMENTED_METHODS,
    Need,
    decoded_bytes,
    run_need,
    scc_need,
    segmented_need,
    segmented_tile_bytes,
)
from oocpr.plan.partition import default_stripes, stripe_tiles
from oocpr.plan.plan import Alternative, Plan
from oocpr.plan.residency import RING_SLOTS, fitting_tiles
from oocpr.units import format_count

if TYPE_CHECKING:
    from oocpr.plan.request import GraphStats, PlanRequest


def make_plan(stats: GraphStats, request: PlanRequest) -> Plan:
    """Decide how a run on processors uses the memory it is given.

    Vectors and reads come first, then as much history as fits, then cached tiles.
    """
    if request.method == "components":
        return _scc_plan(stats, request)
    if request.method in SEGMENTED_METHODS:
        return _segmented_plan(stats, request)
    stripes = len(request.bounds) or request.stripes
    if stripes is None:
        # Of a reproducible run their number does not depend on that of the workers.
        workers = 1 if request.reproducible else request.workers
        stripes = default_stripes(stats.edges, stats.tiles, workers)
    bounds = request.bounds or stripe_tiles(stats.tiles, stripes)
    mixed = request.method == "mixed"
    sweeps = (request.sweeps or sweeps_for(stats.local_share, stats.tiles)) if mixed else 1
    proposals = sweeps > 1

    def need(remembered: int) -> Need:
        ring_slots = min(RING_SLOTS, stats.tiles)
        return run_need(
            stats, request, mixing=remembered, sweeps=sweeps, ring_slots=ring_slots, stripes=stripes
        )

    wanted = request.mixing if mixed else 0
    remembered = wanted
    while remembered and need(remembered).total > request.memory and not request.reproducible:
        remembered -= 1
    needed = need(remembered)
    left = request.memory - needed.total
    decoded = decoded_bytes(stats, sweeps > 1, stripes) <= left
    cached = stats.tiles if decoded else fitting_tiles(stats.tiles, stats.max_tile_bytes, left)

    def passes(remembered: int) -> Passes:
        # What neither proposes nor remembers is pushed as it is.
        method = "residual" if mixed and not proposals and not remembered else request.method
        mixing = remembered if remembered < wanted else None
        return predicted_passes(
            request.damping, request.tol, method, stats.local_share, mixing=mixing, swept=proposals,
            together=True,
        )  # fmt: skip

    better = None
    if remembered < wanted:
        better = Alternative(need(wanted).total, request.method, wanted, passes(wanted).typical)
    return Plan(
        stats, request.method, request.reads, bounds, remembered, sweeps, needed, request.memory, cached,
        decoded, passes(remembered), proposals, reproducible=request.reproducible, better=better,
    )  # fmt: skip


def choose_method(stats: GraphStats, request: PlanRequest) -> tuple[str, Alternative | None]:
    """Method of a run for which nobody names one, and what more memory would make of it."""
    if stats.weighted or stats.edges > MAX_SCC_EDGES:
        return "mixed", None
    whole = _scc_plan(stats, request)
    if whole.fits or request.reproducible:
        return "components", None
    return "mixed", Alternative(whole.need.total, "components", 0, whole.passes)


def _scc_plan(stats: GraphStats, request: PlanRequest) -> Plan:
    if stats.edges > MAX_SCC_NUMBERED_EDGES:
        raise UsageError(
            f"method components takes up to {format_count(MAX_SCC_NUMBERED_EDGES)} edges; "
            f"the graph has {format_count(stats.edges)}.",
            "Use method mixed.",
        )
    return Plan(
        stats, "components", "float32", ((0, stats.tiles),), 0, 1,
        scc_need(stats, request), request.memory, stats.tiles, True,
        predicted_passes(request.damping, request.tol, "components"), reproducible=request.reproducible,
    )  # fmt: skip


def _segmented_plan(stats: GraphStats, request: PlanRequest) -> Plan:
    need = segmented_need(stats, request, ring_slots=min(RING_SLOTS, stats.tiles))
    cached = fitting_tiles(stats.tiles, segmented_tile_bytes(stats), request.memory - need.total)
    return Plan(
        stats, request.method, request.reads, ((0, stats.tiles),), 0, 1, need, request.memory, cached, True,
        predicted_passes(request.damping, request.tol, "power"), False, reproducible=request.reproducible,
    )  # fmt: skip
