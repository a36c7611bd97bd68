"""The loosest setting of a program at which its true error is small enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log10

SMALLEST = 1e-18
"""Stands for an error of zero where logarithms are taken."""


@dataclass(frozen=True)
class Ladder:
    """Settings of a program in order of accuracy, numbered.

    Parameters
    ----------
    start
        Step to try first.
    top
        Last step there is; the first is 1.
    decades
        Guess of the powers of ten that the error falls by a step; only the number of trials depends on it.
    """

    start: int
    top: int
    decades: float


@dataclass(frozen=True)
class Trial:
    """One run: the step it was asked for, how long it took, and its true L1 error."""

    step: int
    seconds: float
    error: float


def climb(ladder: Ladder, run: Callable[[int], Trial], target: float) -> list[Trial]:
    """Try steps until the first one whose error is at most `target` is known.

    Errors are taken to fall from step to step. The search gives up where the error has stopped falling
    above `target`.

    Returns
    -------
    list of Trial
        All trials in order; `first_within` picks the answer.
    """
    trials: list[Trial] = []
    fails, holds = 0, ladder.top + 1
    step = ladder.start
    while True:
        trial = run(step)
        slope = _slope(trials, trial, ladder.decades)
        trials.append(trial)
        if trial.error <= target:
            holds = step
        else:
            fails = step
        if holds - fails <= 1 or fails == ladder.top:
            return trials
        if holds > ladder.top and _stalled(trials, ladder.decades):
            return trials
        distance = log10(max(trial.error, SMALLEST) / target) / slope
        if trial.error > target:
            step = min(step + max(1, ceil(distance)), holds - 1)
        else:
            step = max(step + min(-1, floor(distance) + 1), fails + 1)


def first_within(trials: list[Trial], target: float) -> Trial | None:
    """Least accurate trial whose error is at most `target`, or None."""
    return min((t for t in trials if t.error <= target), key=lambda t: t.step, default=None)


def _slope(trials: list[Trial], latest: Trial, guess: float) -> float:
    """Decades a step between the last two trials, or the guess where they do not tell."""
    if not trials:
        return guess
    fall = log10(max(trials[-1].error, SMALLEST) / max(latest.error, SMALLEST))
    slope = fall / (latest.step - trials[-1].step)
    return slope if slope > guess / 10 else guess


def _stalled(trials: list[Trial], decades: float) -> bool:
    """Whether the error has not even halved over steps that promised two decades."""
    latest = trials[-1]
    return any((latest.step - t.step) * decades >= 2 and latest.error > t.error / 2 for t in trials[:-1])
