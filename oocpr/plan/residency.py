"""What stays where: tiles kept in memory, and the ring through which the others pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

RING_SLOTS = 4
"""Buffers of a stripe's ring: one computed, one ready, two being read."""


def ring_slots(reading: int) -> int:
    """Buffers of a ring from so many threads that read.

    Examples
    --------
    >>> ring_slots(2), ring_slots(8)
    (4, 10)
    """
    return max(RING_SLOTS, reading + 2)


READERS = 2
"""Threads that read a stripe's tiles through the page cache, which takes a processor to copy them."""

IO = ("auto", "direct", "buffered")
"""How tiles are read: past the system's page cache, through it, or as `wants_direct` says."""


def kept_tiles(tiles: int, tile_bytes: int, budget: int) -> int:
    """How many tiles of at most `tile_bytes` fit into `budget` bytes.

    Examples
    --------
    >>> kept_tiles(10, 100, 350), kept_tiles(10, 100, 5000)
    (3, 10)
    """
    return max(0, min(tiles, budget // max(1, tile_bytes)))


def evenly(tiles: int, kept: int) -> NDArray[np.int64]:
    """Choose `kept` of so many tiles, evenly, so that reading and computing overlap; ascending.

    Examples
    --------
    >>> evenly(10, 4)
    array([2, 4, 7, 9])
    """
    return -(-np.arange(1, kept + 1) * tiles // max(1, kept)) - 1


def spread_evenly(first: int, last: int, kept: int) -> frozenset[int]:
    """Choose `kept` of the tiles ``first .. last - 1`` as `evenly` does.

    Examples
    --------
    >>> sorted(spread_evenly(10, 20, 4))
    [12, 14, 17, 19]
    """
    return frozenset((first + evenly(last - first, kept)).tolist())


def wants_direct(io: str, streamed: int, room: int) -> bool:
    """Whether tiles should be read past the system's page cache.

    What is read in every pass and in the same order finds nothing of itself in a cache that is smaller: then
    the cache costs a copy, and what it held before.

    Parameters
    ----------
    io
        One of IO.
    streamed
        Bytes that are read in every pass.
    room
        Bytes that the cache may come to hold.

    Examples
    --------
    >>> wants_direct("auto", 3 * 2**30, 2**30), wants_direct("auto", 2**30, 3 * 2**30)
    (True, False)
    """
    return io == "direct" or (io == "auto" and streamed > room)


def reading_threads(cores: int, *, past_cache: bool) -> int:
    """How many threads read a stripe's tiles.

    Parameters
    ----------
    cores
        Of the machine.
    past_cache
        Whether tiles are read in every pass, and directly: then a thread waits for the disk, not for a
        processor, and the disk wants several reads at once.

    Examples
    --------
    >>> reading_threads(1, past_cache=False), reading_threads(8, past_cache=False)
    (1, 2)
    >>> reading_threads(1, past_cache=True)
    4
    """
    return RING_SLOTS if past_cache else min(READERS, cores)
