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
from numba import float32, float64, int64, uint32, uint64

from oocpr.engine.backends.cpu_deliver import first_at
from oocpr.engine.backends.cpu_slices import ABREAST
from oocpr.engine.backends.team import claim, meet
from oocpr.engine.whole.levels import LISTED, REGIONS, SHARED, WALKED
from oocpr.engine.whole.mixing import DEPTH, STRIDE, TERMS, begin_stride, mix, note_stride, weigh
from oocpr.jit import entry, inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

SETTLED = 5e-6
"""Change of a component in a sweep, relative to what others send it, after which it is left: numbers of 24
bits gain little from more, and a second push settles the rest."""


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
    twin_weights, twin_starts
        float32: w and b of the rows that have the links of one in a slice.
    long_starts, member_starts
        float32: b of long rows, and of rows in listed components.
    tickets
        int64, shape (stages,): components of each stage that were taken.
    backs
        float32, shape (rows + 1,): 1 / w.
    states, changes, sums
        What mixing keeps of sweeps; see `mixing.note_stride`. Sums of each region, of two sweeps.
    """

    sends: NDArray[np.float32]
    weights: NDArray[np.float32]
    place_weights: NDArray[np.float32]
    place_starts: NDArray[np.float32]
    twin_weights: NDArray[np.float32]
    twin_starts: NDArray[np.float32]
    long_starts: NDArray[np.float32]
    member_starts: NDArray[np.float32]
    tickets: NDArray[np.int64]
    backs: NDArray[np.float32]
    states: NDArray[np.float32]
    changes: NDArray[np.float32]
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
def _visit_slices(low, high, levels, sends, place_weights, twin_weights):
    """Solve the rows of slices once, and those with the same links."""
    bases, targets, sliced = levels.bases, levels.targets, levels.sliced
    twin_bases, twin_rows, twin_places = levels.twin_bases, levels.twin_rows, levels.twin_places
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
        for t in range(twin_bases[s], twin_bases[s + uint64(1)]):
            lane = uint64(twin_places[t]) - place
            sends[rows + uint64(1) + uint64(twin_rows[t])] += twin_weights[t] * lanes[lane]
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
    waiting = low
    for q in range(low, high):
        first, end = uint64(levels.long_bases[q]), uint64(levels.long_bases[q + uint64(1)])
        if first == end:
            continue
        total = _long_sum(first, end, levels.sliced, sends)
        for k in range(waiting, q + uint64(1)):
            row = uint64(levels.long_rows[k])
            sends[behind + row] += weights[row] * total
        waiting = q + uint64(1)


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
def _twins_of(part, twin_bases):
    """First and last of the rows with the links of one in a region's slices."""
    if part[1] == part[0]:
        return uint32(0), uint32(0)
    return twin_bases[part[0]], twin_bases[part[1] - 1]


