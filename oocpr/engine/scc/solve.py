"""Solving a graph's rows in their order: what is pushed next.

Everything is done in what a row contributes along each of its edges, y = damping / out-degree * proposal, so
that a visit reads and writes one number: with b what a row contributes before anybody has contributed to it,
and w its damping / out-degree, both divided by 1 - w if it has an edge to itself,

    y_i = b_i + w_i * sum of y_j over the edges from j to i.

Rows without cycles are solved by one visit each, components by Gauss-Seidel sweeps until they change by no
more than REL_TOL of what others contribute to them. Contributions are there twice, behind each other: as they
were when the sweep of a large component began, and as they are.

Sweeps are mixed after every stride of STRIDE: what a stride makes of a state x is y, and f = (y - x) / w its
change in what rows pass on in all. With the differences to the strides before, f - f_j and y - y_j, the next
state is y less that combination of the latter whose combination of the former comes nearest to f. So a
component takes a half to three quarters of the sweeps; mixing after each sweep saves no more of them, and
costs as much as a sweep.

Anderson, Iterative procedures for nonlinear integral equations, J. ACM 12 (1965); Pratapa, Suryanarayana and
Pask, Anderson acceleration of the Jacobi iterative method, J. Comput. Phys. 306 (2016).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import float32, float64, int64, uint32, uint64
from numpy.typing import NDArray

from oocpr.engine.cpu.gather import SLICE_ROWS, first_not_below, sum_long_row, sum_slice
from oocpr.engine.cpu.numbers import ROW_BLOCK, dot, norm
from oocpr.engine.cpu.threads import barrier, next_chunk
from oocpr.engine.scc.level_schedule import LISTED, SHARED, WALKED
from oocpr.jit import BORROWING, inner

STRIDE = 4
"""Sweeps from one mixing to the next."""

DEPTH = 2
"""Earlier outcomes that are mixed."""

TERMS = 1 + DEPTH + DEPTH * (DEPTH + 1) // 2
"""Sums that a stride leaves of each part: its change, products of differences with it, and among them."""

RIDGE = 1e-6
"""Relative; differences of float32 numbers are no more exact."""

REL_TOL = 5e-6
"""Change of a component in a stride, relative to what others contribute to it, after which it is left:
numbers of 24 bits gain little from more, and a second push settles the rest."""

MIN_MIXED_ROWS = 32
"""Rows of a component whose sweeps are worth mixing."""


class Contributions(NamedTuple):
    """What rows contribute, and what that takes."""

    # Shape (2 (rows + 1),): contribution of each row, before and now; zero after the last.
    sends: NDArray[np.float32]
    # w of each row, shape (rows + 1,); w and b of the rows in slices, and of those that have their edges.
    weights: NDArray[np.float32]
    slice_weights: NDArray[np.float32]
    slice_starts: NDArray[np.float32]
    duplicate_weights: NDArray[np.float32]
    duplicate_starts: NDArray[np.float32]
    # b of long rows, and of rows in listed components.
    long_starts: NDArray[np.float32]
    member_starts: NDArray[np.float32]
    # Shape (stages,): components of each stage that were taken.
    next_component: NDArray[np.int64]
    # 1 / w of each row.
    reciprocals: NDArray[np.float32]
    # Of sweeps, for mixing; see `record_stride`. Sums of each region, of two strides.
    states: NDArray[np.float32]
    changes: NDArray[np.float32]
    sums: NDArray[np.float64]


@inner(late=True)
def solve(me, team, counter, phase, schedule, residual, max_sweeps, row_tol, contrib):
    """Find what to push next; ``contrib.sends`` receives it. Returns the number of the last barrier.

    A component is left after `max_sweeps`, or if it changes by less than `row_tol` per row.
    """
    rows = uint64(residual.size)
    sends = contrib.sends
    behind = rows + uint64(1)
    room = (
        np.empty(TERMS), np.empty(DEPTH), np.empty((DEPTH, DEPTH)), np.empty((DEPTH, ROW_BLOCK), np.float32)
    )  # fmt: skip
    low, high = rows * uint64(me) // uint64(team), rows * uint64(me + 1) // uint64(team)
    for row in range(low, high):
        sends[behind + row] = contrib.weights[row] * float32(residual[row])
    if me == 0:
        sends[rows] = float32(0.0)
        sends[behind + rows] = float32(0.0)
        for k in range(contrib.next_component.size):
            contrib.next_component[k] = 0
    phase += 1
    barrier(counter, team, phase)
    for k in range(schedule.stages.shape[0]):
        stage = schedule.stages[k]
        kind = stage[0]
        if kind == SHARED:
            first, end = balanced_range(schedule.long_ptr, stage[3], stage[4], me, team)
            _sweep_long_rows(first, end, schedule, contrib, True)
            first, end = balanced_range(schedule.slice_ptr, stage[1], stage[2], me, team)
            _sweep_slices(first, end, schedule, contrib, True)
        elif kind == LISTED:
            while True:
                c = stage[1] + next_chunk(contrib.next_component[k:])
                if c >= stage[2]:
                    break
                _solve_component(c, schedule, contrib, max_sweeps, row_tol, room)
        elif kind == WALKED:
            if me == 0:
                _walk(stage[1], stage[2], schedule, contrib, max_sweeps, row_tol, room)
        else:
            phase = _sweep_component_parallel(
                me, team, counter, phase, stage[1], stage[2], schedule, contrib, max_sweeps, row_tol, room
            )
        phase += 1
        barrier(counter, team, phase)
    return phase


@inner()
def balanced_range(slice_ptr, first, end, me, team):
    """Those of the slices first .. end - 2 that one thread takes: about as many columns as the others."""
    if end - first < 2:
        return uint64(first), uint64(first)
    low, high = uint64(slice_ptr[first]), uint64(slice_ptr[end - 1])
    part = slice_ptr[first : end - 1]
    begin = first_not_below(part, part.size, low + (high - low) * uint64(me) // uint64(team))
    stop = first_not_below(part, part.size, low + (high - low) * uint64(me + 1) // uint64(team))
    if me == team - 1:
        stop = uint64(part.size)
    return uint64(first) + begin, uint64(first) + stop


@inner(**BORROWING)
def _walk(first, end, schedule, contrib, max_sweeps, row_tol, room):
    """Solve components on one thread, one after another."""
    # What most of them are, a row without cycles, is solved here: a call takes longer than its sum.
    members, member_ptr, columns = schedule.members, schedule.member_ptr, schedule.columns
    offsets, outer = schedule.offsets, schedule.outer
    sends, weights = contrib.sends, contrib.weights
    behind = uint64(sends.size // 2)
    for c in range(uint64(first), uint64(end)):
        low = uint64(member_ptr[c])
        if uint64(member_ptr[c + uint64(1)]) - low > uint64(1):
            _solve_component(c, schedule, contrib, max_sweeps, row_tol, room)
            continue
        row = uint64(members[low])
        begin = uint64(offsets[row])
        total = _sum_row(begin, begin + uint64(outer[row]), columns, behind, sends)
        sends[behind + row] += weights[row] * total


@inner(**BORROWING)
def _solve_component(c, schedule, contrib, max_sweeps, row_tol, room):
    """Solve a component on one thread: what others contribute once, then its cycles until they converge."""
    sends, weights, starts, reciprocals = (
        contrib.sends, contrib.weights, contrib.member_starts, contrib.reciprocals
    )  # fmt: skip
    behind = uint64(sends.size // 2)
    low, high = uint64(schedule.member_ptr[c]), uint64(schedule.member_ptr[c + 1])
    for q in range(low, high):
        row = uint64(schedule.members[q])
        first = uint64(schedule.offsets[row])
        end = first + uint64(schedule.outer[row])
        sends[behind + row] += weights[row] * _sum_row(first, end, schedule.columns, behind, sends)
        starts[q] = sends[behind + row]
    if high - low == uint64(1):
        return
    if high - low >= uint64(MIN_MIXED_ROWS):
        _mix_component(low, high, schedule, contrib, max_sweeps, row_tol, room)
        return
    for _ in range(max_sweeps):
        change = float32(0.0)
        size = float32(0.0)
        for q in range(low, high):
            row = uint64(schedule.members[q])
            first = uint64(schedule.offsets[row]) + uint64(schedule.outer[row])
            end = first + uint64(schedule.inner[row])
            before = sends[behind + row]
            now = starts[q] + weights[row] * _sum_row(first, end, schedule.columns, behind, sends)
            sends[behind + row] = now
            change += abs(now - before) * reciprocals[row]
            size += abs(now) * reciprocals[row]
        if change <= max(float32(REL_TOL) * size, float32(row_tol) * float32(high - low)):
            return


@inner(**BORROWING)
def _mix_component(low, high, schedule, contrib, max_sweeps, row_tol, room):
    """Sweep the rows of a component on one thread until they converge, mixing after every stride."""
    sends, states, changes, reciprocals = contrib.sends, contrib.states, contrib.changes, contrib.reciprocals
    weights, starts = contrib.weights, contrib.member_starts
    behind = uint64(sends.size // 2)
    size = 0.0
    for q in range(low, high):
        row = uint64(schedule.members[q])
        states[DEPTH + 1, q] = sends[behind + row]
        size += float64(abs(sends[behind + row]) * reciprocals[row])
    tolerance = max(REL_TOL * size, row_tol * float64(high - low))
    totals, coefficients, lower, differences = room
    for stride in range(max_sweeps // STRIDE + 1):
        for _ in range(STRIDE):
            for q in range(low, high):
                row = uint64(schedule.members[q])
                first = uint64(schedule.offsets[row]) + uint64(schedule.outer[row])
                end = first + uint64(schedule.inner[row])
                total = _sum_row(first, end, schedule.columns, behind, sends)
                sends[behind + row] = starts[q] + weights[row] * total
        x, y, f = states[DEPTH + 1], states[stride % (DEPTH + 1)], changes[stride % (DEPTH + 1)]
        for q in range(low, high):
            row = uint64(schedule.members[q])
            y[q] = sends[behind + row]
            f[q] = (y[q] - x[q]) * reciprocals[row]
        record_stride(low, high, stride, changes, differences, totals)
        if totals[0] <= tolerance:
            return
        least_squares(min(stride, DEPTH), totals, lower, coefficients)
        mix(low, high, stride, coefficients, states)
        for q in range(low, high):
            sends[behind + uint64(schedule.members[q])] = x[q]


@inner(**BORROWING)
def _sum_row(first, end, columns, behind, sends):
    """Sum what the rows ``columns[first:end]`` contribute now."""
    # Four chains of additions: one chain would wait for each to end.
    a = float32(0.0)
    b = float32(0.0)
    c = float32(0.0)
    d = float32(0.0)
    i = first
    while i + uint64(4) <= end:
        a += sends[behind + uint64(columns[i])]
        b += sends[behind + uint64(columns[i + uint64(1)])]
        c += sends[behind + uint64(columns[i + uint64(2)])]
        d += sends[behind + uint64(columns[i + uint64(3)])]
        i += uint64(4)
    while i < end:
        a += sends[behind + uint64(columns[i])]
        i += uint64(1)
    return (a + b) + (c + d)


@inner(late=True)
def _sweep_component_parallel(
    me, team, counter, phase, first, end, schedule, contrib, max_sweeps, row_tol, room
):
    """Sweep a large component with all threads until it converges; returns the number of the last barrier."""
    sends, sums = contrib.sends, contrib.sums
    rows = 0
    for region in range(first, end):
        part = schedule.regions[region]
        first_duplicate, end_duplicate = _duplicates_of(part, schedule.duplicate_ptr)
        rows += max(part[1] - part[0] - 1, 0) * SLICE_ROWS + max(part[3] - part[2] - 1, 0)
        rows += int64(end_duplicate) - int64(first_duplicate)
    for region in range(first + me, end, team):
        sums[1, region - first, 0] = _begin_region(schedule.regions[region], schedule, contrib)
    tolerance = 0.0
    totals, coefficients, lower, differences = room
    for sweep in range(max_sweeps):
        for region in range(first + me, end, team):
            _commit_region(schedule.regions[region], sends)
        phase += 1
        barrier(counter, team, phase)
        if sweep == 0:
            for k in range(end - first):
                tolerance += REL_TOL * sums[1, k, 0]
            tolerance = max(tolerance, row_tol * rows)
        stride = sweep // STRIDE
        last = sweep % STRIDE == STRIDE - 1
        for region in range(first + me, end, team):
            part = schedule.regions[region]
            low, high = uint64(part[2]), uint64(max(part[2], part[3] - 1))
            _sweep_long_rows(low, high, schedule, contrib, False)
            low, high = uint64(part[0]), uint64(max(part[0], part[1] - 1))
            _sweep_slices(low, high, schedule, contrib, False)
            if last:
                _record_region(part, stride, contrib, differences, sums[stride & 1, region - first])
        phase += 1
        barrier(counter, team, phase)
        if not last:
            continue
        for k in range(TERMS):
            totals[k] = 0.0
            for region in range(end - first):
                totals[k] += sums[stride & 1, region, k]
        if totals[0] <= tolerance:
            break
        least_squares(min(stride, DEPTH), totals, lower, coefficients)
        for region in range(first + me, end, team):
            _mix_region(schedule.regions[region], stride, coefficients, contrib)
    return phase


@inner(**BORROWING)
def _duplicates_of(part, duplicate_ptr):
    """First and last of the rows with the edges of one in a region's slices."""
    if part[1] == part[0]:
        return uint32(0), uint32(0)
    return duplicate_ptr[part[0]], duplicate_ptr[part[1] - 1]


