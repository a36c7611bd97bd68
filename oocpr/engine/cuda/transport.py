"""Tiles on their way to a device: from the store to pinned memory, then to the device while kernels run.

Three tiers: tiles that stay on the device are made ready once; tiles that stay in pinned memory are sent in
every pass; the others are read in every pass, into a ring of pinned buffers. On the device a tile passes
through a ring of slots. Nothing here is waited for but a pinned buffer that is to be read into again.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from oocpr.engine.cuda.encoded_tile import TileMap, map_tile
from oocpr.engine.cuda.staging import ArrivalRoom, Landed
from oocpr.engine.tiles.stream import PassTraffic, TileStream
from oocpr.engine.trace import COMPUTE, COPY, HOST, DeviceTrace
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from oocpr.engine.cuda.device import Device, Mark
    from oocpr.engine.cuda.tile import DeviceTile
    from oocpr.engine.tiles.stream import TileBytes
    from oocpr.engine.trace import Trace

MOST_KNOWN = 1024
"""Tiles in slots whose parts are remembered: some 6 KiB each."""

Pinned = tuple["NDArray[np.uint8]", TileMap]
"""The encoded bytes of a tile, and what is in them."""


class CudaTileStream:
    """The tiles of one stripe, pass after pass; stands where a `TileStream` does.

    Parameters
    ----------
    device
        Where to.
    source
        Encoded tiles.
    tiles
        Tiles of the stripe, in the order of computation.
    on_device, in_host
        Those that stay on the device, and those that stay in pinned memory.
    edges, segments
        Most that a tile has.
    slots
        Tiles on the device that do not stay.
    readers, buffers
        Threads that read, and pinned buffers that they read into.
    keep
        Makes of a tile's bytes what is computed with as long as the tile stays on the device.
    pass_by
        Makes of a tile on the device what is computed with once.
    faults
        uint32, shape (1,), of the device: receives what is wrong with a tile.
    trace
        Receives when each tile was read, taken, sent and computed; None for nothing.
    direct
        Whether tiles are read past the system's page cache.
    factor
        What weights are multiplied by, which are behind the columns of each tile; None where there are none.
    """

    def __init__(
        self,
        device: Device,
        source: TileBytes,
        tiles: Sequence[int],
        *,
        on_device: frozenset[int],
        in_host: frozenset[int],
        edges: int,
        segments: int,
        slots: int,
        readers: int,
        buffers: int,
        keep: Callable[[NDArray[np.uint8]], Any],
        pass_by: Callable[[DeviceTile], Any],
        faults: Any,
        trace: Trace | None = None,
        direct: bool = False,
        factor: float | None = None,
    ) -> None:
        self._device = device
        self._on_device, self._in_host = on_device, in_host
        self._pass_by = pass_by
        self._faults, self._factor = faults, factor
        kept = on_device | in_host
        # What is sent from elsewhere may be read into any memory.
        allocate = device.pinned if len(kept) < len(tiles) else aligned
        prepare = _Prepare(device, on_device, keep, trace, weighted=factor is not None)
        self._host = TileStream(source, tiles, kept, buffers, readers, prepare, allocate, trace, direct)
        self._pinned = prepare.pinned
        self._trace = None if trace is None else DeviceTrace(device, trace)
        self._told = trace
        passing = len(tiles) - len(on_device)
        most = source.max_bytes if passing else 0
        with device:
            self._slots = [device.xp.empty(most, np.uint8) for _ in range(min(slots, passing))]
            self._room = ArrivalRoom(device, edges, segments) if passing else None
        self._passing = [tile for tile in tiles if tile not in on_device]
        self._free: list[Mark | None] = [None] * len(self._slots)
        self._known: dict[tuple[int, int], Landed] = {}
        self._under_way: deque[Mark] = deque()
        self._used = 0

    def run(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        """See Tiles; returns before it is done, the first tiles of the next pass under way."""

        def use(tile: int, prepared: Any) -> None:
            with _taken(self._told, tile):
                if tile in self._on_device:
                    with self._spanned(COMPUTE, tile):
                        compute(tile, prepared)
                else:
                    self._use_passing(tile, prepared, compute)

        return self._host.run(use)

    @property
    def settled(self) -> bool:
        """See Tiles."""
        return self._host.settled

    def close(self) -> None:
        """See Tiles; waits until nothing is under way to the memory that is freed."""
        while self._under_way:
            self._under_way.popleft().synchronize()
        self._device.synchronize()
        if self._trace is not None:
            self._trace.finish()
        self._host.close()
        self._pinned.clear()
        self._known.clear()
        self._slots.clear()
        self._room = self._faults = None

    def _use_passing(self, tile: int, prepared: Any, compute: Callable[[int, Any], None]) -> None:
        self._send_ahead()
        if not self._under_way:
            self._send(tile, prepared)
        arriving = self._under_way.popleft()
        with self._device:
            self._device.wait_for(arriving)
            assert self._room is not None, "a tile that does not stay has room"
            at = self._used % len(self._slots)
            landed = self._landed(self._room, tile, prepared[1], at)
            with self._spanned(COMPUTE, tile):
                arrived = self._room.make_ready(landed, self._faults)
        with self._spanned(COMPUTE, tile):
            compute(tile, self._pass_by(arrived))
        with self._device:
            self._free[at] = self._device.mark()
        self._used += 1
        if tile not in self._in_host:
            arriving.synchronize()
        self._send_ahead()

    def _landed(self, room: ArrivalRoom, tile: int, found: TileMap, at: int) -> Landed:
        """Parts of a tile in a slot; finding them takes the host as long as a megabyte takes the link."""
        key = tile, at
        if key in self._known:
            return self._known[key]
        landed = room.land(self._slots[at], found, self._factor)
        if tile in self._pinned and len(self._known) < MOST_KNOWN:
            self._known[key] = landed
        return landed

    def _send_ahead(self) -> None:
        """Send tiles from pinned memory to all slots but that of the tile in use."""
        while len(self._under_way) < len(self._slots):
            tile = self._passing[(self._used + len(self._under_way)) % len(self._passing)]
            if tile not in self._pinned:
                return
            self._send(tile, self._pinned[tile])

    def _send(self, tile: int, pinned: Pinned) -> None:
        encoded, found = pinned
        at = (self._used + len(self._under_way)) % len(self._slots)
        free = self._free[at]
        with self._device:
            if free is not None:
                self._device.hold_beside(free)
            with self._spanned(COPY, tile, found.nbytes):
                mark = self._device.send_beside(self._slots[at][: found.nbytes], encoded[: found.nbytes])
        self._under_way.append(mark)

    def _spanned(self, track: str, tile: int, nbytes: int = 0) -> AbstractContextManager[None]:
        return nullcontext() if self._trace is None else self._trace.span(track, f"tile {tile}", nbytes)


def _taken(trace: Trace | None, tile: int) -> AbstractContextManager[None]:
    """The time in which the host takes a tile: makes it what stays, or launches what computes with it."""
    return nullcontext() if trace is None else trace.span(HOST, f"tile {tile}")


class _Prepare:
    """Makes of a tile that was read what stays on the device or in pinned memory, or what is sent once.

    It knows nothing of the stream, which has what reads tiles and calls this: in a cycle the tiles would be
    there until somebody looks for garbage, long after the run.

    Parameters
    ----------
    device, on_device, keep, trace
        See CudaTileStream.
    weighted
        Whether weights are behind the columns of each tile.

    Attributes
    ----------
    pinned
        Tiles that stay in pinned memory, as far as they have come.
    """

    def __init__(
        self,
        device: Device,
        on_device: frozenset[int],
        keep: Callable[[NDArray[np.uint8]], Any],
        trace: Trace | None,
        *,
        weighted: bool,
    ) -> None:
        self._device, self._on_device, self._keep, self._weighted = device, on_device, keep, weighted
        self._trace = trace
        self.pinned: dict[int, Pinned] = {}

    def __call__(self, tile: int, encoded: NDArray[np.uint8], stays: bool) -> Any:
        """See `prepare` of TileStream."""
        if not stays:
            return encoded, map_tile(encoded, weighted=self._weighted)
        with _taken(self._trace, tile):
            if tile in self._on_device:
                return self._keep(encoded)
            kept = self._device.pinned(encoded.size)
            kept[:] = encoded
            self.pinned[tile] = pinned = kept, map_tile(kept, weighted=self._weighted)
            return pinned
