"""Which tiles are resident, and the ring through which the others stream.

Which tiles stay follows from how many, see `evenly`. So one more is another choice altogether and may take
less, if it leaves out a tile of many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oocpr.plan.tile_groups import expanded_bytes

if TYPE_CHECKING:
    from oocpr.plan.request import GraphStats
    from oocpr.plan.tile_groups import GroupLayout

RING_SLOTS = 4
"""Buffers of a stripe's ring: one computed, one ready, two being read."""

READERS = 2
"""Threads that read a stripe's tiles through the page cache, which takes a processor to copy them."""

DEVICE_READERS = 8
"""The same for a device: eight threads read tiles from the page cache at 33 GB/s, one at 7."""

IO = ("auto", "direct", "buffered")
"""How tiles are read: past the system's page cache, through it, or as `wants_direct` says."""

GROUPS = (256, 4096)
"""Groups of tiles of which the least is known, for a first look and for another one: of 10**5 tiles, of which
half stay, the number was found in one second if neighbours are alike, and in four if they are not."""

CANDIDATE_BLOCK = 256
"""Numbers of resident tiles that are looked at together."""


def ring_slots(reading: int) -> int:
    """Buffers of a ring that so many threads fill."""
    return max(RING_SLOTS, reading + 2)


def reading_threads(cores: int, *, past_cache: bool) -> int:
    """How many threads read a stripe's tiles.

    Directly from the disk a thread waits for the disk, not for a processor, and the disk wants several reads
    at once.
    """
    return RING_SLOTS if past_cache else min(READERS, cores)


def device_readers(cores: int) -> int:
    """How many threads read tiles for a device, if as many processors may."""
    return min(DEVICE_READERS, max(READERS, cores))


def wants_direct(io: str, streamed: int, room: int) -> bool:
    """Whether tiles should be read past the system's page cache, which may come to hold `room` bytes.

    What is read in every pass and in the same order finds nothing of itself in a cache that is smaller: then
    the cache costs a copy, and what it held before.
    """
    return io == "direct" or (io == "auto" and streamed > room)


def fitting_tiles(tiles: int, tile_bytes: int, budget: int) -> int:
    """How many tiles of at most `tile_bytes` fit into `budget` bytes."""
    return max(0, min(tiles, budget // max(1, tile_bytes)))


def fitting(sizes: NDArray[np.int64], room: int) -> int:
    """How many of some tiles of such sizes fit into so many bytes, whichever they are."""
    return int(np.searchsorted(np.sort(sizes)[::-1].cumsum(), room, side="right"))


def evenly(tiles: int, chosen: int) -> NDArray[np.int64]:
    """Choose some of so many tiles, evenly, so that reading and computing overlap; ascending.

    Examples
    --------
    >>> evenly(10, 4)
    array([2, 4, 7, 9])
    """
    return -(-np.arange(1, chosen + 1) * tiles // max(1, chosen)) - 1


def spread_evenly(first: int, last: int, chosen: int) -> frozenset[int]:
    """Choose some of the tiles ``first .. last - 1`` as `evenly` does."""
    return frozenset((first + evenly(last - first, chosen)).tolist())


@dataclass(frozen=True)
class ResidentTiles:
    """Bytes of a device that each tile takes as long as it stays, at most and as a rule; int64.

    `finding` is what it takes beside while its diagonal blocks are found, of one tile after the other.
    """

    limits: NDArray[np.int64]
    typical: NDArray[np.int64]
    finding: NDArray[np.int64]

    def max_finding(self, chosen: NDArray[np.int64]) -> int:
        """Bytes that finding diagonal blocks takes, of the tile of those chosen that takes most."""
        return int(self.finding[chosen].max(initial=0))

    def typical_peak(self, chosen: NDArray[np.int64]) -> int:
        """Bytes that the tiles chosen, which come one after the other, take at their peak as a rule."""
        # The diagonal blocks of a tile are found before the next one comes.
        return int((self.typical[chosen].cumsum() + self.finding[chosen]).max(initial=0))

    def within(self, room: int) -> int:
        """How many tiles stay: the most for which all that they take fits into so many bytes."""
        for count in self._candidates(room):
            chosen = evenly(len(self.limits), count)
            left = room - int(self.limits[chosen].sum())
            if left >= 0 and left >= self.max_finding(chosen):
                return count
        return 0

    def _candidates(self, room: int) -> Iterator[int]:
        """Numbers of tiles that may fit, the largest first.

        Others do not, even if each tile took no more than the least of its group.
        """
        tiles = len(self.limits)
        # No choice takes less than the smallest of all.
        most = int(np.searchsorted(np.sort(self.limits).cumsum(), room, side="right"))
        groupings = [np.linspace(0, tiles, min(tiles, groups) + 1).astype(np.int64) for groups in GROUPS]
        for last in range(most, 0, -CANDIDATE_BLOCK):
            counts = np.arange(last, max(0, last - CANDIDATE_BLOCK), -1)
            for bounds in groupings:
                chosen = np.diff(counts[:, None] * bounds // tiles, axis=1)
                counts = counts[chosen @ np.minimum.reduceat(self.limits, bounds[:-1]) <= room]
            yield from counts.tolist()


def resident_groups(
    stats: GraphStats, layout: GroupLayout, *, diagonal: bool, laid_out: NDArray[np.int64] | int = 0
) -> ResidentTiles:
    """Bytes of a device that each group takes as long as it stays: encoded, and what is expanded of it.

    `diagonal` says whether groups are swept in diagonal blocks; `laid_out` are the bytes that each takes as a
    product has laid it out, if it stays so.
    """
    sizes, room = layout.sizes, layout.room
    _, edges, nonempty, rows = sizes.T[:4]
    beside, finding = room + expanded_bytes(sizes) + laid_out, np.zeros_like(rows)
    if diagonal:
        # Of a diagonal block, an edge takes a byte, and each of 32 rows as many as the one of them that has
        # most. On cnr-2000 that is 12 bytes per row, which has 4.5 edges inside; what is known is how many
        # are inside tiles, and these are more. They are found from a group's columns, and where its segments
        # begin.
        beside = beside + (stats.local_share * edges).astype(np.int64) + 10 * rows
        finding = 4 * edges + 4 * nonempty + rows
    # As many rows have edges, as a rule, as if edges fell on rows at random.
    filled = (-(rows + 1) * np.expm1(-edges / (rows + 1))).astype(np.int64)
    return ResidentTiles(beside, beside - 4 * np.maximum(0, nonempty - filled), finding)
