"""What is pushed is added to the ranks, delivered along all edges, and what is left of the residual summed.

Sums are made by blocks of rows and added in their order, so they do not depend on the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import float32, float64, uint32, uint64

from oocpr.engine.cpu.gather import SLICE_ROWS, sum_long_row, sum_slice
from oocpr.engine.cpu.rows import BLOCK, add_up, norm
from oocpr.engine.cpu.threads import barrier
from oocpr.engine.scc.level_schedule import SHARED
from oocpr.engine.scc.solve import balanced_range
from oocpr.jit import inner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RankVectors(NamedTuple):
    """The rows of a graph in a run.

    Attributes
    ----------
    p, r, degree, teleport
        Shape (rows,): ranks, residual, out-degrees, teleport vector; the last (0,) if uniform.
    reads
        Shape (rows + 1,): pushed along each edge; zero after the last.
    pushes
        Shape (rows + 1,): what was delivered; the last is padding.
    blocks
        Shape (blocks, 4): dangling mass, mass, sum of p, norm of r.
    """

    p: NDArray[np.float64]
    r: NDArray[np.float64]
    degree: NDArray[np.uint32]
    teleport: NDArray[np.float64]
    reads: NDArray[np.float32]
    pushes: NDArray[np.float64]
    blocks: NDArray[np.float64]


@inner()
def publish(me, team, vectors, sends, damping):
    """Round what rows contribute to what is pushed, and add it to the ranks.

    `sends`, float32, shape (rows,), is damping times what each row contributes along an edge.
    """
    out = np.empty(BLOCK, np.float64)
    rows = uint64(vectors.p.size)
    blocks = vectors.blocks.shape[0]
    back = 1.0 / damping
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(block) * uint64(BLOCK)
        end = min(begin + uint64(BLOCK), rows)
        count = end - begin
        p, degree = vectors.p[begin:end], vectors.degree[begin:end]
        sum_row, reads = sends[begin:end], vectors.reads[begin:end]
        for i in range(count):
            reads[i] = float32(float64(sum_row[i]) * back)
        pushes = vectors.pushes[begin:end]
        for i in range(count):
            pushes[i] = 0.0
        for i in range(count):
            out[i] = float64(reads[i]) * float64(max(degree[i], uint32(1)))
        for i in range(count):
            p[i] += out[i]
        sums = vectors.blocks[block]
        sums[1] = add_up(out, count)
        sums[2] = add_up(p, count)
        for i in range(count):
            out[i] = out[i] if degree[i] == uint32(0) else 0.0
        sums[0] = add_up(out, count)


@inner()
def update(me, team, vectors, damping, base, spread):
    """Subtract what was pushed from the residual and add what was delivered and what the teleport brings."""
    out = np.empty(BLOCK, np.float64)
    rows = uint64(vectors.p.size)
    blocks = vectors.blocks.shape[0]
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(block) * uint64(BLOCK)
        end = min(begin + uint64(BLOCK), rows)
        count = end - begin
        r, degree = vectors.r[begin:end], vectors.degree[begin:end]
        reads, pushes = vectors.reads[begin:end], vectors.pushes[begin:end]
        for i in range(count):
            out[i] = float64(reads[i]) * float64(max(degree[i], uint32(1)))
        if vectors.teleport.size:
            teleport = vectors.teleport[begin:end]
            for i in range(count):
                out[i] = damping * pushes[i] + (base * teleport[i] + spread) - out[i]
        else:
            constant = base / float64(rows) + spread
            for i in range(count):
                out[i] = damping * pushes[i] + constant - out[i]
        for i in range(count):
            r[i] += out[i]
        vectors.blocks[block, 3] = norm(r, count)


@inner()
def _deliver_slices(low, high, schedule, reads, pushes):
    """Add what the rows of slices receive, and those with the same edges; columns read live lie behind."""
    slice_ptr, targets, slice_columns = schedule.slice_ptr, schedule.targets, schedule.slice_columns
    duplicate_ptr, duplicate_rows, duplicate_places = (
        schedule.duplicate_ptr,
        schedule.duplicate_rows,
        schedule.duplicate_places,
    )
    lanes = np.empty(SLICE_ROWS, np.float64)
    behind = uint32(pushes.size)
    for s in range(low, high):
        end = uint64(slice_ptr[s + uint64(1)])
        sum_slice(lanes, reads, slice_columns, behind, None, slice_ptr[s], end)
        place = s * uint64(SLICE_ROWS)
        for t in range(duplicate_ptr[s], duplicate_ptr[s + uint64(1)]):
            pushes[uint64(duplicate_rows[t])] += lanes[uint64(duplicate_places[t]) - place]
        for lane in range(uint64(SLICE_ROWS)):
            pushes[uint64(targets[place + lane])] += lanes[lane]


@inner()
def _deliver_long(low, high, long_ptr, long_rows, slice_columns, reads, pushes):
    lanes = np.empty(SLICE_ROWS, np.float64)
    behind = uint32(pushes.size)
    waiting = low
    for q in range(low, high):
        i = uint64(long_ptr[q])
        end = uint64(long_ptr[q + uint64(1)])
        if i == end:
            continue
        total = sum_long_row(lanes, reads, slice_columns, behind, None, i, end)
        for k in range(waiting, q + uint64(1)):
            pushes[uint64(long_rows[k])] += total
        waiting = q + uint64(1)


@inner()
def deliver(me, team, counter, phase, schedule, reads, pushes):
    """Sum what is pushed to each row; returns the number of the last barrier.

    `pushes`, float64, shape (rows + 1,), zeros, receives the sums of `reads`, float32 of that shape.
    """
    members = uint64(schedule.members.size)
    for q in range(members * uint64(me) // uint64(team), members * uint64(me + 1) // uint64(team)):
        row = uint64(schedule.members[q])
        first = uint64(schedule.offsets[row])
        total = 0.0
        for i in range(first, first + uint64(schedule.outer[row]) + uint64(schedule.inner[row])):
            total += float64(reads[uint64(schedule.columns[i])])
        pushes[row] = total
    slice_ptr, slice_columns = schedule.slice_ptr, schedule.slice_columns
    long_ptr, long_rows = schedule.long_ptr, schedule.long_rows
    for region in range(me, schedule.regions.shape[0], team):
        part = schedule.regions[region]
        low, high = uint64(part[0]), uint64(max(part[0], part[1] - 1))
        _deliver_slices(low, high, schedule, reads, pushes)
        low, high = uint64(part[2]), uint64(max(part[2], part[3] - 1))
        _deliver_long(low, high, long_ptr, long_rows, slice_columns, reads, pushes)
    phase += 1
    barrier(counter, team, phase)
    for k in range(schedule.stages.shape[0]):
        stage = schedule.stages[k]
        if stage[0] == SHARED:
            low, high = balanced_range(slice_ptr, stage[1], stage[2], me, team)
            _deliver_slices(low, high, schedule, reads, pushes)
            low, high = balanced_range(long_ptr, stage[3], stage[4], me, team)
            _deliver_long(low, high, long_ptr, long_rows, slice_columns, reads, pushes)
    phase += 1
    barrier(counter, team, phase)
    loops = uint64(schedule.loops.size)
    for q in range(loops * uint64(me) // uint64(team), loops * uint64(me + 1) // uint64(team)):
        row = uint64(schedule.loops[q])
        pushes[row] += float64(reads[row])
    phase += 1
    barrier(counter, team, phase)
    return phase
