"""Rows in slices of sixteen of about the same length, whose edges stand and are summed side by side.

Rows with the same edges are summed once for all of them: pages made from one template are linked to from the
same pages; in a crawl more than a third of all edges repeat those of another row.
"""

from __future__ import annotations

import numpy as np
from numba import uint32, uint64

from oocpr.engine.cpu.gather import SLICE_ROWS
from oocpr.jit import inner

MAX_SLICED = 128
"""Edges past which a row is added up on its own rather than in a slice."""

SLICE, COLUMN, LONG_ROW, STAGE, REGION, MEMBER, COMPONENT, DUPLICATE = range(8)
"""Numbers of a cursor: how many of each a LevelSchedule has so far."""

_NOBODY = 2**32 - 1
_FACTOR = 0x9E3779B97F4A7C15


@inner()
def _hash(first, end, columns):
    """64 bits that differ, as a rule, where lists do."""
    word = end - first
    for i in range(first, end):
        word = (word ^ uint64(columns[i])) * uint64(_FACTOR)
        word ^= word >> uint64(29)
    return word


@inner()
def find_duplicate_rows(rows, lengths, own, made, same_as):
    """Find which rows repeat the edges of an earlier one.

    `same_as` receives, by row, the first row with the same edges in the same order, often the row itself;
    always if there is one edge, for then there is no sum to share. The others are as for slice_group.
    """
    size = uint64(16)
    while size < uint64(2) * uint64(rows.size):
        size *= uint64(2)
    table = np.full(size, uint32(_NOBODY), np.uint32)
    hashes = np.empty(size, np.uint64)
    for row in rows:
        same_as[row] = row
        length = uint64(lengths[row])
        if length < uint64(2):
            continue
        first = uint64(made.offsets[row]) + uint64(own * made.outer[row])
        word = _hash(first, first + length, made.columns)
        at = word & (size - uint64(1))
        while table[at] != uint32(_NOBODY):
            other = table[at]
            if hashes[at] == word and uint64(lengths[other]) == length:
                begin = uint64(made.offsets[other]) + uint64(own * made.outer[other])
                k = uint64(0)
                while k < length and made.columns[begin + k] == made.columns[first + k]:
                    k += uint64(1)
                if k == length:
                    same_as[row] = other
                    break
            at = (at + uint64(1)) & (size - uint64(1))
        if same_as[row] == row:
            table[at] = row
            hashes[at] = word


