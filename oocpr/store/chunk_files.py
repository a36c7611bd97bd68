"""Chunks of the edges that a writer makes, as files with their checksum behind them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.store.codec.crc32c import crc32c

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

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

    Parameters
    ----------
    path
        Where they are; made with the first one.

    Attributes
    ----------
    count
        How many chunks were counted.
    total, most
        Bytes of all these, and of the largest.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     chunks = ChunkFolder(Path(folder, "c"))
    ...     chunk = chunks.write(0, np.arange(5, dtype=np.uint8))
    ...     back = chunks.read(0, chunk)
    >>> chunk.size, back.tolist()
    (5, [0, 1, 2, 3, 4])
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
            checksum = crc32c(coded)
            for part in (coded.data, memoryview(checksum.to_bytes(_CRC_BYTES, "little"))):
                while part:
                    part = part[file.write(part) :]
        return Chunk(coded.size, checksum)

    def read(self, number: int, chunk: Chunk) -> NDArray[np.uint8] | None:
        """Read a chunk that was written; None where the file does not hold it."""
        path = self.path / str(number)
        stored = np.fromfile(path, np.uint8) if path.is_file() else np.empty(0, np.uint8)
        coded = stored[:-_CRC_BYTES]
        told = chunk.crc.to_bytes(_CRC_BYTES, "little")
        if coded.size != chunk.size or stored[chunk.size :].tobytes() != told or crc32c(coded) != chunk.crc:
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
