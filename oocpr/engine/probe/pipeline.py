"""When a first pass over tiles is done: threads bring them, one takes them, by what some of them took."""

from __future__ import annotations

from heapq import heapreplace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oocpr.engine.probe.fit import fitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


class Reading(NamedTuple):
    """Who brings tiles.

    Attributes
    ----------
    threads
        Each brings the next tile.
    buffers
        Tiles that are on their way or have come, and are not taken.
    """

    threads: int
    buffers: int


def completion_times(brought: Sequence[float], taken: Sequence[float], reading: Reading) -> list[float]:
    """Say when tiles have been taken, one after the other.

    Parameters
    ----------
    brought, taken
        Seconds in which a thread brings each, and in which it is taken, once it is there and those before
        it are taken.
    reading
        Who brings them.

    Examples
    --------
    >>> taken_at([2, 2, 2, 2], [0, 0, 0, 0], Reading(threads=2, buffers=4))
    [2, 2, 4, 4]
    >>> taken_at([9, 1, 1, 1], [0, 0, 0, 0], Reading(threads=2, buffers=4))
    [9, 9, 9, 9]
    >>> taken_at([9, 1, 1, 1], [0, 0, 0, 0], Reading(threads=2, buffers=2))
    [9, 9, 10, 10]
    >>> taken_at([2, 2, 2, 2], [5, 5, 5, 5], Reading(threads=2, buffers=4))
    [7, 12, 17, 22]
    """
    free: list[float] = [0] * reading.threads
    done: list[float] = []
    for number, (bring, take) in enumerate(zip(brought, taken, strict=True)):
        begun = max(free[0], done[number - reading.buffers]) if number >= reading.buffers else free[0]
        heapreplace(free, begun + bring)
        done.append((max(begun + bring, done[-1]) if done else begun + bring) + take)
    return done


def extrapolate(
    some: Mapping[int, float], edges: NDArray[np.float64], rows: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Tell what all tiles take, by what some of them took.

    What a row takes is told from tiles with many and with few. The rest is what edges take, which changes
    along the tiles as their columns do: between two that were seen it lies between these.

    Parameters
    ----------
    some
        Seconds, by the number of the tile.
    edges, rows
        Of all tiles; float64, shape (tiles,).

    Returns
    -------
    ndarray
        Seconds; float64, shape (tiles,).

    Examples
    --------
    >>> told_of_all({0: 1.0, 2: 3.0}, np.full(4, 10.0), np.full(4, 7.0)).tolist()
    [1.0, 2.0, 3.0, 3.0]
    >>> told_of_all({}, np.ones(2), np.ones(2)).tolist()
    [0.0, 0.0]
    """
    if not some:
        return np.zeros(len(edges))
    tiles = np.array(sorted(some))
    seconds = np.array([some[tile] for tile in tiles.tolist()])
    row = fitted(edges[tiles], rows[tiles], seconds)[1]
    # No tile takes less than its rows alone: one that seems to was brought faster than others.
    an_edge = np.maximum(0.0, seconds - row * rows[tiles]) / edges[tiles]
    told: NDArray[np.float64] = np.interp(np.arange(len(edges)), tiles, an_edge) * edges + row * rows
    return told
