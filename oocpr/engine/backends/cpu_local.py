"""Tile-local sweeps on the CPU: the links that stay inside a tile, picked out and swept Gauss-Seidel style.

A tile's rows are cut in REGIONS parts, whatever the number of threads. Inside a region a row reads what the
rows before it have just become; from other regions it reads what they were when the sweep began. One such
sweep does the work of about two that read old values only, and since it is but a proposal, any order of the
rows is right: they go in slices of sixteen, longest first.

What rows send is kept twice, behind each other: as it was when the sweep began (``owned + 1`` numbers, the
last of them zero for padding) and as it is. A link says by its number which of the two it reads.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import float32, njit, uint32, uint64

from oocpr.engine.backends.cpu_deliver import first_at
from oocpr.engine.backends.cpu_slices import ABREAST, slice_rows

REGIONS = 8
"""Parts of a tile that are swept side by side."""

LONG = 255
"""Links inside the tile past which a row is swept on its own."""

PADDING = ABREAST * (LONG + 1)
"""Columns that a region's slices may need beyond its links."""


@njit(nogil=True, cache=True)
def region_begin(region, edges, positions, nonempty):
    """First non-empty segment of a region."""
    if region >= REGIONS:
        return uint64(nonempty)
    return first_at(positions, nonempty, uint64(edges) * uint64(region) // uint64(REGIONS))


@njit(nogil=True, cache=True)
def _first_row(k, region, segments, nonempty, owned):
    """First row of the region that begins with segment k."""
    if region == 0:
        return uint32(0)
    if region >= REGIONS or k >= uint64(nonempty):
        return uint32(owned)
    return min(uint32(segments[k]), uint32(owned))


@njit(nogil=True, cache=True)
def region_rows(region, edges, positions, segments, nonempty, owned):
    """First row of a region and the one past its last."""
    low = region_begin(region, edges, positions, nonempty)
    high = region_begin(region + 1, edges, positions, nonempty)
    return (
        _first_row(low, region, segments, nonempty, owned),
        _first_row(high, region + 1, segments, nonempty, owned),
    )


@njit(nogil=True, cache=True)
def pick_region(
    region,
    edges,
    nonempty,
    positions,
    segments,
    columns,
    first,
    owned,
    inside,
    begins,
    ends,
    rows,
    counts,
    bases,
    targets,
    sliced,
    heads,
):
    """Pick out the links of a region that stay inside the tile, and slice them.

    Parameters
    ----------
    first, owned
        First owned row of the tile, and their number.
    inside
        uint32, shape (edges,): scratch, keeps the links of long rows.
    begins, ends, rows
        uint32, shape (nonempty,): scratch, keep the long rows at the end of the region's part.
    counts
        uint32, shape (LONG + 2,): scratch of one region.
    bases, targets, sliced
        The region's slices, beginning at slice ``low // 16 + region`` and column ``positions[low] + region *
        PADDING``, where `low` is the region's first segment.
    heads
        uint32, shape (REGIONS, 2): receives the number of slices and of long rows.
    """
    low = region_begin(region, edges, positions, nonempty)
    high = region_begin(region + 1, edges, positions, nonempty)
    own_low, own_high = region_rows(region, edges, positions, segments, nonempty, owned)
    short = low
    long = high
    to = uint64(positions[low])
    room = uint32(owned)
    start = uint32(first)
    span = uint32(own_high - own_low)
    live = uint32(owned + 1)
    for k in range(low, high):
        if segments[k] >= room:
            continue
        before = to
        for i in range(uint64(positions[k]), uint64(positions[k + uint64(1)])):
            # Unsigned differences: a column before the tile, or the region, wraps to a number past it.
            column = uint32(columns[i] - start)
            inside[to] = uint32(column + (live if uint32(column - own_low) < span else uint32(0)))
            to += uint64(column < room)
        if to - before > uint64(LONG):
            long -= uint64(1)
            begins[long] = before
            ends[long] = to
            rows[long] = segments[k]
        elif to > before:
            begins[short] = before
            ends[short] = to
            rows[short] = segments[k]
            short += uint64(1)
    slot = low // uint64(ABREAST) + uint64(region)
    slice_rows(
        begins[low:short], ends[low:short], rows[low:short], short - low, uint64(LONG), inside, room, room,
        counts,
        bases[slot + uint64(region):], targets[slot * uint64(ABREAST):],
        uint64(positions[low]) + uint64(region * PADDING), sliced,
    )  # fmt: skip
    heads[region, 0] = (short - low + uint64(ABREAST - 1)) // uint64(ABREAST)
    heads[region, 1] = high - long


@njit(nogil=True, cache=True)
def sweep_region(
    region,
    edges,
    nonempty,
    positions,
    owned,
    inside,
    begins,
    ends,
    rows,
    bases,
    targets,
    sliced,
    heads,
    factors,
    start,
    sends,
    total,
):
    """Sweep the rows of a region once: each becomes `start` and what it is sent.

    Parameters
    ----------
    factors
        float32: damping over out-degree of each row.
    start
        float32: what rows have from outside the tile.
    sends
        float32, shape (2 owned + 2,): what rows send; see above.
    total
        float32, shape (owned + 1,): receives what rows become.
    """
    low = region_begin(region, edges, positions, nonempty)
    high = region_begin(region + 1, edges, positions, nonempty)
    live = uint64(owned + 1)
    for k in range(high - uint64(heads[region, 1]), high):
        value = float32(0.0)
        for i in range(uint64(begins[k]), uint64(ends[k])):
            value += sends[uint64(inside[i])]
        t = uint64(rows[k])
        total[t] = start[t] + value
        sends[live + t] = factors[t] * total[t]
    lanes = np.empty(ABREAST, np.float32)
    slot = low // uint64(ABREAST) + uint64(region)
    for s in range(uint64(heads[region, 0])):
        for lane in range(uint64(ABREAST)):
            lanes[lane] = float32(0.0)
        i = uint64(bases[slot + uint64(region) + s])
        end = uint64(bases[slot + uint64(region) + s + uint64(1)])
        while i < end:
            for lane in range(uint64(ABREAST)):
                lanes[lane] += sends[uint64(sliced[i + lane])]
            i += uint64(ABREAST)
        for lane in range(uint64(ABREAST)):
            t = uint64(targets[(slot + s) * uint64(ABREAST) + lane])
            total[t] = start[t] + lanes[lane]
            sends[live + t] = factors[t] * total[t]


@njit(nogil=True, cache=True)
def settle_region(region, edges, nonempty, positions, segments, owned, sends):
    """Let other regions see what a region's rows send now."""
    begin, end = region_rows(region, edges, positions, segments, nonempty, owned)
    live = uint64(owned + 1)
    for t in range(uint64(begin), uint64(end)):
        sends[t] = sends[live + t]
