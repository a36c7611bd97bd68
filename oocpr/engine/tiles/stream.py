"""Brings a stripe's tiles to the computation, in the order of the plan.

Later tiles use the proposals of earlier ones, so tiles are computed in order, while reader threads fill a
ring of buffers. A buffer is given to the next tile only after the tile in it has been computed, which bounds
the memory whatever the speeds are. Resident tiles are read and prepared once, in the first pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from oocpr.engine.trace import READ
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.trace import Trace


class TileBytes(Protocol):
    """Where encoded tiles come from."""

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest tile."""

    def read_into(self, tile: int, out: NDArray[np.uint8], *, direct: bool = False) -> int:
        """Read a tile, past the system's page cache if `direct`, and check its checksum; returns its size."""


@dataclass(frozen=True)
class PassTraffic:
    """Encoded bytes that a pass read from the store, and seconds in which the computation waited for them."""

    bytes_read: int
    wait_seconds: float

    @classmethod
    def of(cls, parts: Sequence[PassTraffic]) -> PassTraffic:
        """What several parts of a pass took together."""
        return cls(sum(part.bytes_read for part in parts), sum(part.wait_seconds for part in parts))


class Tiles(Protocol):
    """The tiles of one stripe, pass after pass."""

    def run(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        """Call ``compute(tile, prepared)`` for each tile in order.

        Raises DamagedError if a tile's bytes are not what was written; no later tile is computed.
        """

    @property
    def all_resident(self) -> bool:
        """Whether all tiles are where they stay, so that a pass reads nothing."""

    def close(self) -> None:
        """End what is still going on and free all tiles; no pass follows."""


class TileStream:
    """The tiles of one stripe, or of several that follow each other, pass after pass.

    Parameters
    ----------
    tiles, resident
        In the order of computation, and which of them are kept in memory after their first read.
    slots, readers
        Buffers of the ring, and threads that read into them.
    prepare
        Makes what is computed with of a tile's number and its bytes, which lie in the ring; called once for a
        tile that stays, and says so: then it has to copy what it keeps of them.
    allocate
        Makes a buffer of the ring, which begins with a page.
    direct
        Whether tiles are read past the system's page cache.
    examine
        Called by the thread that has read a tile that stays; makes of its bytes what `prepare` gets.
    wait_for
        Called by the thread that reads before it reads into a buffer again.
    label
        What a timeline calls a tile by.
    """

    def __init__(
        self,
        source: TileBytes,
        tiles: Sequence[int],
        resident: frozenset[int],
        slots: int,
        readers: int,
        prepare: Callable[[int, Any, bool], Any],
        allocate: Callable[[int], NDArray[np.uint8]] = aligned,
        trace: Trace | None = None,
        direct: bool = False,
        examine: Callable[[int, NDArray[np.uint8]], Any] | None = None,
        wait_for: Callable[[NDArray[np.uint8]], None] | None = None,
        label: Callable[[int], int] = int,
    ) -> None:
        self._source = source
        self._tiles = tiles
        self._examine, self._wait_for, self._label = examine, wait_for, label
        self._resident = resident
        self._kept: dict[int, Any] = {}
        self._slots = slots
        self._readers = readers
        self._prepare = prepare
        self._allocate = allocate
        self._trace = trace
        self._direct = direct
        self._ring: list[NDArray[np.uint8]] = []

    def run(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        """See Tiles."""
        if not self.all_resident:
            return self._read_and_compute(compute)
        for tile in self._tiles:
            compute(tile, self._kept[tile])
        return PassTraffic(0, 0.0)

    @property
    def all_resident(self) -> bool:
        """See Tiles."""
        return len(self._kept) == len(self._tiles)

    def close(self) -> None:
        """See Tiles; between passes nothing goes on."""
        self._kept.clear()
        self._ring.clear()

    def _read_and_compute(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        to_read = [tile for tile in self._tiles if tile not in self._kept]
        ring = self._buffers(min(self._slots, len(to_read)))
        waited, total = 0.0, 0
        with ThreadPoolExecutor(self._readers, thread_name_prefix="oocpr-read") as pool:
            # A read is had by nobody once it is looked at: its error has this function.
            reading: dict[int, Future[tuple[int, Any]]] = {}
            for slot, tile in enumerate(to_read[: len(ring)]):
                reading[tile] = pool.submit(self._read, tile, ring[slot], slot)
            computed = 0
            for tile in self._tiles:
                if tile not in reading:
                    compute(tile, self._kept[tile])
                    continue
                asked = time.perf_counter()
                size, arrived = reading.pop(tile).result()
                waited += time.perf_counter() - asked
                total += size
                if tile in self._resident:
                    self._kept[tile] = arrived = self._prepare(tile, arrived, True)
                compute(tile, arrived)
                del arrived  # or it would be there while the next tile is waited for
                # Tiles take the buffers in turns, as they are computed in the order in which they are read.
                slot, later = computed % len(ring), computed + len(ring)
                computed += 1
                if later < len(to_read):
                    reading[to_read[later]] = pool.submit(self._read, to_read[later], ring[slot], slot)
        if self.all_resident:
            ring.clear()
        return PassTraffic(total, waited)

    def _buffers(self, slots: int) -> list[NDArray[np.uint8]]:
        """Buffers of the ring, those of the last pass: a disk was a quarter slower into fresh memory."""
        missing = slots - len(self._ring)
        self._ring += [self._allocate(self._source.max_bytes) for _ in range(missing)]
        del self._ring[slots:]
        return self._ring

    def _read(self, tile: int, buffer: NDArray[np.uint8], slot: int) -> tuple[int, Any]:
        """Read a tile; returns its size, and it prepared or, if it stays, its bytes."""
        trace = self._trace
        if self._wait_for is not None:
            self._wait_for(buffer)
        name = f"tile {self._label(tile)}"
        with nullcontext() if trace is None else trace.span(f"{READ}, buffer {slot}", name):
            size = self._source.read_into(tile, buffer, direct=self._direct)
        encoded = buffer[:size]
        if tile in self._resident:
            return size, encoded if self._examine is None else self._examine(tile, encoded)
        # What takes no memory is done while others are computed.
        return size, self._prepare(tile, encoded, False)
