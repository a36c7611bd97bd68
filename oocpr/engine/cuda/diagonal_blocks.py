"""Sweeps inside diagonal blocks, block Jacobi on neighbouring rows: see kernels/diagonal_blocks.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.device import THREADS, download
from oocpr.engine.cuda.spmv import FORMATS
from oocpr.engine.cuda.tile import check_columns

if TYPE_CHECKING:
    from oocpr.engine.backend import SweepStep
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.gather_vector import DeviceGatherVector
    from oocpr.engine.cuda.tile import DeviceTile
    from oocpr.engine.cuda.vectors import RowState, TileRows

MAX_ROWS = THREADS - 1
"""Rows of a diagonal block; one number more stands for no row."""

SLICE = 32
SLICES = THREADS // SLICE


@dataclass(frozen=True)
class DiagonalBlocks:
    """The diagonal blocks of a tile; arrays of the device."""

    count: int
    before: Any  # uint32, shape (8 * count + 1,): rows of 32 words before each slice of 32 rows
    order: Any  # uint8, shape (256 * count,): numbers of a block's rows, most edges first
    selves: Any  # uint32, shape (8 * count,): bit l says whether row l of a slice has an edge to itself
    edges: Any  # uint32: four edges per word, one word per lane

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(int(a.nbytes) for a in (self.before, self.order, self.selves, self.edges))


def find_diagonal_blocks(
    device: Device, tile: DeviceTile, owned: int, first: int, nodes: int
) -> DiagonalBlocks:
    """Find the edges inside diagonal blocks; waits for the device once.

    The columns of the tile are known to be nodes; `owned` rows are its own, the first of them is `first`.
    """
    xp = device.xp
    kernels = device.load("diagonal_blocks.cu")
    count = -(-owned // MAX_ROWS)
    columns, edges_of = xp.empty(tile.edges, np.uint32), xp.empty(tile.nonempty, np.uint32)
    if tile.edges:
        check_columns(device, tile, nodes, xp.zeros(1, np.uint32), columns)
        grid = (-(-tile.blocks // SLICES),)
        kernels.get_function("list_begins")(
            grid, (THREADS,), (tile.begins, tile.ranks, np.uint32(tile.edges), edges_of)
        )
    words = xp.zeros(SLICES * count + 1, np.uint32)
    rows = (
        tile.filled, tile.filled_before, edges_of, np.uint32(tile.nonempty), np.uint32(tile.edges), columns,
        np.uint32(owned), np.uint32(first),
    )  # fmt: skip
    if count:
        kernels.get_function("measure_islands")((count,), (THREADS,), (*rows, words))
    before = xp.zeros_like(words)
    before[1:] = xp.cumsum(words[:-1], dtype=np.uint32)
    blocks = DiagonalBlocks(
        count,
        before,
        xp.empty(THREADS * count, np.uint8),
        xp.empty(SLICES * count, np.uint32),
        xp.empty(SLICE * int(download(before[-1:])[0]), np.uint32),
    )
    if count:
        arrays = (before, blocks.order, blocks.selves, blocks.edges)
        kernels.get_function("fill_islands")((count,), (THREADS,), (*rows, *arrays))
    return blocks


def sweep_diagonal_blocks(
    device: Device,
    blocks: DiagonalBlocks,
    start: Any,
    state: RowState,
    rows: TileRows,
    step: SweepStep,
    numbers: DeviceGatherVector,
    turns: int,
) -> None:
    """Sweep `turns` times inside each diagonal block and keep what its rows propose.

    `start`: float32, shape (rows of the tile,): what they have from outside.
    """
    if not blocks.count:
        return
    kernels = device.load("diagonal_blocks.cu", READS=FORMATS[state.spec.reads], PAIRED=int(numbers.paired))
    kernels.get_function("sweep_islands")(
        (blocks.count,),
        (THREADS,),
        (
            start, blocks.before, blocks.order, blocks.selves, blocks.edges, np.uint32(turns),
            np.uint64(rows.owned), np.uint64(rows.offset), np.uint64(state.spec.rows), state.stored,
            state.degree, np.float64(step.damping), np.float64(step.scale), np.int32(step.slot), state.steps,
            state.push, numbers.array, np.uint64(rows.first),
        ),
    )  # fmt: skip
