"""Tile-local sweeps on the CPU: Gauss-Seidel over the links that stay inside a tile.

Inside a region a row reads what the rows before it have just become; from other regions it reads what they
were when the sweep began. One such sweep does the work of about two that read old values only, and since it
is but a proposal, any order of the rows is right: they go in the order of their seats.

What rows send is kept twice, behind each other: as it was when the sweep began, and as it is. A link says by
its number which of the two it reads.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import float32, uint64

from oocpr.engine.cpu.local_layout import first_base, first_long, first_row, first_seat, region_begin
from oocpr.engine.cpu.sliced_ell import ABREAST
from oocpr.engine.cpu.weights import weighed
from oocpr.jit import inner


@inner()
def _seats_of(region, edges, nonempty, positions, segments, owned):
    """First seat of a region and the one past its last."""
    low = first_row(region, edges, positions, segments, nonempty, owned)
    high = first_row(region + 1, edges, positions, segments, nonempty, owned)
    return first_seat(region, low), first_seat(region + 1, high)


@inner()
def seat_proposals(
    region, edges, nonempty, positions, segments, owned, inside, proposed, start, value, sends
):
    """Bring what the rows of a region have from outside to their seats.

    Parameters
    ----------
    proposed
        float32, shape (owned + 1,): by rows; the last is zero.
    start, value
        float32, shape (seats,): both receive it, links to themselves solved for.
    sends
        float32, shape (2 seats,): receives what each seat sends along a link.
    """
    low, high = _seats_of(region, edges, nonempty, positions, segments, owned)
    live = uint64(start.size)
    for seat in range(low, high):
        start[seat] = proposed[uint64(inside.row_of[seat])]
    for seat in range(low, high):
        start[seat] *= inside.gains[seat]
    for seat in range(low, high):
        value[seat] = start[seat]
    for seat in range(low, high):
        sends[seat] = inside.factors[seat] * start[seat]
    for seat in range(low, high):
        sends[live + seat] = sends[seat]


@inner()
def _sweep_long(low, at, many, inside, start, value, sends):
    """Sweep the long rows of a region."""
    live = uint64(start.size)
    lanes = np.empty(ABREAST, np.float32)
    for q in range(many):
        for lane in range(uint64(ABREAST)):
            lanes[lane] = float32(0.0)
        i = uint64(inside.long_bases[at + q])
        end = uint64(inside.long_bases[at + q + uint64(1)])
        # Sixteen chains of additions: one chain would wait for each to end.
        while i + uint64(ABREAST) <= end:
            for lane in range(uint64(ABREAST)):
                lanes[lane] += weighed(sends[uint64(inside.columns[i + lane])], inside.shares, i + lane)
            i += uint64(ABREAST)
        for lane in range(end - i):
            lanes[lane] += weighed(sends[uint64(inside.columns[i + lane])], inside.shares, i + lane)
        total = float32(0.0)
        for lane in range(uint64(ABREAST)):
            total += lanes[lane]
        value[low + q] = start[low + q] + inside.gains[low + q] * total
        sends[live + low + q] = inside.factors[low + q] * value[low + q]


@inner()
def sweep_region(region, edges, nonempty, positions, segments, owned, inside, start, value, sends):
    """Sweep the rows of a region once: each becomes `start` and what it is sent."""
    low, _ = _seats_of(region, edges, nonempty, positions, segments, owned)
    live = uint64(start.size)
    k = region_begin(region, edges, positions, nonempty)
    slices = uint64(inside.heads[region, 0])
    _sweep_long(
        low + slices * uint64(ABREAST), first_long(region, positions[k]), uint64(inside.heads[region, 1]),
        inside, start, value, sends,
    )  # fmt: skip
    lanes = np.empty(ABREAST, np.float32)
    at = first_base(region, k)
    for s in range(slices):
        for lane in range(uint64(ABREAST)):
            lanes[lane] = float32(0.0)
        i = uint64(inside.bases[at + s])
        end = uint64(inside.bases[at + s + uint64(1)])
        while i < end:
            for lane in range(uint64(ABREAST)):
                lanes[lane] += weighed(sends[uint64(inside.columns[i + lane])], inside.shares, i + lane)
            i += uint64(ABREAST)
        seat = low + s * uint64(ABREAST)
        for lane in range(uint64(ABREAST)):
            lanes[lane] = start[seat + lane] + inside.gains[seat + lane] * lanes[lane]
        for lane in range(uint64(ABREAST)):
            value[seat + lane] = lanes[lane]
        for lane in range(uint64(ABREAST)):
            sends[live + seat + lane] = inside.factors[seat + lane] * lanes[lane]


@inner()
def settle_region(region, edges, nonempty, positions, segments, owned, sends):
    """Let other regions see what a region's rows send now."""
    low, high = _seats_of(region, edges, nonempty, positions, segments, owned)
    live = uint64(sends.size // 2)
    for seat in range(low, high):
        sends[seat] = sends[live + seat]


@inner()
def unseat_region(region, edges, nonempty, positions, segments, owned, inside, value, proposed):
    """Bring what the rows of a region have become back to their places."""
    low, high = _seats_of(region, edges, nonempty, positions, segments, owned)
    for seat in range(low, high):
        proposed[uint64(inside.row_of[seat])] = value[seat]
