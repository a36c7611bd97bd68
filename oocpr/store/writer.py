"""Writing a graph store, tile by tile."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import zarr
from crc32c import crc32c
from numpy.typing import NDArray

from oocpr.errors import SetupError, UsageError
from oocpr.store.atomic import NewFolder, naming_failures, root_checksum
from oocpr.store.codec.mantissa_segments import join_segments
from oocpr.store.codec.tiles import decode_tile
from oocpr.store.codec.zarr_codecs import MantissaSegments, PackedInts
from oocpr.store.format import (
    ATTRIBUTES_KEY,
    CRC_BYTES,
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
from oocpr.store.integrity import content_identity
from oocpr.store.node_data import write_labels
from oocpr.store.zarr_arrays import (
    Appender,
    StoredArray,
    create_array,
    write_array,
    write_attributes,
    writing,
)

if TYPE_CHECKING:
    import os

    from oocpr.store.node_data import TextPiece


_ROWS_CHUNK = 1 << 18  # entries of a chunk of the arrays with one entry per row: 2 MiB of offsets in memory


class Chunk(NamedTuple):
    """A chunk that was written: its bytes without the checksum, and that."""

    size: int
    crc: int


class WrittenTile(NamedTuple):
    """A tile whose chunks are in the folder of a store: its edges, their columns, and weights if any."""

    edges: int
    columns: Chunk
    data: Chunk | None


def write_tile(
    folder: Path, tile: int, coded: NDArray[np.uint8], data: NDArray[np.uint8] | None
) -> tuple[Chunk, Chunk | None]:
    """Write a tile to the folder of a store that another process makes; see `GraphWriter.put_tile`.

    Raises SetupError if the folder is not there, and as GraphWriter if it cannot be written to.
    """
    if not folder.is_dir():
        raise SetupError(
            f"{folder} is not there.",
            "Put the store where all processes find it under the same path, such as a shared folder.",
        )
    with naming_failures(folder):
        for chunks in (INDICES, DATA) if data is not None else (INDICES,):
            # Not with parents: the folder is removed if the import fails, and must not come back.
            for path in ("in_edges", chunks, f"{chunks}/c"):
                (folder / path).mkdir(exist_ok=True)
        columns = _ChunkFolder(folder / INDICES / "c", made=True).write(tile, coded)
        weights = None if data is None else _ChunkFolder(folder / DATA / "c", made=True).write(tile, data)
        return columns, weights


class GraphWriter:
    """Writes a graph store under a temporary name; leaving it without `finish` removes what was written.

    A graph is weighted if its tiles come with weights; then all do, and `finish` is given `out_weight`.
    `overwrite`, `resumable`: as for `NewFolder`; tiles that another writer has left in the resumable folder
    can be taken over. `on_written`: called with ``{"tile", "bytes", "crc"}`` when a tile is written, with
    ``"data"``, bytes and checksum of its weights, if it has some; and with ``{"whole"}``, a checksum of the
    root's metadata, when all is written and the store has not got its name yet. Every method raises
    UsageError if nothing can be written at `path`, DoesNotFitError if the disk is full.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resumable: Path | None = None,
        on_written: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._new = NewFolder(path, overwrite=overwrite, marker=ATTRIBUTES_KEY, resumable=resumable)
        self._on_written = on_written
        self._tile_rows = [0]
        self._put: dict[int, tuple[Chunk, Chunk | None]] = {}
        self.edges = 0
        self._tile_sizes: set[int] = set()
        self._last_size = 0
        self._indices, self._data = (_ChunkFolder(self._new.temporary / of / "c") for of in (INDICES, DATA))
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

    def put_tile(self, tile: int, coded: NDArray[np.uint8], data: NDArray[np.uint8] | None = None) -> None:
        """Write a tile and its weights as `TileEncoder` and `encode_segments` make them; from any thread.

        The caller sees to it that weights are finite and neither below 0 nor -0.
        """
        with naming_failures(self._new.path):
            columns = self._indices.write(tile, coded)
            self._put[tile] = columns, None if data is None else self._data.write(tile, data)

    def enter_tile(self, size: int, edges: int, lengths: NDArray[np.integer[Any]]) -> None:
        """Append the next tile, which `put_tile` has written in `size` bytes, those of weights aside.

        `lengths`: edges of each owned row that lie in the tile, then those of the row behind them.
        """
        columns, data = self._put.pop(self.tiles)
        if self._on_written is not None:
            event: dict[str, Any] = {"tile": self.tiles, "bytes": size, "crc": columns.crc}
            if data is not None:
                event["data"] = list(data)
            with self._writing():
                self._on_written(event)
        self._count(size, edges, self._ends(lengths), data)

    def take_over(self, tile: WrittenTile, lengths: NDArray[np.integer[Any]]) -> None:
        """Append the next tile, which another process has written to the resumable folder; see `enter_tile`.

        Raises SetupError if it is not there.
        """
        for files, chunk in ((self._indices, tile.columns), (self._data, tile.data)):
            if chunk is not None and not files.holds(self.tiles, chunk):
                raise SetupError(
                    f"{files.path} lacks tile {self.tiles}, which another process has written.",
                    "Put the store where all processes find it under the same path, such as a shared folder.",
                )
        self._count(tile.columns.size, tile.edges, self._ends(lengths), tile.data)

    def copy_tile(
        self,
        coded: NDArray[np.uint8],
        edges: int,
        ends: NDArray[np.int64],
        data: NDArray[np.uint8] | None,
    ) -> None:
        """Append the next tile as another store has it.

        `ends`: where each owned row ends among all edges, int64, shape (owned rows,).
        """
        with self._writing():
            self.put_tile(self.tiles, coded, data)
        self._count(coded.size, edges, ends, self._put.pop(self.tiles)[1])

    def take_tile(
        self, size: int, checksum: int, data: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float64] | None] | None:
        """Append the next tile as it is in the resumable folder; returns its columns, lengths and weights.

        None if it is not there, or not what was written: `data` has size and checksum of its weights.
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

    def _ends(self, lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Where each row that the next tile owns ends among all edges."""
        ends = np.cumsum(lengths[:-1], dtype=np.int64)
        ends += self.edges
        return ends

    def _count(self, size: int, edges: int, ends: NDArray[np.int64], data: Chunk | None) -> None:
        """Count a tile of `size` encoded bytes, and its weights."""
        with self._writing():
            self._indptr.append(ends)
        if self.tiles:
            self._tile_sizes.add(self._last_size)
        self._last_size = edges
        self.edges += edges
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
        direction: str | None = None,
        publish: bool = True,
    ) -> Attributes:
        """Write what belongs to the rows, give the store its name and return its attributes.

        In the order of the rows: `out_degree` in pieces, uint32; `out_weight` in pieces, float64, None if the
        graph is not weighted; `node_ids` whole or in pieces, uint32 or int64, None if row v is node v;
        `labels` one by one, or in pieces of UTF-8 end to end with the lengths. Without `publish`, who made
        the resumable folder gives it its name. Raises UsageError if they are
        too many or too few, the tiles are not equal, or not all tiles have weights if `out_weight` is given
        and none if it is not.
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
            create_array(self._root, INDICES, "uint32", self.edges, tile_edges, PackedInts())
            if out_weight is not None:
                create_array(self._root, DATA, "float64", self.edges, tile_edges, MantissaSegments())
            self._append(TILE_ROWS, "int64", [np.array(self._tile_rows)], len(self._tile_rows))
            dangling = self._append(OUT_DEGREE, "uint32", out_degree, nodes)
            if out_weight is not None:
                dangling = self._append(OUT_WEIGHT, "float64", out_weight, nodes)
            if node_ids is not None:
                pieces = iter([node_ids] if isinstance(node_ids, np.ndarray) else node_ids)
                first = next(pieces, np.empty(0, np.uint32))
                self._append(NODE_IDS, first.dtype.name, itertools.chain([first], pieces), nodes)
            if labels is not None and (count := write_labels(self._root, labels)) != nodes:
                raise UsageError(f"{count} labels for {nodes} rows.", "Give every row one label.")
            attributes = Attributes(
                nodes=nodes,
                edges=self.edges,
                weighted=out_weight is not None,
                order=order,
                tile_edges=tile_edges,
                source=source,
                duplicates=duplicates,
                self_loops=self_loops,
                dangling=dangling,
                local_edges=local_edges,
                column_bytes=self._indices.total,
                max_tile_bytes=self._indices.max,
                data_bytes=self._data.total,
                max_data_bytes=self._data.max,
                duplicate_weights=duplicate_weights,
                direction=direction,
            )
            # The store is one from here on: until now its attributes say that it is unfinished.
            written = attributes.to_json()
            paths = [name for name in NODES if (self._new.temporary / name).is_dir()]
            written[IDENTITY_KEY] = content_identity(self._array, attributes, paths)
            write_attributes(self._root, ATTRIBUTES_KEY, written, NODES)
            if self._on_written is not None:
                self._on_written({"whole": root_checksum(self._new.temporary)})
        if publish:
            self._new.publish()
        return attributes

    def _append(self, name: str, dtype: str, pieces: Iterable[NDArray[Any]], size: int) -> int:
        """Write an array of `size` entries; returns how many are 0."""
        count, zeros = write_array(self._root, name, dtype, pieces, _ROWS_CHUNK)
        if count != size:
            raise UsageError(f"{count} entries of {name} where {size} belong.", "Give one for each row.")
        return zeros

    def _array(self, name: str) -> StoredArray:
        return StoredArray(self._root.store, name, str(self._new.path))

    def abort(self) -> None:
        """Remove what was written; does nothing once the store is finished."""
        self._new.discard()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with writing(self._new.path):
                yield
        except BaseException:
            self.abort()
            raise


class _ChunkFolder:
    """The folder with the chunks of one array; their number, their bytes, and the bytes of the largest."""

    def __init__(self, path: Path, *, made: bool = False) -> None:
        self.path = path
        self.count = self.total = self.max = 0
        self._made = made

    def write(self, number: int, coded: NDArray[np.uint8]) -> Chunk:
        """Write a chunk and its checksum behind it; from any thread."""
        if not self._made:
            self.path.mkdir(parents=True, exist_ok=True)
            self._made = True
        with (self.path / str(number)).open("wb", buffering=0) as file:
            checksum = crc32c(coded.data)
            for part in (coded.data, memoryview(checksum.to_bytes(CRC_BYTES, "little"))):
                while part:
                    part = part[file.write(part) :]
        return Chunk(coded.size, checksum)

    def read(self, number: int, chunk: Chunk) -> NDArray[np.uint8] | None:
        """Read a chunk that was written; None if the file does not hold it."""
        path = self.path / str(number)
        stored = np.fromfile(path, np.uint8) if path.is_file() else np.empty(0, np.uint8)
        coded = stored[:-CRC_BYTES]
        checksum = chunk.crc.to_bytes(CRC_BYTES, "little")
        sound = stored.size == chunk.size + CRC_BYTES and stored[chunk.size :].tobytes() == checksum
        return coded if sound and crc32c(coded.data) == chunk.crc else None

    def holds(self, number: int, chunk: Chunk) -> bool:
        """Whether a chunk of such a size is there."""
        path = self.path / str(number)
        return path.is_file() and path.stat().st_size == chunk.size + CRC_BYTES

    def add(self, size: int) -> None:
        """Count a chunk of `size` bytes."""
        self.count += 1
        self.total += size
        self.max = max(self.max, size)


def drop_all_but(folder: Path, needed: list[Path]) -> None:
    """Remove what a folder holds, some folders in it excepted."""
    for path in folder.iterdir():
        if path in needed:
            continue
        if any(other.is_relative_to(path) for other in needed):
            drop_all_but(path, needed)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
