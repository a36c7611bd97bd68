"""Graphs made, ordered and encoded for the device benchmark; edges never leave the device but to be encoded.

An edge is one 64-bit number, receiver above, sender below, so that sorting gives the rows in order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np
from numpy.typing import NDArray

from oocpr.plan.device_memory import DEVICE_SLOTS, OVERLAP_SLOTS
from oocpr.plan.request import GraphStats
from oocpr.plan.residency import READERS, ring_slots
from oocpr.plan.tile_groups import GROUP_EDGES, group_bounds, layout_of
from oocpr.store.codec.tiles import encode_tile

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from plain_tiles import Encode

    from oocpr.engine.cuda.backend import CudaBackend
    from oocpr.engine.cuda.group import DeviceGroup
    from oocpr.engine.cuda.staging import CudaTileStream
    from oocpr.engine.trace import Trace
    from oocpr.plan.tile_groups import GroupLayout

STORED_EDGES = 1 << 20
"""Edges of the tiles of a store, as imports make them."""

_SOURCE = r"""
typedef unsigned long long u64;
__device__ u64 mix(u64 z) {  // splitmix64
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}
extern "C" __global__ void rmat(u64* edges, u64 count, int scale, u64 seed) {
  const u64 k = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= count) return;
  u64 src = 0, dst = 0, state = mix(seed << 40 ^ k);
  for (int bit = 0; bit < scale; ++bit) {
    state = mix(state);
    const double draw = double(state >> 11) * 0x1p-53;
    src = src << 1 | (draw >= .76);
    dst = dst << 1 | ((draw >= .57 && draw < .76) || draw >= .95);
  }
  edges[k] = dst << 32 | src;
}
extern "C" __global__ void web(u64* edges, u64 count, u64 nodes, u64 seed) {
  const u64 k = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= count) return;
  u64 state = mix(seed << 40 ^ k);
  const u64 dst = u64(double(k) / double(count) * double(nodes));
  u64 src = state % nodes;
  state = mix(state);
  if (state % 4) {  // three of four links are near: distance of mean 64 either way
    const double draw = double(mix(state) >> 11) * 0x1p-53;
    const u64 distance = 1 + u64(-64.0 * log(1.0 - draw));
    src = (dst + (state >> 32 & 1 ? distance : nodes - distance)) % nodes;
  }
  edges[k] = dst << 32 | src;
}
extern "C" __global__ void relabel(u64* edges, u64 count, const unsigned* label) {
  const u64 k = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k < count) edges[k] = u64(label[edges[k] >> 32]) << 32 | label[edges[k] & 0xFFFFFFFFu];
}
"""
_module = cp.RawModule(code=_SOURCE, options=("-std=c++17",))


def _launch(name: str, edges: Any, *arguments: Any) -> None:
    _module.get_function(name)((-(-edges.size // 256),), (256,), (edges, np.uint64(edges.size), *arguments))


@dataclass
class DeviceGraph:
    """In-links in compressed sparse rows on the device.

    Parameters
    ----------
    name
        What results call it.
    offsets
        int64, shape (nodes + 1,).
    columns
        uint32, shape (edges,).
    """

    name: str
    offsets: Any
    columns: Any

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.offsets.size - 1)

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(self.columns.size)


def rmat_edges(scale: int, seed: int = 1) -> tuple[int, Any]:
    """R-MAT of Graph500, edge factor 16, nodes shuffled, repeated edges merged."""
    edges = cp.empty(16 << scale, np.uint64)
    _launch("rmat", edges, np.int32(scale), np.uint64(seed))
    cp.random.seed(seed)
    _launch("relabel", edges, cp.random.permutation(1 << scale).astype(np.uint32))
    return 1 << scale, _distinct(edges)


def web_edges(scale: int, count: int, seed: int = 1) -> tuple[int, Any]:
    """Three of four links near in the order of nodes, the others anywhere."""
    edges = cp.empty(count, np.uint64)
    _launch("web", edges, np.uint64(1 << scale), np.uint64(seed))
    return 1 << scale, _distinct(edges)


def by_out_degree(nodes: int, edges: Any) -> Any:
    """The same graph, nodes renamed by falling out-degree; `edges` is used up."""
    degree = cp.bincount((edges & np.uint64(0xFFFFFFFF)).astype(np.uint32), minlength=nodes)
    label = cp.empty(nodes, np.uint32)
    label[cp.argsort(-degree)] = cp.arange(nodes, dtype=np.uint32)
    _launch("relabel", edges, label)
    edges.sort()
    return edges


def matrix_edges(path: Path) -> tuple[int, Any]:
    """Edges of a SciPy sparse matrix in a .npz file: each stored place (i, j) is a link from i to j."""
    from scipy.sparse import coo_array, load_npz

    matrix = coo_array(load_npz(path))
    edges = cp.asarray(matrix.col.astype(np.uint64) << np.uint64(32) | matrix.row.astype(np.uint64))
    return int(matrix.shape[0]), _distinct(edges)


def grown_edges(path: Path, copies: int, cross: float = 0.01, seed: int = 1) -> tuple[int, Any]:
    """A graph so many times beside itself, and `cross` random links for each of its own."""
    nodes, edges = matrix_edges(path)
    each = int(edges.size)
    grown = cp.empty(each * copies, np.uint64)
    for copy in range(copies):
        grown[copy * each : (copy + 1) * each] = edges + np.uint64(copy * nodes) * np.uint64(2**32 + 1)
    random = cp.random.RandomState(seed)
    ends = random.randint(0, nodes * copies, (2, int(cross * grown.size)), dtype=np.int64).astype(np.uint64)
    return nodes * copies, _distinct(cp.concatenate([grown, ends[0] << np.uint64(32) | ends[1]]))


def makers(scales: list[int], web: int, matrices: list[Path]) -> dict[str, Callable[[], tuple[int, Any]]]:
    """Graphs by name, made on call: R-MAT in two orders, the web-like graph, and files."""
    made: dict[str, Callable[[], tuple[int, Any]]] = {}
    for path in matrices:
        made[path.stem] = partial(matrix_edges, path)
    if web:
        made[f"web{web} natural"] = partial(web_edges, web, 302_000_000 >> (24 - web))
    for scale in scales:
        made[f"rmat{scale} by degree"] = partial(_rmat_by_degree, scale)
        made[f"rmat{scale} permuted"] = partial(rmat_edges, scale)
    return made


def add_options(parser: ArgumentParser, group_edges: int = GROUP_EDGES[0]) -> None:
    """Let the command line choose graphs, and how a device takes them."""
    parser.add_argument("--scales", type=int, nargs="*", default=[24, 26], help="of R-MAT")
    parser.add_argument("--web", type=int, default=24, metavar="SCALE", help="of the web-like graph; 0: none")
    parser.add_argument(
        "--matrix", type=Path, nargs="*", default=[], metavar="FILE.npz", help="graphs, SciPy sparse matrices"
    )
    add_sizes(parser, group_edges)


def add_sizes(parser: ArgumentParser, group_edges: int) -> None:
    """Let the command line choose the sizes of tiles and of groups."""
    parser.add_argument("--tile-edges", type=int, default=STORED_EDGES, help="of tiles, as a store has them")
    parser.add_argument(
        "--group-edges",
        type=int,
        default=group_edges,
        help="of the groups of tiles that a device takes, at most",
    )


def rows_of(name: str, nodes: int, edges: Any) -> DeviceGraph:
    """Compressed rows of sorted edges."""
    begins = cp.arange(nodes + 1, dtype=np.uint64) << np.uint64(32)
    offsets = cp.searchsorted(edges, begins).astype(np.int64)
    return DeviceGraph(name, offsets, edges.astype(np.uint32))


def _rmat_by_degree(scale: int) -> tuple[int, Any]:
    nodes, edges = rmat_edges(scale)
    return nodes, by_out_degree(nodes, edges)


def _distinct(edges: Any) -> Any:
    edges.sort()
    return edges[cp.concatenate([cp.ones(1, bool), edges[1:] != edges[:-1]])]


def encoded_tiles(
    graph: DeviceGraph, tile_edges: int, threads: int, encode_one: Encode = encode_tile
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Tiles as a store has them, or coded in another way, and their first owned rows."""
    offsets, columns = cp.asnumpy(graph.offsets), cp.asnumpy(graph.columns)
    begins = np.arange(0, graph.edges, tile_edges)
    ends = np.append(begins[1:], graph.edges)
    owners = np.searchsorted(offsets, begins, side="right") - 1
    owners[0] = 0
    tile_rows = np.append(owners, graph.nodes).astype(np.int64)
    # The row behind the last one has no edges.
    closed = np.append(offsets, graph.edges)

    def encode(t: int) -> bytes:
        lo, hi = int(begins[t]), int(ends[t])
        rows = closed[tile_rows[t] : tile_rows[t + 1] + 2]
        return bytes(encode_one(columns[lo:hi], np.diff(np.clip(rows, lo, hi))))

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(encode, range(len(begins)))), tile_rows


