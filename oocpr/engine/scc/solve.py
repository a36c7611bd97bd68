"""Solving a graph's rows in their order: what is pushed next.

Everything is done in what a row sends along each of its links, y = damping / out-degree * proposal, so that
a visit reads and writes one number: with b what a row sends before anybody has sent it anything, and w its
damping / out-degree, both divided by 1 - w where it links to itself,

    y_i = b_i + w_i * sum of y_j over the links from j to i.

Rows without cycles are solved by one visit each, components by Gauss-Seidel sweeps until they change by no
more than SETTLED of what others send them. What rows send is kept twice, behind each other: as it was when
the sweep of a large component began, and as it is.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import float32, uint64

from oocpr.engine.cpu.gather import first_at
from oocpr.engine.cpu.mailbox import by_all
from oocpr.engine.cpu.rows import BLOCK
from oocpr.engine.cpu.sliced_ell import ABREAST
from oocpr.engine.cpu.threads import claim, meet
from oocpr.engine.scc.anderson import DEPTH, TERMS
from oocpr.engine.scc.contributions import long_sum
from oocpr.engine.scc.level_schedule import LISTED, SHARED, WALKED
from oocpr.engine.scc.solve_component import solve_component
from oocpr.engine.scc.sweep_component import sweep_component
from oocpr.jit import entry, inner


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
def _visit_long(low, high, levels, sends, weights):
    behind = uint64(sends.size // 2)
    waiting = low
    for q in range(low, high):
        first, end = uint64(levels.long_bases[q]), uint64(levels.long_bases[q + uint64(1)])
        if first == end:
            continue
        total = long_sum(first, end, levels.sliced, sends)
        for k in range(waiting, q + uint64(1)):
            row = uint64(levels.long_rows[k])
            sends[behind + row] += weights[row] * total
        waiting = q + uint64(1)


@entry()
def solve_once(board, *args):
    """Solve by all threads of a team; see solve."""
    return by_all(board, solve, args)


@inner()
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
    room = (
        np.empty(TERMS), np.empty(DEPTH), np.empty((DEPTH, DEPTH)), np.empty((DEPTH, BLOCK), np.float32)
    )  # fmt: skip
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
                solve_component(c, levels, sending, most, spare, room)
        elif kind == WALKED:
            if me == 0:
                for c in range(stage[1], stage[2]):
                    solve_component(c, levels, sending, most, spare, room)
        else:
            met = sweep_component(
                me, team, counter, met, stage[1], stage[2], levels, sending, most, spare, room
            )
        met += 1
        meet(counter, team, met)
    return met
