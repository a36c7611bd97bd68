"""What an import that can be resumed has left beside a store, and how large it is."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oocpr.units import format_bytes

if TYPE_CHECKING:
    import os

JOURNAL, STORE = "journal", "store.zarr"


def folder_of(path: Path, tmp: str | os.PathLike[str] | None) -> Path:
    """Folder of an import that can be resumed.

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


@dataclass(frozen=True)
class LeftOver:
    """What an import has left.

    Parameters
    ----------
    paths
        Where.
    size
        Bytes of all that.
    """

    paths: tuple[Path, ...]
    size: int

    def __str__(self) -> str:
        return (
            f"An interrupted import has left {format_bytes(self.size)}; continue it with resume=True, "
            f"or remove it with: rm -r {' '.join(map(str, self.paths))}"
        )


def left_over(path: Path, tmp: str | os.PathLike[str] | None) -> LeftOver | None:
    """Find what an import to a store has left that is not under way any more.

    Parameters
    ----------
    path
        The store.
    tmp
        Folder of temporary files, None for that of the store.
    """
    folder, partial = folder_of(path, tmp), partial_of(path, tmp)
    if (folder / JOURNAL).is_file() and not _in_use(folder / JOURNAL):
        paths = (folder,) if partial.is_relative_to(folder) or not partial.exists() else (folder, partial)
        return LeftOver(paths, sum(map(size_of, paths)))
    return None


def _in_use(journal: Path) -> bool:
    with journal.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
