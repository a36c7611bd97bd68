"""How long a planned run takes, measured before it; and what loading compiled functions takes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from oocpr.errors import UsageError
from oocpr.system import resident_after_trim

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.engine.planning.run import PlannedRun
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress
    from oocpr.store.graph import GraphStore

KERNEL_BYTES = 80 << 20
"""What numba's compiled functions take once a run has loaded them; 68 to 76 MiB were measured."""

COMPILER_BYTES = 2**28
"""What compiling takes at most; 150 MiB were seen."""


class Loading(NamedTuple):
    """Seconds that loading took, and those of them in which something was compiled."""

    seconds: float
    compiling: float


def process_bytes(device: str = "cpu") -> int:
    """Bytes of the process before a run, its kernels loaded."""
    from oocpr.engine.cuda.discovery import free_memory, named_devices

    for name in named_devices(device):
        # Who asks has the driver there, which takes memory of the process. A device that is not there is
        # refused in its turn.
        with suppress(UsageError):
            free_memory(name)
    return resident_after_trim() + KERNEL_BYTES


def plan_loaded(
    store: GraphStore, plan_for: Callable[[int], PlannedRun], device: str, progress: Progress
) -> tuple[PlannedRun, Loading]:
    """Plan a run; on processors, if memory is tight, once what is compiled for it has taken its memory.

    `plan_for` plans a run for so many bytes of the process before it.
    """
    from oocpr.engine.probe.warmup import load_functions

    begun = perf_counter()
    found = settings, plan, _ = plan_for(process_bytes(device))
    spare = plan.memory - plan.need.total - plan.cache_bytes
    if device != "cpu" or plan.method == "components" or not 0 <= spare < COMPILER_BYTES:
        return found, Loading(0.0, 0.0)
    compiling = load_functions(store, plan, settings, progress)
    return plan_for(resident_after_trim()), Loading(perf_counter() - begun, compiling)


def timed(
    run: PlannedRun, progress: Progress, *, device: str, threads: int | None, kernel: str | None
) -> Plan:
    """Measure, and say in the plan how long its run takes."""
    from oocpr.engine.probe.measure import measure_rates, measure_whole
    from oocpr.plan.forecast import MAX_SCC_EDGES, Passes

    settings, plan, store = run
    if plan.method == "components" and plan.stats.edges <= MAX_SCC_EDGES:
        timing, passes = measure_whole(store, settings, threads, progress)
        return replace(plan, expected=Passes(passes, passes, passes), forecast=timing)
    # Of larger graphs in memory, one sweep is measured.
    settings = replace(settings, method="residual") if plan.method == "components" else settings
    # Stripes that share a device take their turns: they are measured as those of a processor are.
    measured = replace(plan, devices=()) if plan.shares_devices else plan
    rates = measure_rates(
        store, measured, settings, backend=device, threads=threads, kernel=kernel, progress=progress
    )
    return replace(plan, forecast=measured.timed(rates).forecast)
