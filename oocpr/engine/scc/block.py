"""Blocks of vectors that share each visit of an edge: the same graph solved for several right-hand sides.

What `oocpr.engine.scc.solve` does for one vector is done here for BLOCK_WIDTHS of them side by side. A row
has as many numbers as there are vectors, next to each other, so a vector unit adds them up as they come from
memory, and one cache line brings what sixteen vectors need of an edge. The width is compiled in: it reaches
compiled code as the length of `lanes`, a tuple of zeros.

A block belongs to one thread, and threads take blocks of their own: the sweeps of a component, of which there
are some tens, then need no barrier, and a row reads everything as it has just become.

After every stride of STRIDE sweeps a component's vectors are extrapolated. If a sweep changes one by d, and
by a part l of what the sweep before changed, the sweeps to come would change it by (l + l^2 + ...) d, were d
the eigenvector of the sweeps' largest eigenvalue, as it nearly is after some: so l / (1 - l) d is added. A
component takes a third to a half of the sweeps, for one number per row; mixing, which takes three quarters,
needs seven. Lyusternik, Trudy Mat. Inst. Steklov 20 (1947).

No number of a vector depends on the vectors beside it: each has its own sums, in the order of the rows, and
in a component that is swept it stays as it is from the sweep on after which it has converged. Rows that no
vector of the block reaches are left out, which adds zeros to no sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import float32, float64, uint8, uint32, uint64
from numpy.typing import NDArray

from oocpr.engine.cpu.lanes import full, load, magnitude, narrow, prefetch, select, store, widen
from oocpr.engine.scc.level_schedule import LevelSchedule, find_components, find_duplicate_rows
from oocpr.engine.scc.solve import REL_TOL, STRIDE
from oocpr.jit import BORROWING, entry, inner
from oocpr.plan.memory import TAKEN

_AHEAD = 8
"""Rows ahead of the one that is solved of which memory is asked for: sweeps take an eighth less time so."""

_TINY = 1e-300

_CHUNK = 1 << 10
"""Rows whose numbers are added up before they join the sum of all."""


class RowOrder(NamedTuple):
    """The order in which all rows are solved for a block.

    Rows of one level, and then each of its components with cycles; rows with the same edges stand one behind
    the other, so that their sum is known from the first.
    """

    # Shape (rows,); whether a row has the edges of the one before: in a component those from its own rows.
    rows: NDArray[np.uint32]
    repeats: NDArray[np.bool]
    # First place in `rows` of each group, and the end: rows without cycles, or the rows of one component.
    groups: NDArray[np.uint32]


class Block(NamedTuple):
    """The numbers of the vectors of a block; those of a row are next to each other."""

    # Shape (rows * width,): ranks and residuals; what a row contributes along an edge, or has just pushed;
    # what others contribute to a row of a component.
    p: NDArray[np.float64]
    r: NDArray[np.float64]
    sends: NDArray[np.float32]
    starts: NDArray[np.float32]
    # How the last sweep of a stride changed what a row contributes.
    changes: NDArray[np.float32]
    # Shape (rows,): whether any vector reaches a row.
    reached: NDArray[np.uint8]
    # Teleport vectors, one after another: first entry of each and the end, shape (width + 1,); rows, weights.
    seed_ptr: NDArray[np.int64]
    seed_rows: NDArray[np.int64]
    seed_weights: NDArray[np.float64]


def order_rows(schedule: LevelSchedule, *, distinct: bool = False) -> RowOrder:
    """Order the rows of a graph for blocks of vectors; `distinct`: no row has the sum of another."""
    rows = len(schedule.outer)
    component, levels = np.empty(rows, np.uint32), np.empty(rows, np.uint32)
    find_components(schedule.offsets, schedule.columns, component, levels)
    alone = np.bincount(component)[component] == 1
    same_as = np.arange(rows, dtype=np.uint32)
    for some, lengths, own in () if distinct else ((alone, schedule.outer, 0), (~alone, schedule.inner, 1)):
        _find_duplicates(schedule, np.flatnonzero(some).astype(np.uint32), lengths, uint32(own), same_as)
    owner = np.where(alone, 0, component + np.uint32(1))
    # Rows with the same edges have the same level, and those from their own component the same component.
    order = np.lexsort((same_as, owner, levels[component])).astype(np.uint32)
    first = np.flatnonzero(np.diff(owner[order], prepend=np.uint32(0xFFFFFFFF)))
    return RowOrder(order, same_as[order] != order, np.append(first, rows).astype(np.uint32))


@entry()
def _find_duplicates(schedule, rows, lengths, own, same_as):
    find_duplicate_rows(rows, lengths, own, schedule, same_as)


@entry()
def reach(schedule, order, block):
    """Find the rows to which the teleport vectors of a block bring anything."""
    reached = block.reached
    for i in range(block.seed_rows.size):
        reached[block.seed_rows[i]] = uint8(1)
    for g in range(order.groups.size - 1):
        first, end = uint64(order.groups[g]), uint64(order.groups[g + 1])
        cyclic = schedule.inner[uint64(order.rows[first])] > uint32(0)
        found = uint8(0)
        for q in range(first, end):
            row = uint64(order.rows[q])
            one = reached[row]
            i = uint64(schedule.offsets[row])
            stop = i + uint64(schedule.outer[row])
            while i < stop and not one:
                one = reached[uint64(schedule.columns[i])]
                i += uint64(1)
            reached[row] = one
            found |= one
        if cyclic and found:
            for q in range(first, end):
                reached[uint64(order.rows[q])] = uint8(1)


@entry(shared=True)
def scatter(block, factors, width):
    """Add the teleport vectors of a block, times a factor for each, to the residuals."""
    for b in range(block.seed_ptr.size - 1):
        for i in range(block.seed_ptr[b], block.seed_ptr[b + 1]):
            block.r[uint64(block.seed_rows[i]) * uint64(width) + uint64(b)] += (
                factors[b] * block.seed_weights[i]
            )


@entry()
def clear(block, width):
    """Make everything zeros again, for the next vectors."""
    for row in range(uint64(block.reached.size)):
        if block.reached[row]:
            for i in range(row * uint64(width), (row + uint64(1)) * uint64(width)):
                block.p[i] = 0.0
                block.r[i] = 0.0
                block.sends[i] = float32(0.0)
            block.reached[row] = uint8(0)


@entry()
def take(block, width, first, out):
    """Copy the ranks of TAKEN vectors from number `first` on: float64, shape (TAKEN, rows)."""
    for row in range(uint64(block.reached.size)):
        base = row * uint64(width) + uint64(first)
        if block.reached[row]:
            for b in range(uint64(TAKEN)):
                out[b, row] = block.p[base + b] + block.r[base + b]
        else:
            for b in range(uint64(TAKEN)):
                out[b, row] = 0.0


@inner(**BORROWING)
def _sum_edges(first, end, columns, values, edge_weights, lanes):
    """Sum the numbers of the rows ``columns[first:end]`` for each vector, times weights if there are any."""
    width = uint64(len(lanes))
    total = full(float32(0.0), lanes)
    i = first
    if edge_weights is not None:
        while i + uint64(2) <= end:
            one = load(values, uint64(columns[i]) * width, lanes)
            two = load(values, uint64(columns[i + uint64(1)]) * width, lanes)
            total += one * full(float32(edge_weights[i]), lanes) + two * full(
                float32(edge_weights[i + uint64(1)]), lanes
            )
            i += uint64(2)
        if i < end:
            total += load(values, uint64(columns[i]) * width, lanes) * full(float32(edge_weights[i]), lanes)
        return total
    # One chain of additions would wait for each to end.
    while i + uint64(4) <= end:
        one = load(values, uint64(columns[i]) * width, lanes)
        two = load(values, uint64(columns[i + uint64(1)]) * width, lanes)
        three = load(values, uint64(columns[i + uint64(2)]) * width, lanes)
        four = load(values, uint64(columns[i + uint64(3)]) * width, lanes)
        total += (one + two) + (three + four)
        i += uint64(4)
    while i < end:
        total += load(values, uint64(columns[i]) * width, lanes)
        i += uint64(1)
    return total


@inner(**BORROWING)
def _sum_exactly(first, end, columns, values, edge_weights, lanes):
    """Sum the same in float64."""
    width = uint64(len(lanes))
    total = full(0.0, lanes)
    i = first
    if edge_weights is not None:
        while i < end:
            one = widen(load(values, uint64(columns[i]) * width, lanes))
            total += one * full(edge_weights[i], lanes)
            i += uint64(1)
        return total
    while i + uint64(2) <= end:
        one = widen(load(values, uint64(columns[i]) * width, lanes))
        total += one + widen(load(values, uint64(columns[i + uint64(1)]) * width, lanes))
        i += uint64(2)
    if i < end:
        total += widen(load(values, uint64(columns[i]) * width, lanes))
    return total


@entry()
def solve(schedule, order, edge_weights, block, weights, reciprocals, max_ratio, max_sweeps, row_tols, lanes):
    """Find what to push next: ``block.sends`` receives it.

    A component is left after `max_sweeps`, or, by each vector, if it changes by no more than REL_TOL of what
    others contribute to it or by `row_tols`, shape (width,), per row. A vector whose tolerance is infinite is
    not swept. A sweep is taken to shrink a change to no more than `max_ratio` of it. `weights` and
    `reciprocals` are as in `oocpr.engine.scc.solve.Contributions`; `edge_weights` is None without.
    """
    width = uint64(len(lanes))
    sizes, changes, earlier, strides = np.empty(width), np.empty(width), np.empty(width), np.empty(width)
    swept, factors = np.empty(width, np.uint32), np.empty(width, np.float32)
    for g in range(order.groups.size - 1):
        first, end = uint64(order.groups[g]), uint64(order.groups[g + 1])
        row = uint64(order.rows[first])
        if not schedule.inner[row]:
            _solve_rows(first, end, schedule, order, edge_weights, block, weights, lanes)
        elif block.reached[row]:
            _begin_component(
                first, end, schedule, order, edge_weights, block, weights, reciprocals, sizes, lanes
            )
            for b in range(width):
                sizes[b] = max(REL_TOL * sizes[b], row_tols[b] * float64(end - first))
                swept[b] = uint32(sizes[b] < np.inf)
                strides[b] = np.inf
            for sweep in range(max_sweeps):
                last = sweep % STRIDE == STRIDE - 1
                earlier[:] = changes
                _sweep(
                    first, end, schedule, order, edge_weights, block, weights, reciprocals, swept, last,
                    changes, lanes,
                )  # fmt: skip
                left = uint32(0)
                for b in range(width):
                    swept[b] &= uint32(changes[b] > sizes[b])
                    left |= swept[b]
                if not left:
                    break
                if last:
                    for b in range(width):
                        # One that a stride has brought no nearer is swept without from here on.
                        strides[b] = changes[b] if changes[b] < strides[b] else 0.0
                        ratio = min(changes[b] / max(earlier[b], _TINY), max_ratio)
                        factors[b] = ratio / (1.0 - ratio) if swept[b] and strides[b] else 0.0
                    _extrapolate(first, end, order, block, factors, lanes)


@inner(**BORROWING)
def _solve_rows(first, end, schedule, order, edge_weights, block, weights, lanes):
    """Solve rows without cycles."""
    width = uint64(len(lanes))
    sends, columns = block.sends, schedule.columns
    total = full(float32(0.0), lanes)
    known = False
    for q in range(first, end):
        row = uint64(order.rows[q])
        known = known and order.repeats[q]
        if not block.reached[row]:
            continue
        if not known:
            begin = uint64(schedule.offsets[row])
            total = _sum_edges(
                begin, begin + uint64(schedule.outer[row]), columns, sends, edge_weights, lanes
            )
            known = True
        own = narrow(load(block.r, row * width, lanes))
        store(sends, row * width, full(weights[row], lanes) * (own + total))


@inner(**BORROWING)
def _begin_component(first, end, schedule, order, edge_weights, block, weights, reciprocals, sizes, lanes):
    """Find what others contribute to the rows of a component; `sizes` receive how much that is in all."""
    width = uint64(len(lanes))
    sends, columns = block.sends, schedule.columns
    size = full(0.0, lanes)
    for q in range(first, end):
        row = uint64(order.rows[q])
        begin = uint64(schedule.offsets[row])
        total = _sum_edges(begin, begin + uint64(schedule.outer[row]), columns, sends, edge_weights, lanes)
        own = narrow(load(block.r, row * width, lanes))
        now = full(weights[row], lanes) * (own + total)
        store(sends, row * width, now)
        store(block.starts, row * width, now)
        size += widen(magnitude(now) * full(reciprocals[row], lanes))
    store(sizes, uint64(0), size)


@inner(**BORROWING)
def _sweep(
    first, end, schedule, order, edge_weights, block, weights, reciprocals, swept, last, changes, lanes
):
    """Solve the rows of a component once for what they contribute now; `changes` receive how much changed.

    ``block.changes`` has what changed by each row if it is the `last` sweep of a stride.
    """
    width = uint64(len(lanes))
    sends, columns = block.sends, schedule.columns
    chosen = load(swept, uint64(0), lanes)
    change = full(0.0, lanes)
    total = full(float32(0.0), lanes)
    for q in range(first, end):
        row = uint64(order.rows[q])
        soon = uint64(order.rows[min(q + uint64(_AHEAD), end - uint64(1))]) * width
        prefetch(block.starts, soon)
        prefetch(sends, soon)
        if not order.repeats[q]:
            begin = uint64(schedule.offsets[row]) + uint64(schedule.outer[row])
            total = _sum_edges(
                begin, begin + uint64(schedule.inner[row]), columns, sends, edge_weights, lanes
            )
        before = load(sends, row * width, lanes)
        now = load(block.starts, row * width, lanes) + full(weights[row], lanes) * total
        now = select(chosen, now, before)
        store(sends, row * width, now)
        if last:
            store(block.changes, row * width, now - before)
        change += widen(magnitude(now - before) * full(reciprocals[row], lanes))
    store(changes, uint64(0), change)


@inner(**BORROWING)
def _extrapolate(first, end, order, block, factors, lanes):
    """Add to what rows of a component contribute its last change times a factor for each vector."""
    width = uint64(len(lanes))
    times = load(factors, uint64(0), lanes)
    for q in range(first, end):
        at = uint64(order.rows[q]) * width
        store(block.sends, at, load(block.sends, at, lanes) + times * load(block.changes, at, lanes))


@entry()
def spread_dangling(block, degree, uniform, factor, lanes):
    """Add to what is pushed what comes of the dangling mass of it, if that goes to all rows alike.

    With w = 1/n, x = (I - damping * edges)^-1 w and y what was solved, pushing y leaves the residual
    damping * D (w - v), D being y's dangling mass, and pushing x changes it by (damping - 1) * A (w - v), A
    being the sum of x. So y + damping * D / ((1 - damping) * A) * x leaves nothing.

    `uniform`, float32, shape (rows,), is what rows contribute along an edge by x, and `factor` is
    1 / ((1 - damping) * A); contributions have the damping in them.
    """
    width, rows = uint64(len(lanes)), uint64(degree.size)
    dangling = full(0.0, lanes)
    for row in range(rows):
        if not degree[row]:
            dangling += widen(load(block.sends, row * width, lanes))
    times = narrow(dangling * full(factor, lanes))
    for row in range(rows):
        more = times * full(uniform[row], lanes)
        store(block.sends, row * width, load(block.sends, row * width, lanes) + more)


@inner(**BORROWING)
def _divisor(degree):
    """What a rank is divided by: the out-degree or out-weight, or one."""
    return float64(degree) if degree else 1.0


@entry()
def push(schedule, order, edge_weights, block, degree, damping, strongly, found, lanes):
    """Push what rows contribute, rounded, and make the residuals exact again.

    `found`, float64, shape (2, width), receives the L1 norm of each residual and the sum of each vector's
    ranks.
    """
    width = uint64(len(lanes))
    sums, bases, spread = np.zeros((3, width)), np.empty(width), np.zeros(width)
    _push_rows(block, degree, 1.0 / damping, sums, lanes)
    for b in range(width):
        bases[b] = (1.0 - damping) * sums[0, b]
        if strongly:
            bases[b] += damping * sums[1, b]
        else:
            spread[b] = damping * sums[1, b] / float64(degree.size)
        found[1, b] = sums[2, b]
    scatter(block, bases, width)
    _deliver(schedule, order, edge_weights, block, degree, damping, spread, found[0], lanes)


@inner(**BORROWING)
def _push_rows(block, degree, back, sums, lanes):
    """Add what is pushed to the ranks; `sums` receive what all and dangling rows push, and all ranks."""
    width, rows = uint64(len(lanes)), uint64(degree.size)
    p, sends = block.p, block.sends
    nothing = full(0.0, lanes)
    all_mass, all_dangling, all_ranks = nothing, nothing, nothing
    for begin in range(uint64(0), rows, uint64(_CHUNK)):
        mass, dangling, ranks = nothing, nothing, nothing
        for row in range(begin, min(begin + uint64(_CHUNK), rows)):
            if not block.reached[row]:
                continue
            read = narrow(widen(load(sends, row * width, lanes)) * full(back, lanes))
            store(sends, row * width, read)
            pushed = widen(read) * full(_divisor(degree[row]), lanes)
            rank = load(p, row * width, lanes) + pushed
            store(p, row * width, rank)
            mass += pushed
            ranks += rank
            if not degree[row]:
                dangling += pushed
        all_mass += mass
        all_dangling += dangling
        all_ranks += ranks
    store(sums[0], uint64(0), all_mass)
    store(sums[1], uint64(0), all_dangling)
    store(sums[2], uint64(0), all_ranks)


@inner(**BORROWING)
def _deliver(schedule, order, edge_weights, block, degree, damping, spread, norms, lanes):
    """Subtract what was pushed from the residuals, add what is delivered, and sum up their sizes."""
    width, rows = uint64(len(lanes)), uint64(order.rows.size)
    r, sends, columns = block.r, block.sends, schedule.columns
    everywhere = load(spread, uint64(0), lanes)
    nothing = full(0.0, lanes)
    norm, shared = nothing, nothing
    known = False
    for start in range(uint64(0), rows, uint64(_CHUNK)):
        size = nothing
        for q in range(start, min(start + uint64(_CHUNK), rows)):
            row = uint64(order.rows[q])
            known = known and order.repeats[q]
            if not block.reached[row]:
                continue
            begin, last = uint64(schedule.offsets[row]), uint64(schedule.offsets[row + uint64(1)])
            middle = begin + uint64(schedule.outer[row])
            end = middle + uint64(schedule.inner[row])
            cyclic = end > middle
            if not known:
                shared = _sum_exactly(middle if cyclic else begin, end, columns, sends, edge_weights, lanes)
                known = True
            # Edges of a component's row from elsewhere, or the one of a row alone to itself.
            others = _sum_exactly(
                begin if cyclic else end, middle if cyclic else last, columns, sends, edge_weights, lanes
            )
            delivered = full(damping, lanes) * (shared + others) + everywhere
            pushed = widen(load(sends, row * width, lanes)) * full(_divisor(degree[row]), lanes)
            left = load(r, row * width, lanes) + (delivered - pushed)
            store(r, row * width, left)
            size += magnitude(left)
        norm += size
    store(norms, uint64(0), norm)
