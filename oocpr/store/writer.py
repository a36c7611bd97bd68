"""Writing a graph store, tile by tile."""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import zarr
from crc32c import crc32c

from oocpr.errors import UsageError
from oocpr.store.atomic import NewFolder, naming_failures, root_checksum
from oocpr.store.codec.mantissa_segments import encode_segments, join_segments
from oocpr.store.codec.tile_encoder import TileEncoder, decode_tile
from oocpr.store.codec.zarr_codecs import MantissaSegments, PackedInts
from oocpr.store.content_hash import content_identity
from oocpr.store.format import (
    ATTRIBUTES_KEY,
    DATA,
    IDENTITY_KEY,
    INDICES,
    INDPTR,
    NODE_IDS,
    NODES,
    OUT_DEGREE,
    OUT_WEIGHT,
    TILE_ROWS,
    UNFINISHED_KEY,
    Attributes,
)
from oocpr.store.labels import write_labels
from oocpr.store.zarr_arrays import Appender, StoredArray, append_pieces, enter_written, write_attributes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from oocpr.store.labels import TextPiece


_ROWS_CHUNK = 1 << 18
"""Entries of a chunk of the arrays that have one for each row: 2 MiB of offsets in memory."""


class GraphWriter:
    """Writes a graph store under a temporary name; leaving it without finish removes what was written.

    A graph is weighted if its tiles come with weights; then all do, and `finish` is given `out_weight`.

    `overwrite`: whether a store that stands there is replaced; it stays until the new one is whole. `kept`:
    folder to write in, on the same disk, which stays if the store is not finished; the tiles that another
    writer has left there can be taken over. None for one of its own. `on_written`: called with
    ``{"tile", "bytes", "crc"}`` when a tile is written, with ``"data"``, bytes and checksum of its weights,
    if it has some, and ``{"whole"}``, a checksum of the root's metadata, when all is and before the store
    gets its name.
    Raises UsageError if something stands at `path`, or nothing can be written there; DoesNotFitError if the
    disk is full. Every method may raise it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        kept: Path | None = None,
        on_written: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._new = NewFolder(path, overwrite=overwrite, marker=ATTRIBUTES_KEY, kept=kept)
        self._on_written = on_written
        self._tile_rows = [0]
        self._put: dict[int, TileChunks] = {}
        self._edges = 0
        self._tile_sizes: set[int] = set()
        self._last_size = 0
        self._indices, self._data = (ChunkFolder(self._new.temporary / of / "c") for of in (INDICES, DATA))
        with self._writing():
            drop_all_but(self._new.temporary, [self._indices.path, self._data.path])
            self._root = zarr.create_group(str(self._new.temporary), zarr_format=3)
            self._root.attrs[ATTRIBUTES_KEY] = {UNFINISHED_KEY: True}
            self._root.create_group("in_edges")
            self._indptr = Appender(self._root, INDPTR, "int64", _ROWS_CHUNK, PackedInts())
            self._indptr.append(np.zeros(1, np.int64))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def add_tile(
        self,
        columns: NDArray[np.uint32],
        lengths: NDArray[np.integer[Any]],
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        """Append the next tile.

        `columns`: uint32, shape (k,): the senders of the tile's edges, strictly ascending in a row; k is the
        same for all tiles but the last. `lengths`: shape (owned rows + 1,): edges of each owned row that lie
        in the tile, then those of the row behind them. `weights`: float64, shape (k,): the weight of each
        edge, finite and not below 0; None if the graph is not weighted. Raises UsageError if the lengths
        do not add up to k, a row is not strictly ascending, or there are not k weights.
        """
        with self._writing():
            if weights is not None and weights.shape != columns.shape:
                raise UsageError(
                    f"{weights.size} weights for {columns.size} edges.", "Give every edge one weight."
                )
            coded = TileEncoder().encode(columns, lengths)
            self.put_tile(self.tiles, coded, None if weights is None else encode_segments(weights))
        self.enter_tile(coded.size, columns.size, lengths)

    def put_tile(self, tile: int, coded: NDArray[np.uint8], data: NDArray[np.uint8] | None = None) -> None:
        """Write the bytes of a tile; any tile at any time from any thread.

        `tile`: its number, from 0. `coded`: what `oocpr.store.codec.tile_encoder.TileEncoder` makes of it,
        uint8, shape (bytes,). `data`: what `oocpr.store.codec.mantissa_segments.encode_segments` makes of its
        weights, uint8, shape (bytes,); None if the graph is not weighted. The caller sees to it that
        weights are finite and neither below 0 nor -0.
        """
        with naming_failures(self._new.path):
            columns = self._indices.write(tile, coded)
            weights = None if data is None else self._data.write(tile, data)
        self._put[tile] = TileChunks(columns, weights)

    def enter_tile(self, size: int, edges: int, lengths: NDArray[np.integer[Any]]) -> None:
        """Append the next tile, whose bytes are written.

        `size`: bytes of it, without those of the weights.
        """
        put = self._put.pop(self.tiles)
        if self._on_written is not None:
            told: dict[str, Any] = {"tile": self.tiles, "bytes": size, "crc": put.columns.crc}
            if put.data is not None:
                told["data"] = list(put.data)
            with self._writing():
                self._on_written(told)
        self._count(size, edges, self._ends(lengths), put.data)

    def copy_tile(
        self,
        coded: NDArray[np.uint8],
        edges: int,
        ends: NDArray[np.int64],
        data: NDArray[np.uint8] | None = None,
    ) -> None:
        """Append the next tile, which another store has as well.

        `coded`: its bytes, uint8, shape (bytes,). `ends`: where each owned row ends among all edges, int64,
        shape (owned rows,). `data`: bytes of its weights, as for `put_tile`.
        """
        with self._writing():
            self.put_tile(self.tiles, coded, data)
        self._count(coded.size, edges, ends, self._put.pop(self.tiles).data)

    def take_tile(
        self, size: int, checksum: int, data: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float64] | None] | None:
        """Append the next tile as it lies in the kept folder.

        Returns columns, lengths, weights: as `add_tile` takes them; None if the tile is not there, or not
        what was written.
        """
        coded = self._indices.read(self.tiles, Chunk(size, checksum))
        if coded is None:
            return None
        columns, lengths = decode_tile(coded)
        weights, chunk = None, None
        if data is not None:
            chunk = Chunk(*data)
            coded_weights = self._data.read(self.tiles, chunk)
            if coded_weights is None:
                return None
            weights = join_segments(coded_weights, np.empty(columns.size))
        self._count(size, columns.size, self._ends(lengths), chunk)
        return columns, lengths, weights

    @property
    def tiles(self) -> int:
        """Tiles so far."""
        return len(self._tile_rows) - 1

    @property
    def edges(self) -> int:
        """Edges so far."""
        return self._edges

    def _ends(self, lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Where each row that the next tile owns ends among all edges."""
        ends = np.cumsum(lengths[:-1], dtype=np.int64)
        ends += self._edges
        return ends

    def _count(self, size: int, edges: int, ends: NDArray[np.int64], data: Chunk | None) -> None:
        """Take note of a tile of `size` encoded bytes, and of its weights."""
        with self._writing():
            self._indptr.append(ends)
        if self.tiles:
            self._tile_sizes.add(self._last_size)
        self._last_size = edges
        self._edges += edges
        self._tile_rows.append(self._tile_rows[-1] + len(ends))
        self._indices.add(size)
        if data is not None:
            self._data.add(data.size)

    def finish(
        self,
        *,
        source: str,
        order: str,
        tile_edges: int,
        duplicates: int,
        self_loops: int,
        local_edges: int,
        out_degree: Iterable[NDArray[np.integer[Any]]],
        node_ids: NDArray[np.integer[Any]] | Iterable[NDArray[np.integer[Any]]] | None = None,
        labels: Iterable[str] | Iterable[TextPiece] | None = None,
        out_weight: Iterable[NDArray[np.float64]] | None = None,
        duplicate_weights: str | None = None,
    ) -> Attributes:
        """Write what belongs to the rows and give the store its name.

        `out_degree`: Out-degrees of all rows in order, in pieces, uint32. `node_ids`: the source's id of each
        row, shape (nodes,), whole or in pieces, uint32 or int64; None if row v is node v. `labels`: the
        label of each row, one by one, or in pieces of UTF-8 end to end with the lengths; or None.
        `out_weight`: sums of the weights that leave each row, in order, in pieces, float64; None if the
        graph is not weighted. Returns the attributes that the store has. Raises UsageError if the pieces are
        too many or too few for the rows of the tiles, the tiles are not equal, or not all of them have
        weights where `out_weight` is given and none where it is not.
        """
        nodes = self._tile_rows[-1]
        with self._writing():
            if self._tile_sizes - {tile_edges} or self._last_size > tile_edges or len(self._tile_rows) == 1:
                raise UsageError(
                    f"The tiles do not all have {tile_edges} edges.",
                    "Cut the edges into tiles of equal size.",
                )
            if self._data.count != (0 if out_weight is None else self.tiles):
                raise UsageError(
                    f"{self._data.count} of {self.tiles} tiles have weights, and out_weight is "
                    f"{'missing' if out_weight is None else 'given'}.",
                    "Give weights with every tile and out_weight, or none.",
                )
            self._indptr.close()
            in_edges = self._root["in_edges"]
            in_edges.attrs.update(
                {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [nodes, nodes]}
            )
            enter_written(self._root, INDICES, "uint32", self._edges, tile_edges, PackedInts())
            if out_weight is not None:
                enter_written(self._root, DATA, "float64", self._edges, tile_edges, MantissaSegments())
            append = functools.partial(append_pieces, self._root, chunk=_ROWS_CHUNK)
            append(TILE_ROWS, "int64", [np.array(self._tile_rows)], len(self._tile_rows))
            dangling = append(OUT_DEGREE, "uint32", out_degree, nodes)
            if out_weight is not None:
                dangling = append(OUT_WEIGHT, "float64", out_weight, nodes)
            if node_ids is not None:
                pieces = iter([node_ids] if isinstance(node_ids, np.ndarray) else node_ids)
                first = next(pieces, np.empty(0, np.uint32))
                append(NODE_IDS, first.dtype.name, itertools.chain([first], pieces), nodes)
            if labels is not None and (count := write_labels(self._root, labels)) != nodes:
                raise UsageError(f"{count} labels for {nodes} rows.", "Give every row one label.")
            attributes = Attributes(
                nodes=nodes,
                edges=self._edges,
                weighted=out_weight is not None,
                order=order,
                tile_edges=tile_edges,
                source=source,
                duplicates=duplicates,
                self_loops=self_loops,
                dangling=dangling,
                local_edges=local_edges,
                column_bytes=self._indices.total,
                max_tile_bytes=self._indices.most,
                data_bytes=self._data.total,
                max_data_bytes=self._data.most,
                duplicate_weights=duplicate_weights,
            )
            # The store is one from here on: until now its attributes say that it is unfinished.
            written = attributes.to_json()
            paths = [name for name in NODES if name in self._root]
            written[IDENTITY_KEY] = content_identity(self._array, attributes, paths)
            write_attributes(self._root, ATTRIBUTES_KEY, written, NODES)
            if self._on_written is not None:
                self._on_written({"whole": root_checksum(self._new.temporary)})
        self._new.publish()
        return attributes

    def _array(self, name: str) -> StoredArray:
        return StoredArray(self._root.store, name, str(self._new.path))

    def abort(self) -> None:
        """Remove what was written; does nothing once the store is finished."""
        self._new.discard()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with naming_failures(self._new.path):
                yield
        except BaseException:
            self.abort()
            raise


