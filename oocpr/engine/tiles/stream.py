"""Brings a stripe's tiles to the computation: performs what the schedule decides.

Reader threads fill a ring of buffers while the calling thread computes. Tiles that the plan keeps in memory
are read once, in the first pass, into memory of their own size, and prepared once.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from oocpr.engine.tiles.schedule import Arrived, Computed, Read, Schedule
from oocpr.engine.trace import READ
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    """

    def __init__(
        self,
        source: TileBytes,
        tiles: Sequence[int],
        resident: frozenset[int],
        slots: int,
        readers: int,
        prepare: Callable[[int, NDArray[np.uint8], bool], Any],
        allocate: Callable[[int], NDArray[np.uint8]] = aligned,
        trace: Trace | None = None,
        direct: bool = False,
    ) -> None:
        self._source = source
        self._tiles = tiles
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
        reads = not self.all_resident
        traffic = self._stream(compute) if reads else PassTraffic(0, 0.0)
        if not reads:
            for tile in self._tiles:
                compute(tile, self._kept[tile])
        elif self.all_resident:
            self._ring.clear()
        return traffic

    @property
    def all_resident(self) -> bool:
        """See Tiles."""
        return len(self._kept) == len(self._tiles)

    def close(self) -> None:
        """See Tiles; between passes nothing goes on."""
        self._kept.clear()
        self._ring.clear()

    def _stream(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        slots = min(self._slots, len(self._tiles) - len(self._kept))
        ring = self._buffers(slots)
        schedule = Schedule(self._tiles, self._kept.keys(), slots)
        # A read is had by nobody once it is looked at: its error has this function.
        reading: dict[int, Future[tuple[int, Any]]] = {}
        done: SimpleQueue[int] = SimpleQueue()
        arrived: dict[int, Any] = {}
        waited, total = 0.0, 0
        with ThreadPoolExecutor(self._readers, thread_name_prefix="oocpr-read") as pool:
            actions = schedule.begin()
            while True:
                ready = None
                for action in actions:
                    if isinstance(action, Read):
                        tile = action.tile
                        reading[tile] = pool.submit(self._read, tile, ring[action.slot], action.slot)
                        reading[tile].add_done_callback(lambda _, tile=tile: done.put(tile))  # type: ignore[misc]
                    else:
                        ready = action
                if ready is not None:
                    if ready.slot is None:
                        compute(ready.tile, self._kept[ready.tile])
                    else:
                        compute(ready.tile, self._take(ready.tile, arrived.pop(ready.tile)))
                    actions = schedule.on(Computed(ready.tile))
                elif schedule.done:
                    return PassTraffic(total, waited)
                else:
                    begun = time.perf_counter()
                    tile = done.get()
                    waited += time.perf_counter() - begun
                    size, arrived[tile] = reading.pop(tile).result()
                    total += size
                    actions = schedule.on(Arrived(tile))

    def _buffers(self, slots: int) -> list[NDArray[np.uint8]]:
        """Buffers of the ring, those of the last pass: a disk was a quarter slower into fresh memory."""
        missing = slots - len(self._ring)
        self._ring += [self._allocate(self._source.max_bytes) for _ in range(missing)]
        del self._ring[slots:]
        return self._ring

    def _read(self, tile: int, buffer: NDArray[np.uint8], slot: int) -> tuple[int, Any]:
        """Read a tile; returns its size, and it prepared or, if it stays, its bytes."""
        trace = self._trace
        with nullcontext() if trace is None else trace.span(f"{READ}, buffer {slot}", f"tile {tile}"):
            size = self._source.read_into(tile, buffer, direct=self._direct)
        encoded = buffer[:size]
        # What takes no memory is done while others are computed.
        return size, encoded if tile in self._resident else self._prepare(tile, encoded, False)

    def _take(self, tile: int, arrived: Any) -> Any:
        """Prepare a tile that stays, and keep it."""
        if tile not in self._resident:
            return arrived
        self._kept[tile] = prepared = self._prepare(tile, arrived, True)
        return prepared
