"""Sweeps inside the diagonal blocks of a group, whose edges are found once and kept: diagonal_blocks.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.device import THREADS, download, to_device
from oocpr.engine.cuda.spmv import READ_STRUCTS

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.vectors import DeviceGatherVector, GroupRows, RowState

SLICE_LANES = 32
SLICES = THREADS // SLICE_LANES


@dataclass(frozen=True)
class DiagonalBlocks:
    """The diagonal blocks of a group, block Jacobi on neighbouring rows of a tile; arrays of the device."""

    count: int
    before: Any  # uint32, shape (8 * count + 1,): rows of 32 words before each slice of 32 rows
    order: Any  # uint8, shape (256 * count,): numbers of a block's rows, most edges first
    selves: Any  # uint32, shape (8 * count,): bit l says whether row l of a slice has an edge to itself
    edges: Any  # uint32: four edges per word, one word per lane


def find_diagonal_blocks(device: Device, there: DeviceGroup, first: int, nodes: int) -> DiagonalBlocks:
    """Find the edges inside diagonal blocks; waits for the device once.

    The columns of the group are known to be nodes; the first of its rows is `first`.
    """
    xp, sizes, arrays = device.xp, there.sizes, there.arrays
    kernels = device.load("diagonal_blocks.cu")
    count = sizes.diagonal_blocks
    columns, edges_of = xp.empty(max(1, sizes.edges), np.uint32), xp.empty(max(1, sizes.nonempty), np.uint32)
    faults = xp.zeros(1, np.uint32)
    there.decode_columns(device, nodes, faults, columns)
    there.list_begins(device, faults, edges_of)
    words = xp.zeros(SLICES * count + 1, np.uint32)
    rows = (
        *there.table, arrays.filled, arrays.filled_before, edges_of, np.uint32(sizes.nonempty),
        np.uint32(sizes.edges), columns, np.uint32(first),
    )  # fmt: skip
    if count:
        kernels.get_function("measure_diagonal_blocks")((count,), (THREADS,), (*rows, words))
    # CuPy's own sums would have it load CUDA's compiler.
    here = download(words)
    before = np.zeros_like(here)
    np.cumsum(here[:-1], out=before[1:])
    blocks = DiagonalBlocks(
        count,
        to_device(device, before),
        xp.empty(THREADS * count, np.uint8),
        xp.empty(SLICES * count, np.uint32),
        xp.empty(SLICE_LANES * int(before[-1]), np.uint32),
    )
    if count:
        found = (blocks.before, blocks.order, blocks.selves, blocks.edges)
        kernels.get_function("fill_diagonal_blocks")((count,), (THREADS,), (*rows, *found))
    return blocks


def sweep_diagonal_blocks(
    device: Device,
    there: DeviceGroup,
    blocks: DiagonalBlocks,
    start: Any,
    state: RowState,
    rows: GroupRows,
    numbers: DeviceGatherVector,
    turns: int,
) -> None:
    """Sweep `turns` times inside each diagonal block of a group and keep what its rows propose.

    `start`: float32, shape (rows of the group,): what they have from outside.
    """
    if not blocks.count:
        return
    reads = READ_STRUCTS[state.spec.reads]
    kernels = device.load("diagonal_blocks.cu", READS=reads, PAIRED=int(numbers.paired))
    kernels.get_function("sweep_diagonal_blocks")(
        (blocks.count,),
        (THREADS,),
        (
            *there.table, start, blocks.before, blocks.order, blocks.selves, blocks.edges, np.uint32(turns),
            np.uint64(rows.offset), np.uint64(state.spec.rows), state.stored, state.degree, state.step.there,
            state.steps, state.push, numbers.array, np.uint64(rows.first),
        ),
    )  # fmt: skip
