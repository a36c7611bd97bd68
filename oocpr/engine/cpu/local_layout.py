"""Where the rows of a tile sit while it is swept on its own.

Tile-local sweeps go over the same links several times, so the rows are seated in the order in which they are
swept: what a sweep reads of a row and writes to it then lies side by side, and only what its links read is
spread out. A tile's rows are cut in REGIONS parts, whatever the number of threads; in each sit the rows with
links inside the tile in slices of sixteen, longest first, then those with more than LONG such links, then
those with none. A row's link to itself is not listed: it is solved for, by a factor that the row keeps.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from numba import float32, uint32, uint64

from oocpr.engine.cpu.gather import first_at
from oocpr.engine.cpu.sliced_ell import ABREAST
from oocpr.engine.cpu.weights import factor_of, keep_nothing, keep_share, own_share
from oocpr.jit import inner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REGIONS = 8
"""Parts of a tile that are swept side by side."""

LONG = 255
"""Links inside the tile past which a row is swept on its own."""

PADDING = ABREAST * (LONG + 1)
"""Columns that a region's slices may need beyond its links."""

_SELF = 1 << 31


class Inside(NamedTuple):
    """The links that stay inside a tile, by seats.

    Attributes
    ----------
    row_of
        uint32, shape (seats,): row of each seat; the number of owned rows where nobody sits.
    seat_of
        uint32, shape (owned + 1,): seat of each row.
    factors, gains
        float32, shape (seats,): damping over out-degree, or 1 where links have shares; what the link of a
        row to itself multiplies it by.
    bases
        uint32: first column of each slice, and where a region's slices end.
    long_bases
        uint32: the same of rows past LONG.
    columns
        uint32: seats that links read; of the row's own region, counted from `seats` on.
    heads
        uint32, shape (REGIONS, 2): slices and long rows of each region.
    shares
        float32, beside `columns`: damping times the share that a link has of the weight that leaves its node;
        None where the graph is not weighted.
    """

    row_of: NDArray[np.uint32]
    seat_of: NDArray[np.uint32]
    factors: NDArray[np.float32]
    gains: NDArray[np.float32]
    bases: NDArray[np.uint32]
    long_bases: NDArray[np.uint32]
    columns: NDArray[np.uint32]
    heads: NDArray[np.uint32]
    shares: NDArray[np.float32] | None


def seats(owned: int) -> int:
    """Seats of a tile's rows, the last of them always empty."""
    return owned + REGIONS * ABREAST + 1


def slots(nonempty: int) -> int:
    """Places that the slices of all regions need at most; see first_base."""
    return nonempty // ABREAST + 2 * REGIONS + 1


def long_slots(edges: int) -> int:
    """Places that the long rows of all regions need at most; see first_long."""
    return edges // (LONG + 1) + 2 * REGIONS + 1