@inner()
def slice_group(rows, lengths, own, low, high, made, cursor, scratch):
    """Lay edges of some rows out in slices, longest first; rows of more than MAX_SLICED come after them.

    Parameters
    ----------
    lengths, own
        ``made.inner`` and 1 if the edges from a row's own component are meant, ``made.outer`` and 0 for those
        from others.
    low, high
        Rows low .. high - 1 are read as they have just become.
    made, cursor
        The LevelSchedule that is being filled, and how far its arrays are.
    scratch
        uint32, shape (2, rows of the graph).
    """
    if rows.size == 0:
        return
    same_as, places_of = scratch[0], scratch[1]
    find_duplicate_rows(rows, lengths, own, made, same_as)
    tally = np.zeros(MAX_SLICED + 1, np.uint32)
    for row in rows:
        if lengths[row] > uint32(MAX_SLICED):
            places_of[row] = uint32(0)
            places_of[same_as[row]] += uint32(1)
        elif same_as[row] == row:
            tally[lengths[row]] += uint32(1)
    places = np.empty(MAX_SLICED + 1, np.uint32)
    few = uint64(0)
    for width in range(MAX_SLICED, 0, -1):
        places[width] = uint32(few)
        few += uint64(tally[width])
    slot = uint64(cursor[SLICE])
    slices = (few + uint64(SLICE_ROWS - 1)) // uint64(SLICE_ROWS)
    nobody = uint32(made.outer.size)
    for i in range(slot * uint64(SLICE_ROWS), (slot + slices) * uint64(SLICE_ROWS)):
        made.targets[i] = nobody
    long_slot = uint64(cursor[LONG_ROW])
    q_long = long_slot
    for row in rows:
        width = lengths[row]
        if width > uint32(MAX_SLICED):
            # A row comes after all those that have its edges.
            if same_as[row] == row:
                count = places_of[row]
                places_of[row] = uint32(q_long)
                q_long += uint64(count)
                made.long_rows[q_long - uint64(1)] = row
            else:
                made.long_rows[places_of[same_as[row]]] = row
                places_of[same_as[row]] += uint32(1)
        elif same_as[row] == row:
            places_of[row] = uint32(slot * uint64(SLICE_ROWS)) + places[width]
            made.targets[places_of[row]] = row
            places[width] += uint32(1)
    base = uint64(cursor[COLUMN])
    for s in range(slot, slot + slices):
        made.slice_ptr[s] = base
        width = uint64(lengths[made.targets[s * uint64(SLICE_ROWS)]])
        for lane in range(uint64(SLICE_ROWS)):
            row = made.targets[s * uint64(SLICE_ROWS) + lane]
            to = base + lane
            if row != nobody:
                to = _copy_edges(row, lengths, own, low, high, made, to, uint64(SLICE_ROWS))
            while to < base + width * uint64(SLICE_ROWS):
                made.slice_columns[to] = nobody
                to += uint64(SLICE_ROWS)
        base += width * uint64(SLICE_ROWS)
    made.slice_ptr[slot + slices] = base
    for i in range((slot + slices) * uint64(SLICE_ROWS), (slot + slices + uint64(1)) * uint64(SLICE_ROWS)):
        made.targets[i] = nobody
    for q in range(long_slot, q_long):
        made.long_ptr[q] = base
        row = made.long_rows[q]
        if same_as[row] == row:
            base = _copy_edges(row, lengths, own, low, high, made, base, uint64(1))
    made.long_ptr[q_long] = base
    made.long_rows[q_long] = nobody
    _list_duplicates(rows, lengths, same_as, places_of, slot, slices, made, cursor)
    cursor[SLICE] += slices + uint64(1)
    cursor[COLUMN] = base
    cursor[LONG_ROW] = q_long + uint64(1)


@inner()
def _list_duplicates(rows, lengths, same_as, places_of, slot, slices, made, cursor):
    """List the rows whose edges those in the slices from `slot` on have, slice by slice."""
    ptr = made.duplicate_ptr[slot : slot + slices + uint64(1)]
    for s in range(ptr.size):
        ptr[s] = uint32(0)
    for row in rows:
        if same_as[row] != row and lengths[row] <= uint32(MAX_SLICED):
            ptr[uint64(places_of[same_as[row]]) // uint64(SLICE_ROWS) - slot] += uint32(1)
    total = uint32(cursor[DUPLICATE])
    for s in range(ptr.size):
        count = ptr[s]
        ptr[s] = total
        total += count
    for row in rows:
        if same_as[row] != row and lengths[row] <= uint32(MAX_SLICED):
            place = places_of[same_as[row]]
            s = uint64(place) // uint64(SLICE_ROWS) - slot
            made.duplicate_rows[ptr[s]] = row
            made.duplicate_places[ptr[s]] = place
            ptr[s] += uint32(1)
    for s in range(ptr.size - 1, 0, -1):
        ptr[s] = ptr[s - 1]
    ptr[0] = uint32(cursor[DUPLICATE])
    cursor[DUPLICATE] = total


@inner()
def _copy_edges(row, lengths, own, low, high, made, to, step):
    """Write the columns of a row to every `step`-th place from `to` on; returns where it stopped."""
    live = uint32(made.outer.size + 1)
    first = uint64(made.offsets[row]) + uint64(own * made.outer[row])
    for i in range(first, first + uint64(lengths[row])):
        column = made.columns[i]
        made.slice_columns[to] = column + (live if low <= column < high else uint32(0))
        to += step
    return to
