"""A stripe's rows between two sweeps on the CPU, by all threads of a team: publish, and load what is read."""

# Compiled functions carry no types: numba infers them.
# mypy: disallow-untyped-decorators=False, allow-untyped-defs=True
# mypy: allow-untyped-calls=True, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import uint64

from oocpr.engine.cpu.mailbox import by_all
from oocpr.engine.cpu.rows import BLOCK, publish_block
from oocpr.jit import entry, inner


@entry()
def publish(board, *args):
    """Publish all blocks of a stripe; see _publish."""
    return by_all(board, _publish, args)


@inner()
def _publish(me, team, counter, rows, start, uniform, slots, thetas, kind, pushed, table, scale, sums):  # noqa: ARG001
    """Publish the blocks of one thread."""
    out = np.empty(BLOCK, np.float64)
    blocks = sums.shape[0]
    for block in range(blocks * me // team, blocks * (me + 1) // team):
        publish_block(block, rows, start, uniform, slots, thetas, kind, pushed, table, scale, sums, out)


@entry()
def load(board, *args):
    """Bring a push to where rows gather; see _load."""
    return by_all(board, _load, args)


@inner()
def _load(me, team, counter, numbers, stride, row_begin, pushed):  # noqa: ARG001
    """Bring the part of one thread."""
    rows = uint64(pushed.size)
    to = uint64(row_begin)
    for row in range(rows * uint64(me) // uint64(team), rows * uint64(me + 1) // uint64(team)):
        numbers[uint64(stride) * (to + row)] = pushed[row]
