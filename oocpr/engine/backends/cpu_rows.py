"""Row-by-row work on the CPU: publish, update, tile-local sweeps, propose.

Sums over rows are taken in blocks of BLOCK rows, each in eight interleaved lanes, and the blocks are added in
order: the processor adds eight numbers at a time and the result does not depend on the number of threads.
"""

# Decorators of numba carry no types.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True

from __future__ import annotations

from numba import float32, float64, njit, uint64

from oocpr.engine.backends.cpu_numbers import narrowed, widen

BLOCK = 1024
"""Rows of one partial sum."""


@njit(nogil=True, cache=True, inline="always")
def _dot(a, b, begin, end):
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    i = begin
    while i + uint64(8) <= end:
        s0 += float64(a[i]) * float64(b[i])
        s1 += float64(a[i + uint64(1)]) * float64(b[i + uint64(1)])
        s2 += float64(a[i + uint64(2)]) * float64(b[i + uint64(2)])
        s3 += float64(a[i + uint64(3)]) * float64(b[i + uint64(3)])
        s4 += float64(a[i + uint64(4)]) * float64(b[i + uint64(4)])
        s5 += float64(a[i + uint64(5)]) * float64(b[i + uint64(5)])
        s6 += float64(a[i + uint64(6)]) * float64(b[i + uint64(6)])
        s7 += float64(a[i + uint64(7)]) * float64(b[i + uint64(7)])
        i += uint64(8)
    while i < end:
        s0 += float64(a[i]) * float64(b[i])
        i += uint64(1)
    return ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7))


@njit(nogil=True, cache=True, inline="always")
def _norm(a, begin, end):
    s0 = s1 = s2 = s3 = 0.0
    i = begin
    while i + uint64(4) <= end:
        s0 += abs(a[i])
        s1 += abs(a[i + uint64(1)])
        s2 += abs(a[i + uint64(2)])
        s3 += abs(a[i + uint64(3)])
        i += uint64(4)
    while i < end:
        s0 += abs(a[i])
        i += uint64(1)
    return (s0 + s2) + (s1 + s3)


@njit(nogil=True, cache=True)
def publish_block(block, p, r, degree, push, teleport, uniform, steps, slots, thetas, kind, pushed, table, scale, sums):
    """Round the next push of one block of rows and add it to the ranks.

    Parameters
    ----------
    kind
        0 teleport vector, 1 restart from p + r, 2 residual, 3 mixed proposal.
    push
        float32, the proposal; read where `kind` is 3.
    slots, thetas
        What to subtract, a multiple of each remembered step.
    pushed
        Stored numbers of the stripe's rows, shape (rows,): receives the push.
    sums
        float64, shape (blocks, 3): receives the dangling mass, the mass and the sum of p.
    """
    begin = uint64(block) * uint64(BLOCK)
    end = min(begin + uint64(BLOCK), uint64(p.size))
    dangling = 0.0
    mass = 0.0
    total = 0.0
    for i in range(begin, end):
        if kind == 0:
            value = teleport[i] if teleport.size else uniform
        elif kind == 1:
            value = p[i] + r[i]
            p[i] = 0.0
            r[i] = 0.0
        elif kind == 2:
            value = r[i]
        else:
            value = float64(push[i])
            for q in range(slots.size):
                value -= thetas[q] * float64(steps[slots[q], i])
        links = float64(max(degree[i], 1))
        stored = narrowed(pushed, value / links, scale)
        pushed[i] = stored
        exact = widen(stored, table) * links
        p[i] += exact
        total += p[i]
        mass += exact
        dangling += exact if degree[i] == 0 else 0.0
    sums[block, 0] = dangling
    sums[block, 1] = mass
    sums[block, 2] = total


