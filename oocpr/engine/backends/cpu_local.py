"""Tile-local sweeps on the CPU: the links that stay inside a tile, picked out once, then multiplied.

Picking is done in REGIONS parts of about equally many edges, whatever the number of threads; a part's links
lie where its edges lie, so the parts need not know of each other.
"""

# Decorators of numba carry no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True

from __future__ import annotations

from numba import float32, njit, uint32, uint64

from oocpr.engine.backends.cpu_deliver import first_at

REGIONS = 16
"""Parts of a tile."""


@njit(nogil=True, cache=True)
def region_begin(region, edges, positions, nonempty):
    """First non-empty segment of a region."""
    if region == REGIONS:
        return uint64(nonempty)
    return first_at(positions, nonempty, uint64(edges) * uint64(region) // uint64(REGIONS))


@njit(nogil=True, cache=True)
def pick_region(region, edges, nonempty, positions, segments, columns, first, owned, inside, ends, rows, counts):
    """Copy the links of a region that stay inside the tile.

    Parameters
    ----------
    first, owned
        First owned row of the tile, and their number.
    inside
        uint32, shape (edges,): receives the columns, counted in the tile.
    ends, rows
        uint32, shape (nonempty,): receive, for each row that has such links, where they end and the row.
    counts
        uint32, shape (REGIONS,): receives the number of such rows.
    """
    low = region_begin(region, edges, positions, nonempty)
    high = region_begin(region + 1, edges, positions, nonempty)
    kept = low
    to = uint64(positions[low])
    room = uint32(owned)
    start = uint32(first)
    for k in range(low, high):
        before = to
        for i in range(uint64(positions[k]), uint64(positions[k + uint64(1)])):
            # An unsigned difference: a column before the tile wraps to a number past it.
            column = uint32(columns[i] - start)
            inside[to] = column
            to += uint64(column < room)
        if to > before and segments[k] < room:
            ends[kept] = to
            rows[kept] = segments[k]
            kept += uint64(1)
        else:
            to = before
    counts[region] = kept - low


@njit(nogil=True, cache=True)
def sweep_region(region, edges, nonempty, positions, inside, ends, rows, counts, offset, degree, damping, shares, total, after):
    """One product over the links of a region.

    Parameters
    ----------
    shares
        float32: what each row of the tile sends along a link.
    total
        float32: the proposal so far, added to.
    after
        float32, zeros: receives what each row sends in the sweep after.
    """
    low = region_begin(region, edges, positions, nonempty)
    begin = uint64(positions[low])
    for k in range(low, low + uint64(counts[region])):
        value = float32(0.0)
        end = uint64(ends[k])
        for i in range(begin, end):
            value += shares[uint64(inside[i])]
        begin = end
        t = uint64(rows[k])
        total[t] += value
        after[t] = float32(damping) * value / float32(max(degree[t + offset], uint32(1)))
