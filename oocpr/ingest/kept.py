"""Temporary files with names, which another process finds.

A file that is kept is appended to, until all files are frozen: then what is written goes to the next
generation of the file, from its byte 0 on, and the older one stays what it is for who has to begin again.
"""

from __future__ import annotations

import os
import shutil
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.ingest.partition import Run
from oocpr.ingest.scratch import Scratch, Workspace, making_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import FileIO
    from pathlib import Path

    from numpy.typing import NDArray

    from oocpr.ingest.finished import Files

_READ_BYTES = 1 << 20


class KeptScratch(Scratch):
    """A file with a name; closing it leaves it where it is.

    Parameters
    ----------
    folder, name, generation
        The file is ``NAME.GENERATION`` in the folder.
    size, crc
        Bytes that are there already, and their CRC-32; what lies behind them counts for nothing.

    Attributes
    ----------
    size, crc
        Of all that was appended.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with KeptScratch(Path(folder), "keys") as scratch:
    ...         scratch.write(0, np.array([1, 2]))
    ...         scratch.frozen = True
    ...         scratch.write(0, np.array([3]))
    ...         both = np.empty(2, np.int64)
    ...         scratch.read(0, both)
    ...     both.tolist(), np.fromfile(Path(folder, "keys.1"), np.int64).tolist()
    ([3, 2], [1, 2])
    """

    def __init__(self, folder: Path, name: str, generation: int = 1, size: int = 0, crc: int = 0) -> None:
        self.name = name
        self.generation = generation
        self.size = size
        self.crc = crc
        self.frozen = False
        self._path = folder / f"{name}.{generation}"
        self._next: KeptScratch | None = None
        super().__init__(folder)

    def _open(self) -> FileIO:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | (0 if self.size else os.O_TRUNC), 0o600)
        return os.fdopen(descriptor, "r+b", buffering=0)

    def write(self, at: int, array: NDArray[Any]) -> None:
        """Write the contiguous `array` from byte `at` on; DoesNotFitError where the disk is full."""
        if self.frozen and at < self.size:
            if self._next is None:
                self._next = KeptScratch(self.folder, self.name, self.generation + 1)
            assert at <= self._next.size, "a file is rewritten from its front"
            self._next.write(at, array)
            return
        super().write(at, array)
        if at == self.size and not self.frozen:
            data = array.view(np.uint8)
            self.crc = zlib.crc32(data.data, self.crc)
            self.size += data.size

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
        assert self._next.size >= self.size, "a file is rewritten as a whole"
        return self._next

    def sync(self) -> None:
        """Return when the disk has it."""
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._next is not None:
            self._next.close()
        super().close()


class KeptWorkspace(Workspace):
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

    def file(self, memory: int = 0, name: str | None = None) -> Scratch:
        """Make a file, or take the one that is left; none of it is in memory if it has a name."""
        if name is None:
            return super().file(memory)
        self._kept[name] = KeptScratch(self.folder, name, *self._left.pop(name, ()))
        self._files.append(self._kept[name])
        return self._kept[name]

    def freeze(self) -> None:
        """From now on, leave what was appended so far as it is."""
        for file in self._kept.values():
            file.frozen = True

    def state(self) -> dict[str, list[int]]:
        """Describe the files as events list them."""
        return {name: [file.generation, file.size, file.crc] for name, file in self._kept.items()}

    def settled(self, names: Sequence[str]) -> dict[str, list[int]]:
        """Bring the latest generations of some files to the disk, and describe them."""
        latest = {name: self._kept[name].latest() for name in names}
        for file in latest.values():
            file.sync()
        with making_files(self.folder):
            descriptor = os.open(self.folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return {name: [file.generation, file.size, file.crc] for name, file in latest.items()}

    def drop_others(self, files: dict[str, list[int]], others: Sequence[str] = ()) -> None:
        """Remove all that is neither one of some described files nor has one of the `others` names."""
        needed = {f"{name}.{generation}" for name, (generation, *_) in files.items()}
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


def fronts(path: Path, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Checksum the fronts of a file.

    Parameters
    ----------
    path
        The file; where there is none, it is empty.
    sizes
        Bytes of the fronts, ascending.

    Returns
    -------
    list of (bytes, CRC-32)
        Fewer than were asked for where the file is shorter.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "file")
    ...     _ = path.write_bytes(b"0123456789")
    ...     fronts(path, [3, 9, 12]) == [(3, zlib.crc32(b"012")), (9, zlib.crc32(b"012345678"))]
    True
    """
    found: list[tuple[int, int]] = []
    crc = done = 0
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) if path.exists() else open(os.devnull, "rb", buffering=0) as file:  # noqa: PTH123
        for size in sizes:
            while done < size and (read := file.readinto(buffer[: size - done]) or 0):
                crc = zlib.crc32(buffer[:read], crc)
                done += read
            if done < size:
                break
            found.append((size, crc))
    return found


@dataclass(frozen=True)
class ReadOnlyRun(Run):
    """Keys that are relabelled whenever they are read, and stay in their file as they are.

    Parameters
    ----------
    always
        Turns them into those of the graph; None where they are already.
    """

    always: Callable[[NDArray[np.uint64]], None] | None = None

    def blocks(self, buffer: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
        """Yield all keys, as many at a time as `buffer` holds, which every block overwrites."""
        for keys in super().blocks(buffer):
            if self.always is not None:
                self.always(keys)
            yield keys

    def settle(self, buffer: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
        """Yield all keys as `blocks` does."""
        return self.blocks(buffer)
