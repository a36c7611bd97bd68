"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from oocpr.store.atomic import naming_failures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
