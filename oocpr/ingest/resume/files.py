"""Temporary files with names, which another process finds.

A file that is kept is written to, each byte once, until all files are frozen: then what is written anew goes
to the next generation of the file, from its byte 0 on, and the older one stays what it is for who has to
begin again.
"""

from __future__ import annotations

import os
import shutil
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.ingest.spill.files import SpillDir, SpillFile, making_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import FileIO
    from pathlib import Path

    from numpy.typing import NDArray

    from oocpr.ingest.resume.state import Files

    Piece = list[int]

_READ_BYTES = 1 << 20


class KeptScratch(SpillFile):
    """A file with a name; closing it leaves it where it is.

    Parameters
    ----------
    folder, name, generation
        The file is ``NAME.GENERATION`` in the folder.
    size
        Bytes that are there already; what lies behind them counts for nothing.

    Attributes
    ----------
    pieces
        What was written, each as its first byte, number of bytes and CRC-32; emptied by who takes note of it.
    closed
        Whether it is.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with KeptScratch(Path(folder), "keys") as scratch:
    ...         scratch.write(0, np.array([1, 2]))
    ...         scratch.freeze()
    ...         scratch.write(0, np.array([3]))
    ...         both = np.empty(2, np.int64)
    ...         scratch.read(0, both)
    ...     both.tolist(), np.fromfile(Path(folder, "keys.1"), np.int64).tolist()
    ([3, 2], [1, 2])
    """

    def __init__(self, folder: Path, name: str, generation: int = 1, size: int = 0) -> None:
        self.name = name
        self.generation = generation
        self.pieces: list[Piece] = []
        self.closed = False
        self._path = folder / f"{name}.{generation}"
        self._left = size
        self._frozen = 0
        self._next: KeptScratch | None = None
        super().__init__(folder)
        self._end = size

    def _open(self) -> FileIO:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | (0 if self._left else os.O_TRUNC), 0o600)
        return os.fdopen(descriptor, "r+b", buffering=0)

    def freeze(self) -> None:
        """From now on, leave what there is as it is."""
        self._frozen = self.size

    def write(self, at: int, array: NDArray[Any]) -> None:
        """Write the contiguous `array` from byte `at` on; DoesNotFitError where the disk is full."""
        if at < self._frozen:
            if self._next is None:
                self._next = KeptScratch(self.folder, self.name, self.generation + 1)
            assert at <= self._next.size, "a file is rewritten from its front"
            self._next.write(at, array)
            return
        super().write(at, array)
        data = array.view(np.uint8)
        self.pieces.append([at, data.size, zlib.crc32(data.data)])

    def read(self, at: int, out: NDArray[Any]) -> None:
        """Fill the contiguous `out` from byte `at` on."""
        view = out.view(np.uint8)
        rewritten = 0 if self._next is None else max(0, min(view.size, self._next.size - at))
        if self._next is not None and rewritten:
            self._next.read(at, view[:rewritten])
        super().read(at + rewritten, view[rewritten:])

    def latest(self) -> KeptScratch:
        """Give the generation that was written last, with all that the file has."""
        if self._next is None:
            return self
        assert self._next.size >= self._frozen, "a file is rewritten as a whole"
        return self._next

    def sync(self) -> None:
        """Return when the disk has it."""
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._next is not None:
            self._next.close()
        self.closed = True
        super().close()


class KeptWorkspace(SpillDir):
    """Temporary files of an import of which another process may finish the rest.

    Parameters
    ----------
    folder
        Of this import alone.
    files
        Those that an earlier one has left, and that are needed.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        super().__init__(folder)
        self._left = dict(files)
        self._kept: dict[str, KeptScratch] = {}

    def file(self, memory: int = 0, name: str | None = None) -> SpillFile:
        """Make a file, or take the one that is left; none of it is in memory if it has a name."""
        if name is None:
            return super().file(memory)
        self._kept[name] = KeptScratch(self.folder, name, *self._left.pop(name, ()))
        self._files.append(self._kept[name])
        return self._kept[name]

    def freeze(self) -> None:
        """From now on, leave what was written so far as it is."""
        for file in self._kept.values():
            file.freeze()

    def files(self) -> dict[str, list[int]]:
        """Describe the files that are open, as events list them."""
        return {name: [file.generation, file.size] for name, file in self._kept.items() if not file.closed}

    def pieces(self) -> dict[str, list[Piece]]:
        """Take the pieces that were written since this was asked for last."""
        taken = {name: file.pieces for name, file in self._kept.items() if file.pieces and not file.closed}
        for name in taken:
            self._kept[name].pieces = []
        return taken

    def settled(self, names: Sequence[str]) -> dict[str, list[int]]:
        """Bring the latest generations of some files to the disk, and describe them."""
        latest = {name: self._kept[name].latest() for name in names}
        for file in latest.values():
            file.sync()
        with making_files(self.folder):
            descriptor = os.open(self.folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return {name: [file.generation, file.size] for name, file in latest.items()}

    def drop_others(self, files: dict[str, list[int]], others: Sequence[str] = ()) -> None:
        """Remove all that is neither one of some described files nor has one of the `others` names."""
        needed = {f"{name}.{generation}" for name, (generation, _) in files.items()}
        drop_all_but(self.folder, {*needed, *others})


def drop_all_but(folder: Path, names: set[str]) -> None:
    """Remove what a folder holds, some names excepted."""
    for path in folder.iterdir():
        if path.name in names:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def sound(path: Path, pieces: Sequence[Piece]) -> bool:
    """Tell whether a file has the pieces that were written to it.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "file")
    ...     _ = path.write_bytes(b"0123456789")
    ...     sound(path, [[0, 3, zlib.crc32(b"012")]]), sound(path, [[9, 2, zlib.crc32(b"9x")]])
    (True, False)
    """
    if not path.is_file():
        return not pieces
    with path.open("rb", buffering=0) as file:
        return all(_checksum(file.fileno(), at, size) == crc for at, size, crc in pieces)


def _checksum(file: int, at: int, size: int) -> int | None:
    """CRC-32 of a part of a file; None where it ends before."""
    crc, end = 0, at + size
    while at < end:
        data = os.pread(file, min(end - at, _READ_BYTES), at)
        if not data:
            return None
        crc = zlib.crc32(data, crc)
        at += len(data)
    return crc
