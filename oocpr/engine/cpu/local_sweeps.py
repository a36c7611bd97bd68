"""Sweeps over tiles that lie side by side: Gauss-Seidel along the edges between their rows.

The last tiles that have come are swept together, once each, oldest first, whenever one comes; see
`oocpr.engine.cpu.window`. So a tile is swept as often as it has company, and rows on both sides of a border
of tiles read each other as often as those inside a tile.

A tile's rows are cut in TILE_REGIONS parts, whatever the number of threads. Inside a region a row reads what
the rows before it have just become; from other regions it reads what they were when the sweep began. One such
sweep does the work of about two that read old values only, and since it is but a proposal, any order of the
rows is right.

Several sweeps go over the same edges, so the rows are permuted into the order in which they are swept: what
they have then lies side by side, and only what they send, and read, is by the row. Each region has first the
rows with such edges in slices of sixteen, longest first, then those with more than MAX_LOCAL_SLICED of them,
then those with none. A row's edge to itself is not listed: it is solved for, by a factor of the row.

Edges from rows of other stripes are listed behind those of a region, downwards from its end. They are read
when the tile comes and whenever stripes have exchanged what their rows propose.

What rows send lies in two rings behind each other: as it was when the sweep began, and as it is. A listed
column says by its number which of the two it reads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import float32, uint32, uint64
from numpy.typing import NDArray

from oocpr.engine.cpu.gather import SLICE_ROWS, first_not_below, sum_long_row, sum_slice
from oocpr.engine.cpu.numbers import (
    edge_factor,
    loop_share,
    pad_weight,
    store_share,
    times_weight,
    widened,
)
from oocpr.jit import inner

TILE_REGIONS = 8
"""Parts of a tile that are swept side by side."""

MAX_LOCAL_SLICED = 255
"""Edges inside the tile past which a row is swept on its own."""

REGION_PADDING = SLICE_ROWS * (MAX_LOCAL_SLICED + 1)
"""Columns that a region's slices may need beyond its edges."""

ROW_PADDING = TILE_REGIONS * SLICE_ROWS + 1
"""Permuted rows of a tile beyond those that it owns; the last is always padding."""

BOUNDS = 10
"""Numbers of a region: its first permuted row and end, first slice, slices, first long row, long rows; where
its columns end, its first row with edges from other stripes and the one past the last, and the first column
of those into the tail."""

_SELF = 1 << 31


class TilePlace(NamedTuple):
    """Where a tile's rows are, and what they send.

    It owns `owned` rows from `first` on, in the stripe from `offset` on, which has `rows` rows. It is swept
    along edges from the `near_rows` rows from `near` on, its own among them. In rings of `ring_rows` rows,
    `ring` is where its first row is, and `near_ring` where that of `near` is.
    """

    first: int
    owned: int
    offset: int
    near: int
    near_rows: int
    ring: int
    near_ring: int
    ring_rows: int
    rows: int

    @classmethod
    def alone(cls, first: int, owned: int, offset: int) -> TilePlace:
        """Place of a tile that is not swept."""
        return cls(first, owned, offset, first, 0, 0, 0, 0, 0)


class LocalLayout(NamedTuple):
    """The edges that a tile is swept along, by permuted rows."""

    # Row of each permuted row; the number of owned rows for padding.
    row_at: NDArray[np.uint32]
    # Damping over out-degree, or 1 if edges have shares; what the edge of a row to itself multiplies it by.
    factors: NDArray[np.float32]
    gains: NDArray[np.float32]
    # First column of each slice, of each row past MAX_LOCAL_SLICED, and where a region's end.
    slice_ptr: NDArray[np.uint32]
    long_ptr: NDArray[np.uint32]
    # Where edges read what is sent.
    columns: NDArray[np.uint32]
    # Shape (TILE_REGIONS, BOUNDS).
    regions: NDArray[np.uint32]
    # Shape (rows, 2): permuted rows with edges from other stripes, and the first column of these.
    others: NDArray[np.uint32]
    # Of `columns`: damping times the edge's share of the weight that leaves its node, or its weight if it is
    # from another stripe; None without weights.
    shares: NDArray[np.float32] | None