@inner()
def region_begin(region, edges, positions, nonempty):
    """First non-empty segment of a region."""
    if region >= REGIONS:
        return uint64(nonempty)
    return first_at(positions, nonempty, uint64(edges) * uint64(region) // uint64(REGIONS))


@inner()
def first_row(region, edges, positions, segments, nonempty, owned):
    """First row of a region; of the one past the last, the number of owned rows."""
    if region == 0:
        return uint64(0)
    k = region_begin(region, edges, positions, nonempty)
    if k >= uint64(nonempty):
        return uint64(owned)
    return uint64(min(segments[k], uint32(owned)))


@inner()
def first_seat(region, low):
    """First seat of a region whose first row is `low`."""
    return uint64(low) + uint64(region) * uint64(ABREAST)


@inner()
def first_base(region, k):
    """Place in `bases` of the first slice of a region whose first segment is k."""
    return k // uint64(ABREAST) + uint64(2) * uint64(region)


@inner()
def first_long(region, edge):
    """Place in `long_bases` of the first long row of a region whose first edge is `edge`."""
    return uint64(edge) // uint64(LONG + 1) + uint64(2) * uint64(region)


@inner()
def seat_region(
    region, edges, nonempty, positions, segments, columns, weights, first, owned, degree, damping, counts,
    places, tally, inside,
):  # fmt: skip
    """Give each row of a region its seat.

    Parameters
    ----------
    first, owned
        First owned row of the tile, and their number.
    weights
        Of the tile's links, or None.
    degree
        Shape (owned,): out-links of the tile's rows, or the weights that leave them; see `divisor`.
    counts, places
        uint32, shape (owned + 1,): receive the links of each row that stay inside, and its segment.
    tally
        uint32, shape (LONG + 2,): scratch of one region.
    inside
        Receives the seats and the slices' bases.
    """
    low = region_begin(region, edges, positions, nonempty)
    high = region_begin(region + 1, edges, positions, nonempty)
    row_low = first_row(region, edges, positions, segments, nonempty, owned)
    row_high = first_row(region + 1, edges, positions, segments, nonempty, owned)
    room = uint32(owned)
    start = uint32(first)
    for t in range(row_low, row_high):
        counts[t] = uint32(0)
    for k in range(low, high):
        t = segments[k]
        if t >= room:
            continue
        count = uint32(0)
        own = uint32(0)
        for i in range(uint64(positions[k]), uint64(positions[k + uint64(1)])):
            # Unsigned: a column before the tile wraps to a number past it.
            column = uint32(columns[i] - start)
            count += uint32(column < room)
            own += uint32(column == t)
        counts[t] = (count - own) | (uint32(_SELF) if own else uint32(0))
        places[t] = k
    for length in range(LONG + 2):
        tally[length] = uint32(0)
    few = uint64(0)
    many = uint64(0)
    for t in range(row_low, row_high):
        count = counts[t] & uint32(_SELF - 1)
        if count > uint32(LONG):
            many += uint64(1)
        elif count > uint32(0):
            few += uint64(1)
            tally[uint32(LONG + 1) - count] += uint32(1)
    for length in range(1, LONG + 2):
        tally[length] += tally[length - 1]
    slices = (few + uint64(ABREAST - 1)) // uint64(ABREAST)
    seat_low = first_seat(region, row_low)
    long_seat = seat_low + slices * uint64(ABREAST)
    idle_seat = long_seat + many
    for seat in range(seat_low, first_seat(region + 1, row_high)):
        inside.row_of[seat] = room
        inside.factors[seat] = float32(0.0)
        inside.gains[seat] = float32(1.0)
    for t in range(row_low, row_high):
        count = counts[t] & uint32(_SELF - 1)
        if count > uint32(LONG):
            seat = long_seat
            long_seat += uint64(1)
        elif count > uint32(0):
            seat = seat_low + uint64(tally[uint32(LONG) - count])
            tally[uint32(LONG) - count] += uint32(1)
        else:
            seat = idle_seat
            idle_seat += uint64(1)
        inside.row_of[seat] = t
        inside.seat_of[t] = seat
        inside.factors[seat] = factor_of(weights, degree[t], damping)
        if counts[t] & uint32(_SELF):
            k = uint64(places[t])
            returned = own_share(
                weights, columns, uint64(positions[k]), uint64(positions[k + uint64(1)]), start + uint32(t),
                degree[t], damping,
            )  # fmt: skip
            inside.gains[seat] = float32(1.0) / (float32(1.0) - returned)
    base = uint64(positions[low]) + uint64(region) * uint64(PADDING)
    at = first_base(region, low)
    for s in range(slices):
        inside.bases[at + s] = base
        widest = inside.row_of[seat_low + s * uint64(ABREAST)]
        base += uint64(counts[widest] & uint32(_SELF - 1)) * uint64(ABREAST)
    inside.bases[at + slices] = base
    at = first_long(region, positions[low])
    for q in range(many):
        inside.long_bases[at + q] = base
        row = inside.row_of[seat_low + slices * uint64(ABREAST) + q]
        base += uint64(counts[row] & uint32(_SELF - 1))
    inside.long_bases[at + many] = base
    inside.heads[region, 0] = slices
    inside.heads[region, 1] = many


@inner()
def _list_row(
    to, step, row, segment, positions, columns, weights, first, owned, degree, damping, row_low, row_high,
    total, inside,
):  # fmt: skip
    """Write the seats that a row reads to every `step`-th column from `to` on; returns where it stopped."""
    room = uint32(owned)
    low = uint32(row_low)
    span = uint32(row_high - row_low)
    own = uint32(total)
    for i in range(uint64(positions[segment]), uint64(positions[segment + uint64(1)])):
        column = uint32(columns[i] - uint32(first))
        if column < room and column != uint32(row):
            live = own if uint32(column - low) < span else uint32(0)
            inside.columns[to] = inside.seat_of[uint64(column)] + live
            keep_share(inside.shares, to, weights, i, degree[uint64(column)], damping)
            to += step
    return to


@inner()
def list_region(
    region, edges, nonempty, positions, segments, columns, weights, first, owned, degree, damping, total,
    places, inside,
):  # fmt: skip
    """List the links of a region that stay inside the tile, once all rows have their seats.

    Parameters
    ----------
    weights, degree
        As for `seat_region`.
    total
        Seats of the tile.
    places
        As `seat_region` made it.
    """
    low = region_begin(region, edges, positions, nonempty)
    row_low = first_row(region, edges, positions, segments, nonempty, owned)
    row_high = first_row(region + 1, edges, positions, segments, nonempty, owned)
    seat = first_seat(region, row_low)
    at = first_base(region, low)
    for s in range(uint64(inside.heads[region, 0])):
        base = uint64(inside.bases[at + s])
        end = uint64(inside.bases[at + s + uint64(1)])
        for lane in range(uint64(ABREAST)):
            row = inside.row_of[seat]
            to = base + lane
            if row < uint32(owned):
                to = _list_row(
                    to, uint64(ABREAST), row, uint64(places[row]), positions, columns, weights, first,
                    owned, degree, damping, row_low, row_high, total, inside,
                )  # fmt: skip
            while to < end:
                inside.columns[to] = uint32(total - 1)
                keep_nothing(inside.shares, to)
                to += uint64(ABREAST)
            seat += uint64(1)
    at = first_long(region, positions[low])
    for q in range(uint64(inside.heads[region, 1])):
        row = inside.row_of[seat]
        _list_row(
            uint64(inside.long_bases[at + q]), uint64(1), row, uint64(places[row]), positions, columns,
            weights, first, owned, degree, damping, row_low, row_high, total, inside,
        )  # fmt: skip
        seat += uint64(1)