@njit(nogil=True, cache=True)
def update_rows(begin, end, first, offset, reads, stride, table, degree, teleport, uniform, pushes, damping, base, spread, r, changes, slot):
    """Add what was delivered to the residual and take away what was pushed.

    Parameters
    ----------
    begin, end
        Rows, counted in the tile.
    first, offset
        First row of the tile in the whole graph and in the stripe.
    stride
        Numbers a node in `reads`.
    """
    for t in range(begin, end):
        i = t + offset
        links = float64(max(degree[i], 1))
        exact = widen(reads[stride * (t + first)], table) * links
        part = teleport[i] if teleport.size else uniform
        change = damping * pushes[t] + (base * part + spread) - exact
        r[i] += change
        if slot >= 0:
            changes[slot, i] = float32(change)


@njit(nogil=True, cache=True)
def sum_block(begin, end, offset, r, changes, slot, live, sums):
    """Norm of the residual and scalar products of the remembered changes, over one block of rows.

    Parameters
    ----------
    sums
        float64, shape (1 + 2 live,): norm, products with this pass's change, products with the residual.
    """
    sums[0] = _norm(r, begin + offset, end + offset)
    for q in range(live.size):
        sums[1 + q] = _dot(changes[live[q]], changes[slot], begin + offset, end + offset)
        sums[1 + live.size + q] = _dot(changes[live[q]], r, begin + offset, end + offset)


@njit(nogil=True, cache=True)
def begin_sweeps(begin, end, offset, r, proposals, degree, damping, total, shares):
    """Start the proposal of a tile's rows: the residual and what earlier tiles proposed to them.

    Parameters
    ----------
    total
        float32, one a row of the tile: receives the proposal so far.
    shares
        float32: receives what each row sends along a link in the next sweep.
    """
    for t in range(begin, end):
        i = t + offset
        value = r[i] + damping * proposals[t]
        total[t] = float32(value)
        shares[t] = float32(damping * value / float64(max(degree[i], 1)))


@njit(nogil=True, cache=True)
def sweep_segments(begin, end, k, rows, first, positions, segments, columns, offset, degree, damping, shares, total, after):
    """One product inside the tile for its rows begin .. end - 1.

    Columns outside the tile read ``shares[rows]``, which is zero, so that no branch is needed.

    Parameters
    ----------
    k
        First non-empty segment at or behind `begin`.
    rows, first
        Owned rows of the tile, and the first of them in the whole graph.
    after
        float32: receives what each row sends in the sweep after.
    """
    t = begin
    while t < end:
        occupied = min(uint64(segments[k]), end)
        while t < occupied:
            after[t] = float32(0.0)
            t += uint64(1)
        if t >= end:
            break
        value = float32(0.0)
        for i in range(uint64(positions[k]), uint64(positions[k + uint64(1)])):
            # An unsigned difference: a column before the tile wraps to a number past it.
            value += shares[min(uint64(columns[i]) - first, rows)]
        total[t] += value
        after[t] = float32(damping) * value / float32(max(degree[t + offset], 1))
        t += uint64(1)
        k += uint64(1)


@njit(nogil=True, cache=True)
def end_sweeps(begin, end, first, offset, reads, table, scale, degree, total, push, steps, slot):
    """Keep the proposal, remember the step it makes, and let later tiles read it."""
    for t in range(begin, end):
        i = t + offset
        links = float64(max(degree[i], 1))
        if slot >= 0:
            exact = widen(reads[uint64(2) * (t + first)], table) * links
            steps[slot, i] = float32(exact + (float64(total[t]) - float64(push[i])))
        push[i] = total[t]
        reads[uint64(2) * (t + first) + uint64(1)] = narrowed(reads, float64(total[t]) / links, scale)


@njit(nogil=True, cache=True)
def peak_block(begin, end, offset, values, degree):
    """Largest magnitude per out-link of ``values[offset + begin : offset + end]``."""
    most = 0.0
    for t in range(begin, end):
        i = t + offset
        most = max(most, abs(float64(values[i])) / float64(max(degree[i], 1)))
    return most
