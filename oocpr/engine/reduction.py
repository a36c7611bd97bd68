"""What passes leave of a run: the sums of all stripes added up in their order, wherever that is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oocpr.engine import method
from oocpr.engine.degree_check import check_balance
from oocpr.engine.method import PassRecord
from oocpr.engine.tiles.stream import PassTraffic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.backend import PushSums
    from oocpr.engine.method import State, StripeSums
    from oocpr.engine.settings import Settings
    from oocpr.engine.stripe import Job, SweepReport


@dataclass(frozen=True)
class PassReport:
    """What all stripes pushed and what their sweeps report, in their order."""

    pushed: list[PushSums]
    sums: list[StripeSums]
    traffic: PassTraffic

    @classmethod
    def of(cls, pushed: list[PushSums], reports: Sequence[SweepReport]) -> PassReport:
        """What backends report whose stripes follow each other."""
        traffic = PassTraffic.of([report.traffic for report in reports])
        return cls(pushed, [sums for report in reports for sums in report.sums], traffic)


def first_state(job: Job, nodes: int, weights: NDArray[np.float64] | None = None) -> State:
    """State before the first pass; `weights`: those of a teleport vector in place of the job's."""
    begun_from = job.teleport if job.start is None else job.start
    if weights is not None:
        begun_from = weights
    # Largest first push per out-edge; an upper bound is enough.
    peak = 1 / nodes if begun_from is None else float(begun_from.max())
    if job.weight_scale is not None:
        peak /= job.weight_scale.least
    return method.begin(job.settings, len(job.plan.stripes), peak)


def is_over(settings: Settings, state: State) -> bool:
    """Whether the run is good enough, or may do no more passes."""
    good = bool(state.residuals) and settings.satisfied(state.residuals[-1], state.growth)
    return good or state.number >= settings.pass_limit


def reduce_pass(job: Job, state: State, report: PassReport, nodes: int) -> State:
    """Add up what the stripes report, in their order, and decide the next push.

    Raises DamagedError if they contradict each other, as those of a sound store do not.
    """
    balances = [part.balance for part in report.sums if part.balance is not None]
    if balances:
        check_balance(job.path, balances, report.pushed, [part.carry for part in report.sums], nodes)
    after = method.push_afresh(job.settings, method.end_pass(state, report.pushed, report.sums))
    return after if job.start is None else method.start_again(job.settings, state, after)


def record_pass(job: Job, state: State, traffic: PassTraffic, seconds: float) -> PassRecord:
    """Say what the last pass was, which left this state."""
    residual = state.residuals[-1]
    return PassRecord(
        number=state.number,
        residual=residual,
        bound=job.settings.bound(residual, state.growth),
        gathers=job.plan.gathers,
        seconds=seconds,
        bytes_read=traffic.bytes_read,
        wait_seconds=traffic.wait_seconds,
    )