_CRC_BYTES = 4


class Chunk(NamedTuple):
    """A chunk that was written: its bytes without the checksum, and that."""

    size: int
    crc: int


class TileChunks(NamedTuple):
    """The chunks of a tile: of its columns, and of its weights, if it has some."""

    columns: Chunk
    data: Chunk | None


class ChunkFolder:
    """The chunks of one array, and what they are in all.

    `path`: where they are; made with the first one. `total`, `most`: bytes of all these, and of the largest.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = self.total = self.most = 0
        self._made = False

    def write(self, number: int, coded: NDArray[np.uint8]) -> Chunk:
        """Write a chunk, uint8, shape (bytes,), and its checksum behind it; from any thread."""
        if not self._made:
            self.path.mkdir(parents=True, exist_ok=True)
            self._made = True
        with (self.path / str(number)).open("wb", buffering=0) as file:
            checksum = crc32c(coded.data)
            for part in (coded.data, memoryview(checksum.to_bytes(_CRC_BYTES, "little"))):
                while part:
                    part = part[file.write(part) :]
        return Chunk(coded.size, checksum)

    def read(self, number: int, chunk: Chunk) -> NDArray[np.uint8] | None:
        """Read a chunk that was written; None if the file does not hold it."""
        path = self.path / str(number)
        stored = np.fromfile(path, np.uint8) if path.is_file() else np.empty(0, np.uint8)
        coded = stored[:-_CRC_BYTES]
        told = chunk.crc.to_bytes(_CRC_BYTES, "little")
        if (
            coded.size != chunk.size
            or stored[chunk.size :].tobytes() != told
            or crc32c(coded.data) != chunk.crc
        ):
            return None
        return coded

    def add(self, size: int) -> None:
        """Count a chunk of so many bytes."""
        self.count += 1
        self.total += size
        self.most = max(self.most, size)


def drop_all_but(folder: Path, kept: list[Path]) -> None:
    """Remove what a folder holds, some folders in it excepted."""
    for path in folder.iterdir():
        if path in kept:
            continue
        if any(other.is_relative_to(path) for other in kept):
            drop_all_but(path, kept)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
