"""Graphs of the same shape as those of Wu et al. 2010 and Shan et al. 2010, not the graphs themselves.

Rows and non-zeros are those of the papers' tables. Their full distributions are not at hand: here row sizes
(in-degrees) follow a truncated power law whose exponent is set so that the number of non-zeros is met.
Columns are skewed too. Rows and columns are shuffled, so that there is none of the locality of a crawl.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import UsageError
from oocpr.jit import entry, inner
from oocpr.sources.rmat import GAMMA, DrawnSource, draw_keys, mix, relabel

MAX_SCALE_DOWN = 1000
SEED = 2010

_LARGEST = 10  # the law ends at rows with edges from one node in so many, a choice
_STEP = 2.0**-24  # exponents are multiples of it, so that rounding elsewhere gives the same one
_STEEPEST = 4.0
_S11, _TO_UNIT = np.uint64(11), 2.0**-53


class Shape(NamedTuple):
    """Size of a matrix, and the share of its rows that are empty."""

    rows: int
    nonzeros: int
    empty: float = 0.0


SHAPES = {
    "su": Shape(281_903, 2_312_497),
    "su+ucb": Shape(683_446, 7_583_376),
    "wikipedia-20051105": Shape(1_634_989, 19_753_078, 0.3),
    "wikipedia-20060925": Shape(2_983_494, 37_269_096, 0.3),
    "wikipedia-20061104": Shape(3_148_440, 39_383_235, 0.3),
    "wikipedia-20070206": Shape(3_566_907, 45_030_389, 0.3),
    "edu-2001": Shape(9_845_725, 57_156_537),
}
"""The matrices of Wu et al. 2010. How many rows are empty is not in its table, but three in ten of
Wikipedia's explain the times of Shan et al. 2010, see `oocpr.plan.fpga`."""


class RowSizes(NamedTuple):
    """Sizes of rows, the largest first, in classes of equal size.

    `sizes`: int64, shape (classes,). `first_rows`, `first_edges`: rows and edges of the classes before, and
    of all; int64, shape (classes + 1,).
    """

    exponent: float
    sizes: NDArray[np.int64]
    first_rows: NDArray[np.int64]
    first_edges: NDArray[np.int64]


def row_sizes(rows: int, nonzeros: int, empty: float) -> RowSizes:
    """Distribute non-zeros over the rows that are not empty by a truncated power law.

    The share of rows of size k is proportional to k^-exponent up to a tenth of `rows`. The largest row also
    has the few non-zeros that the exponent, a multiple of 2^-24, is too coarse for.

    >>> sizes = row_sizes(1000, 5000, 0.1)
    >>> int(sizes.first_rows[-1]), int(sizes.first_edges[-1])
    (900, 5000)
    """
    filled = rows - round(empty * rows)
    logarithms = np.log(np.arange(1, rows // _LARGEST + 1))

    def rows_of_at_least(step: int) -> NDArray[np.int64]:
        tails = np.exp(-step * _STEP * logarithms)[::-1].cumsum()[::-1]
        rounded: NDArray[np.int64] = np.floor(filled * (tails / tails[0]) + 0.5).astype(np.int64)
        return rounded

    # A row of size k is one of at least 1, of at least 2 ... of at least k.
    step = bisect_left(
        range(int(_STEEPEST / _STEP)), -nonzeros, key=lambda step: -int(rows_of_at_least(step).sum())
    )
    at_least = rows_of_at_least(step)
    counts = at_least - np.append(at_least[1:], 0)
    sizes = np.flatnonzero(counts)[::-1] + 1
    counts = counts[sizes - 1]
    # The largest row is a class of its own.
    sizes = np.insert(sizes, 0, sizes[0] + nonzeros - int((sizes * counts).sum()))
    counts = np.insert(counts, 0, 1)
    counts[1] -= 1
    sizes, counts = sizes[counts > 0], counts[counts > 0]
    first_rows, first_edges = (np.append(0, part.cumsum()) for part in (counts, sizes * counts))
    return RowSizes(step * _STEP, sizes, first_rows, first_edges)


@inner()
def _scatter(node, nodes, keys, half, mask):  # type: ignore[no-untyped-def]
    """Bijection on 0 .. nodes - 1: walks along a cycle of a bijection on 0 .. mask."""
    node = relabel(node, keys, half, mask)
    while node >= nodes:
        node = relabel(node, keys, half, mask)
    return node


@entry()
def fill_rows(first, key, nodes, half, mask, keys, sizes, first_rows, first_edges, src, dst):  # type: ignore[no-untyped-def]
    """Write the edges from number `first` on to `src` and `dst`, uint32; the rest are uint64.

    Edge k of a row has a draw of its own in the k-th of equal intervals, so draws ascend; their squares,
    stretched over the columns, do not descend, and k more makes them distinct.
    """
    there = np.searchsorted(first_edges, first, side="right") - 1
    for number in range(len(src)):
        edge = first + np.uint64(number)
        while edge >= first_edges[there + 1]:
            there += 1
        size = sizes[there]
        inside = edge - first_edges[there]
        row = inside // size
        place = inside - row * size
        draw = (float(place) + float(mix(key + edge * GAMMA) >> _S11) * _TO_UNIT) / float(size)
        last = nodes - size
        column = place + min(np.uint64(float(nodes - size + np.uint64(1)) * (draw * draw)), last)
        src[number] = np.uint32(_scatter(column, nodes, keys[0], half, mask))
        dst[number] = np.uint32(_scatter(first_rows[there] + row, nodes, keys[1], half, mask))


class Wu(DrawnSource):
    """A graph with the rows and non-zeros of a matrix of Wu et al. 2010, and otherwise drawn.

    Parameters
    ----------
    like
        A key of SHAPES.
    scale_down
        Divides rows and non-zeros, 1 to 1000.

    Edges are distinct, with self-loops among them. Row sizes follow a truncated power law, see `row_sizes`.
    Out-degrees follow one of exponent 3, which the in-degrees know nothing of.

    Examples
    --------
    >>> graph = Wu("su")
    >>> graph.nodes, graph.edges, graph.name
    (281903, 2312497, 'of the same shape as su (Wu et al. 2010), not the graph itself')
    """

    def __init__(self, like: str, scale_down: int = 1) -> None:
        if like not in SHAPES:
            raise UsageError(
                f"like is {like!r}, which is no graph of Wu et al. 2010.", f"Use one of {', '.join(SHAPES)}."
            )
        if not 1 <= scale_down <= MAX_SCALE_DOWN:
            raise UsageError(f"scale_down is {scale_down}.", f"Give a number from 1 to {MAX_SCALE_DOWN}.")
        shape = SHAPES[like]
        nodes, edges = shape.rows // scale_down, shape.nonzeros // scale_down
        smaller = f" and 1/{scale_down} of the size" if scale_down > 1 else ""
        name = f"of the same shape{smaller} as {like} (Wu et al. 2010), not the graph itself"
        super().__init__(name, nodes, edges, {"like": like, "scale_down": scale_down})
        self._sizes = row_sizes(nodes, edges, shape.empty)
        self._key, self._keys = draw_keys(SEED, 2)

    def _draw(self, first: int, src: NDArray[np.uint32], dst: NDArray[np.uint32]) -> None:
        assert self.nodes is not None, "they are counted"
        bits = (self.nodes - 1).bit_length()
        numbers = np.array([first, self._key, self.nodes, (bits + 1) // 2, (1 << bits) - 1], np.uint64)
        classes = (part.astype(np.uint64) for part in self._sizes[1:])
        fill_rows(*numbers, self._keys, *classes, src, dst)
