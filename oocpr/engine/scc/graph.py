"""A graph in memory: all tiles decoded, and its rows in the order in which they are solved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import uint32, uint64

from oocpr.engine.cpu.scratch import Scratch
from oocpr.engine.scc.level_schedule import schedule_rows
from oocpr.errors import DamagedError
from oocpr.jit import entry
from oocpr.store.codec.layout import parse_tile
from oocpr.store.codec.tile_decoder import decode_columns, expand_segments
from oocpr.store.zarr_arrays import check_dangling, check_degrees
from oocpr.system import usable_cores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.engine.scc.level_schedule import LevelSchedule
    from oocpr.engine.tiles.source import RankedStore


@dataclass(frozen=True)
class SccGraph:
    """What runs on a graph have in common, whatever their damping and teleport vector.

    `degree` is the out-degrees, `bytes_read` the encoded bytes that came from the store.
    """

    schedule: LevelSchedule
    degree: NDArray[np.uint32]
    bytes_read: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.degree.nbytes + sum(array.nbytes for array in self.schedule)


def load_scc_graph(store: RankedStore, threads: int | None = None) -> SccGraph:
    """Read and decode a stored graph, with all usable cores for None, and find the order of its rows.

    Raises DamagedError when a tile's bytes are not what was written, or tiles and out-degrees contradict.
    """
    nodes, tile_rows = store.nodes, store.tile_rows
    tiles = len(tile_rows) - 1

    def decode(tile: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32], int]:
        buffer = np.empty(store.encoded.max_bytes, np.uint8)
        size = store.encoded.read_into(tile, buffer)
        packed = parse_tile(buffer[:size])
        owned = int(tile_rows[tile + 1] - tile_rows[tile])
        if packed.segments != owned + 1:
            raise DamagedError(f"tile {tile} has {packed.segments} segments where {owned + 1} belong.")
        csr, starts = Scratch().csr(packed, packed.edges)
        expand_segments(packed, csr.row_ptr, starts, csr.segments)
        decode_columns(packed, csr.row_ptr, starts, csr.columns)
        if int(csr.columns.max(initial=0)) >= max(nodes, 1):
            raise DamagedError(f"tile {tile} has column {csr.columns.max()} of {nodes} nodes.")
        lengths = np.zeros(owned + 1, np.uint32)
        _note_lengths(csr.row_ptr, csr.segments, packed.nonempty, lengths)
        return csr.columns, lengths, size

    with ThreadPoolExecutor(threads or usable_cores(), thread_name_prefix="oocpr-load") as pool:
        parts = list(pool.map(decode, range(tiles)))
    lengths = np.zeros(nodes + 1, np.int64)
    for tile, (_, part, _) in enumerate(parts):
        # The last number is of the row after those that the tile owns, which the next tile goes on with.
        first = int(tile_rows[tile])
        lengths[first : first + len(part)] += part
    if lengths[nodes]:
        raise DamagedError(f"{store.path}: the last tile has edges of a row behind the last one.")
    offsets = np.zeros(nodes + 1, np.uint32)
    np.cumsum(lengths[:nodes], out=offsets[1:])
    columns = parts[0][0] if tiles == 1 else np.concatenate([part[0] for part in parts])
    degree = store.out_degree(0, nodes)
    counted = np.zeros(nodes, np.uint32)
    _count(columns, counted)
    check_degrees(store.path, counted, degree)
    check_dangling(store.path, int((degree == 0).sum()), store.dangling)
    del counted
    return SccGraph(schedule_rows(offsets, columns), degree, sum(size for _, _, size in parts))


@entry()
def _count(columns, counted):  # type: ignore[no-untyped-def]
    for i in range(columns.size):
        counted[uint64(columns[i])] += uint32(1)


@entry()
def _note_lengths(positions, segments, nonempty, lengths):  # type: ignore[no-untyped-def]
    for k in range(uint64(nonempty)):
        lengths[segments[k]] = positions[k + uint64(1)] - positions[k]
