"""Runs for many teleport vectors side by side in one process: a lane that is done takes the next vector."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oocpr.engine import method
from oocpr.engine.reduction import first_state, is_over, record_pass
from oocpr.engine.stripe import stripe_sums
from oocpr.engine.tiles.stream import PassTraffic
from oocpr.plan.device_memory import SEED_LANES, seed_block_bytes
from oocpr.plan.products import BALANCED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.method import PassRecord, State
    from oocpr.engine.stripe import Job, StripeGroup


@dataclass
class LaneRun:
    """The run of a lane for the teleport vector of this number."""

    number: int
    state: State
    begun: float
    history: list[PassRecord] = field(default_factory=list)


def lanes_of(job: Job) -> int:
    """How many runs a device does side by side: several where all stays there and is swept once in a pass."""
    plan, layout = job.plan, job.layout
    if len(plan.devices) != 1 or len(plan.stripes) != 1 or layout is None:
        return 1
    (tiers,) = plan.devices
    stays = tiers.on_device == len(layout.sizes) and not tiers.rows_in_host and tiers.partitions == 1
    pushes_only = job.settings.reads == "bits16" and not (job.settings.mixed and plan.proposals)
    plain = job.weight_scale is None and job.kernel in (None, BALANCED)
    room = tiers.memory - tiers.max_bytes
    fits = seed_block_bytes(plan.stats, layout, job.slots) <= room
    return SEED_LANES if stays and pushes_only and plain and fits else 1


def rank_side_by_side(
    job: Job, group: StripeGroup, teleports: Iterator[tuple[int, NDArray[np.float64]]]
) -> Iterator[tuple[LaneRun, NDArray[np.float64]]]:
    """Rank for one teleport vector after the other, several at a time; gives the ranks of each that is done.

    `group` has been finished. `teleports` gives numbers, and the same array again and again.
    """
    settings, block, backend = job.settings, group.seed_block(), group.backend
    nodes, running, free = block.spec.nodes, dict[int, LaneRun](), list(range(len(block.lanes)))

    def fill() -> None:
        while free:
            found = next(teleports, None)
            if found is None:
                return
            number, teleport = found
            lane = free.pop()
            backend.restart(block.lanes[lane], teleport)
            state = first_state(replace(job, teleport=teleport), nodes)
            running[lane] = LaneRun(number, state, time.perf_counter())

    fill()
    while running:
        begun = time.perf_counter()
        steps = {
            lane: (
                method.push_step(settings, run.state, 0),
                method.sweep_step(settings, run.state, nodes, None),
            )
            for lane, run in running.items()
        }
        done = block.run(steps)
        taken = time.perf_counter() - begun
        for lane, (pushed, sums, first) in done.items():
            run = running[lane]
            report = stripe_sums(block.spec, sums, steps[lane][1], first)
            run.state = method.end_pass(run.state, [pushed], [report])
            run.history.append(record_pass(job, run.state, PassTraffic(0, 0.0), taken))
            if is_over(settings, run.state):
                free.append(lane)
                yield run, backend.finish(block.lanes[lane], run.state.carries[0])
                del running[lane]
        fill()
