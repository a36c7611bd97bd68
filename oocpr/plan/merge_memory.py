"""What joining tiles takes of the host; checkable with a pencil."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.plan.merge_size import unweighted
from oocpr.store.direct_io import PAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oocpr.plan.graph_stats import GraphStats

ROUNDING = 2048
"""Bytes that fill up the last group, or block, of each array in which a thread joins tiles."""


class Joining(NamedTuple):
    """Bytes that making joined tiles takes beside what a run counts.

    Attributes
    ----------
    host, usual_host
        Most bytes of the host, and those that it takes as a rule.
    at_once
        Tiles that are made at a time for each device.
    """

    host: int = 0
    usual_host: int = 0
    at_once: int = 0

    def share(self, devices: int) -> Joining:
        """What one of so many devices has of it.

        Examples
        --------
        >>> Joining(host=600, usual_host=400, at_once=2).share(2)
        Joining(host=300, usual_host=200, at_once=2)
        """
        return self._replace(host=self.host // devices, usual_host=self.usual_host // devices)


NOTHING_JOINED = Joining()
"""For tiles as they are stored."""


def joining_on_host(
    stats: GraphStats, joined: GraphStats, rows: NDArray[np.int64], at_once: int, devices: int
) -> Joining:
    """See Joining; by the processor, in the threads that read.

    A room keeps what its largest tile took, and no two have joined the same one: together they have the rows
    of the tiles with most. As weights are joined, rooms are kept.

    Parameters
    ----------
    stats, joined
        Of the graph as stored, and as `joined_facts` made them.
    rows
        int64, shape (joined.tiles,): rows of the joined tiles.
    at_once
        Joined tiles that are made at a time for each device.
    devices
        How many there are.
    """
    if joined.tiles == stats.tiles:
        return NOTHING_JOINED
    largest = (np.sort(rows)[::-1][: devices * at_once] + 1).tolist()
    edges, stored = joined.tile_edges, min(stats.tile_edges, stats.edges)
    most = sum(_room_bytes(edges, of, min(edges, of), min(stored, of)) for of in largest)
    filled = [_filled(edges, of) for of in largest]
    usual = sum(
        _room_bytes(edges, of, some, some * stored // edges) for of, some in zip(largest, filled, strict=True)
    )
    # A stored tile as it is read.
    apart = len(largest) * (unweighted(stats).max_tile_bytes + PAGE + weight_joining_bytes(stats, joined))
    # Memory that has grown has an eighth to spare, which as a rule nobody writes to.
    return Joining(host=most + most // 8 + apart, usual_host=usual + apart, at_once=at_once)


def _filled(edges: int, segments: int) -> int:
    """Segments that are not empty as a rule: where links fall on rows at random.

    Examples
    --------
    >>> _filled(1000, 100), _filled(1000, 1000), _filled(1000, 100_000)
    (99, 632, 995)
    """
    return int(-segments * math.expm1(-edges / segments))


def _room_bytes(edges: int, segments: int, filled: int, of_stored: int) -> int:
    """Bytes that a thread keeps that has joined tiles; see `oocpr.engine.tiles.host_merge`.

    Columns and gaps (4 an edge each), lengths (4 a segment), starts (4 a segment that is not empty), a width
    for 32 of each, and the last of 1024 starts. Of a stored tile where its segments lie, how they start and
    which they are (4 each).

    Parameters
    ----------
    edges, segments, filled
        Of a joined tile, and its segments that are not empty.
    of_stored
        Segments of a stored tile that are not empty.
    """
    values = 8 * edges + 4 * segments + 4 * filled
    widths = edges // 16 + segments // 32 + filled // 32 + filled // 256
    return values + widths + 12 * of_stored + ROUNDING


def weight_joining_bytes(stats: GraphStats, joined: GraphStats) -> int:
    """Bytes that a thread takes to join weights: those of a tile decoded, and those of a stored one as read.

    Parameters
    ----------
    stats, joined
        Of the graph as stored, and as `joined_facts` made them.
    """
    return 8 * joined.tile_edges + stats.max_weight_bytes if stats.weighted else 0
