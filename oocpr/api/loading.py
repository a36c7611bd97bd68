"""Plans of runs on processors, made once what is compiled for them has taken its memory."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from oocpr.api.choices import loaded_bytes, process_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from oocpr.api.graphs import Graph
    from oocpr.engine.settings import Settings
    from oocpr.engine.tiles.source import RankedStore
    from oocpr.plan.plan import Plan
    from oocpr.progress import Progress

    Planned = tuple[Settings, Plan, RankedStore]


COMPILER_BYTES = 2**28
"""What compiling takes at most; 150 MiB were seen."""


class Loading(NamedTuple):
    """Seconds that loading took, and those of them in which something was compiled."""

    seconds: float
    compiling: float


def plan_loaded(graph: Graph, planned: Callable[..., Planned], progress: Progress) -> tuple[Planned, Loading]:
    """Plan a run on processors; where memory is tight, load what is compiled for it first.

    Parameters
    ----------
    graph
        What is to be ranked.
    planned
        Plans a run for ``base`` bytes of the process before it.
    progress
        Told of what is compiled.

    Returns
    -------
    tuple
        What `planned` returned.
    Loading
        How long it took.
    """
    from oocpr.engine.probe.warmup import load_functions

    begun = perf_counter()
    found = settings, plan, _ = planned(base=process_bytes(graph))
    spare = plan.memory - plan.need.total - plan.cache_bytes
    if plan.method == "components" or not 0 <= spare < COMPILER_BYTES:
        return found, Loading(0.0, 0.0)
    compiling = load_functions(graph.store, plan, settings, progress)
    return planned(base=loaded_bytes(graph)), Loading(perf_counter() - begun, compiling)
