"""A large component swept by all threads, each its own regions, in slices."""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import float32, float64, int64, uint32, uint64

from oocpr.engine.cpu.sliced_ell import ABREAST
from oocpr.engine.cpu.threads import meet
from oocpr.engine.scc.anderson import DEPTH, STRIDE, TERMS, mix, note_stride, weigh
from oocpr.engine.scc.contributions import SETTLED, long_sum
from oocpr.engine.scc.level_schedule import REGIONS
from oocpr.jit import BORROWING, inner


@inner(**BORROWING)
def _twins_of(part, twin_bases):
    """First and last of the rows with the links of one in a region's slices."""
    if part[1] == part[0]:
        return uint32(0), uint32(0)
    return twin_bases[part[0]], twin_bases[part[1] - 1]


@inner(**BORROWING)
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
    low, high = uint64(part[4]), uint64(part[5])
    x, now = sending.states[DEPTH + 1, low:high], sends[behind + low : behind + high]
    for i in range(x.size):
        x[i] = now[i]
    return size


@inner(**BORROWING)
def _settle_region(part, sends):
    """Let other regions see what a region's rows send now."""
    behind = uint64(sends.size // 2)
    low, high = uint64(part[4]), uint64(part[5])
    for row in range(low, high):
        sends[row] = sends[behind + row]


@inner(**BORROWING)
def _note_region(part, turn, sending, apart, sums):
    """Keep what a stride made of a region's rows."""
    low, high = uint64(part[4]), uint64(part[5])
    behind = uint64(sending.sends.size // 2)
    now, back = sending.sends[behind + low : behind + high], sending.backs[low:high]
    here = turn % (DEPTH + 1)
    x, y = sending.states[DEPTH + 1, low:high], sending.states[here, low:high]
    f = sending.changes[here, low:high]
    for i in range(now.size):
        y[i] = now[i]
        f[i] = (now[i] - x[i]) * back[i]
    note_stride(low, high, turn, sending.changes, apart, sums)


@inner(**BORROWING)
def _mix_region(part, turn, shares, sending):
    low, high = uint64(part[4]), uint64(part[5])
    behind = uint64(sending.sends.size // 2)
    mix(low, high, turn, shares, sending.states)
    now, x = sending.sends[behind + low : behind + high], sending.states[DEPTH + 1, low:high]
    for i in range(now.size):
        now[i] = x[i]


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
        total = long_sum(first, end, levels.sliced, sends)
        for k in range(waiting, q + uint64(1)):
            row = uint64(levels.long_rows[k])
            sends[behind + row] = long_starts[k] + weights[row] * total
        waiting = q + uint64(1)


@inner()
def sweep_component(me, team, counter, met, first, end, levels, sending, most, spare, room):
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
    totals, shares, lower, apart = room
    for sweep in range(most):
        for region in range(first + me, end, team):
            _settle_region(levels.regions[region], sends)
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
                _note_region(part, turn, sending, apart, sums[turn & 1, region - first])
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
        weigh(min(turn, DEPTH), totals, lower, shares)
        for region in range(first + me, end, team):
            _mix_region(levels.regions[region], turn, shares, sending)
    return met
