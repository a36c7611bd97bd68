"""What is pushed is added to the ranks, delivered along all links, and what is left of the residual summed.

Sums are made by blocks of rows and added in their order, so they do not depend on the number of threads.
"""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import float32, float64, uint32, uint64

from oocpr.engine.cpu.row_sums import add_up, norm
from oocpr.engine.cpu.rows import BLOCK
from oocpr.engine.cpu.sliced_ell import ABREAST
from oocpr.engine.cpu.threads import meet
from oocpr.engine.scc.level_schedule import SHARED
from oocpr.engine.scc.solve import share
from oocpr.jit import inner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Ranking(NamedTuple):
    """The rows of a graph in a run.

    Attributes
    ----------
    p, r
        float64, shape (rows,): ranks and residual.
    degree
        uint32, shape (rows,).
    teleport
        float64, shape (rows,), or (0,) where uniform.
    reads
        float32, shape (rows + 1,): pushed along each link; zero after the last.
    pushes
        float64, shape (rows + 1,): what was delivered; the last belongs to nobody.
    blocks
        float64, shape (blocks, 4): dangling mass, mass, sum of p, norm of r.
    """

    p: NDArray[np.float64]
    r: NDArray[np.float64]
    degree: NDArray[np.uint32]
    teleport: NDArray[np.float64]
    reads: NDArray[np.float32]
    pushes: NDArray[np.float64]
    blocks: NDArray[np.float64]


@inner()
def publish(me, team, ranking, sends, damping):
    """Round what rows send to what is pushed, and add it to the ranks.

    Parameters
    ----------
    sends
        float32, shape (rows,): damping times what each row sends along a link.
    """
    out = np.empty(BLOCK, np.float64)
    rows = uint64(ranking.p.size)
    blocks = ranking.blocks.shape[0]
    back = 1.0 / damping
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(block) * uint64(BLOCK)
        end = min(begin + uint64(BLOCK), rows)
        count = end - begin
        p, degree = ranking.p[begin:end], ranking.degree[begin:end]
        sent, reads = sends[begin:end], ranking.reads[begin:end]
        for i in range(count):
            reads[i] = float32(float64(sent[i]) * back)
        pushes = ranking.pushes[begin:end]
        for i in range(count):
            pushes[i] = 0.0
        for i in range(count):
            out[i] = float64(reads[i]) * float64(max(degree[i], uint32(1)))
        for i in range(count):
            p[i] += out[i]
        sums = ranking.blocks[block]
        sums[1] = add_up(out, count)
        sums[2] = add_up(p, count)
        for i in range(count):
            out[i] = out[i] if degree[i] == uint32(0) else 0.0
        sums[0] = add_up(out, count)


@inner()
def update(me, team, ranking, damping, base, spread):
    """Take what was pushed from the residual and add what was delivered and what the teleport brings."""
    out = np.empty(BLOCK, np.float64)
    rows = uint64(ranking.p.size)
    blocks = ranking.blocks.shape[0]
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(block) * uint64(BLOCK)
        end = min(begin + uint64(BLOCK), rows)
        count = end - begin
        r, degree = ranking.r[begin:end], ranking.degree[begin:end]
        reads, pushes = ranking.reads[begin:end], ranking.pushes[begin:end]
        for i in range(count):
            out[i] = float64(reads[i]) * float64(max(degree[i], uint32(1)))
        if ranking.teleport.size:
            teleport = ranking.teleport[begin:end]
            for i in range(count):
                out[i] = damping * pushes[i] + (base * teleport[i] + spread) - out[i]
        else:
            constant = base / float64(rows) + spread
            for i in range(count):
                out[i] = damping * pushes[i] + constant - out[i]
        for i in range(count):
            r[i] += out[i]
        ranking.blocks[block, 3] = norm(r, count)


