"""Files of ranks by the ending of their name: how much room they take, and where else they may go."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from oocpr.errors import OocprError
from oocpr.store.atomic import require_room

if TYPE_CHECKING:
    from oocpr.result.names import Names
    from oocpr.result.ranks import Ranks

SUFFIXES = (".parquet", ".csv", ".zarr")

_SAMPLE = 1000
_MOST_STEM = 200


def least_bytes(suffix: str, nodes: int, name_bytes: float) -> int:
    """Bytes that a file of ranks takes at least, as a rule.

    Equal ranks, and parts of names that repeat, are stored once in Parquet and Zarr: a graph of 2.1 M nodes,
    of which most have no edges, took 4.5 and 3 bytes per node, one of 63 k names of 12 bytes took 12. CSV has
    up to 22 characters of a rank.

    Parameters
    ----------
    suffix
        One of SUFFIXES.
    nodes
        How many ranks.
    name_bytes
        Of a node's name as text, on average.

    Examples
    --------
    >>> least_bytes(".csv", 1000, 12.0), least_bytes(".parquet", 1000, 12.0)
    (28000, 6000)
    """
    return int(nodes * (16 + name_bytes if suffix == ".csv" else 3 + name_bytes / 4))


def check_room(path: Path, nodes: int, names: Names) -> None:
    """Refuse a file of ranks for which its disk has no room, before they are computed.

    Parameters
    ----------
    path
        The file, ending in one of SUFFIXES.
    nodes, names
        How many ranks, and of what.

    Raises
    ------
    DoesNotFitError
        With the bytes that it takes and those that are free.
    """
    rows = np.unique(np.linspace(0, nodes - 1, min(nodes, _SAMPLE)).astype(np.int64))
    written = [len(str(name).encode(errors="replace")) for name in names.take(rows)]
    require_room(path, least_bytes(path.suffix, nodes, sum(written) / max(1, len(written))))


def write_ranks(ranks: Ranks, path: Path, sort: str) -> None:
    """Write ranks as the ending of the name says; see `Ranks.to_parquet` and its like."""
    if path.suffix == ".zarr":
        ranks.to_zarr(path)
    else:
        write = ranks.to_csv if path.suffix == ".csv" else ranks.to_parquet
        write(path, sort=sort)


def write_elsewhere(ranks: Ranks, path: Path, sort: str) -> Path | None:
    """Write ranks that could not be written to `path` to another folder, so that they are not lost.

    Returns
    -------
    Path
        Where they are: in the folder of temporary files, the current folder or the user's own, whichever
        takes them first; None if none does.
    """
    name = f"{path.stem[:_MOST_STEM]}-{secrets.token_hex(4)}{path.suffix}"
    for folder in (tempfile.gettempdir, Path.cwd, Path.home):
        # A folder that is not there or not known is as good as one that is full.
        with contextlib.suppress(OocprError, OSError, RuntimeError):
            found = Path(folder(), name).absolute()
            write_ranks(ranks, found, sort)
            return found
    return None