def local_share(graph: DeviceGraph, tile_edges: int = STORED_EDGES) -> float:
    """Share of the edges that begin and end inside a tile, for tiles as a store has them."""
    first_edges = cp.arange(0, graph.edges, tile_edges)
    first_rows = cp.searchsorted(graph.offsets, first_edges, side="right") - 1
    bounds = [*first_rows.tolist(), graph.nodes]
    inside = 0
    for t, (first, last) in enumerate(pairwise(bounds)):
        columns = graph.columns[t * tile_edges : (t + 1) * tile_edges]
        inside += int(((columns >= first) & (columns < last)).sum())
    return inside / graph.edges


@dataclass
class Coded:
    """Encoded tiles in memory; a `TileBytes`."""

    tiles: list[bytes]

    @property
    def max_bytes(self) -> int:
        """See TileBytes."""
        return max(len(tile) for tile in self.tiles)

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:  # noqa: ARG002
        """See TileBytes."""
        coded = self.tiles[tile]
        out[: len(coded)] = np.frombuffer(coded, np.uint8)
        return len(coded)


class CodedGraph:
    """A graph in encoded tiles as a store has them, and what a plan has to know of it."""

    def __init__(
        self, graph: DeviceGraph, tile_edges: int, threads: int, encode_one: Encode = encode_tile
    ) -> None:
        coded, self.tile_rows = encoded_tiles(graph, tile_edges, threads, encode_one)
        self.source = Coded(coded)
        self.sizes = np.array([len(tile) for tile in coded])
        self.stats = GraphStats(
            nodes=graph.nodes,
            edges=graph.edges,
            tiles=len(coded),
            tile_edges=tile_edges,
            column_bytes=int(self.sizes.sum()),
            max_tile_bytes=int(self.sizes.max()),
            max_tile_rows=int(np.diff(self.tile_rows).max()),
            local_share=local_share(graph, tile_edges),
        )

    def layout(self, group_edges: int, stripes: tuple[tuple[int, int], ...] | None = None) -> GroupLayout:
        """Groups of at most so many edges, of each stripe; of the whole graph if there are none."""
        bounds, _ = group_bounds(stripes or ((0, self.stats.tiles),), self.stats.tile_edges, group_edges)
        return layout_of(self.stats, self.tile_rows, self.sizes, bounds)

    def open_stream(
        self, backend: CudaBackend, layout: GroupLayout, *, stays: bool, trace: Trace | None = None
    ) -> CudaTileStream:
        """Open a stream of all groups: all of them stay on the device, or all in pinned memory."""
        groups = range(len(layout.bounds) - 1)
        every, none = frozenset(groups), frozenset[int]()
        return backend.open_stream(
            self.source,
            groups,
            self.stats.nodes,
            layout=layout,
            on_device=every if stays else none,
            in_host=none if stays else every,
            slots=DEVICE_SLOTS + OVERLAP_SLOTS,
            readers=READERS,
            buffers=ring_slots(READERS),
            factor=None,
            trace=trace,
        )

    def put_on_device(
        self, backend: CudaBackend, layout: GroupLayout
    ) -> tuple[CudaTileStream, list[DeviceGroup]]:
        """Put all groups on the device, where they stay until their stream is closed; checked.

        Of the host they take no memory any more.
        """
        stream, found = self.open_stream(backend, layout, stays=True), []
        stream.run(lambda _, group: found.append(group))
        self.source.tiles.clear()
        return stream, found


def room_bytes(layout: GroupLayout, groups: list[DeviceGroup]) -> int:
    """Bytes that groups take of a device where they stay."""
    return int(layout.room.sum()) + sum(group.arrays.nbytes for group in groups)
