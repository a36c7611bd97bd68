"""Rows side by side: sixteen rows of similar length in a slice, so that short loops need no guessing.

Most rows of a real graph have a handful of links, and a processor mispredicts the end of each. Rows sorted by
length and laid out sixteen abreast (sliced ELLPACK, Monakov et al. 2010) have one length a slice; the rest is
padded with a column that reads zero. Each row is still added up in its own order, so a sum has the same bits
as in a plain loop.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import uint32, uint64

from oocpr.engine.cpu.numbers import widen
from oocpr.engine.cpu.weights import keep_nothing, keep_weight, weighed
from oocpr.jit import entry, inner

ABREAST = 16
"""Rows of a slice."""


@entry()
def slice_rows(
    begins,
    ends,
    targets,
    count,
    longest,
    columns,
    nothing,
    nobody,
    counts,
    bases,
    out_targets,
    at,
    out,
    weights,
    out_weights,
):
    """Lay rows out in slices, longest first, equally long ones in their order.

    Parameters
    ----------
    begins, ends, targets
        Row q has the columns ``columns[begins[q]:ends[q]]`` and its sum goes to ``targets[q]``.
    longest
        No row is longer.
    nothing, nobody
        Column and target of the padding.
    counts
        uint32, shape (longest + 2,): scratch.
    bases
        uint32, shape (slices + 1,): receives where each slice begins in `out`.
    out_targets
        uint32, shape (16 slices,).
    at, out
        Columns are written to ``out[at:]``, at most 16 * longest more than there are.
    weights, out_weights
        Of the columns: read there and written as they are, zero for the padding; or None.
    """
    for length in range(longest + 2):
        counts[length] = 0
    for q in range(uint64(count)):
        counts[longest - uint64(ends[q] - begins[q]) + uint64(1)] += uint32(1)
    for length in range(uint64(1), uint64(longest + 2)):
        counts[length] += counts[length - uint64(1)]
    slices = (uint64(count) + uint64(ABREAST - 1)) // uint64(ABREAST)
    for i in range(uint64(count), slices * uint64(ABREAST)):
        out_targets[i] = nobody
    # First the order alone: a row's place among all, kept where its target will stand.
    for q in range(uint64(count)):
        length = uint64(longest) - uint64(ends[q] - begins[q])
        out_targets[counts[length]] = q
        counts[length] += uint32(1)
    base = uint64(at)
    for s in range(slices):
        bases[s] = base
        first = uint64(out_targets[s * uint64(ABREAST)])
        width = uint64(ends[first] - begins[first])
        for lane in range(uint64(ABREAST)):
            place = s * uint64(ABREAST) + lane
            begin = uint64(0)
            length = uint64(0)
            if place < uint64(count):
                q = uint64(out_targets[place])
                begin = uint64(begins[q])
                length = uint64(ends[q]) - begin
                out_targets[place] = targets[q]
            to = base + lane
            for i in range(begin, begin + length):
                out[to] = columns[i]
                keep_weight(out_weights, to, weights, i)
                to += uint64(ABREAST)
            for _ in range(length, width):
                out[to] = nothing
                keep_nothing(out_weights, to)
                to += uint64(ABREAST)
        base += width * uint64(ABREAST)
    bases[slices] = base
    return base


@inner()
def deliver_pushes(low, high, bases, targets, columns, weights, reads, table, shift, pushes):
    """Sum the pushes to the rows of the slices low .. high - 1; that of node i is ``reads[i << shift]``."""
    # Made here, where the compiler sees that nothing else is written to.
    lanes = np.empty(ABREAST, np.float64)
    for s in range(low, high):
        for lane in range(uint64(ABREAST)):
            lanes[lane] = 0.0
        i = uint64(bases[s])
        end = uint64(bases[s + uint64(1)])
        while i < end:
            for lane in range(uint64(ABREAST)):
                number = widen(reads[uint64(columns[i + lane]) << shift], table)
                lanes[lane] += weighed(number, weights, i + lane)
            i += uint64(ABREAST)
        for lane in range(uint64(ABREAST)):
            pushes[uint64(targets[s * uint64(ABREAST) + lane])] = lanes[lane]


@inner()
def deliver_both(
    slices_low,
    slices_high,
    bases,
    targets,
    columns,
    weights,
    reads,
    table,
    low,
    span,
    nothing,
    pushes,
    proposals,
):
    """Sum pushes, and proposals of the nodes low .. low + span - 1."""
    lanes = np.empty(ABREAST, np.float64)
    more = np.empty(ABREAST, np.float64)
    for s in range(slices_low, slices_high):
        for lane in range(uint64(ABREAST)):
            lanes[lane] = 0.0
            more[lane] = 0.0
        i = uint64(bases[s])
        end = uint64(bases[s + uint64(1)])
        while i < end:
            for lane in range(uint64(ABREAST)):
                node = uint64(columns[i + lane])
                lanes[lane] += weighed(widen(reads[uint64(2) * node], table), weights, i + lane)
                earlier = node if node - low < span else nothing
                number = widen(reads[uint64(2) * earlier + uint64(1)], table)
                more[lane] += weighed(number, weights, i + lane)
            i += uint64(ABREAST)
        for lane in range(uint64(ABREAST)):
            target = uint64(targets[s * uint64(ABREAST) + lane])
            pushes[target] = lanes[lane]
            proposals[target] = more[lane]
