"""Row-by-row work on the CPU: push, update, propose.

Rows are treated in blocks of ROW_BLOCK, which fit in the first-level cache, by several short loops over few
arrays each: a compiler vectorises such a loop, and gives up on one that touches seven arrays it cannot tell
apart. The blocks' sums are added in order, so they do not depend on the number of threads.

Compilers may not reorder floating-point additions, so a plain loop adds one number at a time; sums over rows
are taken in eight interleaved lanes, joined in order, which vector units can follow: the same on every
processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from oocpr.engine.backend import RESIDUAL, RESTART, START
from oocpr.engine.cpu.numbers import dangles, divisor, narrowed, widened
from oocpr.engine.cpu.threads import parallel_region
from oocpr.jit import entry, inner

ROW_BLOCK = 1024
"""Rows of one partial sum."""

SIMD_LANES = 8
_I64 = ir.IntType(64)
_F64 = ir.DoubleType()
_VEC = ir.VectorType(_F64, SIMD_LANES)


def _load_lanes(b: Any, array: Any, element: Any, index: Any) -> Any:
    """Eight elements from `index` on as float64."""
    llvm = ir.FloatType() if element == types.float32 else _F64
    vector = ir.VectorType(llvm, SIMD_LANES)
    value = b.load(b.bitcast(b.gep(array.data, [index]), vector.as_pointer()))
    value.align = 4
    return b.fpext(value, _VEC) if element == types.float32 else value


def _call(b: Any, name: str, result: Any, *args: Any) -> Any:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return b.call(cgutils.get_or_insert_function(b.module, kind, f"llvm.{name}.v{SIMD_LANES}f64"), args)


def _lane_sum(term: Any) -> Any:
    """Sum ``term(builder, lanes of a, lanes of c)`` over the vectors of two arrays at 0, 8, 16, ..."""

    def lanes(typingctx: Any, a: Any, c: Any, vectors: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            kinds = signature.args[:2]
            arrays = [
                context.make_array(kind)(context, b, array) for kind, array in zip(kinds, args, strict=False)
            ]
            total = cgutils.alloca_once_value(b, ir.Constant(_VEC, [0.0] * SIMD_LANES))
            with cgutils.for_range(b, args[2]) as loop:
                at = b.mul(loop.index, ir.Constant(_I64, SIMD_LANES))
                first, second = (
                    _load_lanes(b, array, kind.dtype, at) for kind, array in zip(kinds, arrays, strict=True)
                )
                b.store(b.fadd(b.load(total), term(b, first, second)), total)
            return _call(b, "vector.reduce.fadd", _F64, ir.Constant(_F64, -0.0), b.load(total))

        return types.float64(a, c, types.uint64), codegen

    return intrinsic(lanes)


_dot_lanes = _lane_sum(lambda b, first, second: b.fmul(first, second))
_sum_lanes = _lane_sum(lambda b, first, second: first)
_norm_lanes = _lane_sum(lambda b, first, second: _call(b, "fabs", _VEC, first))


@inner()
def dot(a, c, count):
    """Scalar product of ``a[:count]`` and ``c[:count]``, float32 or float64, contiguous."""
    vectors = uint64(count) // uint64(SIMD_LANES)
    total = _dot_lanes(a, c, vectors)
    for i in range(vectors * uint64(SIMD_LANES), uint64(count)):
        total += float64(a[i]) * float64(c[i])
    return total


@inner()
def add_up(a, count):
    """Sum of ``a[:count]``."""
    vectors = uint64(count) // uint64(SIMD_LANES)
    total = _sum_lanes(a, a, vectors)
    for i in range(vectors * uint64(SIMD_LANES), uint64(count)):
        total += float64(a[i])
    return total


@inner()
def norm(a, count):
    """L1 norm of ``a[:count]``."""
    vectors = uint64(count) // uint64(SIMD_LANES)
    total = _norm_lanes(a, a, vectors)
    for i in range(vectors * uint64(SIMD_LANES), uint64(count)):
        total += abs(float64(a[i]))
    return total


@entry()
def push_rows(board, *args):
    """Make the next push of a stripe."""
    return parallel_region(board, _push_part, args)


@inner()
def _push_part(me, team, counter, rows, start, uniform, slots, thetas, kind, table, scale, sums):
    """Round the next push of one thread's blocks of rows and add it to the ranks.

    `start` is what the run begins from, shape (0,) for `uniform`; `slots` and `thetas` are the multiples of
    remembered steps to subtract. `sums`, shape (blocks, 3), receives the dangling mass, the mass and the sum
    of p.
    """
    out = np.empty(ROW_BLOCK, np.float64)
    blocks = sums.shape[0]
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        begin = uint64(block) * uint64(ROW_BLOCK)
        end = min(begin + uint64(ROW_BLOCK), uint64(rows.p.size))
        count = end - begin
        p = rows.p[begin:end]
        r = rows.r[begin:end]
        degree = rows.degree[begin:end]
        stored = rows.pushed[begin:end]
        _first_push(kind, count, p, r, rows.push, start, uniform, rows.steps, slots, thetas, begin, out)
        for i in range(count):
            stored[i] = narrowed(stored, out[i] / divisor(degree[i]), scale)
        for i in range(count):
            out[i] = widened(stored[i], table) * divisor(degree[i])
        for i in range(count):
            p[i] += out[i]
        sums[block, 1] = add_up(out, count)
        sums[block, 2] = add_up(p, count)
        for i in range(count):
            out[i] = out[i] if dangles(degree[i]) else 0.0
        sums[block, 0] = add_up(out, count)


@inner()
def _first_push(kind, count, p, r, push, start, uniform, steps, slots, thetas, begin, out):
    """Write the next push of a block of rows to `out`; see _push_part."""
    if kind == START:
        for i in range(count):
            out[i] = uniform
        if start.size:
            given = start[begin : begin + count]
            for i in range(count):
                out[i] = given[i]
        for i in range(count):
            out[i] -= p[i]
    elif kind == RESTART:
        for i in range(count):
            out[i] = p[i] + r[i]
        for i in range(count):
            p[i] = 0.0
            r[i] = 0.0
    elif kind == RESIDUAL:
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


@entry()
def load(board, *args):
    """Bring a push to where rows gather."""
    return parallel_region(board, _load_part, args)


@inner()
def _load_part(me, team, counter, numbers, stride, row_begin, pushed):
    rows = uint64(pushed.size)
    to = uint64(row_begin)
    for row in range(rows * uint64(me) // uint64(team), rows * uint64(me + 1) // uint64(team)):
        numbers[uint64(stride) * (to + row)] = pushed[row]


@inner()
def update_block(
    begin, end, offset, rows, table, uniform, pushes, damping, base, spread, slot, live, sums, out
):
    """Add what was gathered to the residual, subtract what was pushed, and sum.

    `begin` and `end` are rows of the tile, `offset` its first row in the stripe. `sums`, shape (1 + 2 live,),
    receives the norm of the residual, then products of the remembered changes with this pass's change and
    with the residual.
    """
    count = end - begin
    r = rows.r[begin + offset : end + offset]
    degree = rows.degree[begin + offset : end + offset]
    stored = rows.pushed[begin + offset : end + offset]
    gathered = pushes[begin:end]
    for i in range(count):
        out[i] = widened(stored[i], table) * divisor(degree[i])
    if rows.teleport.size:
        teleport = rows.teleport[begin + offset : end + offset]
        for i in range(count):
            out[i] = damping * gathered[i] + (base * teleport[i] + spread) - out[i]
    else:
        constant = base * uniform + spread
        for i in range(count):
            out[i] = damping * gathered[i] + constant - out[i]
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
            step[i] = float32(widened(stored[i], table) * divisor(degree[i]) + out[i])


@inner()
def begin_sweeps(begin, end, offset, rows, proposals, damping, proposed):
    """Start the proposal of a tile's rows: the residual and what earlier tiles proposed to them."""
    count = end - begin
    r = rows.r[begin + offset : end + offset]
    earlier = proposals[begin:end]
    so_far = proposed[begin:end]
    for i in range(count):
        so_far[i] = float32(r[i] + damping * earlier[i])


@inner()
def end_sweeps(begin, end, first, offset, rows, reads, table, scale, total, slot, out):
    """Store the proposal of rows of a tile and the step it makes, and let later tiles read it."""
    count = end - begin
    degree = rows.degree[begin + offset : end + offset]
    push = rows.push[begin + offset : end + offset]
    proposal = total[begin:end]
    if slot >= 0:
        stored = rows.pushed[begin + offset : end + offset]
        step = rows.steps[slot, begin + offset : end + offset]
        for i in range(count):
            out[i] = widened(stored[i], table) * divisor(degree[i])
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
    """Largest magnitude per out-edge of ``values[offset + begin : offset + end]``."""
    most = 0.0
    for t in range(begin, end):
        i = t + offset
        most = max(most, abs(float64(values[i])) / divisor(degree[i]))
    return most
