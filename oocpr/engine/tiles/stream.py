"""Brings a stripe's tiles to the computation, in the order of the plan.

Later tiles use the proposals of earlier ones, so tiles are computed in order, while reader threads fill a
ring of buffers. A buffer is given to the next tile only after the tile in it has been computed, which bounds
the memory whatever the speeds are. Resident tiles are read and prepared once, in the first pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from oocpr.engine.trace import READ
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from oocpr.engine.trace import Trace


Item = TypeVar("Item")
Result = TypeVar("Result")


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

    def steps(self, compute: Callable[[int, Any], None]) -> Generator[None, None, PassTraffic]:
        """Do as `run` does, and yield after each tile; meanwhile others are read."""

    @property
    def all_resident(self) -> bool:
        """Whether all tiles are where they stay, so that a pass reads nothing."""

    def close(self) -> None:
        """End what is still going on and free all tiles; no pass follows."""


def returned(steps: Generator[Any, None, Result]) -> Result:
    """What a generator returns, once it has gone on to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


class ReadAhead(Generic[Item]):
    """Items that threads read in their order, as many ahead as there are buffers.

    A buffer is read into again once its item was released or, if nobody needs it, as soon as it was read.
    """

    def __init__(
        self,
        items: Sequence[Item],
        buffers: list[NDArray[np.uint8] | None],
        allocate: Callable[[], NDArray[np.uint8]],
        read: Callable[[Item, NDArray[np.uint8], int], Any],
        needed: Callable[[Item], bool],
    ) -> None:
        self._items, self._buffers, self._allocate, self._read = items, buffers, allocate, read
        self._needed = needed
        # An item takes these queues 2 us of Python, and took futures 7.
        self._todo: SimpleQueue[int | None] = SimpleQueue()
        self._done: list[SimpleQueue[Any]] = [SimpleQueue() for _ in items]
        self._taken = self._released = 0
        for number in range(min(len(buffers), len(items))):
            self._todo.put(number)

    def take(self) -> Any:
        """Wait for what `read` made of the next item, or raised."""
        self._taken += 1
        failed, result = self._done[self._taken - 1].get()
        if not failed:
            return result
        try:
            raise result
        finally:
            # The error has this function.
            del result

    def release(self) -> None:
        """Let the first buffer that was taken be read into again."""
        self._released += 1
        if self._needed(self._items[self._released - 1]):
            self._go_on(self._released - 1)

    def _go_on(self, number: int) -> None:
        """Have the buffer of an item read into again."""
        later = number + len(self._buffers)
        if later < len(self._items):
            self._todo.put(later)

    def serve(self) -> None:
        """Read until there is no more; in a thread."""
        while (number := self._todo.get()) is not None:
            slot = number % len(self._buffers)
            try:
                buffer = self._buffers[slot]
                if buffer is None:
                    # Here, since pinned memory takes long to make: others read meanwhile.
                    buffer = self._buffers[slot] = self._allocate()
                result = False, self._read(self._items[number], buffer, slot)
            except BaseException as error:  # noqa: BLE001 - who takes it raises it
                result = True, error
            self._done[number].put(result)
            if not self._needed(self._items[number]):
                self._go_on(number)
            del buffer, result  # or they would be there until the next ones are

    def stop(self, threads: int) -> None:
        """Have so many threads end."""
        for _ in range(threads):
            self._todo.put(None)


class ReadRing:
    """Buffers that what is read takes in turns, of so many bytes, and how many threads read into them.

    `allocate` makes a buffer, which begins with a page.
    """

    def __init__(
        self, slots: int, readers: int, nbytes: int, allocate: Callable[[int], NDArray[np.uint8]] = aligned
    ) -> None:
        self._slots, self._readers = slots, readers
        self._allocate = partial(allocate, nbytes)
        self._buffers: list[NDArray[np.uint8] | None] = []

    @contextmanager
    def reading(
        self,
        items: Sequence[Item],
        read: Callable[[Item, NDArray[np.uint8], int], Any],
        needed: Callable[[Item], bool] = lambda _: True,
    ) -> Iterator[ReadAhead[Item]]:
        """Have threads call ``read(item, buffer, slot)`` for each item meanwhile.

        `needed`: whether the buffer of an item is needed until the item is released.
        """
        slots = min(self._slots, len(items))
        # Buffers are those of the last pass: a disk was a quarter slower into fresh memory.
        self._buffers += [None] * (slots - len(self._buffers))
        ahead = ReadAhead(items, self._buffers, self._allocate, read, needed)
        with ThreadPoolExecutor(self._readers, thread_name_prefix="oocpr-read") as pool:
            threads = min(self._readers, slots)
            try:
                for _ in range(threads):
                    pool.submit(ahead.serve)
                yield ahead
            finally:
                ahead.stop(threads)

    def clear(self) -> None:
        """Free the buffers."""
        self._buffers.clear()


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
        trace: Trace | None = None,
        direct: bool = False,
    ) -> None:
        self._source = source
        self._tiles = tiles
        self._resident = resident
        self._kept: dict[int, Any] = {}
        self._prepare = prepare
        self._trace = trace
        self._direct = direct
        self._ring = ReadRing(slots, readers, source.max_bytes)

    def run(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        """See Tiles."""
        return returned(self.steps(compute))

    def steps(self, compute: Callable[[int, Any], None]) -> Generator[None, None, PassTraffic]:
        """See Tiles."""
        if not self.all_resident:
            return (yield from self._read_and_compute(compute))
        for tile in self._tiles:
            compute(tile, self._kept[tile])
            yield
        return PassTraffic(0, 0.0)

    @property
    def all_resident(self) -> bool:
        """See Tiles."""
        return len(self._kept) == len(self._tiles)

    def close(self) -> None:
        """See Tiles; between passes nothing goes on."""
        self._kept.clear()
        self._ring.clear()

    def _read_and_compute(self, compute: Callable[[int, Any], None]) -> Generator[None, None, PassTraffic]:
        waited, total = 0.0, 0
        to_read = [tile for tile in self._tiles if tile not in self._kept]
        with self._ring.reading(to_read, self._read) as ahead:
            for tile in self._tiles:
                if tile in self._kept:
                    compute(tile, self._kept[tile])
                    yield
                    continue
                asked = time.perf_counter()
                size, arrived = ahead.take()
                waited += time.perf_counter() - asked
                total += size
                if tile in self._resident:
                    self._kept[tile] = arrived = self._prepare(tile, arrived, True)
                compute(tile, arrived)
                del arrived  # or it would be there while the next tile is waited for
                ahead.release()
                yield
        if self.all_resident:
            self._ring.clear()
        return PassTraffic(total, waited)

    def _read(self, tile: int, buffer: NDArray[np.uint8], slot: int) -> tuple[int, Any]:
        """Read a tile; returns its size, and it prepared or, if it stays, its bytes."""
        trace = self._trace
        with nullcontext() if trace is None else trace.span(f"{READ}, buffer {slot}", f"tile {tile}"):
            size = self._source.read_into(tile, buffer, direct=self._direct)
        encoded = buffer[:size]
        # What takes no memory is done while others are computed.
        return size, encoded if tile in self._resident else self._prepare(tile, encoded, False)
