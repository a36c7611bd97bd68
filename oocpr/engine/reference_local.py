"""Tile-local sweeps in plain NumPy, in the order of :mod:`oocpr.engine.cpu.local_sweeps`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

REGIONS, LONG, ABREAST = 8, 255, 16


def local_sweeps(
    columns: NDArray[np.int64],
    lengths: NDArray[np.uint32],
    start: NDArray[np.float64],
    factors: NDArray[np.float64],
    sweeps: int,
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Sweep a tile's rows over the links that stay inside it; a row's link to itself is solved for.

    Parameters
    ----------
    columns
        Shape (edges,), counted from the first owned row; those outside 0 .. rows - 1 are left out.
    lengths
        Links of each segment: owned rows, then the tail.
    start, factors
        What rows have from outside, and damping over the weight that leaves them; float64, shape (rows,).
    sweeps
        Products, the delivering one included.
    weights
        Of the edges; float64, shape (edges,).

    Returns
    -------
    ndarray
        What the rows become; float64, shape (rows,).

    Examples
    --------
    >>> ring = np.array([1, 0])  # two rows that link to each other
    >>> local_sweeps(ring, np.array([1, 1, 0], np.uint32), np.ones(2), np.full(2, 0.5), 3, np.ones(2))
    array([1.75, 1.75])
    """
    if sweeps == 1:
        return start.copy()
    gains = _gains(columns, lengths, factors, weights)
    value = start * gains
    groups = [list(_groups(columns, lengths, len(start), region)) for region in range(REGIONS)]
    bounds = [_bounds(lengths, len(start), region) for region in range(REGIONS)]
    for _ in range(sweeps - 1):
        before = factors * value
        for (low, high), region in zip(bounds, groups, strict=True):
            for rows, edges, owner in region:
                links = columns[edges]
                own = (links >= low) & (links < high)
                sent = weights[edges] * np.where(own, factors[links] * value[links], before[links])
                value[rows] = gains[rows] * (start[rows] + np.bincount(owner, sent, len(rows)))
    return value


def _gains(
    columns: NDArray[np.int64],
    lengths: NDArray[np.uint32],
    factors: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """By what the link of a row to itself multiplies it: 1 / (1 - what of it the link returns); else 1."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    edges = np.flatnonzero((columns == owner) & (owner < len(factors)))
    own = owner[edges]
    gains = np.ones(len(factors))
    gains[own] = 1 / (1 - factors[own] * weights[edges])
    return gains


def _segments(lengths: NDArray[np.uint32], region: int) -> NDArray[np.int64]:
    """Non-empty segments whose first edge is in a region."""
    nonempty = np.flatnonzero(lengths)
    firsts = (np.cumsum(lengths, dtype=np.int64) - lengths)[nonempty]
    edges = int(lengths.sum(dtype=np.int64))
    low, high = (np.searchsorted(firsts, edges * part // REGIONS) for part in (region, region + 1))
    return nonempty[low : len(nonempty) if region == REGIONS - 1 else high]


def _bounds(lengths: NDArray[np.uint32], rows: int, region: int) -> tuple[int, int]:
    """First row of a region and the one past its last."""

    def first(part: int) -> int:
        if part == 0:
            return 0
        later = [int(segment) for r in range(part, REGIONS) for segment in _segments(lengths, r)[:1]]
        return min([rows, *later])

    return first(region), first(region + 1)


def _groups(
    columns: NDArray[np.int64], lengths: NDArray[np.uint32], rows: int, region: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Rows that are replaced together: long ones alone, then sixteen at a time, longest first.

    Yields the rows, their edges inside the tile, and to which of the rows each edge belongs.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    inside: dict[int, NDArray[np.int64]] = {}
    for segment in map(int, _segments(lengths, region)):
        edges = np.arange(ends[segment] - lengths[segment], ends[segment])
        links = columns[edges]
        edges = edges[(links >= 0) & (links < rows) & (links != segment)]
        if segment < rows and len(edges):
            inside[segment] = edges
    long = [row for row, edges in inside.items() if len(edges) > LONG]
    short = [row for row, edges in inside.items() if len(edges) <= LONG]
    short.sort(key=lambda row: -len(inside[row]))
    chosen = [[row] for row in long]
    chosen += [short[i : i + ABREAST] for i in range(0, len(short), ABREAST)]
    for group in chosen:
        owner = np.repeat(np.arange(len(group)), [len(inside[row]) for row in group])
        yield np.array(group), np.concatenate([inside[row] for row in group]), owner
