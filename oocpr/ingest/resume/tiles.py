"""Tiles that an earlier process has written, and the edges that are still to come.

The last key of the last such tile tells which edges these are, for tiles hold the keys in their order. What
has to be counted over all tiles is counted from the tiles themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oocpr.ingest.sort.rows import NO_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from oocpr.ingest.resume.journal import WrittenTile
    from oocpr.ingest.sort.rows import EdgeCounter, Rows
    from oocpr.ingest.sort.weights import OutWeights
    from oocpr.ingest.spill.keys import KeyRun
    from oocpr.store.graph import GraphWriter


@dataclass(frozen=True)
class ResumedTiles:
    """Tiles that were taken over.

    Attributes
    ----------
    count
        How many.
    key
        Their last key; None if there is none.
    row
        The row with which the next tile begins.
    local_edges
        Their edges whose column is among the owned rows of the tile.
    """

    count: int = 0
    key: int | None = None
    row: int = 0
    local_edges: int = 0


def resume_tiles(
    writer: GraphWriter, tiles: Sequence[WrittenTile], counter: EdgeCounter, out_weights: OutWeights | None
) -> ResumedTiles:
    """Take over the tiles of a writer that was interrupted, up to the first that is not what it wrote.

    Their edges are counted and their weights are added up.
    """
    taken = ResumedTiles()
    for size, checksum, data in tiles:
        found = writer.take_tile(size, checksum, data)
        if found is None:
            break
        columns, lengths, weights = found
        if out_weights is not None and weights is not None:
            out_weights.add(columns, weights)
        rows = np.arange(taken.row, taken.row + lengths.size, dtype=np.uint64)
        keys = np.repeat(rows << np.uint64(32), lengths)
        np.bitwise_or(keys, columns, out=keys)
        owned = lengths.size - 1
        local = int(np.count_nonzero(columns - np.uint32(taken.row) < owned))
        last = int(keys[-1]) if keys.size else taken.key
        of_keys = np.empty(keys.size, np.uint32), np.empty(keys.size + 1, np.uint32)
        counter.to_rows(keys, keys.size, NO_RANKS, *of_keys)
        taken = ResumedTiles(taken.count + 1, last, taken.row + owned, taken.local_edges + local)
    return taken


def in_ids(key: int | None, node_ids: NDArray[np.uint32] | None) -> int | None:
    """Turn a key of rows into one of their ids, which are the rows themselves if `node_ids` is None.

    Examples
    --------
    >>> in_ids(1 << 32 | 0, np.array([5, 9], np.uint32)) == 9 << 32 | 5
    True
    """
    if key is None or node_ids is None:
        return key
    return int(node_ids[key >> 32]) << 32 | int(node_ids[key & 0xFFFFFFFF])


def runs_after(runs: Iterable[KeyRun], key: int | None) -> Iterator[KeyRun]:
    """Leave out the runs that have no key after `key`, a key as the runs have them."""
    for run in runs:
        if key is None or run.high > key + 1:
            yield run


def rows_after(pieces: Iterable[Rows], key: int | None, counter: EdgeCounter) -> Iterator[Rows]:
    """Leave out the edges up to the one of `key`, None for none, and take them from the counts.

    The counter has counted all of them, and those of the tiles that were taken over.
    """
    for edges in pieces:
        if key is None:
            yield edges
            continue
        place = place_after(edges, key)
        if place:
            counter.uncount(slice_rows(edges, 0, place))
        if place < edges.columns.size:
            yield slice_rows(edges, place, edges.columns.size)
            key = None


def place_after(edges: Rows, key: int) -> int:
    """Number of the first edge after the one of a key."""
    row, column = key >> 32, key & 0xFFFFFFFF
    k = int(np.searchsorted(edges.rows, np.uint32(row)))
    if k == edges.rows.size:
        return edges.columns.size
    start, end = int(edges.starts[k]), int(edges.starts[k + 1])
    if int(edges.rows[k]) != row:
        return start
    return start + int(np.searchsorted(edges.columns[start:end], np.uint32(column), side="right"))


def slice_rows(edges: Rows, start: int, stop: int) -> Rows:
    """Give edges `start` to `stop` - 1."""
    first = int(np.searchsorted(edges.starts, start, side="right")) - 1
    end = int(np.searchsorted(edges.starts, stop, side="left"))
    bounds = edges.starts[first : end + 1].clip(start, stop) - np.uint32(start)
    weights = None if edges.weights is None else edges.weights[start:stop]
    return edges._replace(
        columns=edges.columns[start:stop], rows=edges.rows[first:end], starts=bounds, weights=weights
    )
