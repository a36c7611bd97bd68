"""Row-by-row work on the CPU: publish, update, propose.

Rows are treated in blocks of BLOCK, which fit in the first-level cache, by several short loops over few
arrays each: a compiler vectorises such a loop, and gives up on one that touches seven arrays it cannot tell
apart. The blocks' sums are added in order, so they do not depend on the number of threads.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from numba import float32, float64, uint64

from oocpr.engine.cpu.numbers import narrowed, widen
from oocpr.engine.cpu.row_sums import add_up, dot, norm
from oocpr.engine.cpu.weights import dangles, divisor
from oocpr.jit import inner

BLOCK = 1024
"""Rows of one partial sum."""


@inner()
def _first_push(kind, count, p, r, push, start, uniform, steps, slots, thetas, begin, out):
    """Write the next push of a block of rows to `out`; see publish_block."""
    if kind == 0:
        for i in range(count):
            out[i] = uniform
        if start.size:
            given = start[begin : begin + count]
            for i in range(count):
                out[i] = given[i]
        for i in range(count):
            out[i] -= p[i]
    elif kind == 1:
        for i in range(count):
            out[i] = p[i] + r[i]
        for i in range(count):
            p[i] = 0.0
            r[i] = 0.0
    elif kind == 2:
        for i in range(count):
            out[i] = r[i]
    else:
        if push.size:
            wanted = push[begin : begin + count]
            for i in range(count):
                out[i] = float64(wanted[i])
        else:
            for i in range(count):
                out[i] = r[i]
        for q in range(slots.size):
            step = steps[slots[q], begin : begin + count]
            theta = thetas[q]
            for i in range(count):
                out[i] -= theta * float64(step[i])


@inner()
def publish_block(block, rows, start, uniform, slots, thetas, kind, pushed, table, scale, sums, out):
    """Round the next push of one block of rows and add it to the ranks.

    Parameters
    ----------
    rows
        Rows of the stripe.
    start
        What the run begins from, float64, shape (rows,); (0,) where that is `uniform`.
    kind
        0 the start less p, 1 restart from p + r, 2 residual, 3 mixed: the proposal, or the residual where
        nothing is proposed.
    slots, thetas
        What to subtract, a multiple of each remembered step.
    pushed
        Stored numbers of the stripe's rows, shape (rows,): receives the push.
    sums
        float64, shape (blocks, 3): receives the dangling mass, the mass and the sum of p.
    out
        float64, shape (BLOCK,): scratch.
    """
    begin = uint64(block) * uint64(BLOCK)
    end = min(begin + uint64(BLOCK), uint64(rows.p.size))
    count = end - begin
    p = rows.p[begin:end]
    r = rows.r[begin:end]
    degree = rows.degree[begin:end]
    stored = pushed[begin:end]
    _first_push(kind, count, p, r, rows.push, start, uniform, rows.steps, slots, thetas, begin, out)
    for i in range(count):
        stored[i] = narrowed(pushed, out[i] / divisor(degree[i]), scale)
    for i in range(count):
        out[i] = widen(stored[i], table) * divisor(degree[i])
    for i in range(count):
        p[i] += out[i]
    sums[block, 1] = add_up(out, count)
    sums[block, 2] = add_up(p, count)
    for i in range(count):
        out[i] = out[i] if dangles(degree[i]) else 0.0
    sums[block, 0] = add_up(out, count)


@inner()
def update_block(
    begin, end, offset, rows, pushed, table, uniform, pushes, damping, base, spread, slot, live, sums, out
):
    """Add what was delivered to the residual, take away what was pushed, and sum.

    Parameters
    ----------
    begin, end
        Rows, counted in the tile.
    offset
        First row of the tile in the stripe.
    pushes
        float64: delivered to each row of the tile.
    sums
        float64, shape (1 + 2 live,): norm of the residual, products of the remembered changes with this
        pass's change, products with the residual.
    out
        float64, shape (BLOCK,): scratch.
    """
    count = end - begin
    r = rows.r[begin + offset : end + offset]
    degree = rows.degree[begin + offset : end + offset]
    stored = pushed[begin + offset : end + offset]
    delivered = pushes[begin:end]
    for i in range(count):
        out[i] = widen(stored[i], table) * divisor(degree[i])
    if rows.teleport.size:
        teleport = rows.teleport[begin + offset : end + offset]
        for i in range(count):
            out[i] = damping * delivered[i] + (base * teleport[i] + spread) - out[i]
    else:
        constant = base * uniform + spread
        for i in range(count):
            out[i] = damping * delivered[i] + constant - out[i]
    for i in range(count):
        r[i] += out[i]
    sums[0] = norm(r, count)
    if slot < 0:
        return
    change = rows.changes[slot, begin + offset : end + offset]
    for i in range(count):
        change[i] = float32(out[i])
    for q in range(live.size):
        other = rows.changes[live[q], begin + offset : end + offset]
        sums[1 + q] = dot(other, change, count)
        sums[1 + live.size + q] = dot(other, r, count)
    if not rows.push.size:
        # The residual is the proposal, so the step it makes is known.
        step = rows.steps[slot, begin + offset : end + offset]
        for i in range(count):
            step[i] = float32(widen(stored[i], table) * divisor(degree[i]) + out[i])


@inner()
def begin_sweeps(begin, end, offset, rows, proposals, damping, proposed):
    """Start the proposal of a tile's rows: the residual and what earlier tiles proposed to them.

    Parameters
    ----------
    proposed
        float32, one a row of the tile: receives the proposal so far.
    """
    count = end - begin
    r = rows.r[begin + offset : end + offset]
    earlier = proposals[begin:end]
    so_far = proposed[begin:end]
    for i in range(count):
        so_far[i] = float32(r[i] + damping * earlier[i])


@inner()
def end_sweeps(begin, end, first, offset, rows, pushed, reads, table, scale, total, slot, out):
    """Keep the proposal, remember the step it makes, and let later tiles read it.

    Parameters
    ----------
    first
        First row of the tile in the whole graph.
    """
    count = end - begin
    degree = rows.degree[begin + offset : end + offset]
    push = rows.push[begin + offset : end + offset]
    proposal = total[begin:end]
    if slot >= 0:
        stored = pushed[begin + offset : end + offset]
        step = rows.steps[slot, begin + offset : end + offset]
        for i in range(count):
            out[i] = widen(stored[i], table) * divisor(degree[i])
        for i in range(count):
            step[i] = float32(out[i] + (float64(proposal[i]) - float64(push[i])))
    for i in range(count):
        push[i] = proposal[i]
    place = uint64(2) * (begin + first) + uint64(1)
    for i in range(count):
        value = float64(proposal[i]) / divisor(degree[i])
        reads[place + uint64(2) * i] = narrowed(reads, value, scale)


@inner()
def peak_block(begin, end, offset, values, degree):
    """Largest magnitude per out-link of ``values[offset + begin : offset + end]``."""
    most = 0.0
    for t in range(begin, end):
        i = t + offset
        most = max(most, abs(float64(values[i])) / divisor(degree[i]))
    return most