@inner()
def _begin_region(part, levels, sending):
    """Keep what the rows of a region were sent by others; returns how much that is in all."""
    sends, backs = sending.sends, sending.backs
    behind = uint64(sends.size // 2)
    size = 0.0
    first_twin, end_twin = _twins_of(part, levels.twin_bases)
    for t in range(first_twin, end_twin):
        row = uint64(levels.twin_rows[t])
        sending.twin_starts[t] = sends[behind + row]
        size += float64(abs(sends[behind + row]) * backs[row])
    for i in range(uint64(part[0]) * uint64(ABREAST), uint64(part[1]) * uint64(ABREAST)):
        row = uint64(levels.targets[i])
        sending.place_starts[i] = sends[behind + row]
        size += float64(abs(sends[behind + row]) * backs[row])
    for q in range(uint64(part[2]), uint64(max(part[2], part[3] - 1))):
        row = uint64(levels.long_rows[q])
        sending.long_starts[q] = sends[behind + row]
        size += float64(abs(sends[behind + row]) * backs[row])
    return size


@inner()
def _settle_region(part, sweep, sending):
    """Let other regions see what a region's rows send now."""
    sends = sending.sends
    low, high = uint64(part[4]), uint64(part[5])
    behind = uint64(sends.size // 2)
    if sweep % STRIDE == 0:
        begin_stride(low, high, sends, sending.states)
    for row in range(low, high):
        sends[row] = sends[behind + row]


@inner()
def _sweep_slices(low, high, levels, sending):
    """Sweep the rows of slices and those with the same links."""
    bases, targets, sliced = levels.bases, levels.targets, levels.sliced
    twin_bases, twin_rows, twin_places = levels.twin_bases, levels.twin_rows, levels.twin_places
    sends, place_weights, place_starts = sending.sends, sending.place_weights, sending.place_starts
    behind = uint64(sends.size // 2)
    lanes = np.empty(ABREAST, np.float32)
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
        for t in range(twin_bases[s], twin_bases[s + uint64(1)]):
            now = sending.twin_starts[t] + sending.twin_weights[t] * lanes[uint64(twin_places[t]) - place]
            sends[behind + uint64(twin_rows[t])] = now
        for lane in range(uint64(ABREAST)):
            lanes[lane] = place_starts[place + lane] + place_weights[place + lane] * lanes[lane]
        for lane in range(uint64(ABREAST)):
            sends[behind + uint64(targets[place + lane])] = lanes[lane]


@inner()
def _sweep_long(low, high, levels, sends, weights, long_starts):
    behind = uint64(sends.size // 2)
    waiting = low
    for q in range(low, high):
        first, end = uint64(levels.long_bases[q]), uint64(levels.long_bases[q + uint64(1)])
        if first == end:
            continue
        total = _long_sum(first, end, levels.sliced, sends)
        for k in range(waiting, q + uint64(1)):
            row = uint64(levels.long_rows[k])
            sends[behind + row] = long_starts[k] + weights[row] * total
        waiting = q + uint64(1)


@inner()
def _sweep_component(me, team, counter, met, first, end, levels, sending, most, spare):
    """Sweep a large component with all threads until it settles; returns the number of the last meeting."""
    sends, sums = sending.sends, sending.sums
    rows = 0
    for region in range(first, end):
        part = levels.regions[region]
        first_twin, end_twin = _twins_of(part, levels.twin_bases)
        rows += max(part[1] - part[0] - 1, 0) * ABREAST + max(part[3] - part[2] - 1, 0)
        rows += int64(end_twin) - int64(first_twin)
    for region in range(first + me, end, team):
        sums[1, region - first, 0] = _begin_region(levels.regions[region], levels, sending)
    enough = 0.0
    totals, shares = np.empty(TERMS), np.empty(DEPTH)
    for sweep in range(most):
        for region in range(first + me, end, team):
            _settle_region(levels.regions[region], sweep, sending)
        met += 1
        meet(counter, team, met)
        if sweep == 0:
            for k in range(REGIONS):
                enough += SETTLED * sums[1, k, 0]
            enough = max(enough, spare * rows)
        turn = sweep // STRIDE
        last = sweep % STRIDE == STRIDE - 1
        for region in range(first + me, end, team):
            part = levels.regions[region]
            low, high = uint64(part[2]), uint64(max(part[2], part[3] - 1))
            _sweep_long(low, high, levels, sends, sending.weights, sending.long_starts)
            low, high = uint64(part[0]), uint64(max(part[0], part[1] - 1))
            _sweep_slices(low, high, levels, sending)
            if last:
                low, high = uint64(part[4]), uint64(part[5])
                mine = sums[turn & 1, region - first]
                note_stride(low, high, turn, sends, sending.backs, sending.states, sending.changes, mine)
        met += 1
        meet(counter, team, met)
        if not last:
            continue
        for k in range(TERMS):
            totals[k] = 0.0
            for region in range(REGIONS):
                totals[k] += sums[turn & 1, region, k]
        if totals[0] <= enough:
            break
        weigh(min(turn, DEPTH), totals, shares)
        for region in range(first + me, end, team):
            part = levels.regions[region]
            mix(uint64(part[4]), uint64(part[5]), turn, shares, sends, sending.states)
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
            _visit_slices(first, end, levels, sends, sending.place_weights, sending.twin_weights)
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
