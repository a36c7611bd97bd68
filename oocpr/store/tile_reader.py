"""Encoded bytes of a tile and of its weights, straight from the store into a caller's buffer."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from zarr.storage import LocalStore

from oocpr.errors import DamagedError, ReplacedError, UsageError
from oocpr.store.checked_files import SUPPORTED, read_files
from oocpr.store.codec.layout import FLAG_RUNS, KIND_TILE, kind_of, sizes_of
from oocpr.store.codec.mantissa_segments import (
    are_weights,
    encode_segments,
    join_segments,
    max_weight_bytes,
    parse_segments,
)
from oocpr.store.codec.tiles import encode_tile
from oocpr.store.direct_io import open_file, read_file, takes_direct_reads
from oocpr.store.format import CODEC_NAME, CRC_BYTES, SEGMENTS_NAME
from oocpr.store.zarr_arrays import check_file, not_permitted, read_key

if TYPE_CHECKING:
    from oocpr.store.format import Attributes
    from oocpr.store.zarr_arrays import StoredArray


class _EncodedChunks:
    """Chunks of an array of the edges, one per tile; any number of threads may read at once."""

    max_bytes: int

    def __init__(self, array: StoredArray, attributes: Attributes, codec: str) -> None:
        self._array = array
        self._edges = attributes.edges
        self._tile_edges = attributes.tile_edges
        # Files are read past Zarr, into the caller's buffer at once.
        self._folder = array.store.root if isinstance(array.store, LocalStore) else None
        # Keys of chunks end with their numbers; to make one takes Zarr a few microseconds.
        self._path = f"{self._folder}/{array.key(0)}".removesuffix("0")
        self._own = array.codecs == [codec, "crc32c"] and array.chunk == attributes.tile_edges
        # A tile that is read again has to be the one that was read first.
        self._seen: dict[int, int] = {}

    def _span(self, tile: int) -> tuple[int, int]:
        """First edge of a tile, and the one behind its last."""
        lo = tile * self._tile_edges
        return lo, min(self._edges, lo + self._tile_edges)

    def sizes(self) -> NDArray[np.int64] | None:
        """Bytes of each tile as stored, int64; None if only reading them would tell."""
        if not self._own or self._folder is None:
            return None
        # A graph without edges has a tile, too.
        tiles = range(max(1, -(-self._edges // self._tile_edges)))
        try:
            # A path object for each would take ten times as long.
            return np.array([os.stat(self._file(tile)).st_size for tile in tiles])  # noqa: PTH116
        except FileNotFoundError:
            # Whoever reads it says which one is missing.
            return None

    def takes_direct_reads(self) -> bool:
        """Whether `read_into` can read past the system's page cache."""
        return self._own and self._folder is not None and takes_direct_reads(self._file(0))

    def _read_chunk(self, tile: int, out: NDArray[np.uint8], direct: bool) -> int:
        """Read the bytes of a chunk without the checksum that they are compared with; returns how many."""
        size, stored = self._read_file(tile, out, direct) if self._folder else self._read_key(tile, out)
        checksum = int.from_bytes(stored, "little")
        if crc32c(out[:size].data) != checksum:
            raise self._damaged(tile, "has another checksum than was written")
        self._check_seen(tile, checksum)
        return size

    def _check_seen(self, tile: int, checksum: int) -> None:
        if self._seen.setdefault(tile, checksum) != checksum:
            raise ReplacedError(
                f"{self._array.origin} was replaced while it was in use: tile {tile} is another one."
            )

    def _file(self, tile: int) -> str:
        return f"{self._path}{tile}"

    def _read_file(self, tile: int, out: NDArray[np.uint8], direct: bool) -> tuple[int, bytes]:
        try:
            descriptor = open_file(self._file(tile), direct=direct)
        except FileNotFoundError:
            raise self._damaged(tile, "is missing") from None
        except PermissionError as error:
            raise not_permitted(self._array.origin, error) from error
        except OSError as error:
            raise self._damaged(tile, f"cannot be read: {error.strerror}") from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise self._damaged(tile, "is no file")
            size = self._checked_size(tile, found.st_size, out)
            done, stored = read_file(descriptor, out[:size], CRC_BYTES, direct=direct)
        finally:
            os.close(descriptor)
        if done < size + CRC_BYTES:
            raise self._damaged(tile, f"ends after {done} bytes")
        return size, stored

    def _read_key(self, tile: int, out: NDArray[np.uint8]) -> tuple[int, bytes]:
        data = read_key(self._array.store, self._array.key(tile))
        if data is None:
            raise self._damaged(tile, "is missing")
        size = self._checked_size(tile, len(data), out)
        out[:size] = np.frombuffer(data, np.uint8, size)
        return size, data[size:]

    def _checked_size(self, tile: int, stored: int, out: NDArray[np.uint8]) -> int:
        size = stored - CRC_BYTES
        if not 0 <= size <= self.max_bytes:
            raise self._damaged(tile, f"has {stored} bytes")
        if size > out.size:
            # Who knew its size gave room for that.
            raise ReplacedError(
                f"{self._array.origin} was replaced while it was in use: tile {tile} has {size} bytes and "
                f"had at most {out.size}."
            )
        return size

    def _damaged(self, tile: int, what: str) -> DamagedError:
        return self._array.damaged(f"tile {tile} ({self._array.key(tile)}) {what}")


