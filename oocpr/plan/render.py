"""A plan as programs and as people read it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from oocpr.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from oocpr.plan.plan import Plan

MIN_LOADING = 0.05
"""Seconds of loading below which a person does not read of it."""


def to_json(plan: Plan) -> dict[str, object]:
    """Plan as a JSON object: tiers with bytes, passes, predicted_seconds, fits."""
    return {
        "tiers": {
            "process": plan.need.base,
            "vectors": plan.need.vectors,
            "history": plan.need.history,
            "reads": plan.need.reads,
            "scratch": plan.need.scratch,
            "ring": plan.need.ring,
            "tile_cache": plan.cache_bytes,
            "store": plan.streamed_bytes,
            **_device_json(plan),
        },
        "weighted": plan.stats.weighted,
        "memory": plan.memory,
        "needed": plan.need.total,
        "fits": plan.fits,
        "method": plan.method,
        "reads": plan.reads,
        "stripes": len(plan.stripes),
        "tiles": plan.stats.tiles,
        "cached_tiles": plan.cached_tiles,
        "decoded": plan.decoded,
        "mixing": plan.mixing,
        "sweeps": plan.sweeps,
        "passes": plan.passes,
        "passes_per_byte": plan.gathers * plan.stats.edges / max(1, plan.stats.usual_bytes),
        "direct": plan.direct,
        "passes_range": [plan.expected.fewest, plan.expected.most],
        "predicted_seconds": plan.seconds,
        "predicted_pass_seconds": None if plan.forecast is None else plan.forecast.each,
        "predicted_first_pass_seconds": None if plan.forecast is None else plan.forecast.first,
        "predicted_pass_bytes": plan.streamed_bytes,
        "predicted_bytes_read": plan.bytes_read,
        "predicted_peak_memory": plan.peak_memory,
        "slices": plan.partitions,
        "reproducible": plan.reproducible,
        "better": None if plan.better is None else asdict(plan.better),
        "device_needed": max((sum(tiers.most for tiers in of) for of in plan.on_each_device()), default=0),
        "predicted_peak_device_memory": plan.predictions().get("peak_device_memory", 0),
    }


def render(plan: Plan) -> str:
    """Return the plan as a person reads it."""
    stats, need = plan.stats, plan.need
    tiles = f"{stats.tiles} of {format_count(stats.tile_edges)} edges in {len(plan.stripes)} stripe(s)"
    method = f"{plan.method}, reads {plan.reads}"
    if plan.method == "mixed":
        method += f", mixing {plan.mixing}, sweeps a tile {plan.sweeps}"
    graph = f"{format_count(stats.nodes)} nodes, {format_count(stats.edges)} edges"
    graph += ", weighted" * stats.weighted
    cache = f"{plan.cached_tiles} tiles{', decoded' * plan.decoded}, {format_bytes(plan.cache_bytes)}"
    rows = [
        ("graph", graph),
        ("tiles", tiles),
        ("method", method),
        ("process", format_bytes(need.base)),
        ("vectors", format_bytes(need.vectors)),
        ("history", format_bytes(need.history)),
        ("reads", format_bytes(need.reads)),
        ("scratch, ring", format_bytes(need.scratch + need.ring)),
        ("needed / given", f"{format_bytes(need.total)} / {format_bytes(plan.memory)}"),
        ("tile cache", "the whole graph, with the scratch" if plan.method == "components" else cache),
        *_device_rows(plan),
        ("from the store", f"{format_bytes(plan.streamed_bytes)} a pass{', directly' * plan.direct}"),
        ("products a byte", f"{plan.gathers * stats.edges / max(1, stats.usual_bytes):.2f} edges"),
        ("should hold", f"about {format_bytes(plan.peak_memory)}"),
        ("passes", _passes(plan)),
        *_times(plan),
        ("other memory", _other_memory(plan)),
        ("fits", "yes" if plan.fits else "no"),
    ]
    width = max(16, 1 + max(len(name) for name, _ in rows))
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def _device_json(plan: Plan) -> dict[str, object]:
    """Bytes on the device; of several the most on any, and then those on each."""
    each = [
        {key: sum(tiers.to_json()[key] for tiers in of) for key in of[0].to_json()}
        for of in plan.on_each_device()
    ]
    most = {key: max(of[key] for of in each) for key in (each[0] if each else ())}
    return {**most, "devices": each} if len(each) > 1 else dict(most)


def _device_rows(plan: Plan) -> list[tuple[str, str]]:
    """Lines of the plan about devices, numbered where there are several."""
    rows = []
    for number, (tiers, (first, last)) in enumerate(zip(plan.devices, plan.stripes, strict=False)):
        of = "" if len(plan.devices) == 1 else f", {number}"
        rows += [(f"{name}{of}", value) for name, value in tiers.rows(last - first)]
    return rows


def _passes(plan: Plan) -> str:
    least, most = plan.expected.fewest, plan.expected.most
    return f"about {plan.passes}; {least} to {most}, by how slowly the graph mixes"


def _other_memory(plan: Plan) -> str:
    """What becomes of the passes, and with them of the last bits of the ranks, if memory is another."""
    if plan.reproducible:
        return "same passes, same bits: the graph and the settings fix the plan"
    if plan.better is not None:
        more = plan.better
        how = f"mixing {more.mixing}" if more.method == plan.method else f"method {more.method}"
        # Rounded up: who gives this much must get it.
        return f"from {-(-more.memory // 2**20)}MiB on {how}, about {more.passes} passes and other last bits"
    if plan.devices:
        return "passes and last bits depend on the memory of the devices, unless reproducible"
    least = f"{-(-plan.need.total // 2**20)}MiB"
    return f"same passes and bits from {least} on; with less, more passes, unless reproducible"


def _times(plan: Plan) -> list[tuple[str, str]]:
    timing, seconds = plan.forecast, plan.seconds
    if timing is None or seconds is None:
        return [("time", "not predicted")]
    first, each = format_seconds(timing.first), format_seconds(timing.each)
    loading = f", {format_seconds(timing.loading)} of it loading" if timing.loading >= MIN_LOADING else ""
    return [
        ("a pass", f"about {each}, the first {first}"),
        ("time", f"about {format_seconds(seconds)} with {plan.passes} passes{loading}"),
    ]
