"""Tiles of a stored graph as a run reads them: with their weights behind them, in units that suit the reads.

A run computes with weights times a power of two, so that the largest sum of weights that leaves a node lies
in (1/2, 1]. That is exact and cancels, and no number of a run then depends on the unit of the given weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from oocpr.errors import UsageError
from oocpr.store.direct_io import PAGE
from oocpr.system import spans

if TYPE_CHECKING:
    from oocpr.engine.tiles.stream import TileBytes


class RankedStore(Protocol):
    """What a run needs of a stored graph, whatever its tiles are."""

    @property
    def identity(self) -> str:
        """What identifies the graph."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def edges(self) -> int:
        """Number of edges."""

    @property
    def dangling(self) -> int:
        """Number of nodes without out-edges, as the store says."""

    @property
    def tile_rows(self) -> NDArray[np.int64]:
        """First owned row of each tile, and the number of nodes."""

    @property
    def encoded(self) -> TileBytes:
        """Encoded tiles."""

    @property
    def weights(self) -> TileBytes | None:
        """Encoded weights of the tiles; None if the graph is not weighted."""

    def out_degree(self, lo: int, hi: int) -> NDArray[np.uint32]:
        """Out-degrees of the nodes lo .. hi - 1."""

    def out_weight(self, lo: int, hi: int) -> NDArray[np.float64]:
        """Weights that leave the nodes lo .. hi - 1."""


_CHUNK = 1 << 20

_FRAME = 16
"""Bytes before a tile with weights: how many those of the columns are, and of what both begin at a
multiple."""


def tiles_of(store: RankedStore) -> TileBytes:
    """Where a run reads the tiles of a graph."""
    return store.encoded if store.weights is None else WeightedTiles(store.encoded, store.weights)


class WeightedTiles:
    """Encoded tiles with their weights behind them; a `TileBytes`."""

    def __init__(self, columns: TileBytes, weights: TileBytes) -> None:
        self._columns = columns
        self._weights = weights
        self.max_bytes = _behind(columns.max_bytes, PAGE) + weights.max_bytes

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        """Read and check both; returns their number of bytes with the header."""
        step = PAGE if direct else _FRAME
        size = self._columns.read_into(tile, out[step:], direct=direct)
        out[:_FRAME].view(np.uint64)[:] = size, step
        begin = _behind(size, step)
        return begin + self._weights.read_into(tile, out[begin:], direct=direct)


ReadTiles = Callable[[range, NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""Reads tiles of at most so many bytes, each to where it begins in a buffer; returns their sizes. They begin
at multiples of eight, and what is before the next one may be written to."""


@runtime_checkable
class RunSource(Protocol):
    """A `TileBytes` that reads several tiles at once."""

    def read_run(
        self, tiles: range, out: NDArray[np.uint8], begins: NDArray[np.int64], limits: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """See ReadTiles."""


def run_reader(source: TileBytes, *, direct: bool) -> ReadTiles:
    """How several tiles of a source are read: at once, or one by one."""
    if isinstance(source, RunSource) and not direct:
        return source.read_run

    def read(
        tiles: range, out: NDArray[np.uint8], begins: NDArray[np.int64], limits: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        places = zip(tiles, begins.tolist(), limits.tolist(), strict=True)
        return np.array(
            [source.read_into(tile, out[at : at + most], direct=direct) for tile, at, most in places]
        )

    return read


def split_tile(encoded: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Part the bytes of a tile with weights into those of its columns and of its weights."""
    size, step = encoded[:_FRAME].view(np.uint64).tolist()
    return encoded[step : step + size], encoded[_behind(size, step) :]


def _behind(size: int, step: int) -> int:
    """Where weights begin behind so many bytes of columns."""
    return step + -(-size // step) * step


MAX_OCTAVES = {"float64": 900, "float32": 100, "bits16": 100, "bits8": 20}
"""Powers of two between the smallest and the largest sum of weights that numbers per unit of weight may span:
a half is left to the ranks themselves, of ``bits8`` a fifth."""


class WeightScale(NamedTuple):
    """A power of two that a run multiplies weights by, and the least out-weight above zero, so scaled."""

    factor: float
    least: float


def weight_scale_of(store: RankedStore, reads: str) -> WeightScale | None:
    """Choose the scale of a graph's weights; None for a graph without weights.

    Raises UsageError if a number per unit of weight spans more than the reads can hold.
    """
    if store.weights is None:
        return None
    most, least = 0.0, math.inf
    for piece in spans(store.nodes, _CHUNK):
        sums = store.out_weight(*piece)
        sums = sums[sums > 0]
        if sums.size:
            most, least = max(most, float(sums.max())), min(least, float(sums.min()))
    if most == 0.0:
        return WeightScale(1.0, 1.0)
    octaves = math.frexp(most)[1] - math.frexp(least)[1]
    if octaves > MAX_OCTAVES[reads]:
        wider = [name for name, room in MAX_OCTAVES.items() if octaves <= room]
        raise UsageError(
            f"the weights that leave a node sum to {least:.3g} and to {most:.3g}: too far apart for reads "
            f"{reads}.",
            f"Use reads {' or '.join(wider)}." if wider else "Leave out edges of next to no weight.",
        )
    fraction, exponent = math.frexp(most)
    # 2**1074 is no number: weights that small are brought nearer to one, not to it.
    factor = math.ldexp(1.0, min(1023, (fraction == 0.5) - exponent))
    return WeightScale(factor, least * factor)