class EncodedTiles(_EncodedChunks):
    """The tiles of a store, as bytes that a decoder takes, in buffers of `max_bytes`."""

    def __init__(
        self,
        indices: StoredArray,
        attributes: Attributes,
        tile_rows: NDArray[np.int64],
        indptr: Callable[[int, int], NDArray[np.int64]],
    ) -> None:
        super().__init__(indices, attributes, CODEC_NAME)
        self._tile_rows = tile_rows
        self._indptr = indptr
        self._own = self._own and self._knows_rows()
        # Verbatim columns, lengths of at most 33 bits with their directory, header and padding.
        rows = int(np.diff(tile_rows).max()) + 1
        edges = min(self._tile_edges, max(1, self._edges))
        bound = 4 * edges + edges // 16 + 5 * rows + 1024
        if attributes.max_tile_bytes > bound:
            raise DamagedError(
                f"{indices.origin}: attribute 'max_tile_bytes' is {attributes.max_tile_bytes}, and no such "
                f"tile has more than {bound}."
            )
        self.max_bytes = attributes.max_tile_bytes if self._own else bound

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        """Read the encoded bytes of a tile, without checksum, into `out`; returns how many there are.

        `direct`: past the system's page cache, if `takes_direct_reads`; the address of `out` is a multiple of
        `oocpr.store.direct_io.PAGE` then. Raises DamagedError if the tile is missing or not what was written;
        UsageError if the file system refuses direct reads.
        """
        if not self._own:
            return self._encode(tile, out)
        size = self._read_chunk(tile, out, direct)
        self._check(tile, out[:size])
        return size

    def read_run(
        self, tiles: range, out: NDArray[np.uint8], begins: NDArray[np.int64], limits: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Read tiles of at most so many bytes as `read_into` does, each to where it begins in `out`.

        They begin at multiples of eight; what is before the next one may be written to. Returns their sizes.
        """
        found = np.empty(0, np.int64)
        if SUPPORTED and self._own and self._folder is not None:
            found, checksums = read_files([self._file(tile) for tile in tiles], out, begins, limits)
            read = zip(tiles, begins.tolist(), found.tolist(), checksums.tolist(), strict=False)
            for tile, at, size, checksum in read:
                self._check_seen(tile, checksum)
                self._check(tile, out[at : at + size])
            if found.size == begins.size:
                return found
        # What is wrong with a file is found as it is read alone.
        rest = slice(found.size, None)
        places = zip(tiles[rest], begins[rest].tolist(), limits[rest].tolist(), strict=True)
        return np.append(found, [self.read_into(tile, out[at : at + most]) for tile, at, most in places])

    def _check(self, tile: int, encoded: NDArray[np.uint8]) -> None:
        """Raise DamagedError for a tile of another kind or of other sizes than belong where it is."""
        if _made_without_rows(encoded):
            raise self._damaged(tile, "does not know the rows of its columns")
        lo, hi = self._span(tile)
        segments = int(self._tile_rows[tile + 1] - self._tile_rows[tile]) + 1
        found = sizes_of(encoded)
        if found != (hi - lo, segments):
            raise self._damaged(
                tile, f"has {found[0]} edges in {found[1]} segments where {hi - lo} in {segments} belong"
            )

    def _knows_rows(self) -> bool:
        # Zarr writes chunks of the same codec, but knows no rows; then the first one tells.
        key = self._array.key(0)
        if not check_file(self._array.store, key, 1 << 62, self._array.origin):
            return True
        start = read_key(self._array.store, key, size=8)
        return start is None or not _made_without_rows(np.frombuffer(start, np.uint8))

    def _encode(self, tile: int, out: NDArray[np.uint8]) -> int:
        lo, hi = self._span(tile)
        first, last = int(self._tile_rows[tile]), int(self._tile_rows[tile + 1])
        # The row offsets of the owned rows and of the tail, cut to the tile.
        offsets = np.append(self._indptr(first, last + 1), hi).clip(lo, hi)
        columns = self._array.read(lo, hi).astype(np.uint32, copy=False)
        try:
            coded = encode_tile(columns, np.diff(offsets))
        except UsageError as error:
            raise self._damaged(tile, f"contradicts the row offsets: {error.cause}") from error
        out[: len(coded)] = np.frombuffer(coded, np.uint8)
        return len(coded)


class EncodedWeights(_EncodedChunks):
    """The weights of the tiles of a store, as segments, in buffers of `max_bytes`."""

    def __init__(self, data: StoredArray, attributes: Attributes) -> None:
        super().__init__(data, attributes, SEGMENTS_NAME)
        bound = max_weight_bytes(min(attributes.tile_edges, attributes.edges))
        self.max_bytes = min(bound, attributes.max_data_bytes) if self._own else bound

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        """Read what `parse_segments` takes, the weights of a tile, into `out`; returns how many bytes.

        Raises DamagedError if they are missing, not what was written, or no weights of edges.
        """
        if self._own:
            size = self._read_chunk(tile, out, direct)
        else:
            coded = encode_segments(self._array.read(*self._span(tile)).astype(np.float64, copy=False))
            size = coded.size
            out[:size] = coded
        lo, hi = self._span(tile)
        found = parse_segments(out[:size])
        if found.size > hi - lo:
            raise self._damaged(tile, f"has {found.size} weights for {hi - lo} edges")
        if not are_weights(found.parts[0]):
            raise self._damaged(tile, "has weights that are negative or not finite")
        return size

    def read(self, tile: int, out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Read the weights of a tile to the front of `out`, or to fresh memory; returns that, float64."""
        lo, hi = self._span(tile)
        coded = np.empty(self.max_bytes, np.uint8)
        size = self.read_into(tile, coded)
        values = np.empty(hi - lo) if out is None else out[: hi - lo]
        return join_segments(coded[:size], values)


def _made_without_rows(buf: NDArray[np.uint8]) -> bool:
    return buf.size >= 8 and kind_of(buf) & (0xFF | FLAG_RUNS) != KIND_TILE
