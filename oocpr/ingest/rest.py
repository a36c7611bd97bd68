"""Tiles that are written already, and the keys that are still to come.

The last key of the last such tile tells which keys these are, for tiles hold the keys in their order. What
has to be counted over all tiles is counted from the tiles themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.jit import entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.merge import Tally
    from oocpr.ingest.partition import Run
    from oocpr.store.graph import GraphWriter

    Piece = tuple[NDArray[np.uint64], int]


@dataclass(frozen=True)
class Taken:
    """Tiles that were taken over.

    Parameters
    ----------
    tiles
        How many.
    key
        Their last key; None where there is none.
    row
        The row with which the next tile begins.
    local_edges
        Their edges whose column is among the owned rows of the tile.
    """

    tiles: int = 0
    key: int | None = None
    row: int = 0
    local_edges: int = 0


@entry()
def _keys(columns, lengths, first, keys):  # type: ignore[no-untyped-def]
    """Write the keys of a tile whose rows begin with `first`; return how many edges are local."""
    local = np.int64(0)
    at = 0
    last = np.uint32(first + lengths.size - 1)
    for k in range(lengths.size):
        row = np.uint64(first + k) << np.uint64(32)
        for _ in range(lengths[k]):
            column = columns[at]
            local += np.int64(np.uint32(first) <= column and column < last)
            keys[at] = row | np.uint64(column)
            at += 1
    return local


def take_tiles(writer: GraphWriter, tiles: Sequence[tuple[int, int]], tally: Tally) -> Taken:
    """Take over the tiles of a writer that was interrupted, up to the first that is not what it wrote.

    Parameters
    ----------
    writer
        Has no tiles yet.
    tiles
        Bytes and checksum of each.
    tally
        Counts their keys.
    """
    taken = Taken()
    for size, checksum in tiles:
        found = writer.take_tile(size, checksum)
        if found is None:
            break
        columns, lengths = found
        keys = np.empty(columns.size, np.uint64)
        local = _keys(columns, lengths, taken.row, keys)
        tally.add(keys, keys.size)
        taken = Taken(
            taken.tiles + 1,
            int(keys[-1]) if keys.size else taken.key,
            taken.row + lengths.size - 1,
            taken.local_edges + local,
        )
    return taken


def in_ids(key: int | None, node_ids: NDArray[np.uint32] | None) -> int | None:
    """Turn a key of rows into one of their ids, which are the rows themselves where `node_ids` is None.

    Examples
    --------
    >>> in_ids(1 << 32 | 0, np.array([5, 9], np.uint32)) == 9 << 32 | 5
    True
    """
    if key is None or node_ids is None:
        return key
    return int(node_ids[key >> 32]) << 32 | int(node_ids[key & 0xFFFFFFFF])


def runs_behind(runs: Iterable[Run], key: int | None) -> Iterator[Run]:
    """Leave out the runs that have no key behind `key`, a key as the runs have them."""
    for run in runs:
        if key is None or run.high > key + 1:
            yield run


def keys_behind(pieces: Iterable[Piece], key: int | None) -> Iterator[Piece]:
    """Leave out the keys up to `key`; a piece is ascending keys, and of how many of the source."""
    for keys, count in pieces:
        if key is None:
            yield keys, count
            continue
        first = int(np.searchsorted(keys, np.uint64(key), side="right"))
        if first < keys.size:
            yield keys[first:], count if first == 0 else keys.size - first
            key = None
