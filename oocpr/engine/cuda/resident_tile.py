"""Tiles brought to a CUDA device from their encoded bytes, to be computed with more than once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.device import fetch
from oocpr.engine.cuda.papers.products import Matrix
from oocpr.engine.cuda.spmv import enough_hubs
from oocpr.engine.cuda.tile import check_columns, place_tile, place_weights, raise_found
from oocpr.errors import DamagedError, UsageError
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.mantissa_segments import parse_segments
from oocpr.store.codec.tile_decoder import decode_tile
from oocpr.store.format import REMEDY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.cuda.device import Device
    from oocpr.engine.cuda.diagonal_blocks import DiagonalBlocks
    from oocpr.engine.cuda.papers.products import Product as Baseline
    from oocpr.engine.cuda.tile import DeviceTile


@dataclass
class CudaTile:
    """A tile on the device.

    Parameters
    ----------
    there
        Its arrays.
    checked
        Whether its columns are known to be nodes.
    hubs
        Whether enough of them are among the first nodes for these to be kept near; known of checked tiles.
    matrix
        Its links decoded, for a kernel that takes them so.
    laid
        The same as such a kernel wants them, once it is known what is gathered.
    islands
        Links between neighbouring rows, once they are swept; of tiles whose columns are known.
    """

    there: DeviceTile
    checked: bool
    hubs: bool = False
    matrix: Matrix | None = None
    laid: Baseline | None = None
    islands: DiagonalBlocks | None = None


class Preparing:
    """What prepares the tiles of a run.

    Parameters
    ----------
    device
        Where to; current whenever tiles are prepared.
    kernel
        What delivers pushes to rows.
    faults
        uint32, shape (1,), of the device: receives what is wrong with a tile.
    """

    def __init__(self, device: Device, kernel: str, faults: Any) -> None:
        self._device, self._kernel, self._faults = device, kernel, faults

    def prepare(self, encoded: NDArray[np.uint8], nodes: int, decode: bool) -> CudaTile:
        """Prepare a tile; see Backend.

        Raises
        ------
        DamagedError
            When its bytes are not what was written.
        """
        tile = place_tile(self._device, parse_tile(encoded), self._faults)
        hubs = False
        if decode:
            hub_edges = check_columns(self._device, tile, nodes, self._faults)
            self.raise_faults(int(fetch(self._faults)[0]))
            hubs = enough_hubs(int(fetch(hub_edges)[0]), tile.edges)
        matrix = None if self._kernel == "balanced" else self._matrix(encoded, nodes)
        return CudaTile(tile, decode, hubs, matrix)

    def prepare_weighted(
        self,
        encoded: NDArray[np.uint8],
        weights: NDArray[np.uint8],
        factor: float,
        nodes: int,
        decode: bool,
    ) -> CudaTile:
        """Prepare a tile with weights; see Backend.

        Raises
        ------
        DamagedError
            When its bytes are not what was written.
        UsageError
            Where the kernel takes no weights.
        """
        if self._kernel != "balanced":
            raise UsageError(
                f"kernel {self._kernel!r} takes no weighted graphs.", "Use kernel balanced, or leave it out."
            )
        tile = self.prepare(encoded, nodes, decode)
        placed = place_weights(self._device, parse_segments(weights), tile.there.edges, factor)
        tile.there = replace(tile.there, weights=placed)
        return tile

    def raise_faults(self, faults: int) -> None:
        """Say what kernels found wrong, once.

        Raises
        ------
        DamagedError
            If something is.
        """
        if faults:
            self._faults[:] = 0
        raise_found(faults)

    def _matrix(self, encoded: NDArray[np.uint8], nodes: int) -> Matrix:
        """Links of a tile decoded, segments being the rows."""
        columns, lengths = decode_tile(encoded)
        if columns.max(initial=0) >= nodes:
            raise DamagedError(f"a tile has column {columns.max()} of {nodes} nodes.", REMEDY)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.uint32)
        return Matrix(self._device.xp.asarray(offsets), self._device.xp.asarray(columns), nodes)