@inner()
def _deliver_slices(low, high, levels, reads, pushes):
    """Add what the rows of slices receive, and those with the same links; columns read live lie behind."""
    bases, targets, sliced = levels.bases, levels.targets, levels.sliced
    twin_bases, twin_rows, twin_places = levels.twin_bases, levels.twin_rows, levels.twin_places
    lanes = np.empty(ABREAST, np.float64)
    behind = uint32(pushes.size)
    for s in range(low, high):
        for lane in range(uint64(ABREAST)):
            lanes[lane] = 0.0
        i = uint64(bases[s])
        end = uint64(bases[s + uint64(1)])
        while i < end:
            for lane in range(uint64(ABREAST)):
                column = sliced[i + lane]
                lanes[lane] += float64(reads[uint64(min(column, column - behind))])
            i += uint64(ABREAST)
        place = s * uint64(ABREAST)
        for t in range(twin_bases[s], twin_bases[s + uint64(1)]):
            pushes[uint64(twin_rows[t])] += lanes[uint64(twin_places[t]) - place]
        for lane in range(uint64(ABREAST)):
            pushes[uint64(targets[place + lane])] += lanes[lane]


@inner()
def _deliver_long(low, high, long_bases, long_rows, sliced, reads, pushes):
    lanes = np.empty(ABREAST, np.float64)
    behind = uint32(pushes.size)
    waiting = low
    for q in range(low, high):
        i = uint64(long_bases[q])
        end = uint64(long_bases[q + uint64(1)])
        if i == end:
            continue
        for lane in range(uint64(ABREAST)):
            lanes[lane] = 0.0
        while i + uint64(ABREAST) <= end:
            for lane in range(uint64(ABREAST)):
                column = sliced[i + lane]
                lanes[lane] += float64(reads[uint64(min(column, column - behind))])
            i += uint64(ABREAST)
        for lane in range(end - i):
            column = sliced[i + lane]
            lanes[lane] += float64(reads[uint64(min(column, column - behind))])
        total = 0.0
        for lane in range(uint64(ABREAST)):
            total += lanes[lane]
        for k in range(waiting, q + uint64(1)):
            pushes[uint64(long_rows[k])] += total
        waiting = q + uint64(1)


@inner()
def deliver(me, team, counter, met, levels, reads, pushes):
    """Sum what is pushed to each row; returns the number of the last meeting.

    Parameters
    ----------
    reads
        float32, shape (rows + 1,).
    pushes
        float64, shape (rows + 1,), zeros: receives the sums.
    """
    members = uint64(levels.members.size)
    for q in range(members * uint64(me) // uint64(team), members * uint64(me + 1) // uint64(team)):
        row = uint64(levels.members[q])
        first = uint64(levels.offsets[row])
        total = 0.0
        for i in range(first, first + uint64(levels.outer[row]) + uint64(levels.inner[row])):
            total += float64(reads[uint64(levels.columns[i])])
        pushes[row] = total
    bases, sliced = levels.bases, levels.sliced
    long_bases, long_rows = levels.long_bases, levels.long_rows
    for region in range(me, levels.regions.shape[0], team):
        part = levels.regions[region]
        low, high = uint64(part[0]), uint64(max(part[0], part[1] - 1))
        _deliver_slices(low, high, levels, reads, pushes)
        low, high = uint64(part[2]), uint64(max(part[2], part[3] - 1))
        _deliver_long(low, high, long_bases, long_rows, sliced, reads, pushes)
    met += 1
    meet(counter, team, met)
    for k in range(levels.stages.shape[0]):
        stage = levels.stages[k]
        if stage[0] == SHARED:
            low, high = share(bases, stage[1], stage[2], me, team)
            _deliver_slices(low, high, levels, reads, pushes)
            low, high = share(long_bases, stage[3], stage[4], me, team)
            _deliver_long(low, high, long_bases, long_rows, sliced, reads, pushes)
    met += 1
    meet(counter, team, met)
    loops = uint64(levels.loops.size)
    for q in range(loops * uint64(me) // uint64(team), loops * uint64(me + 1) // uint64(team)):
        row = uint64(levels.loops[q])
        pushes[row] += float64(reads[row])
    met += 1
    meet(counter, team, met)
    return met
