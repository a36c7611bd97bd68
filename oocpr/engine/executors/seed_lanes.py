"""Runs for many teleport vectors side by side in one process: a lane that is done takes the next vector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from oocpr.engine import method
from oocpr.engine.reduction import first_state, is_over, record_pass
from oocpr.engine.stripe import stripe_sums
from oocpr.engine.tiles.stream import PassTraffic
from oocpr.plan.device_memory import SEED_LANES, seed_block_bytes
from oocpr.plan.request import BALANCED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.backend import Streams
    from oocpr.engine.method import PassRecord, State
    from oocpr.engine.scc.personal import SeedVectors
    from oocpr.engine.stripe import Job, StripeGroup

    Largest = tuple[NDArray[np.int64], NDArray[np.float64]]


@dataclass
class LaneRun:
    """The run of a lane for the teleport vector of this number."""

    number: int
    state: State
    begun: float
    history: list[PassRecord] = field(default_factory=list)


def lanes_of(job: Job, seeds: int) -> int:
    """How many runs a device does side by side: several where all stays there and is swept once in a pass.

    `seeds`: how many are to be ranked for; few of them need few lanes.
    """
    plan, layout = job.plan, job.layout
    if len(plan.devices) != 1 or len(plan.stripes) != 1 or layout is None:
        return 1
    (tiers,) = plan.devices
    stays = tiers.on_device == len(layout.sizes) and not tiers.rows_in_host and tiers.partitions == 1
    pushes_only = job.settings.reads == "bits16" and not (job.settings.mixed and plan.proposals)
    plain = job.weight_scale is None and job.kernel in (None, BALANCED)
    room = tiers.memory - tiers.max_bytes
    if not (seeds > 1 and stays and pushes_only and plain):
        return 1
    least = min(SEED_LANES)
    for lanes in SEED_LANES:
        fits = seed_block_bytes(plan.stats, layout, job.slots, lanes) <= room
        if fits and (lanes == least or seeds > least):
            return lanes
    return 1


def rank_side_by_side(
    job: Job,
    group: StripeGroup,
    seeds: SeedVectors,
    lanes: int,
    top: int | None,
    note: Callable[[float], None],
) -> Iterator[tuple[LaneRun, NDArray[np.float64] | None, Largest | None]]:
    """Rank for the seeds, so many `lanes` at a time.

    Yields each run that is done with its ranks, or rows and ranks of the largest if `top` of them are wanted
    and found; None for all. `group` has its tiles, and its rows are made anew. `note` is called after each
    pass, with how many seeds are done, those that are under way by their passes.
    """
    settings, block, backend = job.settings, group.seed_block(lanes), group.backend
    find_largest = cast("Streams", backend).largest
    running, free = dict[int, LaneRun](), list(range(len(block.lanes)))
    waiting, done = iter(range(len(seeds))), 0

    def fill() -> None:
        while free and (number := next(waiting, None)) is not None:
            lane, (rows, weights) = free.pop(), seeds.of(number)
            block.restart(lane, rows, weights)
            running[lane] = LaneRun(number, first_state(job, block.spec.nodes, weights), time.perf_counter())

    fill()
    while running:
        begun = time.perf_counter()
        steps = {
            lane: (
                method.push_step(settings, run.state, 0),
                method.sweep_step(settings, run.state, block.spec.nodes, None),
            )
            for lane, run in running.items()
        }
        found = block.run(steps)
        taken = time.perf_counter() - begun
        for lane, (pushed, sums, first_row) in found.items():
            run = running[lane]
            report = stripe_sums(block.spec, sums, steps[lane][1], first_row)
            run.state = method.push_afresh(settings, method.end_pass(run.state, [pushed], [report]))
            run.history.append(record_pass(job, run.state, PassTraffic(0, 0.0), taken))
            if is_over(settings, run.state):
                free.append(lane)
                del running[lane]
                done += 1
                state, carry, largest = block.lanes[lane], run.state.carries[0], None
                if top is not None:
                    bound = settings.bound(run.state.residuals[-1], run.state.growth)
                    largest = find_largest(state, carry, top, bound, run.state.total, run.state.growth)
                yield run, None if largest else backend.finish(state, carry), largest
        fill()
        if running:
            # Of a run that takes more passes than are expected something is left to the end.
            note(done + sum(min(0.99, len(run.history) / job.plan.passes) for run in running.values()))
