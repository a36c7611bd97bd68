"""How long a planned run takes, measured before it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress


def timed(
    store: RankedStore,
    made: Plan,
    settings: Settings,
    progress: Progress,
    *,
    device: str,
    threads: int | None,
    kernel: str | None,
) -> Plan:
    """Measure, and say in the plan how long its run takes."""
    from oocpr.engine.probe.measure import measure_rates, measure_whole
    from oocpr.plan.forecast import MAX_SCC_EDGES, Passes

    if made.method == "components" and made.stats.edges <= MAX_SCC_EDGES:
        timing, passes = measure_whole(store, settings, threads, progress)
        return replace(made, expected=Passes(passes, passes, passes), forecast=timing)
    # Of larger graphs in memory, one sweep is measured.
    settings = replace(settings, method="residual") if made.method == "components" else settings
    rates = measure_rates(
        store,
        made,
        settings,
        backend=device,
        threads=threads,
        kernel=kernel,
        progress=progress,
    )
    return made.timed(rates)
