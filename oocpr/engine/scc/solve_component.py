"""A component solved by one thread, row by row, while others solve others."""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from numba import float32, float64, uint64

from oocpr.engine.scc.anderson import DEPTH, STRIDE, mix, note_stride, weigh
from oocpr.engine.scc.contributions import SETTLED, sent
from oocpr.jit import BORROWING, inner

MIXED = 32
"""Rows of a component whose sweeps are worth mixing."""


@inner(**BORROWING)
def solve_component(c, levels, sending, most, spare, room):
    """Solve a component on one thread: what others send it once, then its own cycles until they settle."""
    sends, weights, starts = sending.sends, sending.weights, sending.member_starts
    behind = uint64(sends.size // 2)
    low, high = uint64(levels.heads[c]), uint64(levels.heads[c + 1])
    for q in range(low, high):
        row = uint64(levels.members[q])
        first = uint64(levels.offsets[row])
        end = first + uint64(levels.outer[row])
        sends[behind + row] += weights[row] * sent(first, end, levels.columns, behind, sends)
        starts[q] = sends[behind + row]
    if high - low == uint64(1):
        return
    if high - low < uint64(MIXED):
        for _ in range(most):
            change = float32(0.0)
            size = float32(0.0)
            for q in range(low, high):
                row = uint64(levels.members[q])
                before = sends[behind + row]
                now = _solve_member(q, row, levels, sending)
                change += abs(now - before) * sending.backs[row]
                size += abs(now) * sending.backs[row]
            if change <= max(float32(SETTLED) * size, float32(spare) * float32(high - low)):
                return
    else:
        _mix_component(low, high, levels, sending, most, spare, room)


@inner(**BORROWING)
def _solve_member(q, row, levels, sending):
    """Solve a row of a component for what the others send it now."""
    behind = uint64(sending.sends.size // 2)
    first = uint64(levels.offsets[row]) + uint64(levels.outer[row])
    end = first + uint64(levels.inner[row])
    total = sent(first, end, levels.columns, behind, sending.sends)
    now = sending.member_starts[q] + sending.weights[row] * total
    sending.sends[behind + row] = now
    return now


@inner(**BORROWING)
def _mix_component(low, high, levels, sending, most, spare, room):
    """Sweep the rows of a component on one thread until they settle, mixing after every stride."""
    sends, states, changes, backs = sending.sends, sending.states, sending.changes, sending.backs
    behind = uint64(sends.size // 2)
    size = 0.0
    for q in range(low, high):
        row = uint64(levels.members[q])
        states[DEPTH + 1, q] = sends[behind + row]
        size += float64(abs(sends[behind + row]) * backs[row])
    enough = max(SETTLED * size, spare * float64(high - low))
    totals, shares, lower, apart = room
    for turn in range(most // STRIDE + 1):
        for _ in range(STRIDE):
            for q in range(low, high):
                _solve_member(q, uint64(levels.members[q]), levels, sending)
        x, y, f = states[DEPTH + 1], states[turn % (DEPTH + 1)], changes[turn % (DEPTH + 1)]
        for q in range(low, high):
            row = uint64(levels.members[q])
            y[q] = sends[behind + row]
            f[q] = (y[q] - x[q]) * backs[row]
        note_stride(low, high, turn, changes, apart, totals)
        if totals[0] <= enough:
            return
        weigh(min(turn, DEPTH), totals, lower, shares)
        mix(low, high, turn, shares, states)
        for q in range(low, high):
            sends[behind + uint64(levels.members[q])] = x[q]
