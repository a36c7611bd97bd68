"""Rows in slices of sixteen of about the same length, whose links stand and are summed side by side."""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import uint32, uint64

from oocpr.engine.cpu.sliced_ell import ABREAST
from oocpr.engine.scc.duplicate_rows import find_twins
from oocpr.jit import inner

LONG = 128
"""Links past which a row is added up on its own rather than in a slice."""


@inner()
def slice_group(rows, lengths, own, low, high, made, cursor, scratch):
    """Lay links of some rows out in slices, longest first; rows of more than LONG come after them.

    Parameters
    ----------
    rows
        uint32.
    lengths, own
        ``made.inner`` and 1 where the links from a row's own component are meant, ``made.outer`` and 0 where
        those from others are.
    low, high
        Links from rows low .. high - 1 are read as they have just become.
    made, cursor
        `levels.Levels` that are being filled, and how far its arrays are.
    scratch
        uint32, shape (2, rows of the graph).
    """
    if rows.size == 0:
        return
    alike, seats = scratch[0], scratch[1]
    find_twins(rows, lengths, own, made, alike)
    tally = np.zeros(LONG + 1, np.uint32)
    for row in rows:
        if lengths[row] > uint32(LONG):
            seats[row] = uint32(0)
            seats[alike[row]] += uint32(1)
        elif alike[row] == row:
            tally[lengths[row]] += uint32(1)
    places = np.empty(LONG + 1, np.uint32)
    few = uint64(0)
    for width in range(LONG, 0, -1):
        places[width] = uint32(few)
        few += uint64(tally[width])
    slot = uint64(cursor[0])
    slices = (few + uint64(ABREAST - 1)) // uint64(ABREAST)
    nobody = uint32(made.outer.size)
    for i in range(slot * uint64(ABREAST), (slot + slices) * uint64(ABREAST)):
        made.targets[i] = nobody
    long_slot = uint64(cursor[2])
    q_long = long_slot
    for row in rows:
        width = lengths[row]
        if width > uint32(LONG):
            # A row comes after all those that have its links.
            if alike[row] == row:
                count = seats[row]
                seats[row] = uint32(q_long)
                q_long += uint64(count)
                made.long_rows[q_long - uint64(1)] = row
            else:
                made.long_rows[seats[alike[row]]] = row
                seats[alike[row]] += uint32(1)
        elif alike[row] == row:
            seats[row] = uint32(slot * uint64(ABREAST)) + places[width]
            made.targets[seats[row]] = row
            places[width] += uint32(1)
    base = uint64(cursor[1])
    for s in range(slot, slot + slices):
        made.bases[s] = base
        width = uint64(lengths[made.targets[s * uint64(ABREAST)]])
        for lane in range(uint64(ABREAST)):
            row = made.targets[s * uint64(ABREAST) + lane]
            to = base + lane
            if row != nobody:
                to = _copy_links(row, lengths, own, low, high, made, to, uint64(ABREAST))
            while to < base + width * uint64(ABREAST):
                made.sliced[to] = nobody
                to += uint64(ABREAST)
        base += width * uint64(ABREAST)
    made.bases[slot + slices] = base
    for i in range((slot + slices) * uint64(ABREAST), (slot + slices + uint64(1)) * uint64(ABREAST)):
        made.targets[i] = nobody
    for q in range(long_slot, q_long):
        made.long_bases[q] = base
        row = made.long_rows[q]
        if alike[row] == row:
            base = _copy_links(row, lengths, own, low, high, made, base, uint64(1))
    made.long_bases[q_long] = base
    made.long_rows[q_long] = nobody
    _list_twins(rows, lengths, alike, seats, slot, slices, made, cursor)
    cursor[0] += slices + uint64(1)
    cursor[1] = base
    cursor[2] = q_long + uint64(1)


@inner()
def _list_twins(rows, lengths, alike, seats, slot, slices, made, cursor):
    """List the rows whose links those in the slices from `slot` on have, slice by slice."""
    bases = made.twin_bases[slot : slot + slices + uint64(1)]
    for s in range(bases.size):
        bases[s] = uint32(0)
    for row in rows:
        if alike[row] != row and lengths[row] <= uint32(LONG):
            bases[uint64(seats[alike[row]]) // uint64(ABREAST) - slot] += uint32(1)
    total = uint32(cursor[7])
    for s in range(bases.size):
        count = bases[s]
        bases[s] = total
        total += count
    for row in rows:
        if alike[row] != row and lengths[row] <= uint32(LONG):
            seat = seats[alike[row]]
            s = uint64(seat) // uint64(ABREAST) - slot
            made.twin_rows[bases[s]] = row
            made.twin_places[bases[s]] = seat
            bases[s] += uint32(1)
    for s in range(bases.size - 1, 0, -1):
        bases[s] = bases[s - 1]
    bases[0] = uint32(cursor[7])
    cursor[7] = total


@inner()
def _copy_links(row, lengths, own, low, high, made, to, step):
    """Write the columns of a row to every `step`-th place from `to` on; returns where it stopped."""
    live = uint32(made.outer.size + 1)
    first = uint64(made.offsets[row]) + uint64(own * made.outer[row])
    for i in range(first, first + uint64(lengths[row])):
        column = made.columns[i]
        made.sliced[to] = column + (live if low <= column < high else uint32(0))
        to += step
    return to