@inner(**BORROWING)
def _begin_region(part, schedule, contrib):
    """Keep what others contribute to the rows of a region; returns how much that is in all."""
    sends, reciprocals = contrib.sends, contrib.reciprocals
    behind = uint64(sends.size // 2)
    size = 0.0
    first_duplicate, end_duplicate = _duplicates_of(part, schedule.duplicate_ptr)
    for t in range(first_duplicate, end_duplicate):
        row = uint64(schedule.duplicate_rows[t])
        contrib.duplicate_starts[t] = sends[behind + row]
        size += float64(abs(sends[behind + row]) * reciprocals[row])
    for i in range(uint64(part[0]) * uint64(SLICE_ROWS), uint64(part[1]) * uint64(SLICE_ROWS)):
        row = uint64(schedule.targets[i])
        contrib.slice_starts[i] = sends[behind + row]
        size += float64(abs(sends[behind + row]) * reciprocals[row])
    for q in range(uint64(part[2]), uint64(max(part[2], part[3] - 1))):
        row = uint64(schedule.long_rows[q])
        contrib.long_starts[q] = sends[behind + row]
        size += float64(abs(sends[behind + row]) * reciprocals[row])
    low, high = uint64(part[4]), uint64(part[5])
    x, now = contrib.states[DEPTH + 1, low:high], sends[behind + low : behind + high]
    for i in range(x.size):
        x[i] = now[i]
    return size


@inner(**BORROWING)
def _commit_region(part, sends):
    """Let other regions see what a region's rows contribute now."""
    behind = uint64(sends.size // 2)
    low, high = uint64(part[4]), uint64(part[5])
    for row in range(low, high):
        sends[row] = sends[behind + row]


@inner(**BORROWING)
def _record_region(part, stride, contrib, differences, sums):
    """Keep what a stride made of a region's rows."""
    low, high = uint64(part[4]), uint64(part[5])
    behind = uint64(contrib.sends.size // 2)
    now, back = contrib.sends[behind + low : behind + high], contrib.reciprocals[low:high]
    here = stride % (DEPTH + 1)
    x, y = contrib.states[DEPTH + 1, low:high], contrib.states[here, low:high]
    f = contrib.changes[here, low:high]
    for i in range(now.size):
        y[i] = now[i]
        f[i] = (now[i] - x[i]) * back[i]
    record_stride(low, high, stride, contrib.changes, differences, sums)


@inner(**BORROWING)
def _mix_region(part, stride, coefficients, contrib):
    low, high = uint64(part[4]), uint64(part[5])
    behind = uint64(contrib.sends.size // 2)
    mix(low, high, stride, coefficients, contrib.states)
    now, x = contrib.sends[behind + low : behind + high], contrib.states[DEPTH + 1, low:high]
    for i in range(now.size):
        now[i] = x[i]


@inner()
def _sweep_slices(low, high, schedule, contrib, first):
    """Solve the rows of slices and those with the same edges, at first from what is in ``sends``."""
    slice_ptr, targets, slice_columns = schedule.slice_ptr, schedule.targets, schedule.slice_columns
    duplicate_ptr, duplicate_rows = schedule.duplicate_ptr, schedule.duplicate_rows
    duplicate_places, duplicate_starts = schedule.duplicate_places, contrib.duplicate_starts
    sends, slice_weights, slice_starts = contrib.sends, contrib.slice_weights, contrib.slice_starts
    duplicate_weights = contrib.duplicate_weights
    behind = uint64(sends.size // 2)
    lanes = np.empty(SLICE_ROWS, np.float32)
    for s in range(low, high):
        place = s * uint64(SLICE_ROWS)
        end = uint64(slice_ptr[s + uint64(1)])
        sum_slice(lanes, sends, slice_columns, None, None, slice_ptr[s], end)
        for t in range(duplicate_ptr[s], duplicate_ptr[s + uint64(1)]):
            to = behind + uint64(duplicate_rows[t])
            start = sends[to] if first else duplicate_starts[t]
            sends[to] = start + duplicate_weights[t] * lanes[uint64(duplicate_places[t]) - place]
        if first:
            for lane in range(uint64(SLICE_ROWS)):
                lanes[lane] *= slice_weights[place + lane]
            for lane in range(uint64(SLICE_ROWS)):
                # The sum of padding is zero, and so is what is written.
                sends[behind + uint64(targets[place + lane])] += lanes[lane]
        else:
            for lane in range(uint64(SLICE_ROWS)):
                lanes[lane] = slice_starts[place + lane] + slice_weights[place + lane] * lanes[lane]
            for lane in range(uint64(SLICE_ROWS)):
                sends[behind + uint64(targets[place + lane])] = lanes[lane]


@inner()
def _sweep_long_rows(low, high, schedule, contrib, first):
    """Solve long rows, as `_sweep_slices` does others."""
    sends, weights, long_rows = contrib.sends, contrib.weights, schedule.long_rows
    behind = uint64(sends.size // 2)
    lanes = np.empty(SLICE_ROWS, np.float32)
    waiting = low
    for q in range(low, high):
        begin, end = uint64(schedule.long_ptr[q]), uint64(schedule.long_ptr[q + uint64(1)])
        if begin == end:
            continue
        total = sum_long_row(lanes, sends, schedule.slice_columns, None, None, begin, end)
        for k in range(waiting, q + uint64(1)):
            row = uint64(long_rows[k])
            start = sends[behind + row] if first else contrib.long_starts[k]
            sends[behind + row] = start + weights[row] * total
        waiting = q + uint64(1)


@inner(**BORROWING)
def record_stride(low, high, stride, changes, differences, sums):
    """Add up what mixing needs of the rows low .. high - 1 after stride number `stride`, from 0 on.

    `changes`, shape (DEPTH + 1, rows), has f of the last strides, of stride t in place t modulo DEPTH + 1.
    `differences`, float32, shape (DEPTH, ROW_BLOCK), is scratch; `sums`, shape (TERMS,), receives the sums.
    """
    older = min(stride, DEPTH)
    here = stride % (DEPTH + 1)
    for k in range(TERMS):
        sums[k] = 0.0
    for begin in range(low, high, uint64(ROW_BLOCK)):
        end = min(begin + uint64(ROW_BLOCK), high)
        count = end - begin
        f = changes[here, begin:end]
        sums[0] += norm(f, count)
        for j in range(older):
            g, mine = changes[(stride - 1 - j) % (DEPTH + 1), begin:end], differences[j]
            for i in range(count):
                mine[i] = f[i] - g[i]
            sums[1 + j] += dot(mine, f, count)
            for k in range(j + 1):
                sums[1 + DEPTH + j * (j + 1) // 2 + k] += dot(mine, differences[k], count)


@inner(**BORROWING)
def least_squares(older, totals, lower, coefficients):
    """Find the coefficients of the `older` differences: a least-squares problem, by Cholesky's way.

    `totals` are the sums of all parts, and `lower`, shape (DEPTH, DEPTH), is scratch. The coefficients are
    zeros if the differences say nothing.
    """
    for j in range(older):
        coefficients[j] = 0.0
    for j in range(older):
        for k in range(j + 1):
            value = totals[1 + DEPTH + j * (j + 1) // 2 + k]
            if j == k:
                value *= 1.0 + RIDGE
            for q in range(k):
                value -= lower[j, q] * lower[k, q]
            if j > k:
                lower[j, k] = value / lower[k, k]
            elif value > 0.0:
                lower[j, j] = np.sqrt(value)
            else:
                return
    for j in range(older):
        value = totals[1 + j]
        for q in range(j):
            value -= lower[j, q] * coefficients[q]
        coefficients[j] = value / lower[j, j]
    for j in range(older - 1, -1, -1):
        value = coefficients[j]
        for q in range(j + 1, older):
            value -= lower[q, j] * coefficients[q]
        coefficients[j] = value / lower[j, j]


@inner(**BORROWING)
def mix(low, high, stride, coefficients, states):
    """Make the next x of the rows low .. high - 1.

    `states`, shape (DEPTH + 2, rows), has y of the last strides in the places of their changes, then x.
    """
    x, y = states[DEPTH + 1, low:high], states[stride % (DEPTH + 1), low:high]
    for i in range(x.size):
        x[i] = y[i]
    for j in range(min(stride, DEPTH)):
        coefficient = np.float32(coefficients[j])
        earlier = states[(stride - 1 - j) % (DEPTH + 1), low:high]
        for i in range(x.size):
            x[i] -= coefficient * (y[i] - earlier[i])
