"""Sweeps inside islands of neighbouring rows, see kernels/diagonal_blocks.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.device import download
from oocpr.engine.cuda.spmv import FORMATS
from oocpr.engine.cuda.tile import check_columns

if TYPE_CHECKING:
    from oocpr.engine.backend import SweepStep
    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.gather_vector import DeviceGatherVector
    from oocpr.engine.cuda.tile import DeviceTile
    from oocpr.engine.cuda.vectors import RowState, TileRows

THREADS = 256
MOST_ROWS = THREADS - 1
"""Rows of an island; one number more stands for no row."""

SLICE = 32
SLICES = THREADS // SLICE


@dataclass(frozen=True)
class DiagonalBlocks:
    """The islands of a tile; arrays of the device."""

    count: int  # how many there are
    before: Any  # uint32, shape (8 * count + 1,): rows of 32 words before each slice of 32 rows
    order: Any  # uint8, shape (256 * count,): numbers of an island's rows, those with the most links first
    selves: Any  # uint32, shape (8 * count,): bit l says whether row l of a slice links to itself
    links: Any  # uint32: four links a word, one word a lane

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(int(a.nbytes) for a in (self.before, self.order, self.selves, self.links))


def find_diagonal_blocks(
    device: Device, tile: DeviceTile, owned: int, first: int, nodes: int
) -> DiagonalBlocks:
    """Find the links inside islands; waits for the device once.

    `tile`: a tile whose columns are known to be nodes.
    `owned`, `first`: rows of the tile, and the first of them in the graph.
    """
    xp = device.xp
    kernels = device.load("diagonal_blocks.cu")
    count = -(-owned // MOST_ROWS)
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
    islands = DiagonalBlocks(
        count,
        before,
        xp.empty(THREADS * count, np.uint8),
        xp.empty(SLICES * count, np.uint32),
        xp.empty(SLICE * int(download(before[-1:])[0]), np.uint32),
    )
    if count:
        arrays = (before, islands.order, islands.selves, islands.links)
        kernels.get_function("fill_islands")((count,), (THREADS,), (*rows, *arrays))
    return islands


def sweep_diagonal_blocks(
    device: Device,
    islands: DiagonalBlocks,
    start: Any,
    state: RowState,
    rows: TileRows,
    step: SweepStep,
    numbers: DeviceGatherVector,
    turns: int,
) -> None:
    """Sweep `turns` times inside each island and keep what its rows propose.

    `start`: float32, shape (rows of the tile,): what they have from outside.
    """
    if not islands.count:
        return
    kernels = device.load("diagonal_blocks.cu", READS=FORMATS[state.spec.reads], PAIRED=int(numbers.paired))
    kernels.get_function("sweep_islands")(
        (islands.count,),
        (THREADS,),
        (
            start, islands.before, islands.order, islands.selves, islands.links, np.uint32(turns),
            np.uint64(rows.owned), np.uint64(rows.offset), np.uint64(state.spec.rows), state.stored,
            state.degree, np.float64(step.damping), np.float64(step.scale), np.int32(step.slot), state.steps,
            state.push, numbers.array, np.uint64(rows.first),
        ),
    )  # fmt: skip
