"""What rows send along their links while a graph is solved, and what that takes."""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import float32, uint64

from oocpr.engine.cpu.sliced_ell import ABREAST
from oocpr.jit import BORROWING, inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

SETTLED = 5e-6
"""Change of a component in a stride, relative to what others send it, after which it is left: numbers of 24
bits gain little from more, and a second push settles the rest."""


class Sending(NamedTuple):
    """What rows send, and what that takes.

    Attributes
    ----------
    sends
        float32, shape (2 (rows + 1),): of each row, before and now; zero after the last.
    weights
        float32, shape (rows,): w of each row.
    place_weights, place_starts
        float32: w and b of the rows in slices.
    twin_weights, twin_starts
        float32: w and b of the rows that have the links of one in a slice.
    long_starts, member_starts
        float32: b of long rows, and of rows in listed components.
    tickets
        int64, shape (stages,): components of each stage that were taken.
    backs
        float32, shape (rows + 1,): 1 / w.
    states, changes, sums
        What mixing keeps of sweeps; see `mixing.note_stride`. Sums of each region, of two sweeps.
    """

    sends: NDArray[np.float32]
    weights: NDArray[np.float32]
    place_weights: NDArray[np.float32]
    place_starts: NDArray[np.float32]
    twin_weights: NDArray[np.float32]
    twin_starts: NDArray[np.float32]
    long_starts: NDArray[np.float32]
    member_starts: NDArray[np.float32]
    tickets: NDArray[np.int64]
    backs: NDArray[np.float32]
    states: NDArray[np.float32]
    changes: NDArray[np.float32]
    sums: NDArray[np.float64]


@inner(**BORROWING)
def sent(first, end, columns, behind, sends):
    """Sum what the rows ``columns[first:end]`` send now."""
    # Four chains of additions: one chain would wait for each to end.
    a = float32(0.0)
    b = float32(0.0)
    c = float32(0.0)
    d = float32(0.0)
    i = first
    while i + uint64(4) <= end:
        a += sends[behind + uint64(columns[i])]
        b += sends[behind + uint64(columns[i + uint64(1)])]
        c += sends[behind + uint64(columns[i + uint64(2)])]
        d += sends[behind + uint64(columns[i + uint64(3)])]
        i += uint64(4)
    while i < end:
        a += sends[behind + uint64(columns[i])]
        i += uint64(1)
    return (a + b) + (c + d)


@inner()
def long_sum(first, end, columns, sends):
    """Sum ``sends`` over the many ``columns[first:end]``."""
    # Sixteen chains of additions: one chain would wait for each to end.
    lanes = np.zeros(ABREAST, np.float32)
    i = first
    while i + uint64(ABREAST) <= end:
        for lane in range(uint64(ABREAST)):
            lanes[lane] += sends[uint64(columns[i + lane])]
        i += uint64(ABREAST)
    for lane in range(end - i):
        lanes[lane] += sends[uint64(columns[i + lane])]
    total = float32(0.0)
    for lane in range(uint64(ABREAST)):
        total += lanes[lane]
    return total
