"""Files and folders that are there whole or not at all.

Until then they are ``NAME.partial-PID-RANDOM``, which nobody can foresee, so no symbolic link waits there.
The process that writes locks it; what no process has locked was left by a killed one and is removed before
the next output of that name is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from oocpr.errors import DoesNotFitError, OocprError, UsageError
from oocpr.system import LINUX, is_disk_full
from oocpr.units import format_bytes

_LOG = logging.getLogger(__name__)

_MAKING: set[Path] = set()
"""What threads of this process have made, or are about to, and not yet locked."""

_PUBLISHED = 8
"""Times that a folder is tried to be given a name that others take as well."""

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux

_NAME_BYTES = 255  # of a file's name on the file systems of Linux
_RANDOM_BYTES = 4


class Partial:
    """A file or folder made at `path`, beside the name that it gets once it is whole, and locked.

    `private`: whether only this user may look into a folder. Raises OSError if it cannot be made.
    """

    def __init__(self, path: Path, *, folder: bool = False, suffix: str = "", private: bool = False) -> None:
        self._owner = os.getpid()
        while True:
            # A name that is too long is said so now, not when what is written gets it.
            with contextlib.suppress(FileNotFoundError):
                path.lstat()
            own = f".partial-{os.getpid()}-{secrets.token_hex(_RANDOM_BYTES)}{suffix}"
            self.path = path.with_name(_cut(path.name) + own)
            _MAKING.add(self.path)
            try:
                if not self._locked(folder=folder, private=private):
                    continue
            finally:
                _MAKING.discard(self.path)
            if os.fstat(self._lock).st_nlink:
                return
            # Taken for one that was left, before it was locked.
            os.close(self._lock)

    def _locked(self, *, folder: bool, private: bool) -> bool:
        """Make it and lock it; False if another process has taken it for one that was left."""
        if folder:
            self.path.mkdir(0o700 if private else 0o777, parents=True)
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                return False
        else:
            self._lock = os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        # File systems without locks, such as some over a network, have nothing removed either.
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return True

    def flush(self) -> None:
        """Write to the disk: after a power failure the new name could otherwise be that of an empty file."""
        os.fsync(self._lock)

    def close(self) -> None:
        """Unlock it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Remove what has the temporary name, if it can be removed, and unlock it.

        In a process that was forked it stays: that of its parent is in use.
        """
        if os.getpid() == self._owner:
            remove(self.path)
        self.close()


def clear_abandoned(path: Path) -> list[str]:
    """Remove what killed processes have left beside an output; returns a sentence for each file or folder."""
    left = re.compile(rf"{re.escape(_cut(path.name))}\.(partial|replaced)-\d+-[0-9a-f]{{8}}(\.zarr)?")
    messages = []
    with contextlib.suppress(OSError):
        for found in sorted(path.parent.iterdir()):
            if (match := left.fullmatch(found.name)) is None or found in _MAKING:
                continue
            if match[1] == "replaced" and not os.path.lexists(path):
                messages.append(
                    f"A process that was killed was about to replace {found}: rename it to {path}."
                )
            elif _remove_abandoned(found):
                messages.append(f"{found}, which a process that was killed had left, was removed.")
    return messages


def check_writable(path: Path, marker: str | None = None) -> None:
    """Refuse, before any work is done, an output that could not be written after it.

    `marker`: as for `NewFolder`, None for a file. Raises UsageError if the folder of `path` is missing or
    cannot be written to, or something else is at `path`; DoesNotFitError if the disk is full.
    """
    with naming_failures(path):
        if marker is not None and path.is_symlink():
            path = path.resolve()
    if not path.absolute().parent.is_dir():
        is_url = path.parts[0].endswith(":")
        remedy = (
            "Name a folder of this machine: stores are copied to URLs."
            if is_url
            else "Make the folder first."
        )
        raise UsageError(f"{path} lies in a folder that does not exist.", remedy)
    with naming_failures(path):
        if marker is not None:
            if _has(path.absolute().parent, marker):
                raise UsageError(f"{path} lies in a store.", "Name a place beside it.")
            refuse_existing(path, overwrite=True, marker=marker)
        elif path.is_dir():
            raise UsageError(f"{path} is a folder.", "Name a file.")
        elif path.exists() and not path.is_file():
            # A device or a pipe is written to as it is.
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        Partial(path.resolve(), folder=marker is not None).remove()


def require_room(path: Path, needed: int) -> None:
    """Raise DoesNotFitError unless the disk has room for an output of so many bytes."""
    free = shutil.disk_usage(path.resolve().parent).free
    if free < needed:
        raise DoesNotFitError(
            f"{path} takes at least about {format_bytes(needed)}, and {format_bytes(free)} are free there.",
            "Make room, or write to another disk.",
        )


def _cut(name: str) -> str:
    """Cut a name so that what is appended to it fits."""
    room = _NAME_BYTES - len(".replaced--.zarr") - len(str(2**22)) - 2 * _RANDOM_BYTES
    return os.fsdecode(os.fsencode(name)[:room])


def _remove_abandoned(path: Path) -> bool:
    """Remove a file or folder of this user that no process has locked; returns whether it is gone."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        known = os.fstat(lock)
        if known.st_uid != os.geteuid() or stat.S_IFMT(known.st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)
    except OSError:
        return False
    finally:
        os.close(lock)
    return not os.path.lexists(path)


