"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from oocpr.errors import DoesNotFitError, OocprError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class NewFolder:
    """A folder written under a temporary name beside its own.

    Parameters
    ----------
    path
        The name it gets in the end.
    overwrite
        Whether what stands there is replaced, in the end and at once.
    marker
        Attribute of the Zarr group that stands there, if it may be replaced: no other folder ever is.
    kept
        Where to write until then, on the same disk; it stays there if it is not published, with what it holds
        already. None for a folder that goes away.

    Attributes
    ----------
    temporary
        Where to write until then.

    Raises
    ------
    UsageError
        If something stands there and is not to be replaced, or nothing can be written there.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, overwrite: bool, marker: str, kept: Path | None = None
    ) -> None:
        self.path = Path(path)
        own = f"{self.path.name}.partial-{os.getpid()}.zarr"
        self.temporary = self.path.with_name(own) if kept is None else kept
        self._replaced = replaced_name(self.path, kept=kept is not None)
        self._kept = kept is not None
        self._overwrite = overwrite
        self._marker = marker
        self._restore()
        refuse_existing(self.path, overwrite=overwrite, marker=marker)
        with naming_failures(self.path):
            if not self._kept:
                shutil.rmtree(self.temporary, ignore_errors=True)
            self.temporary.mkdir(parents=True, exist_ok=self._kept)

    def _restore(self) -> None:
        """Put back what a process was about to replace when it ended."""
        if self._kept and self._replaced.exists() and not os.path.lexists(self.path):
            self._replaced.rename(self.path)

    def publish(self) -> None:
        """Give the folder its name.

        Raises
        ------
        UsageError
            If something stands there by now and is not to be replaced.
        """
        refuse_existing(self.path, overwrite=self._overwrite, marker=self._marker)
        with naming_failures(self.path):
            if self.path.exists():
                self.path.rename(self._replaced)
            self.temporary.rename(self.path)
            remove(self._replaced)

    def discard(self) -> None:
        """Remove what was written, unless it is kept; does nothing once it is published."""
        if not self._kept:
            remove(self.temporary)


def refuse_existing(path: Path, *, overwrite: bool, marker: str) -> None:
    """Raise UsageError where something stands that is not to be replaced; see `NewFolder`."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise UsageError(f"{path} exists.", "Choose another name, or allow it to be replaced.")
    metadata = path / "zarr.json"
    if not metadata.is_file() or f'"{marker}"' not in metadata.read_text(errors="replace"):
        raise UsageError(f"{path} is something else than what would replace it.", "Choose another name.")


def replaced_name(path: Path, *, kept: bool) -> Path:
    """Name that a folder has while it is being replaced: one that another process finds, if `kept`."""
    return path.with_name(f"{path.name}.replaced" + ("" if kept else f"-{os.getpid()}"))


@contextlib.contextmanager
def naming_failures(path: Path) -> Iterator[None]:
    """Turn what the system says while `path` is written into an error with a cause and a remedy.

    Raises
    ------
    DoesNotFitError
        If the disk, the quota or the largest allowed file is full.
    UsageError
        If nothing can be written there.
    """
    try:
        yield
    except OocprError:
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            folder = next(p for p in path.absolute().parents if p.exists())
            raise DoesNotFitError(
                f"{path} cannot be written: {os.strerror(error.errno)} "
                f"({shutil.disk_usage(folder).free:,} bytes free there).",
                "Make room, or write to another disk.",
            ) from error
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}.", "Name a place where you may write."
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name beside its own, which it takes when the block ends well.

    A link stays a link to the file that is replaced. What is no file, such as a pipe or ``/dev/null``, cannot
    be replaced and is written to as it is.

    Parameters
    ----------
    path
        The file to make or to replace.

    Yields
    ------
    Path
        Where to write. Removed when the block raises, whatever it raises; a file at `path` is then untouched.

    Raises
    ------
    DoesNotFitError
        Where the disk, the quota or the largest allowed file is full.
    UsageError
        Where nothing can be written there.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "ranks.csv")) as temporary:
    ...         _ = temporary.write_text("node,rank")
    ...     Path(folder, "ranks.csv").read_text()
    'node,rank'
    """
    if path.exists() and not path.is_file():
        with naming_failures(path):
            yield path
        return
    whole = path.resolve()
    temporary = whole.with_name(f"{whole.name}.partial-{os.getpid()}")
    try:
        with naming_failures(path):
            yield temporary
            _flush_to_disk(temporary)
            temporary.replace(whole)
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    # Without it a power failure can leave the new name on an empty file.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a folder with all it holds, or a file, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
