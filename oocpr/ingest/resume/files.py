"""Temporary files with names, which another process finds, and what an interrupted import has left."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from oocpr.ingest.spill.files import SpillDir, SpillFile, making_files
from oocpr.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import FileIO

JOURNAL, STORE = "journal", "store.zarr"


class DurableSpillFile(SpillFile):
    """A file with a name, no part of it in memory; closing it leaves it where it is.

    Of a file that is there already the first `size` bytes count, what lies after them does not.
    """

    def __init__(self, folder: Path, name: str, size: int = 0) -> None:
        self.name = name
        self._left = size
        super().__init__(folder)
        self._end = size

    def _open(self) -> FileIO:
        flags = os.O_RDWR | os.O_CREAT | (0 if self._left else os.O_TRUNC)
        return os.fdopen(os.open(self.folder / self.name, flags, 0o600), "r+b", buffering=0)

    def sync(self) -> None:
        """Return when the disk has it."""
        os.fdatasync(self._file.fileno())


class DurableSpillDir(SpillDir):
    """Temporary files of an import, in a folder of its own, of which another process may finish the rest.

    Files `left` by an earlier process, and needed, come with their bytes.
    """

    def __init__(self, folder: Path, left: dict[str, int]) -> None:
        super().__init__(folder)
        self._left = dict(left)
        self._named: dict[str, DurableSpillFile] = {}

    def file(self, memory: int = 0, name: str | None = None) -> SpillFile:
        """Make a file, or take the one that is left; a file without a name goes with the process."""
        if name is None:
            return super().file(memory)
        self._named[name] = DurableSpillFile(self.folder, name, self._left.pop(name, 0))
        self._files.append(self._named[name])
        return self._named[name]

    def drop(self, file: SpillFile) -> None:
        """Close a file that nobody needs any more, and remove it."""
        super().drop(file)
        if isinstance(file, DurableSpillFile):
            del self._named[file.name]
            (self.folder / file.name).unlink()

    def synced(self, names: Iterable[str]) -> dict[str, int]:
        """Bring some files to the disk; returns their bytes."""
        files = {name: self._named[name] for name in names}
        for file in files.values():
            file.sync()
        with making_files(self.folder):
            descriptor = os.open(self.folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return {name: file.size for name, file in files.items()}


def drop_all_but(folder: Path, names: set[str]) -> None:
    """Remove what a folder holds, some names excepted."""
    for path in folder.iterdir():
        if path.name in names:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def folder_of(path: Path, tmp: str | os.PathLike[str] | None) -> Path:
    """Folder of an import to the store `path` that can be resumed.

    Examples
    --------
    >>> folder_of(Path("graphs/web.zarr"), None).as_posix(), folder_of(Path("web.zarr"), "/tmp").as_posix()
    ('graphs/web.zarr.unfinished', '/tmp/web.zarr.unfinished')
    """
    return (path.parent if tmp is None else Path(tmp)) / f"{path.name}.unfinished"


def partial_of(path: Path, tmp: str | os.PathLike[str] | None) -> Path:
    """Folder of its store until that is whole, on the disk where it is going to be.

    Examples
    --------
    >>> partial_of(Path("web.zarr"), None).as_posix(), partial_of(Path("web.zarr"), "/tmp").as_posix()
    ('web.zarr.unfinished/store.zarr', 'web.zarr.partial.zarr')
    """
    return folder_of(path, None) / STORE if tmp is None else path.with_name(f"{path.name}.partial.zarr")


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; what vanishes meanwhile has none."""
    total = 0
    for file in [path, *path.rglob("*")]:
        try:
            total += file.lstat().st_size if not file.is_dir() else 0
        except FileNotFoundError:
            continue
    return total


def interrupted_import(path: Path, tmp: str | os.PathLike[str] | None) -> str | None:
    """Say what an import to the store `path` has left that is not under way any more; None for nothing."""
    folder, partial = folder_of(path, tmp), partial_of(path, tmp)
    if not (folder / JOURNAL).is_file() or _in_use(folder / JOURNAL):
        return None
    paths = (folder,) if partial.is_relative_to(folder) or not partial.exists() else (folder, partial)
    size = format_bytes(sum(map(size_of, paths)))
    return (
        f"An interrupted import has left {size}; continue it with resume=True, "
        f"or remove it with: rm -r {' '.join(map(str, paths))}"
    )


def _in_use(journal: Path) -> bool:
    with journal.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