@inner()
def _first_segment(region, edges, row_ptr, nonempty):
    """First non-empty segment of a region."""
    if region >= TILE_REGIONS:
        return uint64(nonempty)
    return first_not_below(row_ptr, nonempty, uint64(edges) * uint64(region) // uint64(TILE_REGIONS))


@inner()
def _first_row(region, edges, row_ptr, segments, nonempty, owned):
    """First row of a region; of the one past the last, the number of owned rows."""
    if region == 0:
        return uint64(0)
    k = _first_segment(region, edges, row_ptr, nonempty)
    if k >= uint64(nonempty):
        return uint64(owned)
    return uint64(min(segments[k], uint32(owned)))


@inner()
def _first_position(region, low):
    """First permuted row of a region whose first row is `low`."""
    return uint64(low) + uint64(region) * uint64(SLICE_ROWS)


@inner()
def permute_region(
    region, edges, nonempty, row_ptr, segments, columns, weights, place, degree, damping, counts, places,
    tally, layout,
):  # fmt: skip
    """Give each row of a region its position, and `layout` all but columns and shares.

    `degree`, of the stripe's rows, is as for `divisor`. `counts` and `places` receive the edges of each row
    that it is swept along, and its segment, or `nonempty` for none; `tally` is scratch.
    """
    owned = place.owned
    low = _first_segment(region, edges, row_ptr, nonempty)
    high = _first_segment(region + 1, edges, row_ptr, nonempty)
    row_low = _first_row(region, edges, row_ptr, segments, nonempty, owned)
    row_high = _first_row(region + 1, edges, row_ptr, segments, nonempty, owned)
    no_row = uint32(owned)
    first = uint32(place.first)
    near = uint32(place.near)
    near_rows = uint32(place.near_rows)
    own_degree = degree[uint64(place.offset) : uint64(place.offset + owned)]
    for t in range(row_low, row_high):
        counts[t] = uint32(0)
        places[t] = uint32(nonempty)
    for k in range(low, high):
        t = segments[k]
        if t >= no_row:
            continue
        count = uint32(0)
        own = uint32(0)
        for i in range(uint64(row_ptr[k]), uint64(row_ptr[k + uint64(1)])):
            # Unsigned: a column before these wraps to a number past them.
            count += uint32(uint32(columns[i] - near) < near_rows)
            own += uint32(uint32(columns[i] - first) == t)
        counts[t] = (count - own) | (uint32(_SELF) if own else uint32(0))
        places[t] = k
    for length in range(MAX_LOCAL_SLICED + 2):
        tally[length] = uint32(0)
    few = uint64(0)
    many = uint64(0)
    for t in range(row_low, row_high):
        count = counts[t] & uint32(_SELF - 1)
        if count > uint32(MAX_LOCAL_SLICED):
            many += uint64(1)
        elif count > uint32(0):
            few += uint64(1)
            tally[uint32(MAX_LOCAL_SLICED + 1) - count] += uint32(1)
    for length in range(1, MAX_LOCAL_SLICED + 2):
        tally[length] += tally[length - 1]
    slices = (few + uint64(SLICE_ROWS - 1)) // uint64(SLICE_ROWS)
    position_low = _first_position(region, row_low)
    position_high = _first_position(region + 1, row_high)
    long_position = position_low + slices * uint64(SLICE_ROWS)
    idle_position = long_position + many
    for position in range(position_low, position_high):
        layout.row_at[position] = no_row
        layout.factors[position] = float32(0.0)
        layout.gains[position] = float32(1.0)
    for t in range(row_low, row_high):
        count = counts[t] & uint32(_SELF - 1)
        if count > uint32(MAX_LOCAL_SLICED):
            position = long_position
            long_position += uint64(1)
        elif count > uint32(0):
            position = position_low + uint64(tally[uint32(MAX_LOCAL_SLICED) - count])
            tally[uint32(MAX_LOCAL_SLICED) - count] += uint32(1)
        else:
            position = idle_position
            idle_position += uint64(1)
        layout.row_at[position] = t
        layout.factors[position] = edge_factor(weights, own_degree[t], damping)
        if counts[t] & uint32(_SELF):
            k = uint64(places[t])
            returned = loop_share(
                weights, columns, uint64(row_ptr[k]), uint64(row_ptr[k + uint64(1)]), first + uint32(t),
                own_degree[t], damping,
            )  # fmt: skip
            layout.gains[position] = float32(1.0) / (float32(1.0) - returned)
    base = uint64(row_ptr[low]) + uint64(region) * uint64(REGION_PADDING)
    at = low // uint64(SLICE_ROWS) + uint64(2) * uint64(region)
    long_at = uint64(row_ptr[low]) // uint64(MAX_LOCAL_SLICED + 1) + uint64(2) * uint64(region)
    for s in range(slices):
        layout.slice_ptr[at + s] = base
        widest = layout.row_at[position_low + s * uint64(SLICE_ROWS)]
        base += uint64(counts[widest] & uint32(_SELF - 1)) * uint64(SLICE_ROWS)
    layout.slice_ptr[at + slices] = base
    for q in range(many):
        layout.long_ptr[long_at + q] = base
        row = layout.row_at[position_low + slices * uint64(SLICE_ROWS) + q]
        base += uint64(counts[row] & uint32(_SELF - 1))
    layout.long_ptr[long_at + many] = base
    bounds = layout.regions[region]
    bounds[0] = position_low
    bounds[1] = position_high
    bounds[2] = at
    bounds[3] = slices
    bounds[4] = long_at
    bounds[5] = many


@inner(inline="always")
def _in_ring(ring, row, ring_rows):
    """Where a row is, counted from the one that is at `ring`."""
    at = uint32(ring) + uint32(row)
    # Unsigned: a smaller one wraps to a large number.
    return min(at, uint32(at - uint32(ring_rows)))


@inner()
def _fill_row(to, step, row, segment, row_ptr, columns, weights, place, degree, damping, low, high, layout):
    """Write where a row's edges read to every `step`-th column from `to` on; returns where it ends."""
    # Of the stripe.
    begin = uint32(place.first - place.offset)
    span = uint32(high - low)
    for i in range(uint64(row_ptr[segment]), uint64(row_ptr[segment + uint64(1)])):
        near = uint32(columns[i] - uint32(place.near))
        own = uint32(columns[i] - uint32(place.first))
        if near < uint32(place.near_rows) and own != uint32(row):
            now = uint32(place.ring_rows) if uint32(own - uint32(low)) < span else uint32(0)
            layout.columns[to] = now + _in_ring(place.near_ring, near, place.ring_rows)
            store_share(layout.shares, to, weights, i, degree[uint64(columns[i] - begin)], damping)
            to += step
    return to


@inner(inline="always")
def _rows_of(region, layout):
    """First row of a region, and the one past its last."""
    low = uint64(layout.regions[region, 0]) - _first_position(region, uint64(0))
    return low, uint64(layout.regions[region, 1]) - _first_position(region + 1, uint64(0))


@inner()
def fill_region(region, row_ptr, columns, weights, place, degree, damping, places, layout):
    """List the edges of a region along which it is swept."""
    bounds = layout.regions[region]
    position, at = uint64(bounds[0]), uint64(bounds[2])
    low, high = _rows_of(region, layout)
    for s in range(at, at + uint64(bounds[3])):
        base = uint64(layout.slice_ptr[s])
        end = uint64(layout.slice_ptr[s + uint64(1)])
        for lane in range(uint64(SLICE_ROWS)):
            row = layout.row_at[position]
            to = base + lane
            if row < uint32(place.owned):
                to = _fill_row(
                    to, uint64(SLICE_ROWS), row, uint64(places[row]), row_ptr, columns, weights, place,
                    degree, damping, low, high, layout,
                )  # fmt: skip
            while to < end:
                layout.columns[to] = uint32(2 * place.ring_rows)
                pad_weight(layout.shares, to)
                to += uint64(SLICE_ROWS)
            position += uint64(1)
    at = uint64(bounds[4])
    for q in range(at, at + uint64(bounds[5])):
        row = layout.row_at[position]
        _fill_row(
            uint64(layout.long_ptr[q]), uint64(1), row, uint64(places[row]), row_ptr, columns, weights, place,
            degree, damping, low, high, layout,
        )  # fmt: skip
        position += uint64(1)


@inner()
def fill_others(
    region, edges, nonempty, row_ptr, segments, columns, weights, place, places, layout
):  # fmt: skip
    """List the edges of a region from other stripes, by permuted rows; those of the tail are last."""
    low = _first_segment(region, edges, row_ptr, nonempty)
    high = _first_segment(region + 1, edges, row_ptr, nonempty)
    bounds = layout.regions[region]
    end = uint64(row_ptr[high]) + uint64(region + 1) * uint64(REGION_PADDING)
    bounds[6] = end
    bounds[7] = low
    at = uint64(low)
    for position in range(uint64(bounds[0]), uint64(bounds[1])):
        row = layout.row_at[position]
        if row < uint32(place.owned) and places[row] < nonempty:
            k = uint64(places[row])
            begin = _fill_others(end, k, row_ptr, columns, weights, place, layout)
            if begin < end:
                layout.others[at, 0] = position
                layout.others[at, 1] = begin
                at += uint64(1)
                end = begin
    bounds[8] = at
    bounds[9] = end
    if low < high and segments[high - 1] == uint32(place.owned):
        bounds[9] = _fill_others(end, uint64(high - 1), row_ptr, columns, weights, place, layout)


@inner()
def _fill_others(to, segment, row_ptr, columns, weights, place, layout):
    """Write the columns of a row from other stripes before place `to`; returns where they begin."""
    begin = uint32(place.first - place.offset)
    for i in range(uint64(row_ptr[segment]), uint64(row_ptr[segment + uint64(1)])):
        # Unsigned: a column before these wraps to a number past them.
        if uint32(columns[i] - begin) >= uint32(place.rows):
            to -= uint64(1)
            layout.columns[to] = columns[i]
            store_share(layout.shares, to, weights, i, 1.0, 1.0)
    return to


@inner()
def read_others(region, tile, sends, reads, table, damping, coming):
    """Add what rows of other stripes propose to what those of a region of an open tile have of their own one.

    Rows become that if the tile is `coming`, as do those that are never swept. Returns where the columns of
    the tail end, if it is in this region.
    """
    layout, start, value, ring_rows = tile.layout, tile.start, tile.value, tile.place.ring_rows
    bounds = layout.regions[region]
    idle = uint64(bounds[0])
    if not coming:
        idle += uint64(bounds[3]) * uint64(SLICE_ROWS) + uint64(bounds[5])
    end = uint64(bounds[6])
    for at in range(uint64(bounds[7]), uint64(bounds[8])):
        position = uint64(layout.others[at, 0])
        begin = uint64(layout.others[at, 1])
        proposed = sum_others(layout, begin, end, reads, table)
        start[position] = tile.own[position] + layout.gains[position] * float32(damping * proposed)
        if position >= idle:
            value[position] = start[position]
            number = layout.factors[position] * start[position]
            ring = uint64(_in_ring(tile.place.ring, layout.row_at[position], ring_rows))
            sends[ring] = number
            sends[uint64(ring_rows) + ring] = number
        end = begin
    return end


@inner()
def sum_others(layout, begin, end, reads, table):
    """Sum what is proposed along these edges from other stripes."""
    total = 0.0
    for i in range(begin, end):
        proposed = widened(reads[uint64(2) * uint64(layout.columns[i]) + uint64(1)], table)
        total += times_weight(proposed, layout.shares, i)
    return total


@inner()
def start_region(region, layout, place, proposed, start, value, sends):
    """Permute what the rows of a region have from outside, edges to themselves solved for."""
    low, high = uint64(layout.regions[region, 0]), uint64(layout.regions[region, 1])
    for position in range(low, high):
        start[position] = proposed[uint64(layout.row_at[position])]
    for position in range(low, high):
        start[position] *= layout.gains[position]
    for position in range(low, high):
        value[position] = start[position]
    for position in range(low, high):
        _send(sends, place, layout.row_at[position], layout.factors[position] * start[position])
    commit_region(region, layout, place, sends)


@inner(inline="always")
def _send(sends, place, row, number):
    """Let a row of a tile, unless it is padding, send a number along each edge."""
    if row < uint32(place.owned):
        at = _in_ring(place.ring, row, place.ring_rows)
        sends[uint64(place.ring_rows) + uint64(at)] = number


@inner()
def _sweep_long_rows(low, at, many, layout, place, start, value, sends):
    lanes = np.empty(SLICE_ROWS, np.float32)
    for q in range(many):
        total = sum_long_row(
            lanes, sends, layout.columns, None, layout.shares,
            layout.long_ptr[at + q], uint64(layout.long_ptr[at + q + uint64(1)]),
        )  # fmt: skip
        value[low + q] = start[low + q] + layout.gains[low + q] * total
        _send(sends, place, layout.row_at[low + q], layout.factors[low + q] * value[low + q])


@inner()
def sweep_region(region, layout, place, start, value, sends):
    """Sweep the rows of a region once: each becomes `start` and what it is sent."""
    bounds = layout.regions[region]
    low, at, slices = uint64(bounds[0]), uint64(bounds[2]), uint64(bounds[3])
    _sweep_long_rows(
        low + slices * uint64(SLICE_ROWS), uint64(bounds[4]), uint64(bounds[5]), layout, place, start, value,
        sends,
    )  # fmt: skip
    lanes = np.empty(SLICE_ROWS, np.float32)
    for s in range(slices):
        sum_slice(
            lanes, sends, layout.columns, None, layout.shares,
            layout.slice_ptr[at + s], uint64(layout.slice_ptr[at + s + uint64(1)]),
        )  # fmt: skip
        first = low + s * uint64(SLICE_ROWS)
        for lane in range(uint64(SLICE_ROWS)):
            lanes[lane] = start[first + lane] + layout.gains[first + lane] * lanes[lane]
        for lane in range(uint64(SLICE_ROWS)):
            value[first + lane] = lanes[lane]
        for lane in range(uint64(SLICE_ROWS)):
            _send(sends, place, layout.row_at[first + lane], layout.factors[first + lane] * lanes[lane])


@inner()
def commit_region(region, layout, place, sends):
    """Let other regions, and the tiles beside this one, see what a region's rows send now."""
    low, high = _rows_of(region, layout)
    # It may go around the end of the ring.
    around = min(high, max(low, uint64(place.ring_rows - place.ring)))
    _copy_now(sends, uint64(place.ring) + low, around - low, uint64(place.ring_rows))
    _copy_now(
        sends, uint64(place.ring) + around - uint64(place.ring_rows), high - around, uint64(place.ring_rows)
    )


@inner()
def _copy_now(sends, at, count, ring_rows):
    for i in range(at, at + count):
        sends[i] = sends[ring_rows + i]


@inner()
def unpermute_region(region, layout, value, proposed):
    """Bring what the rows of a region have become back to their places."""
    for position in range(uint64(layout.regions[region, 0]), uint64(layout.regions[region, 1])):
        proposed[uint64(layout.row_at[position])] = value[position]
