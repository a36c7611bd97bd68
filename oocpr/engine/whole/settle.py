"""Solving a graph's rows in their order: what is pushed next.

Everything is done in what a row sends along each of its links, y = damping / out-degree * proposal, so that
a visit reads and writes one number: with b what a row sends before anybody has sent it anything, and w its
damping / out-degree, both divided by 1 - w where it links to itself,

    y_i = b_i + w_i * sum of y_j over the links from j to i.

Rows without cycles are solved by one visit each, components by Gauss-Seidel sweeps until they change by no
more than SETTLED of their sum. What rows send is kept twice, behind each other: as it was when the sweep of
a large component began, and as it is.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import float32, float64, uint64

from oocpr.engine.backends.cpu_deliver import first_at
from oocpr.engine.backends.cpu_slices import ABREAST
from oocpr.engine.backends.team import claim, meet
from oocpr.engine.whole.levels import LISTED, REGIONS, SHARED, WALKED
from oocpr.jit import entry, inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

SETTLED = 1e-4
"""Change of a component in a sweep, relative to its sum, after which it is left: numbers of 24 bits gain
little from more, and two or three pushes settle the rest."""


class Sending(NamedTuple):
    """What rows send, and what that takes.

    Attributes
    ----------
    sends
        float32, shape (2 (rows + 1),): of each row, before and now; zero after the last.
    weights
        float32, shape (rows,): w of each row.
    place_weights, place_starts
        float32: w and b of the rows in slices.
    long_starts, member_starts
        float32: b of long rows, and of rows in listed components.
    tickets
        int64, shape (stages,): components of each stage that were taken.
    sums
        float64, shape (2, REGIONS, 2): change and size of each part of a component, of two sweeps.
    """

    sends: NDArray[np.float32]
    weights: NDArray[np.float32]
    place_weights: NDArray[np.float32]
    place_starts: NDArray[np.float32]
    long_starts: NDArray[np.float32]
    member_starts: NDArray[np.float32]
    tickets: NDArray[np.int64]
    sums: NDArray[np.float64]


@inner()
def share(bases, first, end, me, team):
    """Those of the slices first .. end - 2 that one thread takes: about as many columns as the others."""
    if end - first < 2:
        return uint64(first), uint64(first)
    low, high = uint64(bases[first]), uint64(bases[end - 1])
    part = bases[first : end - 1]
    begin = first_at(part, part.size, low + (high - low) * uint64(me) // uint64(team))
    stop = first_at(part, part.size, low + (high - low) * uint64(me + 1) // uint64(team))
    if me == team - 1:
        stop = uint64(part.size)
    return uint64(first) + begin, uint64(first) + stop


@inner()
def _visit_slices(low, high, bases, targets, sliced, sends, place_weights):
    """Solve the rows of slices once."""
    rows = uint64(sends.size // 2 - 1)
    lanes = np.empty(ABREAST, np.float32)
    for s in range(low, high):
        for lane in range(uint64(ABREAST)):
            lanes[lane] = float32(0.0)
        i = uint64(bases[s])
        end = uint64(bases[s + uint64(1)])
        while i < end:
            for lane in range(uint64(ABREAST)):
                lanes[lane] += sends[uint64(sliced[i + lane])]
            i += uint64(ABREAST)
        place = s * uint64(ABREAST)
        for lane in range(uint64(ABREAST)):
            lanes[lane] *= place_weights[place + lane]
        for lane in range(uint64(ABREAST)):
            # Where no row is, the sum is zero, and so is what is written.
            sends[rows + uint64(1) + uint64(targets[place + lane])] += lanes[lane]


@inner()
def _long_sum(first, end, columns, sends):
    # Sixteen chains of additions: one chain would wait for each to end.
    lanes = np.zeros(ABREAST, np.float32)
    i = first
    while i + uint64(ABREAST) <= end:
        for lane in range(uint64(ABREAST)):
            lanes[lane] += sends[uint64(columns[i + lane])]
        i += uint64(ABREAST)
    for lane in range(end - i):
        lanes[lane] += sends[uint64(columns[i + lane])]
    total = float32(0.0)
    for lane in range(uint64(ABREAST)):
        total += lanes[lane]
    return total


@inner()
def _visit_long(low, high, levels, sends, weights):
    behind = uint64(sends.size // 2)
    for q in range(low, high):
        first, end = uint64(levels.long_bases[q]), uint64(levels.long_bases[q + uint64(1)])
        row = uint64(levels.long_rows[q])
        sends[behind + row] += weights[row] * _long_sum(first, end, levels.sliced, sends)


@inner()
def _sent(first, end, columns, behind, sends):
    total = float32(0.0)
    for i in range(first, end):
        total += sends[behind + uint64(columns[i])]
    return total


@inner()
def _solve_component(c, levels, sending, most, spare):
    """Solve a component on one thread: what others send it once, then its own cycles until they settle."""
    sends, weights, starts = sending.sends, sending.weights, sending.member_starts
    behind = uint64(sends.size // 2)
    low, high = uint64(levels.heads[c]), uint64(levels.heads[c + 1])
    for q in range(low, high):
        row = uint64(levels.members[q])
        first = uint64(levels.offsets[row])
        end = first + uint64(levels.outer[row])
        sends[behind + row] += weights[row] * _sent(first, end, levels.columns, behind, sends)
        starts[q] = sends[behind + row]
    if high - low == uint64(1):
        return
    for _ in range(most):
        change = float32(0.0)
        size = float32(0.0)
        for q in range(low, high):
            row = uint64(levels.members[q])
            first = uint64(levels.offsets[row]) + uint64(levels.outer[row])
            end = first + uint64(levels.inner[row])
            now = starts[q] + weights[row] * _sent(first, end, levels.columns, behind, sends)
            change += abs(now - sends[behind + row]) / weights[row]
            size += abs(now) / weights[row]
            sends[behind + row] = now
        if change <= max(float32(SETTLED) * size, float32(spare) * float32(high - low)):
            return


@inner()
def _begin_region(part, levels, sends, place_starts, long_starts):
    """Keep what the rows of a region were sent by others."""
    behind = uint64(sends.size // 2)
    for i in range(uint64(part[0]) * uint64(ABREAST), uint64(part[1]) * uint64(ABREAST)):
        place_starts[i] = sends[behind + uint64(levels.targets[i])]
    for q in range(uint64(part[2]), uint64(part[3])):
        long_starts[q] = sends[behind + uint64(levels.long_rows[q])]


@inner()
def _settle_region(part, sends):
    """Let other regions see what a region's rows send now."""
    behind = uint64(sends.size // 2)
    low, high = uint64(part[4]), uint64(part[5])
    for row in range(low, high):
        sends[row] = sends[behind + row]


@inner()
def _sweep_slices(low, high, bases, targets, sliced, sends, place_weights, place_starts, sums):
    """Sweep the rows of slices, and add up how much they change."""
    behind = uint64(sends.size // 2)
    lanes = np.empty(ABREAST, np.float32)
    before = np.empty(ABREAST, np.float32)
    changes = np.zeros(ABREAST, np.float32)
    sizes = np.zeros(ABREAST, np.float32)
    for s in range(low, high):
        place = s * uint64(ABREAST)
        for lane in range(uint64(ABREAST)):
            lanes[lane] = float32(0.0)
        i = uint64(bases[s])
        end = uint64(bases[s + uint64(1)])
        while i < end:
            for lane in range(uint64(ABREAST)):
                lanes[lane] += sends[uint64(sliced[i + lane])]
            i += uint64(ABREAST)
        for lane in range(uint64(ABREAST)):
            before[lane] = sends[behind + uint64(targets[place + lane])]
        for lane in range(uint64(ABREAST)):
            lanes[lane] = place_starts[place + lane] + place_weights[place + lane] * lanes[lane]
        for lane in range(uint64(ABREAST)):
            changes[lane] += abs(lanes[lane] - before[lane]) / place_weights[place + lane]
        for lane in range(uint64(ABREAST)):
            sizes[lane] += abs(lanes[lane]) / place_weights[place + lane]
        for lane in range(uint64(ABREAST)):
            sends[behind + uint64(targets[place + lane])] = lanes[lane]
    for lane in range(uint64(ABREAST)):
        sums[0] += float64(changes[lane])
        sums[1] += float64(sizes[lane])


@inner()
def _sweep_long(low, high, levels, sends, weights, long_starts, sums):
    behind = uint64(sends.size // 2)
    for q in range(low, high):
        first, end = uint64(levels.long_bases[q]), uint64(levels.long_bases[q + uint64(1)])
        row = uint64(levels.long_rows[q])
        now = long_starts[q] + weights[row] * _long_sum(first, end, levels.sliced, sends)
        sums[0] += float64(abs(now - sends[behind + row]) / weights[row])
        sums[1] += float64(abs(now) / weights[row])
        sends[behind + row] = now


@inner()
def _sweep_component(me, team, counter, met, first, end, levels, sending, most, spare):
    """Sweep a large component with all threads until it settles; returns the number of the last meeting."""
    sends = sending.sends
    rows = 0
    for region in range(first, end):
        part = levels.regions[region]
        rows += max(part[1] - part[0] - 1, 0) * ABREAST + max(part[3] - part[2] - 1, 0)
    for region in range(first + me, end, team):
        part = levels.regions[region]
        _begin_region(part, levels, sends, sending.place_starts, sending.long_starts)
    for turn in range(most):
        for region in range(first + me, end, team):
            _settle_region(levels.regions[region], sends)
        met += 1
        meet(counter, team, met)
        sums = sending.sums[turn & 1]
        for region in range(first + me, end, team):
            part = levels.regions[region]
            mine = sums[region - first]
            mine[0] = 0.0
            mine[1] = 0.0
            low, high = uint64(part[2]), uint64(max(part[2], part[3] - 1))
            _sweep_long(low, high, levels, sends, sending.weights, sending.long_starts, mine)
            low, high = uint64(part[0]), uint64(max(part[0], part[1] - 1))
            _sweep_slices(
                low, high, levels.bases, levels.targets, levels.sliced, sends, sending.place_weights,
                sending.place_starts, mine,
            )  # fmt: skip
        met += 1
        meet(counter, team, met)
        change = 0.0
        size = 0.0
        for k in range(REGIONS):
            change += sums[k, 0]
            size += sums[k, 1]
        if change <= max(SETTLED * size, spare * rows):
            break
    return met


@entry()
def solve(me, team, counter, met, levels, residual, most, spare, sending):
    """Find what to push next: the rows' residual and what it makes them send each other.

    Parameters
    ----------
    residual
        float64, shape (rows,).
    most
        Sweeps after which a component is left as it is.
    spare
        Change a row that is too small to matter.
    sending
        ``sends`` receives it.

    Returns
    -------
    int
        Number of the last meeting.
    """
    rows = uint64(residual.size)
    sends = sending.sends
    behind = rows + uint64(1)
    low, high = rows * uint64(me) // uint64(team), rows * uint64(me + 1) // uint64(team)
    for row in range(low, high):
        sends[behind + row] = sending.weights[row] * float32(residual[row])
    if me == 0:
        sends[rows] = float32(0.0)
        sends[behind + rows] = float32(0.0)
        for k in range(sending.tickets.size):
            sending.tickets[k] = 0
    met += 1
    meet(counter, team, met)
    for k in range(levels.stages.shape[0]):
        stage = levels.stages[k]
        kind = stage[0]
        if kind == SHARED:
            first, end = share(levels.long_bases, stage[3], stage[4], me, team)
            _visit_long(first, end, levels, sends, sending.weights)
            first, end = share(levels.bases, stage[1], stage[2], me, team)
            _visit_slices(
                first, end, levels.bases, levels.targets, levels.sliced, sends, sending.place_weights
            )
        elif kind == LISTED:
            while True:
                c = stage[1] + claim(sending.tickets[k:])
                if c >= stage[2]:
                    break
                _solve_component(c, levels, sending, most, spare)
        elif kind == WALKED:
            if me == 0:
                for c in range(stage[1], stage[2]):
                    _solve_component(c, levels, sending, most, spare)
        else:
            met = _sweep_component(me, team, counter, met, stage[1], stage[2], levels, sending, most, spare)
        met += 1
        meet(counter, team, met)
    return met
