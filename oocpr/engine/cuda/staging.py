"""Tiles on their way to a device: from the store to pinned memory, then to the device while kernels run.

Tiles that stay on the device are made ready once; those that stay in pinned memory are sent in every pass;
the others are read in every pass, into a ring of pinned buffers. On the device a tile passes through a ring
of slots. Nothing here is waited for but a pinned buffer that is to be read into again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oocpr.engine.cuda.device import THREADS, grid
from oocpr.engine.cuda.tile import (
    CudaTile,
    DeviceTile,
    DeviceWeights,
    StreamArrays,
    TileMap,
    decode_segments,
    map_tile,
)
from oocpr.engine.tiles.stream import PassTraffic, TileStream
from oocpr.engine.trace import COMPUTE, COPY, HOST, DeviceTrace
from oocpr.store.codec.layout import GROUP, blocks_of
from oocpr.store.direct_io import aligned

if TYPE_CHECKING:
    from oocpr.engine.cuda.device import Device, Event
    from oocpr.engine.cuda.tile import Part, StreamMap
    from oocpr.engine.tiles.stream import TileBytes
    from oocpr.engine.trace import Trace


class StagedTile(NamedTuple):
    """A tile in a slot, as kernels take it."""

    grid: tuple[int]  # grid, moves: how its widths are moved
    moves: tuple[Any, ...]
    lengths: StreamArrays
    ranks: Any
    starts: StreamArrays | None
    tile: DeviceTile  # what it is once it is expanded


class DecodeWorkspace:
    """Where streamed tiles are expanded, one after the other; room for the largest.

    A tile that has arrived is used where it lies. Only widths are moved, to multiples of 16 bytes, and
    segments are decoded. Kernels run in order, so a tile may overwrite what those of the last one have read.
    """

    def __init__(self, device: Device, edges: int, segments: int) -> None:
        xp = device.xp
        self._device = device
        nonempty, groups = min(edges, segments), -(-segments // GROUP)
        blocks = (blocks_of(segments), blocks_of(nonempty), blocks_of(edges))
        self._widths = [xp.empty(max(1, count) * GROUP, np.uint8) for count in blocks]
        # Zeros, for a damaged tile may leave them as they are and is found only once it has been swept.
        self._begins = xp.zeros(max(1, blocks_of(edges)) * GROUP, np.uint32)
        self._ranks = xp.zeros(blocks_of(edges) + 1, np.uint32)
        self._starts = xp.zeros(max(1, nonempty), np.uint32)
        self._filled = xp.zeros(max(1, groups), np.uint32)
        self._filled_before = xp.zeros(max(1, groups), np.uint32)

    def stage(self, arrived: Any, found: TileMap, factor: float | None = None) -> StagedTile:
        """Find the parts of a tile where it arrives, which are the same whenever it arrives there.

        `arrived`: uint8 of the device, aligned to 16 bytes: where the encoded tile comes to lie.
        `factor`: what weights are multiplied by; None if there are none.
        """
        streams = (found.lengths, found.starts, found.gaps)
        words = max(1, blocks_of(found.edges)) * GROUP
        threads = max(words, *(blocks_of(stream.size) * GROUP for stream in streams))
        moves: list[Any] = []
        for stream, room in zip(streams, self._widths, strict=True):
            moves += (np.uint64(stream.widths.offset), np.uint32(stream.widths.items))
            moves += (np.uint32(blocks_of(stream.size) * GROUP), room)
        lengths, starts, gaps = (
            _stream_arrays(arrived, stream, room) for stream, room in zip(streams, self._widths, strict=True)
        )
        weights = None
        if found.weights is not None and factor is not None:
            parts = (_view(arrived, part) if part.items else None for part in found.weights.parts)
            weights = DeviceWeights(tuple(parts), found.weights.size, factor)
        tile = DeviceTile(
            found.edges, found.segments, found.nonempty, gaps, self._begins, self._ranks,
            None if found.verbatim else self._starts, self._filled, self._filled_before, weights,
        )  # fmt: skip
        return StagedTile(
            grid(threads),
            (arrived, *moves, self._begins, np.uint32(words)),
            lengths,
            _view(arrived, found.ranks),
            None if found.verbatim else starts,
            tile,
        )

    def expand(self, staged: StagedTile, faults: Any) -> DeviceTile:
        """Use a tile that has arrived; it is good until the next one is expanded."""
        kernel = self._device.load("staging.cu").get_function("make_room")
        kernel(staged.grid, (THREADS,), staged.moves)
        decode_segments(self._device, staged.tile, staged.lengths, staged.ranks, staged.starts, faults)
        return staged.tile


def _stream_arrays(arrived: Any, stream: StreamMap, widths: Any) -> StreamArrays:
    words, directory, wide, narrow = (_view(arrived, part) for part in stream[1:5])
    return words, directory, wide, narrow, widths


def _view(arrived: Any, part: Part) -> Any:
    dtype = np.dtype(part.dtype)
    return arrived[part.offset : part.offset + part.items * dtype.itemsize].view(dtype)


MAX_KNOWN = 1024
"""Tiles in slots whose parts are remembered: some 6 KiB each."""

Pinned = tuple["NDArray[np.uint8]", TileMap]
"""The encoded bytes of a tile, and what is in them."""


class CudaTileStream:
    """The tiles of one stripe, pass after pass; stands where a `TileStream` does.

    `keep`: makes of a tile's bytes what is computed with as long as the tile stays on the device.
    `faults`: uint32, shape (1,), of the device: receives what is wrong with a tile.
    `trace`: receives when each tile was read, taken, sent and computed; None for nothing.
    The others are those of `open_stream`, see Streams.
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
        keep: Callable[[NDArray[np.uint8]], CudaTile],
        faults: Any,
        trace: Trace | None = None,
        direct: bool = False,
        factor: float | None = None,
    ) -> None:
        self._device = device
        self._on_device, self._in_host = on_device, in_host
        self._faults, self._factor = faults, factor
        self._pinned: dict[int, Pinned] = {}
        pinned, weighted = self._pinned, factor is not None

        # Without a reference to this stream: in a cycle the tiles would be there until somebody looks for
        # garbage, long after the run.
        def prepare(tile: int, encoded: NDArray[np.uint8], stays: bool) -> Any:
            if not stays:
                return encoded, map_tile(encoded, weighted=weighted)
            with _host_span(trace, tile):
                if tile in on_device:
                    return keep(encoded)
                copied = device.pinned(encoded.size)
                copied[:] = encoded
                pinned[tile] = copied, map_tile(copied, weighted=weighted)
                return pinned[tile]

        resident = on_device | in_host
        # What is sent from elsewhere may be read into any memory.
        allocate = device.pinned if len(resident) < len(tiles) else aligned
        self._host = TileStream(source, tiles, resident, buffers, readers, prepare, allocate, trace, direct)
        self._device_trace = None if trace is None else DeviceTrace(device, trace)
        self._trace = trace
        self._passing = [tile for tile in tiles if tile not in on_device]
        count = len(self._passing)
        with device:
            tile_bytes = source.max_bytes if count else 0
            self._slots = [device.xp.empty(tile_bytes, np.uint8) for _ in range(min(slots, count))]
            self._workspace = DecodeWorkspace(device, edges, segments) if count else None
        self._free: list[Event | None] = [None] * len(self._slots)
        self._known: dict[tuple[int, int], StagedTile] = {}
        self._under_way: deque[Event] = deque()
        self._used = 0

    def run(self, compute: Callable[[int, Any], None]) -> PassTraffic:
        """See Tiles; returns before it is done, the first tiles of the next pass under way."""

        def use(tile: int, prepared: Any) -> None:
            with _host_span(self._trace, tile):
                if tile in self._on_device:
                    with self._span(COMPUTE, tile):
                        compute(tile, prepared)
                else:
                    self._use_passing(tile, prepared, compute)

        return self._host.run(use)

    @property
    def all_resident(self) -> bool:
        """See Tiles."""
        return self._host.all_resident

    def close(self) -> None:
        """See Tiles; waits until nothing is under way to the memory that is freed."""
        while self._under_way:
            self._under_way.popleft().synchronize()
        self._device.synchronize()
        if self._device_trace is not None:
            self._device_trace.finish()
        self._host.close()
        self._pinned.clear()
        self._known.clear()
        self._slots.clear()
        self._workspace = self._faults = None

    def _use_passing(self, tile: int, prepared: Pinned, compute: Callable[[int, Any], None]) -> None:
        self._send_ahead()
        if not self._under_way:
            self._send(tile, prepared)
        arriving = self._under_way.popleft()
        with self._device:
            self._device.wait_for(arriving)
            workspace = self._workspace
            assert workspace is not None, "a tile that does not stay has room"
            at = self._used % len(self._slots)
            staged = self._known.get((tile, at))
            if staged is None:
                # This takes the host as long as a megabyte takes the link.
                staged = workspace.stage(self._slots[at], prepared[1], self._factor)
                if tile in self._pinned and len(self._known) < MAX_KNOWN:
                    self._known[tile, at] = staged
            with self._span(COMPUTE, tile):
                arrived = workspace.expand(staged, self._faults)
        with self._span(COMPUTE, tile):
            compute(tile, CudaTile(arrived, checked=False))
        with self._device:
            self._free[at] = self._device.record_event()
        self._used += 1
        if tile not in self._in_host:
            arriving.synchronize()
        self._send_ahead()

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
                self._device.copy_stream_wait(free)
            with self._span(COPY, tile, found.nbytes):
                event = self._device.upload_async(self._slots[at][: found.nbytes], encoded[: found.nbytes])
        self._under_way.append(event)

    def _span(self, track: str, tile: int, nbytes: int = 0) -> AbstractContextManager[None]:
        trace = self._device_trace
        return nullcontext() if trace is None else trace.span(track, f"tile {tile}", nbytes)


def _host_span(trace: Trace | None, tile: int) -> AbstractContextManager[None]:
    """The time in which the host takes a tile: makes it what stays, or launches what computes with it."""
    return nullcontext() if trace is None else trace.span(HOST, f"tile {tile}")
