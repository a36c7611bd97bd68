"""Encoded bytes of a tile, straight from the store into a caller's buffer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.storage import LocalStore

from oocpr.errors import DamagedError, UsageError
from oocpr.store.arrays import read_key
from oocpr.store.checksum import crc32c
from oocpr.store.format import CODEC_NAME, REMEDY
from oocpr.store.layout import FLAG_RUNS, KIND_TILE, kind_of
from oocpr.store.packing import encode_tile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oocpr.store.arrays import StoredArray
    from oocpr.store.format import Attributes

_CRC_BYTES = 4


class EncodedTiles:
    """The tiles of a store, as bytes that a decoder takes; any number of threads may read at once.

    Parameters
    ----------
    indices
        The array of the columns.
    attributes
        What the store says about its graph.
    tile_rows
        int64, shape (tiles + 1,).
    indptr
        Reads row offsets lo to hi - 1.

    Attributes
    ----------
    max_bytes
        Bytes that a buffer must have.
    """

    def __init__(
        self,
        indices: StoredArray,
        attributes: Attributes,
        tile_rows: NDArray[np.int64],
        indptr: Callable[[int, int], NDArray[np.int64]],
    ) -> None:
        self._indices = indices
        self._edges = attributes.edges
        self._tile_edges = attributes.tile_edges
        self._tile_rows = tile_rows
        self._indptr = indptr
        # Files are read past Zarr, into the caller's buffer at once.
        self._folder = indices.store.root if isinstance(indices.store, LocalStore) else None
        self._packed = self._holds_tiles()
        self.max_bytes = attributes.max_tile_bytes if self._packed else self._bound()

    def read_into(self, tile: int, out: NDArray[np.uint8]) -> int:
        """Read the encoded bytes of a tile, checked against their checksum and without it.

        Parameters
        ----------
        tile
            Number of the tile.
        out
            uint8, shape (>= max_bytes,): receives the bytes.

        Returns
        -------
        int
            How many bytes there are.

        Raises
        ------
        DamagedError
            If the tile is missing or its bytes are not what was written.
        """
        if not self._packed:
            return self._encode(tile, out)
        read = self._read_key if self._folder is None else self._read_file
        size, stored = read(tile, out)
        if crc32c(out[:size]).to_bytes(_CRC_BYTES, "little") != stored:
            raise self._damaged(tile, "has another checksum than was written")
        if _made_without_rows(out[:size]):
            raise self._damaged(tile, "does not know the rows of its columns")
        return size

    def _holds_tiles(self) -> bool:
        """Whether the chunks are tiles with the rows of the matrix, as oocpr writes them."""
        listed: Any = self._indices.array.metadata.to_dict()["codecs"]
        codecs = [codec["name"] for codec in listed]
        if codecs != [CODEC_NAME, "crc32c"] or self._indices.chunk != self._tile_edges:
            return False
        # Zarr writes chunks of the same codec, but knows no rows; then the first one tells.
        start = read_key(self._indices.store, self._indices.key(0), size=8)
        return start is None or not _made_without_rows(np.frombuffer(start, np.uint8))

    def _bound(self) -> int:
        # Verbatim columns, lengths of at most 33 bits with their directory, header and padding.
        rows = int(np.diff(self._tile_rows).max()) + 1
        return 4 * min(self._tile_edges, max(1, self._edges)) + 5 * rows + 1024

    def _read_file(self, tile: int, out: NDArray[np.uint8]) -> tuple[int, bytes]:
        try:
            descriptor = os.open(f"{self._folder}/{self._indices.key(tile)}", os.O_RDONLY)
        except FileNotFoundError:
            raise self._damaged(tile, "is missing") from None
        try:
            size = self._checked_size(tile, os.fstat(descriptor).st_size, out)
            done = 0
            while done < size:
                # One call may return less than was asked for, always so past 2 GiB.
                got = os.preadv(descriptor, [out[done:size].data], done)
                if not got:
                    raise self._damaged(tile, f"ends after {done} bytes")
                done += got
            return size, os.pread(descriptor, _CRC_BYTES, size)
        finally:
            os.close(descriptor)

    def _read_key(self, tile: int, out: NDArray[np.uint8]) -> tuple[int, bytes]:
        data = read_key(self._indices.store, self._indices.key(tile))
        if data is None:
            raise self._damaged(tile, "is missing")
        size = self._checked_size(tile, len(data), out)
        out[:size] = np.frombuffer(data, np.uint8, size)
        return size, data[size:]

    def _checked_size(self, tile: int, stored: int, out: NDArray[np.uint8]) -> int:
        size = stored - _CRC_BYTES
        if not 0 <= size <= self.max_bytes:
            raise self._damaged(tile, f"has {stored} bytes")
        if size > out.size:
            raise ValueError(f"a buffer of {out.size} bytes for a tile of {size}")
        return size

    def _encode(self, tile: int, out: NDArray[np.uint8]) -> int:
        lo = tile * self._tile_edges
        hi = min(self._edges, lo + self._tile_edges)
        first, last = int(self._tile_rows[tile]), int(self._tile_rows[tile + 1])
        # The row offsets of the owned rows and of the tail, cut to the tile.
        offsets = np.append(self._indptr(first, last + 1), hi).clip(lo, hi)
        columns = self._indices.read(lo, hi).astype(np.uint32, copy=False)
        try:
            coded = encode_tile(columns, np.diff(offsets))
        except UsageError as error:
            raise self._damaged(tile, f"contradicts the row offsets: {error.cause}") from error
        out[: len(coded)] = np.frombuffer(coded, np.uint8)
        return len(coded)

    def _damaged(self, tile: int, what: str) -> DamagedError:
        return DamagedError(
            f"{self._indices.origin}: tile {tile} ({self._indices.key(tile)}) {what}.", REMEDY
        )


def _made_without_rows(buf: NDArray[np.uint8]) -> bool:
    return buf.size >= 8 and (kind_of(buf) & 0xFF != KIND_TILE or bool(kind_of(buf) & FLAG_RUNS))