class NewFolder:
    """A folder written at `temporary`, beside its own name.

    `overwrite`: whether a Zarr group that has the attribute `marker` is replaced, in the end and at once; no
    other folder ever is. `resumable`: a folder on the same disk in which to write, which stays as it is if it
    is not published; by default a new one that is removed then. Raises UsageError if something is at `path`
    that is not to be replaced, or nothing can be written there.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, overwrite: bool, marker: str, resumable: Path | None = None
    ) -> None:
        self.path = Path(path)
        with naming_failures(self.path):
            if self.path.is_symlink():
                # It stays one, to the folder that is replaced.
                self.path = self.path.resolve()
        if not self.path.name:
            raise UsageError(f"{self.path} is no name of a new folder.", "Give it one, such as graph.zarr.")
        self._replaced = replaced_name(self.path, resumable=resumable is not None)
        self._overwrite = overwrite
        self._marker = marker
        self._partial: Partial | None = None
        with naming_failures(self.path):
            # A process has ended that was about to replace it.
            if resumable is not None and self._replaced.exists() and not os.path.lexists(self.path):
                self._replaced.rename(self.path)
            refuse_existing(self.path, overwrite=overwrite, marker=marker)
            if resumable is None:
                for message in clear_abandoned(self.path):
                    _LOG.warning("%s", message)
                self._partial = Partial(self.path, folder=True, suffix=".zarr")
                self.temporary = self._partial.path
            else:
                self.temporary = resumable
                self.temporary.mkdir(parents=True, exist_ok=True)

    def publish(self) -> None:
        """Give the folder its name; UsageError if something has it by now that is not to be replaced."""
        if self._partial is None:
            # What is replaced gets a name that is found again if this process ends here.
            refuse_existing(self.path, overwrite=self._overwrite, marker=self._marker)
            with naming_failures(self.path):
                self._rename()
            return
        for left in reversed(range(_PUBLISHED)):
            refuse_existing(self.path, overwrite=self._overwrite, marker=self._marker)
            with naming_failures(self.path):
                if exchange(self.temporary, self.path):
                    remove(self.temporary)
                    break
                try:
                    self._rename()
                    break
                except OSError as error:
                    # Others may have published theirs since it was looked.
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not left:
                        raise
        self._partial.close()

    def _rename(self) -> None:
        if self.path.exists():
            self.path.rename(self._replaced)
        self.temporary.rename(self.path)
        remove(self._replaced)

    def discard(self) -> None:
        """Remove what was written, unless it is resumable or published."""
        if self._partial is not None:
            self._partial.remove()


def exchange(one: Path, other: Path) -> bool:
    """Have two files or folders take each other's name, at once; False if one is not there, or none can."""
    library = ctypes.CDLL(None, use_errno=True)
    if not LINUX or not hasattr(library, "renameat2"):
        return False
    if library.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOENT, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number))


def refuse_existing(path: Path, *, overwrite: bool, marker: str) -> None:
    """Raise UsageError if something is at `path` that is not to be replaced; see `NewFolder`."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise UsageError(f"{path} exists.", "Choose another name, or allow it to be replaced.")
    if not _has(path, marker):
        raise UsageError(f"{path} is something else than what would replace it.", "Choose another name.")


def _has(folder: Path, marker: str) -> bool:
    """Whether a folder is a Zarr group that has such an attribute."""
    metadata = folder / "zarr.json"
    return metadata.is_file() and f'"{marker}"' in metadata.read_text(errors="replace")


def replaced_name(path: Path, *, resumable: bool) -> Path:
    """Name of a folder while it is replaced: one that another process finds, if that is `resumable`."""
    own = f"-{os.getpid()}-{secrets.token_hex(_RANDOM_BYTES)}"
    return path.with_name(f"{path.name}.replaced" if resumable else f"{_cut(path.name)}.replaced{own}")


@contextlib.contextmanager
def naming_failures(path: Path, remedy: str = "Name a place where you may write.") -> Iterator[None]:
    """Turn an OSError of writing `path` into DoesNotFitError, if no room is left, or UsageError."""
    try:
        yield
    except OocprError:
        raise
    except OSError as error:
        if is_disk_full(error):
            raise DoesNotFitError(
                f"{path} cannot be written: {os.strerror(error.errno or 0)}{_free_there(path)}.",
                "Make room, or write to another disk.",
            ) from error
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.", remedy) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write a file that gets the name `path` when the block ends, or is removed if it raises.

    A symbolic link stays one, to the file that is replaced. A pipe or ``/dev/null`` cannot be replaced and is
    written to as it is. Raises as `naming_failures`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "ranks.csv")) as temporary:
    ...         _ = temporary.write_text("node,rank")
    ...     Path(folder, "ranks.csv").read_text()
    'node,rank'
    """
    with naming_failures(path):
        if path.exists() and not path.is_file():
            yield path
            return
        whole = path.resolve()
        for message in clear_abandoned(whole):
            _LOG.warning("%s", message)
        partial = Partial(whole)
        try:
            yield partial.path
            partial.flush()
            partial.path.replace(whole)
        finally:
            partial.remove()


def _free_there(path: Path) -> str:
    """How much room the disk has; empty for a device such as ``/dev/full``, which is on none."""
    if path.exists() and not path.is_file() and not path.is_dir():
        return ""
    folder = next(p for p in path.absolute().parents if p.exists())
    return f" ({shutil.disk_usage(folder).free:,} bytes free there)"


def remove(path: Path) -> None:
    """Remove a folder with its contents, or a file; what cannot be removed stays and hides no other error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def root_checksum(path: Path) -> int | None:
    """Checksum of the root's metadata of a store in a folder; None if there are none."""
    metadata = path / "zarr.json"
    return zlib.crc32(metadata.read_bytes()) if metadata.is_file() else None
